#!/bin/bash
set -euo pipefail
# shellcheck source=lib.bash
. "$(dirname "$0")/lib.bash"

grows_online btrfs 128MiB 512MiB $((512 << 20))

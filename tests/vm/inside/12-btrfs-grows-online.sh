#!/bin/bash
set -euo pipefail
# shellcheck source=lib.bash
. "$(dirname "$0")/lib.bash"

grows_online btrfs 256MiB 768MiB $((768 << 20))

#!/bin/bash
# 320 MiB: mkfs.xfs makes nothing below 300.
set -euo pipefail
# shellcheck source=lib.bash
. "$(dirname "$0")/lib.bash"

grows_online xfs 320MiB 640MiB $((560 << 20))

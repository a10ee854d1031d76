#!/bin/bash
# ext4 grows while it is mounted and written to, which needs a capability that many a container lacks.
# in make test
set -euo pipefail
# shellcheck source=lib.bash
. "$(dirname "$0")/lib.bash"

grows_online ext4 64MiB 256MiB $((230 << 20))

#!/bin/bash
# The official suite on thin logical volumes, and on thick ones, but for LONGSHORE_MATRIX=short.
# about 170 s
set -euo pipefail
# shellcheck source=lib.bash
. "$(dirname "$0")/lib.bash"
# shellcheck source=lvm.bash
. "$(dirname "$0")/lvm.bash"

lvm_start 2 4G sparse
export LVM_DEVICES=$disks
[ "${LONGSHORE_MATRIX:-}" = short ] || sanity lvm-thick
sanity lvm-thin
lvm_stop

#!/bin/bash
# The official suite on thin and on thick logical volumes.
# about 170 s
set -euo pipefail
# shellcheck source=lib.bash
. "$(dirname "$0")/lib.bash"
# shellcheck source=lvm.bash
. "$(dirname "$0")/lvm.bash"

lvm_start 2 4G sparse
export LVM_DEVICES=$disks
sanity lvm-thick
sanity lvm-thin
lvm_stop

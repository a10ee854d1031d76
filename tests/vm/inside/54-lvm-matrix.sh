#!/bin/bash
# The matrices of tests/matrix.rs for logical volumes: every step is killed, hangs and fails.
# about 300 s
set -euo pipefail
# shellcheck source=lib.bash
. "$(dirname "$0")/lib.bash"
# shellcheck source=lvm.bash
. "$(dirname "$0")/lvm.bash"

lvm_start 2 512M
export LONGSHORE_VOLUME_GROUP=$disks DM_DISABLE_UDEV=1
matrix lvm
lvm_stop

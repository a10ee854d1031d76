#!/bin/bash
# The matrices of tests/matrix.rs for iSCSI, this machine being storage and node: every step is killed and fails.
# about 300 s
set -euo pipefail
# shellcheck source=lib.bash
. "$(dirname "$0")/lib.bash"

modprobe -a iscsi_target_mod target_core_file iscsi_tcp
iscsid -f &
iscsid=$!
end() { kill $iscsid; }
trap end EXIT
matrix iscsi

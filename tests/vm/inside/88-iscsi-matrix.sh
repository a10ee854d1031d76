#!/bin/bash
# The matrices of tests/matrix.rs for iSCSI, this machine being storage and node: every step is killed and fails.
# about 45 s
set -euo pipefail
# shellcheck source=lib.bash
. "$(dirname "$0")/lib.bash"
# shellcheck source=lio.bash
. "$(dirname "$0")/lio.bash"

lio_start
initiator_start iqn.2026-11.dev.longshore.test:machine
matrix iscsi
initiator_stop

#!/bin/bash
# The official suite on iSCSI, this machine being storage and node: with one driver, and with a controller and a node as they are deployed.
# about 140 s
set -euo pipefail
# shellcheck source=lib.bash
. "$(dirname "$0")/lib.bash"
# shellcheck source=lio.bash
. "$(dirname "$0")/lio.bash"

lio_start
initiator_start iqn.2026-11.dev.longshore.test:machine

sanity iscsi
sanity iscsi-deployed
initiator_stop

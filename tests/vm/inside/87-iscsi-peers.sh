#!/bin/bash
# Two nodes and one target server (tests/peers): no matter who has a volume, whatever happens to that node, no matter who takes it over.
# about 190 s
set -euo pipefail
# shellcheck source=lib.bash
. "$(dirname "$0")/lib.bash"
# shellcheck source=lio.bash
. "$(dirname "$0")/lio.bash"

lio_start
initiator_start iqn.2026-11.dev.longshore.test:machine
peers iscsi volume_of_a_staged_node_is_taken_over volume_of_a_node_killed_while_it_staged_is_taken_over \
    volume_of_a_node_that_lost_power_while_it_staged_is_taken_over
initiator_stop

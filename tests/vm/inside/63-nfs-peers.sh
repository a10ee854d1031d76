#!/bin/bash
# Two nodes and one share (tests/peers): whoever has a volume, whatever happens to that node, whoever takes it over.
# about 200 s
set -euo pipefail
# shellcheck source=lib.bash
. "$(dirname "$0")/lib.bash"
# shellcheck source=nfs.bash
. "$(dirname "$0")/nfs.bash"

nfs_image xfs data
nfs_serve data
LONGSHORE_NFS_SHARE=127.0.0.1:$DIR/data peers nfs volume_of_a_staged_node_is_taken_over \
    volume_of_a_node_killed_while_it_staged_is_taken_over

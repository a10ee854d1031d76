#!/bin/bash
# Two nodes and one share (tests/peers): no matter who has a volume, whatever happens to that node, no matter who takes it over.
# about 120 s
set -euo pipefail
# shellcheck source=lib.bash
. "$(dirname "$0")/lib.bash"
# shellcheck source=nfs.bash
. "$(dirname "$0")/nfs.bash"

nfs_image xfs data
nfs_serve data
# Each node has a network of its own, with a cable to this bridge. Without an address of its own, that would change with its cables.
ip link add storage address 02:00:00:00:00:01 type bridge
ip address add 10.98.0.1/24 dev storage
ip link set storage up
exportfs -o rw,sync,no_root_squash,no_subtree_check,fsid=1,insecure "10.98.0.0/24:$DIR/data"
LONGSHORE_NFS_SHARE=10.98.0.1:$DIR/data peers nfs volume_of_a_staged_node_is_taken_over \
    volume_of_a_node_killed_while_it_staged_is_taken_over
ip link delete storage

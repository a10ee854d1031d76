#!/bin/bash
# The official suite on NFS, against the kernel's server: with one driver, and with a controller and a node as they are deployed.
# about 95 s
set -euo pipefail
# shellcheck source=lib.bash
. "$(dirname "$0")/lib.bash"
# shellcheck source=nfs.bash
. "$(dirname "$0")/nfs.bash"

nfs_image xfs data
nfs_serve data

export NFS_SERVER=127.0.0.1 NFS_SHARE=$DIR/data
sanity nfs
sanity nfs-deployed

#!/bin/bash
# The official suite on NFS, against the kernel's server.
# about 47 s
set -euo pipefail
# shellcheck source=lib.bash
. "$(dirname "$0")/lib.bash"
# shellcheck source=nfs.bash
. "$(dirname "$0")/nfs.bash"

nfs_image xfs data
nfs_serve data

NFS_SERVER=127.0.0.1 NFS_SHARE=$DIR/data sanity nfs

#!/bin/bash
# The matrices of tests/matrix.rs for NFS, against the kernel's server: every step of every call is killed, hangs and fails.
# about 70 s
set -euo pipefail
# shellcheck source=lib.bash
. "$(dirname "$0")/lib.bash"
# shellcheck source=nfs.bash
. "$(dirname "$0")/nfs.bash"

nfs_image xfs data
nfs_serve data
LONGSHORE_NFS_SHARE=127.0.0.1:$DIR/data matrix nfs

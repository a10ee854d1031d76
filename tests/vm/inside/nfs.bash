# A real NFS server: the kernel's own, on this machine. Sourced after lib.bash:
#   nfs_image xfs data [-o prjquota]  a file system of its own on $DIR/data
#   nfs_serve data other              exports these directories of $DIR to 127.0.0.1, NFS 3 and 4.x, and starts the server
#   nfs_stop, nfs_start               the server goes away, and is there again (nothing is forgotten, no grace)
#   nfs_end                           takes all of it away: server, exports, file systems. Also runs when the test ends otherwise.
# Mounts of it by tests are the tests' own to take away.
# shellcheck shell=bash

nfs_images=()
nfs_daemons=()

# nfs_image FS NAME [MOUNT-ARGUMENT...]: a file system of 2 GiB, mounted on $DIR/NAME.
nfs_image() {
    local fs=$1 name=$2
    shift 2
    truncate -s 2G "$DIR/$name.img"
    case $fs in
    xfs) mkfs.xfs -q -m reflink=1 "$DIR/$name.img" ;;
    *) "mkfs.$fs" -q "$DIR/$name.img" ;;
    esac
    mkdir -p "$DIR/$name"
    mount -o loop "$@" "$DIR/$name.img" "$DIR/$name"
    nfs_images+=("$DIR/$name")
    chmod 755 "$DIR/$name"
}

# nfs_serve NAME...: each directory with root as it is, writes on the disk before they are answered.
nfs_serve() {
    local name number=0
    trap nfs_end EXIT
    modprobe -a nfsd nfs nfsv3 nfsv4
    mountpoint -q /proc/fs/nfsd || mount -t nfsd nfsd /proc/fs/nfsd
    mkdir -p /run/rpc_pipefs /var/lib/nfs/rpc_pipefs /run/sendsigs.omit.d
    mountpoint -q /run/rpc_pipefs || mount -t rpc_pipefs sunrpc /run/rpc_pipefs
    : >/etc/exports
    for name in "$@"; do
        number=$((number + 1))
        echo "$DIR/$name 127.0.0.1(rw,sync,no_root_squash,no_subtree_check,fsid=$number)" >>/etc/exports
    done
    rpcbind -w
    rpc.statd --no-notify
    rpc.mountd --manage-gids
    nfs_start
}

# The server answers from now on.
nfs_start() {
    rpc.nfsd -G 10 -L 10 4
    exportfs -ra
    # Nobody has anything to reclaim; else the first open would wait for the end of the grace period.
    echo Y >/proc/fs/nfsd/v4_end_grace 2>/dev/null || true
}

# From now on cannot connect to its TCP port; clients wait. What is exported is remembered.
nfs_stop() { rpc.nfsd 0; }

# Waits until a daemon has gone.
nfs_daemon_ends() {
    local pid
    for pid in $(pgrep -x "$1"); do
        kill -TERM "$pid" 2>/dev/null || true
        within 10 nfs_gone "$pid"
    done
}
nfs_gone() { ! kill -0 "$1" 2>/dev/null; }

nfs_end() {
    local status=$? place daemon
    trap - EXIT
    # What a test that failed left mounted of it would hold on to a server that is gone.
    { findmnt -n -r -t nfs,nfs4 -o TARGET || true; } | tac | while read -r place; do
        [ $status != 0 ] || { echo "left mounted of NFS: $place"; }
        umount -l "$place"
    done
    exportfs -ua
    rpc.nfsd 0
    for daemon in rpc.mountd rpc.statd rpc.idmapd rpcbind; do nfs_daemon_ends "$daemon"; done
    : >/etc/exports
    umount -R /run/rpc_pipefs 2>/dev/null || true
    umount /proc/fs/nfsd
    # The server lets go of a file system a moment after its last export.
    for place in "${nfs_images[@]}"; do
        (within 10 umount -q "$place" 2>/dev/null) || echo "cannot unmount $place"
    done
    exit $status
}

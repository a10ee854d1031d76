#!/bin/bash
# The lives of directories (made, filled, moved, grown, cloned, snapshotted, restored, deleted), with project quotas on xfs and as subvolumes of
# btrfs, while the driver is killed. Each takes what was provisioned for it and no more.
# about 300 s
set -euo pipefail
# shellcheck source=lib.bash
. "$(dirname "$0")/lib.bash"
# shellcheck source=soak.bash
. "$(dirname "$0")/soak.bash"

# fills NAME: writes as others than root until there is no more room.
fills() {
    local at=$target-$1/fill most=${grown:-64} written
    [ "$fs" = xfs ] || return 0
    if setpriv --reuid=65534 --clear-groups dd if=/dev/zero of="$at" bs=1M count=$((most + 32)) 2>"$client/fill"; then
        fail "$1 took more than $most MiB"
    fi
    written=$(($(stat -c %s "$at") >> 20))
    rm "$at"
    # There are 2 MiB of data beside it.
    [ "$written" -ge $((most - 6)) ] && [ "$written" -le "$most" ] || fail "$1 took $written MiB of $most: $(cat "$client/fill")"
}

copy_parameters=(--parameter mountPermissions=0777)
look_at_copy() { fills "$1"; }

life() { # life NAME
    local name=$1 grown='' id
    head -c 2M /dev/urandom >"$client/data"
    id=$(again create "$name" 64MiB "$fs" --parameter mountPermissions=0777)
    up "$id" "$name"
    write "$name"
    for _ in 1 2 3; do
        case $((RANDOM % 5)) in
        0) moved "$id" "$name" moved ;;
        1) grow "$id" "$name" ;;
        2) restored "$id" "$name" ;;
        3) copied "$id" "$name" --from-volume "$id" ;;
        4) fills "$name" ;;
        esac
    done
    moved "$id" "$name" "the end"
    down "$id" "$name"
    again delete "$id"
}

# What is there besides the driver's own records; deletions go on in the background.
left() { find base/volumes base/volumes/.longshore/{volumes,snapshots,drafts,trash} -mindepth 1 -maxdepth 1 ! -name .longshore; }
emptied() { [ -z "$(left)" ]; }

for fs in xfs btrfs; do
    echo "--- $fs"
    truncate -s 3G "$fs.img"
    mkdir base
    case $fs in
    xfs)
        mkfs.xfs -q -m reflink=1 xfs.img
        mount -o loop,prjquota xfs.img base
        quota=required
        ;;
    btrfs)
        mkfs.btrfs -q btrfs.img
        mount -o loop btrfs.img base
        quota=none
        ;;
    esac
    mkdir base/volumes
    printf 'backends:\n  - {name: dir, type: directory, path: %s/base/volumes, quota: %s}\n' "$DIR" $quota >config.yaml
    start_driver
    soak "directory $fs"
    (within 20 emptied) || fail "left at the end: $(left)"
    if [ "$fs" = xfs ]; then
        quotas=$(xfs_quota -x -c 'report -p -N -b -n' base)
        is '' "$(awk '$1 != "#0" && ($2 > 0 || $4 > 0)' <<<"$quotas")" "quotas at the end"
    fi
    stop_driver
    umount base
    rm -rf --one-file-system base state kubelet client-* driver.log "$fs.img"
    mkdir kubelet
done

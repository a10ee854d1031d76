#!/bin/bash
# The disk below a volume fails (device-mapper's `error` and `flakey` targets under just those blocks that the image has): a
# volume that cannot be read is never formatted, a mkfs that cannot write leaves nothing, and when the disk is well again all continues.
# about 31 s
# in make test
set -euo pipefail
# shellcheck source=lib.bash
. "$(dirname "$0")/lib.bash"

truncate -s 4G pool.img
disk=$(losetup --find --show pool.img)
sectors=$(blockdev --getsz "$disk")
echo "0 $sectors linear $disk 0" | dmsetup create flaky
mkfs.xfs -q -m reflink=1 /dev/mapper/flaky
mkdir pool
mount /dev/mapper/flaky pool
printf 'backends:\n  - {name: image, type: image, pools: [{name: default, path: %s/pool/images}]}\n' "$DIR" >config.yaml

# failing FILE ERROR WHICH: a table in which the extents of FILE that WHICH chooses fail as ERROR says.
failing() {
    local at=0 start length
    while read -r start length; do
        [ "$start" -le $at ] || echo "$at $((start - at)) linear $disk $at"
        case $2 in
        error) echo "$start $length error" ;;
        *) echo "$start $length flakey $disk $start 0 1 1 error_writes" ;;
        esac
        at=$((start + length))
    done < <(extents "$1" | "${@:3}" | sort -n)
    [ $at -ge "$sectors" ] || echo "$at $((sectors - at)) linear $disk $at"
}
# The extents of a file in the order of its bytes: start and length on the disk, in sectors.
extents() { xfs_bmap "$1" | awk '$3 ~ /^[0-9]/ { split($3, range, /\.\./); print range[1], range[2] - range[1] + 1 }'; }
becomes() {
    cat >table
    sync
    dmsetup suspend flaky
    dmsetup reload flaky <table
    dmsetup resume flaky
    echo 3 >/proc/sys/vm/drop_caches
}
image_of() { find pool/images -path "*/$1/*" -type f -size +1M; }
refused() { ! stage "$@" >stage.log 2>&1 || fail "staged on a disk that fails"; }
nothing_is_left() {
    is '' "$(volume_loops)" "loop devices $1"
    ! mountpoint -q "$staging" || fail "it is mounted $1"
}
volume_loops() { losetup -n -l -O NAME,BACK-FILE | grep -v 'pool.img' || true; }

start_driver
cases=0
for fs in ext4 xfs btrfs; do
    case $fs in ext4) size=64MiB ;; *) size=320MiB ;; esac
    id=$(create "data-$fs" "$size" "$fs")
    stage "$id" "$fs"
    head -c 2M /dev/urandom >"$staging/data"
    cp "$staging/data" data
    unstage "$id"
    # Unreadable at its start, in its middle, at its end, and everywhere: it is refused, or mounted as far as it can be read, but
    # never made anew.
    for which in 'head -n 1' 'sed -n 2p' 'tail -n 1' cat; do
        # shellcheck disable=SC2086  # words
        failing "$(image_of "data-$fs")" error $which | becomes
        if stage "$id" "$fs" >stage.log 2>&1; then
            [ "$which" != cat ] || fail "a device of which nothing can be read was staged"
            is "$fs" "$(findmnt -n -o FSTYPE "$staging")" "what is mounted"
        else
            grep -Eqi 'cannot be read|Input/output error|I/O error|bad superblock|exit status' stage.log || fail "it does not say why: $(cat stage.log)"
        fi
        unstage "$id"
        nothing_is_left "after a stage with unreadable blocks"
        echo "0 $sectors linear $disk 0" | becomes
        cases=$((cases + 1))
    done
    stage "$id" "$fs"
    cmp data "$staging/data" || fail "the data changed"
    unstage "$id"
    [ "$fs" = ext4 ] || is "$fs" "$(blkid -p -o value -s TYPE "$(image_of "data-$fs")")" "what the image holds"
    delete "$id"
done

# A disk that cannot be written: the mkfs fails, and is done anew when it can.
for fs in ext4 xfs btrfs; do
    case $fs in ext4) size=64MiB ;; *) size=320MiB ;; esac
    id=$(create "new-$fs" "$size" "$fs" --parameter preallocate=true)
    failing "$(image_of "new-$fs")" flakey cat | becomes
    refused "$id" "$fs"
    ! mountpoint -q "$staging" || fail "a half-made file system is mounted"
    echo "0 $sectors linear $disk 0" | becomes
    stage "$id" "$fs" || fail "not staged on a disk that is well again"
    is "$fs" "$(findmnt -n -o FSTYPE "$staging")" "the file system"
    cp data "$staging/data"
    unstage "$id"
    stage "$id" "$fs"
    cmp data "$staging/data" || fail "the data changed"
    unstage "$id"
    nothing_is_left "at the end"
    delete "$id"
    cases=$((cases + 1))
done
is '' "$(ls "$DIR/state/journal")" "the journal at the end"
stop_driver
unpool
dmsetup remove flaky
losetup -d "$disk"
echo "FIGURE: device errors in the virtual machine: $cases cases"

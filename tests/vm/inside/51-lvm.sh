#!/bin/bash
# Thick and thin volumes of a volume group of two disks: their lives with data, growth while mounted, a driver that is killed, a node that
# starts, and what one tenant leaves to the next.
# about 180 s
set -euo pipefail
# shellcheck source=lib.bash
. "$(dirname "$0")/lib.bash"
# shellcheck source=lvm.bash
. "$(dirname "$0")/lvm.bash"

lvm_start 2 512M
lvm_config
start_driver

echo "--- what was on the disks before is not shown, and nothing of LVM's own is left"
for class in thick thin; do
    id=$(create "old-$class" 96MiB block --parameter "deviceClass=$class")
    stage "$id" block
    publish "$id" block
    device=$(readlink -f "$target")
    is 96 $(($(blockdev --getsize64 "$device") >> 20)) "MiB of a $class volume"
    cmp -n $((96 << 20)) "$device" /dev/zero || fail "a new $class volume shows what was there before"
    head -c 96M /dev/zero | tr '\0' S | dd of="$device" bs=1M iflag=fullblock oflag=direct status=none
    call expand-volume "$id" --size 160MiB >/dev/null
    call node-expand-volume "$id" --path "$target" --size 160MiB >/dev/null
    is 160 $(($(blockdev --getsize64 "$device") >> 20)) "MiB of a $class volume that has grown"
    cmp -n $((64 << 20)) -i $((96 << 20)):0 "$device" /dev/zero || fail "a grown $class volume shows what was there before"
    is "$(head -c 96M /dev/zero | tr '\0' S | sha256sum)" "$(head -c 96M "$device" | sha256sum)" "the data before the growth"
    unpublish "$id"
    unstage "$id"
    is '' "$(active)" "active logical volumes after unstage"
    delete "$id"
    is '' "$(ours)" "logical volumes after delete"
done

echo "--- file systems: growth while mounted, data, restart"
for class in thick thin; do for fs in ext4 xfs; do
    id=$(create "life-$class-$fs" 400MiB $fs --parameter "deviceClass=$class")
    is "$id" "$(create "life-$class-$fs" 400MiB $fs --parameter "deviceClass=$class")" "the id of a repeated CreateVolume"
    stage "$id" $fs
    publish "$id" $fs
    head -c 8M /dev/urandom >"$target/data"
    cp "$target/data" data
    before=$(size_of "$target")
    call expand-volume "$id" --size 480MiB >/dev/null
    call node-expand-volume "$id" --path "$target" --staging "$staging" --size 480MiB >/dev/null
    [ "$(size_of "$target")" -gt $((before + (70 << 20))) ] || fail "its file system had $before bytes and has $(size_of "$target")"
    kill_driver
    start_driver
    stage "$id" $fs
    cmp data "$target/data" || fail "the data changed"
    if delete "$id" 2>deleted.log; then fail "a volume in use was deleted"; fi
    grep -q 'is open\|staged\|in use' deleted.log || fail "why is not said: $(cat deleted.log)"
    unpublish "$id"
    unstage "$id"
    # After a start of the node all are active, and none is in use.
    lvm vgchange -qq --devices "$disks" --config activation/udev_sync=0 -ay vg0 >/dev/null
    stage "$id" $fs
    publish "$id" $fs
    cmp data "$target/data" || fail "the data changed after a new start"
    unpublish "$id"
    unstage "$id"
    lvm vgchange -qq --devices "$disks" --config activation/udev_sync=0 -ay vg0 >/dev/null
    delete "$id"
    is '' "$(ours)" "logical volumes after delete"
done; done
stop_driver
lvm_stop

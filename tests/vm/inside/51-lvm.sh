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
classes=''
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

echo "--- what a deleted volume leaves on the disks, by class; a new one shows nothing of it"
# secrets: in how many blocks the mark is on the disks that volumes were filled with.
secrets() {
    python3 -c 'import sys
chunks = (chunk for name in sys.argv[1:] for chunk in iter(lambda file=open(name, "rb"): file.read(1 << 20), b""))
print(sum(chunk.count(b"secret of a tenant") for chunk in chunks))' disk*.img
}
# filled CLASS [ARGUMENT...]: a volume of that class is filled with marks and deleted.
filled() {
    local class=$1
    shift
    id=$(create "filled-$class" 16MiB block --parameter "deviceClass=$class" "$@")
    stage "$id" block
    publish "$id" block
    dd if=secret of="$(readlink -f "$target")" bs=1M oflag=direct status=none
    is 4096 "$(secrets)" "marked blocks on the disks while the volume of class $class is there"
    unpublish "$id"
    unstage "$id"
    delete "$id"
}
stop_driver
for wipe in none discard zero; do
    classes+="${classes:+, }{name: $wipe, volumeGroup: vg0, devices: [${disks//,/, }], wipe: $wipe}"
done
printf 'backends:\n  - {name: lvm, type: lvm, classes: [%s]}\n' "$classes" >config.yaml
start_driver
printf '%-4096s' 'secret of a tenant' >secret
for _ in $(seq 12); do cat secret secret >doubled && mv doubled secret; done
# Loop devices that discard make holes, so that it is seen in their files.
filled discard
is 0 "$(secrets)" "marked blocks after wipe: discard"
filled zero
is 0 "$(secrets)" "marked blocks after wipe: zero"

# Where disks discard nothing, the rest is on them until it is overwritten.
for device in ${disks//,/ }; do echo 0 >"/sys/block/${device#/dev/}/queue/discard_max_bytes"; done
id=$(create again 16MiB block --parameter deviceClass=zero)
stage "$id" block
publish "$id" block
dd if=secret of="$(readlink -f "$target")" bs=1M oflag=direct status=none
unpublish "$id"
unstage "$id"
lv=$(ours)
# As DeleteVolume leaves it that was killed before it wrote the first zero.
lvm lvchange -qq --devices "$disks" --addtag longshore.state=draft "vg0/$lv"
is 4096 "$(secrets)" "marked blocks after a DeleteVolume that was interrupted"
is "$id" "$(create again 4MiB block --parameter deviceClass=zero)" "the id of a volume that is made again, smaller"
is 0 "$(secrets)" "marked blocks when it was made again"
delete "$id"

filled none --parameter onDelete=scrub
is 0 "$(secrets)" "marked blocks after onDelete: scrub"
filled none
is 4096 "$(secrets)" "marked blocks after wipe: none"
id=$(create next 96MiB block --parameter deviceClass=none)
call expand-volume "$id" --size 160MiB >/dev/null
stage "$id" block
publish "$id" block
cmp -n $((160 << 20)) "$(readlink -f "$target")" /dev/zero || fail "a volume shows what another left"
unpublish "$id"
unstage "$id"
delete "$id"
rm secret
stop_driver
lvm_config
start_driver

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

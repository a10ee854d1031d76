#!/bin/bash
# Classes with several volume groups, with options of lvcreate, and with checksums of RAID: where volumes are made, what they are like, and
# what is said of a disk that reads back something else.
# about 300 s
set -euo pipefail
# shellcheck source=lib.bash
. "$(dirname "$0")/lib.bash"
# shellcheck source=lvm.bash
. "$(dirname "$0")/lvm.bash"

field() { # field FIELD VG/LV
    lvm lvs --noheadings --devices "$disks" -o "$1" "$2" | tr -d ' '
}
group_of() { lvm lvs --noheadings --devices "$disks" -o vg_name -S "lv_tags=longshore.volume=$1" | tr -d ' '; }
reasons() { call "$@" | jq -r '[.. | .reason? // empty] | join(" ")'; }

modprobe -a dm-integrity 2>/dev/null || true
lvm_start 2 512M sparse
first=$disks
truncate -s 256M other.img
other=$(losetup --find --show other.img)
disks+=,$other
lvm vgcreate -qq -y --devices "$disks" vg1 "$other" >/dev/null
lvm lvcreate -qq -y --devices "$disks" --type thin-pool -n pool0 -L 128M --poolmetadatasize 4M vg1 >/dev/null
both="volumeGroups: [{name: vg0, devices: [${first/,/, }]}, {name: vg1, devices: [$other]}]"
raid="volumeGroup: vg0, devices: [${first/,/, }], layout: raid1"
printf 'backends:\n  - {name: lvm, type: lvm, classes: [%s, %s, %s, %s, %s]}\n' "{name: thick, $both}" "{name: thin, $both, thinPool: pool0}" \
    "{name: small, volumeGroup: vg1, devices: [$other], thinPool: pool0}" \
    "{name: options, $raid, lvcreateOptions: [--readahead=8192s, --regionsize=1m]}" "{name: checked, $raid, raidIntegrity: true}" >config.yaml
echo "--- a module that a class needs and the node has not"
rmmod dm_raid
echo 'install dm_raid /bin/false' >/etc/modprobe.d/no-raid.conf
findings() {
    { longshore doctor --json --config config.yaml --state-dir "$DIR/state" --kubelet-dir "$DIR/kubelet" 2>/dev/null || true; } |
        jq -r '.checks[] | select(.name == "storage").found'
}
findings >found
grep -q 'DeviceMapperTargetMissing.*target raid.*modprobe dm_raid' found || fail "doctor does not say it: $(cat found)"
rm /etc/modprobe.d/no-raid.conf
findings >found
! grep -q DeviceMapperTargetMissing found || fail "doctor says it still: $(cat found)"
lsmod | grep -q '^dm_raid' || fail "the module was not loaded"
start_driver

echo "--- the volume group with the most room, and a copy where its source is"
# vg0 has some 620 MiB free, vg1 some 112.
one=$(create one 560MiB block --parameter deviceClass=thick)
is vg0 "$(group_of "$one")" "the volume group of the first"
two=$(create two 96MiB block --parameter deviceClass=thick)
is vg1 "$(group_of "$two")" "the volume group of the second, when the first is nearly full"
is "$two" "$(create two 96MiB block --parameter deviceClass=thick)" "the id of a repeated CreateVolume"
is 1 "$(group_of "$two" | wc -l)" "volumes of that id"
if create three 128MiB block --parameter deviceClass=thick >refused.log 2>&1; then fail "made where there is no room"; fi
grep -q RESOURCE_EXHAUSTED refused.log || fail "no room: $(cat refused.log)"
delete "$one"
delete "$two"
thin=$(create thin 300MiB ext4 --parameter deviceClass=thin)
is vg0 "$(group_of "$thin")" "the volume group of the first thin one"
is "$((84 << 20)) $((128 << 20))" \
    "$(call get-capacity --parameter deviceClass=thin | jq -r '"\(.available_capacity - .maximum_volume_size) \(.maximum_volume_size)"')" \
    "the capacity of both, and the largest volume"
small=$(create small 100MiB ext4 --parameter deviceClass=thin)
is vg1 "$(group_of "$small")" "the volume group of the second thin one"
stage "$small" ext4
echo copied >"$staging/data"
unstage "$small"
call expand-volume "$small" --size 104MiB >/dev/null
# Of 128 MiB 24 are left in vg1, and in vg0 84: a copy does not go there.
if create copy 104MiB ext4 --from-volume "$small" --parameter deviceClass=thin >refused.log 2>&1; then fail "copied where there is no room"; fi
grep -q 'RESOURCE_EXHAUSTED.*vg1/pool0' refused.log || fail "no room for a copy: $(cat refused.log)"
delete "$thin"
delete "$small"

echo "--- no more than there is, also at once"
pids=()
for number in 1 2 3 4 5; do
    (create "at-once-$number" 32MiB block --parameter deviceClass=small >/dev/null 2>"error$number" || echo "$number" >>failed) &
    pids+=($!)
done
wait "${pids[@]}"
is 1 "$(wc -l <failed)" "creations of 5 times 32 MiB in 128 MiB that failed ($(cat error?))"
grep -q RESOURCE_EXHAUSTED "error$(cat failed)" || fail "not for want of room: $(cat error?)"
is 4 "$(ours | wc -l)" "volumes made at once"
for number in 1 2 3 4 5; do delete "lvm:at-once-$number"; done
# 384 MiB in vg0 and 128 in vg1. All of them see the most room in vg0.
rm -f failed
pids=()
for number in 1 2 3 4 5; do
    (create "both-$number" 96MiB block --parameter deviceClass=thin >/dev/null 2>"error$number" || echo "$number" >>failed) &
    pids+=($!)
done
wait "${pids[@]}"
[ ! -e failed ] || fail "not made though the other volume group has room: $(cat error?)"
is 'vg0 vg0 vg0 vg0 vg1' "$(for number in 1 2 3 4 5; do group_of "lvm:both-$number"; done | sort | xargs)" "where they are"
for number in 1 2 3 4 5; do delete "lvm:both-$number"; done

echo "--- options of lvcreate"
id=$(create options 16MiB block --parameter deviceClass=options)
is 4.00m "$(field lv_read_ahead "vg0/$(ours)")" "the read-ahead"
is 1.00m "$(field region_size "vg0/$(ours)")" "the size of a region"
delete "$id"

echo "--- checksums: what a disk reads back wrong is repaired and reported"
id=$(create checked 16MiB block --parameter deviceClass=checked)
name=$(ours)
call expand-volume "$id" --size 32MiB >/dev/null
is 32.00m "$(field lv_size "vg0/$name")" "the size after it has grown"
stage "$id" block
publish "$id" block
device=$(readlink -f "$target")
head -c 32M /dev/urandom >data
dd if=data of="$device" bs=1M oflag=direct status=none
within 60 sh -c "lvm lvs --noheadings --devices $disks -o sync_percent vg0/$name 2>/dev/null | grep -q 100.00"
is '' "$(reasons get-volume-health "$id")" "health before"
unpublish "$id"
unstage "$id"
# A block of the first image changes behind its back, wherever it lies.
python3 - <<'END'
block = open("data", "rb").read()[4096 * 100:4096 * 101]
for image in ("disk1.img", "disk2.img"):
    at = open(image, "rb").read().find(block)
    if at >= 0:
        with open(image, "r+b") as disk:
            disk.seek(at)
            disk.write(b"wrong" * 100)
        break
else:
    raise SystemExit("the block is on no disk")
END
for loop in ${first/,/ }; do blockdev --flushbufs "$loop"; done
stage "$id" block
publish "$id" block
# RAID reads from either image.
for round in 1 2 3 4; do
    echo 3 >/proc/sys/vm/drop_caches
    dd if="$(readlink -f "$target")" of=read bs=1M iflag=direct status=none
    cmp data read || fail "what was read is not what was written"
done
is IntegrityMismatches "$(reasons get-volume-health "$id")" "health when a disk reads back something else"
unpublish "$id"
unstage "$id"
delete "$id"
is '' "$(ours)" "logical volumes at the end"
stop_driver
lvm vgremove -qq -ff -y --devices "$disks" vg1 >/dev/null
losetup -d "$other"
disks=$first
lvm_stop

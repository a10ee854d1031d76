#!/bin/bash
# A volume group of two disks, one of which is away, fails, or only refuses writes: what each call answers meanwhile, and that all data is
# there when the disk is back. Nothing lies on both.
# about 180 s
set -euo pipefail
# shellcheck source=lib.bash
. "$(dirname "$0")/lib.bash"
# shellcheck source=lvm.bash
. "$(dirname "$0")/lvm.bash"

size=192
table() { dmsetup --noudevsync suspend --nolockfs disk2 && dmsetup --noudevsync reload disk2 --table "$1" && dmsetup --noudevsync resume disk2; }
disk_away() { dmsetup --noudevsync remove disk2; }
disk_back() { dmsetup --noudevsync create disk2 --table "0 $((size << 11)) linear $loop 0"; }
# What LVM has: each logical volume with its size and where it lies.
content() { lvm lvs --noheadings --separator ' ' --devices "$disks" -a -o lv_name,lv_size,lv_tags,seg_pe_ranges vg0 | sort; }
# reasons CALL...: those of the health that a call answers.
reasons() { call "$@" | jq -r '[.. | .reason? // empty] | join(" ")'; }
refused() { # refused CODE WORDS COMMAND...
    local code=$1 words=$2
    shift 2
    if "$@" >refused.log 2>&1; then fail "not refused: $*"; fi
    grep -q "error: $code: .*$words" refused.log || fail "not said: $code, $words: $(cat refused.log)"
}
capacity() { call get-capacity --parameter "deviceClass=$1" | jq .available_capacity; }
# with_data ID...: each has the data that was written to it.
with_data() {
    local id
    for id; do
        stage "$id" ext4
        is "data of $id" "$(cat "$staging/data")" "what is in $id"
        unstage "$id"
    done
}

loops=''
for number in 1 2; do
    truncate -s "${size}M" "disk$number.img"
    loop=$(losetup --find --show "disk$number.img")
    loops+=" $loop"
    dmsetup --noudevsync create "disk$number" --table "0 $((size << 11)) linear $loop 0"
done
disks=/dev/mapper/disk1,/dev/mapper/disk2
lvm_group /dev/mapper/disk1 /dev/mapper/disk2
lvm lvcreate -qq -y --devices "$disks" --type thin-pool -n pool0 -L 64M --poolmetadatasize 4M vg0 /dev/mapper/disk1 >/dev/null
lvm_config
start_driver
here=$(create here 16MiB ext4 --parameter deviceClass=thick)
thin=$(create thin 16MiB ext4 --parameter deviceClass=thin)
new=$(create new 16MiB ext4 --parameter deviceClass=thick)
spare=$(create spare 16MiB ext4 --parameter deviceClass=thick)
lvm pvchange -qq --devices "$disks" -x n /dev/mapper/disk1
away=$(create away 16MiB ext4 --parameter deviceClass=thick)
lvm pvchange -qq --devices "$disks" -x y /dev/mapper/disk1
[[ $(content) = */dev/mapper/disk2:* ]] || fail "nothing lies on the second disk"
for id in "$here" "$thin" "$away"; do
    stage "$id" ext4
    echo "data of $id" >"$staging/data"
    unstage "$id"
done

echo "--- a disk is away: what lies elsewhere is used, nothing is made, nothing is taken as deleted"
content >before
rooms="$(capacity thick) $(capacity thin)"
disk_away
for class in thick thin; do
    is 0 "$(capacity $class)" "the capacity of class $class"
    refused RESOURCE_EXHAUSTED 'physical volumes is missing' create more 16MiB ext4 --parameter "deviceClass=$class"
done
for id in "$here" "$thin"; do
    refused RESOURCE_EXHAUSTED 'physical volumes is missing' call expand-volume "$id" --size 32MiB
done
refused RESOURCE_EXHAUSTED 'physical volumes is missing' call create-snapshot --name then "$thin"
is "$away" "$(create away 16MiB ext4 --parameter deviceClass=thick)" "the id of a repeated CreateVolume"
refused UNAVAILABLE 'a disk that is missing' stage "$away" ext4
unstage "$away"
refused UNAVAILABLE 'a disk that is missing.*lvremove' delete "$away"
with_data "$here" "$thin"
is PhysicalVolumeMissing "$(reasons get-volume-health "$away")" "health of the volume on that disk"
is '' "$(reasons get-volume-health "$here")$(reasons get-volume-health "$thin")" "health of the others"
is "PhysicalVolumeMissing" "$(reasons list-volume-health)" "unhealthy volumes"
is PhysicalVolumeMissing "$(reasons storage-health)" "health of the volume group"
longshore doctor --json --config config.yaml --state-dir "$DIR/state" --kubelet-dir "$DIR/kubelet" >doctor.json 2>/dev/null || true
jq -e '.checks[] | select(.name == "storage") | .level == "warning" and (.found | contains("PhysicalVolumeMissing"))' doctor.json >/dev/null ||
    fail "what doctor says of the volume group: $(cat doctor.json)"
longshore inspect --json --endpoint "$endpoint" --node-id vm --state-dir "$DIR/state" --kubelet-dir "$DIR/kubelet" \
    --config config.yaml >inspect.json || true
jq -e --arg id "$away" '[.. | objects | select(.reason? == "PhysicalVolumeMissing")] | length == 1' inspect.json >/dev/null ||
    fail "what inspect says: $(cat inspect.json)"
# Both write the metadata of the volume group: LVM counts the disk as missing from then on, also when it is back.
stage "$new" ext4
echo "data of $new" >"$staging/data"
unstage "$new"
delete "$spare"
disk_back
[[ $(lvm pvs --noheadings --devices "$disks" -o pv_missing /dev/mapper/disk2) = *missing* ]] || fail "the disk is not missing for LVM"
with_data "$here" "$thin" "$new" "$away"
is '' "$(reasons storage-health)$(reasons list-volume-health)" "health when the disk is back"
is "$(grep -v "=$spare " before | sed 's/longshore.blank,//')" "$(content)" "logical volumes when the disk is back"
read -r room_thick room_thin <<<"$rooms"
is "$((room_thick + (16 << 20))) $room_thin" "$(capacity thick) $(capacity thin)" "capacity when the disk is back"

echo "--- a disk fails below a volume that is in use"
stage "$away" ext4
publish "$away" ext4
table "0 $((size << 11)) error"
if echo lost >"$target/lost" && sync -f "$target/lost"; then fail "written to a disk that fails"; fi 2>/dev/null
is PhysicalVolumeMissing "$(reasons get-volume-health "$away")" "health of a volume on a disk that fails"
unpublish "$away"
unstage "$away"
is '' "$(active)" "active logical volumes after unstage"
refused UNAVAILABLE 'a disk that is missing' stage "$away" ext4
unstage "$away"
table "0 $((size << 11)) linear $loop 0"
with_data "$away"

echo "--- writes fail, reads do not: no answer is OK, and the repeated call ends what began"
table "0 $((size << 11)) flakey $loop 0 0 3600 1 error_writes"
content >before
refused 'UNAVAILABLE\|INTERNAL' 'lvcreate vg0' create flaky 16MiB ext4 --parameter deviceClass=thick
refused 'UNAVAILABLE\|INTERNAL' 'lvcreate vg0' create flaky-thin 16MiB ext4 --parameter deviceClass=thin
refused 'UNAVAILABLE\|INTERNAL' vg0 call expand-volume "$here" --size 32MiB
refused 'UNAVAILABLE\|INTERNAL' vg0 call expand-volume "$thin" --size 32MiB
refused 'UNAVAILABLE\|INTERNAL' vg0 call create-snapshot --name then "$thin"
with_data "$here" "$thin" "$new"
is "$(cat before)" "$(content)" "logical volumes when writes have failed"
table "0 $((size << 11)) linear $loop 0"
is "$(cat before)" "$(content)" "logical volumes when writes succeed again"
flaky=$(create flaky 16MiB ext4 --parameter deviceClass=thick)
flaky_thin=$(create flaky-thin 16MiB ext4 --parameter deviceClass=thin)
for id in "$here" "$thin"; do
    is 33554432 "$(call expand-volume "$id" --size 32MiB | jq .capacity_bytes)" "the size of $id after the repeated call"
done
snapshot=$(call create-snapshot --name then "$thin" | jq -er .snapshot.snapshot_id)
with_data "$here" "$thin" "$new" "$away"

call delete-snapshot "$snapshot" >/dev/null
for id in "$here" "$thin" "$new" "$away" "$flaky" "$flaky_thin"; do delete "$id"; done
is '' "$(ours)" "logical volumes at the end"
stop_driver
lvm vgremove -qq -ff -y --devices "$disks" vg0 >/dev/null
for number in 1 2; do dmsetup --noudevsync remove "disk$number"; done
for loop in $loops; do losetup -d "$loop"; done

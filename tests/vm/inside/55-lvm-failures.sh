#!/bin/bash
# What goes wrong below volumes of LVM: a thin pool that fills up, a disk of a mirror that fails, a disk that is missing, two disks with one
# identity, a disk elsewhere that hangs, a logical volume that was renamed, a driver that is killed while it zeroes.
# about 60 s
set -euo pipefail
# shellcheck source=lib.bash
. "$(dirname "$0")/lib.bash"
# shellcheck source=lvm.bash
. "$(dirname "$0")/lvm.bash"

refused() { # refused WORDS COMMAND...
    local words=$1
    shift
    if "$@" >refused.log 2>&1; then fail "not refused: $*"; fi
    grep -q "$words" refused.log || fail "not said: $words: $(cat refused.log)"
}
health() { call storage-health | jq -r '.. | .reason? // empty'; }
has_health() { health | grep -qx "$1"; }
# inspect KINDS: what it finds, a kind for each finding. Its exit status says whether there is any.
inspect() {
    longshore inspect --json --endpoint "$endpoint" --node-id vm --state-dir "$DIR/state" --kubelet-dir "$DIR/kubelet" \
        --config config.yaml >inspect.json 2>inspect.log || true
    is "$1" "$(jq -r '[.findings[].kind] | join(" ")' inspect.json)" "what inspect finds ($(cat inspect.log))"
}
# What renames back what had this id.
renamed_back() { jq -er --arg id "$1" '.findings[] | select(.what | contains($id)) | .commands[0]' inspect.json; }

# Disks that can be made to fail, and to hang.
loops=''
for number in 1 2; do
    truncate -s 256M "disk$number.img"
    loop=$(losetup --find --show "disk$number.img")
    loops+=" $loop"
    dmsetup --noudevsync create "disk$number" --table "0 $((256 << 11)) linear $loop 0"
done
disks=/dev/mapper/disk1,/dev/mapper/disk2
lvm_group /dev/mapper/disk1 /dev/mapper/disk2
lvm lvcreate -qq -y --devices "$disks" --type thin-pool -n pool0 -L 64M --poolmetadatasize 4M vg0 >/dev/null
each="volumeGroup: vg0, devices: [${disks/,/, }]"
printf 'httpEndpoint: 127.0.0.1:9809\nbackends:\n  - {name: lvm, type: lvm, classes: [{name: thin, %s, thinPool: pool0, overcommit: 4}, {name: mirrored, %s, layout: raid1}]}\n' \
    "$each" "$each" >config.yaml
start_driver
is '' "$(health)" "what is wrong at the start"

echo "--- a thin pool that fills up"
id=$(create filler 128MiB block --parameter deviceClass=thin)
stage "$id" block
publish "$id" block
dd if=/dev/urandom of="$(readlink -f "$target")" bs=1M count=53 oflag=direct status=none
has_health ThinPoolNearlyFull || fail "83 %: $(health)"
dd if=/dev/urandom of="$(readlink -f "$target")" bs=1M seek=53 count=9 oflag=direct status=none
has_health ThinPoolFull || fail "97 %: $(health)"
refused 'of its data is used' create more 16MiB block --parameter deviceClass=thin
refused 'of its data is used' call create-snapshot "$id" --name more
lvm lvextend -qq --devices "$disks" -L +32M vg0/pool0
is '' "$(health)" "what is wrong after the pool was extended"
delete "$(create more 16MiB block --parameter deviceClass=thin)"
unpublish "$id"
unstage "$id"
delete "$id"

echo "--- metadata that fills up is seen in a metric, though nobody asks for anything"
# What part is used of the metadata of class thin, in percent.
metadata_used() {
    exec 3<>/dev/tcp/127.0.0.1/9809
    printf 'GET /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n' >&3
    awk '/^longshore_pool_metadata_used_ratio[{].*pool="thin"/ { print int($NF * 100) }' <&3
    exec 3>&-
}
before=$(metadata_used)
[ "${before:-100}" -lt 30 ] || fail "used of the metadata at the start: '$before' percent"
# Thin devices that LVM does not know: each takes a block of the metadata. 4 MiB have 1024.
for number in $(seq 300); do dmsetup message vg0-pool0-tpool 0 "create_thin $((1000000 + number))"; done
[ "$(metadata_used)" -ge $((before + 20)) ] || fail "used of the metadata after 300 of 1024 blocks: '$(metadata_used)' percent, before $before"
for number in $(seq 300); do dmsetup message vg0-pool0-tpool 0 "delete $((1000000 + number))"; done

echo "--- a device of others that hangs"
dmsetup --noudevsync create foreign --table '0 2048 zero'
dmsetup --noudevsync suspend foreign
id=$(create beside 32MiB ext4 --parameter deviceClass=mirrored)
stage "$id" ext4
dmsetup --noudevsync resume foreign
within 10 dmsetup --noudevsync remove foreign

echo "--- a disk of a mirror that fails, and comes back"
publish "$id" ext4
head -c 4M /dev/urandom >"$target/data"
cp "$target/data" data
sync -f "$target/data"
dmsetup --noudevsync suspend --nolockfs disk2
dmsetup --noudevsync reload disk2 --table "0 $((256 << 11)) error"
dmsetup --noudevsync resume disk2
echo more >"$target/more"
sync -f "$target/more"
echo 3 >/proc/sys/vm/drop_caches
cmp data "$target/data" || fail "the data is gone with one of two disks"
has_health PhysicalVolumeMissing || fail "a disk that fails is not reported: $(health)"
call get-volume-health "$id" | grep -q 'PhysicalVolumeMissing\|RefreshNeeded' || fail "of the volume: $(call get-volume-health "$id")"
refused 'vg0' create no 16MiB ext4 --parameter deviceClass=mirrored
unpublish "$id"
unstage "$id"
# What is there is used, and nothing of it is taken as deleted.
stage "$id" ext4
publish "$id" ext4
cmp data "$target/data" || fail "the data is gone after a stage with one of two disks"
dmsetup --noudevsync suspend disk2
dmsetup --noudevsync reload disk2 --table "0 $((256 << 11)) linear ${loops##* } 0"
dmsetup --noudevsync resume disk2
call get-volume-health "$id" | grep -q RefreshNeeded || fail "nothing says that it must be refreshed: $(call get-volume-health "$id")"
lvm lvchange -qq --devices "$disks" --refresh "vg0/$(ours)"
within 20 sh -c "! longshore call --endpoint $endpoint --json get-volume-health $id | grep -q reason"
cmp data "$target/data" || fail "the data changed when the disk came back"
unpublish "$id"
unstage "$id"

echo "--- all disks away: neither deleted nor made again"
for number in 1 2; do
    dmsetup --noudevsync suspend "disk$number"
    dmsetup --noudevsync reload "disk$number" --table "0 $((256 << 11)) error"
    dmsetup --noudevsync resume "disk$number"
done
refused 'vgs vg0' delete "$id"
refused 'vgs vg0' create beside 32MiB ext4 --parameter deviceClass=mirrored
number=0
for loop in $loops; do
    number=$((number + 1))
    dmsetup --noudevsync suspend "disk$number"
    dmsetup --noudevsync reload "disk$number" --table "0 $((256 << 11)) linear $loop 0"
    dmsetup --noudevsync resume "disk$number"
done
stage "$id" ext4
publish "$id" ext4
cmp data "$target/data" || fail "the data is gone after both disks were away"
unpublish "$id"
unstage "$id"
delete "$id"

echo "--- two disks of one identity"
cp --sparse=always disk1.img copy.img
copy=$(losetup --find --show copy.img)
sed -i "s#/dev/mapper/disk2\]#/dev/mapper/disk2, $copy]#g" config.yaml
stop_driver
start_driver
has_health DeviceNotUsed || fail "a second disk of one identity is not reported: $(health)"
refused 'vg0' create twice 16MiB ext4 --parameter deviceClass=thin
sed -i "s#, $copy\]#]#g" config.yaml
losetup -d "$copy"
stop_driver
start_driver

echo "--- renamed by an administrator: found, and never deleted"
id=$(create renamed 16MiB block --parameter deviceClass=thin)
snapshot=$(call create-snapshot --name then "$id" | jq -er .snapshot.snapshot_id)
name=$(ours | grep ^longshore_v_)
of_snapshot=$(ours | grep ^longshore_s_)
lvm lvrename -qq --devices "$disks" vg0 "$name" other
lvm lvrename -qq --devices "$disks" vg0 "$of_snapshot" other_snapshot
refused FAILED_PRECONDITION delete "$id"
refused "lvrename vg0 other $name" delete "$id"
refused 'vg0/other ' create renamed 16MiB block --parameter deviceClass=thin
refused FAILED_PRECONDITION call delete-snapshot "$snapshot"
refused "lvrename vg0 other_snapshot $of_snapshot" call delete-snapshot "$snapshot"
is 'other other_snapshot' "$(ours | paste -sd' ')" "logical volumes after both were to be deleted"
inspect 'renamed renamed'
is "lvrename vg0 other $name" "$(renamed_back "$id")" "what renames the volume back"
is "lvrename vg0 other_snapshot $of_snapshot" "$(renamed_back "$snapshot")" "what renames the snapshot back"
lvm lvrename -qq --devices "$disks" vg0 other "$name"
lvm lvrename -qq --devices "$disks" vg0 other_snapshot "$of_snapshot"
inspect ''
call delete-snapshot "$snapshot" >/dev/null
delete "$id"
is '' "$(ours)" "logical volumes after delete"

echo "--- what was retained is not taken for renamed, unless someone renames it"
id=$(create kept 16MiB block --parameter deviceClass=thin --parameter onDelete=retain)
delete "$id"
delete "$id"
inspect ''
lvm lvrename -qq --devices "$disks" vg0 "$(ours)" kept
inspect renamed
lvm lvchange -qq --devices "$disks" --deltag longshore vg0/kept
inspect ''
delete "$id"
is kept "$(lvm lvs --noheadings --devices "$disks" -o lv_name vg0/kept | tr -d ' ')" "what was let go of"
lvm lvremove -qq -y --devices "$disks" vg0/kept

echo "--- killed while a volume is zeroed"
create zeroed 64MiB block --parameter deviceClass=mirrored >/dev/null 2>&1 &
creating=$!
within 20 sh -c 'lvm lvs --noheadings --devices '"$disks"' -o lv_tags vg0 2>/dev/null | grep -q state=draft'
kill_driver
wait "$creating" || true
start_driver
longshore inspect --endpoint "$endpoint" --config config.yaml --state-dir "$DIR/state" --kubelet-dir "$DIR/kubelet" >inspect.log 2>&1 || true
id=$(create zeroed 64MiB block --parameter deviceClass=mirrored)
delete "$id"
is '' "$(ours)" "logical volumes at the end"
stop_driver
lvm vgremove -qq -ff -y --devices "$disks" vg0 >/dev/null
for number in 1 2; do dmsetup --noudevsync remove "disk$number"; done
for loop in $loops; do losetup -d "$loop"; done

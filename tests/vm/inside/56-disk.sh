#!/bin/bash
# Whole disks: SCSI disks of 4 KiB sectors (scsi_debug) with udevd beside them, which are pulled while they are used and come back under
# other names.
# about 50 s
set -euo pipefail
# shellcheck source=lib.bash
. "$(dirname "$0")/lib.bash"

modprobe scsi_debug dev_size_mb=131 add_host=2 per_host_store=1 num_tgts=1 max_luns=1 sector_size=4096 ||
    skip "no scsi_debug in this kernel"
disks() { lsblk -dn -o NAME,MODEL | awk '$2 == "scsi_debug" { print $1 }'; }
there() { [ "$(disks | wc -l)" = "$1" ] && udevadm settle; }
within 10 there 2
# pull NAME, as if someone did; and all that were pulled come back.
pull() { echo 1 >"/sys/block/$1/device/delete"; }
back() {
    local host
    for host in /sys/class/scsi_host/*; do
        [ "$(cat "$host/proc_name")" != scsi_debug ] || echo '- - -' >"$host/scan"
    done
    within 10 there 2
}
# The disk of a volume, by its partition.
disk_of() { lsblk -n -o PKNAME "$(findmnt -n -o SOURCE "$1")" | head -n 1; }

cat >config.yaml <<'END'
backends:
  - {name: disk, type: disk, classes: [{name: all, devices: ["/dev/disk/by-id/*"], model: "scsi_debug*"}]}
END
ids=()
start_driver

echo "--- a life on a disk with sectors of 4 KiB, with a driver that is killed"
id=$(create life 100MiB ext4)
is "$id" "$(create life 100MiB ext4)" "the id of a repeated CreateVolume"
stage "$id" ext4
publish "$id" ext4
head -c 8M /dev/urandom >"$target/data"
cp "$target/data" data
kill_driver
start_driver
stage "$id" ext4
cmp data "$target/data" || fail "the data changed"
if delete "$id" 2>deleted.log; then fail "a volume in use was deleted"; fi
unpublish "$id"
unstage "$id"

echo "--- its disk comes back under another name"
stage "$id" ext4
before=$(disk_of "$staging")
unstage "$id"
pull "$before"
within 10 there 1
if delete "$id" 2>deleted.log; then fail "a volume whose disk was pulled was taken for deleted"; fi
grep -q 'is not here, or is of no class' deleted.log || fail "why is not said: $(cat deleted.log)"
if stage "$id" ext4 2>staged.log; then fail "staged without its disk"; fi
# Another volume takes the first name meanwhile.
other=$(create other 100MiB block)
back
stage "$id" ext4
publish "$id" ext4
cmp data "$target/data" || fail "the data changed"
if [ "$(disk_of "$staging")" = "$before" ]; then echo "(the kernel gave the same name again)"; fi

echo "--- its disk is pulled while it is mounted: the node is clean afterwards"
pull "$(disk_of "$staging")"
within 10 there 1
call get-volume-health "$id" | tee health.json | grep -q DiskMissing || fail "its health does not say so: $(cat health.json)"
unpublish "$id"
unstage "$id"
is 0 "$(grep -c "$DIR/kubelet" /proc/self/mountinfo)" "mounts that are left"
back
stage "$id" ext4
publish "$id" ext4
cmp data "$target/data" || fail "the data changed"
unpublish "$id"
unstage "$id"

echo "--- a second life shows nothing of the first"
delete "$id"
id=$(create second 100MiB block)
stage "$id" block
publish "$id" block
device=$(readlink -f "$target")
is $((128 << 20)) "$(blockdev --getsize64 "$device")" "bytes of the volume"
cmp -n $((128 << 20)) "$device" /dev/zero || fail "a new volume shows what was there before"
if create third 100MiB block 2>third.log; then fail "there was a third disk"; fi
grep -q 'of 2 disks 0 seemed free' third.log || fail "why is not said: $(cat third.log)"
unpublish "$id"
unstage "$id"

echo "--- kept data is a static volume afterwards"
call modify-volume "$id" --mutable-parameter onDelete=retain >/dev/null
stage "$id" block
publish "$id" block
echo kept | dd of="$(readlink -f "$target")" bs=4096 conv=sync oflag=direct status=none
unpublish "$id"
unstage "$id"
delete "$id"
udevadm settle
kept=''
for link in /dev/disk/by-partuuid/*; do
    [ "$(head -c 4 "$link" | tr -d '\0')" != kept ] || kept=$link
done
[ -n "$kept" ] || fail "the data of a retained volume is gone"
call stage-volume by-hand --staging "$staging" --block --context "device=$kept" >/dev/null
call publish-volume by-hand --staging "$staging" --target "$target" --block --context "device=$kept" >/dev/null
is kept "$(head -c 4 "$target")" "what a static volume shows"
unpublish by-hand
unstage by-hand

echo "--- a SCSI disk that expects to fail"
call get-volume-health "$other" >health.json
! grep -q DiskFailing health.json || fail "a disk that is well is reported: $(cat health.json)"
for disk in $(disks); do
    # Mode page 1Ch (SPC-4, informational exceptions control): the bit TEST, and that a REQUEST SENSE reports it.
    sg_wr_mode --page=0x1c --contents=1c,0a,04,06,00,00,00,00,00,00,00,00 "/dev/$disk" || fail "the mode page is not written"
done
call get-volume-health "$other" >health.json
! grep -q DiskFailing health.json || fail "the disk is asked each time: $(cat health.json)"
kill_driver
start_driver
# smartctl may take longer than a call waits for it.
failing() { call get-volume-health "$other" | tee health.json | grep -q DiskFailing; }
within 10 failing
grep -q 'smartctl --all' health.json || fail "another failure: $(cat health.json)"
delete "$other"
stop_driver

echo "--- an NVMe disk whose health log has a warning"
within 10 test -b /dev/nvme1n1
udevadm settle
sed -i 's/model: "scsi_debug\*"/transport: nvme/' config.yaml
start_driver
for name in one two; do ids+=("$(create "$name" 100MiB block)"); done
warned=0
for id in "${ids[@]}"; do
    call get-volume-health "$id" >health.json
    if grep -q DiskFailing health.json; then
        warned=$((warned + 1))
        grep -q 'reliability is degraded' health.json || fail "another warning: $(cat health.json)"
    fi
    delete "$id"
done
[ $warned = 1 ] || fail "$warned disks warn: $(cat health.json)"
stop_driver
# Other tests have them blank.
for disk in /dev/nvme0n1 /dev/nvme1n1; do
    partx --delete "$disk"
    blkdiscard --force --zeroout "$disk"
done
# udevd may still read a disk.
within 10 modprobe -r -q scsi_debug

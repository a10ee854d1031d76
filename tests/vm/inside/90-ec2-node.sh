#!/bin/bash
# EBS volumes as a node sees them: NVMe disks whose controllers say a volume's id. They come late, and are detached under a mount.
# about 37 s
# in make test
set -euo pipefail
# shellcheck source=lib.bash
. "$(dirname "$0")/lib.bash"

export AWS_EC2_METADATA_DISABLED=true
one=vol-0123456789abcdef0
two=vol-0fedcba9876543210
printf 'backends:\n  - {name: ebs, type: ec2, zone: eu-west-1a, instanceType: m5.large}\n' >config.yaml

start_node() {
    longshore serve --mode node --endpoint "$endpoint" --node-id i-0123456789abcdef0 --state-dir "$DIR/state" \
        --kubelet-dir "$DIR/kubelet" --config config.yaml >>driver.log 2>&1 &
    driver_pid=$!
    within 20 driver_ready
}

# disk_of VOLUME: the kernel's name of its disk. A path to a disk of several has no node in /dev.
disk_of() {
    local disk
    for disk in /sys/block/nvme*; do
        if [ -b "/dev/${disk##*/}" ] && grep -q "^${1/-/}" "$disk/device/serial"; then echo "${disk##*/}"; fi
    done
}

# detach VOLUME: by force, as a cloud can.
detach() { echo 1 >"$(dirname "$(grep -l "^${1/-/}" /sys/class/nvme/nvme*/serial)")/device/remove"; }

# attached VOLUME ID FS [NAME]: stages a volume that the controller has attached.
attached() {
    mkdir -p "$staging${4:-}"
    call stage-volume "$2" --staging "$staging${4:-}" "$(usage "$3")" --publish-context "volume=$1" --publish-context device=/dev/xvdba \
        >"stage${4:-}.log" 2>&1
}

# The machine has had them from its start.
detach $one
detach $two
start_node
is '' "$(ls -d /sys/block/nvme* 2>/dev/null)" "disks before"
segments=$(call node-info | jq -c .accessible_topology.segments)
is '{"topology.longshore.csi.dev/zone":"eu-west-1a"}' "$segments" "where the node is"
is 26 "$(call node-info | jq .max_volumes_per_node)" "what the node takes"

# It is asked for before it is there.
attached $one ebs:one ext4 &
staged=$!
within 10 test -s "$DIR/state/journal/ebs:one/stage.json"
kill -0 $staged 2>/dev/null || fail "staged without a disk: $(cat stage.log)"
echo 1 >/sys/bus/pci/rescan
wait $staged || fail "not staged: $(cat stage.log)"
is "/dev/$(disk_of $one) ext4" "$(findmnt -n -o SOURCE,FSTYPE "$staging")" "what is mounted"
echo 'what was written' >"$staging/file"
sync -f "$staging/file"
attached $one ebs:one ext4 || fail "a repeated stage fails: $(cat stage.log)"

# Another, as raw block; what a pod wrote to it is on the disk once it is unstaged.
attached $two ebs:two block -raw || fail "raw block is not staged: $(cat stage-raw.log)"
publish ebs:two block -raw
printf 'raw bytes' | dd of="$target-raw" bs=4k seek=3 conv=notrunc status=none
is 'raw bytes' "$(dd if="/dev/$(disk_of $two)" bs=4k skip=3 count=1 status=none | head -c 9)" "what the other disk has"
size=$(call node-expand-volume ebs:two --path "$target-raw" --staging "$staging-raw" --size 256MiB | jq -r .capacity_bytes)
is "$(blockdev --getsize64 "/dev/$(disk_of $two)")" "$size" "the size of the other disk"
unpublish ebs:two -raw
unstage ebs:two -raw
is 'raw bytes' "$(dd if="/dev/$(disk_of $two)" iflag=direct bs=4k skip=3 count=1 status=none | head -c 9)" "what is on the other disk itself"

# The cloud detaches it by force, under a mount; another process of the driver undoes what is left.
detach $one
kill_driver
start_node
unstage ebs:one || fail "a volume whose disk is gone is not unstaged"
is '' "$(findmnt -n "$staging" || true)" "what is mounted at the end"

# It is not there: said with what is.
! attached $one ebs:one ext4 || fail "staged without its disk"
grep -q DEADLINE_EXCEEDED stage.log || fail "a disk that is not there: $(cat stage.log)"
grep -q "$one .*${two/-/}" stage.log || fail "it does not say what is there: $(cat stage.log)"

# It is attached again, while it is waited for.
attached $one ebs:one ext4 &
staged=$!
echo 1 >/sys/bus/pci/rescan
wait $staged || fail "not staged again: $(cat stage.log)"
is 'what was written' "$(cat "$staging/file")" "what was written before"
is "/dev/$(disk_of $one)" "$(findmnt -n -o SOURCE "$staging")" "what is mounted again"
unstage ebs:one

# A disk of another driver, by the handle that it gave it. It is undone also when the handle means nothing any more.
kill_driver
mkfs.ext4 -qF "/dev/$(disk_of $two)"
cp config.yaml plain.yaml
sed -i 's/type: ec2,/type: ec2, existingDisks: use,/' config.yaml
start_node
attached $two $two ext4 || fail "a disk of another driver is not staged by its handle: $(cat stage.log)"
publish $two ext4
echo 'of another driver' >"$target/file"
kill_driver
cp plain.yaml config.yaml
start_node
unpublish $two
unstage $two
is '' "$(findmnt -n "$staging" || true)$(ls "$DIR/state/journal")" "what is mounted, and in the journal, after its unstage"
mount -o ro "/dev/$(disk_of $two)" "$staging"
is 'of another driver' "$(cat "$staging/file")" "what is on the disk of another driver"
! unstage $two 2>unstage.log || fail "what is mounted by hand is said to be unstaged"
umount "$staging"
unstage $two
stop_driver

#!/bin/bash
# What a pod reads and writes of a logical volume is limited in its control group, as the kernel shows and as a clock does.
# about 90 s
set -euo pipefail
# shellcheck source=lib.bash
. "$(dirname "$0")/lib.bash"
# shellcheck source=lvm.bash
. "$(dirname "$0")/lvm.bash"

first=0b9c3b8e-6d2f-4a55-9a53-2f9d1c6f7e11
second=1b9c3b8e-6d2f-4a55-9a53-2f9d1c6f7e22
# As the kubelet calls them with its cgroup driver systemd, and with cgroupfs.
systemd=/sys/fs/cgroup/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod${first//-/_}.slice
cgroupfs=/sys/fs/cgroup/kubepods/pod$second
target_of() { echo "$DIR/kubelet/pods/$1/volumes/kubernetes.io~csi/pv/mount"; }
show() { mkdir -p "$(dirname "$2")" && call publish-volume "$1" --staging "$staging" --target "$2" --fs ext4; }
# The line of the volume's device; a device without limits has none.
limits() { grep "^$(mountpoint -d "$staging") " "$1/io.max" || true; }
# in_pod GROUP COMMAND...: its milliseconds.
in_pod() {
    local group=$1 begun
    shift
    begun=$(date +%s%N)
    (
        echo "$BASHPID" >"$group/cgroup.procs"
        exec "$@"
    ) >/dev/null 2>&1
    echo $((($(date +%s%N) - begun) / 1000000))
}
controlled() { # Makes a group with the io controller, as the container runtime does.
    local above=/sys/fs/cgroup part
    mkdir -p "$1"
    for part in $(echo "${1#/sys/fs/cgroup/}" | tr / ' '); do
        echo +io +memory >"$above/cgroup.subtree_control"
        above+=/$part
    done
}
cleanup() {
    for group in "$systemd" "$cgroupfs"; do
        [ ! -d "$group" ] || rmdir "$group"
        [ ! -d "$(dirname "$group")" ] || rmdir "$(dirname "$group")"
    done
    [ ! -d /sys/fs/cgroup/kubepods.slice ] || rmdir /sys/fs/cgroup/kubepods.slice
}
trap cleanup EXIT

lvm_start 1 1G sparse
lvm_config
start_driver
echo "--- off by default"
if create early 64MiB ext4 --parameter readIops=100 >refused.log 2>&1; then fail "made with a limit that nobody applies"; fi
grep -q 'INVALID_ARGUMENT.*ioLimits: true' refused.log || fail "it does not say what is missing: $(cat refused.log)"
# What is kept of a volume is not read when it is staged: one whose record is damaged can be used.
id=$(create damaged 64MiB ext4 --parameter deviceClass=thick)
name=$(lvm lvs --noheadings --devices "$disks" -o lv_name -S 'lv_tags=longshore.volume=lvm:damaged' | tr -d ' ')
record=$(lvm lvs --noheadings --devices "$disks" -o lv_tags "vg0/$name" | tr -d ' ' | tr , '\n' | grep '^longshore.record.0=')
lvm lvchange -qq --devices "$disks" --deltag "$record" "vg0/$name" >/dev/null
mkdir -p "$staging"
call stage-volume "$id" --staging "$staging" --fs ext4 --context 'longshore.dev/parameters={"node":{},"backend":null}' >/dev/null
unstage "$id"
lvm lvchange -qq --devices "$disks" --addtag "$record" "vg0/$name" >/dev/null
delete "$id"
stop_driver
sed -i 's/type: lvm,/type: lvm, ioLimits: true,/' config.yaml
start_driver

echo "--- refused values"
for wrong in readIops=0 writeBandwidth=fast readIOPS=5 readIops=9 writeIops=4294967295 writeBandwidth=1KiB; do
    if create wrong 64MiB ext4 --parameter "$wrong" >refused.log 2>&1; then fail "made with $wrong"; fi
    grep -q "INVALID_ARGUMENT.*${wrong%%=*}" refused.log || fail "$wrong: $(cat refused.log)"
done

echo "--- a pod without a control group does not get the volume"
id=$(create limited 128MiB ext4 --parameter deviceClass=thick --parameter writeBandwidth=2MiB --parameter readIops=500)
stage "$id" ext4
if show "$id" "$(target_of $first)" >refused.log 2>&1; then fail "published to a pod that has no control group"; fi
grep -q "DEADLINE_EXCEEDED.*pod $first has no control group" refused.log || fail "without a group: $(cat refused.log)"
mkdir -p "$systemd"
if show "$id" "$(target_of $first)" >refused.log 2>&1; then fail "published to a pod that cannot be limited"; fi
grep -q "io controller is off" refused.log || fail "without the controller: $(cat refused.log)"
if show "$id" "$DIR/kubelet/elsewhere" >refused.log 2>&1; then fail "published where no pod is"; fi
grep -q "FAILED_PRECONDITION.*no path of a pod" refused.log || fail "elsewhere: $(cat refused.log)"
[ ! -e "$(target_of $first)" ] || fail "a refused publish leaves its target"
controlled "$systemd"
controlled "$cgroupfs"

echo "--- the kernel has the limits, and they hold"
show "$id" "$(target_of $first)" >/dev/null
is "$(mountpoint -d "$staging") rbps=max wbps=2097152 riops=500 wiops=max" "$(limits "$systemd")" "the limits of the pod"
is '' "$(limits "$cgroupfs")" "the limits of another pod"
file=$(target_of $first)/data
slow=$(in_pod "$systemd" dd if=/dev/zero of="$file" bs=256K count=32 oflag=direct)
fast=$(in_pod "$cgroupfs" dd if=/dev/zero of="$file" bs=256K count=32 oflag=direct)
echo "8 MiB at 2 MiB/s: $slow ms in the pod, $fast ms outside"
# 4 s, less what the kernel lets through at the start.
[ "$slow" -ge 3000 ] || fail "8 MiB took $slow ms"
[ "$fast" -lt $((slow / 2)) ] || fail "it is slow without a limit, too: $fast of $slow ms"
# What goes through the page cache counts as well, when it is written back.
slow=$(in_pod "$systemd" dd if=/dev/zero of="$file" bs=256K count=32 conv=fsync)
[ "$slow" -ge 3000 ] || fail "8 MiB by way of the page cache took $slow ms"

echo "--- changed while it is used"
call modify-volume "$id" --mutable-parameter writeBandwidth=max --mutable-parameter readBandwidth=1MiB >/dev/null
is "$(mountpoint -d "$staging") rbps=1048576 wbps=max riops=500 wiops=max" "$(limits "$systemd")" "the limits after ModifyVolume"
slow=$(in_pod "$systemd" dd if="$file" of=/dev/null bs=256K count=16 iflag=direct)
[ "$slow" -ge 3000 ] || fail "4 MiB at 1 MiB/s were read in $slow ms"
if call modify-volume "$id" --mutable-parameter readIops=none >refused.log 2>&1; then fail "readIops=none"; fi
grep -q 'INVALID_ARGUMENT.*readIops' refused.log || fail "readIops=none: $(cat refused.log)"
call modify-volume "$id" --mutable-parameter onDelete=retain >/dev/null
call modify-volume "$id" --mutable-parameter onDelete=delete >/dev/null
is "$(mountpoint -d "$staging") rbps=1048576 wbps=max riops=500 wiops=max" "$(limits "$systemd")" "the limits after another change"

echo "--- after a restart, what someone took away by hand is there again with the next publish; a second pod has limits of its own"
kill_driver
echo "$(mountpoint -d "$staging") rbps=max wbps=max riops=max wiops=max" >"$systemd/io.max"
start_driver
show "$id" "$(target_of $first)" >/dev/null
is "$(mountpoint -d "$staging") rbps=1048576 wbps=max riops=500 wiops=max" "$(limits "$systemd")" "the limits after a repeated publish"
show "$id" "$(target_of $second)" >/dev/null
is "$(limits "$systemd")" "$(limits "$cgroupfs")" "the limits of the second pod"
call modify-volume "$id" --mutable-parameter readBandwidth=max --mutable-parameter readIops=max >/dev/null
is ' ' "$(limits "$systemd") $(limits "$cgroupfs")" "limits that were lifted"
call modify-volume "$id" --mutable-parameter writeIops=50 >/dev/null
# The pod has ended, and its volume is still published.
call unpublish-volume "$id" --target "$(target_of $second)" >/dev/null
show "$id" "$(target_of $second)" >/dev/null
rmdir "$cgroupfs"
call modify-volume "$id" --mutable-parameter writeIops=60 >/dev/null
is "$(mountpoint -d "$staging") rbps=max wbps=max riops=max wiops=60" "$(limits "$systemd")" "the limits of the pod that is left"

echo "--- what a pod leaves in the page cache is written out at full speed once it has no volume any more"
call modify-volume "$id" --mutable-parameter writeIops=max --mutable-parameter writeBandwidth=1MiB >/dev/null
dd if=/dev/urandom of=content bs=1M count=16 status=none
# A new file: its pages are the pod's, which wrote them first.
file=$(target_of $first)/unsynced
in_pod "$systemd" cp content "$file" >/dev/null
begun=$(date +%s%N)
for uid in $first $second; do call unpublish-volume "$id" --target "$(target_of $uid)" >/dev/null; done
unstage "$id"
took=$((($(date +%s%N) - begun) / 1000000))
echo "16 MiB that were not synced, at 1 MiB/s: unpublish and unstage take $took ms"
[ "$took" -lt 10000 ] || fail "unpublish and unstage took $took ms"
stage "$id" ext4
show "$id" "$(target_of $first)" >/dev/null
cmp content "$file" || fail "what the pod had written is not there"

echo "--- raw block, and the device of a mapping"
raw=$(create raw 64MiB block --parameter readIops=300)
mkdir -p "$staging-raw"
call stage-volume "$raw" --staging "$staging-raw" --block >/dev/null
device=$DIR/kubelet/plugins/kubernetes.io/csi/volumeDevices/publish/pv-raw/$first
mkdir -p "$(dirname "$device")"
call publish-volume "$raw" --staging "$staging-raw" --target "$device" --block >/dev/null
number=$(printf '%d:%d' "0x$(stat -c %t "$device")" "0x$(stat -c %T "$device")")
is "$number rbps=max wbps=max riops=300 wiops=max" "$(grep "^$number " "$systemd/io.max")" "the limits of a raw volume"
call unpublish-volume "$raw" --target "$device" >/dev/null
is '' "$(grep "^$number " "$systemd/io.max" || true)" "the limits of a raw volume that the pod has no more"
unstage "$raw" -raw
delete "$raw"
secret=$(create secret 64MiB ext4 --parameter deviceClass=thin --parameter encryption=luks2 --parameter writeIops=300)
printf 'correct horse' >passphrase
mkdir -p "$staging-secret"
call stage-volume "$secret" --staging "$staging-secret" --fs ext4 --context 'longshore.dev/parameters={"node":{"encryption":"luks2"},"backend":null}' \
    --secret-file encryptionPassphrase=passphrase >/dev/null
place=$DIR/kubelet/pods/$first/volumes/kubernetes.io~csi/secret/mount
mkdir -p "$(dirname "$place")"
call publish-volume "$secret" --staging "$staging-secret" --target "$place" --fs ext4 >/dev/null
number=$(mountpoint -d "$place")
grep -q '^CRYPT-' "/sys/dev/block/$number/dm/uuid" || fail "the file system is not on a mapping"
is "$number rbps=max wbps=max riops=max wiops=300" "$(grep "^$number " "$systemd/io.max")" "the limits of an encrypted volume"
# Written out before the snapshot, and in it.
in_pod "$systemd" cp content "$place/content" >/dev/null
call create-snapshot "$secret" --name then >/dev/null
call unpublish-volume "$secret" --target "$place" >/dev/null
unstage "$secret" -secret
delete "$secret"
call delete-snapshot lvm:then >/dev/null

echo "--- a node without cgroup v2"
mount -t tmpfs none /sys/fs/cgroup
show "$id" "$(target_of $first)" >refused.log 2>&1 && refused='' || refused=yes
call modify-volume "$id" --mutable-parameter readIops=70 >modify.log 2>&1 && changed=yes || changed=''
create elsewhere 64MiB ext4 --parameter readIops=70 >create.log 2>&1 && made=yes || made=''
call modify-volume "$id" --mutable-parameter writeBandwidth=max >lifted.log 2>&1 && lifted=yes || lifted=''
show "$id" "$(target_of $first)" >again.log 2>&1 && again=yes || again=''
longshore doctor --json --config config.yaml --state-dir "$DIR/state" --kubelet-dir "$DIR/kubelet" >doctor.json 2>/dev/null || true
umount /sys/fs/cgroup
[ "$refused" ] || fail "published on a node without cgroup v2"
grep -q 'FAILED_PRECONDITION.*not cgroup v2' refused.log || fail "without cgroup v2: $(cat refused.log)"
[ -z "$changed" ] || fail "a limit that cannot be applied is recorded"
grep -q 'INVALID_ARGUMENT.*not cgroup v2' modify.log || fail "ModifyVolume without cgroup v2: $(cat modify.log)"
[ -z "$made" ] || fail "a volume with limits was made where pods cannot be limited"
grep -q 'RESOURCE_EXHAUSTED.*not cgroup v2' create.log || fail "CreateVolume without cgroup v2: $(cat create.log)"
[ "$lifted" ] || fail "the limits cannot be lifted: $(cat lifted.log)"
[ "$again" ] || fail "a volume without limits any more is not published: $(cat again.log)"
jq -e '.checks[] | select(.found | contains("IoLimitsUnavailable"))' doctor.json >/dev/null || fail "doctor does not say it: $(cat doctor.json)"

echo "--- nothing is left"
for uid in $first $second; do call unpublish-volume "$id" --target "$(target_of $uid)" >/dev/null; done
unstage "$id"
delete "$id"
# A volume without limits needs no pod.
id=$(create free 64MiB ext4)
stage "$id" ext4
publish "$id" ext4
unpublish "$id"
unstage "$id"
delete "$id"
is '' "$(ours)" "logical volumes that are left"
stop_driver
lvm_stop

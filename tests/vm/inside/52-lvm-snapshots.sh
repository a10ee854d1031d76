#!/bin/bash
# Snapshots, restores and clones of thin volumes; what is refused, and why; what an administrator does by hand; static volumes.
# about 75 s
# in make test
set -euo pipefail
# shellcheck source=lib.bash
. "$(dirname "$0")/lib.bash"
# shellcheck source=lvm.bash
. "$(dirname "$0")/lvm.bash"

lvm_start 2 512M
lvm_config
start_driver

echo "--- snapshots, restores and clones of a thin volume that is written to"
id=$(create origin 200MiB ext4 --parameter deviceClass=thin)
stage "$id" ext4
publish "$id" ext4
head -c 8M /dev/urandom >"$target/data"
cp "$target/data" data
sync -f "$target/data"
snapshot=$(call create-snapshot --name one "$id" | jq -er .snapshot.snapshot_id)
is "$snapshot" "$(call create-snapshot --name one "$id" | jq -er .snapshot.snapshot_id)" "the id of a repeated CreateSnapshot"
echo changed >"$target/data"
sync -f "$target/data"
clone=$(create clone 200MiB ext4 --from-volume "$id" --parameter deviceClass=thin)
restored=$(create restored 300MiB ext4 --from-snapshot "$snapshot" --parameter deviceClass=thin)
for copy in "$clone" "$restored"; do
    stage "$copy" ext4 -copy
    publish "$copy" ext4 -copy
    case $copy in
    "$clone") is changed "$(cat "$target-copy/data")" "the clone's data" ;;
    "$restored")
        cmp data "$target-copy/data" || fail "the snapshot's data changed"
        [ "$(size_of "$target-copy")" -gt $((250 << 20)) ] || fail "the restored volume's file system has $(size_of "$target-copy") bytes"
        ;;
    esac
    unpublish "$copy" -copy
    unstage "$copy" -copy
done
is 1 "$(call list-snapshots | jq '.entries | length')" "snapshots in the list"
is 3 "$(call list-volumes | jq '.entries | length')" "volumes in the list"
unpublish "$id"
unstage "$id"
# Its copies live on without it, and so does the snapshot.
delete "$id"
stage "$restored" ext4
publish "$restored" ext4
cmp data "$target/data" || fail "a restored volume changed when its origin was deleted"
unpublish "$restored"
unstage "$restored"
again=$(create again 200MiB ext4 --from-snapshot "$snapshot" --parameter deviceClass=thin)
stage "$again" ext4
publish "$again" ext4
cmp data "$target/data" || fail "a snapshot changed when its origin was deleted"
unpublish "$again"
unstage "$again"
call delete-snapshot "$snapshot" >/dev/null
for copy in "$clone" "$restored" "$again"; do delete "$copy"; done
is '' "$(ours)" "logical volumes after all were deleted"

echo "--- refusals say why"
refused() { # refused WORDS COMMAND...
    local words=$1
    shift
    if "$@" >refused.log 2>&1; then fail "not refused: $*"; fi
    grep -q "$words" refused.log || fail "not said: $words: $(cat refused.log)"
}
id=$(create thick 64MiB ext4 --parameter deviceClass=thick)
refused 'thin pool' call create-snapshot --name no "$id"
refused 'ResourceExhausted\|RESOURCE_EXHAUSTED' create big 4GiB ext4 --parameter deviceClass=thick
refused 'overcommit' create big 4GiB ext4 --parameter deviceClass=thin
refused 'thick, thin' create none 64MiB ext4 --parameter deviceClass=fast

echo "--- what is retained is the administrator's"
for class in thick thin; do
    kept=$(create kept 64MiB ext4 --parameter "deviceClass=$class")
    call modify-volume "$kept" --mutable-parameter onDelete=retain >/dev/null
    [ "$class" = thin ] || refused 'scrub' call modify-volume "$kept" --mutable-parameter onDelete=archive
    delete "$kept"
    retained=$(ours | grep retained)
    is "" "$(active)" "active logical volumes after a deletion that retains"
    lvm lvremove -qq -y --devices "$disks" "vg0/$retained"
done
is 1 "$(call list-volumes | jq '.entries | length')" "volumes in the list"

echo "--- by hand: renamed, removed, in the way, static"
name=$(ours)
lvm lvrename -qq --devices "$disks" vg0 "$name" renamed
refused 'NotFound\|NOT_FOUND' stage "$id" ext4
lvm lvrename -qq --devices "$disks" vg0 renamed "$name"
stage "$id" ext4
unstage "$id"
# A damaged record is that of its volume only.
piece=$(lvm lvs --noheadings --devices "$disks" -o lv_tags "vg0/$name" | tr ', ' '\n\n' | grep '^longshore.record.0=')
lvm lvchange -qq --devices "$disks" --deltag "$piece" "vg0/$name"
is "$id" "$(call list-volumes | jq -r '.entries[].volume.volume_id')" "the list with a damaged record"
is 0 "$(call list-snapshots | jq '.entries | length')" "snapshots in the list"
lvm lvchange -qq --devices "$disks" --addtag "$piece" "vg0/$name"
# The command that inspect prints for a draft removes nothing else.
lvm lvremove -qq --yes --devices "$disks" --select lv_tags=longshore.state=draft "vg0/$name"
is "$name" "$(ours)" "a volume after the command for a draft"
# What has our name and not our tags is another's.
other=$(call create-volume --name probe --size 64MiB --fs=ext4 --parameter deviceClass=thick | jq -er .volume.volume_id)
probe=$(comm -13 <(echo "$name") <(ours))
delete "$other"
lvm lvcreate -qq -y --devices "$disks" -n "$probe" -L 64M --addtag longshore.state=draft vg0 >/dev/null
lvm lvremove -qq --yes --devices "$disks" --select lv_tags=longshore.state=draft "vg0/$probe"
is "$name" "$(ours)" "a draft after the command that inspect prints for it"
lvm lvcreate -qq -y --devices "$disks" -n "$probe" -L 64M vg0 >/dev/null
printf precious | dd of="/dev/vg0/$probe" status=none oflag=dsync
refused "$probe" call create-volume --name probe --size 64MiB --fs=ext4 --parameter deviceClass=thick
delete "$other"
is precious "$(head -c 8 "/dev/vg0/$probe")" "the data of another's logical volume"
echo "--- a static volume keeps its data, and stays"
mkfs.ext4 -q "/dev/vg0/$probe"
static=$(call stage-volume "lvm:static" --staging "$staging" --fs=ext4 --context volumeGroup=vg0 --context "logicalVolume=$probe" 2>&1) || fail "a static volume: $static"
mountpoint -q "$staging" || fail "it is not mounted"
unstage lvm:static
delete lvm:static
is "$probe" "$(lvm lvs --noheadings --devices "$disks" -o lv_name "vg0/$probe" | tr -d ' ')" "a static volume after DeleteVolume"
lvm lvremove -qq -y --devices "$disks" "vg0/$probe"
# Nothing of it is in the pool: what it shows is its external origin's, which is in another. The place is none that is looked at where a
# volume is known to be blank.
lvm lvcreate -qq -y --devices "$disks" --type thin-pool -n pool1 -L 16M --poolmetadatasize 4M vg0 >/dev/null
lvm lvcreate -qq -y --devices "$disks" -n outside -V 1100M --thinpool pool1 vg0 >/dev/null
printf precious | dd of=/dev/vg0/outside bs=4096 seek=154112 conv=sync oflag=direct status=none
lvm lvchange -qq -y --devices "$disks" -an vg0/outside
lvm lvchange -qq --devices "$disks" -pr vg0/outside
lvm lvcreate -qq -y --devices "$disks" -s --thinpool pool0 -kn -n inside vg0/outside >/dev/null
refused 'neither proven blank' call stage-volume lvm:static --staging "$staging" --fs=ext4 --context volumeGroup=vg0 --context logicalVolume=inside
unstage lvm:static
lvm lvchange -qq --devices "$disks" -ay -K vg0/inside
is precious "$(dd if=/dev/vg0/inside bs=4096 skip=154112 count=1 status=none | head -c 8)" "the data of a thin volume with an external origin"
lvm lvremove -qq -y --devices "$disks" vg0/inside vg0/outside vg0/pool1
# LVM removes a snapshot with its origin, without a question that --yes does not answer.
lvm lvcreate -qq -y --devices "$disks" --snapshot -L 8M -n before_upgrade "vg0/$name" >/dev/null
refused 'vg0/before_upgrade' call delete-volume "$id"
is "before_upgrade $name" "$(lvm lvs --noheadings --devices "$disks" -o lv_name "vg0/$name" vg0/before_upgrade | xargs)" "what was refused to be removed"
lvm lvremove -qq -y --devices "$disks" vg0/before_upgrade
# A record that an administrator has written otherwise is replaced, and not doubled.
lvm lvchange -qq --devices "$disks" --deltag "$piece" --addtag "${piece/=7B=22/=7B=20=22}" "vg0/$name"
call modify-volume "$id" --mutable-parameter onDelete=retain >/dev/null
is 1 "$(lvm lvs --noheadings --devices "$disks" -o lv_tags "vg0/$name" | grep -o 'longshore.record.0=' | wc -l)" "records after a change"
call modify-volume "$id" --mutable-parameter onDelete=delete >/dev/null
# Of two records, it is not known which one counts.
lvm lvchange -qq --devices "$disks" --addtag 'longshore.record.0=other' "vg0/$name"
refused 'not those of one record' call delete-volume "$id"
lvm lvchange -qq --devices "$disks" --deltag 'longshore.record.0=other' "vg0/$name"
delete "$id"

echo "--- a new thin volume is active, and staged without a command of LVM as long as it is itself and blank"
new=$(create new 64MiB ext4 --parameter deviceClass=thin)
is "$(ours)" "$(active)" "active logical volumes after create"
# Else `longshore call` would ask the driver for it, and that LVM.
mapfile -t context < <(call get-volume "$new" | jq -r '.volume.volume_context | to_entries[] | "--context", "\(.key)=\(.value)"')
exec 9>/run/lock/lvm/V_vg0
flock --exclusive 9 # LVM's own: any command of it would wait
call stage-volume "$new" --staging "$staging" --fs ext4 "${context[@]}" >/dev/null
flock --unlock 9
exec 9>&-
unstage "$new"
is '' "$(active)" "active logical volumes after unstage"
delete "$new"
new=$(create new 64MiB ext4 --parameter deviceClass=thin)
name=$(ours)
lvm lvremove -qq -y --devices "$disks" "vg0/$name"
lvm lvcreate -qq -y --devices "$disks" -V 64M --thinpool vg0/pool0 -n "$name" >/dev/null
refused 'NotFound\|NOT_FOUND' stage "$new" ext4
is '' "$(head -c 64M "/dev/vg0/$name" | tr -d '\0' | head -c 8)" "the data of another's logical volume in its place"
lvm lvremove -qq -y --devices "$disks" "vg0/$name"
delete "$new"
new=$(create new 64MiB ext4 --parameter deviceClass=thin)
name=$(ours)
printf precious | dd of="/dev/vg0/$name" bs=4096 seek=4000 conv=sync oflag=direct status=none
refused 'neither proven blank' stage "$new" ext4
lvm lvchange -qq --devices "$disks" -ay "vg0/$name"
is precious "$(dd if="/dev/vg0/$name" bs=4096 skip=4000 count=1 status=none | head -c 8)" "what another program wrote to it"
unstage "$new"
delete "$new"
is '' "$(ours)" "logical volumes at the end"

echo "--- the disk of the state directory is full: volumes are deleted all the same"
id=$(create evicted 64MiB ext4 --parameter deviceClass=thick)
stage "$id" ext4
mount -t tmpfs -o size=64k full state/lvm
touch state/lvm/vg0.lock state/lvm/vg0.thin-metadata.lock
dd if=/dev/zero of=state/lvm/filler bs=1k status=none 2>/dev/null || true
unstage "$id"
delete "$id"
is '' "$(ours)" "logical volumes after a deletion on a full disk"
umount state/lvm

echo "--- the volume group of a volume is taken out of the configuration: it is not answered that the volume is deleted"
id=$(create kept 64MiB ext4 --parameter deviceClass=thick)
stop_driver
truncate -s 64M other.img
other=$(losetup --find --show other.img)
lvm vgcreate -qq -y --devices "$other" vg1 "$other" >/dev/null
printf 'backends:\n  - {name: lvm, type: lvm, classes: [{name: thick, volumeGroup: vg1, devices: [%s]}]}\n' "$other" >config.yaml
start_driver
refused 'volume group vg0 held volumes of this backend' call delete-volume "$id"
refused 'volume group vg0 held volumes of this backend' call delete-volume lvm:none
stop_driver
lvm_config
start_driver
delete "$id"
delete "$id"
is '' "$(ours)$(ls state/lvm-groups)" "logical volumes and what is recorded of them at the end"
lvm vgremove -qq -y --devices "$other" vg1
losetup -d "$other"
stop_driver
lvm_stop

#!/bin/bash
# The power of the node fails in lvcreate, lvextend, lvremove and in a snapshot: each write to the disk is logged (dm-log-writes), and a
# machine that has only the first N of them is started. What was answered is there with its data, and the same calls once more, to a driver
# that was started then, end where they would have ended without the cut.
# about 400 s
set -euo pipefail
# shellcheck source=lib.bash
. "$(dirname "$0")/lib.bash"
# shellcheck source=lvm.bash
. "$(dirname "$0")/lvm.bash"

cuts=${CUTS:-12}
megabytes=160
disks=/dev/mapper/disk1
# plug TARGET...: the disk, as the kernel of a machine that has just started knows it.
plug() { dmsetup --noudevsync create disk1 --table "0 $((megabytes << 11)) $*"; }
unplug() {
    lvm vgchange -qq -an --devices "$disks" vg0
    dmsetup --noudevsync remove disk1
}
# Each logical volume with its size and tags, without what is new each time.
stored() {
    lvm lvs --noheadings --separator ' ' --devices "$disks" -a -o lv_name,lv_size,lv_tags vg0 |
        sed 's/longshore.record[^,]*,*//g' | sort
}
# What the driver lists.
shown() {
    {
        call list-volumes | jq -r '.entries[].volume | "\(.volume_id) \(.capacity_bytes)"'
        call list-snapshots | jq -r '.entries[].snapshot.snapshot_id'
    } | sort
}
# same_data WHEN NAME...: both volumes have theirs, and new ones, by their names, have none.
same_data() {
    local when=$1 name device
    shift
    for name in "$name_of_thick" "$name_of_thin" "$@"; do
        lvm lvchange -qq -ay -K --devices "$disks" "vg0/$name"
        device=/dev/mapper/vg0-$name
        case $name in
        "$name_of_thick" | "$name_of_thin") cmp -n $((8 << 20)) data "$device" || fail "$when: the data of $name changed" ;;
        *) cmp -n $((8 << 20)) "$device" /dev/zero || fail "$when: the new volume $name shows what was on the disk" ;;
        esac
        lvm lvchange -qq -an --devices "$disks" "vg0/$name"
    done
}
calls=6
call_of() { # call_of NUMBER
    case $1 in
    1) create new-thick 8MiB block --parameter deviceClass=thick ;;
    2) create new-thin 8MiB block --parameter deviceClass=thin ;;
    3) call expand-volume lvm:thick --size 16MiB ;;
    4) call expand-volume lvm:thin --size 16MiB ;;
    5) call create-snapshot --name then lvm:thin ;;
    6) delete lvm:old ;;
    esac >/dev/null
}
# log: each write that the log has, as its number, sector and bytes (drivers/md/dm-log-writes.c).
# log NUMBER: writes the first of them to disk.img.
log() {
    python3 - "$@" <<'END'
import struct, sys
until = int(sys.argv[1]) if len(sys.argv) > 1 else 0
with open("log.img", "rb") as log, open("disk.img", "r+b") as disk:
    magic, version, entries, sector = struct.unpack("<QQQL", log.read(28))
    assert (magic, version) == (0x6A736677736872, 1), (magic, version)
    at = sector
    for number in range(1, entries + 1):
        log.seek(at)
        where, count, flags, _ = struct.unpack("<4Q", log.read(32))
        discarded = flags & 4
        if not until:
            print(number, where, count * sector)
        elif number <= until:
            log.seek(at + sector)
            disk.seek(where * sector)
            disk.write(bytes(count * sector) if discarded else log.read(count * sector))
        at += sector + (0 if discarded else count * sector)
END
}

head -c ${megabytes}M /dev/zero | tr '\0' X >disk.img
truncate -s 1G log.img
loop=$(losetup --find --show disk.img)
plug linear "$loop" 0
lvm_group /dev/mapper/disk1
lvm lvcreate -qq -y --devices "$disks" --type thin-pool -n pool0 -L 48M --poolmetadatasize 4M vg0 >/dev/null
lvm_config
start_driver
create thick 8MiB block --parameter deviceClass=thick >/dev/null
name_of_thick=$(ours)
create thin 8MiB block --parameter deviceClass=thin >/dev/null
name_of_thin=$(ours | grep -vx "$name_of_thick")
create old 8MiB block --parameter deviceClass=thick >/dev/null
ours >known
head -c 8M /dev/urandom >data
lvm lvchange -qq -ay -K --devices "$disks" "vg0/$name_of_thick" "vg0/$name_of_thin"
for name in "$name_of_thick" "$name_of_thin"; do dd if=data of="/dev/mapper/vg0-$name" bs=1M oflag=direct status=none; done
unplug
sync
cp --sparse=always disk.img base.img

echo "--- the calls without a cut"
log_loop=$(losetup --find --show log.img)
plug log-writes "$loop" "$log_loop"
shown >shown0
echo 0 >ends
for number in $(seq $calls); do
    call_of "$number"
    # What was written so far is in the log from here on, though the kernel was not asked to make it durable.
    dd if=/dev/zero of=/dev/mapper/disk1 bs=512 count=0 conv=fsync,notrunc status=none
    dmsetup status disk1 | awk '{ print $4 }' >>ends
    shown >"shown$number"
done
stop_driver
stored >stored
mapfile -t new < <(ours | grep longshore_v_ | grep -vxFf known)
is 2 "${#new[@]}" "new volumes"
same_data "without a cut" "${new[@]}"
unplug
losetup -d "$log_loop"
losetup -d "$loop"
# Of the zeroes and the data that are written, one cut in the middle of each call is enough.
log | awk -v end="$(tail -n 1 ends)" '$1 < end && ($3 < 65536 || $1 % 8 == 0) { print $1 }' >points
count=$(wc -l <points)
echo "FIGURE: $count points to cut at, $cuts of them tried, of $(tail -n 1 ends) writes"
[ "$cuts" -le "$count" ] || cuts=$count

for cut in $(seq "$cuts"); do
    writes=$(sed -n "$(((cut * 2 - 1) * count / (cuts * 2) + 1))p" points)
    # How many calls were answered before that write; the next one was cut.
    answered=$(awk -v writes="$writes" '$1 <= writes { count++ } END { print count - 1 }' ends)
    when="after $writes writes, in call $((answered + 1))"
    echo "--- $when"
    cp --sparse=always base.img disk.img
    log "$writes"
    loop=$(losetup --find --show disk.img)
    plug linear "$loop" 0
    start_driver
    shown >now
    comm -12 "shown$answered" "shown$((answered + 1))" >sure
    is '' "$(comm -13 now sure)" "$when: what was answered and is not there"
    is '' "$(sort -u "shown$answered" "shown$((answered + 1))" | comm -23 now -)" "$when: what is there and was never asked for"
    for number in $(seq $calls); do call_of "$number" || fail "$when: call $number was not answered when it was repeated"; done
    stop_driver
    is "$(cat stored)" "$(stored)" "$when: logical volumes in the end"
    same_data "$when" "${new[@]}"
    lvm vgck --devices "$disks" vg0 || fail "$when: what vgck says"
    unplug
    losetup -d "$loop"
done

#!/bin/bash
# What calls for logical volumes take beside the bare commands, in one run: create + stage + publish beside lvcreate + mkfs + mount, and many
# volumes made at once beside a loop of lvcreate. Nothing is held to a bar here: the figures are lines `FIGURE: ...`, and docs/lvm.md has what
# they were. Set by environment: ROUNDS (3), MANY (20), PRESENT (0: so many other logical volumes, beside which one is made once more).
# about 150 s
set -euo pipefail
# shellcheck source=lib.bash
. "$(dirname "$0")/lib.bash"
# shellcheck source=lvm.bash
. "$(dirname "$0")/lvm.bash"

rounds=${ROUNDS:-3} many=${MANY:-20} present=${PRESENT:-0}
now() { echo "${EPOCHREALTIME/./}"; }
median() { sort -n | awk '{ all[NR] = $1 } END { print all[int((NR + 1) / 2)] }'; }
# ratio ONE OTHER: `1.23`.
ratio() { awk -v one="$1" -v other="$2" 'BEGIN { printf "%.2f", one / other }'; }
milliseconds() { echo "$(($1 / 1000)) ms"; }
# timed COMMAND...: its microseconds.
timed() {
    local start
    start=$(now)
    "$@" >/dev/null
    echo $(($(now) - start))
}
# took COMMAND...: what the driver says that the calls of a command took, in microseconds: without the start of `longshore call`.
took() {
    local before
    before=$(wc -l <driver.log)
    "$@" >/dev/null
    tail -n +$((before + 1)) driver.log | sed -n 's/.*INFO rpc.* done .* took=\([0-9.]*\)\([^0-9. ]*\) .*/\1 \2/p' |
        awk '{ sum += $1 * ($2 == "s" ? 1000000 : $2 == "ms" ? 1000 : 1) } END { printf "%d\n", sum }'
}
by_hand() { # by_hand NAME: a volume, formatted and mounted twice
    lvm lvcreate -qq -y --devices "$disks" -V 64M --thinpool vg0/pool0 -n "$1" 2>/dev/null
    mkfs.ext4 -q "/dev/vg0/$1"
    mount "/dev/vg0/$1" "$DIR/staging"
    mount --bind "$DIR/staging" "$DIR/target"
}
by_call() { # by_call NAME
    create "$1" 64MiB ext4 --parameter deviceClass=thin
    stage "lvm:$1" ext4
    publish "lvm:$1" ext4
}
cycle_by_hand() {
    timed by_hand "$1"
    umount target staging
    lvm lvremove -qq -y --devices "$disks" "vg0/$1"
}
cycle() { # cycle NAME: what it takes to make, stage and publish it; it is deleted again
    took by_call "$1"
    unpublish "lvm:$1"
    unstage "lvm:$1"
    delete "lvm:$1"
}
# until_done COMMAND...: as a sidecar does, it calls again what is not final.
until_done() {
    for _ in 1 2 3 4 5; do ! "$@" >/dev/null 2>&1 || return 0; done
    return 1
}
at_once() { # at_once COMMAND...: with each of the numbers
    local number
    for number in $(seq "$many"); do until_done "$@" "$number" & done
    # shellcheck disable=SC2046  # several processes
    wait $(jobs -p | grep -vx "$driver_pid")
}
create_numbered() { create "many-$1" 8MiB block --parameter deviceClass=thin; }
loop_of_lvcreate() {
    local number
    for number in $(seq "$many"); do
        lvm lvcreate -qq -y --devices "$disks" -V 8M --thinpool vg0/pool0 -n "loop$number"
    done
}
remove_all() { lvm lvremove -qq -y --devices "$disks" -S "lv_name=~$1" vg0; }

modprobe -a dm-thin-pool dm-raid dm-mod 2>/dev/null || true
truncate -s 8G disk1.img
disks=$(losetup --find --show disk1.img)
lvm pvcreate -qq -y --metadatasize 64m --devices "$disks" "$disks"
lvm_group "$disks"
lvm lvcreate -qq -y --devices "$disks" --type thin-pool -n pool0 -L 1G --poolmetadatasize 64M vg0 >/dev/null
each="volumeGroup: vg0, devices: [$disks]"
printf 'backends:\n  - {name: lvm, type: lvm, classes: [{name: thick, %s}, {name: thin, %s, thinPool: pool0, overcommit: 100}]}\n' \
    "$each" "$each" >config.yaml
mkdir staging target
start_driver

echo "--- one volume"
for round in $(seq "$rounds"); do
    cycle_by_hand "hand$round" >>hand
    cycle "call$round" >>called
done
hand=$(median <hand) called=$(median <called)
echo "FIGURE: create + stage + publish $(milliseconds "$called"), lvcreate + mkfs + mount $(milliseconds "$hand"): $(ratio "$called" "$hand")"

echo "--- $many volumes at once"
looped=$(timed loop_of_lvcreate)
remove_all '^loop'
at_once create_numbered
is "$many" "$(ours | wc -l)" "volumes made at once"
remove_all '^longshore'
# Between the first answer and the last: before that the clients start, all at once, and LVM is asked for its first report.
answered() { sed -n 's/^\([^ ]*\) .*rpc="CreateVolume" id="many-.* done .*/\1/p' driver.log | sort; }
made=$((($(date -d "$(answered | tail -n 1)" +%s%N) - $(date -d "$(answered | head -n 1)" +%s%N)) / 1000 / (many - 1)))
echo "FIGURE: $many volumes at once: $(milliseconds "$made") for each after the first; a loop of lvcreate" \
    "$(milliseconds $((looped / many))) for each: $(ratio "$made" $((looped / many)))"

if [ "$present" != 0 ]; then
    echo "--- beside $present logical volumes"
    for number in $(seq "$present"); do
        lvm lvcreate -qq -y --devices "$disks" -V 8M --thinpool vg0/pool0 -n "present$number" -an -kn >/dev/null
    done
    is "$present" "$(lvm lvs --noheadings --devices "$disks" -o lv_name -S 'lv_name=~^present' vg0 | wc -l)" "logical volumes beside it"
    for round in $(seq "$rounds"); do
        cycle_by_hand "hand$round" >>hand-beside
        cycle "beside$round" >>beside
    done
    beside=$(median <beside) hand_beside=$(median <hand-beside)
    echo "FIGURE: beside $present logical volumes: create + stage + publish $(milliseconds "$beside"), $(ratio "$beside" "$called") of that without;" \
        "lvcreate + mkfs + mount $(milliseconds "$hand_beside"), $(ratio "$hand_beside" "$hand") of that without"
    remove_all '^present'
fi
stop_driver
lvm_stop

#!/bin/bash
# Snapshots of volumes that nodes write to meanwhile: all writes that were acknowledged to a node are in them, and of several volumes they are
# one instant. Growth under writes. A pool whose copies take their time refuses what could be no instant.
# about 35 s
set -euo pipefail
# shellcheck source=san.bash
. "$(dirname "$0")/san.bash"

san
export LONGSHORE_FAULT_FILE=$DIR/order
echo '1 crash@0' >order
start_controller
one=$(create one 8MiB block) two=$(create two 8MiB block)
attach "$one" a
attach "$two" b
log_in a
log_in b
# Writes number after number, each to the one volume and, once that is acknowledged, to the other. A consistent state of both has
# the same last number, or one more in the first. Each is on the disk when the call returns (O_SYNC, and no cache in the target).
cat >writer.pl <<'PERL'
use Fcntl; $| = 1;
sysopen(my $one, $ARGV[0], O_RDWR | O_SYNC) or die; sysopen(my $two, $ARGV[1], O_RDWR | O_SYNC) or die;
for (my $n = 1; !-e "stop"; $n++) {
    for my $device ($one, $two) {
        sysseek($device, ($n % 2048) * 4096, 0) or die "seek: $!";
        (syswrite($device, sprintf("%-4095d\n", $n)) // -1) == 4096 or die "write $n: $!";
    }
    sysseek(STDOUT, 0, 0); syswrite(STDOUT, "$n\n");
}
PERL
last() { perl -e 'open(F, $ARGV[0]); $m = 0; while (read(F, $b, 4096)) { $m = $1 if $b =~ /^(\d+) / && $1 > $m } print $m' "$1"; }
perl writer.pl "$(device_of a)" "$(device_of b)" >acknowledged 2>writer.err &
writer=$!
continues() { kill -0 $writer && [ "$(cat acknowledged)" -gt "$1" ]; }
within 20 test -s acknowledged

acknowledged=$(cat acknowledged)
snapshot=$(call create-snapshot "$one" --name nightly | jq -er .snapshot.snapshot_id)
within 10 continues $((acknowledged + 50))
copy=$(create copy 8MiB block --from-snapshot "$snapshot")
lines=$(last "$(image_of copy)")
[ "$lines" -ge "$acknowledged" ] || fail "$acknowledged were acknowledged, the snapshot has $lines"
is "$lines" "$(perl -e 'open(F, $ARGV[0]); while (read(F, $b, 4096)) { $n++ if $b =~ /^\d+ +\n$/ } print $n' "$(image_of copy)")" "whole numbers in it"
cmp "$(image_of copy)" pool/images/snapshots/nightly/image || fail "what was restored is not the snapshot byte for byte"

for group in 1 2; do
    within 20 continues "$(($(cat acknowledged) + 20))"
    call create-group-snapshot --name "g$group" "$one" "$two" >group.$group
    jq -er '.group_snapshot.snapshots | sort_by(.source_volume_id)[].snapshot_id' group.$group >members
    first=$(last "pool/images/snapshots/$(sed -n 's/^san://;1p' members)/image")
    second=$(last "pool/images/snapshots/$(sed -n 's/^san://;2p' members)/image")
    [ "$first" -gt 20 ] && [ $((first - second)) -ge 0 ] && [ $((first - second)) -le 1 ] ||
        fail "group $group is not one instant: $first in the one volume, $second in the other"
done
is "0 0" "$(cat "$kernel"/core/fileio_*/longshore-*/alua/default_tg_pt_gp/alua_access_state | xargs)" "the state of the disks after the groups"

# Killed while they are paused: the next process lets them continue.
echo '2 crash@0' >order
call create-group-snapshot --name counted "$one" "$two" >group.3
step=$(grep 'fault: step .*: resume disk' driver.log | tail -n 2 | sed -n '1s/.*step \([0-9]*\):.*/\1/p')
echo "3 crash@$step" >order
! call create-group-snapshot --name killed "$one" "$two" >/dev/null 2>&1 || fail "not killed in the pause"
wait "$driver_pid" 2>/dev/null || true
is "15 15" "$(cat "$kernel"/core/fileio_*/longshore-*/alua/default_tg_pt_gp/alua_access_state | xargs)" "the state of the disks after the kill"
stuck=$(cat acknowledged)
echo '4 crash@0' >order
start_controller
within 20 continues $((stuck + 20))

# Growth under writes.
call expand-volume "$one" --size 16MiB >/dev/null
iscsiadm -m session -r "$(basename "$(session_of a)" | tr -dc 0-9)" --rescan >/dev/null
is 16777216 "$(blockdev --getsize64 "$(device_of a)")" "the size that the node sees"
head -c 1M /dev/urandom >data
dd if=data of="$(device_of a)" bs=1M seek=15 oflag=direct status=none
cmp data <(dd if="$(image_of one)" bs=1M skip=15 status=none) || fail "what was written beyond the old end is not in the image"
within 20 continues "$(($(cat acknowledged) + 20))"
touch stop
wait $writer || fail "a write failed: $(cat writer.err)"
log_out a
log_out b
detach "$one" a
detach "$two" b
for group in 1 2 3; do
    mapfile -t members < <(jq -r '.group_snapshot.snapshots[] | "--snapshot", .snapshot_id' group.$group)
    call delete-group-snapshot "$(jq -r .group_snapshot.group_snapshot_id group.$group)" "${members[@]}" >/dev/null
done
call delete-snapshot "$snapshot" >/dev/null
for volume in "$copy" "$one" "$two"; do delete "$volume"; done
nothing_left
stop_driver
unpool
rm -r pool.img state

# No reflinks: a copy takes its time.
pool ext4
configure
start_controller
id=$(create slow 64MiB block)
attach "$id" a
refused "attached to node a" call create-snapshot "$id" --name nightly
refused "attached to node a" create clone 64MiB block --from-volume "$id"
detach "$id" a
snapshot=$(call create-snapshot "$id" --name nightly | jq -er .snapshot.snapshot_id)
call delete-snapshot "$snapshot" >/dev/null
delete "$id"
nothing_left
stop_driver
unpool

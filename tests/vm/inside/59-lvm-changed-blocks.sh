#!/bin/bash
# Which blocks of a snapshot of a thin volume hold data, and which differ between two, by the metadata of the pool: what is listed, copied to
# where the rest is known, gives the snapshot. The pool may be inactive, its metadata in use by another program, and the driver killed.
# about 60 s
set -euo pipefail
# shellcheck source=lib.bash
. "$(dirname "$0")/lib.bash"
# shellcheck source=lvm.bash
. "$(dirname "$0")/lvm.bash"

# The block where a snapshot of the pool's metadata begins, or -.
held() { dmsetup status vg0-pool0-tpool | cut -d ' ' -f 7; }
pool_is_active() { dmsetup info -c --noheadings -o name | grep -qx vg0-pool0-tpool; }
# content SNAPSHOT FILE: all bytes of it.
content() {
    local copy
    copy=$(create "copy-$2" 200MiB block --from-snapshot "$1" --parameter deviceClass=thin)
    stage "$copy" block "-$2"
    publish "$copy" block "-$2"
    cp --sparse=always "$(readlink -f "$target-$2")" "$2"
    unpublish "$copy" "-$2"
    unstage "$copy" "-$2"
    delete "$copy"
}
# apply FROM TO: copies the blocks that standard input lists.
apply() {
    local offset size
    jq -r '.block_metadata[] | "\(.byte_offset) \(.size_bytes)"' | while read -r offset size; do
        dd if="$1" of="$2" bs=64K iflag=skip_bytes,count_bytes oflag=seek_bytes skip="$offset" seek="$offset" count="$size" conv=notrunc status=none
    done
}

lvm_start 2 512M sparse
lvm_config
start_driver
id=$(create changing 200MiB block --parameter deviceClass=thin)
stage "$id" block
publish "$id" block
device=$(readlink -f "$target")
write() { dd if=/dev/urandom of="$device" bs=64K seek="$1" count="$2" oflag=direct conv=notrunc status=none; }
write 0 64
write 1024 16
one=$(call create-snapshot --name one "$id" | jq -er .snapshot.snapshot_id)
write 3 1
write 2048 16
blkdiscard --offset $((1024 * 65536)) --length $((8 * 65536)) "$device"
two=$(call create-snapshot --name two "$id" | jq -er .snapshot.snapshot_id)

echo "--- what is listed is what a backup needs"
call metadata-allocated "$one" >one.json
call metadata-delta "$one" "$two" >delta.json
is - "$(held)" "the held snapshot of the metadata"
is $((80 * 65536)) "$(jq '[.block_metadata[].size_bytes] | add' one.json)" "bytes that the first snapshot holds"
is $((25 * 65536)) "$(jq '[.block_metadata[].size_bytes] | add' delta.json)" "bytes that differ"
call metadata-delta "$one" "$two" --offset $((1028 * 65536)) >part.json
is $((20 * 65536)) "$(jq '[.block_metadata[].size_bytes] | add' part.json)" "bytes that differ from an offset on"
content "$one" first
content "$two" second
truncate -s 200M backup
apply first backup <one.json
cmp first backup || fail "what is allocated is not all of the data"
apply second backup <delta.json
cmp second backup || fail "what differs is not all that differs"

echo "--- a pool that is not active is afterwards as it was"
unpublish "$id"
unstage "$id"
if pool_is_active; then lvm lvchange -an --devices "$disks" vg0/pool0; fi
if pool_is_active; then fail "the pool cannot be made inactive"; fi
is "$(jq -c .block_metadata delta.json)" "$(call metadata-delta "$one" "$two" | jq -c .block_metadata)" "what differs"
if pool_is_active; then fail "the pool is active"; fi

echo "--- another program's snapshot of the metadata stays"
stage "$id" block
dmsetup message vg0-pool0-tpool 0 reserve_metadata_snap
block=$(held)
if call metadata-allocated "$one" >refused.log 2>&1; then fail "not refused"; fi
grep -q 'dmsetup message vg0-pool0-tpool 0 release_metadata_snap' refused.log || fail "the remedy is not said: $(cat refused.log)"
is "$block" "$(held)" "another's snapshot of the metadata"
dmsetup message vg0-pool0-tpool 0 release_metadata_snap

echo "--- a killed driver's is released by the next one"
mkfifo never
printf '#!/bin/sh\nread line <%s/never\n' "$DIR" >/usr/local/sbin/thin_delta
chmod +x /usr/local/sbin/thin_delta
call metadata-delta "$one" "$two" >killed.log 2>&1 &
caller=$!
is_held() { [ "$(held)" != - ] && [ -s state/lvm/vg0.pool0.metadata-snapshot ]; }
within 20 is_held
kill_driver
wait "$caller" && fail "the call of a killed driver succeeded"
rm /usr/local/sbin/thin_delta
is_held || fail "the kernel released it by itself: there is nothing to test"
start_driver
is "$(jq -c .block_metadata delta.json)" "$(call metadata-delta "$one" "$two" | jq -c .block_metadata)" "what differs after a kill"
is - "$(held)" "the held snapshot of the metadata after a kill"

other=$(create other 64MiB block --parameter deviceClass=thin)
third=$(call create-snapshot --name third "$other" | jq -er .snapshot.snapshot_id)
if call metadata-delta "$one" "$third" >refused.log 2>&1; then fail "snapshots of two volumes were compared"; fi
grep -q 'only snapshots of one volume can be compared' refused.log || fail "$(cat refused.log)"
for snapshot in "$one" "$two" "$third"; do call delete-snapshot "$snapshot" >/dev/null; done
unstage "$id"
for volume in "$id" "$other"; do delete "$volume"; done
is '' "$(ours)" "logical volumes at the end"
stop_driver
lvm_stop

#!/bin/bash
# A snapshot of a mounted volume that is being written to: all that was on the disk before the call is in it, in order
# and whole, and its file system was frozen in a clean state: no journal to replay.
set -euo pipefail
# shellcheck source=lib.bash
. "$(dirname "$0")/lib.bash"

pool xfs
start_driver
id=$(create source 64MiB ext4)
stage "$id" ext4
publish "$id" ext4

# The number of the last line that is surely on the disk goes to ./acknowledged.
(
    line=0
    until [ -e stop ]; do
        echo "line $((line += 1))" >>"$target/log"
        sync -d "$target/log"
        echo "$line" >acknowledged.new
        mv acknowledged.new acknowledged
    done
) &
writer=$!
within 10 test -s acknowledged
acknowledged=$(cat acknowledged)
snapshot=$(call create-snapshot "$id" --name nightly | jq -er .snapshot.snapshot_id)
# The file system was thawed: writing continues.
after=$(cat acknowledged)
continues() { [ "$(cat acknowledged)" -gt "$after" ]; }
within 10 continues
touch stop
wait "$writer" || fail "writing failed while the snapshot was taken"

copy=$(create copy 64MiB ext4 --from-snapshot "$snapshot")
# A mounted ext4 is marked as needing its journal; a frozen one is not, and neither may what was shared from it then be.
needs_journal() { dumpe2fs -h "$(find pool/images -path "*/$1/*" -type f -size +1M)" 2>/dev/null | grep -q 'features:.*needs_recovery'; }
needs_journal source || fail "the mounted volume is not marked: this test would prove nothing"
! needs_journal copy || fail "the file system was not frozen: the snapshot needs a journal replay"
stage "$copy" ext4 -copy
device=$(findmnt -n -o SOURCE "$staging-copy")
publish "$copy" ext4 -copy
is ext4 "$(blkid -o value -s TYPE "$device")" "the copy's file system"
lines=$(wc -l <"$target-copy/log")
[ "$lines" -ge "$acknowledged" ] || fail "$acknowledged lines were on the disk, the snapshot has $lines"
is "$(seq -f 'line %g' "$lines" | sha256sum)" "$(sha256sum <"$target-copy/log")" "the lines in the snapshot"

unpublish "$copy" -copy
unstage "$copy" -copy
delete "$copy"
call delete-snapshot "$snapshot" >/dev/null
unpublish "$id"
unstage "$id"
delete "$id"
is '' "$(volume_loops)" "loop devices at the end"
stop_driver
unpool

#!/bin/bash
# An encrypted volume's whole life: what lies in the pool is ciphertext, only the passphrase of the node-stage secret opens it, it
# grows without it, its clone is encrypted too, and a kill at any time leaves nothing that the next calls do not take down.
# about 36 s
# in make test
set -euo pipefail
# shellcheck source=lib.bash
. "$(dirname "$0")/lib.bash"

marker='what nobody else may read'
printf 'a long passphrase' >right
printf 'a wrong passphrase' >wrong

# A volume's parameters, as the CO sends them: luks2 or none.
context() { printf '%s={"node":{"encryption":"%s"},"backend":null}' longshore.dev/parameters "$1"; }
stage_with() { # stage_with SECRETFILE ID FS [NAME]
    mkdir -p "$staging${4:-}"
    call stage-volume "$2" --staging "$staging${4:-}" "$(usage "$3")" --context "$(context luks2)" --secret-file "encryptionPassphrase=$1" >stage.log 2>&1
}
mappings() { dmsetup ls 2>/dev/null | grep -v '^No devices' || true; }
nothing_is_open() {
    is '' "$(volume_loops)" "loop devices $1"
    is '' "$(mappings)" "mappings $1"
    is 'control' "$(ls /dev/mapper)" "device nodes $1"
}
image_of() { find pool/images -path "*/$1/*" -type f -size +1M; }
fstype_at() { findmnt -n -o FSTYPE "$1"; }

pool xfs
start_driver
for fs in ext4 xfs btrfs; do
    case $fs in ext4) size=96MiB ;; *) size=352MiB ;; esac
    id=$(create "luks-$fs" "$size" "$fs" --parameter encryption=luks2)

    # No passphrase, then a wrong one for a volume that has its own.
    mkdir -p "$staging"
    ! call stage-volume "$id" --staging "$staging" "$(usage "$fs")" --context "$(context luks2)" >stage.log 2>&1 || fail "staged without a passphrase"
    grep -q encryptionPassphrase stage.log || fail "it does not say which secret it lacks: $(cat stage.log)"
    nothing_is_open "after a stage without a passphrase"
    stage_with right "$id" "$fs" || fail "not staged: $(cat stage.log)"
    is "$fs" "$(fstype_at "$staging")" "the file system"
    is 1 "$(mappings | wc -l)" "mappings of a staged volume"
    [ "$(cryptsetup luksDump "$(image_of "luks-$fs")" | grep -cP '^Subsystem:\s+longshore$')" = 1 ] || fail "it is still marked as new"
    publish "$id" "$fs"
    echo "$marker" >"$target/secret"
    sync -f "$target/secret"
    stage_with right "$id" "$fs" || fail "a repeated stage fails: $(cat stage.log)"
    is 1 "$(mappings | wc -l)" "mappings after a repeated stage"
    ! grep -q "$marker" "$(image_of "luks-$fs")" || fail "the image holds the plain text"
    cryptsetup isLuks --type luks2 "$(image_of "luks-$fs")" || fail "the image is not LUKS2"

    # It grows while it is used; the CO sends no secret then.
    before=$(size_of "$target")
    call expand-volume "$id" --size 640MiB >/dev/null
    call node-expand-volume "$id" --path "$target" --staging "$staging" --size 640MiB >/dev/null
    [ "$(size_of "$target")" -gt $((before + (128 << 20))) ] || fail "$fs: it was $before and is $(size_of "$target") bytes"

    # A snapshot, restored beside it, is encrypted by the same passphrase; both are open at once. (Before Linux 6.7 two btrfs of one
    # UUID cannot be mounted at once.)
    if [ "$fs" != btrfs ]; then
        snapshot=$(call create-snapshot "$id" --name "then-$fs" | jq -er .snapshot.snapshot_id)
        copy=$(create "copy-$fs" 640MiB "$fs" --parameter encryption=luks2 --from-snapshot "$snapshot")
        ! stage_with wrong "$copy" "$fs" -copy || fail "a wrong passphrase opens it"
        grep -qi 'passphrase' stage.log || fail "it does not say that the passphrase is wrong: $(cat stage.log)"
        grep -q PERMISSION_DENIED stage.log || fail "not denied: $(cat stage.log)"
        is 1 "$(mappings | wc -l)" "mappings after a wrong passphrase"
        stage_with right "$copy" "$fs" -copy || fail "the copy is not staged: $(cat stage.log)"
        publish "$copy" "$fs" -copy
        is "$marker" "$(cat "$target-copy/secret")" "what the copy holds"
        is 2 "$(mappings | wc -l)" "mappings of two volumes"

        # In clear it is neither read nor formatted.
        unpublish "$copy" -copy
        unstage "$copy" -copy
        ! call stage-volume "$copy" --staging "$staging-copy" "$(usage "$fs")" --context "$(context none)" >stage.log 2>&1 ||
            fail "ciphertext was staged in clear"
        grep -q LUKS stage.log || fail "it does not say what it is: $(cat stage.log)"
        delete "$copy"
        call delete-snapshot "$snapshot" >/dev/null
    fi

    # Another driver takes it down, which knows neither passphrase nor past.
    kill_driver
    start_driver
    unpublish "$id"
    unstage "$id"
    nothing_is_open "after unstage"
    stage_with right "$id" "$fs" || fail "not staged again: $(cat stage.log)"
    publish "$id" "$fs"
    is "$marker" "$(cat "$target/secret")" "what was written before"

    # With the journal lost, what is open is still found and closed.
    kill_driver
    rm -r "$DIR/state/journal"
    start_driver
    unpublish "$id"
    unstage "$id"
    nothing_is_open "after unstage without a journal"
    delete "$id"
done

# A file system that is there in clear is never encrypted over.
id=$(create plain 96MiB ext4)
stage "$id" ext4
echo "$marker" >"$staging/secret"
unstage "$id"
before=$(sha256sum <"$(image_of plain)")
! stage_with right "$id" ext4 || fail "a file system in clear was encrypted over"
grep -q 'holds ext4 in clear' stage.log || fail "it does not say why: $(cat stage.log)"
is "$before" "$(sha256sum <"$(image_of plain)")" "the image"
delete "$id"

# This node's journal says that its luksFormat was interrupted, but another node has completed it, and filled the volume: a header that
# was used is never wiped, neither by a stage nor by an unstage.
id=$(create elsewhere 96MiB ext4 --parameter encryption=luks2)
stage_with right "$id" ext4 || fail "not staged: $(cat stage.log)"
echo "$marker" >"$staging/secret"
entry=$(jq -c '.phase = "staging" | .format = {purpose: "luks", offset: 100466688}' "$DIR/state/journal/$id/stage.json")
unstage "$id"
for first in stage unstage; do
    mkdir -p "$DIR/state/journal/$id"
    echo "$entry" >"$DIR/state/journal/$id/stage.json"
    [ "$first" = stage ] || unstage "$id"
    stage_with right "$id" ext4 || fail "not staged ($first first): $(cat stage.log)"
    is "$marker" "$(cat "$staging/secret")" "what the other node wrote ($first first)"
    unstage "$id"
done
delete "$id"

# Raw block: ciphertext below, clear above, and read-only where it is asked for.
id=$(create raw 96MiB block --parameter encryption=luks2)
stage_with right "$id" block || fail "raw block is not staged: $(cat stage.log)"
publish "$id" block
[ -b "$target" ] || fail "the target is no block device"
printf '%s' "$marker" | dd of="$target" bs=1M seek=5 conv=fsync,notrunc status=none
! grep -q "$marker" "$(image_of raw)" || fail "the image holds the plain text"
is "$marker" "$(dd if="$target" bs=1M skip=5 count=1 iflag=direct status=none | head -c ${#marker})" "what was written"
unpublish "$id"
unstage "$id"
nothing_is_open "after raw block"
stage_with right "$id" block
publish "$id" block
is "$marker" "$(dd if="$target" bs=1M skip=5 count=1 status=none | head -c ${#marker})" "what was written before"
unpublish "$id"
unstage "$id"
delete "$id"

nothing_is_open "at the end"
is '' "$(ls "$DIR/state/journal")" "the journal at the end"
! grep -rq 'a long passphrase' driver.log "$DIR/state" || fail "the passphrase is in the log or the journal"
stop_driver
unpool

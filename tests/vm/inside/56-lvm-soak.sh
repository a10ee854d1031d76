#!/bin/bash
# The lives of logical volumes, thick and thin (made, written, moved, grown, cloned, snapshotted, restored, deleted), while the driver is killed.
# about 300 s
set -euo pipefail
# shellcheck source=lib.bash
. "$(dirname "$0")/lib.bash"
# shellcheck source=soak.bash
. "$(dirname "$0")/soak.bash"
# shellcheck source=lvm.bash
. "$(dirname "$0")/lvm.bash"

# copied ID NAME ARGUMENT...: a volume made of another has its data, is written to, and goes.
copied() {
    local id=$1 name=$2 copy
    shift 2
    copy=$(again create "$name-copy" "${grown:-64}MiB" "$fs" --parameter deviceClass=thin "$@")
    up "$copy" "$name-copy"
    compare "$name-copy" "copy of $id: $*"
    dd if=/dev/urandom of="$(data_at "$name-copy")" bs=1M count=1 conv=notrunc,fsync status=none
    down "$copy" "$name-copy"
    again delete "$copy"
}

life() { # life NAME
    local name=$1 class=thin fs=ext4 grown='' id snapshot
    [ $((RANDOM % 4)) != 0 ] || class=thick
    [ $((RANDOM % 3)) != 0 ] || fs=block
    head -c 2M /dev/urandom >"$client/data"
    id=$(again create "$name" 64MiB "$fs" --parameter "deviceClass=$class")
    up "$id" "$name"
    write "$name"
    for _ in 1 2 3; do
        case $((RANDOM % 4)) in
        0) moved "$id" "$name" moved ;;
        1) grow "$id" "$name" ;;
        2)
            [ $class = thin ] || continue
            snapshot=$(again call create-snapshot --name "$name" "$id" | jq -er .snapshot.snapshot_id)
            copied "$id" "$name" --from-snapshot "$snapshot"
            again call delete-snapshot "$snapshot" >/dev/null
            ;;
        3)
            [ $class = thin ] || continue
            copied "$id" "$name" --from-volume "$id"
            ;;
        esac
    done
    moved "$id" "$name" "the end"
    down "$id" "$name"
    again delete "$id"
}

lvm_start 2 512M sparse
lvm_config
start_driver
soak lvm
is '' "$(ours)" "logical volumes at the end"
stop_driver
lvm_stop

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

# Copies are thin, as what they are made of.
copy_parameters=(--parameter deviceClass=thin)

life() { # life NAME
    local name=$1 class=thin fs=ext4 grown='' id
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
            restored "$id" "$name"
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

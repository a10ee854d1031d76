#!/bin/bash
# The lives of whole disks (taken, written, moved, wiped), while the driver is killed: no volume shows what an earlier one wrote, and in the end
# all disks are free again.
# about 200 s
set -euo pipefail
# shellcheck source=lib.bash
. "$(dirname "$0")/lib.bash"
# shellcheck source=soak.bash
. "$(dirname "$0")/soak.bash"

# One more than there are clients: one whose wipe was interrupted is free when its deletion is repeated.
modprobe scsi_debug dev_size_mb=96 "add_host=$((clients + 1))" per_host_store=1 num_tgts=1 max_luns=1 || skip "no scsi_debug in this kernel"
disks() { lsblk -dn -o NAME,MODEL | awk '$2 == "scsi_debug" { print "/dev/" $1 }'; }
there() { [ "$(disks | wc -l)" = $((clients + 1)) ] && udevadm settle; }
within 10 there

life() { # life NAME
    local name=$1 fs=ext4 id
    [ $((RANDOM % 2)) != 0 ] || fs=block
    head -c 2M /dev/urandom >"$client/data"
    id=$(again create "$name" 64MiB "$fs")
    up "$id" "$name"
    if [ $fs = block ]; then
        cmp -n $((64 << 20)) "$(data_at "$name")" /dev/zero || fail "$name shows what an earlier volume wrote"
    fi
    write "$name"
    for _ in 1 2 3; do
        case $((RANDOM % 3)) in
        0 | 1) moved "$id" "$name" moved ;;
        2) again call modify-volume "$id" --mutable-parameter onDelete=scrub >/dev/null ;;
        esac
    done
    moved "$id" "$name" "the end"
    down "$id" "$name"
    again delete "$id"
}

cat >config.yaml <<'END'
backends:
  - {name: disk, type: disk, classes: [{name: all, devices: ["/dev/disk/by-id/*"], model: "scsi_debug*"}]}
END
start_driver
free() { call get-capacity | jq -e .available_capacity; }
before=$(free)
soak disk
is "$before" "$(free)" "bytes of free disks at the end"
for disk in $(disks); do
    # Between the record and the table at the end.
    cmp -i $((2 << 20)):0 -n $((93 << 20)) "$disk" /dev/zero || fail "$disk shows what a volume wrote"
done
stop_driver
# udevd may still read a disk.
within 10 modprobe -r -q scsi_debug

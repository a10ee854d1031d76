#!/bin/bash
# A thin pool that fills up is extended, its data and its metadata, until its volume group has no more; then the log says what to do, and what
# was written is still there. The driver is killed in the midst of it.
# about 120 s
set -euo pipefail
# shellcheck source=lib.bash
. "$(dirname "$0")/lib.bash"
# shellcheck source=lvm.bash
. "$(dirname "$0")/lvm.bash"

pool_mib() { lvm lvs --noheadings --nosuffix --units m --devices "$disks" -o "$1" vg0/pool0 | tr -d ' ' | cut -d . -f 1; }
larger() { [ "$(pool_mib "$1")" -gt "$2" ]; }

lvm_start 1 768M sparse
printf 'backends:\n  - {name: lvm, type: lvm, classes: [{name: thin, volumeGroup: vg0, devices: [%s], thinPool: pool0, overcommit: 3, autoextend: {threshold: 60}}]}\n' \
    "$disks" >config.yaml
start_driver
id=$(create filling 700MiB block)
stage "$id" block
publish "$id" block
device=$(readlink -f "$target")
head -c 260M /dev/urandom >data

echo "--- data"
is 384 "$(pool_mib lv_size)" "MiB of the pool"
dd if=data of="$device" bs=1M count=200 oflag=direct conv=notrunc status=none
call get-capacity >/dev/null
is 384 "$(pool_mib lv_size)" "MiB of a pool that is used to 52 %"
kill_driver
dd if=data of="$device" bs=1M oflag=direct conv=notrunc status=none
start_driver
within 30 larger lv_size 384
within 30 grep -q 'extended.*of="data"' driver.log

echo "--- metadata"
# Thin devices that LVM does not know: each takes a block of the metadata. 4 MiB have 1024.
before=$(pool_mib lv_metadata_size)
for number in $(seq 700); do dmsetup message vg0-pool0-tpool 0 "create_thin $((1000000 + number))"; done
within 30 larger lv_metadata_size "$before"
grep -q 'extended.*of="metadata"' driver.log || fail "the log says nothing of it"

echo "--- metadata that cannot be extended does not keep the data from it"
printf '#!/bin/sh\ncase "$*" in *--poolmetadatasize*) echo refused >&2; exit 5 ;; esac\nexec /usr/sbin/lvm "$@"\n' >/usr/local/sbin/lvm
chmod +x /usr/local/sbin/lvm
before=$(pool_mib lv_size) metadata=$(pool_mib lv_metadata_size)
for number in $(seq 701 1600); do dmsetup message vg0-pool0-tpool 0 "create_thin $((1000000 + number))"; done
within 30 grep -q 'not extended.*of its metadata is used: .*refused' driver.log
head -c 440M /dev/urandom >data
dd if=data of="$device" bs=1M oflag=direct conv=notrunc status=none
within 30 larger lv_size "$before"
is "$metadata" "$(pool_mib lv_metadata_size)" "MiB of metadata"
rm /usr/local/sbin/lvm

echo "--- no more room"
while [ "$(pool_mib vg_free)" -ge 4 ]; do
    lvm lvcreate -qq -y --devices "$disks" -l 100%FREE -n others vg0 >/dev/null
done
within 30 grep -q 'not extended.*has no free extents; add a physical volume with vgextend' driver.log
cmp data <(head -c 440M "$device") || fail "the data changed"

for number in $(seq 1600); do dmsetup message vg0-pool0-tpool 0 "delete $((1000000 + number))"; done
unpublish "$id"
unstage "$id"
delete "$id"
stop_driver
lvm lvremove -qq -y --devices "$disks" vg0/others >/dev/null
lvm_stop

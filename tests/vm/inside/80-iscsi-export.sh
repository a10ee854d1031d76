#!/bin/bash
# A volume is exported to the node that it is attached to, and to nobody else; what is written over the wire is in the image; with
# the last detachment all of it is gone from the kernel.
# about 31 s
# in make test
set -euo pipefail
# shellcheck source=san.bash
. "$(dirname "$0")/san.bash"

san 'volumesPerNode: 2'
start_controller
id=$(create Vol_1 64MiB block)
is san:Vol_1 "$id" "the volume's id"
is '' "$(exported)" "what is exported before a volume is attached"
attach "$id" a
target=$(said a target)
group=$kernel/iscsi/$target/tpgt_1
[ -d "$group/acls/$(said a initiator)" ] || fail "no initiator is let in"
is 1 "$(cat "$group/enable")" "the target is enabled"
is 10010 "$(cat "$group"/attrib/{authentication,generate_node_acls,demo_mode_discovery,prod_mode_write_protect,cache_dynamic_acls} | tr -d '\n')" \
    "authentication, no demo mode, no discovery, write protection"
is "127.0.0.1:3260 127.0.0.2:3260" "$(ls "$group/np" | xargs)" "where it listens"
! su -s /bin/sh nobody -c "cat '$group/acls/$(said a initiator)/auth/password'" 2>/dev/null || fail "everybody may read the password"
is 600 "$(stat -c %a pool/images/exports/Vol_1.json)" "the record's mode"
cp a.context first.context
attach "$id" a
cmp a.context first.context || fail "a repeated attach answers something else"
password=$(said a chapPassword)
! grep -q "$password" driver.log || fail "the password is in the log"

log_in a
device=$(device_of a)
is "$(said a wwid)" "$(cat "/sys/block/$(basename "$device")/device/wwid")" "the device's identity"
is 67108864 "$(blockdev --getsize64 "$device")" "the device's size"
is 'write through' "$(cat "/sys/block/$(basename "$device")/queue/write_cache")" "the device's cache"
head -c 4M /dev/urandom >data
dd if=data of="$device" bs=1M seek=7 oflag=direct status=none
cmp data <(dd if="$(image_of Vol_1)" bs=1M skip=7 count=4 status=none) || fail "the image does not hold what was written"
before=$(stat -c %b "$(image_of Vol_1)")
blkdiscard "$device"
[ "$(stat -c %b "$(image_of Vol_1)")" -lt "$before" ] || fail "a discard frees nothing"
is '["a"]' "$(call list-volumes | jq -c '.entries[0].status.published_node_ids')" "the published nodes"

# Who is not let in.
refused "attached to node a" attach "$id" b
refused "attached to node a" call delete-volume "$id"
refused "read-only" attach "$id" a --read-only
[ -s "$(image_of Vol_1)" ] || fail "the image went"
log_out a
PASSWORD=wrong-password-1 log_in a && fail "a wrong password is let in" || is 24 $? "iscsiadm's status for a wrong password"
jq --arg initiator "$authority:node:b" '.initiator = $initiator' a.context >b.context
log_in b && fail "another initiator is let in" || [ $? = 24 ] || fail "iscsiadm said something else: $(cat log_in.out)"
iscsiadm -m iface -I stranger -o new >/dev/null
iscsiadm -m iface -I stranger -o update -n iface.initiatorname -v "$authority:node:stranger" >/dev/null
is '' "$(iscsiadm -m discovery -t st -I stranger -p 127.0.0.1:3260 2>/dev/null | grep "$target" || true)" "what a stranger discovers"
is 2 "$(iscsiadm -m discovery -t st -I a -p 127.0.0.1:3260 2>/dev/null | grep -c "$target")" "the portals that the node discovers"
iscsiadm -m iface -I stranger -o delete >/dev/null

# A node has as many as the configuration allows.
second=$(create second 64MiB block) third=$(create third 64MiB block)
attach "$second" a
refused "volumesPerNode is 2" attach "$third" a
detach "$second" a
attach "$third" a

# Readers share, and may not write.
refused "attached to node a" attach "$third" b --access multi-node-reader-only
detach "$third" a
attach "$third" a --access multi-node-reader-only
attach "$third" b --access multi-node-reader-only
[ "$(said a chapPassword)" != "$(said b chapPassword)" ] || fail "two nodes have one password"
log_in a
log_in b
for node in a b; do
    is 1 "$(cat "/sys/block/$(basename "$(device_of $node)")/ro")" "node $node may not write"
    ! dd if=/dev/zero of="$(device_of $node)" bs=4k count=1 oflag=direct status=none 2>/dev/null || fail "node $node writes"
done
log_out b
detach "$third" b
dd if="$(device_of a)" of=/dev/null bs=4k count=1 iflag=direct status=none || fail "node a lost it with node b"
log_out a
call controller-unpublish-volume "$third" >/dev/null
detach "$third" a
detach "$id" a
is '' "$(exported)" "what is exported after the last was detached"
stop_driver

# As in the controller's pod, which has no nodes of devices: a loop device of another program (the kubelet has one for each raw volume) keeps no
# volume from being attached, and one over the image does.
other=$(losetup --find --show data)
start_controller unshare --mount sh -c 'mount -t tmpfs tmpfs /dev && mknod -m 666 /dev/null c 1 3 && mknod -m 666 /dev/random c 1 8 && exec "$@"' pod
# Also on a full pool: others take whatever room is given back.
fills() { dd if=/dev/zero bs=4k oflag=append conv=notrunc,fsync of=pool/filler status=none 2>/dev/null || true; }
fallocate -l $(($(stat -f -c '%a * %S' pool) - (8 << 20))) pool/filler
fills
[ "$(stat -f -c %a pool/images)" -lt 16 ] || fail "the pool is not full"
for node in a b a; do
    attach "$id" "$node"
    fills
    detach "$id" "$node"
    fills
done
rm pool/filler
own=$(losetup --find --show "$(image_of Vol_1)")
refused "$own shows its image" attach "$id" a
losetup -d "$own"
losetup -d "$other"
for volume in "$id" "$second" "$third"; do delete "$volume"; done
nothing_left
stop_driver
unpool

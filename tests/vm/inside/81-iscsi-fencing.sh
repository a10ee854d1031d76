#!/bin/bash
# A node that hangs keeps its session and an open device. Once the controller has detached it, it can no longer write, and what the
# next node wrote stays: also where a node cannot be reached.
# about 19 s
# in make test
set -euo pipefail
# shellcheck source=san.bash
. "$(dirname "$0")/san.bash"

san
start_controller
id=$(create moved 64MiB block)
attach "$id" a
log_in a
old=$(device_of a)
# Node a writes on and on, at 32 MiB, and has the device open all the time.
(
    exec 9<>"$old"
    touch writing
    while dd if=/dev/zero of=/dev/fd/9 bs=64k count=16 seek=512 oflag=direct conv=notrunc status=none 2>>writer.err; do :; done
    touch refused
    sleep 60
) &
writer=$!
within 10 test -e writing
sleep 1
refused "attached to node a" attach "$id" b
start=$(date +%s%N)
detach "$id" a
echo "FIGURE: fencing: $((($(date +%s%N) - start) / 1000000)) ms to detach a node that writes"
is '' "$(exported)" "what is exported after the detachment"
attach "$id" b
log_in b
new=$(device_of b)
[ "$old" != "$new" ] || fail "both nodes have one device"
head -c 1M /dev/urandom >data
for place in 0 32 63; do dd if=data of="$new" bs=1M seek=$place oflag=direct status=none; done

# Node a tries to come back with what it knows, and cannot.
session=$(session_of a)
[ -n "$session" ] || fail "node a gave its session up: this test would prove nothing"
[ "$(cat "$session/state")" != LOGGED_IN ] || fail "node a is logged in"
grep -q "No active" "$(target_of moved)/tpgt_1/acls/"*/info && fail "node b has no session"
is 67108864 "$(blockdev --getsize64 "$old")" "the size that node a knows: it was never shown another disk"
kill -0 $writer
log_out a
within 20 test -e refused
cp a.context stale.context
log_in a && fail "node a is let in with what it knew before" || true
for place in 0 32 63; do cmp data <(dd if="$(image_of moved)" bs=1M skip=$place count=1 status=none) || fail "what node b wrote at $place MiB changed"; done

# A node whose network is away is shut out as well.
ip link set lo down
timeout 60 longshore call --endpoint "$endpoint" controller-unpublish-volume "$id" --node b || fail "a node that cannot be reached is not detached"
ip link set lo up
is '' "$(exported)" "what is exported after the second detachment"
log_out b

delete "$id"
nothing_left
kill $writer 2>/dev/null || true
stop_driver
unpool

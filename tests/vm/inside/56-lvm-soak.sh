#!/bin/bash
# Several clients live volumes' lives at once (made, written, moved, grown, cloned, snapshotted, restored, deleted) while the driver is killed
# every few seconds. A client repeats a call until it succeeds, as sidecars and the kubelet do. No byte changes, no call is refused for good,
# and nothing is left. Set by environment: LASTS (120 seconds), CLIENTS (3).
# about 300 s
set -euo pipefail
# shellcheck source=lib.bash
. "$(dirname "$0")/lib.bash"
# shellcheck source=lvm.bash
. "$(dirname "$0")/lvm.bash"

lasts=${LASTS:-120} clients=${CLIENTS:-3}

# again COMMAND...: until it succeeds; prints what it printed then.
again() {
    local end=$((SECONDS + 300))
    until "$@" >"$client/out" 2>"$client/err"; do
        if grep -q 'INVALID_ARGUMENT\|NOT_FOUND\|ALREADY_EXISTS\|OUT_OF_RANGE\|DATA_LOSS\|UNIMPLEMENTED\|RESOURCE_EXHAUSTED' "$client/err"; then
            fail "refused for good: $*: $(cat "$client/err")" >&2
        fi
        [ $SECONDS -lt $end ] || fail "never succeeded: $*: $(cat "$client/err")" >&2
        sleep 0.2
    done
    echo >>"$client/calls"
    cat "$client/out"
}

# up ID NAME and down ID NAME: staged and published, and the inverse.
up() {
    again stage "$1" "$fs" "-$2"
    again publish "$1" "$fs" "-$2"
}
down() {
    again unpublish "$1" "-$2"
    again unstage "$1" "-$2"
}
# Where the data of a volume is: a file, or the device itself.
data_at() { if [ "$fs" = block ]; then echo "$target-$1"; else echo "$target-$1/data"; fi; }
write() { dd if="$client/data" of="$(data_at "$1")" bs=1M conv=notrunc,fsync status=none; }
# What is read is what is on the disk: a volume is compared after it was staged anew.
compare() {
    cmp -n 2097152 "$client/data" "$(data_at "$1")" || fail "the data of $1 changed ($2)"
    echo >>"$client/compared"
}

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
        0)
            down "$id" "$name"
            up "$id" "$name"
            compare "$name" moved
            ;;
        1)
            grown=96
            again call expand-volume "$id" --size 96MiB >/dev/null
            again call node-expand-volume "$id" --path "$target-$name" --staging "$staging-$name" --size 96MiB >/dev/null
            ;;
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
    down "$id" "$name"
    up "$id" "$name"
    compare "$name" "the end"
    down "$id" "$name"
    again delete "$id"
}

lvm_start 2 512M sparse
lvm_config
start_driver
end=$((SECONDS + lasts)) running=()
for number in $(seq "$clients"); do
    (
        client=$DIR/client-$number
        mkdir "$client"
        touch "$client/calls" "$client/compared"
        for ((round = 1; SECONDS < end; round++)); do life "$number-$round"; done
    ) &
    running+=($!)
done
kills=0
while [ $SECONDS -lt $end ]; do
    sleep $((3 + RANDOM % 6))
    kill_driver
    kills=$((kills + 1))
    launch_driver
done
for client in "${running[@]}"; do wait "$client" || fail "a client failed: $(tail -n 5 "$DIR"/client-*/err)"; done
echo "FIGURE: lvm soak: $lasts seconds, $clients clients, $(cat client-*/calls | wc -l) calls, $kills kills," \
    "$(cat client-*/compared | wc -l) contents compared"
[ "$kills" -gt 0 ] && [ -s client-1/compared ] || fail "nothing was killed or compared"
within 20 driver_ready
is '' "$(ours)" "logical volumes at the end"
is '' "$(find "$DIR/state/journal" -type f)" "the journal at the end"
is '' "$(grep "$DIR/kubelet" /proc/mounts)" "mounts at the end"
is '' "$(grep -h 'panicked\|code=Internal' driver.log | head -3)" "panics and internal errors in the log"
stop_driver
lvm_stop

# A soak: several clients live volumes' lives at once, while the driver is killed every few seconds. A client repeats a call until it succeeds, as
# sidecars and the kubelet do. No byte changes, no call is refused for good, and nothing is left. The test says what a life is; what is set by
# environment: LASTS (120 seconds), CLIENTS (3).
# shellcheck shell=bash

lasts=${LASTS:-120} clients=${CLIENTS:-3}
# What no repeat changes.
for_good='INVALID_ARGUMENT|NOT_FOUND|ALREADY_EXISTS|OUT_OF_RANGE|DATA_LOSS|UNIMPLEMENTED|RESOURCE_EXHAUSTED'

# again COMMAND...: until it succeeds; prints what it printed then.
again() {
    local end=$((SECONDS + 300))
    until "$@" >"$client/out" 2>"$client/err"; do
        if grep -Eq "$for_good" "$client/err"; then
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
moved() { # moved ID NAME WHEN
    down "$1" "$2"
    up "$1" "$2"
    compare "$2" "$3"
}
grow() { # grow ID NAME
    local answer
    grown=96
    answer=$(again call expand-volume "$1" --size 96MiB)
    [ "$(jq .node_expansion_required <<<"$answer")" = true ] || return 0
    again call node-expand-volume "$1" --path "$target-$2" --staging "$staging-$2" --size 96MiB >/dev/null
}

# What copies are made with, and what else is looked at of one, by its name: the test may say.
copy_parameters=()
look_at_copy() { :; }
# copied ID NAME ARGUMENT...: a volume made of another has its data, is written to, and goes.
copied() {
    local id=$1 name=$2 copy
    shift 2
    copy=$(again create "$name-copy" "${grown:-64}MiB" "$fs" "${copy_parameters[@]}" "$@")
    up "$copy" "$name-copy"
    compare "$name-copy" "copy of $id: $*"
    look_at_copy "$name-copy"
    dd if=/dev/urandom of="$(data_at "$name-copy")" bs=1M count=1 conv=notrunc,fsync status=none
    down "$copy" "$name-copy"
    again delete "$copy"
}
restored() { # restored ID NAME: the same by way of a snapshot
    local snapshot
    snapshot=$(again call create-snapshot --name "$2" "$1" | jq -er .snapshot.snapshot_id)
    copied "$1" "$2" --from-snapshot "$snapshot"
    again call delete-snapshot "$snapshot" >/dev/null
}

# soak WHAT: `life NAME` again and again in each client, with the driver running, until the time is over.
soak() {
    local end=$((SECONDS + lasts)) running=() kills=0 number client
    for number in $(seq "$clients"); do
        (
            client=$DIR/client-$number
            mkdir "$client"
            touch "$client/calls" "$client/compared"
            for ((round = 1; SECONDS < end; round++)); do life "$number-$round"; done
        ) &
        running+=($!)
    done
    while [ $SECONDS -lt $end ]; do
        sleep $((3 + RANDOM % 6))
        kill_driver
        kills=$((kills + 1))
        launch_driver
    done
    for client in "${running[@]}"; do wait "$client" || fail "a client failed: $(tail -n 5 "$DIR"/client-*/err)"; done
    echo "FIGURE: $1 soak: $lasts seconds, $clients clients, $(cat client-*/calls | wc -l) calls, $kills kills," \
        "$(cat client-*/compared | wc -l) contents compared"
    [ "$kills" -gt 0 ] && [ -s client-1/compared ] || fail "nothing was killed or compared"
    within 20 driver_ready
    local left
    left=$(find "$DIR/state/journal" -type f)
    is '' "$left" "the journal at the end"
    left=$(awk -v at="$DIR/kubelet" 'index($2, at) == 1' /proc/mounts)
    is '' "$left" "mounts at the end"
    is '' "$(grep -h 'panicked\|code=Internal' driver.log | head -3)" "panics and internal errors in the log"
}

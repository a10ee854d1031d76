#!/bin/bash
# The controller is killed before each step of an attachment and of a detachment, and each step fails: the repeated call, by the same
# or by another process, ends in the right state, and a failure that was rolled back left nothing.
# about 32 s
set -euo pipefail
# shellcheck source=san.bash
. "$(dirname "$0")/san.bash"

san
export LONGSHORE_FAULT_FILE=$DIR/order
order=0
fault() { echo "$((order += 1)) $1" >"$LONGSHORE_FAULT_FILE"; }
fault crash@0
start_controller
id=$(create a 64MiB block)
admitted() { ls "$(target_of a)/tpgt_1/acls" 2>/dev/null | sed 's/.*://' | xargs; }
recorded() { jq -r '.nodes | keys[]' pool/images/exports/a.json 2>/dev/null | xargs; }
at_rest() { is '' "$(exported)$(recorded)" "what is exported $1"; }
in_use() {
    is "a a" "$(admitted) $(recorded)" "who is let in, and who is recorded, $1"
    [ "$(cat "$(target_of a)/tpgt_1/enable")" = 1 ] || fail "the target is not enabled $1"
    is 67108864 "$(sed -n 's/.*  Size: \([0-9]*\).*/\1/p' "$kernel"/core/fileio_*/longshore-a/info)" "the disk's size $1"
}

kills=0
# killed CALL AFTER: kills the controller before each step of the call, and repeats it.
killed() {
    local call=$1 after=$2 step=0
    while :; do
        fault "crash@$((step += 1))"
        if $call; then break; fi
        wait "$driver_pid" 2>/dev/null || true
        kills=$((kills + 1))
        fault crash@0
        start_controller
        $call || fail "the repeat fails after a kill before step $step of $call"
        "$after" "after a kill before step $step of $call"
        undo
    done
    [ $step -gt 3 ] || fail "only $step steps in $call"
}
failures=0
# failing CALL AFTER BEFORE: each step fails once. A final error (exit status 1) must have left what was BEFORE.
failing() {
    local call=$1 after=$2 before=$3 step=0 status
    while :; do
        fault "EIO@$((step += 1))"
        status=0
        $call 2>call.err || status=$?
        [ $status != 0 ] || break
        failures=$((failures + 1))
        [ $status != 1 ] || "$before" "after a final failure at step $step of $call"
        fault crash@0
        $call || fail "the repeat fails after a failure at step $step of $call"
        "$after" "after a failure at step $step of $call"
        undo
    done
    [ $step -gt 3 ] || fail "only $step steps in $call"
}

attaching() { call controller-publish-volume "$id" --node a --block >/dev/null 2>call.err; }
detaching() { call controller-unpublish-volume "$id" --node a >/dev/null 2>call.err; }

undo() { fault crash@0 && detaching && at_rest "after the undoing"; }
killed attaching in_use
in_use "at last" && undo
failing attaching in_use at_rest
in_use "at last"
undo() { fault crash@0 && attaching && in_use "after the undoing"; }
killed detaching at_rest
at_rest "at last" && undo
failing detaching at_rest in_use
at_rest "at last"
fault crash@0

# A call that hangs holds up its own volume only, also while a pool is away whose records are still to be read.
other=$(create b 64MiB block)
sed -i "s|/pool/images}|&, {name: spare, path: $DIR/spare}|" config.yaml
mkdir spare
stop_driver
start_controller
stop_driver
mv spare away
longshore serve --mode controller --endpoint "$endpoint" --node-id vm --state-dir "$DIR/state" --config config.yaml >>driver.log 2>&1 &
driver_pid=$!
answers() { call get-plugin-info >/dev/null 2>&1; }
within 20 answers
call probe >/dev/null || fail "not ready, though one of two pools is there"
grep -q 'cannot be used in full.*spare' driver.log || fail "no pool is away: this would prove nothing"
fault hang@1
call controller-publish-volume "$id" --node a --block >/dev/null 2>&1 &
hung=$!
hangs() { grep -q 'fault: hang at step' driver.log; }
within 20 hangs
fault crash@0
call --timeout 15s controller-publish-volume "$other" --node a --block >/dev/null || fail "a volume waits for another's call that hangs"
kill_driver
wait $hung || true
mv away spare
start_controller
detaching
call controller-unpublish-volume "$other" --node a >/dev/null
delete "$other"
delete "$id"
nothing_left
stop_driver
unpool
echo "FIGURE: exports: $kills kills at a step, $failures failed steps"

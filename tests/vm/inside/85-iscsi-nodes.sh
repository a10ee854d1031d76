#!/bin/bash
# One controller and two nodes, each a driver process of its own: a volume is written on one, moved, read on the other; grows under
# writes; a node that hangs is shut out, also from its mounted file system; the target server loses power under a mounted one.
# about 18 s
set -euo pipefail
# shellcheck source=san.bash
. "$(dirname "$0")/san.bash"

san
start_controller
echo 'backends: [{name: san, type: iscsi}]' >node.yaml
node_pids=()
ready() { [ -S "$1.sock" ] && on "$1" probe >/dev/null 2>&1; }
on() {
    local node=$1
    shift
    longshore call --endpoint "unix://$DIR/$node.sock" --json "$@"
}
for node in a b; do
    mkdir -p "$DIR/$node/kubelet"
    longshore serve --mode node --endpoint "unix://$DIR/$node.sock" --node-id $node --state-dir "$DIR/$node/state" \
        --kubelet-dir "$DIR/$node/kubelet" --config node.yaml >>$node.log 2>&1 &
    node_pids+=($!)
    within 20 ready $node
done
trap 'set +e; kill -KILL "${node_pids[@]}" 2>/dev/null; umount -l "$DIR"/*/kubelet/* 2>/dev/null; clean_up' EXIT

at() { echo "$DIR/$1/kubelet/$2"; }
# use NODE ID: attached, staged and published there, as ext4. leave NODE ID, and its parts.
use() {
    attach "$2" "$1" --fs ext4 && stage_on "$1" "$2" && on "$1" publish-volume "$2" --staging "$(at "$1" staging)" \
        --target "$(at "$1" target)" --fs ext4 "${volume_context[@]}" >/dev/null
}
stage_on() {
    local context
    mapfile -t context < <(jq -r 'to_entries[] | "--publish-context", "\(.key)=\(.value)"' "$1.context")
    mkdir -p "$(at "$1" staging)"
    on "$1" stage-volume "$2" --staging "$(at "$1" staging)" --fs ext4 "${volume_context[@]}" "${context[@]}" >/dev/null
}
take_off() {
    on "$1" unpublish-volume "$2" --target "$(at "$1" target)" >/dev/null && on "$1" unstage-volume "$2" --staging "$(at "$1" staging)" >/dev/null
}
attach() {
    local id=$1 node=$2
    shift 2
    call controller-publish-volume "$id" --node "$node" "$@" | jq -e .publish_context >"$node.context"
}

id=$(create moved 64MiB ext4)
mapfile -t volume_context < <(call get-volume "$id" | jq -r '.volume.volume_context | to_entries[] | "--context", "\(.key)=\(.value)"')
use a "$id"
is ext4 "$(findmnt -n -o FSTYPE "$(at a target)")" "the file system on node a"
head -c 8M /dev/urandom >data
cp data "$(at a target)/data"
take_off a "$id"
is '' "$(iscsi_sessions)" "sessions after unstage"
refused "attached to node a" attach "$id" b --fs ext4
detach "$id" a
start=$(date +%s%N)
use b "$id"
cmp data "$(at b target)/data" || fail "node b reads something else"
echo "FIGURE: iscsi: $((($(date +%s%N) - start) / 1000000)) ms to attach, stage and publish"
refused "publish_context\|attached to" on a stage-volume "$id" --staging "$(at a staging)" --fs ext4 "${volume_context[@]}"

# Growth under writes.
(
    line=0
    until [ -e stop ]; do
        echo "line $((line += 1))" >>"$(at b target)/during" && sync -d "$(at b target)/during" || exit 1
        echo $line >lines
    done
) &
writer=$!
within 10 test -s lines
before=$(size_of "$(at b target)")
call expand-volume "$id" --size 128MiB >/dev/null
on b node-expand-volume "$id" --path "$(at b target)" --staging "$(at b staging)" --size 128MiB >/dev/null
[ "$(size_of "$(at b target)")" -gt $((before * 3 / 2)) ] || fail "it did not grow: $before and $(size_of "$(at b target)")"

# Power is lost under it. What was acknowledged stays, and writing continues by itself.
kill_driver
power_off
seen=$(cat lines)
start_controller
continues() { [ "$(cat lines)" -gt $((seen + 2)) ]; }
within 60 continues
touch stop
wait $writer || fail "a write failed"
is "$(seq -f 'line %g' "$(cat lines)" | sha256sum)" "$(sha256sum <"$(at b target)/during")" "what was written meanwhile"

# Node b hangs, with its file system mounted, and is shut out; node a takes over.
# Its initiator gives up after two seconds.
echo 2 | tee /sys/class/iscsi_session/session*/recovery_tmo >/dev/null
exec 8>"$(at b target)/open"
sync -f "$(at b target)"
detach "$id" b
use a "$id"
cmp data "$(at a target)/data" || fail "node a reads something else"
is "$(seq -f 'line %g' "$(cat lines)" | sha256sum)" "$(sha256sum <"$(at a target)/during")" "what node b had written"
echo 'by a' >"$(at a target)/mark"
sync -f "$(at a target)"
(echo 'by b' >&8 && sync -d "$(at b target)/open") 2>/dev/null &
hung=$!
head -c 4M /dev/urandom >"$(at a target)/more"
cp "$(at a target)/more" more
take_off a "$id"
detach "$id" a
attach "$id" a --fs ext4
stage_on a "$id"
is 'by a' "$(cat "$(at a staging)/mark")" "what node a wrote"
cmp more "$(at a staging)/more" || fail "what node a wrote changed"
is 0 "$(stat -c %s "$(at a staging)/open")" "the size of what node b wanted to write"
on a unstage-volume "$id" --staging "$(at a staging)" >/dev/null
detach "$id" a
# Attached to node b again, it is not used there by what node b has cached.
attach "$id" b --fs ext4
mapfile -t context < <(jq -r 'to_entries[] | "--publish-context", "\(.key)=\(.value)"' b.context)
refused "detached from this node meanwhile" stage_on b "$id"
refused "detached from this node meanwhile" on b publish-volume "$id" --staging "$(at b staging)" --target "$(at b other)" --fs ext4 \
    "${volume_context[@]}" "${context[@]}"
# Node b comes to itself, and lets go of what it had.
exec 8>&-
! wait $hung || fail "the write of node b was acknowledged"
take_off b "$id" || take_off b "$id" || fail "node b cannot let go"
is '' "$(iscsi_sessions)" "sessions at the end"
stage_on b "$id"
is 'by a' "$(cat "$(at b staging)/mark")" "what node b finds"
on b unstage-volume "$id" --staging "$(at b staging)" >/dev/null
detach "$id" b
delete "$id"

# Of what nobody has written to, little is read before it is formatted; of what was written to, all, also between the samples.
id=$(create large 3GiB ext4)
attach "$id" a --fs ext4
is true "$(said a blank)" "what a node gets of a volume that nobody has written to"
stage_on a "$id"
disk=$(findmnt -n -o SOURCE "$(at a staging)")
read -r _ _ sectors _ <"/sys/block/${disk##*/}/stat"
[ $((sectors >> 11)) -lt 512 ] || fail "$((sectors >> 11)) MiB of it were read"
echo "FIGURE: iscsi blank: $((sectors >> 11)) MiB read of 3072 MiB before the first mount"
on a unstage-volume "$id" --staging "$(at a staging)" >/dev/null
detach "$id" a
attach "$id" a --fs ext4
is null "$(jq -r .blank a.context)" "what a node gets of a volume that is in use"
detach "$id" a
delete "$id"
id=$(create dirty 3GiB ext4)
printf x | dd of="$(image_of dirty)" bs=1 seek=$(((100 << 20) + 123457)) conv=notrunc status=none
attach "$id" a --fs ext4
is null "$(jq -r .blank a.context)" "what a node gets of a volume that was written to"
refused 'there is data at' stage_on a "$id"
detach "$id" a
delete "$id"
nothing_left
kill -TERM "${node_pids[@]}"
wait "${node_pids[@]}" || fail "a node ended with status $?"
stop_driver
unpool

#!/bin/bash
# A server that hangs does no harm: beside its volumes twenty others stage and publish as fast as before, anyone who asks about it is
# answered in seconds, its volumes can be taken down, and when it is back, everything continues by itself. Then what is mounted goes
# stale, and is mounted anew.
#
# The server has a network namespace of its own and two addresses; the cable of one is pulled. It is spoken to as version 3 by the one and as
# 4.2 by the other, since a client of version 4 sees that both are one.
# about 90 s
set -euo pipefail
# shellcheck source=lib.bash
. "$(dirname "$0")/lib.bash"
# shellcheck source=nfs.bash
. "$(dirname "$0")/nfs.bash"

here=$(cd "$(dirname "$0")" && pwd)
dead=10.99.1.2
alive=10.99.2.2
ip netns add server
for number in 1 2; do
    ip link add "near$number" type veth peer name "far$number" netns server
    ip addr add "10.99.$number.1/24" dev "near$number"
    ip link set "near$number" up
    ip -n server addr add "10.99.$number.2/24" dev "far$number"
    ip -n server link set "far$number" up
    # So that what is sent to a dead server is lost, and not refused for want of its address.
    mac=$(ip -n server -j link show "far$number" | jq -r '.[0].address')
    ip neigh replace "10.99.$number.2" lladdr "$mac" dev "near$number" nud permanent
done
ip -n server link set lo up
truncate -s 1G data.img
mkfs.xfs -q data.img
mkdir data
mount -o loop data.img data
mkdir -p data/tenant/{1,2,3}
mkfifo server-ends
cat >server.sh <<SERVER
set -euo pipefail
DIR=$DIR
. "$here/lib.bash"
. "$here/nfs.bash"
nfs_serve data
exportfs -o rw,sync,no_root_squash,no_subtree_check,fsid=1,insecure 10.99.0.0/16:$DIR/data
touch "$DIR/serving"
read -r line <"$DIR/server-ends" || true
SERVER
ip netns exec server bash server.sh >server.log 2>&1 &
server=$!
end() {
    local status=$?
    trap - EXIT
    [ $status = 0 ] || {
        cat server.log
        kill -KILL "$driver_pid" 2>/dev/null || true
        findmnt -n -r -o TARGET | grep "^$DIR/kubelet" | tac | while read -r place; do umount -l "$place"; done
    }
    ip -n server link set far1 up
    { findmnt -n -r -t nfs,nfs4 -o TARGET || true; } | while read -r place; do umount -l "$place"; done
    echo end >server-ends
    wait $server || true
    ip netns del server
    umount /run/netns
    ip link del near1 2>/dev/null || true
    ip link del near2 2>/dev/null || true
    for place in data pool; do ! mountpoint -q "$place" || within 10 umount "$place"; done
    exit $status
}
trap end EXIT
within 60 test -e serving

pool xfs
printf '  - {name: nfs, type: nfs}\n' >>config.yaml
start_driver
mkdir -p kubelet/s/older kubelet/t # the last as long as nothing stale lies there
attributes() { echo --context server="$1" --context share="$DIR/data" --context subDir="tenant/$2"; }
on_dead="$(attributes $dead 1) --mount-flag nfsvers=4.2"
# shellcheck disable=SC2086
nfs_stage() { [ "$1" = older ] || mkdir -p "kubelet/s/$1" && call stage-volume "$1" --staging "$DIR/kubelet/s/$1" $2 >/dev/null; }
# shellcheck disable=SC2086
nfs_publish() { call publish-volume "$1" --staging "$DIR/kubelet/s/$1" --target "$DIR/kubelet/t/$1" $2 >/dev/null; }
nfs_unpublish() { call unpublish-volume "$1" --target "$DIR/kubelet/t/$1" >/dev/null; }
nfs_unstage() { call unstage-volume "$1" --staging "$DIR/kubelet/s/$1" >/dev/null; }

for name in one two; do
    nfs_stage $name "$on_dead"
    nfs_publish $name "$on_dead"
done
echo before >kubelet/t/one/file

# Twenty others: images of this node, and directories of the address that lives.
for number in $(seq 10); do create "local$number" 16MiB ext4 >/dev/null; done
others() { # others: stages and publishes all of them, and takes them down again
    local number flags
    for number in $(seq 10); do
        flags="$(attributes $alive 2) --mount-flag nfsvers=3 --mount-flag nolock"
        nfs_stage "share$number" "$flags"
        nfs_publish "share$number" "$flags"
        stage "image:local$number" ext4 "-$number"
        publish "image:local$number" ext4 "-$number"
    done
    for number in $(seq 10); do
        nfs_unpublish "share$number"
        nfs_unstage "share$number"
        unpublish "image:local$number" "-$number"
        unstage "image:local$number" "-$number"
    done
}
# How many milliseconds the others take while four clients ask about the volume "one" all the time. The clients' own processor time is the
# same with a server that answers and with a dead one: what differs between two measurements is the server.
others_beside_askers() {
    local begin end askers=()
    rm -f asked
    for _ in 1 2 3 4; do
        (until [ -e asked ]; do
            sleep 4 & # longer than the answer about a dead server takes: both measurements see as many calls
            call node-get-volume-stats one --path "$DIR/kubelet/t/one" >/dev/null 2>&1 || true
            wait
        done) &
        askers+=($!)
    done
    begin=$(date +%s%3N)
    others
    end=$(date +%s%3N)
    touch asked
    wait "${askers[@]}"
    took=$((end - begin))
}
for number in $(seq 10); do # formats what is blank
    stage "image:local$number" ext4 "-$number"
    unstage "image:local$number" "-$number"
done
others_beside_askers
alive_took=$took

ip -n server link set far1 down
# What a pod does hangs; so does anyone who looks at the staging path with his own eyes.
(echo while >>kubelet/t/one/file; sync -d kubelet/t/one/file) &
writer=$!
# answered WHAT CODE COMMAND...: within seconds, and with this code.
answered() {
    local what=$1 code=$2 took
    shift 2
    took=$SECONDS
    if call "$@" >answer 2>&1; then fail "$what: done, with a dead server"; fi
    grep -q "$code" answer || fail "$what: not $code but $(cat answer)"
    took=$((SECONDS - took))
    [ $took -lt 15 ] || fail "$what took $took s"
}
# shellcheck disable=SC2086
{
    answered 'statistics' UNAVAILABLE node-get-volume-stats one --path "$DIR/kubelet/t/one"
    answered 'a repeated stage' UNAVAILABLE stage-volume one --staging "$DIR/kubelet/s/one" $on_dead
    answered 'a further target' UNAVAILABLE publish-volume one --staging "$DIR/kubelet/s/one" --target "$DIR/kubelet/t/more" $on_dead
    mkdir -p kubelet/s/new kubelet/s/newer
    answered 'a further volume' UNAVAILABLE stage-volume new --staging "$DIR/kubelet/s/new" $on_dead
    answered 'another mount' 'UNAVAILABLE\|DEADLINE_EXCEEDED' --timeout 60s stage-volume newer --staging "$DIR/kubelet/s/newer" $on_dead \
        --mount-flag nconnect=2
}
call node-get-volume-health one >answer
grep -q ServerUnreachable answer || fail "its health: $(cat answer)"
others_beside_askers
ratio=$(awk "BEGIN { printf \"%.2f\", $took / $alive_took }")
echo "FIGURE: nfs dead server: 20 other volumes, $alive_took milliseconds beside a server that answers, $took milliseconds beside a dead one, $ratio times as long"
[ "$took" -lt $((2 * alive_took + 5000)) ] || fail "others take $took ms beside a dead server, $alive_took ms beside one that answers"
hung=$({ grep -l '^State:.D' /proc/"$driver_pid"/task/*/status 2>/dev/null || true; } | wc -l)
[ "$hung" -le 1 ] || fail "$hung threads of the driver hang in the kernel"

# Its volumes can be taken down: one is, the other stays.
nfs_unpublish two
nfs_unstage two
is '' "$(awk -v dir="$DIR/kubelet" '$5 ~ dir "/[st]/two" { print $5 }' /proc/self/mountinfo)" "mounts of what was taken down"

# It is back. What hung continues, and nobody did anything.
ip -n server link set far1 up
finished() { ! kill -0 $writer 2>/dev/null; }
within 90 finished
wait $writer || fail "what a pod wrote meanwhile failed"
is 'before while' "$(tr '\n' ' ' <data/tenant/1/file | sed 's/ $//')" "what the pod wrote"
fine() { call node-get-volume-stats one --path "$DIR/kubelet/t/one" >/dev/null 2>&1; }
within 30 fine
call node-get-volume-health one >answer
! grep -q ServerUnreachable answer || fail "its health, when it is back: $(cat answer)"
call unstage-volume new --staging "$DIR/kubelet/s/new" >/dev/null
call unstage-volume newer --staging "$DIR/kubelet/s/newer" >/dev/null

# Stale: the server forgets what it had given out (another file system under the same name). By version 3, which has no names.
old="$(attributes $alive 3) --mount-flag nfsvers=3 --mount-flag nolock --mount-flag noac"
for name in old older; do
    nfs_stage $name "$old"
    nfs_publish $name "$old"
done
echo kept >kubelet/t/old/file
ip netns exec server exportfs -u "10.99.0.0/16:$DIR/data"
ip netns exec server exportfs -u "127.0.0.1:$DIR/data"
ip netns exec server exportfs -o rw,sync,no_root_squash,no_subtree_check,fsid=7,insecure "10.99.0.0/16:$DIR/data"
if cat kubelet/t/old/file >/dev/null 2>answer; then fail "the share did not go stale: this test would prove nothing"; fi
grep -q Stale answer || fail "$(cat answer)"
sleep 1.1 # what was answered a moment ago is good for a second
nfs_publish old "$old" # the kubelet publishes again
is kept "$(cat kubelet/t/old/file)" "what the target shows when it was published again"
nfs_stage older "$old"
nfs_publish older "$old"
is kept "$(cat kubelet/t/older/file)" "what another volume shows that was staged again"
# Stale once more, and the server has not loaded its exports yet: what is published meanwhile is refused, and repeated later. What is
# published already can be unpublished all the time.
again() { # shellcheck disable=SC2086
    call publish-volume old --staging "$DIR/kubelet/s/old" --target "$DIR/kubelet/t/$1" $old
}
ip netns exec server exportfs -u "10.99.0.0/16:$DIR/data"
sleep 1.1
if again again >answer 2>&1; then fail "published without an export"; fi
if again again >answer 2>&1; then fail "published without an export"; fi
! grep -q 'not staged' answer || fail "the stage is forgotten: $(cat answer)"
nfs_unpublish older
is '' "$(awk '$5 ~ "/kubelet/t/older" { print $5 }' /proc/self/mountinfo)" "mounts of what was unpublished without its server"
ip netns exec server exportfs -o rw,sync,no_root_squash,no_subtree_check,fsid=9,insecure "10.99.0.0/16:$DIR/data"
sleep 1.1
again again >/dev/null
is kept "$(cat kubelet/t/again/file)" "what a target shows that was published when the server was back"
# An administrator unmounts the share.
awk '$5 ~ "/state/nfs/" { print $5 }' /proc/self/mountinfo | while read -r share; do umount -l "$share"; done
again third >/dev/null
is kept "$(cat kubelet/t/third/file)" "what a target shows that was published after its share was unmounted by hand"
for target in again third; do call unpublish-volume old --target "$DIR/kubelet/t/$target" >/dev/null; done
nfs_publish older "$old"
for name in old older one; do
    nfs_unpublish $name
    nfs_unstage $name
done
for number in $(seq 10); do delete "image:local$number"; done
is '' "$(awk '$5 ~ "/state/nfs/" { print $5 }' /proc/self/mountinfo)" "mounts of shares at the end"
is '' "$(find state/nfs/nfs state/journal -mindepth 1)" "what the driver keeps at the end"
stop_driver
unpool

#!/bin/bash
# NFS on a node: static volumes on a real server, one kernel mount for all of them, every version, bad input, a killed driver.
# about 56 s
# in make test
set -euo pipefail
# shellcheck source=lib.bash
. "$(dirname "$0")/lib.bash"
# shellcheck source=nfs.bash
. "$(dirname "$0")/nfs.bash"

nfs_image xfs data
mkdir -p data/tenant data/secret
nfs_serve data
printf 'backends:\n  - {name: nfs, type: nfs, forbidMountOptions: [nolock]}\n' >config.yaml
start_driver

# shares: the kernel's mounts of shares that the driver made; shown: what is mounted of NFS elsewhere.
shares() { awk '$5 ~ "/state/nfs/" { print $5 }' /proc/self/mountinfo; }
shown() { awk -v dir="$DIR/kubelet" 'index($5, dir) == 1 { print $5 }' /proc/self/mountinfo; }
nothing_left() {
    is '' "$(shares)$(shown)" "NFS mounts after $1"
    is '' "$(find state/nfs/nfs state/journal -mindepth 1)" "what the driver keeps after $1"
}
by_hand() { # by_hand SUBDIR: the attributes of a volume
    echo --context server=127.0.0.1 --context share="$DIR/data" --context subDir="$1"
}
mkdir -p kubelet/s kubelet/t
# shellcheck disable=SC2046,SC2086
nfs_stage() { mkdir -p "kubelet/s/$1" && call stage-volume "$2" --staging "$DIR/kubelet/s/$1" $3 >/dev/null; }
# shellcheck disable=SC2086
nfs_publish() { call publish-volume "$2" --staging "$DIR/kubelet/s/$1" --target "$DIR/kubelet/t/$1" $3 >/dev/null; }
nfs_unpublish() { call unpublish-volume "$2" --target "$DIR/kubelet/t/$1" >/dev/null; }
nfs_unstage() { call unstage-volume "$2" --staging "$DIR/kubelet/s/$1" >/dev/null; }

# Fifty volumes, whatever they are called, are one mount of the kernel's.
volumes=50
handle() { echo "server/share#volume $1"; }
up() {
    nfs_stage "$1" "$(handle "$1")" "$(by_hand "tenant/$1")"
    nfs_publish "$1" "$(handle "$1")" "$(by_hand "tenant/$1")"
    echo "written in $1" >"kubelet/t/$1/file"
}
down() {
    nfs_unpublish "$1" "$(handle "$1")"
    nfs_unstage "$1" "$(handle "$1")"
}
in_parallel() { # in_parallel COMMAND: over all volumes, five at a time
    local pids=() number
    for number in $(seq $volumes); do
        "$1" "$number" &
        pids+=($!)
        [ ${#pids[@]} -lt 5 ] || { wait "${pids[0]}"; pids=("${pids[@]:1}"); }
    done
    for number in "${pids[@]}"; do wait "$number"; done
}
for number in $(seq $volumes); do mkdir "data/tenant/$number"; done
in_parallel up
is 1 "$(shares | wc -l)" "mounts of the share for $volumes volumes"
is "$volumes" "$(shown | wc -l)" "bind mounts"
# The kubelet takes what has one device number and one root for mounts of one device, and unstages none while it sees another.
is '' "$(shown | grep "^$DIR/kubelet/s/" || true)" "mounts at staging paths"
is 1 "$(awk '$9 ~ /^nfs/ && $5 !~ "/proc/" { print $3 }' /proc/self/mountinfo | sort -u | wc -l)" "file systems of NFS in the kernel"
for number in $(seq $volumes); do is "written in $number" "$(cat "data/tenant/$number/file")" "what volume $number has on the server"; done
awk -v at="$DIR/kubelet/t/7" '$5 == at { print $6 }' /proc/self/mountinfo | grep nosuid | grep -q nodev || fail "a target lets suid programs or devices be"
is "$DIR/data" "$(findmnt -n -o SOURCE "$(shares)" | cut -d: -f2)" "what is mounted"

# A driver that was killed knows them again; the last one takes the mount with it.
kill_driver
start_driver
in_parallel down
nothing_left "the last volume"
echo "FIGURE: nfs one mount: $volumes volumes, 1 kernel mounts"

# The export itself, twice, each with a handle of its own: the one's end is not the other's.
for name in whole again; do
    nfs_stage $name $name "$(by_hand '')"
    nfs_publish $name $name "$(by_hand '')"
done
ls kubelet/t/whole/secret kubelet/t/again/secret >/dev/null
down_one() { nfs_unpublish "$1" "$1" && nfs_unstage "$1" "$1"; }
down_one whole
is 1 "$(shares | wc -l)" "mounts of the share while one uses it"
call node-get-volume-stats again --path "$DIR/kubelet/t/again" | jq -er '.usage[0].total' >total
[ "$(cat total)" -gt $((1 << 30)) ] || fail "statistics say $(cat total) bytes"
down_one again
nothing_left "the export itself"

# A directory that makes way for another of its name, while the share stays mounted: nobody is shown the old one, which still exists.
nfs_stage whole whole "$(by_hand '')"
for round in 1 2 3; do
    nfs_stage swapped swapped "$(by_hand tenant/2)"
    nfs_publish swapped swapped "$(by_hand tenant/2)"
    echo "$round" >kubelet/t/swapped/round
    down_one swapped
    mv data/tenant/2 "data/secret/was-$round"
    mkdir data/tenant/2
    nfs_stage swapped swapped "$(by_hand tenant/2)"
    nfs_publish swapped swapped "$(by_hand tenant/2)"
    is '' "$(ls kubelet/t/swapped)" "what a new directory shows that has the name of an old one"
    touch kubelet/t/swapped/new
    is new "$(ls data/tenant/2)" "what was written into it"
    down_one swapped
done
nfs_unstage whole whole
nothing_left "directories of one name"

# A directory that its server no longer has, while it is staged and published: repeated calls show the new one of its name.
nfs_stage whole whole "$(by_hand '')"
nfs_stage gone gone "$(by_hand tenant/2)"
nfs_publish gone gone "$(by_hand tenant/2)"
rm -r data/tenant/2
mkdir data/tenant/2
touch data/tenant/2/anew
if ls kubelet/t/gone >answer 2>&1; then fail "it did not go stale: this proves nothing"; fi
grep -q Stale answer || fail "$(cat answer)"
nfs_publish gone gone "$(by_hand tenant/2)"
is anew "$(ls kubelet/t/gone)" "what is published after a repeated call"
# shellcheck disable=SC2046
call stage-volume gone --staging "$DIR/kubelet/s/gone" $(by_hand tenant/2) >/dev/null
nfs_publish gone gone "$(by_hand tenant/2)"
is anew "$(ls kubelet/t/gone)" "what stays published"
down_one gone
nfs_unstage whole whole
nothing_left "a directory that went stale"

# Earlier versions had it mounted at the staging path, too: that goes when the driver starts, or with the unstage, and no pod loses it.
nfs_stage whole whole "$(by_hand '')"
nfs_publish whole whole "$(by_hand '')"
kill_driver
mount --bind "$(shares)" kubelet/s/whole
start_driver
is "$DIR/kubelet/t/whole" "$(shown)" "what is mounted after an update of the driver"
ls kubelet/t/whole/secret >/dev/null
mount --bind "$(shares)" kubelet/s/whole
call node-get-volume-stats whole --path "$DIR/kubelet/s/whole" | jq -er '.usage[0].total' >/dev/null
# One that was busy at the start goes with the next stage.
nfs_stage whole whole "$(by_hand '')"
is "$DIR/kubelet/t/whole" "$(shown)" "what is mounted after a repeated stage"
mount --bind "$(shares)" kubelet/s/whole
down_one whole
nothing_left "an earlier version's mounts"

# What an administrator or the server did to a staged volume is said, and the next stage is right again.
inspect() { longshore inspect --endpoint "$endpoint" --node-id vm --state-dir "$DIR/state" --kubelet-dir "$DIR/kubelet" --config config.yaml "$@"; }
health() { call node-get-volume-health own | jq -r '.. | .reason? // empty' | xargs; }
health_is_bad() { [ "$(health)" = VolumeMissing ]; }
mkdir data/tenant/own
nfs_stage own own "$(by_hand tenant/own)"
is '' "$(health)" "health of a staged volume"
inspect >inspected || fail "$(cat inspected)"
umount "$(shares)"
is DeviceGone "$(health)" "health without the share's mount"
! inspect --json >inspected || fail "nothing is said of a share that is not mounted"
is device-missing "$(jq -r '.findings[].kind' inspected)" "what is found"
nfs_stage own own "$(by_hand tenant/own)"
is '' "$(health)" "health of a volume that was staged again"
rmdir data/tenant/own
within 90 health_is_bad
if nfs_stage own own "$(by_hand tenant/own)" 2>refused; then fail "staged without its directory"; fi
grep -q NOT_FOUND refused || fail "$(cat refused)"
nfs_unstage own own
nothing_left "a volume without its directory"

# Every version, and options of the mount and of the bind. What differs is another mount.
versions='3 4.0 4.1 4.2'
for version in $versions; do
    flags="$(by_hand tenant/1) --mount-flag nfsvers=$version --mount-flag noexec"
    [ "$version" != 4.2 ] || flags+=' --mount-flag nconnect=2 --mount-flag soft'
    nfs_stage "v$version" "v$version" "$flags"
    nfs_publish "v$version" "v$version" "$flags"
    findmnt -n -o OPTIONS "kubelet/t/v$version" | grep -q "vers=$version" || fail "$version: $(findmnt -n -o OPTIONS "kubelet/t/v$version")"
    awk -v at="$DIR/kubelet/t/v$version" '$5 == at { print $6 }' /proc/self/mountinfo | grep -q noexec || fail "$version: noexec"
    echo "$version" >"kubelet/t/v$version/version"
    is "$version" "$(cat data/tenant/1/version)" "what version $version wrote"
done
findmnt -n -o OPTIONS kubelet/t/v4.2 | grep -q 'nconnect=2' || fail "nconnect: $(findmnt -n -o OPTIONS kubelet/t/v4.2)"
is 4 "$(shares | wc -l)" "mounts with different options"
for version in $versions; do down_one "v$version"; done
nothing_left "all versions"

# refused WHAT CODE TEXT ATTRIBUTES...: a stage that must fail so, and leave nothing.
refused() {
    local what=$1 code=$2 text=$3
    shift 3
    mkdir -p kubelet/s/bad
    if call stage-volume bad --staging "$DIR/kubelet/s/bad" "$@" >answer 2>&1; then fail "$what was accepted"; fi
    grep -q "$code" answer || fail "$what: not $code but $(cat answer)"
    grep -qF -- "$text" answer || fail "$what: no '$text' in $(cat answer)"
    is '' "$(shown)" "mounts after $what"
    call unstage-volume bad --staging "$DIR/kubelet/s/bad" >/dev/null
    nothing_left "$what"
}
echo 'hosts: files' >/etc/nsswitch.conf
data="--context server=127.0.0.1 --context share=$DIR/data"
ln -s /etc data/tenant/planted
# shellcheck disable=SC2086
{
    refused 'an unknown server' UNAVAILABLE no-such-server --context server=no-such-server --context share=/x
    refused 'a wrong share' INTERNAL "$DIR/other" --context server=127.0.0.1 --context share="$DIR/other"
    refused 'a missing directory' NOT_FOUND "$DIR/data/none" $data --context subDir=none
    refused 'a directory that climbs' INVALID_ARGUMENT subDir $data --context subDir=tenant/../secret
    refused 'the directory of the driver' INVALID_ARGUMENT subDir $data --context subDir=.longshore
    refused 'a planted link' INVALID_ARGUMENT tenant/planted $data --context subDir=tenant/planted
    refused 'below a planted link' INVALID_ARGUMENT tenant/planted $data --context subDir=tenant/planted/ssh
    refused suid INVALID_ARGUMENT suid $data --mount-flag suid
    refused dev INVALID_ARGUMENT dev $data --mount-flag dev
    refused nolock INVALID_ARGUMENT nolock $data --mount-flag nolock
    refused 'an option of another file system' INVALID_ARGUMENT 'mount option data is none of NFS' $data --mount-flag data=ordered
    refused 'an unknown version' INTERNAL 'incorrect mount option' $data --mount-flag nfsvers=4.9
    refused 'an unknown attribute' INVALID_ARGUMENT shares $data --context shares=x

} 2>&1
stop_driver

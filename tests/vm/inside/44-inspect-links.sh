#!/bin/bash
# What a killed driver and a lost journal leave of NFS and iSCSI: `inspect` names the mount of a share, the session and the export, the
# commands that it prints take the first two down, and so does --fix; what is in use stays.
# about 24 s
set -euo pipefail
# shellcheck source=san.bash
. "$(dirname "$0")/san.bash"
# shellcheck source=nfs.bash
. "$(dirname "$0")/nfs.bash"

inspect() {
    longshore inspect --json --endpoint "$endpoint" --node-id vm --state-dir "$DIR/state" --kubelet-dir "$DIR/kubelet" --config config.yaml "$@"
}
# found STATUS WHAT: what `inspect` says, in ./seen.
found() {
    local status=0
    inspect >seen || status=$?
    is "$1" "$status" "$2: the exit code of inspect: $(jq -c '.findings, .notSeen' seen)"
}
kinds() { jq -r '.findings[].kind' seen | xargs; }
shares() { awk '$5 ~ "/state/nfs/" { print $5 }' /proc/self/mountinfo; }

nfs_image xfs data
mkdir data/{a,b}
nfs_serve data
trap 'status=$?; clean_up; (exit $status); nfs_end' EXIT
target_name=iqn.2026-11.dev.example:one
lio_start
lio_disk one 64M
lio_target $target_name 127.0.0.1:3260
lio_lun $target_name 0 one
lio_acl $target_name iqn.2026-11.dev.example:machine
initiator_start iqn.2026-11.dev.example:machine multipath
printf 'backends:\n  - {name: nfs, type: nfs}\n  - {name: san, type: iscsi}\n' >config.yaml
up() { # up: a and b of NFS, and one of iSCSI
    local name
    for name in a b; do
        mkdir -p "$staging$name"
        call stage-volume $name --staging "$staging$name" --context server=127.0.0.1 --context share="$DIR/data" --context subDir=$name >/dev/null
    done
    mkdir -p "${staging}one"
    call stage-volume one --staging "${staging}one" --fs=ext4 --context targetPortal=127.0.0.1 --context iqn=$target_name --context lun=0 >/dev/null
}

start_driver
for round in by-hand fix; do
    up
    found 0 "$round: all is in use"
    is 2 "$(jq '.connections[] | select(.backend == "nfs") | .volumes | length' seen)" "the volumes of the share"
    is "$target_name true" "$(jq -r '.connections[] | select(.backend == "san") | "\(.object) \(.up)"' seen)" "the session"
    kill_driver
    umount "${staging}one"
    rm -r state/journal/*:*
    found 1 "$round: the journal is lost"
    is 'link-unowned link-unowned' "$(kinds)" "$round: what is found"
    if [ $round = by-hand ]; then
        jq -r '.findings[].commands[]' seen >commands
        sh -e commands >commands.log 2>&1 || fail "the printed commands fail: $(cat commands commands.log)"
    else
        # In use again, by a process of which nothing is journaled.
        mkdir elsewhere
        mount "/dev/$(scsi_disks)" elsewhere
        inspect --fix --yes >fixed && fail "repaired what is in use: $(cat fixed)"
        is done "$(jq -r '.actions[].result' fixed | xargs)" "what was repaired"
        is "$DIR/elsewhere is mounted from it" "$(jq -r '.findings[].whyNot' fixed)" "why the rest was not"
        is 1 "$(iscsi_sessions | wc -l)" "sessions, one of them in use"
        umount elsewhere
        inspect --fix --yes >fixed || fail "$round: $(cat fixed)"
    fi
    is '' "$(shares)" "$round: shares"
    nothing_is_connected "$round"
    is '' "$(find state/nfs/nfs state/iscsi/san -mindepth 1 2>/dev/null)" "$round: what is remembered"
    found 0 "$round: nothing is left"
    start_driver
done

# What the driver remembers of a session cannot be read: nothing is concluded.
up
file=$(ls state/iscsi/san/*.json)
cp "$file" remembered
echo '{' >"$file"
found 3 "what is remembered is damaged"
is '' "$(kinds)" "what is found"
cp remembered "$file"

# Of a session whose volume nothing at all remembers, too.
kill_driver
umount "${staging}one"
rm -r state/journal/*:* state/iscsi/san/*
inspect --fix --yes >fixed || fail "nothing remembers it: $(cat fixed)"
nothing_is_connected "of which nothing is remembered"
lio_stop

# The target server: a record that the kernel does not show, and something shown that nothing records.
pool xfs
configure
start_controller
id=$(create a 64MiB block)
attach "$id" node-1
found 0 "a volume is attached"
is node-1 "$(jq -r '.volumes[] | select(.id == "san:a") | .stored.attached[]' seen)" "who has it"
kill_driver
mv pool/images/exports/a.json record
found 1 "its record is gone"
is export-unowned "$(kinds)" "what is found"
inspect --fix --yes >fixed || fail "an export: $(cat fixed)"
is '' "$(exported)" "exports afterwards"
mv record pool/images/exports/a.json
found 1 "the kernel forgot it"
is export-missing "$(kinds)" "what is found"
start_controller
found 0 "it is exported again"
detach "$id" node-1
delete "$id"
stop_driver
is '' "$(exported)$(ls pool/images/exports)" "what is exported at the end"
initiator_stop
unpool

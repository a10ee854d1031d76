#!/bin/bash
# The driver is killed while it connects and disconnects: the next calls find what it left and let go of it, and what others have is
# never touched.
# about 13 s
# in make test
set -euo pipefail
# shellcheck source=lib.bash
. "$(dirname "$0")/lib.bash"
# shellcheck source=lio.bash
. "$(dirname "$0")/lio.bash"

target_name=iqn.2026-11.dev.example:one
machine=iqn.2026-11.dev.example:machine
printf 'user' >user
printf 'a secret of sessions' >password
printf 'backends:\n  - {name: san, type: iscsi}\n' >config.yaml
lio_start
lio_disk one 64M
lio_disk two 64M
lio_target $target_name 127.0.0.1:3260
lio_lun $target_name 0 one
lio_lun $target_name 1 two
lio_acl $target_name $machine user "$(cat password)"
initiator_start $machine

# Another program's session with the same target, and a disk of it.
iscsiadm -m node -o new -T $target_name -p 127.0.0.1:3260 >/dev/null
for setting in authmethod=CHAP username=user "password=$(cat password)"; do
    iscsiadm -m node -T $target_name -p 127.0.0.1:3260 -o update -n "node.session.auth.${setting%%=*}" -v "${setting#*=}"
done
iscsiadm -m node -T $target_name -p 127.0.0.1:3260 -o update -n node.session.scan -v manual
iscsiadm -m node -T $target_name -p 127.0.0.1:3260 --login >/dev/null
echo '0 0 1' >"$(echo /sys/class/scsi_host/host*/scan)"
theirs=$(iscsi_sessions)
is 1 "$(iscsi_sessions | wc -l)" "their sessions"
is sda "$(scsi_disks)" "their disks"
only_theirs() {
    is "$theirs" "$(iscsi_sessions)" "sessions $1"
    is sda "$(scsi_disks)" "disks $1"
    is '' "$(ls "$DIR/state/iscsi/san" "$DIR/state/journal" | grep -v : || true)" "what is remembered $1"
}

stage_it() {
    mkdir -p "$staging"
    call stage-volume it --staging "$staging" --fs=ext4 --context targetPortal=127.0.0.1 --context iqn=$target_name --context lun=0 \
        --context sessionCHAPAuth=true --context portals=127.0.0.1 --secret-file node.session.auth.username=user \
        --secret-file node.session.auth.password=password >stage.log 2>&1
}

# Killed before each step of a stage: the driver's next start or the next unstage takes all of it away.
export LONGSHORE_FAULT_FILE=$DIR/fault
echo '0 none@0' >fault
start_driver
stage_it || fail "not staged: $(cat stage.log)"
steps=$(grep -c 'fault: step [0-9]*: ' driver.log)
scan=$(sed -n 's/.*fault: step \([0-9]*\): scan .*/\1/p' driver.log | head -n 1)
unstage it
only_theirs "after a stage without a kill"
connecting=0
for step in $(seq 1 "$steps"); do
    name=$(grep -m1 "fault: step $step: " driver.log)
    case $name in *'remember session'* | *'log in'* | *scan* | *'offer path'*) ;; *) continue ;; esac
    connecting=$((connecting + 1))
    echo "$step crash@$step" >fault
    ! stage_it || fail "the driver was not killed at step $step ($name)"
    wait "$driver_pid" 2>/dev/null || true
    echo "$step none@0" >fault
    start_driver
    unstage it
    only_theirs "after a kill before $name"
done
[ $connecting -ge 4 ] || fail "only $connecting steps were killed of $steps"

# The same on the way back.
stage_it || fail "not staged: $(cat stage.log)"
echo 'steps none@0' >fault
lines=$(wc -l <driver.log)
unstage it
mapfile -t names < <(tail -n "+$((lines + 1))" driver.log | grep -o 'fault: step [0-9]*: .*')
for at in "${!names[@]}"; do
    case ${names[$at]} in *flush* | *'remove unit'* | *'log out'* | *'forget session'*) ;; *) continue ;; esac
    stage_it || fail "not staged: $(cat stage.log)"
    echo "back $at crash@$((at + 1))" >fault
    ! call unstage-volume it --staging "$staging" >/dev/null 2>&1 || fail "the driver was not killed at ${names[$at]}"
    wait "$driver_pid" 2>/dev/null || true
    echo "back $at none@0" >fault
    start_driver
    unstage it
    only_theirs "after a kill before ${names[$at]}"
    connecting=$((connecting + 1))
done

# While the scan of one unit hangs, another unit of the same target is connected and disconnected, and their session stays.
two=$DIR/kubelet/staging-two
mkdir -p "$two"
other() { call --timeout 15s stage-volume two --staging "$two" --fs=ext4 --context targetPortal=127.0.0.1 --context iqn=$target_name \
    --context lun=1 --context sessionCHAPAuth=true --context portals=127.0.0.1 --secret-file node.session.auth.username=user \
    --secret-file node.session.auth.password=password; }
echo "one hangs hang@$scan" >fault
stage_it &
hung=$!
hangs() { grep -q 'fault: hang at step' driver.log; }
within 20 hangs
echo 'one hung none@0' >fault
other >other.log 2>&1 || fail "a volume waits for another unit of its target that hangs: $(cat other.log)"
echo 'beside it' >"$two/file"
call --timeout 15s unstage-volume two --staging "$two" >other.log 2>&1 || fail "not unstaged beside a unit that hangs: $(cat other.log)"
is 2 "$(iscsi_sessions | wc -l)" "the session that the hung stage has logged in to"
kill_driver
wait $hung || true
start_driver
unstage it
only_theirs "after a scan that hung"
echo "FIGURE: iscsi-killed: $connecting kills while connecting and disconnecting"

stop_driver
iscsiadm -m node -T $target_name -p 127.0.0.1:3260 --logout >/dev/null
rm -r /etc/iscsi/nodes
initiator_stop
lio_stop

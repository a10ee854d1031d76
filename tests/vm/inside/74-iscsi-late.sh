#!/bin/bash
# Sessions that come otherwise than by a plain login: the target tells of further portals, one of them by IPv6; an interface of the
# operator's; and a login that ends after the driver that asked for it was killed.
# about 17 s
set -euo pipefail
# shellcheck source=lib.bash
. "$(dirname "$0")/lib.bash"
# shellcheck source=lio.bash
. "$(dirname "$0")/lio.bash"

target_name=iqn.2026-11.dev.example:one
machine=iqn.2026-11.dev.example:machine
second=iqn.2026-11.dev.example:second
printf 'backends:\n  - {name: san, type: iscsi}\n' >config.yaml
lio_start
lio_disk one 64M
lio_target $target_name 127.0.0.1:3260 127.0.0.2:3260 '[::1]:3260'
lio_lun $target_name 0 one
lio_acl $target_name $machine
initiator_start $machine multipath
start_driver

stage_it() {
    mkdir -p "$staging"
    call stage-volume it --staging "$staging" --fs=ext4 --context targetPortal="${portal:-127.0.0.1}" --context iqn=$target_name --context lun=0 "$@" \
        >stage.log 2>&1
}

# One portal is given, the target tells of all.
stage_it || fail "not staged: $(cat stage.log)"
is '127.0.0.1:3260 127.0.0.2:3260 ::1:3260' "$(iscsi_sessions | cut -d ' ' -f 2 | tr -d '[]' | sort | xargs)" "the portals of its sessions"
is 3 "$(scsi_disks | wc -l)" "paths"
is 1 "$(dmsetup ls --target multipath | wc -l)" "maps of the paths"
echo 'by three ways' >"$staging/file"
unstage it
nothing_is_connected "after three ways"

# Given by a name, it is no portal beside its address.
echo '127.0.0.1 san.test' >>/etc/hosts
portal=san.test stage_it || fail "not staged by a name: $(cat stage.log)"
is 3 "$(iscsi_sessions | wc -l)" "sessions where one portal is given by a name"
sed -i '/san.test/d' /etc/hosts
unstage it
nothing_is_connected "after a portal given by a name"

# Only one whose interface has another initiator's name is let in.
lio_remove_acl $target_name $machine
lio_acl $target_name $second
if stage_it --context portals=127.0.0.1; then fail "staged as an initiator that the target does not know"; fi
grep -q PERMISSION_DENIED stage.log || fail "refused: $(cat stage.log)"
iscsiadm -m iface -I second -o new >/dev/null
for setting in transport_name=tcp initiatorname=$second; do
    iscsiadm -m iface -I second -o update -n "iface.${setting%%=*}" -v "${setting#*=}" >/dev/null
done
stage_it --context portals=127.0.0.1 --context iscsiInterface=second || fail "by another interface: $(cat stage.log)"
is $second "$(iscsi_sessions | cut -d ' ' -f 3)" "as whom it is logged in"
is 'by three ways' "$(cat "$staging/file")" "what the volume holds"
unstage it
nothing_is_connected "after another interface"
iscsiadm -m iface -I second -o delete >/dev/null
lio_acl $target_name $machine

# asked_for_a_login: the driver is killed when iscsid, which sleeps, has been asked for a login, so that it comes later.
asked_for_a_login() {
    kill -STOP "$iscsid_pid"
    stage_it --context portals=127.0.0.1 &
    staging_call=$!
    within 20 login_is_asked
    kill_driver
    wait $staging_call || true
}
# iscsiadm waits for an answer by its socket: then the question has been put.
login_is_asked() {
    local pid
    for pid in $(pgrep -x iscsiadm); do
        tr '\0' ' ' <"/proc/$pid/cmdline" | grep -q -- --login && grep -q 'S (sleeping)' "/proc/$pid/status" && return
    done
    return 1
}
late() { [ -n "$(iscsi_sessions)" ]; }

# It has come when the next driver starts.
asked_for_a_login
nothing_is_connected "while iscsid sleeps"
kill -CONT "$iscsid_pid"
within 30 late
start_driver
unstage it
nothing_is_connected "after a login that came between two drivers"

# It comes while the next driver takes the volume down.
asked_for_a_login
start_driver
call --timeout 120s unstage-volume it --staging "$staging" >unstage.log 2>&1 &
unstaging=$!
kill -CONT "$iscsid_pid"
wait $unstaging || unstage it
nothing_is_connected "after a login that came late"
is '' "$(ls "$DIR/state/iscsi/san" "$DIR/state/journal" | grep -v : || true)" "what is remembered"
echo "FIGURE: iscsi late: 3 portals found, 2 late logins"

stop_driver
rm -rf /etc/iscsi/ifaces/second
initiator_stop
lio_stop

#!/bin/bash
# Two portals are two paths to one device: one of them is lost and comes back while it is written, it grows while it is written, it
# is encrypted. Without multipathd, one path is used, and said.
# about 56 s
set -euo pipefail
# shellcheck source=lib.bash
. "$(dirname "$0")/lib.bash"
# shellcheck source=lio.bash
. "$(dirname "$0")/lio.bash"

target_name=iqn.2026-11.dev.example:two-paths
me=iqn.2026-11.dev.example:me
one=10.3.0.1 two=10.3.0.2
printf 'user' >user
printf 'a secret of twenty-odd' >password
printf 'a long passphrase' >passphrase

printf 'backends:\n  - {name: san, type: iscsi}\n' >config.yaml
path_up $one
path_up $two
lio_start
lio_disk disk 64M
lio_target $target_name $one:3260 $two:3260
lio_lun $target_name 3 disk
lio_acl $target_name $me user "$(cat password)"
initiator_start iqn.2026-11.dev.example:machine multipath
start_driver

context=(--context targetPortal=$one --context "portals=[\"$two\"]" --context "iqn=$target_name" --context lun=3
    --context initiatorName=$me --context sessionCHAPAuth=true)
stage_it() { # stage_it FS [OPTION...]
    mkdir -p "$staging"
    call stage-volume disk --staging "$staging" "$(usage "$1")" "${context[@]}" "${@:2}" \
        --secret-file node.session.auth.username=user --secret-file node.session.auth.password=password >stage.log 2>&1 ||
        fail "not staged: $(cat stage.log)"
}
health() { call node-get-volume-health disk | jq -r '[.. | .reason? // empty] | sort | join(" ")'; }
healthy() { [ "$(health)" = "$*" ]; }
paths_alive() { dmsetup status --target multipath | grep -o ' 8:[0-9]* [AF] ' | grep -c A; }
map() { dmsetup info -c --noheadings -o uuid 2>/dev/null | grep '^mpath-' || true; }

# One device of two paths, known by the disk's identity.
stage_it ext4
wwid=$(lio_wwid disk)
is "mpath-3${wwid#naa.}" "$(map)" "the map"
is "$(readlink -f /dev/disk/by-id/dm-uuid-"$(map)" 2>/dev/null || echo /dev/dm-0)" "$(findmnt -n -o SOURCE "$staging" | xargs readlink -f)" "what is mounted"
is "$target_name $one:3260 $me LOGGED_IN $target_name $two:3260 $me LOGGED_IN" "$(iscsi_sessions | xargs)" "the sessions"
is 2 "$(paths_alive)" "paths of the map"
is '' "$(health)" "what is wrong"
# The operator's own settings are kept.
is 5 "$(cat /sys/class/iscsi_connection/connection*/ping_tmo | sort -u)" "noop_out_timeout of iscsid.conf"

# The same disk by another target is a path to this map, which its volume does not get, and does not take with it.
second=iqn.2026-11.dev.example:second
lio_target $second $one:3260
lio_lun $second 0 disk
lio_acl $second $me user "$(cat password)"
one_disk_twice() {
    mkdir -p "$staging-twice"
    ! call stage-volume twice --staging "$staging-twice" --fs=ext4 --context targetPortal=$one --context portals=$one \
        --context iqn=$second --context lun=0 --context initiatorName=$me --context sessionCHAPAuth=true \
        --secret-file node.session.auth.username=user --secret-file node.session.auth.password=password >twice.log 2>&1 ||
        fail "one disk became two volumes"
    # multipathd may have taken it in that moment; the next attempt finds it there.
    grep -q FAILED_PRECONDITION twice.log
}
within 60 one_disk_twice
grep -q "LUN 3 of $target_name" twice.log || fail "the other unit is not named: $(cat twice.log)"
is "$target_name $target_name" "$(iscsi_sessions | cut -d ' ' -f 1 | xargs)" "the sessions after a second volume was refused"
within 20 eval '[ "$(paths_alive)" = 2 ]'
is '' "$(health)" "what is wrong after a second volume was refused"
lio_remove_target $second

# Writes on until it is asked to end, each line on the disk before the next.
(
    line=0
    until [ -e stop ]; do
        echo "line $((line += 1))" >>"$staging/lines"
        sync -d "$staging/lines"
    done
    echo "$line" >lines
) &
writer=$!
wrote() { [ "$(wc -l <"$staging/lines")" -gt "$1" ]; }
writes_on() { within 40 wrote $(($(wc -l <"$staging/lines") + 2)); }
within 10 test -s "$staging/lines"

path_down $two
within 40 eval '[ "$(paths_alive)" = 1 ]'
writes_on
within 10 healthy PathLost
call storage-health | grep -q "$target_name at $two:3260" || fail "the lost session is not reported: $(call storage-health)"

# A driver that was killed meanwhile takes it as it is.
kill_driver
start_driver
is PathLost "$(health)" "what is wrong, after a restart"
path_up $two
within 60 eval '[ "$(paths_alive)" = 2 ]'
within 10 healthy ''
path_down $one
within 40 eval '[ "$(paths_alive)" = 1 ]'
writes_on
path_up $one
within 60 eval '[ "$(paths_alive)" = 2 ]'

# It grows under all that.
before=$(size_of "$staging")
lio_grow disk 160M
call node-expand-volume disk --path "$staging" --staging "$staging" --size 160MiB >/dev/null
[ "$(size_of "$staging")" -gt $((before + (80 << 20))) ] || fail "it was $before and is $(size_of "$staging") bytes"
touch stop
wait $writer || fail "writing failed"
is "$(seq -f 'line %g' "$(cat lines)" | sha256sum)" "$(sha256sum <"$staging/lines")" "what was written"

# A path that was lost, and whose disk cannot be opened, does not hinder a stage by the other.
path_down $two
within 40 eval 'grep -q transport-offline /sys/block/sd*/device/state'
umount "$staging"
stage_it ext4
is "$(seq -f 'line %g' "$(cat lines)" | sha256sum)" "$(sha256sum <"$staging/lines")" "what a stage by one path shows"
path_up $two
within 60 eval '[ "$(paths_alive)" = 2 ]'
unstage disk
nothing_is_connected "after unstage"

# A path that is down at the stage does not hinder it; it is reported, and there at the next stage.
path_down $two
stage_it ext4
is "$(seq -f 'line %g' "$(cat lines)" | sha256sum)" "$(sha256sum <"$staging/lines")" "what was written before"
is PathLost "$(health)" "what is wrong with one path"
unstage disk
path_up $two

# A disk that takes no flush while its sessions are up is let go of all the same, and that is logged.
stage_it ext4
multipathd disablequeueing maps >/dev/null
for state in /sys/block/sd*/device/state; do echo offline >"$state"; done
unstage disk
grep -q 'does not take what is in its cache' driver.log || fail "the log does not say that a flush failed"
nothing_is_connected "after a disk that took no flush"

# Encrypted: LUKS lies on the map.
lio_disk secret 64M
lio_lun $target_name 4 secret
lio_acl $target_name $me user "$(cat password)"
context=(--context targetPortal=$one --context "portals=$two" --context "iqn=$target_name" --context lun=4
    --context initiatorName=$me --context sessionCHAPAuth=true --context encryption=luks2)
stage_it ext4 --secret-file encryptionPassphrase=passphrase
is "CRYPT mpath" "$(dmsetup info -c --noheadings -o uuid | sed 's/-.*//' | sort | xargs)" "mappings of an encrypted volume"
unstage disk
nothing_is_connected "after an encrypted volume"

# Without multipathd, one path: two disks that are one would be an accident waiting.
kill -TERM "$multipathd_pid"
within 15 eval '! kill -0 $multipathd_pid 2>/dev/null'
multipathd_pid=''
stage_it ext4 --secret-file encryptionPassphrase=passphrase
is 1 "$(iscsi_sessions | wc -l)" "sessions without multipathd"
is OnePath "$(health)" "what is wrong without multipathd"
unstage disk
nothing_is_connected "at the end"
stop_driver
initiator_stop
lio_stop
path_down $one
path_down $two

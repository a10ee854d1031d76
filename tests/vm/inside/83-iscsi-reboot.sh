#!/bin/bash
# What is attached is attached again after a reboot of the target server, with the same credentials, and sessions recover by
# themselves under load; a driver that is only restarted disturbs nobody; what nothing records is taken down, what is not ours stays.
# about 16 s
set -euo pipefail
# shellcheck source=san.bash
. "$(dirname "$0")/san.bash"

san
start_controller
id=$(create data 64MiB block) other=$(create other 64MiB block)
attach "$other" b
attach "$id" a
cp a.context first.context
log_in a
device=$(device_of a)
session=$(session_of a)
# Writes block after block, each with its number, until it is asked to end; the last number acknowledged goes to ./acknowledged.
(
    number=0
    until [ -e stop ]; do
        number=$((number + 1))
        printf '%-4096s' "$number" | dd of="$device" bs=4k seek=$((number % 4096)) iflag=fullblock oflag=direct conv=notrunc status=none || exit 1
        echo $number >acknowledged.new
        mv acknowledged.new acknowledged
    done
) &
writer=$!
within 20 test -s acknowledged
continues() { [ "$(cat acknowledged)" -gt "$1" ]; }

kill_driver
start_controller
within 20 continues "$(($(cat acknowledged) + 3))"
[ "$session" = "$(session_of a)" ] && [ "$(cat "$session/state")" = LOGGED_IN ] || fail "a restart of the driver broke the session"
# On a slow machine it may say that it is not done yet.
! grep 'exported again' driver.log | grep -v 'still being' || fail "something was exported again, though all was there"

# The target server loses power. One volume's image is damaged meanwhile: the others come back all the same.
kill_driver
power_off
mv "$(image_of other)" other.image
before=$(cat acknowledged)
start_controller
grep -q 'exported again.*data\|data.*exported again' driver.log || fail "the log does not say that the volume is exported again"
grep -q 'could not be exported again' driver.log || fail "the log does not say that the other is not"
is a "$(ls "$(target_of data)/tpgt_1/acls" | sed 's/.*://')" "who is let in"
within 30 continues $((before + 3))
touch stop
wait $writer || fail "a write failed over the reboot"
attach "$id" a
cmp <(jq 'del(.blank)' a.context) <(jq 'del(.blank)' first.context) || fail "the node gets something else after the reboot"
last=$(cat acknowledged)
is "$last" "$(dd if="$(image_of data)" bs=4k skip=$((last % 4096)) count=1 status=none | xargs)" "the last block that was acknowledged"
is "$((last - 1))" "$(dd if="$(image_of data)" bs=4k skip=$(((last - 1) % 4096)) count=1 status=none | xargs)" "the one before"

# Health tells of it, and Probe tries again.
call get-volume-health "$other" | grep -q ImageMissing || fail "the damage is not reported"
mv other.image "$(image_of other)"
call get-volume-health "$other" | grep -q ExportMissing || fail "the missing export is not reported"
call probe >/dev/null
is b "$(ls "$(target_of other)/tpgt_1/acls" | sed 's/.*://')" "who is let in after the probe"
is '[]' "$(call get-volume-health "$other" | jq -c '.volume_health.errors // []')" "the health of what is back"

# A record that is removed, as an administrator does with a damaged one: after the detachment nobody has the volume.
rm pool/images/exports/other.json
detach "$other" b
[ ! -e "$(target_of other)" ] || fail "what was detached without a record is still exported"
is '[]' "$(call get-volume "$other" | jq -c .status.published_node_ids)" "where it is published without a record"
attach "$other" b

# Nothing records the one, and the other is another program's.
stop_driver
mv pool/images/exports/other.json .
foreign=$authority:san:foreign
mkdir -p "$kernel/core/fileio_7/theirs" "$kernel/iscsi/$foreign/tpgt_1"
start_controller
[ ! -e "$(target_of other)" ] || fail "what nothing records is still exported"
grep -q 'taken down' driver.log || fail "the log does not say what was taken down"
[ -d "$kernel/iscsi/$foreign" ] && [ -d "$kernel/core/fileio_7/theirs" ] || fail "what is not ours was taken down"
rmdir "$kernel/core/fileio_7/theirs" "$kernel/core/fileio_7" "$kernel/iscsi/$foreign/tpgt_1" "$kernel/iscsi/$foreign"
is '[]' "$(call get-volume "$other" | jq -c .status.published_node_ids)" "where it is published"

log_out a
detach "$id" a
delete "$id"
delete "$other"
nothing_left
stop_driver

unpool

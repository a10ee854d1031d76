#!/bin/bash
# The driver is killed while a volume is published. Another one, which knows only the journal and the kernel, takes it
# down; nothing is left, and the data is there when it is staged again.
set -euo pipefail
# shellcheck source=lib.bash
. "$(dirname "$0")/lib.bash"

pool xfs
start_driver
id=$(create data 64MiB ext4)
stage "$id" ext4
publish "$id" ext4
head -c 4M /dev/urandom >"$target/data"
cp "$target/data" data
is 1 "$(volume_loops | wc -l)" "loop devices of a staged volume"
kill_driver
mountpoint -q "$target" || fail "the mount went with the driver"
cmp data "$target/data"

start_driver
# Repeated calls find that all is done already.
stage "$id" ext4
publish "$id" ext4
is 1 "$(volume_loops | wc -l)" "loop devices after a repeated stage"
is 1 "$(awk -v place="$target" '$5 == place' /proc/self/mountinfo | wc -l)" "mounts at the target"
kill_driver

start_driver
unpublish "$id"
[ ! -e "$target" ] || fail "the target is still there"
unstage "$id"
is '' "$(volume_loops)" "loop devices after unstage"
stage "$id" ext4
publish "$id" ext4
cmp data "$target/data" || fail "the data changed"
unpublish "$id"
unstage "$id"
delete "$id"
is '' "$(ls "$DIR/state/journal" 2>/dev/null)" "the journal at the end"
stop_driver
unpool

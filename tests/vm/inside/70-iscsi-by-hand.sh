#!/bin/bash
# LUNs that someone exported by hand: staged by CHAP, as file system and as raw block, unstaged, staged again; two LUNs of one session;
# mutual CHAP; and no password of it anywhere but in the kernel.
# about 9 s
# in make test
set -euo pipefail
# shellcheck source=lib.bash
. "$(dirname "$0")/lib.bash"
# shellcheck source=lio.bash
. "$(dirname "$0")/lio.bash"

target_name=iqn.2026-11.dev.example:one
machine=iqn.2026-11.dev.example:machine
password='a secret for #1 = "ok"'
printf 'user one' >user
printf '%s' "$password" >password
printf 'the target' >user_in
printf 'a secret of the target' >password_in

printf 'backends:\n  - {name: image, type: image, pools: [{name: default, path: %s/images}]}\n  - {name: san, type: iscsi}\n' "$DIR" >config.yaml
lio_start
lio_disk one 64M
lio_disk two 64M
lio_target $target_name 127.0.0.1:3260
lio_lun $target_name 0 one
lio_lun $target_name 5 two
lio_acl $target_name $machine 'user one' "$password"
initiator_start $machine

# by_hand HANDLE LUN FS [NAME] [OPTION...]: stages a volume of that target.
chap=(--secret-file node.session.auth.username=user --secret-file node.session.auth.password=password)
by_hand() {
    mkdir -p "$staging${4:-}"
    call stage-volume "$1" --staging "$staging${4:-}" "$(usage "$3")" --context targetPortal=127.0.0.1 --context "iqn=$target_name" \
        --context "lun=$2" --context portals='[]' --context iscsiInterface=default --context discoveryCHAPAuth=false \
        --context sessionCHAPAuth=true "${@:5}" >stage.log 2>&1
}

# Anyone who starts iscsiadm is looked at: its arguments, its environment, and which files it left.
mkdir spied
mv /usr/sbin/iscsiadm /usr/sbin/iscsiadm.real
cat >/usr/sbin/iscsiadm <<END
#!/bin/bash
cat /proc/self/cmdline /proc/\$PPID/cmdline /proc/self/environ /proc/\$PPID/environ >>$DIR/spied/processes
find /etc/iscsi -type f -printf '%p %m\n' >>$DIR/spied/files
exec /usr/sbin/iscsiadm.real "\$@"
END
chmod 755 /usr/sbin/iscsiadm

start_driver
by_hand some/thing#1 0 ext4 '' "${chap[@]}" || fail "not staged: $(cat stage.log)"
is "$target_name 127.0.0.1:3260 $machine LOGGED_IN" "$(iscsi_sessions)" "the session"
is "$(lio_wwid one)" "$(cat /sys/block/sda/device/wwid)" "the disk"
is "/dev/sda ext4" "$(findmnt -n -o SOURCE,FSTYPE "$staging")" "what is mounted"
echo 'what was written' >"$staging/file"
by_hand some/thing#1 0 ext4 '' "${chap[@]}" || fail "a repeated stage fails: $(cat stage.log)"

# Another LUN of the session, as raw block.
by_hand raw 5 block -raw "${chap[@]}" || fail "raw block is not staged: $(cat stage.log)"
publish_raw() {
    call publish-volume raw --staging "$staging-raw" --target "$target-raw" --block --context targetPortal=127.0.0.1 \
        --context "iqn=$target_name" --context lun=5 >/dev/null
}
publish_raw
is 1 "$(iscsi_sessions | wc -l)" "sessions of two LUNs"
[ -b "$target-raw" ] || fail "the target is no block device"
printf 'raw bytes' | dd of="$target-raw" bs=4k seek=3 conv=fsync,notrunc status=none
is 'raw bytes' "$(dd if=two.img bs=4k skip=3 count=1 status=none | head -c 9)" "what the storage has"

# The same unit under another handle would be two volumes on one disk.
! by_hand another 5 block -another "${chap[@]}" || fail "one LUN became two volumes"
grep -q FAILED_PRECONDITION stage.log || fail "one LUN, two volumes: $(cat stage.log)"
# So it would as another initiator, and by another target that shows the same disk.
! by_hand another 5 block -another "${chap[@]}" --context "initiatorName=$machine" || fail "one LUN became two volumes by its initiator"
grep -q FAILED_PRECONDITION stage.log || fail "one LUN, two initiators: $(cat stage.log)"
second=iqn.2026-11.dev.example:second
lio_target $second 127.0.0.1:3260
lio_lun $second 0 two
lio_acl $second $machine 'user one' "$password"
! target_name=$second by_hand another 0 block -another "${chap[@]}" || fail "one disk became two volumes"
grep -q "FAILED_PRECONDITION.*LUN 5 of $target_name" stage.log || fail "one disk, two targets: $(cat stage.log)"
is "$target_name" "$(iscsi_sessions | cut -d ' ' -f 1)" "sessions after the refusal"
is "sda sdb" "$(scsi_disks | xargs)" "disks after the refusal"
lio_remove_target $second

# The last LUN takes the session with it, and another driver process than the one that logged in does it.
unstage some/thing#1
is "sdb" "$(scsi_disks)" "the disks after the first was unstaged"
is 1 "$(iscsi_sessions | wc -l)" "sessions after the first was unstaged"
kill_driver
start_driver
call unpublish-volume raw --target "$target-raw" >/dev/null
unstage raw -raw
nothing_is_connected "after unstage"
is '' "$(ls "$DIR/state/iscsi/san")" "what the node remembers"
unstage raw -raw

# Again, by mutual CHAP; what was written is there.
lio_acl $target_name $machine 'user one' "$password" 'the target' 'a secret of the target'
! by_hand some/thing#1 0 ext4 '' --secret-file node.session.auth.username=user --secret-file node.session.auth.password=password_in ||
    fail "staged with a wrong password"
grep -q PERMISSION_DENIED stage.log || fail "a wrong password: $(cat stage.log)"
nothing_is_connected "after a refused password"
mutual=("${chap[@]}" --secret-file node.session.auth.username_in=user_in --secret-file node.session.auth.password_in=password_in)
by_hand some/thing#1 0 ext4 '' "${mutual[@]}" || fail "mutual CHAP: $(cat stage.log)"
is 'what was written' "$(cat "$staging/file")" "what was written before"

# iscsid starts anew, the target goes and comes back: the session continues, by what the kernel keeps.
kill -TERM "$iscsid_pid"
within 10 eval '! kill -0 $iscsid_pid 2>/dev/null'
setsid iscsid -f >>iscsid.log 2>&1 &
iscsid_pid=$!
within 10 iscsid_answers
lio_down $target_name
within 20 eval 'iscsi_sessions | grep -q FAILED'
(dd if=/dev/zero of="$staging/during" bs=64k count=64 conv=fsync status=none && touch wrote) &
writer=$!
lio_up $target_name
wait $writer || fail "writing failed while the target was away"
is "$target_name 127.0.0.1:3260 $machine LOGGED_IN" "$(iscsi_sessions)" "the session after the target's restart"
unstage some/thing#1
nothing_is_connected "at the end"

# A driver in a container has an iscsiadm of its own, perhaps of another version than iscsid: that of iscsid's files is run.
stop_driver
: >spied/processes
printf '#!/bin/sh\nexit 12\n' >broken
chmod 755 broken
around_driver=(unshare --mount --propagation private sh -c "mount --bind $DIR/broken /usr/sbin/iscsiadm && exec \"\$@\"" sh)
start_driver
if nsenter --mount --target "$driver_pid" iscsiadm; then fail "the driver's own iscsiadm works: this proves nothing"; fi
by_hand some/thing#1 0 ext4 '' "${chap[@]}" || fail "not staged by a driver in a container: $(cat stage.log)"
is "$target_name 127.0.0.1:3260 $machine LOGGED_IN" "$(iscsi_sessions)" "the session of a driver in a container"
unstage some/thing#1
nothing_is_connected "of a driver in a container"
[ -s spied/processes ] || fail "iscsiadm of the machine was not run"

# Who calls itself iscsid and listens at its socket, as any pod in the node's network may, is asked nothing.
kill -TERM "$iscsid_pid"
within 10 eval '! kill -0 $iscsid_pid 2>/dev/null'
setpriv --bounding-set -sys_admin perl -MSocket -e '$0 = "iscsid"; socket(my $socket, PF_UNIX, SOCK_STREAM, 0) or die;
    bind($socket, pack_sockaddr_un("\0ISCSIADM_ABSTRACT_NAMESPACE")) && listen($socket, 5) or die; sleep 60' &
impostor=$!
within 10 iscsid_answers
before=$(stat -c %s spied/processes)
! by_hand some/thing#1 0 ext4 '' "${chap[@]}" || fail "staged by an impostor"
grep -q 'is not root with CAP_SYS_ADMIN' stage.log || fail "an impostor is not named: $(cat stage.log)"
is "$before" "$(stat -c %s spied/processes)" "what was seen of iscsiadm, which is run for no impostor"
kill $impostor
wait $impostor 2>/dev/null || true
call unstage-volume some/thing#1 --staging "$staging" >/dev/null
nothing_is_connected "after an impostor"

# The secrets are in no file of open-iscsi or of ours, in no process's arguments or environment, in no log. In the database that
# iscsiadm saw, only root could have read them.
stop_driver
mv /usr/sbin/iscsiadm.real /usr/sbin/iscsiadm
[ -s spied/processes ] && grep -q 'iscsi/nodes.* 600' spied/files || fail "iscsiadm was not looked at: $(cat spied/files)"
! grep 'iscsi/nodes' spied/files | grep -qv ' 600$' || fail "others may read a record: $(cat spied/files)"
places=(/etc/iscsi /var/lib/iscsi /run/lock "$DIR/state" "$DIR/driver.log" "$DIR/iscsid.log" "$DIR/stage.log" spied)
for secret in "$password" 'a secret of the target'; do
    ! grep -raqF "$secret" "${places[@]}" 2>/dev/null || fail "a secret is in $(grep -ralF "$secret" "${places[@]}")"
done
is '' "$(find /etc/iscsi /var/lib/iscsi -type f ! -name iscsid.conf ! -name initiatorname.iscsi 2>/dev/null)" "files of open-iscsi"
initiator_stop
lio_stop

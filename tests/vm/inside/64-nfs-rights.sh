#!/bin/bash
# What a server does not let its clients do: an export that squashes root, and files that nobody may remove.
# about 28 s
set -euo pipefail
# shellcheck source=lib.bash
. "$(dirname "$0")/lib.bash"
# shellcheck source=nfs.bash
. "$(dirname "$0")/nfs.bash"

nfs_image xfs open
nfs_image xfs squashed
nfs_serve open
exportfs -o rw,sync,root_squash,no_subtree_check,fsid=9 "127.0.0.1:$DIR/squashed"
cat >config.yaml <<END
backends:
  - {name: nfs, type: nfs, shares: [{server: 127.0.0.1, share: $DIR/open, mountOptions: [nfsvers=4.2]}]}
  - {name: strict, type: nfs, shares: [{server: 127.0.0.1, share: $DIR/squashed, mountOptions: [nfsvers=4.2]}]}
END
longshore serve --endpoint "$endpoint" --node-id vm --state-dir "$DIR/state" --kubelet-dir "$DIR/kubelet" --config config.yaml >>driver.log 2>&1 &
driver_pid=$!
answers() { call get-plugin-info >/dev/null 2>&1; }
within 20 answers
make() { call create-volume --name "$1" --size 64MiB "${@:2}" >/dev/null 2>refused; }
squashed() { ls -A squashed; }

# Root is nobody there, and may not make a thing: the error says what the server's operator must do, and nothing is left.
if make a --parameter backend=strict; then fail "made where root may not"; fi
grep -q 'UNAVAILABLE.*no_root_squash' refused || fail "no remedy in the error: $(cat refused)"
# The other backend serves, so that the driver is ready; the health of the storage names the one that cannot be used.
health_says_why() { call probe >/dev/null && call storage-health | grep -q no_root_squash; }
within 30 health_says_why
is '' "$(squashed)" "what is on the share"

# Given to nobody, it serves, but for what only root could do.
chown 65534:65534 squashed
within 30 make a --parameter backend=strict
is '777 65534' "$(stat -c '%a %u' squashed/a)" "the volume's directory"
if make b --parameter backend=strict --parameter uid=7; then fail "a directory was given away by nobody"; fi
grep -q 'no_root_squash' refused || fail "giving away: $(cat refused)"
is ". .. .longshore a" "$(ls -a squashed | xargs)" "what is on the share"
is '' "$(ls squashed/.longshore/drafts)" "drafts after a refusal"
context=(--context server=127.0.0.1 --context "share=$DIR/squashed" --context subDir=a)
mkdir -p "$staging"
call stage-volume strict:a --staging "$staging" "${context[@]}" >/dev/null
call publish-volume strict:a --staging "$staging" --target "$target" "${context[@]}" >/dev/null
echo mine >"$target/file"
mkdir -p "$target/full/deep" "$target/closed"
touch "$target/full/file" "$target/full/deep/file"
chmod 0 "$target/closed" "$target/full/deep"
chmod 0500 "$target/full"
is '65534 65534' "$(stat -c %u squashed/a/file squashed/a/closed | xargs)" "whose the files are"
call unpublish-volume strict:a --target "$target" >/dev/null
call unstage-volume strict:a --staging "$staging" >/dev/null
# A directory that is closed to all is emptied, too.
delete strict:a
gone() { [ -z "$(ls squashed/.longshore/trash)" ]; }
within 30 gone
is '. .. .longshore' "$(ls -a squashed | xargs)" "what is on the share"

# A file that nobody may remove: the volume is gone at once, the file is reported, and goes when it may.
make c
mkdir -p open/c/deep
echo x | tee open/c/{file,other,deep/file} >/dev/null
chattr +i open/c/deep/file
delete nfs:c
[ ! -e open/c ] || fail "it is still in its place"
left() { [ "$(find open/.longshore/trash -type f | wc -l)" = 1 ]; }
within 30 left
reported() { grep -q 'not all of the trash can be removed.*Operation not permitted' driver.log; }
within 30 reported
chattr -i "$(find open/.longshore/trash -type f)"
emptied() { [ -z "$(ls open/.longshore/trash)" ]; }
within 60 emptied

# A volume's own directory that may not be moved stays what it is, and the call says why; its repeat ends it.
make d
echo mine >open/d/file
chattr +i open/d
if call delete-volume nfs:d >/dev/null 2>refused; then fail "it was deleted: $(ls -a open)"; fi
grep -q 'Operation not permitted' refused || fail "no cause in the error: $(cat refused)"
is mine "$(cat open/d/file)" "what is in it"
chattr -i open/d
delete nfs:d
within 30 emptied
stop_driver
nfs_end

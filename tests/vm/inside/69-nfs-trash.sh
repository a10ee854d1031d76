#!/bin/bash
# What is large, deep or planted goes from an NFS share without harm: a volume of 100,000 files is deleted in an instant, its files
# go behind that, after a kill too; and a server that is away, or comes back with another file system handle, stops nothing for ever.
# about 80 s
set -euo pipefail
# shellcheck source=lib.bash
. "$(dirname "$0")/lib.bash"
# shellcheck source=nfs.bash
. "$(dirname "$0")/nfs.bash"

nfs_image xfs data
nfs_serve data
cat >config.yaml <<END
backends:
  - name: nfs
    type: nfs
    shares: [{server: 127.0.0.1, share: $DIR/data, mountOptions: [nfsvers=4.2, timeo=20, retrans=1]}]
END
start_driver
make() { call create-volume --name "$1" --size 4MiB | jq -er .volume.volume_id; }
now() { echo "${EPOCHREALTIME/./}"; }
milliseconds() { echo $((($(now) - $1) / 1000)); }
# What is still to be removed, while it is being removed.
trash() { { find data/.longshore/trash -mindepth 1 2>/dev/null || true; } | wc -l; }

# Deep, with links at the bottom. Emulated, a level takes 20 ms and more: thousands of them are a unit test's.
mkdir -p outside
echo precious >outside/file
deep=$(make deep)
level=$(printf 'd/%.0s' {1..300})
mkdir -p "data/deep/$level"
ln -s "$DIR/outside" "data/deep/${level}out"
ln -s /etc "data/deep/${level}etc"
delete "$deep"
emptied() { [ -z "$(ls -A data/.longshore/trash)" ]; }
start=$(now)
within 120 emptied
levels=$(milliseconds "$start")
is precious "$(cat outside/file)" "what a link at the bottom led to"
[ -s /etc/passwd ] || fail "/etc was reached"

# Large.
large=$(make large)
mkdir data/large/{1..10}
for directory in data/large/*; do (cd "$directory" && seq 10000 | xargs touch); done
start=$(now)
delete "$large"
took=$(milliseconds "$start")
[ ! -e data/large ] || fail "it is still there"
[ "$took" -lt 5000 ] || fail "it took $took ms to delete 100,000 files"
left=$(trash)
[ "$left" -gt 90000 ] || fail "the call waited for the removal: $left are left"
call storage-health | grep -q 'files and directories so far' || fail "no progress is reported: $(call storage-health)"
fewer() { [ "$(trash)" -lt "$1" ]; }
within 60 fewer $((left - 250))
kill_driver
left=$(trash)
start_driver
call list-volumes >/dev/null
within 60 fewer $((left - 250))

# The server is away: reported in seconds, at once to anyone who comes next; and all continues when it is back.
other=$(make other)
nfs_stop
start=$(now)
if make more >refused 2>&1; then fail "made without a server"; fi
grep -qi 'cannot be reached' refused || fail "not in the error: $(cat refused)"
first=$(milliseconds "$start")
start=$(now)
if make more >refused 2>&1; then fail "made without a server"; fi
again=$(milliseconds "$start")
[ "$first" -lt 20000 ] && [ "$again" -lt 20000 ] || fail "it took $first ms and $again ms to be reported"
call storage-health | grep -q ShareUnreachable || fail "its health does not say so: $(call storage-health)"
nfs_start
back() { make more >/dev/null 2>&1; }
within 60 back
[ -d data/more ] || fail "the volume is not there"

# The same directory under another handle: what was mounted is stale.
nfs_stop
sed -i 's/fsid=1/fsid=77/' /etc/exports
exportfs -ua
nfs_start
deleted() { delete "$other" 2>/dev/null; }
within 60 deleted
[ ! -e data/other ] || fail "the volume is still there"
grep -q 'mounted anew' driver.log || fail "nothing was stale: this proved nothing"
stop_driver
echo "FIGURE: nfs trash: $took ms to delete a volume of 100000 files, $levels ms until 300 levels are removed, $first ms until a dead server is reported"
nfs_end

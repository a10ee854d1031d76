#!/bin/bash
# The controller of an NFS backend against the kernel's own server: a mount that nobody sees, volumes made, found, listed, grown,
# kept and deleted, snapshots by the server, a full trash, one controller at a time, over NFS 4.2 on xfs and NFS 3 on ext4.
# about 39 s
# in make test
set -euo pipefail
# shellcheck source=lib.bash
. "$(dirname "$0")/lib.bash"
# shellcheck source=nfs.bash
. "$(dirname "$0")/nfs.bash"

nfs_image xfs fast
nfs_image ext4 slow
nfs_serve fast slow
cat >config.yaml <<END
backends:
  - name: nfs
    type: nfs
    shares:
      - {server: 127.0.0.1, share: $DIR/fast, mountOptions: [nfsvers=4.2], capacity: 1GiB}
      - {server: 127.0.0.1, share: $DIR/slow, mountOptions: [nfsvers=3], capacity: 512MiB}
END
start_driver

make() { # make NAME [ARGUMENT...]: prints the volume's id
    local name=$1
    shift
    call create-volume --name "$name" --size 64MiB "$@" | jq -er .volume.volume_id
}
on() { echo --parameter "share=$DIR/$1"; } # the share of a new volume
listed() { call list-volumes | jq -r '.entries[].volume.volume_id' | sort; }
# refused WORDS COMMAND...: it fails, and says so
refused() {
    local words=$1
    shift
    if "$@" >refused 2>&1; then fail "it was done: $*"; fi
    grep -q "$words" refused || fail "not in the error: $words, but: $(cat refused)"
}

# Nobody sees the mounts: not in this namespace, nor in the driver's; but the server has a client.
one=$(make one)
is '' "$(grep -h ' nfs4\? ' /proc/self/mountinfo "/proc/$driver_pid/task/"*/mountinfo || true)" "mounts of NFS that can be seen"
is 777 "$(stat -c %a fast/one)" "the mode of a volume's directory"
is 700 "$(stat -c %a fast/.longshore)" "the mode of our own"
is "$one" "$(make one)" "the same call again"

# Both versions, with owner, mode and template; found again by their ids alone.
# shellcheck disable=SC2046
two=$(make two $(on slow) --parameter mountPermissions=2750 --parameter uid=7 --parameter gid=8)
is '2750 7 8' "$(stat -c '%a %u %g' slow/two)" "mode and owner"
claim=(--parameter "csi.storage.k8s.io/pvc/name=data" --parameter "csi.storage.k8s.io/pvc/namespace=shop")
# shellcheck disable=SC2016,SC2046
three=$(make three $(on fast) --parameter 'subDir=${pvc.metadata.namespace}/${pvc.metadata.name}' "${claim[@]}")
[ -d fast/shop/data ] || fail "the template was not filled in"
is "$(printf 'nfs:%s\n' one three two)" "$(listed)" "the volumes"
mkdir fast/foreign
echo mine >fast/foreign/file
ln -s /etc fast/link
refused 'fast/foreign' make four --parameter subDir=foreign --parameter "share=$DIR/fast"
refused 'fast/link' make four --parameter subDir=link/etc --parameter "share=$DIR/fast"
refused 'subDir' make four --parameter subDir=../four
refused 'extra-create-metadata' make four --parameter 'subDir=${pvc.metadata.name}'
refused 'is no share that' make four --parameter server=elsewhere
refused 'fast/shop/data' make four --parameter subDir=shop/data/in --parameter "share=$DIR/fast"
refused 'left to provision' call create-volume --name five --size 2GiB
is mine "$(cat fast/foreign/file)" "a directory of someone else"

# Growth changes the record only.
call expand-volume "$one" --size 900MiB >/dev/null
refused 'left to provision' call expand-volume "$one" --size 2GiB

# A snapshot by the server: no byte goes over the network, and on xfs none is written.
head -c 8M /dev/urandom >fast/one/data
mkdir fast/one/dir
truncate -s 32M fast/one/dir/sparse
chown 1000:2000 fast/one/dir
setfattr -n user.colour -v blue fast/one/data
ln fast/one/data fast/one/dir/hard
ln -s /etc/shadow fast/one/link
chmod 4711 fast/one/data
touch -d '2001-02-03 04:05:06.123456789' fast/one/dir
setfacl -m u:7:rx fast/one/dir
sync
before=$(stat -f -c %f fast)
ready() { call list-snapshots | jq -e ".entries[].snapshot | select(.snapshot_id == \"$1\") | .ready_to_use" >/dev/null; }
snapshot=$(call create-snapshot "$one" --name nightly | jq -er .snapshot.snapshot_id)
within 30 ready "$snapshot"
sync
[ $((before - $(stat -f -c %f fast))) -lt 1024 ] || fail "the snapshot took room"
echo changed >fast/one/dir/later
restored() { call create-volume --name "$1" --size 900MiB --from-snapshot "$snapshot" --parameter "share=$DIR/$2" >/dev/null 2>refused; }
delete "$two"
seen() { # seen DIRECTORY: all that makes its files what they are, but links' counts of directories
    (cd "$1" && find . -printf '%P %M %U %G %T@ %l %s\n' | grep -v '^ \|^dir d' | sort && find dir -maxdepth 0 -printf '%M %U %G %T@\n' &&
        sha256sum data && stat -c %h data)
}
listed_rights() { (cd "$1" && getfattr -d data && getfacl -np dir); }
rm fast/one/dir/later
touch -d '2001-02-03 04:05:06.123456789' fast/one/dir
refused 'left to provision' call create-volume --name back --size 900MiB --from-snapshot "$snapshot" --parameter "share=$DIR/fast"
stop_driver
sed -i 's/1GiB/4GiB/; s/512MiB/4GiB/' config.yaml
start_driver
is "$(printf 'nfs:%s\n' one three)" "$(listed)" "the volumes after a restart"
for share in fast slow; do
    within 60 restored "back-$share" "$share"
    seen fast/one >wanted
    seen "$share/back-$share" >got
    diff wanted got || fail "what was restored to $share differs"
    # NFS 3 has neither of NFS 4's lists nor extended attributes, and it is said that they were left out.
    if [ "$share" = fast ]; then
        diff <(listed_rights fast/one) <(listed_rights fast/back-fast) || fail "extended attributes or rights were lost"
    else
        grep -q 'lost=' driver.log || fail "nothing was said of what NFS 3 cannot have"
    fi
    [ "$(du -m "$share/back-$share/dir/sparse" | cut -f1)" -le 1 ] || fail "holes were filled on $share"
    delete "nfs:back-$share"
done

# NFS 3 does not report holes: a file of 15 TiB without data would be read for hours. On NFS 4.2 its copy is made at once.
for share in fast slow; do
    sparse=$(call create-volume --name "sparse-$share" --size 16MiB --parameter "share=$DIR/$share" | jq -er .volume.volume_id)
    truncate -s 15T "$share/sparse-$share/file"
done
within 30 call create-volume --name copied --size 16MiB --from-volume nfs:sparse-fast --parameter "share=$DIR/fast" >/dev/null
is 15T "$(numfmt --to=iec "$(stat -c %s fast/copied/file)")" "the copy's size"
refused 'does not report holes' call create-snapshot "$sparse" --name sparse
for name in copied sparse-fast sparse-slow; do delete "nfs:$name"; done

# One controller at a time.
longshore serve --endpoint "unix://$DIR/second.sock" --node-id vm --state-dir "$DIR/second" --kubelet-dir "$DIR/kubelet2" \
    --config config.yaml >second.log 2>&1 &
second=$!
second_up() { [ -S second.sock ]; }
within 20 second_up
# It is on standby, and names the one that provisions.
refused 'provisions from it; this one does' longshore call --endpoint "unix://$DIR/second.sock" create-volume --name six --size 1MiB
kill -TERM $second
wait $second || true

# A full volume goes at once, its files later; a killed driver continues. None of what the links lead to goes.
mkdir -p outside
echo precious >outside/file
(cd fast/shop/data && mkdir -p a/b && seq -f 'a/b/%g' 800 | xargs touch)
ln -s "$DIR/outside" fast/shop/data/a/out
chmod 000 fast/shop/data/a
start=${EPOCHREALTIME/./}
delete "$three"
took=$(((${EPOCHREALTIME/./} - start) / 1000))
[ ! -e fast/shop ] || fail "the directory, or its parent, is still there"
trash() { find fast/.longshore/trash slow/.longshore/trash -mindepth 1 | wc -l; }
left=$(trash)
[ "$left" -gt 100 ] || fail "only $left of 800 files are left to be removed behind the call"
kill_driver
start_driver
emptied() { call probe >/dev/null && call list-volumes >/dev/null && [ "$(trash)" = 0 ]; }
within 120 emptied
is precious "$(cat outside/file)" "what a link led to"

call delete-snapshot "$snapshot" >/dev/null
delete "$one"
within 60 emptied
is '' "$(listed)" "volumes at the end"
is "$(printf '%s\n' .longshore foreign link)" "$(ls -A fast)" "what is left on the share"
is '' "$(find fast/.longshore slow/.longshore -mindepth 2)" "what is left in our own directories"
stop_driver
echo "FIGURE: nfs controller: $took ms to delete a volume of 800 files"
nfs_end

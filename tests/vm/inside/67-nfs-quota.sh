#!/bin/bash
# Capacities of NFS volumes enforced by xfs project quotas, where the controller runs on the server: no byte more than was provisioned,
# room for more after growth, a copy that counts as its own, and nothing left of a project that is gone.
# about 28 s
set -euo pipefail
# shellcheck source=lib.bash
. "$(dirname "$0")/lib.bash"
# shellcheck source=nfs.bash
. "$(dirname "$0")/nfs.bash"

nfs_image xfs data -o prjquota
nfs_serve data
cat >config.yaml <<END
backends:
  - name: nfs
    type: nfs
    shares: [{server: 127.0.0.1, share: $DIR/data, mountOptions: [nfsvers=4.2], quota: $DIR/data}]
END
start_driver
mkdir tenant

make() { call create-volume --name "$@" | jq -er .volume.volume_id; }
# Anyone who has the volume mounted: writes so many MiB, which fits or does not.
writes() { # writes DIRECTORY MIB
    mount -t nfs -o nfsvers=4.2,soft,timeo=100 "127.0.0.1:$DIR/data/$1" tenant
    local status=0
    dd if=/dev/urandom of=tenant/data bs=1M count="$2" conv=fsync,notrunc 2>dd.log || status=$?
    umount tenant
    return $status
}
bytes() { du -m "data/$1" | tail -1 | cut -f1; }
projects() { xfs_quota -x -c 'report -p -N -b' data | awk '$1 != "#0" && ($2 > 0 || $4 > 0) { print $4 }'; }

one=$(make one --size 32MiB)
is 32768 "$(projects)" "the limit in KiB of the only project"
writes one 16 || fail "half of it does not fit: $(cat dd.log)"
if writes one 48; then fail "more than was provisioned was written"; fi
grep -q 'No space left\|quota exceeded' dd.log || fail "not the limit: $(cat dd.log)"
[ "$(bytes one)" -le 32 ] || fail "$(bytes one) MiB in a volume of 32"
call expand-volume "$one" --size 64MiB >/dev/null
is 65536 "$(projects)" "the limit after growth"
writes one 48 || fail "no room after growth: $(cat dd.log)"

# A copy has a project of its own, though it shares its source's blocks.
copied() { call create-volume --name two --size 64MiB --from-volume "$one" >/dev/null 2>copied.log; }
within 60 copied
is "$(printf '65536\n65536')" "$(projects)" "the limits of both"
cmp data/one/data data/two/data || fail "the copy differs"
if writes two 80; then fail "more than was provisioned was written into the copy"; fi

for volume in "$one" nfs:two; do delete "$volume"; done
gone() { call list-volumes >/dev/null && [ "$(find data/.longshore/trash -mindepth 1 | wc -l)" = 0 ] && [ -z "$(projects)" ]; }
within 60 gone
stop_driver

# What is not the export is not taken for it.
mkdir other
sed -i "s,quota: $DIR/data,quota: $DIR/other," config.yaml
start_driver
if make three --size 4MiB >refused 2>&1; then fail "made without its quota"; fi
grep -q quota refused || fail "not in the error: $(cat refused)"
[ ! -e data/three ] && [ -z "$(find data/.longshore/volumes data/.longshore/drafts -mindepth 1)" ] || fail "something was left"
stop_driver
nfs_end

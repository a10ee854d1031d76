# What every test inside the virtual machine has: a driver with one image pool, and short names for calls to it.
# $DIR is the test's directory, which is also the current one. Tests run under `set -euo pipefail`.
# shellcheck shell=bash

endpoint=unix://$DIR/csi.sock
staging=$DIR/kubelet/staging
target=$DIR/kubelet/target
around_driver=() # with what the driver is started, such as in namespaces of its own
driver_pid=''
mkdir -p "$DIR/kubelet"

fail() {
    echo "FAILED: $*"
    exit 1
}

skip() {
    echo "SKIPPED: $*"
    exit 77
}

# is EXPECTED ACTUAL WHAT
is() { [ "$1" = "$2" ] || fail "$3: expected '$1', is '$2'"; }

# within SECONDS COMMAND...: the command must come true in that time.
within() {
    # An emulated processor that shares the machine with other tests is several times slower.
    local end=$((SECONDS + 4 * $1))
    shift
    until "$@"; do
        [ $SECONDS -lt $end ] || fail "not within the time: $*"
        sleep 0.1
    done
}

# pool FS: a file system of its own, mounted on $DIR/pool, for the driver's images.
pool() {
    truncate -s 4G pool.img
    case $1 in
    xfs) mkfs.xfs -q -m reflink=1 pool.img ;;
    *) "mkfs.$1" -q pool.img ;;
    esac
    mkdir pool
    mount -o loop pool.img pool
    printf 'backends:\n  - {name: image, type: image, pools: [{name: default, path: %s/pool/images}]}\n' "$DIR" >config.yaml
}

unpool() {
    umount pool
    rmdir pool
}

driver_ready() {
    kill -0 "$driver_pid" 2>/dev/null || fail "the driver ended at its start"
    [ -S "$DIR/csi.sock" ] && call probe >/dev/null 2>&1
}

# One that may not be ready is not waited for until it is.
launch_driver() {
    "${around_driver[@]}" longshore serve --endpoint "$endpoint" --node-id vm --state-dir "$DIR/state" --kubelet-dir "$DIR/kubelet" \
        --config config.yaml >>driver.log 2>&1 &
    driver_pid=$!
}

start_driver() {
    launch_driver
    within 20 driver_ready
}

# Asks the driver to end, and sees that it ends well.
stop_driver() {
    kill -TERM "$driver_pid"
    wait "$driver_pid" || fail "the driver ended with status $?"
}

kill_driver() {
    kill -KILL "$driver_pid"
    wait "$driver_pid" 2>/dev/null || true
}

call() { longshore call --endpoint "$endpoint" --json "$@"; }

# How a volume is to be used: a file system's name, or `block`.
usage() { if [ "$1" = block ]; then echo --block; else echo "--fs=$1"; fi; }

# create NAME SIZE FS [ARGUMENT...]: prints the volume's id.
create() {
    local name=$1 size=$2 fs=$3
    shift 3
    call create-volume --name "$name" --size "$size" "$(usage "$fs")" "$@" | jq -er .volume.volume_id
}

# stage ID FS [NAME] and its inverse; NAME tells several volumes of one test apart.
stage() { mkdir -p "$staging${3:-}" && call stage-volume "$1" --staging "$staging${3:-}" "$(usage "$2")" >/dev/null; }
publish() { call publish-volume "$1" --staging "$staging${3:-}" --target "$target${3:-}" "$(usage "$2")" >/dev/null; }
unpublish() { call unpublish-volume "$1" --target "$target${2:-}" >/dev/null; }
unstage() { call unstage-volume "$1" --staging "$staging${2:-}" >/dev/null; }
delete() { call delete-volume "$1" >/dev/null; }

# Bytes of the file system mounted at a place.
size_of() { echo $(($(stat -f -c '%b * %S' "$1"))); }

# The loop devices of the driver: all but the pool's.
volume_loops() { losetup -n -l -O NAME,BACK-FILE | grep -v pool.img || true; }

# grows_online FS FROM TO LEAST: a volume grows from FROM to TO while it is mounted and written to. Afterwards the kernel shows
# at least LEAST bytes, and every byte written before, during and after is there.
grows_online() {
    local fs=$1 from=$2 to=$3 least=$4 id before writer
    pool xfs
    start_driver
    id=$(create grow "$from" "$fs")
    stage "$id" "$fs"
    publish "$id" "$fs"
    is "$fs" "$(findmnt -n -o FSTYPE "$target")" "the file system at the target"
    before=$(size_of "$target")
    head -c 8M /dev/urandom >"$target/before"
    cp "$target/before" before

    # Writes on until it is asked to end, each line on the disk before the next.
    (
        line=0
        until [ -e stop ]; do
            echo "line $((line += 1))" >>"$target/during"
            sync -d "$target/during"
        done
        echo "$line" >lines
    ) &
    writer=$!
    within 10 test -s "$target/during"
    call expand-volume "$id" --size "$to" >/dev/null
    call node-expand-volume "$id" --path "$target" --staging "$staging" --size "$to" >/dev/null
    touch stop
    wait "$writer" || fail "writing failed while the volume grew"

    [ "$(size_of "$target")" -ge "$least" ] || fail "it was $before bytes and is $(size_of "$target"), not $least"
    # More than would have gone into it before.
    head -c $((before + 1048576)) /dev/zero >"$target/after"
    rm "$target/after"
    unpublish "$id"
    unstage "$id"
    is '' "$(volume_loops)" "loop devices after unstage"

    # As a check leaves a superblock that was killed: the number of mounts is there, its checksum is not. It is compared with a backup
    # that the kernel wrote when the file system grew.
    [ "$fs" != ext4 ] || printf '\377' | dd of="$(echo pool/images/volumes/*/image)" bs=1 seek=1076 conv=notrunc status=none

    # Nothing in a page cache: read what the disk has.
    stage "$id" "$fs"
    [ "$fs" != ext4 ] || grep -q 'an earlier check was interrupted' driver.log || fail "its superblock was not completed"
    publish "$id" "$fs"
    cmp before "$target/before" || fail "data written before the growth changed"
    is "$(seq -f 'line %g' "$(cat lines)" | sha256sum)" "$(sha256sum <"$target/during")" "what was written during the growth"
    unpublish "$id"
    unstage "$id"
    delete "$id"
    stop_driver
    unpool
}

# sanity SETUP: the official suite. Its logs go to $OUT.
sanity() {
    local here status=0
    here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
    LONGSHORE=$here/longshore SUITE=$here/suite TMPDIR=$DIR "$here/csi-sanity/run" "$1" >sanity.log 2>&1 || status=$?
    cat sanity.log
    sed -n 's/^csi-sanity \([^:]*\): /FIGURE: csi-sanity \1: /p' sanity.log
    [ $status = 0 ] || tar -C "$here/target/csi-sanity" -czf "$OUT/sanity-$1.tar.gz" .
    return $status
}

# matrix KIND: those of the matrices whose names hold it, one at a time: what they look at is the whole machine's.
matrix() {
    local here
    here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
    export LONGSHORE=$here/longshore
    "$here/matrix" "$1" --test-threads=1 --show-output 2>&1 | grep -v '^fault: '
    [ "${PIPESTATUS[0]}" = 0 ]
}

# peers BACKEND TEST...: those tests of tests/peers, with volumes of this backend.
peers() {
    local here test
    here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
    export LONGSHORE=$here/longshore LONGSHORE_PEERS=$1
    shift
    for test; do
        "$here/peers" --exact "$test" --test-threads=1 --show-output 2>&1 | grep -v '^fault: '
        [ "${PIPESTATUS[0]}" = 0 ] || return 1
    done
}

#!/bin/bash
# Runs inside the virtual machine: each name in ./tests as one test, in a directory of its own on the root image. Its verdict and
# seconds go to $OUT/NAME.verdict, what it printed to $OUT/NAME.log. Status 77 means skipped. A test may leave no mount and
# no mapping and no loop device; what it leaves fails it and is taken away, so that the next one is not harmed.
set -u

here=$PWD
export PATH=$here:$PATH

mounts() { awk '{ print $5 }' /proc/self/mountinfo; }

# Prints what was left, and takes it away: processes, mounts (last first), mappings, loop devices.
leftovers() {
    local place
    comm -13 <(sort <<<"$mounts_before") <(mounts | sort) | sed 's/^/left mounted: /'
    dmsetup ls | grep -v '^No devices' | sed 's/^/left mapping: /'
    losetup -n -l -O NAME,BACK-FILE | sed 's/^/left loop device: /'
    pkill -KILL -x longshore && echo "left running: longshore"
    mounts | tac | while read -r place; do
        grep -qxF "$place" <<<"$mounts_before" || umount -l "$place"
    done
    dmsetup remove_all
    losetup -D
}

mounts_before=$(mounts)
while read -r test; do
    start=$SECONDS
    DIR=/var/tmp/$test
    mkdir -p "$DIR"
    export DIR
    (cd "$DIR" && timeout -k 5 1500 bash "$here/$test.sh") >"$OUT/$test.log" 2>&1
    status=$?
    case $status in
    0) verdict=PASS ;;
    77) verdict=SKIP ;;
    *) verdict=FAIL ;;
    esac
    left=$(leftovers 2>&1)
    if [ -n "$left" ]; then
        echo "$left" >>"$OUT/$test.log"
        [ $verdict != PASS ] || verdict=FAIL
    fi
    # The test's own words last: what is shown of a failed test is the end.
    [ $verdict != FAIL ] || { tail -n 20 "$DIR/driver.log" 2>/dev/null; cat "$OUT/$test.log"; } >"$OUT/$test.all"
    [ $verdict != FAIL ] || mv "$OUT/$test.all" "$OUT/$test.log"
    # Its images of disks are large, and the root is not.
    rm -rf --one-file-system "$DIR"
    echo "$verdict $((SECONDS - start))" >"$OUT/$test.verdict"
    echo "vm: $verdict $test"
done <tests

#!/bin/bash
# Capacities of directories enforced by project quotas: xfs stops all, ext4 all but root. Numbers from 2^31 on, none of them used again while
# anything has it, also after kills; statistics by the quota; links, clones and restores within it; what is changed behind the driver's back.
# about 60 s
# in make test
set -euo pipefail
# shellcheck source=lib.bash
. "$(dirname "$0")/lib.bash"

nobody=65534
projects() { # projects MOUNT: KiB of each limit, and whose it is
    case $1 in
    xfs) xfs_quota -x -c 'report -p -N -b -n' base | awk '$1 != "#0" && ($2 > 0 || $4 > 0) { print $1, $4 }' | tr -d '#' ;;
    *) repquota -P -n base | awk '$1 ~ /^#[1-9]/ && ($3 > 0 || $5 > 0) { print $1, $5 }' | tr -d '#' ;;
    esac
}
driver_serves() { call get-plugin-info >/dev/null 2>&1; }
limits() { projects "$1" | awk '$2 > 0 { print $2 }' | sort -n | tr '\n' ' '; }
make() { call create-volume --name "$@" | jq -er .volume.volume_id; }
# writes UID FILE MIB: so many MiB, which fit or do not.
writes() { setpriv "--reuid=$1" --clear-groups dd if=/dev/zero of="$2" bs=1M count="$3" conv=fsync,notrunc 2>dd.log; }
quotas_seen() {
    longshore doctor --json --config config.yaml --state-dir "$DIR/state" --kubelet-dir "$DIR/kubelet" >doctor.json 2>doctor.err || true
    jq -e '.checks[] | select(.name == "pool-quota") | .level == "ok"' doctor.json >/dev/null
}
number() { jq -er .project "base/volumes/.longshore/volumes/$1.json"; }
total() { call volume-stats "$1" --path "$target$2" | jq -er '.usage[] | select(.unit == "BYTES") | .total'; }

for fs in xfs ext4; do
    echo "--- $fs"
    truncate -s 2G "$fs.img"
    case $fs in
    xfs) mkfs.xfs -q -m reflink=1 xfs.img ;;
    ext4) mkfs.ext4 -q -O quota,project ext4.img ;;
    esac
    mkdir -p base
    mount -o loop,prjquota "$fs.img" base
    mkdir base/volumes
    printf 'backends:\n  - {name: dir, type: directory, path: %s/base/volumes, quota: required}\n' "$DIR" >config.yaml
    rm -rf --one-file-system state
    start_driver
    case $fs in
    xfs) grep -q 'capacities are enforced by project quotas' driver.log ;;
    ext4) grep -q 'but not for processes of root' driver.log ;;
    esac || fail "who is stopped is not in the log"

    call create-volume --name one --size 32MiB --parameter mountPermissions=0777 | jq -er .volume.volume_id >id
    one=$(cat id)
    is "32768 " "$(limits $fs)" "the limit in KiB of the only project"
    [ "$(number one)" -ge 2147483648 ] || fail "project $(number one) is not one of ours"
    stage "$one" $fs
    publish "$one" $fs
    is $((32 << 20)) "$(total "$one" '')" "the total of its statistics"
    writes $nobody "$target/data" 16 || fail "half of it does not fit: $(cat dd.log)"
    if writes $nobody "$target/data" 48; then fail "more than was provisioned was written"; fi
    grep -q 'No space left\|quota exceeded' dd.log || fail "not the limit: $(cat dd.log)"
    case $fs in
    xfs) if writes 0 "$target/root" 48; then fail "root wrote more than was provisioned"; fi ;;
    ext4) writes 0 "$target/root" 48 || fail "root was stopped, which docs/directory.md denies" ;;
    esac
    rm -f "$target/root"

    # The quota's figure is that of the kernel when it was read.
    sync -f "$target"
    used=$(longshore inspect --json --endpoint "$endpoint" --node-id vm --state-dir "$DIR/state" --kubelet-dir "$DIR/kubelet" --config config.yaml |
        jq -er --arg id "$one" '.volumes[] | select(.id == $id) | .stored.allocated')
    [ "$used" -ge $((16 << 20)) ] && [ "$used" -le $((32 << 20)) ] || fail "inspect shows $used bytes used of 32 MiB"
    # It gives a slow machine only some seconds for each check.
    within 20 quotas_seen

    call expand-volume "$one" --size 64MiB >/dev/null
    is "65536 " "$(limits $fs)" "the limit after growth"
    is $((64 << 20)) "$(total "$one" '')" "the total of its statistics after growth"
    # As a call that was killed before the quota was set leaves it: it is repeated.
    setquota -P "$(number one)" 0 32768 0 0 base
    is "32768 " "$(limits $fs)" "the limit before the growth is repeated"
    call expand-volume "$one" --size 64MiB >/dev/null
    is "65536 " "$(limits $fs)" "the limit after the growth was repeated"
    writes $nobody "$target/data" 48 || fail "no room after growth: $(cat dd.log)"

    # A clone has a project of its own, and its hard links are within it.
    ln "$target/data" "$target/linked"
    copied() { call create-volume --name two --size 64MiB --from-volume "$one" --parameter mountPermissions=0777 >/dev/null 2>copied.log; }
    within 60 copied
    is "65536 65536 " "$(limits $fs)" "the limits of both"
    cmp base/volumes/one/data base/volumes/two/data || fail "the copy differs"
    is 2 "$(stat -c %h base/volumes/two/data)" "the links of the copy"
    [ "$(number two)" != "$(number one)" ] || fail "both have project $(number one)"
    if writes $nobody base/volumes/two/more 32; then fail "more than was provisioned was written into the copy"; fi
    # No link and no rename leads from one volume into another.
    if ln base/volumes/two/data base/volumes/one/stolen 2>link.log; then fail "a file was linked into another volume"; fi

    # What someone changes is reported.
    call get-volume-health "$one" >health.json
    if grep -q CapacityNotEnforced health.json; then fail "a sound volume is reported: $(cat health.json)"; fi
    chattr -p 77 base/volumes/two
    call get-volume-health dir:two >health.json
    grep -q CapacityNotEnforced health.json || fail "another project is not reported: $(cat health.json)"
    chattr -p "$(number two)" base/volumes/two

    # A number that files of a deleted volume have is not given to the next one of that name, which hashes to it.
    taken=$(number two)
    call modify-volume dir:two --mutable-parameter onDelete=archive >/dev/null
    delete dir:two
    [ -n "$(find base/volumes/.longshore/archive -name data)" ] || fail "it is not in the archive"
    make two --size 8MiB >/dev/null
    [ "$(number two)" != "$taken" ] || fail "project $taken is used again, which the archive still has"
    is '' "$(find base/volumes/two -mindepth 1)" "what is in the new volume"
    delete dir:two

    # Killed while volumes come and go: no two have one number, and each has its limit.
    for round in 1 2 3; do
        for name in a b c d; do call create-volume --name "$name$round" --size 8MiB >/dev/null 2>&1 & done
        sleep 0.$round
        kill_driver
        wait
        start_driver
        for name in a b c d; do make "$name$round" --size 8MiB >/dev/null; done
    done
    numbers=$(cat base/volumes/.longshore/volumes/*.json | jq -r .project | sort)
    is "$numbers" "$(sort -u <<<"$numbers")" "numbers that are not used twice"
    is 13 "$(wc -l <<<"$numbers")" "volumes with a number"
    for record in base/volumes/.longshore/volumes/*.json; do
        project=$(jq -r .project "$record") kib=$(($(jq -r .capacity "$record") / 1024))
        projects $fs | grep -qx "$project $kib" || fail "$record: project $project has not the limit $kib: $(projects $fs)"
    done
    for round in 1 2 3; do for name in a b c d; do delete "dir:$name$round"; done; done

    # A limit that nothing has is found, and its command removes it; one that people have set is theirs.
    orphans() {
        { longshore inspect --json --endpoint "$endpoint" --node-id vm --state-dir "$DIR/state" --kubelet-dir "$DIR/kubelet" \
            --config config.yaml || true; } | jq -r '.findings[] | select(.kind == "quota-orphaned") | .commands[]'
    }
    is '' "$(orphans)" "orphaned quotas while a volume has one"
    # Someone gave its empty directory another project: health says so, and its limit is its own still.
    make moved --size 8MiB >/dev/null
    chattr -p 77 base/volumes/moved
    is '' "$(orphans)" "orphaned quotas while the directory of a volume has another project"
    chattr -p "$(number moved)" base/volumes/moved
    delete dir:moved
    setquota -P 4000000000 0 1024 0 0 "$DIR/base"
    setquota -P 4711 0 1024 0 0 "$DIR/base"
    remove=$(orphans)
    [[ $remove = "setquota -P 4000000000 0 0 0 0 $DIR/base" ]] || fail "the command for an orphaned quota: $remove"
    eval "$remove"
    is '' "$(orphans)" "orphaned quotas after the command"
    setquota -P 4711 0 0 0 0 "$DIR/base"

    unpublish "$one"
    unstage "$one"
    delete "$one"
    rm -rf --one-file-system base/volumes/.longshore/archive/two-*
    gone() { [ "$(find base/volumes/.longshore/trash -mindepth 1 | wc -l)" = 0 ] && [ -z "$(limits $fs)" ]; }
    within 60 gone
    stop_driver

    # A base that passes its number on is refused; so is one without quotas, where they are required.
    chattr +P -p 5 base/volumes
    launch_driver
    within 20 driver_serves
    if make three --size 4MiB >refused 2>&1; then fail "made in a base that passes its project on"; fi
    grep -q 'chattr -P' refused || fail "no remedy in the error: $(cat refused)"
    stop_driver
    chattr -P -p 0 base/volumes
    umount base
    mount -o loop "$fs.img" base
    launch_driver
    within 20 driver_serves
    if make three --size 4MiB >refused 2>&1; then fail "made without its quota"; fi
    grep -q prjquota refused || fail "no remedy in the error: $(cat refused)"
    [ ! -e base/volumes/three ] && [ -z "$(find base/volumes/.longshore/volumes base/volumes/.longshore/drafts -mindepth 1)" ] ||
        fail "something was left"
    stop_driver
    umount base
done

#!/bin/bash
# A LUKS mapping and its loop device that a killed driver and a lost journal leave: inspect names both, the commands that it prints
# close them, and so does --fix; a mapping and a mount of another program stay.
set -euo pipefail
# shellcheck source=lib.bash
. "$(dirname "$0")/lib.bash"

printf 'a long passphrase' >secret
inspect() {
    longshore inspect --json --endpoint "$endpoint" --node-id vm --state-dir "$DIR/state" --kubelet-dir "$DIR/kubelet" --config config.yaml "$@"
}
mappings() { dmsetup ls --target crypt | grep -v '^No devices' | cut -f1 | sort | tr '\n' ' '; }

pool xfs
start_driver
id=$(create luks 64MiB ext4 --parameter encryption=luks2)
context=longshore.dev/parameters='{"node":{"encryption":"luks2"},"backend":null}'

# Another driver's mapping, whose name begins as ours do.
truncate -s 32M other.img
cryptsetup luksFormat --batch-mode --pbkdf pbkdf2 --pbkdf-force-iterations 1000 other.img secret
cryptsetup open --key-file secret other.img longshore-00000000-image:luks

for round in by-hand fix; do
    mkdir -p "$staging"
    call --timeout 5m stage-volume "$id" --staging "$staging" --fs=ext4 --context "$context" --secret-file encryptionPassphrase=secret >/dev/null
    seen=$(inspect) || fail "$round: a staged volume is not well: $seen"
    is true "$(jq '.volumes[0].mapping.live' <<<"$seen")" "the mapping in the stack"
    is "$(findmnt -n -o SOURCE "$staging")" "$(jq -r '.volumes[0].mapping.path' <<<"$seen")" "the mapping that is mounted"
    kill_driver
    umount "$staging"
    rm -r state/journal/"$id"

    status=0
    seen=$(inspect) || status=$?
    is 1 "$status" "$round: the exit code"
    is 'mapping-unowned device-unowned ' "$(jq -r '.findings[].kind' <<<"$seen" | tr '\n' ' ')" "$round: what is found"
    if [ $round = by-hand ]; then
        jq -r '.findings[].commands[]' <<<"$seen" >commands
        sh -e commands || fail "the printed commands fail: $(cat commands)"
    else
        inspect --fix --yes >fixed || fail "$round: $(cat fixed)"
    fi
    inspect >/dev/null || fail "$round: something is left"
    is 'longshore-00000000-image:luks ' "$(mappings)" "$round: mappings afterwards"
    is '' "$(volume_loops | grep -v other.img)" "$round: loop devices afterwards"
    start_driver
done
cryptsetup close longshore-00000000-image:luks
delete "$id"
stop_driver
unpool

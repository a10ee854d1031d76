#!/bin/bash
# What cannot be: a portal where nobody is, a target and a LUN that are not there, refused CHAP of sessions and of discovery, attributes
# that make no sense. Each is reported by its name and with the right finality, and leaves nothing.
# about 17 s
set -euo pipefail
# shellcheck source=lib.bash
. "$(dirname "$0")/lib.bash"
# shellcheck source=lio.bash
. "$(dirname "$0")/lio.bash"

target_name=iqn.2026-11.dev.example:one
machine=iqn.2026-11.dev.example:machine
for secret in user 'a secret of sessions' discoverer 'a secret of discovery' wrong; do printf '%s' "$secret" >"${secret##* }"; done

printf 'backends:\n  - {name: san, type: iscsi}\n' >config.yaml
lio_start
lio_disk one 64M
lio_target $target_name 127.0.0.1:3260
lio_lun $target_name 0 one
lio_acl $target_name $machine user 'a secret of sessions'
start_driver

# attempt CODE WORD [ATTRIBUTE|SECRET=FILE]...: a stage fails with the code, tells the word, and leaves nothing. Later attributes replace
# those before.
declare -A said
attempt() {
    local code=$1 word=$2 each arguments=()
    said=([targetPortal]=127.0.0.1 [iqn]=$target_name [lun]=0 [sessionCHAPAuth]=true)
    for each in "${@:3}"; do
        case $each in
        node.* | discovery.*) arguments+=(--secret-file "$each") ;;
        *) said[${each%%=*}]=${each#*=} ;;
        esac
    done
    for each in "${!said[@]}"; do arguments+=(--context "$each=${said[$each]}"); done
    mkdir -p "$staging"
    ! call stage-volume it --staging "$staging" --fs=ext4 "${arguments[@]}" >stage.log 2>&1 || fail "staged with ${*:3}"
    grep -q "$code" stage.log || fail "${*:3}: not $code: $(cat stage.log)"
    grep -qF -- "$word" stage.log || fail "${*:3}: does not tell $word: $(cat stage.log)"
    ! grep -q 'a secret of' stage.log || fail "${*:3}: tells a secret"
    nothing_is_connected "with ${*:3}"
    [ "$code" = UNAVAILABLE ] || is '' "$(ls "$DIR/state/journal")" "the journal with ${*:3}"
    ! call node-get-volume-health it 2>&1 | grep VolumeMissing || fail "a target that cannot be reached is data loss with ${*:3}"
    is '' "$(ls "$DIR/state/iscsi/san" 2>/dev/null)" "what is remembered with ${*:3}"
}
user=node.session.auth.username=user
password=node.session.auth.password=sessions

attempt UNAVAILABLE 'iscsid' "$user" "$password"
initiator_start $machine
attempt INVALID_ARGUMENT node.session.auth.username
attempt INVALID_ARGUMENT node.session.auth.password "$user"
attempt INVALID_ARGUMENT node.session.auth.password_in "$user" "$password" node.session.auth.username_in=user
attempt INVALID_ARGUMENT nodeStageSecretRef "$user" "$password" 'secret={"node.session.auth.password":"x"}'
attempt INVALID_ARGUMENT '"1x"' "$user" "$password" lun=1x
attempt INVALID_ARGUMENT 'no such port' "$user" "$password" 'targetPortal=no such port'
attempt INVALID_ARGUMENT 'Portals' "$user" "$password" Portals=127.0.0.1
attempt INVALID_ARGUMENT '../x' "$user" "$password" 'iqn=iqn.2026-11.dev.example:../x'
attempt UNAVAILABLE 127.0.0.9:3260 "$user" "$password" targetPortal=127.0.0.9
attempt UNAVAILABLE no.such.host "$user" "$password" targetPortal=no.such.host
attempt PERMISSION_DENIED $target_name "$user" node.session.auth.password=wrong
attempt PERMISSION_DENIED sessionCHAPAuth sessionCHAPAuth=false
attempt PERMISSION_DENIED iqn.2026-11.dev.example:stranger "$user" "$password" initiatorName=iqn.2026-11.dev.example:stranger
attempt NOT_FOUND iqn.2026-11.dev.example:nobody "$user" "$password" iqn=iqn.2026-11.dev.example:nobody
attempt NOT_FOUND "7 of target $target_name" "$user" "$password" lun=7
attempt NOT_FOUND "300 of target $target_name" "$user" "$password" lun=300
# By CHAP alone a target tells what it has.
lio_discovery_auth discoverer 'a secret of discovery'
attempt INVALID_ARGUMENT discovery.sendtargets.auth.username "$user" "$password" discoveryCHAPAuth=true
attempt PERMISSION_DENIED discovery.sendtargets "$user" "$password" discoveryCHAPAuth=true \
    discovery.sendtargets.auth.username=discoverer discovery.sendtargets.auth.password=wrong

# With all of it right it works, also by the portals that only discovery tells.
call stage-volume it --staging "$staging" --fs=ext4 --context targetPortal=127.0.0.1:3260 --context iqn=$target_name --context lun=0 \
    --context sessionCHAPAuth=true --context discoveryCHAPAuth=true --secret-file "$user" --secret-file "$password" \
    --secret-file discovery.sendtargets.auth.username=discoverer --secret-file discovery.sendtargets.auth.password=discovery \
    >stage.log 2>&1 || fail "discovery by CHAP: $(cat stage.log)"
is "$target_name 127.0.0.1:3260 $machine LOGGED_IN" "$(iscsi_sessions)" "the session"
unstage it
nothing_is_connected "at the end"
stop_driver
! grep -q 'a secret of' driver.log iscsid.log || fail "a secret is in a log"
initiator_stop
lio_stop

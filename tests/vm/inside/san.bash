# What the tests of the iSCSI backend's storage side have beside lib.bash: a controller with a pool that exports on two addresses
# of this machine, and initiators by bare iscsiadm, one for each node, each with a name of its own.
# shellcheck shell=bash
# shellcheck source=lib.bash
. "$(dirname "${BASH_SOURCE[0]}")/lib.bash"
# shellcheck source=lio.bash
. "$(dirname "${BASH_SOURCE[0]}")/lio.bash"

kernel=/sys/kernel/config/target
authority=iqn.2026-11.dev.longshore
portals=(127.0.0.1:3260 127.0.0.2:3260)

# san [YAML FIELD...]: a pool on xfs and the configuration of its controller, with further fields of the backend.
san() {
    modprobe -a iscsi_target_mod target_core_file
    initiator_start "$authority:node:none"
    trap clean_up EXIT
    pool "${POOL_FS:-xfs}"
    configure "$@"
}

# A test that failed must not harm the next one.
clean_up() {
    set +e
    ip link set lo up
    kill -KILL "$driver_pid" 2>/dev/null
    iscsiadm -m session >/dev/null 2>&1 && iscsiadm -m node --logoutall=all >/dev/null 2>&1
    iscsiadm -m node -o delete >/dev/null 2>&1
    initiator_stop
    [ -z "$(exported)" ] || power_off 2>/dev/null
}

configure() {
    {
        echo 'backends:'
        echo "  - {name: san, type: iscsi, pools: [{name: default, path: $DIR/pool/images}]"
        printf '     , portals: ["%s", "%s"]' "${portals[@]}"
        printf '\n     , %s' "$@"
        echo '}'
    } >config.yaml
}

# start_controller [COMMAND...]: by a command that runs the one behind it.
start_controller() {
    "$@" longshore serve --mode controller --endpoint "$endpoint" --node-id vm --state-dir "$DIR/state" --config config.yaml >>driver.log 2>&1 &
    driver_pid=$!
    within 20 driver_ready
}

# attach ID NODE [ARGUMENT...]: the answer lies in ./NODE.context. detach ID NODE.
attach() {
    local id=$1 node=$2
    shift 2
    call controller-publish-volume "$id" --node "$node" --block "$@" | jq -e .publish_context >"$node.context.new" || return
    mv "$node.context.new" "$node.context"
}
detach() { call controller-unpublish-volume "$1" --node "$2" >/dev/null; }

# refused WORDS COMMAND...: the command must fail and say so.
refused() {
    local words=$1
    shift
    if "$@" >refused.out 2>&1; then fail "not refused: $*"; fi
    grep -q -- "$words" refused.out || fail "refused in other words: $(cat refused.out)"
}

said() { jq -er --arg key "$2" '.[$key]' "$1.context"; }

# The initiators: node NODE iscsiadm's node mode for what is attached to a node.
node_record() {
    local node=$1
    shift
    iscsiadm -m node -I "$node" -T "$(said "$node" target)" -p "$(said "$node" portals | cut -d, -f1)" "$@"
}
# log_in NODE: a session of the node's, with what its context says. Status: iscsiadm's.
log_in() {
    local node=$1
    iscsiadm -m iface -I "$node" -o new >/dev/null 2>&1 || true
    iscsiadm -m iface -I "$node" -o update -n iface.initiatorname -v "$(said "$node" initiator)" >/dev/null
    node_record "$node" -o new >/dev/null
    local fields=(-n node.session.initial_login_retry_max -v 1 -n node.session.timeo.replacement_timeout -v "${PATIENCE:-60}")
    if [ "$(jq -r '.chapUser' "$node.context")" != null ]; then
        fields+=(-n node.session.auth.authmethod -v CHAP
            -n node.session.auth.username -v "$(said "$node" chapUser)"
            -n node.session.auth.password -v "${PASSWORD:-$(said "$node" chapPassword)}"
            -n node.session.auth.username_in -v "$(said "$node" mutualUser)"
            -n node.session.auth.password_in -v "$(said "$node" mutualPassword)")
    fi
    node_record "$node" -o update "${fields[@]}"
    node_record "$node" --login >log_in.out 2>&1 || return
    within 20 device_there "$node"
}

log_out() {
    node_record "$1" --logout >/dev/null 2>&1 || true
    iscsiadm -m node -I "$1" -o delete >/dev/null 2>&1 || true
}

session_of() {
    local session
    for session in /sys/class/iscsi_session/session*; do
        [ "$(cat "$session/initiatorname" 2>/dev/null)" != "$(said "$1" initiator)" ] || echo "$session"
    done
}

# The device of a node's session, by the session and never by its name.
device_of() {
    local found
    found=$(ls -d "$(session_of "$1")"/device/target*/*:0/block/* 2>/dev/null) || return
    echo "/dev/$(basename "$found")"
}
device_there() { [ -b "$(device_of "$1")" ]; }

target_of() { echo "$kernel/iscsi/$authority:san:$1"; }
image_of() { echo "$DIR/pool/images/volumes/$1/image"; }

# Whatever of ours the kernel has.
exported() { ls -d "$kernel"/iscsi/iqn.2026-11.dev.longshore:* "$kernel"/core/fileio_*/* 2>/dev/null | grep -v '/hba_' || true; }

# All of it goes from the kernel, as at a power cut.
power_off() {
    local target
    for target in "$kernel"/iscsi/iqn.*; do
        echo 0 >"$target/tpgt_1/enable"
        find "$target/tpgt_1/acls" -type l -delete
        rmdir "$target"/tpgt_1/acls/*/lun_* "$target"/tpgt_1/acls/* "$target"/tpgt_1/np/*
        find "$target/tpgt_1/lun" -maxdepth 2 -type l -delete
        rmdir "$target"/tpgt_1/lun/lun_* "$target/tpgt_1" "$target"
    done
    rmdir "$kernel"/core/fileio_*/longshore-* "$kernel"/core/fileio_*
    is '' "$(exported)" "exports after a power cut"
}

# The end of a test: nothing of ours is in the kernel, nor recorded.
nothing_left() {
    is '' "$(exported)" "what is exported at the end"
    is '' "$(ls "$DIR/pool/images/exports" 2>/dev/null)" "the records of exports at the end"
    is '' "$(volume_loops)" "loop devices at the end"
}

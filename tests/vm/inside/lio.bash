# What tests of iSCSI have: the kernel's own target (LIO), set up by configfs, and an initiator daemon. Source lib.bash before.
# shellcheck shell=bash

lio=/sys/kernel/config/target
iscsid_pid='' multipathd_pid=''

lio_start() {
    modprobe -a target_core_mod target_core_file iscsi_target_mod
    mkdir -p "$lio/iscsi"
}

# lio_disk NAME SIZE [SERIAL]: a disk on the file NAME.img. Its WWID is made of the serial, a UUID.
lio_disk() {
    local disk=$lio/core/fileio_0/$1
    truncate -s "$2" "$1.img"
    mkdir -p "$disk"
    echo "fd_dev_name=$PWD/$1.img,fd_dev_size=$(stat -c %s "$1.img")" >"$disk/control"
    echo "${3:-$(cat /proc/sys/kernel/random/uuid)}" >"$disk/wwn/vpd_unit_serial"
    echo 1 >"$disk/enable"
}

# lio_grow NAME SIZE
lio_grow() {
    truncate -s "$2" "$1.img"
    echo "fd_dev_size=$(stat -c %s "$1.img")" >"$lio/core/fileio_0/$1/control"
}

# As sysfs shows it at the initiator: LIO's NAA identifier is its company id and 25 hexadecimal digits of the serial.
lio_wwid() {
    local serial
    serial=$(sed 's/.*: //; s/-//g' "$lio/core/fileio_0/$1/wwn/vpd_unit_serial")
    echo "naa.6001405${serial:0:25}"
}

# lio_target IQN PORTAL...: a target without LUNs, on these portals (127.0.0.1:3260); who logs in needs an ACL and CHAP, unless
# lio_open_to_all.
lio_target() {
    local group=$lio/iscsi/$1/tpgt_1 portal
    shift
    mkdir -p "$group"
    for portal; do mkdir "$group/np/$portal"; done
    echo 1 >"$group/attrib/authentication"
    echo 1 >"$group/enable"
}

# lio_lun IQN NUMBER DISK; seen by those whose ACL is made afterwards.
lio_lun() {
    mkdir "$lio/iscsi/$1/tpgt_1/lun/lun_$2"
    ln -s "$lio/core/fileio_0/$3" "$lio/iscsi/$1/tpgt_1/lun/lun_$2/disk"
}

# lio_acl IQN INITIATOR [USER PASSWORD [USER PASSWORD]]: lets an initiator in, to all LUNs, by CHAP, one way or mutual. Once made, it
# can be given another password by the same call.
lio_acl() {
    local group=$lio/iscsi/$1/tpgt_1 lun number
    local acl=$group/acls/$2
    mkdir -p "$acl"
    for lun in "$group"/lun/lun_*; do
        number=${lun##*_}
        [ -e "$lun" ] && [ ! -e "$acl/lun_$number" ] || continue
        mkdir "$acl/lun_$number"
        ln -s "$lun" "$acl/lun_$number/disk"
    done
    [ $# -lt 4 ] || lio_credentials "$acl/auth" "${@:3}"
    [ $# -ge 4 ] || echo 0 >"$group/attrib/authentication"
}

# lio_credentials DIRECTORY USER PASSWORD [USER PASSWORD]; the second pair is what the target proves itself by. LIO asks for that as
# soon as it is set, and `NULL` unsets it.
lio_credentials() {
    local auth=$1
    printf '%s' "$2" >"$auth/userid"
    printf '%s' "$3" >"$auth/password"
    printf '%s' "${4:-NULL}" >"$auth/userid_mutual"
    printf '%s' "${5:-NULL}" >"$auth/password_mutual"
}

# lio_discovery_auth [USER PASSWORD [USER PASSWORD]]: who asks which targets there are needs CHAP; without arguments, nobody does.
lio_discovery_auth() {
    local auth=$lio/iscsi/discovery_auth
    [ $# = 0 ] || lio_credentials "$auth" "$@"
    echo $(($# > 0)) >"$auth/enforce_discovery_auth"
}

# path_up ADDRESS, path_down ADDRESS: an address of this machine to be one path among several. Without it, what is sent to and from it
# is lost: connections there die of their time-outs.
path_up() { ip addr add "$1/32" dev lo; }
path_down() { ip addr del "$1/32" dev lo; }

# The target goes, with all connections, and comes back.
lio_down() { echo 0 >"$lio/iscsi/$1/tpgt_1/enable"; }
lio_up() { echo 1 >"$lio/iscsi/$1/tpgt_1/enable"; }

# Who is logged in at a target, by name.
lio_sessions() { grep -l '^InitiatorName' "$lio/iscsi/$1"/tpgt_1/acls/*/info 2>/dev/null | sed 's|/info$||; s|.*/||'; }

lio_remove_acl() {
    local acl=$lio/iscsi/$1/tpgt_1/acls/$2 lun
    for lun in "$acl"/lun_*; do
        [ -e "$lun" ] || continue
        rm -f "$lun"/disk
        rmdir "$lun"
    done
    rmdir "$acl"
}

lio_remove_target() {
    local group=$lio/iscsi/$1/tpgt_1 each
    echo 0 >"$group/enable"
    for each in "$group"/acls/*; do [ ! -d "$each" ] || lio_remove_acl "$1" "${each##*/}"; done
    for each in "$group"/lun/lun_*; do
        [ -e "$each" ] || continue
        rm -f "$each"/disk
        rmdir "$each"
    done
    for each in "$group"/np/*; do [ ! -d "$each" ] || rmdir "$each"; done
    rmdir "$group" "$lio/iscsi/$1"
}

# Takes all of it down.
lio_stop() {
    local each
    lio_discovery_auth
    for each in "$lio"/iscsi/iqn.*; do [ ! -d "$each" ] || lio_remove_target "${each##*/}"; done
    for each in "$lio"/core/fileio_0/*/; do
        [ ! -e "$each/wwn" ] || rmdir "$each"
    done
}

# initiator_start NAME [MULTIPATH]: iscsid, as the machine's initiator of this name, and multipathd where a second word is given.
initiator_start() {
    modprobe -a iscsi_tcp sd_mod
    mkdir -p /run/lock/iscsi
    # What an operator may want: a dead path is seen in seconds.
    printf 'node.%s = %s\n' 'conn[0].timeo.noop_out_interval' 2 'conn[0].timeo.noop_out_timeout' 5 session.timeo.replacement_timeout 7 \
        >/etc/iscsi/iscsid.conf
    echo "InitiatorName=$1" >/etc/iscsi/initiatorname.iscsi
    # In a process group of its own: its end is signalled to the whole group.
    setsid iscsid -f >>iscsid.log 2>&1 &
    iscsid_pid=$!
    [ $# -lt 2 ] || multipath_start
    within 10 iscsid_answers
}

iscsid_answers() { grep -q '@ISCSIADM_ABSTRACT_NAMESPACE' /proc/net/unix; }

multipath_start() {
    modprobe -a dm-multipath dm-round-robin dm-service-time
    printf 'defaults {\n    find_multipaths yes\n    user_friendly_names no\n    polling_interval 2\n}\n' >/etc/multipath.conf
    multipathd -d >>multipathd.log 2>&1 &
    multipathd_pid=$!
    within 20 multipathd_answers
}

multipathd_answers() { multipathd show daemon 2>&1 | grep -qE "^pid .* (idle|running)"; }

initiator_stop() {
    local pid
    for pid in $multipathd_pid $iscsid_pid; do
        kill -TERM "$pid" 2>/dev/null || true
        within 15 eval "! kill -0 $pid 2>/dev/null"
    done
    iscsid_pid='' multipathd_pid=''
}

# As sysfs shows them: target, portal, initiator, state; a line for each session.
iscsi_sessions() {
    local session connection
    for session in /sys/class/iscsi_session/session*; do
        [ -e "$session" ] || continue
        connection=$(echo "$session"/device/connection*/iscsi_connection/connection*)
        echo "$(cat "$session/targetname") $(cat "$connection/persistent_address"):$(cat "$connection/persistent_port")" \
            "$(cat "$session/initiatorname") $(cat "$session/state")"
    done | sort
}

# The SCSI disks of this machine, of whatever kind.
scsi_disks() { find /sys/block -maxdepth 1 -name 'sd*' -printf '%f\n' | sort; }

nothing_is_connected() {
    is '' "$(iscsi_sessions)" "sessions $1"
    is '' "$(scsi_disks)" "SCSI disks $1"
    is '' "$(dmsetup ls 2>/dev/null | grep -v '^No devices')" "mappings $1"
}

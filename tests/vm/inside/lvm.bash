# A volume group of its own for a test: vg0 on loop devices, with a thin pool, and the short names to look at it.
# shellcheck shell=bash
# Nothing of the machine's udev is waited for, and warnings are shown where it fails.
lvm() {
    DM_DISABLE_UDEV=1 command lvm "$@" 2>lvm.err || {
        cat lvm.err >&2
        return 1
    }
}

# lvm_start DISKS SIZE [sparse]: disks that hold what someone left on them, or nothing.
lvm_start() {
    local number
    modprobe -a dm-thin-pool dm-raid dm-mod 2>/dev/null || true
    # Left by a test that failed: libdevmapper makes its links by itself here.
    [ ! -e /dev/vg0 ] || rm -r /dev/vg0
    disks=''
    for number in $(seq "$1"); do
        case ${3:-} in
        sparse) truncate -s "$2" "disk$number.img" ;;
        *) head -c "$2" /dev/zero | tr '\0' X >"disk$number.img" ;;
        esac
        disks+=${disks:+,}$(losetup --find --show "disk$number.img")
    done
    # shellcheck disable=SC2086  # several devices
    lvm_group ${disks//,/ }
    lvm lvcreate -qq -y --devices "$disks" --type thin-pool -n pool0 -L 384M --poolmetadatasize 4M vg0 >/dev/null
}

# Makes vg0. The machine's udev would activate what it finds, at moments of its own; tests do so themselves where they need it.
lvm_group() {
    mkdir -p /etc/udev/rules.d
    ln -sf /dev/null /etc/udev/rules.d/69-lvm.rules
    ln -sf /dev/null /etc/udev/rules.d/69-dm-lvm.rules
    udevadm control --reload 2>/dev/null || true
    lvm vgcreate -qq -y --devices "$disks" vg0 "$@" >/dev/null
}

lvm_config() {
    local each="volumeGroup: vg0, devices: [${disks//,/, }]"
    printf 'backends:\n  - {name: lvm, type: lvm, classes: [{name: thick, %s}, {name: thin, %s, thinPool: pool0, overcommit: 3}]}\n' \
        "$each" "$each" >config.yaml
}

lvm_stop() {
    local device
    lvm vgremove -qq -ff -y --devices "$disks" vg0 >/dev/null
    for device in ${disks//,/ }; do losetup -d "$device"; done
    rm -f disk*.img
}

# The logical volumes of the driver.
ours() { lvm lvs --noheadings --devices "$disks" -o lv_name @longshore | tr -d ' '; }
# Those that are active.
active() { lvm lvs --noheadings --devices "$disks" -o lv_name -S 'lv_active=active' @longshore | tr -d ' '; }

//! What a node does by itself with what a tenant writes onto a disk: LVM activates, MD assembles, iscsid logs in. A tenant writes
//! what he likes onto a raw block volume, and a target server onto any.

use std::path::Path;

use crate::os::settings;

use super::setup::Setup;
use crate::backend::Check;

const LVM: &str = "/etc/lvm";
const MDADM: [&str; 2] = ["/sbin/mdadm", "/usr/sbin/mdadm"];
const MDADM_CONFIGURATION: [&str; 2] = ["/etc/mdadm/mdadm.conf", "/etc/mdadm.conf"];

/// Of what is installed, as far as it is seen: a container sees none of the node's /etc but that of iSCSI.
pub(super) fn activation(setup: &Setup) -> Vec<Check> {
    let mut checks = Vec::new();
    if !setup.in_pod {
        checks.extend(lvm());
        checks.extend(md());
    }
    checks
}

/// The settings of a file; `None` where there is none.
fn settings(path: &Path, name: &'static str) -> Option<Result<Vec<String>, Check>> {
    let remedy = "it is not known what the node activates; make the file readable";
    settings::read(path).map_err(|error| Check::warning(name, error.to_string(), remedy)).transpose()
}

fn lvm() -> Option<Check> {
    const NAME: &str = "lvm-activation";
    let lines = match settings(&Path::new(LVM).join("lvm.conf"), NAME)? {
        Ok(lines) => lines,
        Err(check) => return Some(check),
    };
    let has = |key: &str, value: fn(&str) -> bool| lines.iter().any(|line| settings::has(line, key, value));
    let devices = Path::new(LVM).join("devices/system.devices");
    Some(if has("event_activation", |value| value == "0") {
        Check::ok(NAME, "LVM activates nothing by itself (event_activation=0)")
    } else if devices.exists() && !has("use_devicesfile", |value| value == "0") {
        Check::ok(NAME, format!("LVM uses the devices of {} only", devices.display()))
    } else if has("global_filter", |_| true) {
        Check::ok(NAME, "LVM uses the devices that its global_filter accepts")
    } else {
        let found = "LVM takes up every physical volume that it sees, also one that a tenant wrote onto a raw volume";
        let remedy = "`vgimportdevices --all` makes a list of this node's own (use_devicesfile=1); or a global_filter in /etc/lvm/lvm.conf \
                      that accepts them and rejects `r|.*|`";
        Check::warning(NAME, found, remedy)
    })
}

fn md() -> Option<Check> {
    const NAME: &str = "md-assembly";
    if !MDADM.iter().any(|path| Path::new(path).exists()) {
        return None;
    }
    let found = MDADM_CONFIGURATION.iter().find_map(|path| settings(Path::new(path), NAME));
    let lines = match found.unwrap_or_else(|| Ok(Vec::new())) {
        Ok(lines) => lines,
        Err(check) => return Some(check),
    };
    let is_auto_off = |line: &String| {
        let mut words = line.split_whitespace();
        words.next().is_some_and(|word| word.eq_ignore_ascii_case("auto")) && words.any(|word| word == "-all")
    };
    Some(if lines.iter().any(is_auto_off) {
        Check::ok(NAME, "mdadm assembles only what its configuration names or allows (AUTO -all)")
    } else {
        let found = "mdadm assembles every array whose members it sees, also one that a tenant wrote onto raw volumes";
        Check::warning(NAME, found, "add `AUTO -all` to mdadm.conf, with an ARRAY line for each of this node's own")
    })
}

//! The official CSI suite against the `cinder` backend as it is deployed (`csi-sanity/run cinder-deployed`), with the stand-in for its cloud.

use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

use super::super::machine::{Attached, Machine};
use super::super::sanity;
use super::*;

#[test]
fn cinder_official_suite_has_nothing_against_it() {
    if !sanity::can_run() {
        return;
    }
    let cloud = Arc::new(OpenStack::start(None));
    let machine = Machine::start(&cloud, cloud.address, attached);
    // The controller is not root.
    let scratch = tempfile::tempdir().expect("a directory");
    fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o755)).expect("it can be read");
    let file = scratch.path().join("clouds.yaml");
    let clouds = clouds(&cloud, false).replace(&cloud.address.to_string(), &machine.address.to_string());
    fs::write(&file, clouds).expect("clouds.yaml");
    let environment = [
        ("LONGSHORE_CLOUD_SPEED", SPEED.to_string()),
        ("LONGSHORE_CINDER_DISKS", machine.sysfs()),
        ("CINDER_CLOUDS", file.display().to_string()),
        ("CINDER_METADATA", format!("http://{}", machine.address)),
        ("CINDER_NODE", node("n1")),
    ];
    sanity::run("cinder-deployed", "cinder deployed", environment);
    cloud.assert_empty("after the suite");
}

/// As disks of virtio-blk on `n1`, which have 20 characters of the volume's id for a serial number.
fn attached(cloud: &OpenStack) -> Vec<Attached> {
    let state = cloud.state();
    let held = state.servers[&node("n1")]["os-extended-volumes:volumes_attached"].as_array().expect("a list");
    let shown = held.iter().map(|held| {
        let disk = held["id"].as_str().expect("an id").to_owned();
        let gib = state.volumes[&disk]["size"].as_u64().expect("a size");
        Attached { gib, files: vec![("serial", disk[..20].to_owned())], disk }
    });
    shown.collect()
}

//! The official CSI suite against the `cinder` backend as it is deployed (`csi-sanity/run cinder-deployed`), with the stand-in for its cloud.

use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

use super::super::machine::Machine;
use super::super::sanity;
use super::*;

#[test]
fn cinder_official_suite_has_nothing_against_it() {
    if !sanity::can_run() {
        return;
    }
    let cloud = Arc::new(OpenStack::start(None));
    let machine = Machine::start(&cloud, cloud.address, |cloud| attached_to(cloud, &node("n1")));
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

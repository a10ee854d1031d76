//! The official CSI suite against the `cinder` backend (`csi-sanity/run cinder`), with the stand-in for its cloud.

use super::super::sanity;
use super::*;

#[test]
fn cinder_official_suite_has_nothing_against_it() {
    if !sanity::can_run() {
        return;
    }
    let cloud = OpenStack::start(None);
    let scratch = tempfile::tempdir().expect("a directory");
    let file = scratch.path().join("clouds.yaml");
    fs::write(&file, clouds(&cloud, false)).expect("clouds.yaml");
    let environment = [
        ("LONGSHORE_CLOUD_SPEED", SPEED.to_string()),
        ("CINDER_CLOUDS", file.display().to_string()),
        ("CINDER_METADATA", format!("http://{}", cloud.address)),
        ("CINDER_NODE", node("n1")),
    ];
    sanity::run("cinder", "cinder", environment);
    cloud.assert_empty("after the suite");
}

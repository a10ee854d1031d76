//! The official CSI suite against the `gce` backend as it is deployed (`csi-sanity/run gce-deployed`), with the emulator for its cloud.

use std::sync::Arc;

use super::super::machine::Machine;
use super::super::sanity;
use super::*;

#[test]
fn gce_official_suite_has_nothing_against_it() {
    if !sanity::can_run() {
        return;
    }
    let Some(google) = Google::start().map(Arc::new) else { return };
    // The suite knows nothing of zones.
    google.order(&json!({"settings": {"zones": [ZONE]}}));
    let machine = Machine::start(&google, google.address, |google| attached_to(&google.state(), "n1"));
    let environment = [
        ("LONGSHORE_CLOUD_SPEED", SPEED.to_string()),
        ("LONGSHORE_GCE_DISKS", machine.sysfs()),
        ("GCE_METADATA_HOST", google.address.to_string()),
        ("GCE_ENDPOINT", format!("http://{}", machine.address)),
        ("GCE_NODE", node("n1")),
    ];
    sanity::run("gce-deployed", "gce deployed", environment);
    google.assert_empty("after the suite");
}

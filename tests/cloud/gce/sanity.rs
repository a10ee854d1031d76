//! The official CSI suite against the `gce` backend (`csi-sanity/run gce`), with the emulator for its cloud.

use super::super::sanity;
use super::*;

#[test]
fn gce_official_suite_has_nothing_against_it() {
    if !sanity::can_run() {
        return;
    }
    let Some(google) = Google::start() else { return };
    // The suite knows nothing of zones.
    google.order(&json!({"settings": {"zones": [ZONE]}}));
    let environment = [
        ("LONGSHORE_CLOUD_SPEED", SPEED.to_string()),
        ("GCE_METADATA_HOST", google.address.to_string()),
        ("GCE_ENDPOINT", format!("http://{}", google.address)),
        ("GCE_NODE", node("n1")),
    ];
    sanity::run("gce", "gce", environment);
    google.assert_empty("after the suite");
}

//! The official CSI suite against the `azure` backend (`csi-sanity/run azure`), with the stand-in for its cloud.

use super::super::sanity;
use super::*;

#[test]
fn azure_official_suite_has_nothing_against_it() {
    if !sanity::can_run() {
        return;
    }
    let azure = Azure::start();
    // The suite knows nothing of zones.
    azure.add_machine("n1", "Standard_D4s_v5", None);
    let environment = [
        ("LONGSHORE_CLOUD_SPEED", SPEED.to_string()),
        ("AZURE_ENDPOINT", format!("http://{}", azure.address)),
        ("AZURE_SUBSCRIPTION", SUBSCRIPTION.to_owned()),
        ("AZURE_GROUP", GROUP.to_owned()),
        ("AZURE_LOCATION", LOCATION.to_owned()),
        ("AZURE_NODE", node("n1")),
    ];
    sanity::run("azure", "azure", environment);
    azure.assert_empty("after the suite");
}

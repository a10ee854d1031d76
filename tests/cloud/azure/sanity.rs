//! The official CSI suite against the `azure` backend as it is deployed (`csi-sanity/run azure-deployed`), with the stand-in for its cloud.

use std::sync::Arc;

use super::super::machine::Machine;
use super::super::sanity;
use super::*;

#[test]
fn azure_official_suite_has_nothing_against_it() {
    if !sanity::can_run() {
        return;
    }
    let azure = Arc::new(Azure::start());
    // The suite knows nothing of zones.
    azure.add_machine("n1", "Standard_D4s_v5", None);
    let machine = Machine::start(&azure, azure.address, |azure| attached_to(azure, "n1"));
    let environment = [
        ("LONGSHORE_CLOUD_SPEED", SPEED.to_string()),
        ("LONGSHORE_AZURE_DISKS", machine.sysfs()),
        ("AZURE_ENDPOINT", format!("http://{}", machine.address)),
        ("AZURE_SUBSCRIPTION", SUBSCRIPTION.to_owned()),
        ("AZURE_GROUP", GROUP.to_owned()),
        ("AZURE_LOCATION", LOCATION.to_owned()),
        ("AZURE_NODE", node("n1")),
    ];
    sanity::run("azure-deployed", "azure deployed", environment);
    azure.assert_empty("after the suite");
}

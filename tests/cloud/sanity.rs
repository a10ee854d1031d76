//! The official CSI suite against the `ec2` backend (`csi-sanity/run ec2`), with the unfriendly cloud for its cloud; and as it is deployed
//! (`ec2-deployed`): a controller and a node, each a process with the flags, the configuration, the user and the capabilities of
//! `manifests/kubernetes/ec2.yaml`.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use super::common::skipped;
use super::driver::{SECRET, ZONE};
use super::machine::{Attached, Machine};
use super::proxy::Cloud;

/// The suite asks for nothing twice: what a call waits for must come while it waits, on a slow machine too.
const SPEED: u32 = 10;

#[test]
fn the_official_suite_has_nothing_against_it() {
    suite("ec2", "ec2");
}

#[test]
fn suite_with_controller_and_node_apart_finds_nothing() {
    suite("ec2-deployed", "ec2 deployed");
}

/// `shown` is what its figures are called.
fn suite(setup: &str, shown: &str) {
    if !can_run() {
        return;
    }
    let Some(cloud) = Cloud::start(SPEED) else { return };
    // EC2's lists are eventually consistent. The suite wants a snapshot in them at once, and asks once.
    cloud.manners().late = Duration::ZERO;
    // The suite knows nothing of zones.
    cloud.world().zones = vec![ZONE.to_owned()];
    let instance = cloud.run_instances(1, "m5.large", ZONE).remove(0);
    let on = instance.clone();
    let machine = Machine::start(&cloud, cloud.address, move |cloud| attached(cloud, &on));
    let environment = [
        ("LONGSHORE_CLOUD_SPEED", SPEED.to_string()),
        ("LONGSHORE_EC2_DISKS", machine.sysfs()),
        ("EC2_ENDPOINT", format!("http://{}", machine.address)),
        ("EC2_NODE", instance),
        ("EC2_ZONE", ZONE.to_owned()),
        ("AWS_ACCESS_KEY_ID", super::KEY.to_owned()),
        ("AWS_SECRET_ACCESS_KEY", SECRET.to_owned()),
        ("AWS_EC2_METADATA_DISABLED", "true".to_owned()),
    ];
    run(setup, shown, environment);
    assert_eq!(cloud.moto.volumes(), [], "volumes are left");
    assert_eq!(cloud.moto.snapshots(), [], "snapshots are left");
}

/// As NVMe disks of an instance.
pub fn attached(cloud: &Cloud, instance: &str) -> Vec<Attached> {
    let described = cloud.must("DescribeVolumes", &[("Filter.1.Name", "attachment.instance-id"), ("Filter.1.Value.1", instance)]);
    let shown = described.items("volumeSet").iter().filter(|volume| {
        let here = volume.items("attachmentSet").iter().find(|at| at.get("instanceId") == instance);
        here.is_some_and(|at| at.get("device") != "/dev/sda1" && ["attaching", "attached"].contains(&at.get("status")))
    });
    let shown = shown.map(|volume| {
        let disk = volume.get("volumeId").to_owned();
        let serial = disk.replacen('-', "", 1);
        let model = "Amazon Elastic Block Store".to_owned();
        let files = vec![("device/model", model), ("device/serial", serial.clone()), ("controller", serial)];
        Attached { gib: volume.get("size").parse().expect("a size"), files, disk }
    });
    shown.collect()
}

/// Whether the suite can be run here; said where not.
pub fn can_run() -> bool {
    let built = std::env::var_os("SUITE").is_some() || root().join("target/csi-sanity/csi-sanity").exists();
    if !built && Command::new("go").arg("version").stdout(Stdio::null()).status().is_err() {
        skipped("csi-sanity is not built, and there is no go to build it");
        return false;
    }
    if !rustix::process::geteuid().is_root() {
        skipped("csi-sanity/run needs root: it mounts");
        return false;
    }
    true
}

/// Runs the suite, which must find nothing.
pub fn run(setup: &str, shown: &str, environment: impl IntoIterator<Item = (&'static str, String)>) {
    let output = Command::new(root().join("csi-sanity/run"))
        .arg(setup)
        .env("LONGSHORE", env!("CARGO_BIN_EXE_longshore"))
        .envs(environment)
        .stdin(Stdio::null())
        .output()
        .expect("csi-sanity/run");
    let said = [output.stdout, output.stderr].map(|said| String::from_utf8_lossy(&said).into_owned()).concat();
    println!("{said}");
    assert!(output.status.success(), "{}", output.status);
    // Said again for the table of the runs.
    let start = format!("csi-sanity {setup} ");
    for line in said.lines().filter_map(|line| line.strip_prefix(&start)) {
        let (access, counts) = line.split_once(": ").expect("a summary");
        println!("FIGURE: csi-sanity {shown} {access}: {counts}");
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

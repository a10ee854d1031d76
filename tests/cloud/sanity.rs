//! The official CSI suite against the `ec2` backend (`csi-sanity/run ec2`), with the unfriendly cloud for its cloud; and as it is deployed
//! (`ec2-deployed`): a controller and a node, each a process with the flags, the configuration, the user and the capabilities of
//! `manifests/kubernetes/ec2.yaml`.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use super::common::skipped;
use super::driver::{SECRET, ZONE};
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
    let environment = [
        ("LONGSHORE_CLOUD_SPEED", SPEED.to_string()),
        ("EC2_ENDPOINT", format!("http://{}", cloud.address)),
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

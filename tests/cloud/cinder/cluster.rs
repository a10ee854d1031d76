//! The stand-in for OpenStack serves a whole Kubernetes of two nodes, which are its servers (tests/kubernetes, the phase `nodes-cloud`).

use std::collections::BTreeMap;
use std::io::Read;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Instant;

use super::super::common::run;
use super::super::emulated::Server;
use super::super::machine::Disks;
use super::super::tls::TlsFront;
use super::super::wire;
use super::*;

/// In the directory that `LONGSHORE_MACHINES` names, of each node `NODE` of `LONGSHORE_NODES`: its disks in `NODE/sysfs`, its config drive in
/// `NODE/drive`; `clouds.yaml` with the certificate of its authority, `ca.pem`, when all is there. It serves HTTPS at `LONGSHORE_EMULATOR` until the end of its standard input. Then nothing may be left
/// in the cloud.
#[test]
#[ignore = "tests/kubernetes runs it"]
fn cinder_serves_a_cluster() {
    let Some(place) = std::env::var_os("LONGSHORE_MACHINES").map(PathBuf::from) else {
        skipped("tests/kubernetes/run nodes-cloud runs it");
        return;
    };
    let nodes = std::env::var("LONGSHORE_NODES").expect("names of nodes");
    let cloud = Arc::new(OpenStack::start(None));
    let mut machines = Vec::new();
    for name in nodes.split_whitespace() {
        cloud.add_server(name, ZONE);
        let drive = place.join(name).join("drive/openstack/latest");
        fs::create_dir_all(&drive).expect("a config drive");
        let said = json!({"uuid": node(name), "availability_zone": ZONE, "hostname": name});
        fs::write(drive.join("meta_data.json"), said.to_string()).expect("its document");
        machines.push((node(name), Disks::new(place.join(name), place.join("files"))));
    }
    let (asked, files, machines) = (Arc::clone(&cloud), place.join("files"), Mutex::new(machines));
    let (inner, shown) = (cloud.address, Arc::new(OnceLock::<SocketAddr>::new()));
    let outer = Arc::clone(&shown);
    let plain = Server::start(move |request, _| {
        let (status, headers, body) = wire::exchange(inner, request)?;
        // One after the other, each with what is so then.
        let mut machines = machines.lock().expect("no panic");
        copy_contents(&asked, &files);
        for (server, disks) in machines.iter_mut() {
            disks.update(attached_to(&asked, server));
        }
        // Its own addresses in what it says, such as the catalog.
        let body = body.replace(&format!("http://{inner}"), &format!("https://{}", outer.get()?));
        Some(Passed { status, headers, body })
    });
    let tls = TlsFront::of(plain.address, &plain.address.ip().to_string());
    shown.set(tls.address).expect("once");
    fs::copy(tls.authority(), place.join("ca.pem")).expect("the authority");
    let text = clouds(&cloud, false).replace(&format!("http://{inner}"), &format!("https://{}", tls.address));
    let text = text.replace("    auth:", "    cacert: /etc/openstack/ca.pem\n    auth:");
    fs::write(place.join("clouds.new"), text).expect("clouds.yaml");
    fs::rename(place.join("clouds.new"), place.join("clouds.yaml")).expect("clouds.yaml");

    std::io::stdin().read_to_end(&mut Vec::new()).expect("it is read to its end");
    let counts = cloud.state().counts.clone();
    println!("requests: {counts:?}");
    let begun = Instant::now();
    // What was deleted last is still being deleted.
    while !cloud.state().volumes.is_empty() && begun.elapsed() < Duration::from_secs(60) {
        std::thread::park_timeout(Duration::from_millis(100));
    }
    cloud.assert_empty("at the end");
}

/// A snapshot holds what its volume holds, and a volume what it is made of, from the moment at which it is there.
fn copy_contents(cloud: &OpenStack, files: &Path) {
    let state = cloud.state();
    let of = |kind: &BTreeMap<String, Value>, sources: &[&str]| -> Vec<(String, String)> {
        let source = |one: &Value| sources.iter().find_map(|field| one[field].as_str()).map(str::to_owned);
        kind.iter().filter_map(|(id, one)| Some((id.clone(), source(one)?))).collect()
    };
    for (id, source) in
        of(&state.snapshots, &["volume_id"]).into_iter().chain(of(&state.volumes, &["snapshot_id", "source_volid"]))
    {
        let (file, source) = (files.join(id), files.join(source));
        if source.exists() && !file.exists() {
            run("cp", ["--reflink=auto", "--sparse=always", &common::text(&source), &common::text(&file)]);
        }
    }
}

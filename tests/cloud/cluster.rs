//! Stand-ins for clouds serve a whole Kubernetes of two nodes, which are their machines (tests/kubernetes, the phases of a cloud).

use std::fs;
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use super::common::{run, skipped, text};
use super::emulated::{Passed, Server};
use super::front;
use super::machine::{Attached, Disks};
use super::tenant::Emulated;
use super::tls::TlsFront;
use super::wire::{self, Request};

/// A stand-in whose machines are the nodes of a cluster.
pub trait Hosts: Emulated + Send + Sync + 'static {
    /// Where it answers, in clear.
    fn address(&self) -> SocketAddr;

    /// A node of this name is one of its machines.
    fn add_node(&self, name: &str);

    /// What is attached to that.
    fn attached_to(&self, node: &str) -> Vec<Attached>;

    /// Of disks and snapshots that are made of others, what they are made of.
    fn sources(&self) -> Vec<(String, String)>;

    /// Whether no disk and no snapshot is left.
    fn is_empty(&self) -> bool;

    /// What the metadata service answers to a node.
    fn metadata(&self, node: &str, request: &Request) -> Option<Passed> {
        let mut request = request.clone();
        request.headers.insert("x-machine".to_owned(), node.to_owned());
        let (status, headers, body) = wire::exchange(self.address(), &request)?;
        Some(Passed { status, headers, body })
    }

    /// The backend, as the chart's values have it, which answers at `url`; and the files of its Secret, by their names.
    fn backend(&self, url: &str) -> (serde_json::Value, Vec<(&'static str, String)>);
}

/// The metadata service, as each machine sees it.
const METADATA: (IpAddr, u16) = (IpAddr::V4(Ipv4Addr::new(169, 254, 169, 254)), 80);

/// Serves HTTPS at the address `LONGSHORE_EMULATOR`, and at that of metadata services, until the end of its standard input. Then nothing may be
/// left in the cloud.
///
/// In the directory `LONGSHORE_MACHINES` it has the disks of each node of `LONGSHORE_NODES`; `ca.pem`, by which it is believed; `secret` with what
/// the controller is to know; and, when all is there, `values.json` for the chart.
pub fn serve<C: Hosts>(start: impl FnOnce() -> C) {
    let Some(place) = std::env::var_os("LONGSHORE_MACHINES").map(PathBuf::from) else {
        skipped("tests/kubernetes runs it");
        return;
    };
    let nodes = std::env::var("LONGSHORE_NODES").expect("names of nodes and their addresses");
    let nodes: Vec<(String, String)> = nodes
        .split_whitespace()
        .map(|node| node.split_once('=').expect("NAME=ADDRESS"))
        .map(|(a, b)| (a.into(), b.into()))
        .collect();
    let cloud = Arc::new(start());
    nodes.iter().for_each(|(name, _)| cloud.add_node(name));
    let files = place.join("files");
    let machines = nodes.iter().map(|(name, _)| (name.clone(), Disks::new(place.join(name), files.clone()))).collect::<Vec<_>>();
    let (inner, shown) = (cloud.address(), Arc::new(OnceLock::<SocketAddr>::new()));
    let (outer, asked, machines) = (Arc::clone(&shown), Arc::clone(&cloud), Mutex::new(machines));
    let update = move || {
        // One after the other, each with what is so then.
        let mut machines = machines.lock().expect("no panic");
        copy_contents(&*asked, &files);
        for (name, disks) in machines.iter_mut() {
            disks.update(asked.attached_to(name));
        }
    };
    let names = move |_| (format!("http://{inner}"), format!("https://{}", outer.get().expect("it is said before anyone asks")));
    let plain = front::known_as(inner, names, |_| None, update);
    let tls = TlsFront::of(plain.address, &plain.address.ip().to_string());
    shown.set(tls.address).expect("once");
    let service = Arc::clone(&cloud);
    let metadata = Server::at(METADATA.into(), move |request, _| {
        let peer = request.headers.get(wire::PEER)?;
        // The node that the service runs on asks from the service's own address.
        let node = nodes.iter().find(|(_, address)| address == peer).or(nodes.first())?;
        service.metadata(&node.0, request)
    });
    let (backend, secret) = cloud.backend(&format!("https://{}", tls.address));
    fs::create_dir_all(place.join("secret")).expect("a directory");
    for (name, content) in secret {
        fs::write(place.join("secret").join(name), content).expect("what the controller is to know");
    }
    fs::copy(tls.authority(), place.join("ca.pem")).expect("the authority");
    let values = serde_json::json!({"driver": {"backends": [backend]}});
    fs::write(place.join("values.new"), values.to_string()).expect("the values");
    fs::rename(place.join("values.new"), place.join("values.json")).expect("the values");

    std::io::stdin().read_to_end(&mut Vec::new()).expect("it is read to its end");
    let begun = Instant::now();
    // What was deleted last is still being deleted.
    while !cloud.is_empty() && begun.elapsed() < Duration::from_secs(60) {
        std::thread::park_timeout(Duration::from_millis(100));
    }
    drop((metadata, tls, plain));
    cloud.assert_empty("at the end");
}

/// A snapshot holds what its disk holds, and a disk what it is made of, from the moment at which it is there.
fn copy_contents(cloud: &impl Hosts, files: &Path) {
    for (made, of) in cloud.sources() {
        let (made, of) = (files.join(made), files.join(of));
        if of.exists() && !made.exists() {
            run("cp", ["--reflink=auto", "--sparse=always", &text(&of), &text(&made)]);
        }
    }
}

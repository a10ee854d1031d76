//! The gRPC libraries that others call CSI drivers with, each in its own language: C-core (by grpcio), grpc-js and grpc-go. And
//! what any of them may send as `:authority`, byte by byte.
#![allow(clippy::disallowed_methods, reason = "tests start programs")]

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use common::tools::{self, installed};
use common::{Harness, Pool, isolated, text};
use longshore::csi;

const PROTO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/proto");
const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients");
const NAME: &str = "longshore.csi.dev";

/// A driver with both sockets.
fn driver() -> Harness {
    let mut harness = Harness::new(Pool::Local);
    harness.configure("kubeletRegistration: true");
    fs::create_dir_all(registry(&harness)).expect("the kubelet's directory");
    harness.start();
    harness
}

fn registry(harness: &Harness) -> PathBuf {
    harness.path("kubelet").join("plugins_registry")
}

fn registration_socket(harness: &Harness) -> PathBuf {
    registry(harness).join(format!("{NAME}-reg.sock"))
}

/// A snapshot that holds data, and the number of blocks that the driver says it has.
fn snapshot(harness: &Harness) -> (String, usize) {
    let (mut controller, mut node, mut metadata) = (harness.controller(), harness.node(), harness.metadata());
    harness.block_on(async {
        let created = controller.create_volume(common::create("prepared", 64, Some("ext4"), "fake")).await.expect("a volume");
        let volume = created.into_inner().volume.expect("a volume");
        let staging = text(&harness.staging("prepared"));
        let stage = csi::NodeStageVolumeRequest {
            volume_context: volume.volume_context.clone(),
            ..common::stage_request(volume.volume_id.clone(), &staging, common::capability(Some("ext4")))
        };
        node.node_stage_volume(stage).await.expect("formatted");
        let unstage = csi::NodeUnstageVolumeRequest { volume_id: volume.volume_id.clone(), staging_target_path: staging };
        node.node_unstage_volume(unstage).await.expect("unstaged");
        let request =
            csi::CreateSnapshotRequest { source_volume_id: volume.volume_id, name: "prepared".to_owned(), ..Default::default() };
        let id = controller.create_snapshot(request).await.expect("a snapshot").into_inner().snapshot.expect("one").snapshot_id;
        let request = csi::GetMetadataAllocatedRequest { snapshot_id: id.clone(), max_results: 1, ..Default::default() };
        let mut stream = metadata.get_metadata_allocated(request).await.expect("a stream").into_inner();
        let mut blocks = 0;
        while let Some(message) = stream.message().await.expect("a message") {
            blocks += message.block_metadata.len();
        }
        (id, blocks)
    })
}

/// Runs a client against both sockets of a driver. Whatever it prints is what ours got.
fn suite(client: Result<Command, String>) {
    let mut client = match client {
        Ok(client) => client,
        Err(why) => return common::skipped(&why),
    };
    isolated(move || {
        let mut harness = driver();
        let (snapshot, blocks) = snapshot(&harness);
        assert!(blocks > 1, "several messages");
        client.args([harness.path("csi.sock"), registration_socket(&harness)]).arg(snapshot).stdin(Stdio::null());
        let starting = common::starting();
        let client = client.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the client starts");
        drop(starting);
        let output = client.wait_with_output().expect("the client ends");
        let (printed, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{printed}{errors}");
        let (mut identity, mut controller) = (harness.identity(), harness.controller());
        let (capabilities, refused) = harness.block_on(async {
            let capabilities = identity.get_plugin_capabilities(csi::GetPluginCapabilitiesRequest {}).await;
            let refused = controller.delete_volume(csi::DeleteVolumeRequest::default()).await;
            (capabilities.expect("capabilities").into_inner().capabilities.len(), refused.expect_err("no id"))
        });
        let expected = [
            format!("GetPluginInfo {NAME}"),
            format!("GetPluginCapabilities {capabilities}"),
            "Probe true".to_owned(),
            "CreateVolume 67108864".to_owned(),
            "ListVolumes 2".to_owned(),
            "DeleteVolume".to_owned(),
            "NodeGetInfo node-1".to_owned(),
            format!("GetMetadataAllocated {blocks}"),
            format!("DeleteVolume {} {}", refused.code() as i32, refused.message()),
            format!("GetInfo CSIPlugin {NAME}"),
        ];
        assert_eq!(printed.lines().collect::<Vec<_>>(), expected, "{errors}");
        assert!(harness.stop());
    });
}

fn source(name: &str) -> PathBuf {
    Path::new(SOURCES).join(name)
}

fn read(name: &str) -> String {
    fs::read_to_string(source(name)).expect("a source of the client")
}

/// C-core sends the percent-encoded path as the authority; C++, Ruby and PHP have it too.
#[test]
fn grpcio_client_is_served() {
    suite(tools::python("clients-python", &source("requirements.txt")).map(|python| {
        let mut client = Command::new(python);
        client.arg(source("client.py")).arg(PROTO);
        client
    }));
}

#[test]
fn grpc_js_client_is_served() {
    let modules = installed("clients-node", &read("package-lock.json"), |directory| {
        for name in ["package.json", "package-lock.json"] {
            fs::copy(source(name), directory.join(name)).map_err(|error| format!("{name}: {error}"))?;
        }
        tools::run(Command::new("npm").args(["ci", "--silent", "--no-audit", "--no-fund"]).current_dir(directory))
    });
    suite(modules.map(|directory| {
        let mut client = Command::new("node");
        client.env("NODE_PATH", directory.join("node_modules")).arg(source("client.js")).arg(PROTO);
        client
    }));
}

fn go(form: &str) -> Result<Command, String> {
    let pins = ["client.go", "go.mod", "go.sum"].map(read).concat();
    let directory = installed("clients-go", &pins, |directory| {
        let mut build = Command::new("go");
        build.args(["build", "-mod=readonly", "-o"]).arg(directory.join("client")).arg(".").current_dir(SOURCES);
        tools::run(&mut build)
    })?;
    let mut client = Command::new(directory.join("client"));
    client.arg(form);
    Ok(client)
}

#[test]
fn go_client_of_a_unix_target_is_served() {
    suite(go("target"));
}

/// Its authority is the path itself, as that of the kubelet's plugin watcher.
#[test]
fn go_client_with_a_dialer_is_served() {
    suite(go("dialer"));
}

/// Frame types (RFC 9113, section 6).
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("short").to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

fn string(text: &str) -> Vec<u8> {
    [&[u8::try_from(text.len()).expect("short")], text.as_bytes()].concat()
}

/// Sends one call for each of these forms of the authority over one connection; what came for each stream: the bytes of its message,
/// or the code with which it was reset.
fn call_each(socket: &Path, method: &str, authorities: &[Vec<u8>]) -> BTreeMap<u32, Result<usize, u32>> {
    let mut connection = UnixStream::connect(socket).expect("connected");
    connection.set_read_timeout(Some(Duration::from_secs(30))).expect("a timeout");
    let mut input = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(), frame(SETTINGS, 0, 0, &[])].concat();
    let streams: Vec<u32> = (1..).step_by(2).take(authorities.len()).collect();
    for (stream, authority) in streams.iter().zip(authorities) {
        // `:method POST`, `:scheme http`, `:path`, the authority, `content-type` and `te`.
        let content = [&[0x0f, 16][..], &string("application/grpc"), &[0], &string("te"), &string("trailers")].concat();
        let fields = [&[0x83, 0x86, 0x04][..], &string(method), authority, &content].concat();
        // Each byte in a frame of its own on every second stream.
        let blocks: Vec<&[u8]> = if stream % 4 == 1 { vec![&fields] } else { fields.chunks(1).collect() };
        for (number, block) in blocks.iter().enumerate() {
            let kind = if number == 0 { HEADERS } else { CONTINUATION };
            let flags = if number + 1 == blocks.len() { END_HEADERS } else { 0 };
            input.extend(frame(kind, flags, *stream, block));
        }
        // An empty message.
        input.extend(frame(DATA, END_STREAM, *stream, &[0; 5]));
    }
    connection.write_all(&input).expect("sent");
    let mut results = BTreeMap::new();
    let mut open = streams.len();
    while open > 0 {
        let mut header = [0; 9];
        connection.read_exact(&mut header).expect("a frame");
        let [length @ .., kind, flags, a, b, c, d] = header;
        let mut payload = vec![0; usize::from(length[0]) << 16 | usize::from(length[1]) << 8 | usize::from(length[2])];
        connection.read_exact(&mut payload).expect("a payload");
        let stream = u32::from_be_bytes([a, b, c, d]);
        let number = |at: usize| u32::from_be_bytes(payload[at..at + 4].try_into().expect("four bytes"));
        match kind {
            DATA => *results.entry(stream).or_insert(Ok(0)) = Ok(payload.len()),
            // RST_STREAM and GOAWAY.
            3 => *results.entry(stream).or_insert(Ok(0)) = Err(number(0)),
            7 => panic!("the connection is closed: error {}", number(4)),
            _ => {}
        }
        let ends = kind == 3 || [DATA, HEADERS].contains(&kind) && flags & END_STREAM != 0;
        open -= usize::from(ends && stream != 0);
    }
    results
}

#[test]
fn every_form_of_authority_is_accepted_on_both_sockets() {
    isolated(|| {
        let mut harness = driver();
        let path = string("%2Frun%2Flongshore%2Fcsi.sock");
        // `/tmp/a`, percent-encoded, in Huffman's code.
        let huffman: &[u8] = b"\x88\x54\x58\xd3\x4d\x6a\x8b\x18\xff";
        let authorities: Vec<Vec<u8>> = vec![
            Vec::new(),
            [&[0x41], path.as_slice()].concat(),
            // The entry that the one before has added, and another value of that entry's name.
            vec![0xbe],
            [&[0x0f, 62 - 15], path.as_slice()].concat(),
            [&[0x7e], string("/run/longshore/csi.sock").as_slice()].concat(),
            vec![0xbe],
            vec![0xbf],
            [&[0x01], huffman].concat(),
            [&[0x11], path.as_slice()].concat(),
            [&[0x41], huffman].concat(),
            [&[0x40], string(":authority").as_slice(), &path].concat(),
            vec![0xbe],
            [&[0x01], string("localhost").as_slice()].concat(),
            [&[0x01], string("").as_slice()].concat(),
            vec![0x81],
        ];
        for (socket, method) in [
            (harness.path("csi.sock"), "/csi.v1.Identity/Probe"),
            (registration_socket(&harness), "/pluginregistration.Registration/GetInfo"),
        ] {
            let results = call_each(&socket, method, &authorities);
            assert_eq!(results.len(), authorities.len(), "{results:?}");
            for (result, authority) in results.values().zip(&authorities) {
                assert!(result.is_ok_and(|length| length > 5), "{method} with {authority:x?}: {result:?}");
            }
        }
        assert!(harness.stop());
    });
}

//! Loop devices stand in for disks: they come late, or are in the slot of another. A host says which disk a slot has.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};

use serde_json::json;

use crate::backend::Connect;
use crate::backend::cloud::CONTEXT_SIZE as SIZE;
use crate::backend::cloud::node_lab::Lab;
use crate::volume::{MountFlags, Outcome, Secrets};

use super::*;

const ONE: &str = "longshore-1";
const MODEL: (&str, &str) = ("device/model", "MSFT NVMe Accelerator v1.0\n");
/// LUN 5.
const NAMESPACE: (&str, &str) = ("nsid", "7\n");

/// A metadata service that says which disk LUN 5 has, and that it has 2 GiB.
fn host(on_lun_5: &Arc<Mutex<Option<&'static str>>>) -> Host {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let endpoint = format!("http://{}", listener.local_addr().expect("an address"));
    let on_lun_5 = Arc::clone(on_lun_5);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("a connection");
            let head = BufReader::new(&stream).lines().map_while(Result::ok).take_while(|line| !line.is_empty()).count();
            let disk = *on_lun_5.lock().expect("whole");
            let id = |name| format!("/subscriptions/s/resourceGroups/G/providers/Microsoft.Compute/disks/{name}");
            let disks: Vec<_> =
                disk.iter().map(|name| json!({"lun": "5", "diskSizeGB": "2", "managedDisk": {"id": id(name)}})).collect();
            let body = json!({"compute": {"resourceId": "", "storageProfile": {"dataDisks": disks}}}).to_string();
            let answer = format!("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}", body.len());
            // Who asked may be gone.
            let _ = stream.write_all(answer.as_bytes());
            assert!(head > 0, "a request");
        }
    });
    Host { metadata: Metadata::new(Some(&endpoint)), group: "g".to_owned() }
}

fn lab(patience: Duration, on_lun_5: &Arc<Mutex<Option<&'static str>>>) -> Lab<Node> {
    Lab::new(|directory| Node { patience, ..Node::new(None, None, host(on_lun_5), Disks::stand_in(directory)) })
}

fn connect(lab: &Lab<Node>, id: &str, context: &[(&str, &str)], earlier: Option<&Source>) -> Result<Source> {
    let context = context.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    let request = ConnectRequest {
        id: &id.parse().expect("an id"),
        parameters: &serde_json::Value::Null,
        publish_context: &context,
        secrets: &Secrets::default(),
        mount_flags: &MountFlags::default(),
        read_only: false,
        earlier,
    };
    lab.node.connect(&request).map(Outcome::into_inner)
}

const CONTEXT: [(&str, &str); 2] = [(VOLUME, ONE), (DEVICE, "5")];

#[test]
fn disk_is_in_its_slot_once_the_host_says_so() {
    let says = Arc::new(Mutex::new(None));
    let lab = lab(Duration::from_secs(60), &says);
    std::thread::scope(|scope| {
        let connecting = scope.spawn(|| connect(&lab, "az:a", &CONTEXT, None));
        let Some(disk) = lab.disk(&[MODEL, NAMESPACE, ("diskseq", "17\n")]) else { return };
        // What the slot has now is what it had before.
        *says.lock().expect("whole") = Some(ONE);
        let source = connecting.join().expect("no panic").expect("connected");
        let Source::Device(device) = &source else { panic!("{source:?}") };
        assert_eq!((&device.path, device.identity.as_str()), (&disk.device.path, "azure-longshore-1:5@17"));
        assert!(lab.node.is_same_device(&source).expect("looks"));
        // It stays what it is while the host says nothing.
        *says.lock().expect("whole") = None;
        assert_eq!(connect(&lab, "az:a", &[], Some(&source)).expect("as earlier"), source);
        // Another disk has come into the slot.
        lab.put(&disk, "diskseq", "18\n");
        assert!(!lab.node.is_same_device(&source).expect("looks"));
        connect(&lab, "az:a", &[], Some(&source)).expect_err("another disk");
        lab.node.refresh(&"az:a".parse().expect("an id"), &source).expect_err("another disk");
    });
}

#[test]
fn doubtful_disk_is_not_used() {
    let says = Arc::new(Mutex::new(Some("longshore-2")));
    let lab = lab(Duration::from_millis(200), &says);
    let error = connect(&lab, "az:a", &CONTEXT, None).expect_err("no disk").to_string();
    assert!(error.contains("not shown up") && error.contains("there are none"), "{error}");
    let Some(_disk) = lab.disk(&[MODEL, NAMESPACE, ("diskseq", "17\n")]) else { return };
    for (id, context, words) in [
        ("az:a", &CONTEXT[..], "host says that it has longshore-2"),
        ("az:a", &[(VOLUME, ONE)], "the slot (LUN) of disk longshore-1 is missing"),
        ("az:a", &[(VOLUME, "g/other"), (DEVICE, "5")], "is no disk of this backend's"),
        ("az:d-longshore-2.a", &CONTEXT[..], "was attached, but volume"),
        ("az:a", &[], "is missing"),
    ] {
        let error = connect(&lab, id, context, None).expect_err(words).to_string();
        assert!(error.contains(words), "{error}");
    }
    *says.lock().expect("whole") = None;
    let error = connect(&lab, "az:a", &CONTEXT, None).expect_err("nothing is said").to_string();
    assert!(error.contains("has no disk"), "{error}");
}

/// The slot has the disk by the host's word, which may be out of date.
#[test]
fn device_of_another_size_is_not_used() {
    const GIB: u64 = 1 << 30;
    let says = Arc::new(Mutex::new(Some(ONE)));
    let lab = lab(Duration::from_millis(200), &says);
    let sized = |size: &str| connect(&lab, "az:a", &[(VOLUME, ONE), (DEVICE, "5"), (SIZE, size)], None);
    for (size, expected, refused) in [
        (GIB, GIB, None),
        (GIB, 3 * GIB, Some("the device on LUN 5 has 1 GiB, but by the cloud disk longshore-1 has 3 GiB")),
        (GIB, GIB / 2, Some("the device on LUN 5 has 1 GiB, but by the cloud disk longshore-1 has 2 GiB")),
        // It has grown since it was attached.
        (2 * GIB, GIB, None),
    ] {
        let Some(disk) = lab.disk_of(size, &[MODEL, NAMESPACE, ("diskseq", "17\n")]) else { return };
        match (sized(&expected.to_string()), refused) {
            (Ok(_), None) => {}
            (Err(error @ Error::Unverified { .. }), Some(words)) => assert!(error.to_string().contains(words), "{error}"),
            (other, _) => panic!("a device of {size} bytes, and {expected} in publish_context: {other:?}"),
        }
        lab.remove(disk);
    }
    let Some(_disk) = lab.disk_of(GIB, &[MODEL, NAMESPACE, ("diskseq", "17\n")]) else { return };
    let error = sized("much").expect_err("no size").to_string();
    assert!(error.contains("is no number of bytes"), "{error}");
}

#[test]
fn host_that_corrects_its_word_stops_the_stage_before_it_writes() {
    let says = Arc::new(Mutex::new(Some(ONE)));
    let lab = lab(Duration::from_millis(200), &says);
    let Some(_disk) = lab.disk(&[MODEL, NAMESPACE, ("diskseq", "17\n")]) else { return };
    let source = connect(&lab, "az:a", &CONTEXT, None).expect("connected");
    let id = "az:a".parse().expect("an id");
    lab.node.about_to_write(&id, &source).expect("it says the same");
    *says.lock().expect("whole") = Some("longshore-2");
    let error = lab.node.about_to_write(&id, &source).expect_err("it says another").to_string();
    assert!(error.contains("LUN 5") && error.contains(ONE) && error.contains("longshore-2"), "{error}");
}

#[test]
fn contents_are_those_of_publish_context() {
    let says = Arc::new(Mutex::new(Some(ONE)));
    let lab = lab(Duration::from_millis(200), &says);
    let device = BlockDevice { path: "/dev/sdc".into(), number: (8, 32), identity: "azure-longshore-1:5@17".to_owned() };
    let source = Source::Device(device);
    let expected = |pairs: &[(&str, &str)]| {
        let context = pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        lab.node.expected_contents(&source, &context)
    };
    let uuid = "11111111-AAAA-8111-8111-111111111111";
    assert_eq!(expected(&CONTEXT).expect("an older controller's, or disk"), None);
    for (copied, is_copy) in [("true", true), ("", false)] {
        let found = expected(&[("contents", uuid), ("copied", copied)]).expect("read").expect("known");
        let words = (found.uuid.as_deref().unwrap_or_default(), found.is_copy, found.place.as_str());
        assert_eq!(words, (uuid.to_ascii_lowercase().as_str(), is_copy, "LUN 5"));
    }
    expected(&[("contents", "any")]).expect_err("no UUID");
}

#[test]
fn identity_is_read_again() {
    for sequence in [None, Some(17)] {
        let wanted = Wanted { disk: ONE.to_owned(), lun: 5, known: Some(sequence) };
        assert_eq!(Wanted::parse(&wanted.identity(sequence)), Some(wanted));
    }
    for text in ["azure-", "azure-a", "azure-a:x", "azure-a:1@", "gce-a:1", "azure-../a:1"] {
        assert_eq!(Wanted::parse(text), None, "{text}");
    }
}

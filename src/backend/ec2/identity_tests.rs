use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::Receiver;

use super::super::connect::Node;
use super::super::disks::Disks;
use super::super::limits::Limits;
use super::super::metadata::tests::{Asked, instance, service};
use super::super::policy::Ec2Policy;
use super::*;
use crate::backend::Connect;
use crate::backend::cloud::{Policy, Tags};

const THIS: &str = "i-0123456789abcdef0";
const OTHER: &str = "i-0fedcba9876543210";

/// A machine, and the state directory of its driver.
struct Host {
    directory: tempfile::TempDir,
    /// 0: the service does not answer.
    answers: Arc<AtomicUsize>,
    metadata: Metadata,
    asked: Receiver<Asked>,
}

impl Host {
    /// An instance before Nitro: the hypervisor does not tell its id.
    fn new() -> Host {
        let directory = tempfile::tempdir().expect("a directory");
        let answers = Arc::new(AtomicUsize::new(1));
        let there = Arc::clone(&answers);
        let (metadata, asked) = service(move |asked| match there.load(Ordering::SeqCst) {
            0 => Some((503, "busy")),
            _ => instance(asked),
        });
        let host = Host { directory, answers, metadata, asked };
        fs::create_dir(host.directory.path().join("dmi")).expect("a directory");
        host.boots("first");
        host
    }

    fn boots(&self, id: &str) {
        fs::write(self.directory.path().join("boot"), format!("{id}\n")).expect("an id");
    }

    fn is_tagged(&self, id: &str) {
        fs::write(self.directory.path().join("dmi/board_asset_tag"), format!("{id}\n")).expect("a tag");
        fs::write(self.directory.path().join("dmi/product_name"), "m7i.large\n").expect("a type");
    }

    fn answers(&self, whether: bool) {
        self.answers.store(whether.into(), Ordering::SeqCst);
    }

    /// As another start of the driver.
    fn identity(&self, said: &str) -> Identity {
        let (dmi, boot) = (self.directory.path().join("dmi"), self.directory.path().join("boot"));
        let said = said.parse().expect("an id");
        Identity::with(self.metadata.clone(), &said, self.directory.path(), Evidence { dmi, boot })
    }

    /// Node id and zone, by a driver that is just started.
    fn registers(&self) -> Result<(String, String)> {
        let identity = Arc::new(self.identity("worker-1"));
        let place = Place { identity: Arc::clone(&identity), zone: None, kind: None };
        Ok((identity.node_id()?.to_string(), place.zone()?))
    }
}

fn this() -> (String, String) {
    (THIS.to_owned(), "eu-west-1a".to_owned())
}

#[test]
fn restarted_driver_without_metadata_registers_as_before() {
    let host = Host::new();
    assert_eq!(host.registers().expect("reported"), this());
    host.answers(false);
    assert_eq!(host.registers().expect("recorded in this boot"), this());
    // It answers again, and has the last word.
    let identity = host.identity("worker-1");
    assert_eq!(identity.instance().expect("recorded").kind, "m5.large");
    assert!(identity.verified.lock().expect("no panic").is_none());
    host.answers(true);
    identity.instance().expect("reported");
    assert!(identity.verified.lock().expect("no panic").is_some());
    // Once is enough.
    host.asked.try_iter().for_each(drop);
    host.answers(false);
    identity.instance().expect("known");
    assert_eq!(host.asked.try_iter().count(), 0);
}

#[test]
fn record_of_another_boot_is_believed_only_with_the_hypervisors_word() {
    let host = Host::new();
    host.registers().expect("reported");
    host.answers(false);
    host.boots("second");
    let error = host.registers().expect_err("a disk that was copied would look the same").to_string();
    assert!(error.contains(THIS) && error.contains("not proven") && error.contains("--node-id i-"), "{error}");
    // A Nitro instance: that very one. What its type is now, the hypervisor says.
    host.is_tagged(THIS);
    assert_eq!(host.registers().expect("proven"), this());
    assert_eq!(host.identity("worker-1").instance().expect("proven").kind, "m7i.large");
}

#[test]
fn record_on_a_copied_disk_is_not_believed() {
    let host = Host::new();
    host.registers().expect("reported");
    host.answers(false);
    host.is_tagged(OTHER);
    let identity = Arc::new(host.identity("worker-1"));
    assert_eq!(identity.node_id().expect("the hypervisor says it").as_str(), OTHER);
    let error = Place { identity, zone: None, kind: None }.zone().expect_err("that of another").to_string();
    assert!(error.contains(THIS) && error.contains("not proven"), "{error}");
}

#[test]
fn node_on_an_outpost_says_so_also_without_metadata() {
    const ARN: &str = "arn:aws:outposts:eu-west-1:123456789012:outpost/op-0123456789abcdef0";
    let directory = tempfile::tempdir().expect("a directory");
    fs::write(directory.path().join("boot"), "first").expect("an id");
    let away = Arc::new(AtomicUsize::new(0));
    let is_away = Arc::clone(&away);
    let (metadata, _asked) = service(move |asked| match asked.path.as_str() {
        _ if is_away.load(Ordering::SeqCst) > 0 => Some((503, "busy")),
        "/latest/meta-data/outpost-arn" => Some((200, ARN)),
        _ => instance(asked),
    });
    for _ in 0..2 {
        let evidence = Evidence { dmi: directory.path().join("none"), boot: directory.path().join("boot") };
        let identity = Identity::with(metadata.clone(), &"worker-1".parse().expect("an id"), directory.path(), evidence);
        let policy = Ec2Policy { tags: Tags::new(), place: Some(Place { identity: Arc::new(identity), zone: None, kind: None }) };
        let topology = policy.topology().expect("known").expect("a node");
        let segments = topology.segments();
        assert_eq!(segments["topology.longshore.csi.dev/zone"], "eu-west-1a");
        assert_eq!(segments["topology.longshore.csi.dev/outpost"], "aws.eu-west-1.123456789012.op-0123456789abcdef0");
        assert_eq!(policy.site(&topology).expect("one of ours").as_deref(), Some(ARN), "which CreateVolume takes");
        away.store(1, Ordering::SeqCst);
    }
    let policy = Ec2Policy { tags: Tags::new(), place: None };
    let settings = policy.placed(serde_json::json!({"kind": "gp2"}), ARN);
    assert_eq!(settings.map(|settings| settings["outpost_arn"].clone()).ok(), Some(ARN.into()));
    let other = serde_json::json!({"kind": "gp2", "outpost_arn": "arn:other"});
    assert!(policy.placed(other, ARN).expect_err("two places").to_string().contains("arn:other"));
}

#[test]
fn damaged_or_missing_record_is_no_answer() {
    let host = Host::new();
    host.answers(false);
    let error = host.registers().expect_err("first start").to_string();
    assert!(error.contains("has no earlier answer") && error.contains("status 503"), "{error}");
    for damaged in ["", "{", "{\"instance\":{\"id\":\"i-0\"}}", "\u{0}\u{0}\u{0}"] {
        fs::write(host.directory.path().join(RECORD), damaged).expect("a record");
        host.registers().expect_err(damaged);
    }
    // Repaired by the next answer.
    host.answers(true);
    host.registers().expect("reported");
    host.answers(false);
    assert_eq!(host.registers().expect("recorded"), this());
}

#[test]
fn operators_word_is_not_asked_for_and_is_not_contradicted() {
    let host = Host::new();
    let identity = Arc::new(host.identity(OTHER));
    let said = Place { identity: Arc::clone(&identity), zone: Some("z".to_owned()), kind: Some("c5.large".to_owned()) };
    assert_eq!((identity.node_id().expect("said").as_str(), said.zone().expect("said").as_str()), (OTHER, "z"));
    assert_eq!(said.kind(), "c5.large");
    assert_eq!(host.asked.try_iter().count(), 0);
    // A zone of another instance would be wrong.
    let error = Place { zone: None, ..said }.zone().expect_err("two instances").to_string();
    assert!(error.contains(THIS) && error.contains(OTHER), "{error}");
}

#[test]
fn limit_follows_the_interfaces_attached_now() {
    let directory = tempfile::tempdir().expect("a directory");
    let interfaces = Arc::new(AtomicUsize::new(1));
    let shown = Arc::clone(&interfaces);
    let (metadata, _asked) = service(move |asked| match shown.load(Ordering::SeqCst) {
        0 if asked.method == "GET" => Some((503, "busy")),
        1 if asked.path.ends_with("network/interfaces/macs/") => Some((200, "02:29:96:8f:6a:2d/\n")),
        _ => instance(asked),
    });
    let nowhere = Evidence { dmi: directory.path().join("none"), boot: directory.path().join("none") };
    let identity = Identity::with(metadata, &THIS.parse().expect("an id"), directory.path(), nowhere);
    let place = Place { identity: Arc::new(identity), zone: Some("z".to_owned()), kind: None };
    let node = Node::new(Some(place.clone()), &Limits::default(), Disks::default());
    // An m5.large takes 27 (28 with its first interface); 3 disks are there.
    assert_eq!(node.limit(), Some(24));
    interfaces.store(2, Ordering::SeqCst);
    assert_eq!(node.limit(), Some(23));
    // Without an answer the last one holds.
    interfaces.store(0, Ordering::SeqCst);
    assert_eq!(node.limit(), Some(23));
    // The operator's word is not asked about.
    let limits = Limits { volume_attach_limit: Some(5), ..Limits::default() };
    assert_eq!(Node::new(Some(place), &limits, Disks::default()).limit(), Some(5));
    assert_eq!(Node::new(None, &limits, Disks::default()).limit(), None);
}

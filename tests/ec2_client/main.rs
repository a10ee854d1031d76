//! The EC2 client against moto, against AWS's own model of the API, and with each way of getting credentials.
//!
//! Credentials come from the environment, which a process has but one of: each test runs itself again in a child that has its own.
#![cfg(feature = "ec2")]
#![allow(clippy::disallowed_methods, reason = "tests start themselves, and moto")]

#[path = "../common/mod.rs"]
mod common;
#[allow(dead_code, reason = "moto's own tests use more of it")]
#[path = "../cloud/moto.rs"]
mod moto;
#[allow(dead_code, reason = "as above")]
#[path = "../cloud/wire.rs"]
mod wire;
#[allow(dead_code, reason = "as above")]
#[path = "../cloud/xml.rs"]
mod xml;

use std::io::{BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use longshore::backend::cloud::clock::Clock;
use longshore::backend::cloud::{CloudErrorKind, Tags};
use longshore::backend::ec2::api::{
    AttachmentState, CreateSnapshot, CreateVolume, Ec2, Filter, InstanceState, ModifyVolume, Select, Settings, SnapshotState,
    Volume, VolumeState,
};
use longshore::metrics::CloudRequests;

use moto::Moto;
use wire::Request;

const KEY: &str = "AKIALONGSHORETEST000";
const SECRET: &str = "A-SECRET-KEY-THAT-NOBODY-MAY-READ";
const TOKEN: &str = "A-SESSION-TOKEN-THAT-NOBODY-MAY-READ";
const ZONE: &str = "us-east-1a";
/// Tells a child which test it is of.
const CHILD: &str = "LONGSHORE_EC2_CHILD";

/// Runs `work` in a child of this process with nothing of AWS's in its environment but this.
fn with_environment(test: &str, environment: &[(&str, &str)]) {
    let mut child = Command::new(std::env::current_exe().expect("this test"));
    child.args([test, "--exact", "--nocapture"]).env(CHILD, test).envs(environment.iter().copied());
    for (name, _) in
        std::env::vars().filter(|(name, _)| name.starts_with("AWS_") && environment.iter().all(|(own, _)| own != name))
    {
        child.env_remove(name);
    }
    child.env("HOME", "/nonexistent").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let starting = common::starting();
    let child = child.spawn().expect("this test, again");
    drop(starting);
    let output = child.wait_with_output().expect("an end");
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

fn is_child(test: &str) -> bool {
    std::env::var(CHILD).is_ok_and(|child| child == test)
}

fn client() -> Ec2 {
    Ec2::new(Settings::default(), Clock::default(), CloudRequests::default()).expect("a client")
}

fn tags(pairs: &[(&str, &str)]) -> Tags {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn ids(ids: &[&str]) -> Select {
    Select::Ids(ids.iter().map(|id| (*id).to_owned()).collect())
}

fn tagged(key: &str, value: &str) -> Select {
    Select::Filtered { filters: vec![Filter::tag(key, [value])], token: None }
}

fn volume(client: &Ec2, id: &str) -> Volume {
    client.describe_volumes(&ids(&[id])).expect("an answer").items.remove(0)
}

/// A moto, with the environment of a process that is to ask it; `None` where PyPI cannot be had, which is said aloud.
fn moto() -> Option<(Moto, String)> {
    match Moto::new().map(|moto| moto.default_account()) {
        Ok(moto) => {
            let url = format!("http://{}", moto.address);
            Some((moto, url))
        }
        Err(why) => {
            common::skipped(&why);
            None
        }
    }
}

/// From a volume's making to its deletion; what came of each request is asked of moto by hand.
#[test]
fn a_life_against_moto() {
    const TEST: &str = "a_life_against_moto";
    if is_child(TEST) {
        return live();
    }
    let Some((moto, url)) = moto() else { return };
    let run = moto.must(
        "RunInstances",
        &[
            ("ImageId", moto::IMAGE),
            ("MinCount", "1"),
            ("MaxCount", "1"),
            ("InstanceType", "m5.large"),
            ("Placement.AvailabilityZone", ZONE),
        ],
    );
    let snapshot = written_blocks(&moto, &[3, 700]);
    let before = moto.volumes();
    let instance = run.items("instancesSet")[0].get("instanceId").to_owned();
    with_environment(
        TEST,
        &[
            ("AWS_ACCESS_KEY_ID", KEY),
            ("AWS_SECRET_ACCESS_KEY", SECRET),
            ("AWS_REGION", moto::REGION),
            ("AWS_ENDPOINT_URL", &url),
            ("LONGSHORE_EC2_INSTANCE", &instance),
            ("LONGSHORE_EC2_SNAPSHOT", &snapshot),
        ],
    );
    let left: Vec<_> = moto.volumes().into_iter().filter(|volume| !before.contains(volume)).collect();
    let [clone] = &left[..] else { panic!("all but the clone are deleted: {left:?}") };
    assert_eq!((clone.get("size"), clone.items("tagSet").len()), ("5", 2));
    assert_eq!(moto.snapshots().len(), 0);
}

/// A snapshot of these blocks, which moto has only of its EBS direct APIs.
fn written_blocks(moto: &Moto, blocks: &[u32]) -> String {
    let send = |method: &str, path: &str, headers: &[(&str, &str)], body: &str| {
        let signature = format!(
            "AWS4-HMAC-SHA256 Credential={KEY}/20260101/{}/ebs/aws4_request, SignedHeaders=host, Signature=0",
            moto::REGION
        );
        let headers = [("authorization", signature.as_str())]
            .iter()
            .chain(headers)
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        let request = Request { method: method.to_owned(), path: path.to_owned(), headers, body: body.to_owned() };
        let (status, answer) = wire::send(moto.address, &request).expect("an answer");
        assert!((200..300).contains(&status), "{method} {path}: {answer}");
        answer
    };
    let made: serde_json::Value = serde_json::from_str(&send("POST", "/snapshots", &[], "{\"VolumeSize\":1}")).expect("JSON");
    let id = made["SnapshotId"].as_str().expect("an id").to_owned();
    for block in blocks {
        let headers = [("x-amz-Data-Length", "1"), ("x-amz-Checksum", "x"), ("x-amz-Checksum-Algorithm", "SHA256")];
        send("PUT", &format!("/snapshots/{id}/blocks/{block}"), &headers, "a");
    }
    id
}

fn live() {
    let client = client();
    let instance = std::env::var("LONGSHORE_EC2_INSTANCE").expect("an instance");
    assert_eq!(client.region().expect("a region"), moto::REGION);
    let zones = client.describe_availability_zones().expect("zones");
    assert!(zones.iter().any(|zone| zone.name == ZONE && !zone.id.is_empty()), "{zones:?}");
    let types = client.describe_instance_types(&["m5.large".to_owned(), "no.such".to_owned()]).expect("types");
    assert_eq!(
        types.iter().map(|kind| (kind.instance_type.as_str(), kind.hypervisor.as_deref())).collect::<Vec<_>>(),
        [("m5.large", Some("nitro"))]
    );
    assert!(types[0].network_info.as_ref().and_then(|info| info.maximum_network_interfaces).is_some());

    let odd = tags(&[("longshore.dev/name", "pvc 1 + ä & <b>"), ("empty", "")]);
    let create = CreateVolume {
        client_token: "token-1".to_owned(),
        zone: ZONE.to_owned(),
        size: Some(4),
        volume_type: Some("gp3".to_owned()),
        iops: Some(3000),
        throughput: Some(125),
        encrypted: Some(true),
        tags: odd.clone(),
        ..CreateVolume::default()
    };
    let made = client.create_volume(&create).expect("made");
    assert_eq!((made.size, made.zone.as_str(), made.volume_type.as_str(), made.encrypted), (4, ZONE, "gp3", true));
    assert_eq!(made.tags, odd);
    let id = made.volume_id.as_str();
    assert_eq!(volume(&client, id).state, VolumeState::Available);
    assert_eq!(client.describe_volumes(&tagged("longshore.dev/name", "pvc 1 + ä & <b>")).expect("one").items.len(), 1);
    assert_eq!(client.describe_volumes(&tagged("longshore.dev/name", "pvc*")).expect("none").items.len(), 0, "no wildcard");
    // One of nothing among them.
    let gone = "vol-0123456789abcdef0";
    assert_eq!(client.describe_volumes(&ids(&[gone, id])).expect("one").items.len(), 1);
    assert_eq!(client.describe_volumes(&ids(&[gone])).expect("none").items.len(), 0);

    client.attach_volume(id, &instance, "/dev/xvdaa", None).expect("begun");
    let attachments = volume(&client, id).attachments;
    assert_eq!(
        (attachments.len(), attachments[0].state, attachments[0].device.as_deref()),
        (1, AttachmentState::Attached, Some("/dev/xvdaa"))
    );
    assert_eq!(attachments[0].instance_id.as_deref(), Some(instance.as_str()));
    let machine = client.describe_instances(&ids(&[&instance, "i-0123456789abcdef0"])).expect("one").items.remove(0);
    assert_eq!((machine.state, machine.zone.as_str()), (InstanceState::Running, ZONE));
    assert!(machine.disks.iter().any(|disk| disk.volume_id == id && disk.device == "/dev/xvdaa"), "{machine:?}");
    let busy = client.delete_volume(id).expect_err("attached");
    assert_eq!(busy.because, CloudErrorKind::InUse, "{busy}");
    client.detach_volume(id, &instance).expect("begun");
    assert_eq!(volume(&client, id).attachments, []);
    let not = client.detach_volume(id, &instance).expect_err("detached");
    assert_eq!(not.because, CloudErrorKind::NotAttached, "{not}");
    let nobody = client.attach_volume(id, "i-0123456789abcdef0", "/dev/xvdaa", None).expect_err("no machine");
    assert_eq!(nobody.because, CloudErrorKind::NoInstance, "{nobody}");

    client.modify_volume(&ModifyVolume { volume_id: id.to_owned(), size: Some(5), ..ModifyVolume::default() }).expect("begun");
    assert_eq!(volume(&client, id).size, 5);
    assert_eq!(client.describe_volumes_modifications(&ids(&[id])).expect("one").items[0].target_size, Some(5));

    let create_snapshot =
        CreateSnapshot { volume_id: id.to_owned(), description: Some("a b".to_owned()), outpost_arn: None, tags: odd };
    let snapshot = client.create_snapshot(&create_snapshot).expect("begun").snapshot_id;
    let found = client.describe_snapshots(&tagged("longshore.dev/name", "pvc 1 + ä & <b>")).expect("one").items;
    assert_eq!((found.len(), found[0].state, found[0].progress, found[0].volume_size), (1, SnapshotState::Completed, 100, 5));
    assert_eq!(found[0].snapshot_id, snapshot);
    let written = std::env::var("LONGSHORE_EC2_SNAPSHOT").expect("a snapshot");
    assert_eq!(client.list_snapshot_blocks(&written, 0, None).expect("a page").indices, [3, 700]);
    assert_eq!(client.list_changed_blocks(&written, &written, 0, None).expect("a page").indices, [0_u64; 0]);
    let clone = CreateVolume { snapshot_id: Some(snapshot.clone()), size: None, client_token: "token-2".to_owned(), ..create };
    assert_eq!(client.create_volume(&clone).expect("made").snapshot_id.as_ref(), Some(&snapshot));

    client.delete_snapshot(&snapshot).expect("deleted");
    assert_eq!(client.delete_snapshot(&snapshot).expect_err("gone").because, CloudErrorKind::NotFound);
    client.delete_volume(id).expect("deleted");
    let gone = client.delete_volume(id).expect_err("gone");
    assert_eq!(gone.because, CloudErrorKind::NotFound, "{gone}");
    assert!(gone.code == "InvalidVolume.NotFound" && gone.message.contains(id) && gone.request_id.is_some(), "{gone:?}");
}

/// A stand-in for all that AWS has.
struct StandIn {
    address: SocketAddr,
    asked: Arc<Mutex<Vec<Request>>>,
}

impl StandIn {
    fn start(answer: impl Fn(&Request) -> (u16, String) + Send + Sync + 'static) -> StandIn {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (all, answer) = (asked.clone(), Arc::new(answer));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (all, answer) = (all.clone(), answer.clone());
                std::thread::spawn(move || serve(stream.expect("a connection"), &all, &*answer));
            }
        });
        StandIn { address, asked }
    }

    fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    fn asked(&self) -> Vec<Request> {
        self.asked.lock().expect("no panic").clone()
    }
}

fn serve(stream: TcpStream, all: &Mutex<Vec<Request>>, answer: &dyn Fn(&Request) -> (u16, String)) {
    let mut reader = BufReader::new(stream);
    while let Some(request) = Request::read(&mut reader) {
        let (status, text) = answer(&request);
        all.lock().expect("no panic").push(request);
        let head = format!(
            "HTTP/1.1 {status} X\r\nx-aws-ec2-metadata-token-ttl-seconds: 21600\r\nContent-Length: {}\r\n\r\n",
            text.len()
        );
        if write!(reader.get_mut(), "{head}{text}").is_err() {
            break;
        }
    }
}

fn refused() -> (u16, String) {
    (400, "<Response><Errors><Error><Code>Recorded</Code><Message>m</Message></Error></Errors></Response>".to_owned())
}

/// Each request with all that it can carry.
#[test]
fn requests_are_as_aws_models_them() {
    const TEST: &str = "requests_are_as_aws_models_them";
    if is_child(TEST) {
        return ask_all();
    }
    let python = match moto::installed() {
        Ok(python) => python,
        Err(why) => return common::skipped(&why),
    };
    let server = StandIn::start(|_| refused());
    let keys = [("AWS_ACCESS_KEY_ID", KEY), ("AWS_SECRET_ACCESS_KEY", SECRET), ("AWS_REGION", "us-east-1")];
    with_environment(TEST, &[&keys[..], &[("AWS_ENDPOINT_URL_EC2", &server.url())]].concat());
    let forms: Vec<String> = server.asked().into_iter().map(|request| request.body).collect();
    assert!(forms.len() >= 21, "{forms:?}");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/ec2_client/model.py");
    let starting = common::starting();
    let mut check = Command::new(python).arg(script).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("python");
    drop(starting);
    check.stdin.take().expect("a pipe").write_all(forms.join("\n").as_bytes()).expect("written");
    let output = check.wait_with_output().expect("an end");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}");
    println!("{}", said.trim());
}

fn ask_all() {
    let client = client();
    let recorded = |refusal: longshore::backend::cloud::Refusal| assert_eq!(refusal.code, "Recorded");
    let tags = tags(&[("a", "b"), ("c", "d")]);
    let some = |text: &str| Some(text.to_owned());
    let create = CreateVolume {
        client_token: "t".to_owned(),
        zone: ZONE.to_owned(),
        size: Some(1),
        volume_type: some("io2"),
        iops: Some(100),
        throughput: Some(125),
        encrypted: Some(true),
        kms_key_id: some("k"),
        snapshot_id: some("snap-1"),
        multi_attach: Some(false),
        outpost_arn: some("arn"),
        initialization_rate: Some(100),
        tags: tags.clone(),
    };
    recorded(client.create_volume(&create).expect_err("recorded"));
    let modify = ModifyVolume {
        volume_id: "vol-1".to_owned(),
        size: Some(1),
        volume_type: some("gp3"),
        iops: Some(3000),
        throughput: Some(125),
        multi_attach: Some(true),
    };
    recorded(client.modify_volume(&modify).expect_err("recorded"));
    let snapshot =
        CreateSnapshot { volume_id: "vol-1".to_owned(), description: some("d"), outpost_arn: some("arn"), tags: tags.clone() };
    recorded(client.create_snapshot(&snapshot).expect_err("recorded"));
    recorded(client.delete_volume("vol-1").expect_err("recorded"));
    recorded(client.attach_volume("vol-1", "i-1", "/dev/xvdaa", None).expect_err("recorded"));
    recorded(client.detach_volume("vol-1", "i-1").expect_err("recorded"));
    recorded(client.delete_snapshot("snap-1").expect_err("recorded"));
    let filters = vec![Filter::tag("k", ["a", "b"]), Filter::new("status", ["x"])];
    for select in [ids(&["a-1", "a-2"]), Select::Filtered { filters: filters.clone(), token: some("t") }] {
        recorded(client.describe_volumes(&select).expect_err("recorded"));
        recorded(client.describe_volumes_modifications(&select).expect_err("recorded"));
        recorded(client.describe_volume_status(&select).expect_err("recorded"));
        recorded(client.describe_snapshots(&select).expect_err("recorded"));
        recorded(client.describe_instances(&select).expect_err("recorded"));
    }
    recorded(client.describe_instance_types(&["m5.large".to_owned()]).expect_err("recorded"));
    recorded(client.describe_availability_zones().expect_err("recorded"));
    recorded(client.enable_fast_snapshot_restores("snap-1", &[ZONE.to_owned()]).expect_err("recorded"));
    recorded(client.describe_fast_snapshot_restores(filters).expect_err("recorded"));
}

/// One request; whose key it was signed by, the stand-in sees.
fn ask_once() {
    assert_eq!(client().delete_volume("vol-1").expect_err("recorded").code, "Recorded");
}

/// What those who give credentials answer, in the forms of STS, of the pod identity agent, and of the instance metadata.
fn aws(request: &Request) -> (u16, String) {
    let json = |id: &str| {
        format!(
            "{{\"Code\":\"Success\",\"Type\":\"AWS-HMAC\",\"AccessKeyId\":\"{id}\",\"SecretAccessKey\":\"{SECRET}\",\"Token\":\"{TOKEN}\",\
             \"Expiration\":\"2090-01-01T00:00:00Z\",\"LastUpdated\":\"2026-01-01T00:00:00Z\"}}"
        )
    };
    let header = |name: &str| request.headers.get(name).map_or("", String::as_str);
    let path = request.path.as_str();
    match request.parameters().get("Action").map(String::as_str) {
        Some("AssumeRoleWithWebIdentity") => {
            assert_eq!(request.parameters()["WebIdentityToken"], "a-projected-token");
            (
                200,
                format!(
                    "<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult><AssumedRoleUser><Arn>arn:aws:sts::1:r</Arn>\
                     <AssumedRoleId>r</AssumedRoleId></AssumedRoleUser><Credentials><SessionToken>{TOKEN}</SessionToken><SecretAccessKey>\
                     {SECRET}</SecretAccessKey><Expiration>2090-01-01T00:00:00Z</Expiration><AccessKeyId>AKIAWEB</AccessKeyId>\
                     </Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>"
                ),
            )
        }
        Some(_) => refused(),
        None if path == "/v1/credentials" && header("authorization") == "a-projected-token" => (200, json("AKIAPOD")),
        // Version 2 of the metadata: nothing without a token.
        None if path == "/latest/api/token" && request.method == "PUT" => (200, "imds-token".to_owned()),
        None if header("x-aws-ec2-metadata-token") != "imds-token" => (401, String::new()),
        None if path == "/latest/meta-data/placement/region" => (200, "us-west-2".to_owned()),
        None if path.contains("/iam/security-credentials") && path.ends_with('/') => (200, "the-role".to_owned()),
        None if path.contains("/iam/security-credentials") && path.ends_with("the-role") => (200, json("AKIAIMDS")),
        None => (404, String::new()),
    }
}

/// Asks by such an environment, in which `URL` stands for the stand-in and `FILE` for a file with a token.
fn signed_by(test: &str, environment: &[(&str, &str)]) -> String {
    let server = StandIn::start(aws);
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), "a-projected-token").expect("a token");
    let fill = |value: &str| value.replace("URL", &server.url()).replace("FILE", &file.path().display().to_string());
    let filled: Vec<(&str, String)> = environment.iter().map(|(name, value)| (*name, fill(value))).collect();
    let url = server.url();
    let mut all = vec![("AWS_ENDPOINT_URL_EC2", url.as_str())];
    all.extend(filled.iter().map(|(name, value)| (*name, value.as_str())));
    with_environment(test, &all);
    let last = server.asked().pop().expect("a request");
    assert_eq!(last.headers.get("x-amz-security-token").map(String::as_str), Some(TOKEN));
    last.credential().expect("a signature").to_owned()
}

#[test]
fn credentials_of_web_identity() {
    const TEST: &str = "credentials_of_web_identity";
    if is_child(TEST) {
        return ask_once();
    }
    let environment = [
        ("AWS_WEB_IDENTITY_TOKEN_FILE", "FILE"),
        ("AWS_ROLE_ARN", "arn:aws:iam::1:role/r"),
        ("AWS_REGION", "eu-west-1"),
        ("AWS_ENDPOINT_URL_STS", "URL"),
    ];
    let credential = signed_by(TEST, &environment);
    assert!(credential.starts_with("AKIAWEB/") && credential.ends_with("/eu-west-1/ec2/aws4_request"), "{credential}");
}

#[test]
fn credentials_of_pod_identity() {
    const TEST: &str = "credentials_of_pod_identity";
    if is_child(TEST) {
        return ask_once();
    }
    let environment = [
        ("AWS_CONTAINER_CREDENTIALS_FULL_URI", "URL/v1/credentials"),
        ("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", "FILE"),
        ("AWS_REGION", "eu-west-1"),
    ];
    assert!(signed_by(TEST, &environment).starts_with("AKIAPOD/"));
}

/// Of the region too.
#[test]
fn credentials_of_the_instance_metadata() {
    const TEST: &str = "credentials_of_the_instance_metadata";
    if is_child(TEST) {
        return ask_once();
    }
    let credential = signed_by(TEST, &[("AWS_EC2_METADATA_SERVICE_ENDPOINT", "URL")]);
    assert!(credential.starts_with("AKIAIMDS/") && credential.ends_with("/us-west-2/ec2/aws4_request"), "{credential}");
}

/// Where nobody gives any, that is said, and nothing is sent.
#[test]
fn without_credentials_nothing_is_sent() {
    const TEST: &str = "without_credentials_nothing_is_sent";
    if is_child(TEST) {
        let refusal = client().delete_volume("vol-1").expect_err("nobody");
        assert_eq!(
            (refusal.because, refusal.code.as_str(), refusal.maybe_done),
            (CloudErrorKind::Denied, "credentials", false),
            "{refusal}"
        );
        return;
    }
    let server = StandIn::start(|_| refused());
    let environment = [
        ("AWS_ENDPOINT_URL_EC2", server.url()),
        ("AWS_REGION", "eu-west-1".to_owned()),
        ("AWS_EC2_METADATA_DISABLED", "true".to_owned()),
    ];
    with_environment(TEST, &environment.each_ref().map(|(name, value)| (*name, value.as_str())));
    assert_eq!(server.asked().len(), 0);
}

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("no panic").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// At the level at which AWS's crates log what they sign.
#[test]
fn no_secret_is_logged() {
    const TEST: &str = "no_secret_is_logged";
    if is_child(TEST) {
        let log = Log::default();
        let writer = log.clone();
        let subscriber =
            tracing_subscriber::fmt().with_max_level(tracing::Level::TRACE).with_writer(move || writer.clone()).finish();
        tracing::subscriber::set_global_default(subscriber).expect("the only one");
        tracing::trace!("this is logged");
        ask_once();
        let text = String::from_utf8_lossy(&log.0.lock().expect("no panic")).into_owned();
        assert!(text.contains("this is logged"));
        for secret in [SECRET, TOKEN, "Signature=", "a-projected-token"] {
            assert!(!text.contains(secret), "{text}");
        }
        return;
    }
    let environment = [
        ("AWS_WEB_IDENTITY_TOKEN_FILE", "FILE"),
        ("AWS_ROLE_ARN", "arn:aws:iam::1:role/r"),
        ("AWS_REGION", "eu-west-1"),
        ("AWS_ENDPOINT_URL_STS", "URL"),
    ];
    signed_by(TEST, &environment);
}

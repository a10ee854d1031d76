//! The client against a small server that answers as it is configured: canned replies, refusals in all forms, and what goes wrong on the way.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use aws_credential_types::provider::{self, ProvideCredentials, future};

use super::*;
use crate::backend::cloud::Tags;

const TOKEN: &str = "SESSIONTOKENxyz+/=";
const SECRET: &str = "SECRETKEYabcdef";
const DONE: &str = "<r><requestId>q</requestId><return>true</return></r>";
const NO_VOLUMES: &str = "<DescribeVolumesResponse><requestId>q</requestId><volumeSet/></DescribeVolumesResponse>";

/// What the server was sent.
#[derive(Clone, Debug)]
struct Asked {
    /// With the method and path.
    head: String,
    body: String,
}

impl Asked {
    /// Of the form.
    fn value(&self, name: &str) -> Option<&str> {
        self.body.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='))
    }
}

enum Reply {
    Xml(u16, String),
    With(u16, &'static str, String),
    /// The connection is closed without an answer.
    Cut,
    /// In the middle of the answer.
    CutMidway,
    Never,
}

/// `<r>` stands for the root of an answer to the action.
fn ok(xml: &str) -> Reply {
    Reply::Xml(200, xml.to_owned())
}

fn refused(status: u16, code: &str, message: &str) -> Reply {
    let xml = format!(
        "<Response><Errors><Error><Code>{code}</Code><Message>{message}</Message></Error></Errors><RequestID>req-1</RequestID></Response>"
    );
    Reply::Xml(status, xml)
}

struct Server {
    url: String,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Server {
    /// `reply` answers the requests, and gets their number.
    fn start(reply: impl Fn(usize, &Asked) -> Reply + Send + Sync + 'static) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (all, reply) = (asked.clone(), Arc::new(reply));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (all, reply) = (all.clone(), reply.clone());
                std::thread::spawn(move || while answer(stream.as_ref().expect("a connection"), &all, &*reply).is_some() {});
            }
        });
        Server { url, asked }
    }

    fn asked(&self) -> Vec<Asked> {
        self.asked.lock().expect("no panic").clone()
    }

    fn client(&self) -> Ec2 {
        self.client_with(&[("AKIDA", TOKEN)])
    }

    /// The credentials provider gives these, one after the other, the last for ever.
    fn client_with(&self, keys: &[(&'static str, &'static str)]) -> Ec2 {
        self.client_within(BTreeMap::new(), keys)
    }

    fn client_within(&self, limits: BTreeMap<String, Limit>, keys: &[(&'static str, &'static str)]) -> Ec2 {
        let patience = Patience {
            deadline: Duration::from_secs(20),
            first: Duration::from_millis(1),
            most: Duration::from_millis(1),
            answer: Duration::from_secs(3),
        };
        let settings = Settings { patience, limits, ..Settings::default() };
        let mut ec2 = Ec2::new(settings, Clock::default(), CloudRequests::default()).expect("a client");
        let endpoint = Endpoint { ec2: Some(self.url.clone()), ebs: Some(format!("{}/", self.url)) };
        let http = Http::new(Some("eu-test-1".to_owned()), endpoint, patience.answer);
        let keys = keys.iter().rev().map(|(id, token)| Credentials::new(*id, SECRET, Some((*token).to_owned()), None, "test"));
        ec2.http = Arc::new(http.with_provider(Keys(Mutex::new(keys.collect()))));
        ec2
    }
}

/// Serves one request of a connection.
fn answer(mut stream: &TcpStream, all: &Mutex<Vec<Asked>>, reply: &dyn Fn(usize, &Asked) -> Reply) -> Option<()> {
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head).ok()? == 0 {
            return None;
        }
    }
    let length = head.lines().find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    reader.read_exact(&mut body).ok()?;
    let asked = Asked { head, body: String::from_utf8(body).ok()? };
    let number = {
        let mut all = all.lock().expect("no panic");
        all.push(asked.clone());
        all.len() - 1
    };
    let (status, header, text) = match reply(number, &asked) {
        Reply::Xml(status, text) => (status, "Content-Type: text/xml", text),
        Reply::With(status, header, text) => (status, header, text),
        Reply::Cut => {
            stream.shutdown(Shutdown::Both).ok()?;
            return None;
        }
        Reply::CutMidway => {
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n<DescribeVolumesResponse>").ok()?;
            stream.shutdown(Shutdown::Both).ok()?;
            return None;
        }
        Reply::Never => {
            std::thread::park_timeout(Duration::from_secs(10));
            return None;
        }
    };
    let response = format!("{}Response>", asked.value("Action").unwrap_or_default());
    let text = text.replace("<r>", &format!("<{response}")).replace("</r>", &format!("</{response}"));
    let id = "x-amzn-RequestId: req-header";
    write!(stream, "HTTP/1.1 {status} X\r\n{header}\r\n{id}\r\nContent-Length: {}\r\n\r\n{text}", text.len()).ok()
}

#[derive(Debug)]
struct Keys(Mutex<Vec<Credentials>>);

impl ProvideCredentials for Keys {
    fn provide_credentials<'a>(&'a self) -> future::ProvideCredentials<'a>
    where
        Self: 'a,
    {
        let mut keys = self.0.lock().expect("no panic");
        let next = if keys.len() > 1 { keys.pop() } else { keys.last().cloned() };
        future::ProvideCredentials::ready(next.ok_or_else(|| provider::error::CredentialsError::not_loaded("nobody has any")))
    }
}

fn ids(ids: &[&str]) -> Select {
    Select::Ids(ids.iter().map(|id| (*id).to_owned()).collect())
}

#[test]
fn requests_are_signed_and_say_who_asks() {
    let server = Server::start(|_, _| ok(DONE));
    server.client().delete_volume("vol-1").expect("deleted");
    let asked = server.asked().remove(0);
    let header = |name: &str| {
        let line = asked.head.lines().find(|line| line.to_ascii_lowercase().starts_with(name));
        line.unwrap_or_else(|| panic!("{name} in {}", asked.head)).to_owned()
    };
    assert!(asked.head.starts_with("POST / HTTP/1.1"), "{}", asked.head);
    let signature = header("authorization: ");
    assert!(signature.contains("AWS4-HMAC-SHA256 Credential=AKIDA/"), "{signature}");
    assert!(signature.contains("/eu-test-1/ec2/aws4_request"), "{signature}");
    for name in ["content-type", "host", "x-amz-date", "x-amz-security-token"] {
        assert!(signature.contains(name), "{name} is not signed: {signature}");
    }
    assert!(header("x-amz-security-token: ").ends_with(TOKEN));
    assert!(header("user-agent: ").contains("longshore/"));
    assert_eq!(asked.body, "Action=DeleteVolume&Version=2016-11-15&VolumeId=vol-1");
}

/// As the EC2 API reference prints it, with what it leaves empty.
const VOLUME: &str = r#"<?xml version="1.0" encoding="UTF-8"?>
<DescribeVolumesResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/">
  <requestId>59dbff89-35bd-4eac-99ed-be587EXAMPLE</requestId>
  <volumeSet>
    <item>
      <volumeId>vol-1</volumeId><size>80</size><snapshotId/><availabilityZone>us-east-1a</availabilityZone>
      <status>in-use</status><createTime>2026-01-31T08:00:00.250Z</createTime>
      <attachmentSet>
        <item><volumeId>vol-1</volumeId><instanceId>i-1</instanceId><device>/dev/xvdaa</device><status>attached</status>
          <attachTime>2026-01-31T08:01:00.000Z</attachTime><deleteOnTermination>false</deleteOnTermination></item>
        <item><volumeId>vol-1</volumeId><instanceId>i-2</instanceId><device>/dev/xvdab</device><status>busy</status></item>
      </attachmentSet>
      <tagSet><item><key>longshore.dev/name</key><value>pvc-1 &lt;x&gt;</value></item><item><key>empty</key><value/></item></tagSet>
      <volumeType>io2</volumeType><iops>3000</iops><encrypted>true</encrypted><kmsKeyId>arn:aws:kms:x</kmsKeyId>
      <multiAttachEnabled>true</multiAttachEnabled>
    </item>
    <item>
      <volumeId>vol-2</volumeId><size>1</size><snapshotId>snap-1</snapshotId><availabilityZone>us-east-1b</availabilityZone>
      <status>hibernating</status><attachmentSet/><volumeType>standard</volumeType><encrypted>false</encrypted><iops/>
    </item>
  </volumeSet>
  <nextToken>more+/=</nextToken>
</DescribeVolumesResponse>"#;

#[test]
fn volumes_are_read_and_paged() {
    let server = Server::start(|_, _| ok(VOLUME));
    let filters = vec![Filter::tag("longshore.dev/cluster", ["a*"]), Filter::new("status", ["in-use"])];
    let page = server.client().describe_volumes(&Select::Filtered { filters, token: Some("a/b".to_owned()) }).expect("a page");
    assert_eq!(page.next.as_deref(), Some("more+/="));
    let [first, second] = &page.items[..] else { panic!("{page:?}") };
    assert_eq!((first.state, first.size, first.iops), (VolumeState::InUse, 80, Some(3000)));
    assert!(first.multi_attach && first.encrypted);
    assert_eq!((first.snapshot_id.as_deref(), second.snapshot_id.as_deref()), (None, Some("snap-1")));
    assert_eq!(first.tags["longshore.dev/name"], "pvc-1 <x>");
    assert_eq!(first.tags["empty"], "");
    let states: Vec<_> = first.attachments.iter().map(|at| (at.device.as_deref(), at.state)).collect();
    assert_eq!(states, [(Some("/dev/xvdaa"), AttachmentState::Attached), (Some("/dev/xvdab"), AttachmentState::Busy)]);
    let since = first.attachments[0].attach_time.expect("a time").duration_since(first.create_time.expect("a time"));
    assert_eq!(since.expect("later"), Duration::from_millis(59_750));
    assert_eq!((second.state, second.iops, second.tags.len()), (VolumeState::Unknown, None, 0));
    let asked = server.asked().remove(0);
    assert_eq!(asked.value("Filter.1.Value.1"), Some("a%5C%2A"));
    assert_eq!((asked.value("MaxResults"), asked.value("NextToken")), (Some("500"), Some("a%2Fb")));
}

#[test]
fn filtered_list_with_an_empty_first_page_is_read_to_its_end() {
    let last = VOLUME.replace("<nextToken>more+/=</nextToken>", "");
    let server = Server::start(move |_, asked| match (asked.value("VolumeId.1"), asked.value("NextToken")) {
        (Some(_), _) => refused(400, "InvalidVolume.NotFound", "The volume 'vol-9' does not exist."),
        (None, None) => ok("<r><volumeSet/><nextToken>second</nextToken></r>"),
        (None, Some("second")) => ok("<r><volumeSet/><nextToken>third</nextToken></r>"),
        (None, Some("third")) => ok(&last),
        other => panic!("{other:?}"),
    });
    let found = server.client().describe_volumes(&ids(&["vol-1", "vol-9"])).expect("all pages").items;
    assert_eq!(found.iter().map(|volume| volume.volume_id.as_str()).collect::<Vec<_>>(), ["vol-1", "vol-2"]);
}

#[test]
fn list_that_repeats_its_token_is_an_error() {
    let server = Server::start(|_, asked| match asked.value("Action") {
        Some("DescribeAvailabilityZones") => ok("<r><availabilityZoneInfo/><nextToken>again</nextToken></r>"),
        Some("DescribeInstanceTypes") => ok("<r><instanceTypeSet/><nextToken>again</nextToken></r>"),
        Some("DescribeFastSnapshotRestores") => ok("<r><fastSnapshotRestoreSet/><nextToken>again</nextToken></r>"),
        other => panic!("{other:?}"),
    });
    let client = server.client();
    for refusal in [
        client.describe_availability_zones().map(drop).expect_err("no end"),
        client.describe_instance_types(&["m5.large".to_owned()]).map(drop).expect_err("no end"),
        client.describe_fast_snapshot_restores(Vec::new()).map(drop).expect_err("no end"),
    ] {
        assert_eq!((refusal.because, refusal.code.as_str()), (CloudErrorKind::Unavailable, "endless list"));
    }
    assert_eq!(server.asked().len(), 6);
}

/// The rest of a request that names one that does not exist is asked for by a filter.
#[test]
fn absent_volume_is_missing_from_the_response() {
    let server = Server::start(|_, asked| match (asked.value("VolumeId.1"), asked.value("Filter.1.Name")) {
        (Some(_), _) => refused(400, "InvalidVolume.NotFound", "The volume 'vol-9' does not exist."),
        (None, Some("volume-id")) => ok(VOLUME.replace("<nextToken>more+/=</nextToken>", "").as_str()),
        other => panic!("{other:?}"),
    });
    let client = server.client();
    assert_eq!(client.describe_volumes(&ids(&["vol-9"])).expect("none").items, []);
    assert_eq!(server.asked().len(), 1);
    let found = client.describe_volumes(&ids(&["vol-1", "vol-9", "vol-2"])).expect("two");
    assert_eq!(found.items.iter().map(|volume| volume.volume_id.as_str()).collect::<Vec<_>>(), ["vol-1", "vol-2"]);
    let asked = server.asked();
    assert_eq!(asked.len(), 3);
    assert_eq!(asked[1].value("VolumeId.3"), Some("vol-2"));
    // EC2 refuses the size of a page beside ids.
    assert_eq!(asked[1].value("MaxResults"), None);
    assert_eq!(asked[2].value("Filter.1.Value.3"), Some("vol-2"));
    // Nobody is asked about nothing.
    assert_eq!(client.describe_volumes(&ids(&[])).expect("none").items, []);
    assert_eq!(server.asked().len(), 3);
}

#[test]
fn many_ids_go_into_few_requests() {
    let server = Server::start(|number, asked| match asked.value("Filter.1.Name") {
        None if number == 1 => refused(400, "InvalidVolume.NotFound", "The volume 'vol-9' does not exist."),
        _ => ok(NO_VOLUMES),
    });
    let many: Vec<String> = (0..1000).map(|number| format!("vol-{number}")).collect();
    server.client().describe_volumes(&Select::Ids(many)).expect("none");
    let asked: Vec<(bool, usize)> = server
        .asked()
        .iter()
        .map(|asked| (asked.value("Filter.1.Name").is_some(), asked.body.matches("=vol-").count()))
        .collect();
    assert_eq!(asked, [(false, 500), (false, 500), (true, 200), (true, 200), (true, 100)]);
}

/// No empty list comes of an answer that is none.
#[test]
fn an_answer_without_what_it_should_have_is_a_failure() {
    for answer in [
        "",
        "<html/>",
        "<DescribeVolumesResponse/>",
        "<DescribeVolumesResponse><requestId>q</requestId></DescribeVolumesResponse>",
        "<DescribeVolumesResponse><volumeSet><item><volumeId>vol-1",
        "<DescribeVolumesResponse><volumeSet><item><volumeId>vol-1</volumeId></item></volumeSet></DescribeVolumesResponse>",
        "<DescribeVolumesResponse><volumeSet><item><volumeId>vol-1</volumeId></item></volumeSet>",
        "not XML at all",
    ] {
        let server = Server::start(move |_, _| ok(answer));
        let refusal = server.client().describe_volumes(&ids(&["vol-1"])).expect_err(answer);
        assert_eq!((refusal.because, refusal.code.as_str()), (CloudErrorKind::Unavailable, "unreadable answer"), "{answer}");
        assert!(!refusal.maybe_done);
        assert_eq!(refusal.request_id.as_deref(), Some("req-header"));
        let deleted = server.client().delete_volume("vol-1").expect_err(answer);
        assert!(deleted.maybe_done, "{answer}");
    }
}

#[test]
fn a_refusal_has_ec2s_own_words() {
    let server = Server::start(|_, _| refused(400, "VolumeInUse", "vol-1 is attached to i-1"));
    let refusal = server.client().delete_volume("vol-1").expect_err("refused");
    assert_eq!(refusal.to_string(), "DeleteVolume: VolumeInUse: vol-1 is attached to i-1 (request req-1)");
    assert_eq!((refusal.because, refusal.maybe_done), (CloudErrorKind::InUse, false));
    assert_eq!(server.asked().len(), 1);
}

#[test]
fn throttled_request_is_sent_again() {
    let server = Server::start(|number, _| match number {
        0 => refused(503, "RequestLimitExceeded", "Request limit exceeded."),
        1 => Reply::Xml(429, String::new()),
        _ => ok("<r><snapshotId>snap-1</snapshotId><status>pending</status><volumeSize>1</volumeSize><progress/></r>"),
    });
    let create = CreateSnapshot { volume_id: "vol-1".to_owned(), ..CreateSnapshot::default() };
    let snapshot = server.client().create_snapshot(&create).expect("made");
    assert_eq!((snapshot.state, snapshot.progress), (SnapshotState::Pending, 0));
    assert_eq!(server.asked().len(), 3);
}

/// By each way in which an answer can be lost: what can do no harm is sent again, and what could make a second snapshot is not.
#[test]
fn lost_request_is_sent_again_only_if_idempotent() {
    type Losing = fn() -> Reply;
    let ways: [(&str, Losing); 6] = [
        ("InternalError", || refused(500, "InternalError", "An internal error has occurred")),
        ("HTTP 502", || Reply::Xml(502, "<html><body>Bad Gateway</body></html>".to_owned())),
        ("connection", || Reply::Cut),
        ("answer interrupted", || Reply::CutMidway),
        ("timeout", || Reply::Never),
        ("unreadable answer", || ok("<?xml")),
    ];
    for (code, lose) in ways {
        let server = Server::start(move |number, _| if number == 0 { lose() } else { ok(DONE) });
        server.client().delete_volume("vol-1").unwrap_or_else(|refusal| panic!("{code}: {refusal}"));
        assert_eq!(server.asked().len(), 2, "{code}");
        let server = Server::start(move |_, _| lose());
        let create = CreateSnapshot { volume_id: "vol-1".to_owned(), ..CreateSnapshot::default() };
        let refusal = server.client().create_snapshot(&create).expect_err(code);
        assert_eq!(
            (refusal.because, refusal.maybe_done, refusal.code.as_str()),
            (CloudErrorKind::Unavailable, true, code),
            "{refusal}"
        );
        assert_eq!(server.asked().len(), 1, "{code}");
    }
}

#[test]
fn after_a_lost_answer_a_refusal_says_that_it_may_have_been_done() {
    let server = Server::start(|number, _| match number {
        0 => Reply::Cut,
        _ => refused(400, "InvalidVolume.NotFound", "The volume 'vol-1' does not exist."),
    });
    let refusal = server.client().delete_volume("vol-1").expect_err("not there");
    assert_eq!((refusal.because, refusal.maybe_done), (CloudErrorKind::NotFound, true));
}

#[test]
fn a_server_that_is_not_there_was_sent_nothing() {
    let gone = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address");
    let server = Server { url: format!("http://{gone}"), asked: Arc::default() };
    let begin = Instant::now();
    let create = CreateSnapshot { volume_id: "vol-1".to_owned(), ..CreateSnapshot::default() };
    let refusal = server.client().create_snapshot(&create).expect_err("nobody is there");
    assert_eq!((refusal.because, refusal.maybe_done, refusal.code.as_str()), (CloudErrorKind::Unavailable, false, "connection"));
    assert!(refusal.message.to_lowercase().contains("refused"), "{refusal}");
    assert!(begin.elapsed() < Duration::from_secs(10));
}

#[test]
fn refused_credentials_are_asked_for_anew_once() {
    let server = Server::start(|_, asked| {
        if asked.head.contains("Credential=FRESH/") { ok(DONE) } else { refused(400, "ExpiredToken", "It has expired") }
    });
    server.client_with(&[("STALE", "a"), ("FRESH", "b")]).delete_volume("vol-1").expect("the second are good");
    assert_eq!(server.asked().len(), 2);
    // The same again are not tried again; others are, once.
    let refusal = server.client_with(&[("STALE", "a")]).delete_volume("vol-1").expect_err("refused");
    assert_eq!(refusal.because, CloudErrorKind::Denied);
    assert_eq!(server.asked().len(), 3);
    server.client_with(&[("STALE", "a"), ("STALE", "b"), ("FRESH", "c")]).delete_volume("vol-1").expect_err("refused");
    assert_eq!(server.asked().len(), 5);
    let none = server.client_with(&[]).delete_volume("vol-1").expect_err("none");
    assert_eq!((none.because, none.maybe_done), (CloudErrorKind::Denied, false));
    assert_eq!(server.asked().len(), 5);
}

/// Those that are near their end are replaced before it, and used up to it where nobody gives others.
#[test]
fn credentials_are_kept_until_shortly_before_they_expire() {
    let server = Server::start(|_, _| ok(DONE));
    let client = server.client_with(&[]);
    let remember = |id: &'static str, left: Duration| {
        let credentials = Credentials::new(id, SECRET, None, Some(SystemTime::now() + left), "test");
        client.http.remember(credentials);
    };
    remember("LONG", Duration::from_secs(3600));
    client.delete_volume("vol-1").expect("good");
    remember("SHORT", Duration::from_secs(60));
    client.delete_volume("vol-1").expect("still good");
    remember("GONE", Duration::ZERO);
    client.delete_volume("vol-1").expect_err("expired");
    let ids: Vec<bool> = server.asked().iter().zip(["LONG/", "SHORT/"]).map(|(asked, id)| asked.head.contains(id)).collect();
    assert_eq!(ids, [true, true]);
}

#[derive(Debug)]
struct Silent;

impl ProvideCredentials for Silent {
    fn provide_credentials<'a>(&'a self) -> future::ProvideCredentials<'a>
    where
        Self: 'a,
    {
        future::ProvideCredentials::new(std::future::pending())
    }
}

/// STS that takes a request and never answers holds up nothing for long.
#[test]
fn credentials_provider_that_hangs_is_not_waited_for() {
    let server = Server::start(|_, _| ok(DONE));
    let mut client = server.client();
    let endpoint = Endpoint { ec2: Some(server.url.clone()), ebs: None };
    let http = Http::new(Some("eu-test-1".to_owned()), endpoint, Duration::from_millis(100));
    client.http = Arc::new(http.with_provider(Silent));
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let refusal = client.delete_volume("vol-1").expect_err("nobody gives any");
                let found = (refusal.because, refusal.code.as_str(), refusal.maybe_done);
                assert_eq!(found, (CloudErrorKind::Unavailable, "credentials", false), "{refusal}");
            });
        }
    });
    assert_eq!(server.asked().len(), 0);
    client.http.remember(Credentials::new("SHORT", SECRET, None, Some(SystemTime::now() + Duration::from_secs(60)), "test"));
    client.delete_volume("vol-1").expect("still good");
}

/// AWS tells what it was sent where it refuses a signature.
#[test]
fn no_secret_gets_into_an_error() {
    let reported = format!(
        "The request signature we calculated does not match. Check {SECRET} of AKIDA.\n\nThe Canonical String for this request should \
         have been\n'POST\n/\n\nx-amz-security-token:{TOKEN}\n'"
    );
    let server = Server::start(move |_, _| refused(403, "SignatureDoesNotMatch", &reported));
    let client = server.client();
    let refusal = client.delete_volume("vol-1").expect_err("refused");
    let shown = format!("{refusal} {refusal:?} {client:?}");
    assert!(shown.contains("does not match"), "{shown}");
    for secret in [SECRET, TOKEN, "AKIDA"] {
        assert!(!shown.contains(secret), "{shown}");
    }
    // Also where it is not AWS that answers.
    let echo = Server::start(|_, asked| {
        let line = |name: &str| asked.head.lines().find(|line| line.starts_with(name)).unwrap_or_default().to_owned();
        Reply::Xml(404, format!("what? {}\n{}", line("x-amz-security-token"), line("authorization")))
    });
    let refusal = echo.client().delete_volume("vol-1").expect_err("refused");
    let shown = format!("{refusal} {refusal:?}");
    assert!(shown.contains("what?") && shown.contains("AWS4-HMAC-SHA256"), "{shown}");
    for secret in [TOKEN, "AKIDA", "Signature="] {
        assert!(!shown.contains(secret), "{shown}");
    }
}

#[test]
fn the_blocks_of_a_snapshot_are_read_and_paged() {
    let server = Server::start(|number, _| match number {
        0 => ok(r#"{"Blocks":[{"BlockIndex":0,"BlockToken":"AAU"},{"BlockIndex":7,"BlockToken":"AAV"}],"BlockSize":524288,
            "ExpiryTime":1.6E9,"NextToken":"n/1","VolumeSize":3}"#),
        1 => ok(r#"{"ChangedBlocks":[{"BlockIndex":2,"SecondBlockToken":"A"}],"BlockSize":524288,"VolumeSize":3}"#),
        2 => Reply::With(
            404,
            "x-amzn-ErrorType: ResourceNotFoundException:http://x",
            r#"{"Message":"no","Reason":"R"}"#.to_owned(),
        ),
        3 => Reply::With(400, "a: b", r#"{"__type":"com.x#ValidationException","message":"bad token"}"#.to_owned()),
        _ => ok(r#"{"BlockSize":524288,"VolumeSize":3}"#),
    });
    let client = server.client();
    let page = client.list_snapshot_blocks("snap-1", 5, None).expect("a page");
    let next = Some("n/1".to_owned());
    assert_eq!(page, BlockPage { indices: vec![0, 7], block_size: 524_288, volume_size: 3, next });
    let page = client.list_changed_blocks("snap-1", "snap-2", 0, Some("n/1")).expect("a page");
    assert_eq!((page.indices, page.next), (vec![2], None));
    let refusal = client.list_snapshot_blocks("snap-9", 0, None).expect_err("no such");
    assert_eq!(refusal.because, CloudErrorKind::NotFound);
    assert_eq!(refusal.to_string(), "ListSnapshotBlocks: ResourceNotFoundException: R: no (request req-header)");
    let refusal = client.list_snapshot_blocks("snap-1", 0, Some("x")).expect_err("no such token");
    assert_eq!((refusal.because, refusal.message.as_str()), (CloudErrorKind::Invalid, "bad token"));
    assert_eq!(client.list_snapshot_blocks("snap-1", 0, None).expect_err("no list").because, CloudErrorKind::Unavailable);
    let heads: Vec<String> =
        server.asked().iter().map(|asked| asked.head.lines().next().unwrap_or_default().to_owned()).collect();
    assert_eq!(heads[0], "GET /snapshots/snap-1/blocks?maxResults=10000&startingBlockIndex=5 HTTP/1.1");
    assert_eq!(heads[1], "GET /snapshots/snap-2/changedblocks?firstSnapshotId=snap-1&maxResults=10000&pageToken=n%2F1 HTTP/1.1");
    assert!(server.asked()[0].head.contains("/eu-test-1/ebs/aws4_request"));
}

#[test]
fn machines_and_their_types_are_read() {
    let instances = r"<DescribeInstancesResponse><reservationSet>
        <item><reservationId>r-1</reservationId><instancesSet><item><instanceId>i-1</instanceId>
          <instanceState><code>16</code><name>running</name></instanceState><instanceType>m5.large</instanceType>
          <placement><availabilityZone>us-east-1a</availabilityZone><groupName/></placement><rootDeviceName>/dev/xvda</rootDeviceName>
          <blockDeviceMapping><item><deviceName>/dev/xvda</deviceName><ebs><volumeId>vol-r</volumeId><status>attached</status>
            <attachTime>2026-01-31T08:01:00.000Z</attachTime></ebs></item>
            <item><deviceName>/dev/xvdba</deviceName><ebs><volumeId>vol-2</volumeId><status>attached</status>
            <ebsCardIndex>1</ebsCardIndex></ebs></item></blockDeviceMapping>
          <networkInterfaceSet><item><networkInterfaceId>eni-1</networkInterfaceId></item><item/></networkInterfaceSet>
        </item></instancesSet></item>
        <item><instancesSet><item><instanceId>i-2</instanceId><instanceState><code>48</code><name>terminated</name></instanceState>
          <instanceType>t2.micro</instanceType><placement><availabilityZone>us-east-1b</availabilityZone></placement>
          <blockDeviceMapping/><networkInterfaceSet/></item></instancesSet></item>
        </reservationSet></DescribeInstancesResponse>";
    let types = r"<DescribeInstanceTypesResponse><instanceTypeSet><item><instanceType>m5d.large</instanceType><bareMetal>false</bareMetal>
        <hypervisor>nitro</hypervisor><ebsInfo><nvmeSupport>required</nvmeSupport><maximumEbsAttachments>27</maximumEbsAttachments>
        <attachmentLimitType>shared</attachmentLimitType><ebsCardSet><item><ebsCardIndex>0</ebsCardIndex>
        <baselineIops>3000</baselineIops></item><item><ebsCardIndex>1</ebsCardIndex></item></ebsCardSet></ebsInfo><networkInfo><maximumNetworkInterfaces>3</maximumNetworkInterfaces>
        </networkInfo><instanceStorageInfo><nvmeSupport>required</nvmeSupport><disks><item><count>1</count><sizeInGB>75</sizeInGB>
        </item><item><count>2</count></item></disks></instanceStorageInfo></item><item><instanceType>x</instanceType></item>
        </instanceTypeSet></DescribeInstanceTypesResponse>";
    let server = Server::start(move |number, _| ok(if number == 0 { instances } else { types }));
    let client = server.client();
    let found = client.describe_instances(&ids(&["i-1", "i-2"])).expect("two").items;
    let states: Vec<_> =
        found.iter().map(|instance| (instance.state, instance.network_interfaces, instance.disks.len())).collect();
    assert_eq!(states, [(InstanceState::Running, 2, 2), (InstanceState::Terminated, 0, 0)]);
    assert_eq!([found[0].disks[0].card, found[0].disks[1].card], [0, 1]);
    assert_eq!((found[0].disks[0].device.as_str(), found[0].zone.as_str()), ("/dev/xvda", "us-east-1a"));
    let types = client.describe_instance_types(&["m5d.large".to_owned()]).expect("two");
    let ebs = types[0].ebs_info.as_ref().expect("EBS");
    assert_eq!(ebs.cards, [0, 1]);
    assert_eq!((ebs.maximum_ebs_attachments, ebs.attachment_limit_type.as_deref()), (Some(27), Some("shared")));
    assert_eq!(types[0].instance_storage_info.as_ref().map(|info| info.disks), Some(3));
    assert_eq!(types[1].hypervisor, None);
}

#[test]
fn lists_leave_requests_to_those_who_look_for_one_volume() {
    use crate::backend::cloud::{Cloud, DiskId, Tags, Which};
    let server = Server::start(|_, _| ok(NO_VOLUMES));
    let limits = [("DescribeVolumes".to_owned(), Limit { capacity: 10.0, refill: 0.001 })].into();
    let cloud = super::super::cloud::Ec2Cloud::new(server.client_within(limits, &[("AKIDA", TOKEN)]));
    let all = Which::All { tags: Tags::from([("longshore.dev/cluster".to_owned(), "c".to_owned())]) };
    // A burst of nine, of which lists have half.
    let pages = (0..20).take_while(|_| cloud.disks(&all, &mut |_| ()).is_ok()).count();
    assert_eq!(pages, 4);
    let refusal = cloud.disks(&all, &mut |_| ()).expect_err("lists have had their share");
    assert_eq!((refusal.because, refusal.code.as_str()), (CloudErrorKind::Throttled, "own rate limit"));
    for _ in 0..5 {
        cloud.disks(&Which::Ids(vec![DiskId("vol-1".to_owned())]), &mut |_| ()).expect("not held up");
    }
}

/// Through the whole of the EC2 backend's cloud, as the frame asks it.
#[test]
fn volume_is_attached_to_the_card_that_is_asked_for() {
    use crate::backend::cloud::{AttachSpec, Cloud, DeviceAddress, DiskAccess, DiskId};
    use crate::volume::AccessMode;
    let server = Server::start(|_, asked| {
        ok(match asked.value("Action") {
            Some("DescribeInstances") => {
                "<r><reservationSet><item><instancesSet><item><instanceId>i-1</instanceId><instanceState><name>running</name>\
                 </instanceState><instanceType>r8gb.48xlarge</instanceType><placement><availabilityZone>a</availabilityZone>\
                 </placement><blockDeviceMapping><item><deviceName>/dev/xvda</deviceName><ebs><volumeId>vol-r</volumeId>\
                 <status>attached</status></ebs></item></blockDeviceMapping></item></instancesSet></item></reservationSet></r>"
            }
            Some("DescribeInstanceTypes") => {
                "<r><instanceTypeSet><item><instanceType>r8gb.48xlarge</instanceType><ebsInfo><maximumEbsAttachments>128\
                 </maximumEbsAttachments><attachmentLimitType>dedicated</attachmentLimitType><ebsCardSet><item><ebsCardIndex>0\
                 </ebsCardIndex></item><item><ebsCardIndex>1</ebsCardIndex></item></ebsCardSet></ebsInfo></item></instanceTypeSet></r>"
            }
            _ => {
                "<r><volumeId>vol-1</volumeId><instanceId>i-1</instanceId><device>/dev/xvdba</device><status>attaching</status></r>"
            }
        })
    });
    let cloud = super::super::cloud::Ec2Cloud::new(server.client());
    let node = "i-1".parse().expect("a node");
    let found = cloud.instances(std::slice::from_ref(&node)).expect("one");
    assert_eq!(found[0].cards, [(0, 1), (1, 0)].into(), "the root volume is on the first");
    for card in [Some(1), None] {
        let access = DiskAccess { mode: AccessMode::SingleNodeWriter, read_only: false };
        let spec =
            AttachSpec { disk: DiskId("vol-1".to_owned()), device: DeviceAddress::Slot("/dev/xvdba".to_owned()), card, access };
        cloud.attach_disks(&node, &[spec]).expect("begun");
    }
    let asked = server.asked();
    let cards: Vec<_> = asked.iter().filter(|asked| asked.value("Action") == Some("AttachVolume")).collect();
    assert_eq!([cards[0].value("EbsCardIndex"), cards[1].value("EbsCardIndex")], [Some("1"), None]);
}

/// What a type takes is also in the built-in table.
#[test]
fn machine_is_described_without_what_ec2_says_of_its_type() {
    use crate::backend::cloud::Cloud;
    let server = Server::start(|_, asked| match asked.value("Action") {
        Some("DescribeInstances") => {
            ok("<r><reservationSet><item><instancesSet><item><instanceId>i-1</instanceId><instanceState>\
             <name>running</name></instanceState><instanceType>m5.large</instanceType><placement><availabilityZone>a</availabilityZone>\
             </placement></item></instancesSet></item></reservationSet></r>")
        }
        _ => Reply::Never,
    });
    let cloud = super::super::cloud::Ec2Cloud::new(server.client());
    let node = "i-1".parse().expect("a node");
    let begin = Instant::now();
    for _ in 0..3 {
        let found = cloud.instances(std::slice::from_ref(&node)).expect("one");
        assert!(found[0].limit.is_some_and(|limit| limit > 1));
    }
    assert!(begin.elapsed() < Duration::from_secs(9), "{:?}", begin.elapsed());
    let attempts = server.asked().iter().filter(|asked| asked.value("Action") == Some("DescribeInstanceTypes")).count();
    assert!((1..=2).contains(&attempts), "asked for once, and sent again: {attempts}");
}

#[test]
fn modifications_states_and_fast_restores_are_read() {
    let server = Server::start(|_, asked| {
        ok(match asked.value("Action") {
            Some("ModifyVolume") => {
                "<r><volumeModification><volumeId>vol-1</volumeId><modificationState>optimizing</modificationState><targetSize>9\
                 </targetSize><originalSize>8</originalSize><progress>47</progress><startTime>2026-01-31T08:01:00.000Z</startTime>\
                 <statusMessage/></volumeModification></r>"
            }
            Some("DescribeVolumeStatus") => {
                "<r><volumeStatusSet><item><volumeId>vol-1</volumeId><volumeStatus><status>impaired</status><details><item><name>\
                 io-enabled</name><status>failed</status></item></details></volumeStatus><eventsSet><item><eventType>\
                 potential-data-inconsistency</eventType><description>d</description></item></eventsSet></item></volumeStatusSet></r>"
            }
            Some("EnableFastSnapshotRestores") => {
                "<r><requestId>q</requestId><successful><item><snapshotId>snap-1</snapshotId><availabilityZone>a</availabilityZone>\
                 <state>enabling</state></item></successful><unsuccessful><item><snapshotId>snap-1</snapshotId>\
                 <fastSnapshotRestoreStateErrorSet><item><availabilityZone>b</availabilityZone><error><code>\
                 FastSnapshotRestoreLimitExceeded</code><message>too many</message></error></item></fastSnapshotRestoreStateErrorSet>\
                 </item></unsuccessful></r>"
            }
            Some("DescribeSnapshots") => {
                "<r><snapshotSet><item><snapshotId>snap-1</snapshotId><volumeId>vol-1</volumeId><status>completed</status><startTime>\
                 2026-01-31T08:01:00.000Z</startTime><progress>100%</progress><volumeSize>8</volumeSize></item></snapshotSet></r>"
            }
            _ => "<r><availabilityZoneInfo><item><zoneName>a</zoneName><zoneId>x-az1</zoneId></item></availabilityZoneInfo></r>",
        })
    });
    let client = server.client();
    let modify = ModifyVolume { volume_id: "vol-1".to_owned(), size: Some(9), ..ModifyVolume::default() };
    let modified = client.modify_volume(&modify).expect("begun");
    assert_eq!((modified.state, modified.target_size, modified.progress), (ModificationState::Optimizing, Some(9), 47));
    let status = client.describe_volume_status(&ids(&["vol-1"])).expect("one").items.remove(0);
    assert_eq!((status.summary.status.as_str(), status.events.len()), ("impaired", 1));
    assert_eq!(status.summary.details[0].name, "io-enabled");
    let refusal = client.enable_fast_snapshot_restores("snap-1", &["a".to_owned(), "b".to_owned()]).expect_err("one zone");
    assert_eq!((refusal.because, refusal.message.as_str(), refusal.maybe_done), (CloudErrorKind::Quota, "b: too many", true));
    let filtered = Select::Filtered { filters: vec![], token: None };
    assert_eq!(client.describe_snapshots(&filtered).expect("one").items[0].progress, 100);
    assert_eq!(client.describe_availability_zones().expect("one")[0].name, "a");
    assert!(server.asked().iter().any(|asked| asked.value("Owner.1") == Some("self")));
}

#[test]
fn copied_volume_is_the_only_one_of_the_answer() {
    let volume = "<item><volumeId>vol-2</volumeId><status>creating</status><size>20</size><availabilityZone>a</availabilityZone>\
                  <volumeType>gp3</volumeType><encrypted>true</encrypted><snapshotId/><tagSet><item><key>k</key><value>v</value>\
                  </item></tagSet></item>";
    let answer = move |number: usize, _: &Asked| match number {
        // Lost, and sent again with its token.
        0 => Reply::Cut,
        1 => ok(&format!("<r><requestId>q</requestId><volumeSet>{volume}</volumeSet></r>")),
        2 => ok("<r><requestId>q</requestId><volumeSet/></r>"),
        3..=9 => ok(&format!("<r><requestId>q</requestId><volumeSet>{volume}{volume}</volumeSet></r>")),
        _ => refused(403, "UnauthorizedOperation", "You are not authorized to perform this operation."),
    };
    let server = Server::start(answer);
    let client = server.client();
    let copy = CopyVolume {
        client_token: "token".to_owned(),
        source_volume_id: "vol-1".to_owned(),
        size: Some(20),
        volume_type: Some("gp3".to_owned()),
        iops: Some(4000),
        throughput: Some(250),
        multi_attach: None,
        tags: Tags::from([("k".to_owned(), "v".to_owned())]),
    };
    let made = client.copy_volume(&copy).expect("copied");
    assert_eq!((made.volume_id.as_str(), made.state, made.size, made.snapshot_id), ("vol-2", VolumeState::Creating, 20, None));
    let forms: Vec<String> = server.asked().into_iter().map(|asked| asked.body).collect();
    assert_eq!(forms[0], forms[1]);
    assert_eq!(
        forms[1],
        "Action=CopyVolumes&Version=2016-11-15&ClientToken=token&SourceVolumeId=vol-1&Size=20&VolumeType=gp3&Iops=4000&Throughput=250\
         &TagSpecification.1.ResourceType=volume&TagSpecification.1.Tag.1.Key=k&TagSpecification.1.Tag.1.Value=v"
    );
    // An answer that does not say which volume is no answer: the copy may be there.
    let unread = client.copy_volume(&copy).expect_err("none, and then two");
    assert!(unread.maybe_done && unread.because == CloudErrorKind::Unavailable, "{unread}");
    let mut refusal = unread;
    while server.asked().len() <= 10 || refusal.because == CloudErrorKind::Unavailable {
        refusal = client.copy_volume(&copy).expect_err("unreadable, then refused");
    }
    let refusal = client.copy_volume(&copy).expect_err("refused");
    assert_eq!((refusal.because, refusal.maybe_done, refusal.action), (CloudErrorKind::Denied, false, "CopyVolumes"));
}

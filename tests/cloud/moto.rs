//! moto, an emulator of AWS that others wrote: installed from PyPI into target/ once, and started once by each test program. Each
//! test has an account of its own in it.

use std::io::{BufRead, BufReader, Read};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use super::common;
use super::wire::{self, Parameters, Request};
use super::xml::Element;

/// Serves until its standard input ends, which it does when the test is no more, however that came about. The kernel chooses the
/// port; it is printed on standard output. For the tags of each thing moto looks through those of all things, which takes it a minute
/// for all of 5,000 volumes: here it is shown those of that thing alone. An action that it does not have it refuses as EC2 does.
const SERVER: &str = "
import logging, os, sys, threading, types
from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models.tags import TagBackend
from moto.ec2.responses import EC2Response
from werkzeug.serving import make_server
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
logging.getLogger('werkzeug').setLevel(logging.ERROR)
all_tags = TagBackend.describe_tags
def tags_of(self, filters=None):
    ids = (filters or {}).get('resource-id', [])
    if len(ids) != 1 or '*' in ids[0] or '?' in ids[0]:
        return all_tags(self, filters)
    known = types.SimpleNamespace(tags={ids[0]: self.tags.get(ids[0], {})}, VALID_TAG_FILTERS=self.VALID_TAG_FILTERS)
    return all_tags(known, filters)
TagBackend.describe_tags = tags_of
def copy_volumes(self):
    raise EC2ClientError('InvalidAction', 'The action CopyVolumes is not valid for this web service.')
EC2Response.copy_volumes = copy_volumes
server = make_server('127.0.0.1', 0, DomainDispatcherApplication(create_backend_app), threaded=True, request_handler=MotoRequestHandler)
threading.Thread(target=lambda: (sys.stdin.buffer.read(), os._exit(0)), daemon=True).start()
print(server.port, flush=True)
server.serve_forever()
";

/// The machine image of every instance; moto knows it.
pub const IMAGE: &str = "ami-12c6146b";
pub const REGION: &str = "us-east-1";

/// An account with nothing in it.
#[derive(Clone, Debug)]
pub struct Moto {
    pub address: SocketAddr,
    /// moto goes by this header; see [`Moto::default_account`] for who sends none.
    account: Option<String>,
}

impl Moto {
    /// An account of one's own; `Err` says why there can be none here.
    pub fn new() -> Result<Moto, String> {
        // With its process, whose standard input stays open.
        static SERVER: OnceLock<Result<(SocketAddr, Child), String>> = OnceLock::new();
        static ACCOUNTS: AtomicU32 = AtomicU32::new(1);
        let address = SERVER.get_or_init(start).as_ref().map_err(String::clone)?.0;
        let account = Some(format!("{:012}", ACCOUNTS.fetch_add(1, Ordering::Relaxed)));
        Ok(Moto { address, account })
    }

    /// The account of a driver that asks moto itself.
    pub fn default_account(&self) -> Moto {
        Moto { address: self.address, account: None }
    }

    /// Status and answer of an EC2 action.
    pub fn ask(&self, parameters: &Parameters) -> (u16, Element) {
        let mut request = signed(parameters);
        if let Some(account) = &self.account {
            request.headers.insert("x-moto-account-id".to_owned(), account.clone());
        }
        let (status, body) = wire::send(self.address, &request).expect("an answer");
        (status, Element::parse(&body))
    }

    /// The answer of an action that must succeed.
    pub fn must(&self, action: &str, parameters: &[(&str, &str)]) -> Element {
        let (status, answer) = self.ask(&parameters_of(action, parameters));
        assert_eq!(status, 200, "{action}: {answer:?}");
        answer
    }

    /// Every volume but those that instances were made with.
    pub fn volumes(&self) -> Vec<Element> {
        let answer = self.must("DescribeVolumes", &[]);
        let volumes = answer.items("volumeSet").iter();
        volumes.filter(|volume| volume.items("attachmentSet").iter().all(|at| at.get("device") != "/dev/sda1")).cloned().collect()
    }

    /// Every snapshot that has an owner's tag: moto has hundreds of its machine images too.
    pub fn snapshots(&self) -> Vec<Element> {
        let owned = [("Filter.1.Name", "tag-key"), ("Filter.1.Value.1", "longshore.dev/cluster")];
        self.must("DescribeSnapshots", &owned).items("snapshotSet").to_vec()
    }
}

/// Starts the server, which lives as long as this process.
fn start() -> Result<(SocketAddr, Child), String> {
    serve(&[SERVER])
}

/// A server in moto's Python: a script, which tells its port on standard output and serves until its standard input ends, and its
/// arguments. `Err` says why there can be none here.
pub fn serve(script: &[&str]) -> Result<(SocketAddr, Child), String> {
    serve_by(&installed()?, script)
}

/// The same in another Python.
pub fn serve_by(python: &Path, script: &[&str]) -> Result<(SocketAddr, Child), String> {
    let _starting = common::starting();
    let mut command = Command::new(python);
    command.arg("-c").args(script).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| format!("python: {error}"))?;
    let mut port = String::new();
    BufReader::new(child.stdout.take().expect("a pipe")).read_line(&mut port).expect("its port");
    let mut errors = child.stderr.take().expect("a pipe");
    let Ok(port) = port.trim().parse() else {
        let mut said = String::new();
        errors.read_to_string(&mut said).expect("what moto said");
        panic!("it ended: {said}");
    };
    // What it has to say is shown.
    std::thread::spawn(move || std::io::copy(&mut errors, &mut std::io::stderr()));
    Ok((SocketAddr::from((Ipv4Addr::LOCALHOST, port)), child))
}

/// A request for an action, signed as far as anyone here looks at it.
pub fn signed(parameters: &Parameters) -> Request {
    let scope = format!("{}/20260101/{REGION}/ec2/aws4_request", super::KEY);
    let headers = [
        ("authorization", format!("AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders=host, Signature=0")),
        ("content-type", "application/x-www-form-urlencoded".to_owned()),
    ];
    let headers = headers.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
    Request { method: "POST".to_owned(), path: "/".to_owned(), headers, body: wire::form(parameters) }
}

pub fn parameters_of(action: &str, parameters: &[(&str, &str)]) -> Parameters {
    let fixed = [("Action", action), ("Version", "2016-11-15")];
    fixed.iter().chain(parameters).map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

/// The tags of a volume or snapshot.
pub fn tags_of(item: &Element) -> Parameters {
    item.items("tagSet").iter().map(|tag| (tag.get("key").to_owned(), tag.get("value").to_owned())).collect()
}

/// The Python that has moto.
pub fn installed() -> Result<PathBuf, String> {
    common::tools::python("moto", Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cloud/requirements.txt")))
}

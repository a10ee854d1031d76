//! The unfriendly cloud: EC2 as it is on its bad days, between a driver and moto.
//!
//! What it does to whom is ordered by the test, in its own process: [`Cloud::order`] for single answers, [`Cloud::world`] for states.

use std::collections::BTreeMap;
use std::io::{BufReader, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use serde_json::json;

use super::actions::{Act, Answer, Refusal, refuse};
use super::buckets::{Buckets, Count, is_mutating};
use super::clock::Clock;
use super::moto::{self, Moto};
use super::rights;
use super::state::CloudState;
use super::wire::{self, Parameters, Request};
use super::xml::Element;

/// Blocks of the EBS direct API.
pub const BLOCK: u64 = 512 << 10;

/// What becomes of a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Trouble {
    /// Nothing is done; this is answered.
    Refuse { status: u16, code: &'static str, message: &'static str },
    /// It is done, and answered so much later, in the cloud's time.
    Late(Duration),
    /// The connection is cut, and nothing was done.
    CutBefore,
    /// It is done, and the connection is cut before the answer.
    CutAfter,
    /// It is done, and half of the answer sent.
    CutWithin,
    /// It is done, and answered with "an internal error".
    FailAfter,
    /// It is done twice, as when a network repeats it; the second answer is given.
    Twice,
    /// The answer is given twice, on the same connection.
    AnswerTwice,
    /// Something in between answers, and nothing is done.
    Garbage,
    /// Nothing is done and nothing answered, until the other side gives up.
    Silence,
}

pub const INTERNAL_ERROR: Trouble =
    Trouble::Refuse { status: 500, code: "InternalError", message: "An internal error has occurred" };
pub const UNAVAILABLE: Trouble =
    Trouble::Refuse { status: 503, code: "Unavailable", message: "The server is overloaded and can't handle the request." };

/// Trouble for requests to come.
#[derive(Clone, Debug)]
struct Order {
    action: &'static str,
    trouble: Trouble,
    /// Requests of this action that go well before.
    after: u64,
    times: u64,
}

/// How the whole cloud behaves.
#[derive(Clone, Debug)]
pub struct Manners {
    /// Whether requests are throttled.
    pub throttles: bool,
    /// Descriptions are as old as this.
    pub behind: Duration,
    /// What was made is described so much later.
    pub late: Duration,
    /// Empty and short pages, spent tokens, another cluster's things: see [`super::actions`].
    pub unkind: bool,
    /// How long each answer takes.
    pub latency: Duration,
    /// Whose key is right.
    pub key: String,
    /// What that key's role may do; without one all.
    pub policy: Option<serde_json::Value>,
}

#[derive(Debug)]
pub struct Cloud {
    pub moto: Moto,
    pub clock: Clock,
    pub address: SocketAddr,
    world: Mutex<CloudState>,
    manners: Mutex<Manners>,
    orders: Mutex<Vec<Order>>,
    buckets: Mutex<Buckets>,
    /// Request ids are counted.
    requests: AtomicU64,
    /// Every request id of a refusal, with its code.
    refused: Mutex<Vec<(String, String)>>,
    /// How often each action was done, before its answer.
    done: Mutex<BTreeMap<String, u64>>,
    ended: AtomicBool,
}

struct Reply {
    status: u16,
    kind: &'static str,
    body: String,
}

impl Cloud {
    /// A cloud of its own with nothing in it, whose time passes `speed` times as fast as ours; `None`, said aloud, where there is
    /// no moto.
    pub fn start(speed: u32) -> Option<Arc<Cloud>> {
        let moto = match Moto::new() {
            Ok(moto) => moto,
            Err(why) => {
                super::common::skipped(&why);
                return None;
            }
        };
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let manners = Manners {
            throttles: true,
            behind: Duration::ZERO,
            late: Duration::from_millis(1500),
            unkind: true,
            latency: Duration::ZERO,
            key: super::KEY.to_owned(),
            policy: None,
        };
        let cloud = Arc::new(Cloud {
            moto,
            clock: Clock::new(speed),
            address: listener.local_addr().expect("an address"),
            world: Mutex::default(),
            manners: Mutex::new(manners),
            orders: Mutex::default(),
            buckets: Mutex::default(),
            requests: AtomicU64::new(0),
            refused: Mutex::default(),
            done: Mutex::default(),
            ended: AtomicBool::new(false),
        });
        let ours = Arc::downgrade(&cloud);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Some(cloud) = ours.upgrade().filter(|cloud| !cloud.ended.load(Ordering::Relaxed)) else { return };
                if let Ok(stream) = stream {
                    let cloud = Arc::downgrade(&cloud);
                    std::thread::spawn(move || serve(&cloud, stream));
                }
            }
        });
        Some(cloud)
    }

    pub fn world(&self) -> MutexGuard<'_, CloudState> {
        self.world.lock().expect("no panic in the cloud")
    }

    pub fn manners(&self) -> MutexGuard<'_, Manners> {
        self.manners.lock().expect("no panic in the cloud")
    }

    /// The next request of this action goes wrong.
    pub fn order(&self, action: &'static str, trouble: Trouble) {
        self.order_after(action, trouble, 0, 1);
    }

    /// `times` requests of this action go wrong after `after` have gone well.
    pub fn order_after(&self, action: &'static str, trouble: Trouble, after: u64, times: u64) {
        self.orders.lock().expect("no panic").push(Order { action, trouble, after, times });
    }

    /// Takes back what was ordered; says whether something had not come about.
    pub fn calm(&self) -> bool {
        !std::mem::take(&mut *self.orders.lock().expect("no panic")).is_empty()
    }

    /// What is stuck is so no more.
    pub fn release(&self) {
        self.world().release(self.clock.now());
    }

    /// How often each action was asked for.
    pub fn counts(&self) -> BTreeMap<String, Count> {
        self.buckets.lock().expect("no panic").counts.clone()
    }

    /// How often this was done for the driver, whether it was answered or not.
    pub fn done(&self, action: &str) -> u64 {
        self.done.lock().expect("no panic").get(action).copied().unwrap_or(0)
    }

    /// Requests that change something; all others; and how many of both were throttled.
    pub fn requests(&self) -> (u64, u64, u64) {
        let (mut mutating, mut asking, mut throttled) = (0, 0, 0);
        for (action, count) in self.counts() {
            if is_mutating(&action) {
                mutating += count.requests
            } else {
                asking += count.requests
            }
            throttled += count.throttled;
        }
        (mutating, asking, throttled)
    }

    /// The id of the last request that was refused with this code.
    pub fn refused(&self, code: &str) -> Option<String> {
        let refused = self.refused.lock().expect("no panic");
        refused.iter().rev().find(|(_, said)| said == code).map(|(id, _)| id.clone())
    }

    /// The test's own request, which nothing happens to.
    pub fn ask(&self, action: &str, parameters: &[(&str, &str)]) -> Answer {
        let kind = Manners { behind: Duration::ZERO, late: Duration::ZERO, unkind: false, ..self.manners().clone() };
        self.perform(action, &moto::parameters_of(action, parameters), &kind)
    }

    /// As `ask`, of what must succeed.
    pub fn must(&self, action: &str, parameters: &[(&str, &str)]) -> Element {
        self.ask(action, parameters).unwrap_or_else(|refusal| panic!("{action}: {refusal:?}"))
    }

    /// Starts machines: their ids.
    pub fn run_instances(&self, count: usize, kind: &str, zone: &str) -> Vec<String> {
        let count = count.to_string();
        let parameters = [
            ("ImageId", moto::IMAGE),
            ("MinCount", &count),
            ("MaxCount", &count),
            ("InstanceType", kind),
            ("Placement.AvailabilityZone", zone),
        ];
        let answer = self.must("RunInstances", &parameters);
        answer.items("instancesSet").iter().map(|item| item.get("instanceId").to_owned()).collect()
    }

    /// Restores a volume as AWS Backup does, from a snapshot of its own and with all of the volume's tags: the id of the copy.
    pub fn restore_backup(&self, volume: &str) -> String {
        let described = self.must("DescribeVolumes", &[("VolumeId.1", volume)]);
        let original = described.items("volumeSet").first().expect("it is there");
        let backup = self.with_tags_of(original, "CreateSnapshot", "snapshot", &[("VolumeId", volume)]);
        let backup = backup.get("snapshotId").to_owned();
        self.clock.skip(Duration::from_secs(60));
        let [zone, kind] = ["availabilityZone", "volumeType"].map(|name| original.get(name));
        let parameters = [("SnapshotId", backup.as_str()), ("AvailabilityZone", zone), ("VolumeType", kind)];
        let copy = self.with_tags_of(original, "CreateVolume", "volume", &parameters).get("volumeId").to_owned();
        self.clock.skip(Duration::from_secs(60));
        copy
    }

    /// Copies a snapshot with all of its tags: the id of the copy.
    pub fn copy_snapshot(&self, snapshot: &str) -> String {
        let described = self.must("DescribeSnapshots", &[("SnapshotId.1", snapshot)]);
        let original = described.items("snapshotSet").first().expect("it is there");
        let parameters = [("SourceSnapshotId", snapshot), ("SourceRegion", moto::REGION)];
        let copy = self.with_tags_of(original, "CopySnapshot", "snapshot", &parameters).get("snapshotId").to_owned();
        self.clock.skip(Duration::from_secs(60));
        copy
    }

    fn with_tags_of(&self, original: &Element, action: &str, resource: &str, parameters: &[(&str, &str)]) -> Element {
        let mut all: Vec<(String, String)> = vec![("TagSpecification.1.ResourceType".to_owned(), resource.to_owned())];
        for (number, tag) in original.items("tagSet").iter().enumerate() {
            for (name, what) in [("Key", "key"), ("Value", "value")] {
                all.push((format!("TagSpecification.1.Tag.{}.{name}", number + 1), tag.get(what).to_owned()));
            }
        }
        let tags = all.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        self.must(action, &parameters.iter().copied().chain(tags).collect::<Vec<_>>())
    }

    /// Changes a tag of a volume by hand; `None` removes it.
    pub fn retag(&self, volume: &str, key: &str, value: Option<&str>) {
        let mut world = self.world();
        let mut item = world.volumes[volume].item.clone();
        let mut tags = item.items("tagSet").to_vec();
        tags.retain(|tag| tag.get("key") != key);
        tags.extend(value.map(|value| Element::new("item").with("key", key).with("value", value)));
        item.put(Element::of("tagSet", tags));
        for ids in world.by_tag.values_mut() {
            ids.remove(volume);
        }
        world.reported(volume, item);
    }

    fn perform(&self, action: &str, parameters: &Parameters, manners: &Manners) -> Answer {
        self.perform_at(self.clock.now(), action, parameters, manners)
    }

    fn perform_at(&self, now: Duration, action: &str, parameters: &Parameters, manners: &Manners) -> Answer {
        let mut world = self.world();
        let Manners { behind, late, unkind, .. } = *manners;
        Act { moto: &self.moto, world: &mut world, parameters, now, behind, unkind, late }.perform(action)
    }

    /// The trouble that this request is in for.
    fn trouble(&self, action: &str) -> Option<Trouble> {
        let mut orders = self.orders.lock().expect("no panic");
        let at = orders.iter().position(|order| order.action == action)?;
        let order = &mut orders[at];
        if order.after > 0 {
            order.after -= 1;
            return None;
        }
        order.times -= 1;
        let trouble = order.trouble.clone();
        if order.times == 0 {
            orders.remove(at);
        }
        Some(trouble)
    }

    fn permitted(&self, request: &Request) -> Result<(), Refusal> {
        let key = request.credential().and_then(|credential| credential.split('/').next());
        match key {
            Some(key) if key == self.manners().key => Ok(()),
            Some(_) => Err(Refusal {
                status: 401,
                code: "AuthFailure".to_owned(),
                message: "AWS was not able to validate the provided access credentials".to_owned(),
            }),
            None => refuse("MissingAuthenticationToken", "Request must contain either a valid (registered) AWS access key ID"),
        }
    }

    /// Whether the role may do it, as things are.
    fn authorized(&self, action: &str, parameters: &Parameters, path: &str) -> Result<(), Refusal> {
        let Some(policy) = self.manners().policy.clone() else { return Ok(()) };
        let mut parameters = parameters.clone();
        if let Some(snapshot) = path.strip_prefix("/snapshots/").and_then(|rest| rest.split('/').next()) {
            parameters.insert("snapshot".to_owned(), snapshot.to_owned());
        }
        let needed = rights::needed(&self.world(), action, &parameters);
        match needed.iter().find(|right| !right.is_allowed(&policy)) {
            None => Ok(()),
            Some(right) => Err(Refusal {
                status: 403,
                code: "UnauthorizedOperation".to_owned(),
                message: format!("You are not authorized to perform {} on {}", right.action, right.resource),
            }),
        }
    }

    fn throttled(&self, action: &str, parameters: &Parameters) -> Result<(), Refusal> {
        let narrowed = parameters.keys().any(|name| name.starts_with("Filter.") || name == "MaxResults");
        let taken = self.buckets.lock().expect("no panic").take(action, narrowed, self.clock.now());
        if taken || !self.manners().throttles {
            return Ok(());
        }
        Err(Refusal { status: 503, code: "RequestLimitExceeded".to_owned(), message: "Request limit exceeded.".to_owned() })
    }

    /// An answer, with a request id of its own.
    fn reply(&self, answer: Answer) -> Reply {
        let number = self.requests.fetch_add(1, Ordering::Relaxed);
        let id = format!("{:08x}-0000-4000-8000-{number:012x}", self.address.port());
        let (status, document) = match answer {
            Ok(mut answer) => {
                answer.children.retain(|child| child.name != "requestId");
                answer.children.insert(0, Element::leaf("requestId", &id));
                (200, answer.document())
            }
            Err(Refusal { status, code, message }) => {
                self.refused.lock().expect("no panic").push((id.clone(), code.clone()));
                let error = Element::new("Error").with("Code", code).with("Message", message);
                let errors = Element::of("Errors", [error]);
                (status, Element::of("Response", [errors, Element::leaf("RequestID", &id)]).document())
            }
        };
        Reply { status, kind: "text/xml;charset=UTF-8", body: document }
    }

    /// What is answered to a request, and the trouble that it was in for; `None` is no answer at all.
    fn answer(&self, request: &Request) -> (Option<Reply>, Trouble) {
        let parameters = request.parameters();
        let blocks = request.path.starts_with("/snapshots/");
        let action = match parameters.get("Action") {
            _ if blocks && request.path.contains("/changedblocks") => "ListChangedBlocks",
            _ if blocks => "ListSnapshotBlocks",
            Some(action) => action,
            None => "",
        };
        let fine = Trouble::Late(self.manners().latency);
        if let Err(refusal) = self.permitted(request).and_then(|()| self.throttled(action, &parameters)) {
            return (Some(if blocks { direct_refusal(&refusal) } else { self.reply(Err(refusal)) }), fine);
        }
        let trouble = self.trouble(action).unwrap_or(fine);
        match &trouble {
            Trouble::CutBefore | Trouble::Silence => return (None, trouble),
            Trouble::Garbage => {
                let body = "<html><body><h1>502 Bad Gateway</h1></body></html>".to_owned();
                return (Some(Reply { status: 502, kind: "text/html", body }), trouble);
            }
            Trouble::Refuse { status, code, message } => {
                let refusal = Refusal { status: *status, code: (*code).to_owned(), message: (*message).to_owned() };
                return (Some(if blocks { direct_refusal(&refusal) } else { self.reply(Err(refusal)) }), trouble);
            }
            _ => {}
        }
        if let Err(refusal) = self.authorized(action, &parameters, &request.path) {
            return (Some(if blocks { direct_refusal(&refusal) } else { self.reply(Err(refusal)) }), trouble);
        }
        if blocks {
            return (Some(self.blocks(&request.path)), trouble);
        }
        let mut manners = self.manners().clone();
        if is_mutating(action) {
            manners.behind = Duration::ZERO;
        }
        let now = self.clock.now();
        let mut answer = self.perform_at(now, action, &parameters, &manners);
        *self.done.lock().expect("no panic").entry(action.to_owned()).or_default() += 1;
        match &trouble {
            // At the same moment: what moto takes for the first is not the cloud's time.
            Trouble::Twice => answer = self.perform_at(now, action, &parameters, &manners),
            Trouble::Late(span) => self.clock.sleep(*span),
            Trouble::CutAfter => return (None, trouble),
            Trouble::FailAfter => {
                answer = Err(Refusal {
                    status: 500,
                    code: "InternalError".to_owned(),
                    message: "An internal error has occurred".to_owned(),
                });
            }
            _ => {}
        }
        (Some(self.reply(answer)), trouble)
    }

    /// The EBS direct API: which blocks a snapshot has, or in which two differ.
    fn blocks(&self, path: &str) -> Reply {
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        let query = Request { path: format!("?{query}"), ..Request::default() }.parameters();
        let id = path.split('/').nth(2).unwrap_or_default();
        let world = self.world();
        let of = |id: &str| world.snapshots.contains_key(id).then(|| world.blocks.get(id).cloned().unwrap_or_default());
        let (Some(new), Some(old)) = (of(id), query.get("firstSnapshotId").map_or(Some(BTreeMap::new()), |id| of(id))) else {
            let message = format!("The snapshot '{id}' does not exist.");
            let refusal = Refusal { status: 404, code: "ResourceNotFoundException".to_owned(), message };
            return direct_refusal(&refusal);
        };
        let differ: Vec<u64> = new
            .keys()
            .chain(old.keys())
            .filter(|at| new.get(at) != old.get(at))
            .copied()
            .collect::<std::collections::BTreeSet<_>>()
            .into_iter()
            .collect();
        let number = |name: &str| query.get(name).and_then(|text| text.parse::<u64>().ok());
        let from = number("pageToken").or(number("startingBlockIndex")).unwrap_or(0);
        let most = usize::try_from(number("maxResults").unwrap_or(10_000)).expect("a count").min(10_000);
        let left: Vec<u64> = differ.into_iter().filter(|at| *at >= from).collect();
        let (name, token) =
            if path.ends_with("changedblocks") { ("ChangedBlocks", "SecondBlockToken") } else { ("Blocks", "BlockToken") };
        let page: Vec<_> = left.iter().take(most).map(|at| json!({"BlockIndex": at, token: format!("token-{at}")})).collect();
        let size: u64 = world.snapshots[id].item.get("volumeSize").parse().expect("a size");
        let mut body = json!({name: page, "BlockSize": BLOCK, "VolumeSize": size, "ExpiryTime": 1_800_000_000.0});
        if let Some(next) = left.get(most) {
            body["NextToken"] = json!(next.to_string());
        }
        Reply { status: 200, kind: "application/json", body: body.to_string() }
    }
}

impl Drop for Cloud {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        // The one that waits for connections hears of it by one.
        TcpStream::connect(self.address).ok();
    }
}

fn direct_refusal(refusal: &Refusal) -> Reply {
    let body = json!({"__type": refusal.code, "Message": refusal.message}).to_string();
    Reply { status: refusal.status, kind: "application/json", body }
}

/// Serves a connection to its end.
fn serve(cloud: &std::sync::Weak<Cloud>, stream: TcpStream) {
    stream.set_nodelay(true).ok();
    let mut writing = stream.try_clone().expect("a further descriptor");
    let mut reading = BufReader::new(stream);
    while let Some(request) = Request::read(&mut reading) {
        let Some(ours) = cloud.upgrade() else { return };
        let (reply, trouble) = ours.answer(&request);
        drop(ours);
        let Some(Reply { status, kind, body }) = reply else {
            if trouble == Trouble::Silence {
                // Until the other side closes it.
                Request::read(&mut reading);
            }
            writing.shutdown(Shutdown::Both).ok();
            return;
        };
        let times = if trouble == Trouble::AnswerTwice { 2 } else { 1 };
        for _ in 0..times {
            if trouble == Trouble::CutWithin {
                let length = body.len();
                write!(writing, "HTTP/1.1 {status} Status\r\ncontent-length: {length}\r\n\r\n{}", &body[..length / 2]).ok();
                writing.shutdown(Shutdown::Both).ok();
                return;
            }
            if wire::answer(&mut writing, status, kind, &body).is_err() {
                return;
            }
        }
    }
}

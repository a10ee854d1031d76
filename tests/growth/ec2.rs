//! What an EC2 driver costs by the number of volumes in its account.
//!
//! The cloud is emulated in the test's process and the driver is a process of its own, so that its memory is its alone. Unlike the cloud of
//! `tests/cloud`, this one keeps no volumes: it makes each description from the volume's number when it is asked, so that 100,000 cost it
//! nothing. It has what lists and attachments need, no more.

#![allow(clippy::disallowed_methods, reason = "an idle minute is one in which nothing happens")]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::io::BufReader;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use longshore::csi;

use super::common::{Harness, Pool, capability, isolated};
use super::process::{Memory, own_cpu};
use super::wire::{self, Parameters, Request};
use super::{milliseconds, percentile, timed};

const ZONE: &str = "us-east-1a";
const CLUSTER: &str = "growth";
const VOLUME_TAG: &str = "longshore.dev/volume";
const NAME_TAG: &str = "longshore.dev/name";
/// The volume that the driver makes itself; all others have its tags, but for the name.
const TEMPLATE: &str = "pvc-00000000-0000-0000-0000-000000000000";
/// What EC2 takes to attach one. It is usually seconds; so long that what a minute costs is seen.
const ATTACHING: Duration = Duration::from_secs(30);
const ATTACHED_AT_ONCE: usize = 10;

#[derive(Default)]
struct State {
    /// By action.
    requests: BTreeMap<String, u64>,
    /// Tags of the one that the driver made.
    template: Vec<(String, String)>,
    /// By disk: the machine, the device and when it was begun.
    attached: BTreeMap<String, (String, String, Instant)>,
}

/// An account with so many volumes.
struct Account {
    count: usize,
    address: SocketAddr,
    state: Mutex<State>,
}

impl Account {
    fn start(count: usize) -> Arc<Account> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let address = listener.local_addr().expect("an address");
        let account = Arc::new(Account { count, address, state: Mutex::default() });
        let serving = Arc::downgrade(&account);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (Ok(stream), Some(account)) = (stream, serving.upgrade()) else { return };
                std::thread::spawn(move || account.serve(stream));
            }
        });
        account
    }

    fn serve(&self, stream: TcpStream) {
        stream.set_nodelay(true).ok();
        let mut writing = stream.try_clone().expect("a further descriptor");
        let mut reading = BufReader::new(stream);
        while let Some(request) = Request::read(&mut reading) {
            let parameters = request.parameters();
            let action = parameters.get("Action").cloned().unwrap_or_default();
            let body = self.perform(&action, &parameters);
            *self.state().requests.entry(action.clone()).or_default() += 1;
            let (status, body) = match body {
                Some(body) => (200, format!("<{action}Response><requestId>r</requestId>{body}</{action}Response>")),
                None => {
                    let error = format!("<Error><Code>InvalidAction</Code><Message>no {action} here</Message></Error>");
                    (400, format!("<Response><Errors>{error}</Errors><RequestID>r</RequestID></Response>"))
                }
            };
            if wire::answer(&mut writing, status, "text/xml", &body).is_err() {
                return;
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic in the cloud")
    }

    /// Requests of any kind, and those that describe.
    fn requests(&self) -> (u64, u64) {
        let state = self.state();
        let describing = state.requests.iter().filter(|(action, _)| action.starts_with("Describe")).map(|(_, count)| count);
        (state.requests.values().sum(), describing.sum())
    }

    fn perform(&self, action: &str, parameters: &Parameters) -> Option<String> {
        let get = |name: &str| parameters.get(name).map_or("", String::as_str);
        Some(match action {
            "CreateVolume" => {
                self.state().template = wire::tags(parameters, "TagSpecification.1.Tag");
                self.volume(0)
            }
            "DescribeVolumes" => self.describe_volumes(parameters),
            "DescribeVolumeStatus" => "<volumeStatusSet/>".to_owned(),
            "DescribeSnapshots" => "<snapshotSet/>".to_owned(),
            "CreateTags" => "<return>true</return>".to_owned(),
            "AttachVolume" => {
                let (volume, instance, device) = (get("VolumeId"), get("InstanceId"), get("Device"));
                let attachment = (instance.to_owned(), device.to_owned(), Instant::now());
                self.state().attached.insert(volume.to_owned(), attachment);
                attachment_fields(volume, instance, device, "attaching")
            }
            "DescribeInstances" => {
                let state = self.state();
                let mut items = String::new();
                for id in wire::list(parameters, "InstanceId") {
                    let mut mappings = String::new();
                    for (volume, (_, device, _)) in state.attached.iter().filter(|(_, (instance, ..))| *instance == id) {
                        let ebs = format!("<ebs><volumeId>{volume}</volumeId><status>attached</status></ebs>");
                        write!(mappings, "<item><deviceName>{device}</deviceName>{ebs}</item>").expect("memory");
                    }
                    write!(
                        items,
                        "<item><instanceId>{id}</instanceId><instanceType>m5.large</instanceType><instanceState><name>running</name>\
                         </instanceState><placement><availabilityZone>{ZONE}</availabilityZone></placement>\
                         <blockDeviceMapping>{mappings}</blockDeviceMapping></item>"
                    )
                    .expect("memory");
                }
                format!("<reservationSet><item><instancesSet>{items}</instancesSet></item></reservationSet>")
            }
            "DescribeInstanceTypes" => "<instanceTypeSet/>".to_owned(),
            "DescribeAvailabilityZones" => format!(
                "<availabilityZoneInfo><item><zoneName>{ZONE}</zoneName><zoneState>available</zoneState>\
                 <zoneType>availability-zone</zoneType></item></availabilityZoneInfo>"
            ),
            _ => return None,
        })
    }

    fn describe_volumes(&self, parameters: &Parameters) -> String {
        let ids = wire::list(parameters, "VolumeId");
        if !ids.is_empty() {
            return set(ids.iter().map(|id| self.volume(number_of(id))));
        }
        let filters = wire::filters(parameters);
        if let Some((_, names)) = filters.iter().find(|(name, _)| *name == format!("tag:{VOLUME_TAG}")) {
            let there = !self.state().template.is_empty();
            let numbers = names.iter().filter_map(|name| usize::from_str_radix(name.rsplit('-').next()?, 16).ok());
            return set(numbers.filter(|number| there && *number < self.count).map(|number| self.volume(number)));
        }
        let number = |name: &str| parameters.get(name).and_then(|text| text.parse::<usize>().ok());
        let (from, most) = (number("NextToken").unwrap_or(0), number("MaxResults").unwrap_or(1000));
        let next = (from + most).min(self.count);
        let token = if next < self.count { format!("<nextToken>{next}</nextToken>") } else { String::new() };
        set((from..next).map(|number| self.volume(number))) + &token
    }

    /// What is between `<item>` and its end.
    fn volume(&self, number: usize) -> String {
        let (id, name) = (disk(number), name(number));
        let state = self.state();
        let mut tags = String::new();
        for (key, value) in &state.template {
            let value = if [VOLUME_TAG, NAME_TAG].contains(&key.as_str()) { &name } else { value };
            let value = value.replace('"', "&quot;");
            write!(tags, "<item><key>{key}</key><value>{value}</value></item>").expect("memory");
        }
        // Every fourth was attached before.
        let attached = match state.attached.get(&id) {
            Some((instance, device, begun)) => Some((instance.clone(), device.clone(), begun.elapsed() >= ATTACHING)),
            None if number % 4 == 1 => Some((machine(number), "/dev/xvdba".to_owned(), true)),
            None => None,
        };
        let attachment = attached.as_ref().map(|(instance, device, done)| {
            let state = if *done { "attached" } else { "attaching" };
            format!("<item>{}</item>", attachment_fields(&id, instance, device, state))
        });
        format!(
            "<volumeId>{id}</volumeId><size>10</size><availabilityZone>{ZONE}</availabilityZone><status>{}</status>\
             <createTime>2026-01-01T00:00:00.000Z</createTime><volumeType>gp3</volumeType><iops>3000</iops>\
             <throughput>125</throughput><encrypted>true</encrypted><multiAttachEnabled>false</multiAttachEnabled>\
             <kmsKeyId>arn:aws:kms:us-east-1:123456789012:key/00000000-0000-0000-0000-000000000000</kmsKeyId>\
             <attachmentSet>{}</attachmentSet><tagSet>{tags}</tagSet>",
            if attached.is_some() { "in-use" } else { "available" },
            attachment.unwrap_or_default()
        )
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        // The one that waits for connections hears of it by one.
        TcpStream::connect(self.address).ok();
    }
}

fn set(volumes: impl Iterator<Item = String>) -> String {
    format!("<volumeSet>{}</volumeSet>", volumes.map(|volume| format!("<item>{volume}</item>")).collect::<String>())
}

fn attachment_fields(volume: &str, instance: &str, device: &str, state: &str) -> String {
    format!(
        "<volumeId>{volume}</volumeId><instanceId>{instance}</instanceId><device>{device}</device><status>{state}</status>\
         <attachTime>2026-01-01T00:00:00.000Z</attachTime>"
    )
}

fn disk(number: usize) -> String {
    // Ids of EC2 are in no order.
    format!("vol-{:08x}{number:09x}", number.wrapping_mul(2_654_435_761) & 0xffff_ffff)
}

fn number_of(disk: &str) -> usize {
    usize::from_str_radix(&disk[disk.len() - 9..], 16).expect("one of ours")
}

fn name(number: usize) -> String {
    format!("pvc-00000000-0000-0000-0000-{number:012x}")
}

fn machine(number: usize) -> String {
    format!("i-{number:017x}")
}

/// A driver and its account.
struct Driver {
    harness: Harness,
    account: Arc<Account>,
    template: String,
}

impl Driver {
    fn start(count: usize) -> Driver {
        let account = Account::start(count);
        let mut harness = Harness::new(Pool::Local);
        let address = account.address;
        let config = format!(
            "backends:\n  - name: ebs\n    type: ec2\n    cluster: {CLUSTER}\n    region: us-east-1\n    endpoint: http://{address}\n    \
             ebsEndpoint: http://{address}\n    zone: {ZONE}\n    instanceType: m5.large\n    tags: {{team: storage}}\n"
        );
        fs::write(harness.path("config.yaml"), config).expect("the configuration");
        harness.set_node_id(&machine(0));
        for (key, value) in [
            ("AWS_ACCESS_KEY_ID", "AKIALONGSHORETEST000"),
            ("AWS_SECRET_ACCESS_KEY", "none"),
            ("AWS_EC2_METADATA_DISABLED", "true"),
            ("AWS_CONFIG_FILE", "/dev/null"),
            ("AWS_SHARED_CREDENTIALS_FILE", "/dev/null"),
        ] {
            harness.set(key, value);
        }
        harness.start();
        let zone = csi::Topology { segments: [("topology.kubernetes.io/zone".to_owned(), ZONE.to_owned())].into() };
        let request = csi::CreateVolumeRequest {
            name: TEMPLATE.to_owned(),
            capacity_range: Some(csi::CapacityRange { required_bytes: 10 << 30, limit_bytes: 0 }),
            volume_capabilities: vec![capability(Some("ext4"))],
            parameters: [("type".to_owned(), "gp3".to_owned()), ("encrypted".to_owned(), "true".to_owned())].into(),
            accessibility_requirements: Some(csi::TopologyRequirement { requisite: vec![zone.clone()], preferred: vec![zone] }),
            ..Default::default()
        };
        let made = harness.block_on(harness.controller().create_volume(request)).expect("created").into_inner();
        let template = made.volume.expect("a volume").volume_id;
        Driver { harness, account, template }
    }

    fn handle(&self, number: usize) -> String {
        self.template.replace(&disk(0), &disk(number)).replace(TEMPLATE, &name(number))
    }

    /// One page: how long it took, the volumes, and the token of the next.
    fn page(&self, after: &str) -> (Duration, Vec<String>, String) {
        let mut controller = self.harness.controller();
        let request = csi::ListVolumesRequest { max_entries: 500, starting_token: after.to_owned() };
        let mut found = (Vec::new(), String::new());
        let took = timed(|| {
            let page = self.harness.block_on(controller.list_volumes(request))?.into_inner();
            let ids = page.entries.into_iter().map(|entry| entry.volume.expect("a volume").volume_id);
            found = (ids.collect(), page.next_token);
            Ok(())
        });
        (took, found.0, found.1)
    }

    /// Attaches so many at once, and waits for all.
    fn attach(&self) {
        let mut tasks = Vec::new();
        let channel = self.harness.channel();
        for number in 0..ATTACHED_AT_ONCE.min(self.account.count / 4) {
            let request = csi::ControllerPublishVolumeRequest {
                volume_id: self.handle(4 * number + 2),
                node_id: machine(number),
                volume_capability: Some(capability(Some("ext4"))),
                ..Default::default()
            };
            let mut client = csi::controller_client::ControllerClient::new(channel.clone());
            tasks.push(async move { client.controller_publish_volume(request).await.map(drop) });
        }
        self.harness.block_on(async {
            let tasks: Vec<_> = tasks.into_iter().map(tokio::spawn).collect();
            for task in tasks {
                task.await.expect("no panic").expect("attached");
            }
        });
    }
}

/// What a list costs: its first page, for which all is fetched, and some further ones.
struct List {
    first: Cost,
    further: Vec<Cost>,
    /// With the list kept for its next page.
    memory: Memory,
}

struct Cost {
    time: Duration,
    cpu: Duration,
    requests: u64,
}

fn list(driver: &Driver) -> List {
    const MOST: usize = 20;
    let pid = driver.harness.pid();
    let mut names = BTreeSet::new();
    let mut token = String::new();
    let mut page = || {
        let (before, cpu) = (driver.account.requests().0, own_cpu(pid));
        let (time, ids, next) = driver.page(&token);
        token = next;
        let count = ids.len();
        assert_eq!(count, 500.min(driver.account.count - names.len()), "a page is full");
        names.extend(ids);
        let cost = Cost { time, cpu: own_cpu(pid) - cpu, requests: driver.account.requests().0 - before };
        (cost, token.is_empty())
    };
    let (first, mut ended) = page();
    let mut further = Vec::new();
    while !ended && further.len() < MOST {
        let (cost, is_last) = page();
        further.push(cost);
        ended = is_last;
    }
    let listed = 500 * (1 + further.len());
    assert_eq!(names.len(), listed.min(driver.account.count), "a volume is listed twice");
    List { first, further, memory: Memory::of(pid) }
}

#[test]
#[ignore = "figures for benches/growth; LONGSHORE_GROWTH_EC2 says with how many volumes"]
fn figures_of_ec2_by_number_of_volumes() {
    const IDLE: Duration = Duration::from_secs(60);
    let counts = std::env::var("LONGSHORE_GROWTH_EC2").unwrap_or_else(|_| "1000".to_owned());
    let counts: Vec<usize> = counts.split(',').map(|count| count.parse().expect("numbers, with commas")).collect();
    isolated(|| {
        let drivers: Vec<Driver> = counts.iter().map(|count| Driver::start(*count)).collect();
        let requests = || -> Vec<u64> { drivers.iter().map(|driver| driver.account.requests().1).collect() };
        let less = |after: &[u64], before: &[u64]| -> Vec<String> {
            after.iter().zip(before).map(|(after, before)| (after - before).to_string()).collect()
        };
        let mut rows: Vec<(&str, Vec<String>)> = Vec::new();
        let memory = || drivers.iter().map(|driver| Memory::of(driver.harness.pid()).to_string()).collect();
        rows.push(("before any list: VmRSS / RssAnon MiB, threads", memory()));
        // Probed as the kubelet's and the sidecars' probes do.
        let before = requests();
        let begun = Instant::now();
        while begun.elapsed() < IDLE {
            for driver in &drivers {
                let mut identity = driver.harness.identity();
                driver.harness.block_on(identity.probe(csi::ProbeRequest {})).expect("it answers");
            }
            std::thread::sleep(Duration::from_secs(10).min(IDLE.saturating_sub(begun.elapsed())));
        }
        rows.push(("describing requests in an idle minute", less(&requests(), &before)));
        let before = requests();
        std::thread::scope(|scope| drivers.iter().for_each(|driver| drop(scope.spawn(|| driver.attach()))));
        rows.push(("describing requests of 10 attaches that take 30 s", less(&requests(), &before)));
        let lists: Vec<List> = drivers.iter().map(list).collect();
        let mut row = |name, cell: &dyn Fn(&List) -> String| rows.push((name, lists.iter().map(cell).collect()));
        let cost = |cost: &Cost| {
            let [time, cpu] = [cost.time, cost.cpu].map(milliseconds);
            format!("{time:.0} / {cpu:.0}, {}", cost.requests)
        };
        row("ListVolumes, first page of 500: time / CPU ms, requests", &|list| cost(&list.first));
        row("a further page: p50 / p99 / CPU ms, requests", &|list| {
            let times: Vec<Duration> = list.further.iter().map(|cost| cost.time).collect();
            let [p50, p99] = [50, 99].map(|percent| milliseconds(percentile(&times, percent)));
            let pages = u32::try_from(times.len()).expect("few");
            let cpu = milliseconds(list.further.iter().map(|cost| cost.cpu).sum::<Duration>() / pages);
            let requests = list.further.iter().map(|cost| cost.requests).sum::<u64>() / u64::from(pages);
            format!("{p50:.1} / {p99:.1} / {cpu:.1}, {requests}")
        });
        row("with the list kept for its next page: VmRSS / RssAnon MiB, threads", &|list| list.memory.to_string());
        #[allow(clippy::cast_precision_loss, reason = "for print")]
        row("peak of VmRSS, MiB", &|list| format!("{:.1}", list.memory.peak as f64 / 1024.0));
        println!("\n| EC2 volumes, simulated | {} |", counts.iter().map(usize::to_string).collect::<Vec<_>>().join(" | "));
        println!("|---|{}", "---|".repeat(counts.len()));
        for (name, cells) in rows {
            println!("| {name} | {} |", cells.join(" | "));
        }
    });
}

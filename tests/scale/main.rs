//! Thousands of volumes on hundreds of machines, by simulation: the driver itself, the rates that EC2 publishes, and a clock that runs
//! faster.
//!
//! `LONGSHORE_SCALE=5000` says how many volumes, five for each machine; 500 by default. With 5,000 it takes some 20 minutes: EC2 makes,
//! attaches, detaches and deletes five in a second, so that each of the four phases lasts 1,000 seconds of its time.
//!
//! The figures are for a cloud that answers a list that fits into one page with one page, and shows at once what was made, as those that
//! others publish are. With `LONGSHORE_SCALE_UNKIND=1` it does neither, as in all other tests: a look by tag then costs three requests.
#![cfg(all(feature = "ec2", feature = "faults"))]
#![allow(clippy::disallowed_methods, reason = "tests start programs, and the emulated cloud waits")]
#![allow(dead_code, reason = "of the emulated cloud, another part than tests/cloud uses")]

#[path = "../cloud/actions.rs"]
mod actions;
#[path = "../cloud/buckets.rs"]
mod buckets;
#[path = "../cloud/clock.rs"]
mod clock;
#[path = "../common/mod.rs"]
mod common;
#[path = "../cloud/driver.rs"]
mod driver;
#[path = "../cloud/limits.rs"]
mod limits;
#[path = "../cloud/moto.rs"]
mod moto;
#[path = "../cloud/proxy.rs"]
mod proxy;
#[path = "../cloud/rights.rs"]
mod rights;
#[path = "../cloud/state.rs"]
mod state;
#[path = "../cloud/wire.rs"]
mod wire;
#[path = "../cloud/xml.rs"]
mod xml;

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use longshore::csi;
use longshore::csi::controller_client::ControllerClient;
use tonic::transport::Channel;
use tonic::{Request, Status};

use driver::{Driver, PATIENCE, ZONE, creation, is_final, publication};
use proxy::Cloud;

/// As many at once as aws-ebs-csi-driver's chart has its provisioner and its attacher work.
const WORKERS: usize = 100;
const VOLUMES_EACH: usize = 5;
/// What the driver signs with.
const KEY: &str = "AKIALONGSHORETEST000";

/// How many volumes.
fn scale() -> usize {
    std::env::var("LONGSHORE_SCALE").ok().map_or(500, |count| count.parse().expect("a number"))
}

/// How many times as fast as time: as moto can follow, which asks itself longer the more volumes it knows.
fn speed() -> u32 {
    if scale() > 1000 { 5 } else { 10 }
}

/// What a phase took.
struct Phase {
    name: &'static str,
    mutating: u64,
    asking: u64,
    throttled: u64,
    /// In the cloud's time, from the caller's first request on; sorted.
    times: Vec<Duration>,
    whole: Duration,
    repeats: usize,
}

/// Runs `call` for each number below `count`, on as many workers as the sidecars have, each until it succeeds.
fn phase<F>(
    driver: &Driver,
    name: &'static str,
    count: usize,
    call: impl Fn(ControllerClient<Channel>, usize) -> F + Send + Sync + 'static,
) -> Phase
where
    F: Future<Output = Result<(), Status>> + Send,
{
    let before = driver.cloud.requests();
    let begun = driver.cloud.clock.now();
    let (next, repeats) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let call = Arc::new(call);
    let channel = driver.harness.channel();
    let mut times = driver.harness.block_on(async {
        let workers: Vec<_> = (0..WORKERS)
            .map(|_| {
                let (next, repeats, call) = (Arc::clone(&next), Arc::clone(&repeats), Arc::clone(&call));
                let client = ControllerClient::new(channel.clone());
                tokio::spawn(async move {
                    let mut times = Vec::new();
                    loop {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        if number >= count {
                            return times;
                        }
                        let begun = Instant::now();
                        let mut pause = Duration::from_secs(1);
                        while let Err(status) = call(client.clone(), number).await {
                            assert!(!is_final(status.code()) || retried(&status), "{number}: {status}");
                            repeats.fetch_add(1, Ordering::Relaxed);
                            tokio::time::sleep(pause / speed()).await;
                            pause = (pause * 2).min(Duration::from_secs(300));
                        }
                        times.push(begun.elapsed() * speed());
                    }
                })
            })
            .collect();
        let mut times = Vec::new();
        for worker in workers {
            times.append(&mut worker.await.expect("a worker"));
        }
        times
    });
    times.sort();
    let after = driver.cloud.requests();
    let whole = driver.cloud.clock.now() - begun;
    let phase = Phase {
        name,
        mutating: after.0 - before.0,
        asking: after.1 - before.1,
        throttled: after.2 - before.2,
        times,
        whole,
        repeats: repeats.load(Ordering::Relaxed),
    };
    println!("{}: {:?} of the cloud's time, {} calls again", phase.name, phase.whole, phase.repeats);
    phase
}

/// csi-attacher and csi-provisioner repeat these too.
fn retried(status: &Status) -> bool {
    [tonic::Code::ResourceExhausted, tonic::Code::Internal].contains(&status.code())
}

fn patient<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(PATIENCE / speed());
    request
}

fn percentile(times: &[Duration], percent: usize) -> f64 {
    times[(times.len() * percent / 100).min(times.len() - 1)].as_secs_f64()
}

#[test]
fn thousands_of_volumes_are_made_attached_detached_and_deleted_within_the_published_rates() {
    let (count, speed) = (scale(), speed());
    let Some(cloud) = Cloud::start(speed) else { return };
    if std::env::var_os("LONGSHORE_SCALE_UNKIND").is_none() {
        let mut manners = cloud.manners();
        (manners.unkind, manners.late) = (false, Duration::ZERO);
    }
    let instances = Arc::new(cloud.run_instances(count.div_ceil(VOLUMES_EACH), "m5.large", ZONE));
    let driver = Driver::start(&cloud, speed, &instances[0]);
    // What the CO keeps.
    let handles = Arc::new(Mutex::new(BTreeMap::new()));
    let answered = Arc::clone(&handles);
    let created = phase(&driver, "create", count, move |mut client, number| {
        let answered = Arc::clone(&answered);
        async move {
            client.create_volume(patient(creation(&name(number)))).await.map(|answer| {
                let handle = answer.into_inner().volume.expect("a volume").volume_id;
                assert!(handle.starts_with("ebs:d-vol-") && handle.ends_with(&name(number)), "{handle}");
                answered.lock().expect("no panic").insert(number, handle);
            })
        }
    });
    let handles: Arc<BTreeMap<usize, String>> = Arc::new(std::mem::take(&mut *handles.lock().expect("no panic")));
    let id = |handles: &Arc<BTreeMap<usize, String>>| {
        let handles = Arc::clone(handles);
        move |number: usize| handles[&number].clone()
    };
    assert_eq!(driver.disks().len(), count);
    let (of, id_of) = (Arc::clone(&instances), id(&handles));
    let attached = phase(&driver, "attach", count, move |mut client, number| {
        let request = patient(publication(&id_of(number), &of[number % of.len()]));
        async move { client.controller_publish_volume(request).await.map(drop) }
    });
    let mut on: BTreeMap<String, usize> = BTreeMap::new();
    for disk in driver.disks() {
        let attachment = disk.items("attachmentSet").first().expect("attached");
        *on.entry(attachment.get("instanceId").to_owned()).or_default() += 1;
    }
    assert!(on.values().all(|count| *count <= VOLUMES_EACH) && on.len() == instances.len(), "{on:?}");
    let (of, id_of) = (Arc::clone(&instances), id(&handles));
    let detached = phase(&driver, "detach", count, move |mut client, number| {
        let request = csi::ControllerUnpublishVolumeRequest {
            volume_id: id_of(number),
            node_id: of[number % of.len()].clone(),
            ..Default::default()
        };
        async move { client.controller_unpublish_volume(patient(request)).await.map(drop) }
    });
    assert!(driver.disks().iter().all(|disk| disk.get("status") == "available"), "all are detached");
    let id_of = id(&handles);
    let deleted = phase(&driver, "delete", count, move |mut client, number| {
        let request = csi::DeleteVolumeRequest { volume_id: id_of(number), ..Default::default() };
        async move { client.delete_volume(patient(request)).await.map(drop) }
    });
    driver.assert_clean("after all were deleted");

    let memory = peak_memory(driver.harness.pid());
    println!("{count} volumes on {} nodes, {WORKERS} workers, {speed} times as fast as time:", instances.len());
    println!("phase   mutating/volume  describes/volume  throttled %    p50 s    p99 s  whole s  repeated");
    for phase in [&created, &attached, &detached, &deleted] {
        let Phase { name, mutating, asking, throttled, times, whole, repeats } = phase;
        #[allow(clippy::cast_precision_loss, reason = "small counts")]
        let (each, of) = (|total: u64| total as f64 / count as f64, (mutating + asking) as f64);
        #[allow(clippy::cast_precision_loss, reason = "small counts")]
        let share = *throttled as f64 * 100.0 / of;
        let (p50, p99) = (percentile(times, 50), percentile(times, 99));
        println!(
            "{name:<8}{:>15.3}{:>18.3}{share:>13.2}{p50:>9.1}{p99:>9.1}{:>9.0}{repeats:>10}",
            each(*mutating),
            each(*asking),
            whole.as_secs_f64(),
        );
        println!(
            "FIGURE: ec2 scale {name}: {count} volumes, {mutating} mutating requests, {asking} describing requests, {throttled} throttled \
             requests, {p50:.1} seconds at p50, {p99:.1} seconds at p99"
        );
    }
    println!("FIGURE: ec2 scale: {memory} MiB of memory at most");
    let total: u64 = [&created, &attached, &detached, &deleted].iter().map(|phase| phase.throttled).sum();
    assert_eq!(total, 0, "requests were throttled");
    for phase in [&created, &attached, &detached, &deleted] {
        assert!(phase.asking * 5 < count as u64, "{}: {} describing requests for {count} volumes", phase.name, phase.asking);
    }
}

fn name(number: usize) -> String {
    format!("pvc-{number:05}")
}

/// The most memory that a process has had, in MiB.
fn peak_memory(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it lives");
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).expect("a peak");
    let kib: u64 = line.split_whitespace().nth(1).and_then(|number| number.parse().ok()).expect("a number");
    kib / 1024
}

//! What a call to the node costs must not grow with what else there is on it. `benches/growth` prints figures by the same means.

mod common;
#[cfg(feature = "ec2")]
#[path = "growth/ec2.rs"]
mod ec2;
#[path = "growth/pool.rs"]
mod pool;
#[path = "growth/process.rs"]
mod process;
#[cfg(feature = "ec2")]
#[allow(dead_code, reason = "of the emulated cloud's HTTP, another part than tests/cloud uses")]
#[path = "cloud/wire.rs"]
mod wire;

use std::fs;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use common::{Harness, Pool, create, isolated, text};
use longshore::csi;
use nix::mount::{MntFlags, MsFlags, mount, umount2};

const CALLS: [&str; 7] = ["stage", "publish", "stats", "unpublish", "unstage", "create", "delete"];

/// The times of each of [`CALLS`].
type Times = [Vec<Duration>; CALLS.len()];

struct Volume {
    id: String,
    capability: Option<csi::VolumeCapability>,
    context: std::collections::HashMap<String, String>,
    staging: PathBuf,
    target: PathBuf,
}

impl Volume {
    fn make(harness: &Harness, name: &str, backend: &str) -> Volume {
        let request = create(name, 16, Some("ext4"), backend);
        let made = harness.block_on(harness.controller().create_volume(request.clone())).expect("created").into_inner();
        Volume::of(harness, &request, made)
    }

    /// What was made on request.
    fn of(harness: &Harness, request: &csi::CreateVolumeRequest, made: csi::CreateVolumeResponse) -> Volume {
        let volume = made.volume.expect("a volume");
        let capability = request.volume_capabilities.first().cloned();
        let (staging, target) = (harness.staging(&request.name), harness.target(&request.name));
        Volume { id: volume.volume_id, capability, context: volume.volume_context, staging, target }
    }

    fn stage(&self, harness: &Harness) -> Duration {
        let request = csi::NodeStageVolumeRequest {
            volume_id: self.id.clone(),
            staging_target_path: text(&self.staging),
            volume_capability: self.capability.clone(),
            volume_context: self.context.clone(),
            ..Default::default()
        };
        timed(|| harness.block_on(harness.node().node_stage_volume(request)).map(drop))
    }

    fn publish(&self, harness: &Harness) -> Duration {
        let request = csi::NodePublishVolumeRequest {
            volume_id: self.id.clone(),
            staging_target_path: text(&self.staging),
            target_path: text(&self.target),
            volume_capability: self.capability.clone(),
            volume_context: self.context.clone(),
            ..Default::default()
        };
        timed(|| harness.block_on(harness.node().node_publish_volume(request)).map(drop))
    }

    fn stats(&self, harness: &Harness) -> Duration {
        let request =
            csi::NodeGetVolumeStatsRequest { volume_id: self.id.clone(), volume_path: text(&self.target), ..Default::default() };
        timed(|| harness.block_on(harness.node().node_get_volume_stats(request)).map(drop))
    }

    fn unpublish(&self, harness: &Harness) -> Duration {
        let request = csi::NodeUnpublishVolumeRequest { volume_id: self.id.clone(), target_path: text(&self.target) };
        timed(|| harness.block_on(harness.node().node_unpublish_volume(request)).map(drop))
    }

    fn unstage(&self, harness: &Harness) -> Duration {
        let request = csi::NodeUnstageVolumeRequest { volume_id: self.id.clone(), staging_target_path: text(&self.staging) };
        timed(|| harness.block_on(harness.node().node_unstage_volume(request)).map(drop))
    }

    fn delete(&self, harness: &Harness) -> Duration {
        let request = csi::DeleteVolumeRequest { volume_id: self.id.clone(), ..Default::default() };
        timed(|| harness.block_on(harness.controller().delete_volume(request)).map(drop))
    }

    /// The last two with another volume.
    fn cycle(&self, harness: &Harness, times: &mut Times) {
        let each: [fn(&Volume, &Harness) -> Duration; 5] =
            [Volume::stage, Volume::publish, Volume::stats, Volume::unpublish, Volume::unstage];
        let backend = self.id.split(':').next().expect("a backend");
        let [nodes @ .., create, delete] = times;
        for (call, times) in each.iter().zip(nodes) {
            times.push(call(self, harness));
        }
        let begun = Instant::now();
        let other = Volume::make(harness, "passing", backend);
        create.push(begun.elapsed());
        delete.push(other.delete(harness));
    }
}

fn timed(call: impl FnOnce() -> Result<(), tonic::Status>) -> Duration {
    let begun = Instant::now();
    call().expect("the call succeeds");
    begun.elapsed()
}

fn percentile(times: &[Duration], hundredths: usize) -> Duration {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    sorted[(sorted.len() * hundredths / 100).min(sorted.len() - 1)]
}

fn ratio(much: Duration, less: Duration) -> f64 {
    much.as_secs_f64() / less.as_secs_f64()
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Mounts of others, unmounted on drop.
struct Mounts<'a>(&'a Path);

impl Mounts<'_> {
    fn add(place: &Path, count: usize) -> Mounts<'_> {
        let none: Option<&str> = None;
        mount(Some("others"), place, Some("tmpfs"), MsFlags::empty(), none).expect("a tmpfs");
        for number in 0..count {
            let at = place.join(format!("{number}/volumes/kubernetes.io~empty-dir"));
            fs::create_dir_all(&at).expect("a directory");
            mount(Some(&at), &at, none, MsFlags::MS_BIND, none).expect("a bind mount");
        }
        Mounts(place)
    }
}

impl Drop for Mounts<'_> {
    fn drop(&mut self) {
        umount2(self.0, MntFlags::MNT_DETACH).expect("unmounted");
    }
}

/// Loop devices without a backing file, removed on drop unless another program uses them.
struct Unused(Vec<i32>);

#[allow(unsafe_code, reason = "LOOP_CTL_ADD and LOOP_CTL_REMOVE have no safe wrapper")]
mod ioctl {
    nix::ioctl_write_int_bad!(add, 0x4C80);
    nix::ioctl_write_int_bad!(remove, 0x4C81);
}

#[allow(unsafe_code, reason = "LOOP_CTL_ADD and LOOP_CTL_REMOVE have no safe wrapper")]
impl Unused {
    fn control() -> fs::File {
        fs::File::options().read(true).write(true).open("/dev/loop-control").expect("loop devices")
    }

    fn add(count: usize) -> Unused {
        let control = Unused::control();
        // SAFETY: the descriptor is open, no memory is passed.
        let add = || unsafe { ioctl::add(control.as_raw_fd(), -1) }.expect("a loop device");
        Unused((0..count).map(|_| add()).collect())
    }
}

#[allow(unsafe_code, reason = "LOOP_CTL_ADD and LOOP_CTL_REMOVE have no safe wrapper")]
impl Drop for Unused {
    fn drop(&mut self) {
        // The kernel waits for some 50 ms with each.
        std::thread::scope(|scope| {
            for numbers in self.0.chunks(self.0.len().div_ceil(32).max(1)) {
                scope.spawn(move || {
                    let control = Unused::control();
                    for number in numbers {
                        // SAFETY: the descriptor is open, no memory is passed.
                        let _ = unsafe { ioctl::remove(control.as_raw_fd(), *number) };
                    }
                });
            }
        });
    }
}

const OTHERS: usize = 600;

/// How many times as long the calls take with what `others` adds.
fn check_growth<T>(harness: &Harness, what: &str, others: impl Fn() -> T) {
    const LIMIT: f64 = 1.5;
    let volume = Volume::make(harness, "grown", "image");
    volume.cycle(harness, &mut Times::default());
    let (mut few, mut many) = (Times::default(), Times::default());
    // In turns, so that another load of the machine meets both.
    for _ in 0..4 {
        for _ in 0..5 {
            volume.cycle(harness, &mut few);
        }
        let others = others();
        // What is remembered is looked at once.
        volume.cycle(harness, &mut Times::default());
        for _ in 0..5 {
            volume.cycle(harness, &mut many);
        }
        drop(others);
    }
    let ratios: Vec<(&str, f64)> = CALLS
        .iter()
        .zip(few.iter().zip(&many))
        // What grows makes the fast calls slower, too; another load of the machine the slow ones.
        .map(|(call, (few, many))| (*call, ratio(percentile(many, 25), percentile(few, 25))))
        .collect();
    eprintln!("with {what}: {ratios:.2?} of the time without them");
    assert!(ratios.iter().all(|(_, ratio)| *ratio <= LIMIT), "{ratios:.2?}");
    volume.delete(harness);
}

#[test]
fn calls_with_many_mounts_take_no_longer_than_with_few() {
    isolated(|| {
        let mut harness = Harness::new(Pool::Local);
        let others = harness.path("kubelet/pods/others");
        fs::create_dir_all(&others).expect("a directory");
        // The driver is to have the mounts that come later, too.
        harness.start();
        check_growth(&harness, "600 more mounts", || Mounts::add(&others, OTHERS));
    });
}

#[test]
fn calls_with_many_loop_devices_take_no_longer_than_with_few() {
    isolated(|| {
        let mut harness = Harness::new(Pool::Local);
        harness.start();
        check_growth(&harness, "1,200 more loop devices", || Unused::add(2 * OTHERS));
    });
}

/// What the driver has now: threads, and resident memory in KiB.
fn threads_and_memory(harness: &Harness) -> (u64, u64) {
    let memory = process::Memory::of(harness.pid());
    (memory.threads, memory.resident)
}

/// The kernel wakes idle threads in turns: a few calls a second would keep all of a burst alive if each waited long for the next.
#[test]
fn threads_of_a_burst_end_within_seconds_though_calls_go_on() {
    const AT_ONCE: usize = 48;
    isolated(|| {
        let mut harness = Harness::new(Pool::Local);
        harness.start();
        let mut controller = harness.controller();
        harness.block_on(controller.list_volumes(csi::ListVolumesRequest::default())).expect("listed");
        let idle = threads_and_memory(&harness);
        let volumes: Vec<_> = (0..AT_ONCE).map(|name| Volume::make(&harness, &format!("burst-{name}"), "image")).collect();
        // Each starts programs, and waits for them on a thread.
        std::thread::scope(|scope| volumes.iter().for_each(|volume| drop(scope.spawn(|| volume.stage(&harness)))));
        let loaded = threads_and_memory(&harness);
        let begun = Instant::now();
        // Ten calls a second.
        let mut now = loaded;
        while now.0 > idle.0 + 12 && begun.elapsed() < Duration::from_secs(10) {
            harness.block_on(async {
                controller.list_volumes(csi::ListVolumesRequest::default()).await.expect("listed");
                tokio::time::sleep(Duration::from_millis(100)).await;
            });
            now = threads_and_memory(&harness);
        }
        let after = begun.elapsed();
        eprintln!("threads and KiB: {idle:?}, after {AT_ONCE} at once {loaded:?}, {after:.1?} later {now:?}");
        for volume in &volumes {
            volume.unstage(&harness);
            volume.delete(&harness);
        }
        assert!(loaded.0 > idle.0 + 16, "the burst made no threads: {loaded:?}");
        assert!(now.0 <= idle.0 + 12, "{now:?} threads {after:?} after a burst");
    });
}

/// CPU time of the driver and of the programs that it has waited for, in clock ticks.
fn cpu(harness: &Harness) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{}/stat", harness.pid())).expect("it lives");
    let fields = stat.rsplit(") ").next().unwrap_or_default().split(' ').skip(11).take(4);
    fields.map(|field| field.parse::<u64>().expect("a number")).sum()
}

#[test]
#[ignore = "figures for benches/growth; LONGSHORE_GROWTH says with how many volumes"]
fn figures_of_node_calls_by_number_of_staged_volumes() {
    const CYCLES: usize = 30;
    let counts = std::env::var("LONGSHORE_GROWTH").unwrap_or_else(|_| "0,100".to_owned());
    let counts: Vec<usize> = counts.split(',').map(|count| count.parse().expect("numbers, with commas")).collect();
    println!(
        "| backend | staged | unused loop devices | {} | CPU of all, driver / its programs ms |",
        CALLS.map(|call| format!("{call}, p50 / p99 ms")).join(" | ")
    );
    println!("|---|---|---|{}---|", "---|".repeat(CALLS.len()));
    for backend in ["fake", "image"] {
        isolated(|| {
            let mut harness = Harness::new(Pool::Local);
            harness.start();
            let measured = Volume::make(&harness, "measured", backend);
            let mut staged = Vec::new();
            let rows = counts.iter().map(|count| (*count, 0)).chain([(counts.last().copied().unwrap_or(0), OTHERS)]);
            for (count, unused) in rows {
                while staged.len() < count {
                    let volume = Volume::make(&harness, &format!("staged-{}", staged.len()), backend);
                    volume.stage(&harness);
                    volume.publish(&harness);
                    staged.push(volume);
                }
                let _unused = Unused::add(unused);
                measured.cycle(&harness, &mut Times::default());
                let (mut times, before, own) = (Times::default(), cpu(&harness), process::own_cpu(harness.pid()));
                for _ in 0..CYCLES {
                    measured.cycle(&harness, &mut times);
                }
                let own = milliseconds(process::own_cpu(harness.pid()) - own);
                let ticks = (cpu(&harness) - before) as f64;
                let cells = times.map(|times| {
                    format!("{:.2} / {:.2}", milliseconds(percentile(&times, 50)), milliseconds(percentile(&times, 99)))
                });
                // A tick is 10 ms.
                let programs = (ticks * 10.0 - own).max(0.0);
                let [own, programs] = [own, programs].map(|time| time / CYCLES as f64);
                println!("| {backend} | {count} | {unused} | {} | {own:.1} / {programs:.1} |", cells.join(" | "));
            }
            for volume in &staged {
                volume.unpublish(&harness);
                volume.unstage(&harness);
                volume.delete(&harness);
            }
            measured.delete(&harness);
        });
    }
}

//! What calls cost by the number of volumes in an image pool.

#![allow(clippy::disallowed_methods, reason = "readiness is polled, and nobody reports the end of what follows an answer")]

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use longshore::csi;
use longshore::csi::controller_client::ControllerClient;
use tonic::transport::Channel;

use super::common::{Harness, MIB, Pool, capability, create, isolated};
use super::process::{Memory, own_cpu};
use super::{Volume, milliseconds, percentile, ratio, timed};

/// Entries of a page of ListVolumes: the most that one has, and what a pool of 100 volumes has, too.
const PAGE: usize = 500;
const SMALL_PAGE: usize = 100;
const MIB_EACH: i64 = 16;
/// The name of the volume whose files are copied.
const TEMPLATE: &str = "template";

/// A driver over a pool that has so many volumes already.
pub struct Filled {
    harness: Harness,
    /// Of one connection for all calls.
    controller: ControllerClient<Channel>,
    count: usize,
}

impl Filled {
    /// Starts a driver over a pool of `count` volumes. All but the first are written by us, in the format of the pool and not synced, while no
    /// driver runs: that takes seconds where so many calls would take minutes.
    pub fn start(mut harness: Harness, count: usize) -> Filled {
        // Images are sparse.
        let config = fs::read_to_string(harness.path("config.yaml")).expect("the configuration");
        fs::write(harness.path("config.yaml"), config.replace("overcommit: 8.0", "overcommit: 1000.0")).expect("written");
        harness.start();
        if count > 0 {
            let template = Volume::make(&harness, TEMPLATE, "image");
            assert!(harness.stop(), "{}", harness.log());
            fill(&harness.path("pool/images/volumes"), &template.id, count - 1);
            harness.start();
        }
        let controller = harness.controller();
        Filled { harness, controller, count }
    }

    /// The id that follows half of the volumes in a list; empty where there are none.
    fn middle(&self) -> String {
        if self.count == 0 { String::new() } else { format!("image:{}", filled_name(self.count / 2)) }
    }

    /// How long the driver takes from its start to the first Probe that says ready and the first call that has its pool.
    fn restart(&mut self) -> Duration {
        assert!(self.harness.stop(), "{}", self.harness.log());
        let begun = Instant::now();
        self.harness.start();
        let mut identity = self.harness.identity();
        loop {
            let probe = self.harness.block_on(identity.probe(csi::ProbeRequest {}));
            // Without the field it is ready. It is also while a pool is still read, as long as that goes well.
            let ready = probe.is_ok_and(|probe| probe.into_inner().ready.unwrap_or(true));
            if ready && self.try_capacity().is_ok() {
                return begun.elapsed();
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn list(&self, after: &str, most: usize) -> Duration {
        let max_entries = i32::try_from(most).expect("a count");
        let request = csi::ListVolumesRequest { max_entries, starting_token: after.to_owned() };
        let mut controller = self.controller.clone();
        let mut entries = 0;
        let took = timed(|| {
            let page = self.harness.block_on(controller.list_volumes(request))?.into_inner();
            entries = page.entries.len();
            Ok(())
        });
        let all = if after.is_empty() { self.count } else { self.count - self.count / 2 - 1 };
        assert!(entries >= all.min(most), "a page has {entries} entries of {all}");
        took
    }

    fn list_snapshots(&self) -> Duration {
        let request = csi::ListSnapshotsRequest::default();
        let mut controller = self.controller.clone();
        timed(|| self.harness.block_on(controller.list_snapshots(request)).map(drop))
    }

    fn try_capacity(&self) -> Result<(), tonic::Status> {
        let request = csi::GetCapacityRequest {
            volume_capabilities: vec![capability(Some("ext4"))],
            parameters: [("backend".to_owned(), "image".to_owned())].into(),
            ..Default::default()
        };
        let mut controller = self.controller.clone();
        self.harness.block_on(controller.get_capacity(request)).map(drop)
    }

    fn capacity(&self) -> Duration {
        timed(|| self.try_capacity())
    }

    fn get(&self, volume: &Volume) -> Duration {
        let request = csi::ControllerGetVolumeRequest { volume_id: volume.id.clone() };
        let mut controller = self.controller.clone();
        timed(|| self.harness.block_on(controller.controller_get_volume(request)).map(drop))
    }

    fn validate(&self, volume: &Volume) -> Duration {
        let request = csi::ValidateVolumeCapabilitiesRequest {
            volume_id: volume.id.clone(),
            volume_capabilities: volume.capability.iter().cloned().collect(),
            volume_context: volume.context.clone(),
            ..Default::default()
        };
        let mut controller = self.controller.clone();
        timed(|| self.harness.block_on(controller.validate_volume_capabilities(request)).map(drop))
    }

    fn expand(&self, volume: &Volume) -> Duration {
        let request = csi::ControllerExpandVolumeRequest {
            volume_id: volume.id.clone(),
            capacity_range: Some(csi::CapacityRange { required_bytes: 2 * MIB_EACH * MIB, limit_bytes: 0 }),
            volume_capability: volume.capability.clone(),
            ..Default::default()
        };
        let mut controller = self.controller.clone();
        timed(|| self.harness.block_on(controller.controller_expand_volume(request)).map(drop))
    }

    /// Of one volume, one snapshot: what it took to make and to delete it.
    fn snapshot(&self, volume: &Volume) -> Duration {
        let request =
            csi::CreateSnapshotRequest { name: "passing".to_owned(), source_volume_id: volume.id.clone(), ..Default::default() };
        let mut controller = self.controller.clone();
        timed(|| {
            let made = self.harness.block_on(controller.create_snapshot(request))?.into_inner();
            let snapshot_id = made.snapshot.expect("a snapshot").snapshot_id;
            let request = csi::DeleteSnapshotRequest { snapshot_id, ..Default::default() };
            self.harness.block_on(controller.delete_snapshot(request)).map(drop)
        })
    }

    fn create(&self) -> (Duration, Volume) {
        let request = create("passing", MIB_EACH, Some("ext4"), "image");
        let mut controller = self.controller.clone();
        let begun = Instant::now();
        let made = self.harness.block_on(controller.create_volume(request.clone())).expect("created").into_inner();
        (begun.elapsed(), Volume::of(&self.harness, &request, made))
    }

    fn delete(&self, volume: &Volume) -> Duration {
        let request = csi::DeleteVolumeRequest { volume_id: volume.id.clone(), ..Default::default() };
        let mut controller = self.controller.clone();
        timed(|| self.harness.block_on(controller.delete_volume(request)).map(drop))
    }

    /// One volume from its creation to its deletion, with lists between.
    fn cycle(&self, costs: &mut Costs) {
        let mut made = None;
        let pid = self.harness.pid();
        costs.of("CreateVolume", pid, || {
            let (took, volume) = self.create();
            made = Some(volume);
            took
        });
        let volume = made.expect("made");
        costs.of("NodeStageVolume + NodePublishVolume", pid, || volume.stage(&self.harness) + volume.publish(&self.harness));
        costs.of("NodeGetVolumeStats", pid, || volume.stats(&self.harness));
        costs.of("NodeUnpublishVolume + NodeUnstageVolume", pid, || {
            volume.unpublish(&self.harness) + volume.unstage(&self.harness)
        });
        costs.of("ControllerGetVolume", pid, || self.get(&volume));
        costs.of("ValidateVolumeCapabilities", pid, || self.validate(&volume));
        costs.of("ControllerExpandVolume", pid, || self.expand(&volume));
        costs.of("CreateSnapshot + DeleteSnapshot", pid, || self.snapshot(&volume));
        costs.of("DeleteVolume", pid, || self.delete(&volume));
        costs.of("ListSnapshots", pid, || self.list_snapshots());
        costs.of("GetCapacity", pid, || self.capacity());
        costs.of("ListVolumes, the first 100", pid, || self.list("", SMALL_PAGE));
        costs.of("ListVolumes, the first 500", pid, || self.list("", PAGE));
        costs.of("ListVolumes, 500 from the middle", pid, || self.list(&self.middle(), PAGE));
        // What the driver still does for a long answer is no cost of the next call.
        std::thread::sleep(Duration::from_millis(20));
        self.capacity();
    }
}

fn filled_name(number: usize) -> String {
    format!("filled-{number:06}")
}

/// Copies the volume `id` so many times, under further names.
fn fill(volumes: &Path, id: &str, count: usize) {
    let local = id.strip_prefix("image:").expect("a volume of the image backend");
    let template = volumes.join(local);
    let meta = fs::read_to_string(template.join("meta.json")).expect("its record");
    let length = fs::metadata(template.join("image")).expect("its image").len();
    for number in 0..count {
        let name = filled_name(number);
        let directory: PathBuf = volumes.join(&name);
        fs::create_dir(&directory).expect("a directory");
        let meta = meta.replace(&format!("\"image:{local}\""), &format!("\"image:{name}\""));
        let meta = meta.replace(&format!("\"{TEMPLATE}\""), &format!("\"{name}\""));
        let file = fs::File::create_new(directory.join("meta.json")).expect("a record");
        file.write_all_at(meta.as_bytes(), 0).expect("written");
        fs::File::create_new(directory.join("image")).and_then(|image| image.set_len(length)).expect("an image");
    }
}

/// What was measured of each call, in the order of the first.
#[derive(Default)]
pub struct Costs(Vec<(&'static str, Vec<Duration>, Duration)>);

impl Costs {
    pub fn of(&mut self, call: &'static str, pid: u32, measure: impl FnOnce() -> Duration) {
        let before = own_cpu(pid);
        let took = measure();
        let cpu = own_cpu(pid) - before;
        match self.0.iter_mut().find(|(name, ..)| *name == call) {
            Some((_, times, all)) => {
                times.push(took);
                *all += cpu;
            }
            None => self.0.push((call, vec![took], cpu)),
        }
    }

    fn measured(&self, call: &str) -> &(&'static str, Vec<Duration>, Duration) {
        self.0.iter().find(|(name, ..)| *name == call).expect("it was measured")
    }

    pub fn time(&self, call: &str, hundredths: usize) -> Duration {
        percentile(&self.measured(call).1, hundredths)
    }

    /// The driver's CPU time of one call.
    pub fn cpu(&self, call: &str) -> Duration {
        let (_, times, cpu) = self.measured(call);
        *cpu / u32::try_from(times.len()).expect("few")
    }

    pub fn calls(&self) -> impl Iterator<Item = &'static str> {
        self.0.iter().map(|(name, ..)| *name)
    }

    /// Median, 99th percentile and the driver's CPU time of one, in ms.
    pub fn cell(&self, call: &str) -> String {
        let [p50, p99, cpu] = [self.time(call, 50), self.time(call, 99), self.cpu(call)].map(milliseconds);
        format!("{p50:.2} / {p99:.2} / {cpu:.2}")
    }
}

#[test]
fn calls_with_many_volumes_in_the_pool_take_no_longer_than_with_few() {
    const MOST_TIME: f64 = 2.0;
    const MOST_CPU: f64 = 1.5;
    const HELD: [&str; 4] = ["CreateVolume", "DeleteVolume", "NodeStageVolume + NodePublishVolume", "ListVolumes, the first 100"];
    isolated(|| {
        // In memory: what a disk's fsync takes says nothing of the number of volumes.
        let drivers = [100, 5000].map(|count| Filled::start(Harness::in_memory(Pool::Local), count));
        let mut costs = [Costs::default(), Costs::default()];
        drivers.iter().for_each(|driver| driver.cycle(&mut Costs::default()));
        // In turns, so that another load of the machine meets both.
        for _ in 0..30 {
            for (driver, costs) in drivers.iter().zip(&mut costs) {
                driver.cycle(costs);
            }
        }
        drop(drivers);
        let [few, many] = costs;
        // Other loads of the machine add to the time of some calls: the fastest quarter shows them least, CPU time hardly at all.
        // Of 100 volumes a page of 500 is none.
        let ratios = few
            .calls()
            .filter(|call| !call.contains("500"))
            .map(|call| (call, ratio(many.time(call, 25), few.time(call, 25)), ratio(many.cpu(call), few.cpu(call))));
        let ratios: Vec<(&str, f64, f64)> = ratios.collect();
        eprintln!("time and CPU time with 5,000 volumes in the pool: {ratios:.2?} of those with 100");
        let grown = |(call, time, cpu): &(&str, f64, f64)| HELD.contains(call) && (*time > MOST_TIME || *cpu > MOST_CPU);
        assert!(!ratios.iter().any(grown), "{ratios:.2?}");
    });
}

#[test]
#[ignore = "figures for benches/growth; LONGSHORE_GROWTH_POOL says with how many volumes"]
fn figures_of_calls_by_number_of_volumes_in_the_pool() {
    const TURNS: usize = 30;
    let place = std::env::var("BENCH_DIR").unwrap_or_else(|_| "/var/tmp".to_owned());
    let counts = std::env::var("LONGSHORE_GROWTH_POOL").unwrap_or_else(|_| "0,100,1000".to_owned());
    let counts: Vec<usize> = counts.split(',').map(|count| count.parse().expect("numbers, with commas")).collect();
    isolated(|| {
        let mut drivers: Vec<Filled> =
            counts.iter().map(|count| Filled::start(Harness::new_in(&place, Pool::Local), *count)).collect();
        let mut starts: Vec<Vec<Duration>> = counts.iter().map(|_| Vec::new()).collect();
        for _ in 0..5 {
            for (driver, starts) in drivers.iter_mut().zip(&mut starts) {
                starts.push(driver.restart());
            }
        }
        let ready: Vec<Memory> = drivers.iter().map(|driver| Memory::of(driver.harness.pid())).collect();
        let mut costs: Vec<Costs> = counts.iter().map(|_| Costs::default()).collect();
        drivers.iter().for_each(|driver| driver.cycle(&mut Costs::default()));
        for _ in 0..TURNS {
            for (driver, costs) in drivers.iter().zip(&mut costs) {
                driver.cycle(costs);
            }
        }
        let after: Vec<Memory> = drivers.iter().map(|driver| Memory::of(driver.harness.pid())).collect();
        let last = costs.last().expect("some");
        // Of those with 100 where there are such.
        let least = &costs[counts.iter().position(|count| *count == 100).unwrap_or(0)];
        println!(
            "\n| volumes in the pool | {} | last / 100: p50, CPU |",
            counts.iter().map(usize::to_string).collect::<Vec<_>>().join(" | ")
        );
        println!("|---|{}---|", "---|".repeat(counts.len()));
        let starts: Vec<String> = starts.iter().map(|times| format!("{:.1}", milliseconds(percentile(times, 50)))).collect();
        println!("| start to ready and the pool usable, p50 ms | {} | |", starts.join(" | "));
        for (when, memory) in [("when ready", ready), ("after the calls", after)] {
            let cells: Vec<String> = memory.iter().map(Memory::to_string).collect();
            println!("| {when}: VmRSS / RssAnon MiB, threads | {} | |", cells.join(" | "));
        }
        for call in last.calls() {
            let cells: Vec<String> = costs.iter().map(|costs| costs.cell(call)).collect();
            let (time, cpu) = (ratio(last.time(call, 50), least.time(call, 50)), ratio(last.cpu(call), least.cpu(call)));
            println!("| {call} | {} | {time:.2}, {cpu:.2} |", cells.join(" | "));
        }
        println!("\nCalls: p50 / p99 / CPU time of the driver's own threads for one, ms.");
    });
}

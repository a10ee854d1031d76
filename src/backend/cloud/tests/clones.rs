//! Copies of volumes, directly and through a snapshot, whatever the cloud does, and whichever driver continues with them.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

use super::super::tags::{BLANK, SOURCE, TEMPORARY};
use super::super::{CloudErrorKind, Disk, DiskId, DiskSource, DiskState};
use super::fake::Wrong::{Lost, NotDone, Refused};
use super::fake::{Kill, Killed};
use super::snapshots::at_last;
use super::*;
use crate::volume::ContentSource;

/// Freezes what is copied; and breaks so often first.
struct Freeze {
    frozen: Arc<AtomicBool>,
    breaks: Mutex<u32>,
}

struct Frozen {
    frozen: Arc<AtomicBool>,
    breaks: bool,
}

impl Freeze {
    fn of(bench: &Bench, breaks: u32) -> Freeze {
        Freeze { frozen: Arc::clone(&bench.cloud.state().frozen), breaks: Mutex::new(breaks) }
    }
}

impl Quiesce for Freeze {
    fn freeze(&self, volumes: &[VolumeId]) -> Result<Box<dyn FreezeGuard>> {
        assert_eq!(volumes.iter().map(VolumeId::derived).collect::<Vec<_>>(), ["one"]);
        assert!(!self.frozen.swap(true, Ordering::Relaxed), "it is frozen already");
        let mut breaks = self.breaks.lock().expect("no panic");
        let broken = *breaks > 0;
        *breaks = breaks.saturating_sub(1);
        Ok(Box::new(Frozen { frozen: Arc::clone(&self.frozen), breaks: broken }))
    }
}

impl FreezeGuard for Frozen {
    fn release(self: Box<Self>) -> Result<()> {
        match self.breaks {
            true => Err(Error::failed("freeze", "the volume", "it was thawed")),
            false => Ok(()),
        }
    }
}

/// Also of a process that is killed.
impl Drop for Frozen {
    fn drop(&mut self) {
        self.frozen.store(false, Ordering::Relaxed);
    }
}

impl Bench {
    /// With a volume to copy.
    fn with_source(copies: bool) -> Bench {
        let bench = Bench::new();
        bench.create("one").expect("made");
        bench.cloud.state().copies = copies;
        bench
    }

    /// As `ops` does: find first.
    fn clone_by(&self, name: &str, quiesce: &dyn Quiesce) -> Result<Volume> {
        match self.provision().find(&id(name))? {
            Some(volume) => Ok(self.answered(volume)),
            None => {
                let spec = VolumeSpec { source: Some(ContentSource::Volume(self.id("one"))), ..spec(name) };
                self.provision().create(&spec, quiesce).map(|volume| self.answered(volume))
            }
        }
    }

    fn clone_one(&self, name: &str) -> Result<Volume> {
        self.clone_by(name, &Freeze::of(self, 0))
    }

    /// The disk of a copy, the only one, without anything else of it.
    fn only_copy(&self, name: &str, when: &str) -> Disk {
        let disks = self.cloud.disks_now();
        let of: Vec<&Disk> =
            disks.iter().filter(|disk| disk.tags.get(super::super::tags::VOLUME).is_some_and(|is| is == name)).collect();
        assert_eq!(of.len(), 1, "{when}: {disks:#?}");
        assert_eq!(self.cloud.snapshots_now(), [], "{when}");
        assert!(!of[0].tags.contains_key(BLANK), "{when}: a copy is not blank");
        assert!(of[0].tags[SOURCE].starts_with("volume/cloud:"), "{when}");
        assert_eq!(
            self.handles.lock().expect("no panic").get(name).and_then(|id| id.recorded().map(str::to_owned)),
            Some(of[0].id.0.clone())
        );
        of[0].clone()
    }

    fn counts(&self) -> [u64; 4] {
        ["copy_disk", "create_disk", "create_snapshot", "delete_snapshot"].map(|action| self.cloud.count(action))
    }
}

#[test]
fn clone_is_copied_directly_while_its_source_is_frozen() {
    let bench = Bench::with_source(true);
    let copy = bench.clone_one("two").expect("copied");
    assert_eq!(copy.source, Some(ContentSource::Volume(bench.id("one"))));
    assert_eq!(bench.counts(), [1, 1, 0, 0]);
    assert_eq!(bench.only_copy("two", "copied").source, DiskSource::Empty);
    assert_eq!(bench.cloud.state().taken_frozen, [true]);
    assert!(!bench.cloud.state().frozen.load(Ordering::Relaxed), "it continues");
    assert_eq!(bench.clone_one("two").expect("a repeat"), copy);
    // What was made of data is never reported as blank.
    let attached =
        bench.backend.attach().expect("it can").attach(&bench.id("two"), &node("i-1"), AccessMode::SingleNodeWriter, false);
    assert_eq!(attached.expect("attached").into_inner().get("madeEmpty"), None);
    bench.detach("two", "i-1").expect("detached");
    assert_eq!(bench.delete("two").expect("deleted"), Outcome::Changed(()));
    assert_eq!((bench.cloud.disks_now().len(), bench.counts()), (1, [1, 1, 0, 0]));
}

#[test]
fn clone_that_cannot_be_copied_directly_goes_through_a_snapshot() {
    // In another zone the cloud is not asked.
    let bench = Bench::with_source(true);
    let elsewhere = VolumeSpec {
        source: Some(ContentSource::Volume(bench.id("one"))),
        topology: TopologyRequirement { requisite: Vec::new(), preferred: vec![zone("b")] },
        ..spec("two")
    };
    bench.create_as(&elsewhere).expect("copied");
    assert_eq!((bench.counts(), bench.only_copy("two", "elsewhere").zones), ([0, 2, 1, 1], ["b".to_owned()].into()));
    for because in [
        CloudErrorKind::Invalid,
        CloudErrorKind::Denied,
        CloudErrorKind::Key,
        CloudErrorKind::InUse,
        CloudErrorKind::TooSoon,
        CloudErrorKind::NotFound,
        CloudErrorKind::Other,
    ] {
        let bench = Bench::with_source(true);
        bench.cloud.wrong("copy_disk", [Refused(because)]);
        bench.clone_one("two").expect("copied");
        assert_eq!(bench.counts(), [1, 2, 1, 1], "{because:?}");
        assert_ne!(bench.only_copy("two", "refused").source, DiskSource::Empty);
        assert_eq!(bench.cloud.state().taken_frozen, [true]);
    }
}

/// A request of the same name for a copy of another volume comes before the first one has ended: it gets nothing of what that began.
#[test]
fn clone_of_another_volume_is_not_made_of_the_snapshot_of_the_first() {
    let bench = Bench::with_source(false);
    bench.create("other").expect("made");
    bench.cloud.state().delays.snapshot = None;
    let error = bench.clone_one("two").expect_err("the cloud still saves it");
    assert!(!is_final(&error), "{error}");
    let taken = |bench: &Bench| bench.cloud.snapshots_now().remove(0).tags[super::super::tags::VOLUME].clone();
    assert_eq!(taken(&bench), bench.id("one").local());
    let of_other = VolumeSpec { source: Some(ContentSource::Volume(bench.id("other"))), ..spec("two") };
    let error = bench.create_as(&of_other).expect_err("the cloud still saves it");
    assert!(!is_final(&error), "{error}");
    assert_eq!((bench.cloud.snapshots_now().len(), taken(&bench)), (1, bench.id("other").local().to_owned()));
}

/// The first one's disk is being made of its snapshot: the second request ends with an error, and deletes nothing.
#[test]
fn clone_of_another_volume_leaves_the_snapshot_of_which_the_first_is_being_made() {
    let bench = Bench::with_source(false);
    bench.create("other").expect("made");
    bench.cloud.state().delays.create = None;
    let error = bench.clone_one("two").expect_err("the cloud still makes it");
    assert!(!is_final(&error), "{error}");
    let snapshots = bench.cloud.snapshots_now();
    assert_eq!(snapshots.len(), 1);
    let of_other = VolumeSpec { source: Some(ContentSource::Volume(bench.id("other"))), ..spec("two") };
    let error = bench.create_as(&of_other).expect_err("another volume has the name");
    assert!(matches!(error, Error::Conflict { .. }), "{error}");
    assert_eq!(bench.cloud.snapshots_now(), snapshots);
    let made = bench.cloud.disks_now().pop().expect("it is being made");
    bench.cloud.with_disk(&made.id, |disk| disk.state = DiskState::Available);
    bench.clone_one("two").expect("made");
    assert_eq!(bench.only_copy("two", "made").id, made.id);
}

#[test]
fn refusal_that_a_snapshot_does_not_help_against_is_reported() {
    for (because, is_over) in [
        (CloudErrorKind::Quota, true),
        (CloudErrorKind::NoCapacity, true),
        (CloudErrorKind::Throttled, false),
        (CloudErrorKind::Unavailable, false),
    ] {
        let bench = Bench::with_source(true);
        bench.cloud.wrong("copy_disk", [Refused(because)]);
        let error = bench.clone_one("two").expect_err("refused");
        assert_eq!((is_final(&error), bench.counts()), (is_over, [1, 1, 0, 0]), "{error}");
        bench.clone_one("two").expect("copied");
        assert_eq!(bench.counts(), [2, 1, 0, 0]);
    }
}

#[test]
fn second_copy_of_a_volume_that_is_still_copied_goes_through_a_snapshot() {
    let bench = Bench::with_source(true);
    bench.cloud.state().delays.fill = None;
    bench.clone_one("two").expect("copied");
    bench.clone_one("three").expect("copied");
    assert_eq!(bench.counts(), [2, 2, 1, 1]);
    assert_eq!(bench.only_copy("two", "directly").source, DiskSource::Empty);
    assert_ne!(bench.only_copy("three", "through a snapshot").source, DiskSource::Empty);
}

#[test]
fn direct_copy_with_unknown_outcome_is_never_followed_by_a_snapshot() {
    // Done or not, the token finds it.
    for wrong in [vec![Lost], vec![NotDone], vec![Lost, NotDone], vec![Lost, NotDone, NotDone], vec![NotDone, NotDone, NotDone]] {
        for stale in [0, 4] {
            let mut bench = Bench::with_source(true);
            bench.cloud.state().stale = stale;
            bench.cloud.wrong("copy_disk", wrong.clone());
            if let Err(error) = bench.clone_one("two") {
                assert!(!is_final(&error), "{error}");
                if stale > 0 {
                    bench.restart();
                }
            }
            at_last(|| bench.clone_one("two"));
            assert_eq!(bench.cloud.count("create_snapshot"), 0, "{wrong:?} {stale}");
            bench.only_copy("two", "after a lost answer");
        }
    }
    // The repeat is refused: what the first one made is waited for, and neither way is begun anew.
    let bench = Bench::with_source(true);
    bench.cloud.state().stale = 1_000_000;
    bench.cloud.wrong("copy_disk", [Lost, Refused(CloudErrorKind::Denied), Refused(CloudErrorKind::Denied)]);
    for _ in 0..2 {
        let error = bench.clone_one("two").expect_err("not shown");
        assert!(!is_final(&error), "{error}");
    }
    assert_eq!(bench.cloud.count("create_snapshot"), 0);
    bench.cloud.state().stale = 0;
    bench.cloud.show();
    bench.cloud.wrong("copy_disk", [Refused(CloudErrorKind::Denied)]);
    bench.clone_one("two").expect("shown");
    assert_eq!(bench.cloud.count("create_snapshot"), 0);
    bench.only_copy("two", "shown late");
}

/// Each way of the first driver, killed before and after each of its requests that change something, and each of the second's.
#[test]
fn clone_of_a_killed_driver_is_one_disk_whichever_way_the_next_one_goes() {
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Way {
        Direct,
        /// As an older driver's.
        Snapshot,
        /// The right was withdrawn.
        Denied,
    }
    let go = |bench: &Bench, way: Way| {
        let mut state = bench.cloud.state();
        state.copies = way != Way::Snapshot;
        let denials = if way == Way::Denied { 99 } else { 0 };
        state.wrong.insert("copy_disk", std::iter::repeat_n(Refused(CloudErrorKind::Denied), denials).collect());
    };
    let cells = |first: Way, next: Way, kill: Kill, stale: u32| {
        for request in 0.. {
            let when = format!("{first:?}, killed {kill:?} request {request}, then {next:?}, {stale} old answers");
            let mut bench = Bench::with_source(false);
            go(&bench, first);
            bench.cloud.state().stale = stale;
            bench.cloud.state().kill = Some((request, kill));
            match catch_unwind(AssertUnwindSafe(|| bench.clone_one("two"))) {
                Ok(answer) => {
                    answer.unwrap_or_else(|error| panic!("{when}: {error}"));
                    return request;
                }
                Err(killed) => assert!(killed.is::<Killed>(), "{when}"),
            }
            go(&bench, next);
            bench.restart();
            at_last(|| bench.clone_one("two"));
            bench.only_copy("two", &when);
            assert!(bench.cloud.state().taken_frozen.iter().all(|frozen| *frozen), "{when}");
            // Or it is undone.
            assert_eq!(bench.delete("two").expect("deleted"), Outcome::Changed(()), "{when}");
            assert_eq!((bench.cloud.disks_now().len(), bench.cloud.snapshots_now()), (1, vec![]), "{when}");
        }
        unreachable!("it comes to its end")
    };
    let ways = [Way::Direct, Way::Snapshot, Way::Denied];
    // Each cell waits most of the time.
    let cells: u64 = std::thread::scope(|scope| {
        let rows = ways.into_iter().flat_map(|first| ways.map(|next| (first, next))).flat_map(|(first, next)| {
            [(Kill::Before, 0), (Kill::Before, 4), (Kill::After, 0), (Kill::After, 4)]
                .map(|(kill, stale)| (first, next, kill, stale))
        });
        let rows: Vec<_> = rows.map(|(first, next, kill, stale)| scope.spawn(move || cells(first, next, kill, stale))).collect();
        rows.into_iter().map(|row| row.join().expect("no panic")).sum()
    });
    assert_eq!(cells, 3 * 2 * 2 * (1 + 3 + 4), "the requests of each way");
    println!("FIGURE: cloud frame: {cells} kills of a clone, each way continued by each way");
}

#[test]
fn deleting_a_clone_of_a_killed_driver_leaves_nothing() {
    for copies in [true, false] {
        for kill in [Kill::Before, Kill::After] {
            for request in 0.. {
                let mut bench = Bench::with_source(copies);
                bench.cloud.state().delays.create = Some(Duration::ZERO);
                bench.cloud.state().kill = Some((request, kill));
                if catch_unwind(AssertUnwindSafe(|| bench.clone_one("two"))).is_ok() {
                    break;
                }
                bench.cloud.state().copies = !copies;
                bench.restart();
                at_last(|| bench.delete("two"));
                let when = format!("{copies} {kill:?} {request}");
                assert_eq!((bench.cloud.disks_now().len(), bench.cloud.snapshots_now()), (1, vec![]), "{when}");
            }
        }
    }
}

#[test]
fn disk_of_an_earlier_driver_whose_snapshot_is_gone_is_found_before_a_direct_copy() {
    let mut bench = Bench::with_source(false);
    bench.cloud.wrong("create_disk", [Lost, NotDone, NotDone]);
    bench.clone_one("two").expect_err("no answer");
    // Another process cleans up; the disk is not shown yet.
    let snapshot = bench.cloud.snapshots_now().remove(0);
    assert_eq!(snapshot.tags[TEMPORARY], "two");
    Cloud::delete_snapshot(bench.cloud.as_ref(), &snapshot.id).expect("deleted");
    bench.cloud.hide(6);
    bench.cloud.state().copies = true;
    bench.restart();
    at_last(|| bench.clone_one("two"));
    assert_eq!(bench.cloud.count("copy_disk"), 0);
    bench.only_copy("two", "found");
}

#[test]
fn direct_copy_under_a_broken_freeze_is_deleted_and_made_again() {
    let bench = Bench::with_source(true);
    let error = bench.clone_by("two", &Freeze::of(&bench, 1)).expect_err("it was written to");
    assert!(is_final(&error) && error.to_string().contains("thawed"), "{error}");
    assert_eq!((bench.cloud.disks_now().len(), bench.cloud.snapshots_now()), (1, vec![]));
    bench.clone_one("two").expect("copied");
    bench.only_copy("two", "made again");

    // Nor is one used that could not be deleted, or whose answer was lost.
    for (action, wrong) in [
        ("delete_disk", vec![Refused(CloudErrorKind::Throttled)]),
        ("delete_disk", vec![NotDone, NotDone]),
        ("copy_disk", vec![Lost, NotDone, NotDone]),
        ("copy_disk", vec![Lost]),
    ] {
        let bench = Bench::with_source(true);
        bench.cloud.wrong(action, wrong.clone());
        let error = bench.clone_by("two", &Freeze::of(&bench, 1)).expect_err("it was written to");
        let torn: Vec<DiskId> = bench.cloud.disks_now().into_iter().skip(1).map(|disk| disk.id).collect();
        assert_eq!(is_final(&error), torn.is_empty(), "{error}");
        at_last(|| bench.clone_one("two"));
        let made = bench.only_copy("two", "made again");
        assert!(!torn.contains(&made.id), "{action} {wrong:?}: {} is torn", made.id);
    }
    // While it is being made it cannot be deleted.
    let bench = Bench::with_source(true);
    bench.cloud.state().delays.create = None;
    let error = bench.clone_by("two", &Freeze::of(&bench, 1)).expect_err("it was written to");
    assert!(!is_final(&error), "{error}");
    let torn = bench.cloud.disks_now()[1].id.clone();
    bench.cloud.with_disk(&torn, |disk| disk.state = DiskState::Available);
    bench.cloud.state().delays.create = Some(Duration::ZERO);
    at_last(|| bench.clone_one("two"));
    assert_ne!(bench.only_copy("two", "made again").id, torn);
}

#[test]
fn clone_of_a_volume_that_is_gone_ends_where_its_snapshot_is_complete() {
    let bench = Bench::with_source(false);
    bench.cloud.wrong("create_disk", [NotDone, NotDone, NotDone]);
    bench.clone_one("two").expect_err("no answer");
    bench.delete("one").expect("deleted");
    bench.cloud.state().copies = true;
    at_last(|| bench.clone_one("two"));
    bench.only_copy("two", "its source is gone");
    let error = bench.clone_one("three").expect_err("there is nothing to copy");
    assert!(matches!(error, Error::NotFound { kind: "volume", .. }), "{error}");
}

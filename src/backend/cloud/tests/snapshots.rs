//! Snapshots and copies, whatever the cloud does.

use std::ops::ControlFlow;

use super::fake::Wrong::{Lost, NotDone, Refused};
use super::*;
use crate::backend::Snapshots;
use crate::volume::{ContentSource, Extent, Snapshot};

impl Bench {
    fn snapshots(&self) -> &dyn Snapshots {
        self.backend.snapshots().expect("a controller")
    }

    /// As `ops` does: find first.
    fn take(&self, name: &str, of: &str) -> Result<Snapshot> {
        match self.snapshots().find_snapshot(&snapshot_id(name))? {
            Some(taken) => Ok(taken),
            None => self.snapshots().create_snapshot(&member(name, self.id(of)), &Nothing),
        }
        .inspect(|taken| drop(self.snapshot_handles.lock().expect("not poisoned").insert(name.to_owned(), taken.id.clone())))
    }

    fn copy(&self, name: &str, of: ContentSource) -> Result<Volume> {
        match self.provision().find(&id(name))? {
            Some(volume) => Ok(self.answered(volume)),
            None => self.create_as(&VolumeSpec { source: Some(of), ..spec(name) }),
        }
    }
}

pub(super) fn at_last<T>(mut work: impl FnMut() -> Result<T>) -> T {
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    loop {
        match work() {
            Ok(done) => return done,
            Err(error) => assert!(!is_final(&error) && std::time::Instant::now() < deadline, "{error}"),
        }
    }
}

#[test]
fn a_snapshot_is_taken_restored_and_deleted() {
    let bench = Bench::new();
    bench.create("one").expect("made");
    let taken = bench.take("s", "one").expect("begun");
    assert_eq!((&taken.id, &taken.source, taken.ready, taken.size), (&bench.snapshot_id("s"), &bench.id("one"), false, GIB));
    let from = || ContentSource::Snapshot(bench.snapshot_id("s"));
    let copy = at_last(|| bench.copy("two", from()));
    assert_eq!(copy.source, Some(from()));
    assert!(bench.take("s", "one").expect("a repeat").ready);
    bench.delete("one").expect("a snapshot outlives its volume");
    assert_eq!(bench.snapshots().list_snapshots(Some(&bench.id("one")), None, 9).expect("listed").len(), 1);
    assert_eq!(bench.snapshots().delete_snapshot(&bench.snapshot_id("s")).expect("deleted"), Outcome::Changed(()));
    assert_eq!(bench.snapshots().delete_snapshot(&bench.snapshot_id("s")).expect("a repeat"), Outcome::Unchanged(()));
    assert_eq!(bench.snapshots().find_snapshot(&bench.snapshot_id("s")).expect("answered"), None);
    let error = bench.copy("three", from()).expect_err("gone");
    assert!(matches!(error, Error::NotFound { kind: "snapshot", .. }), "{error}");
}

#[test]
fn a_lost_answer_makes_no_second_snapshot() {
    for stale in [0, 2] {
        for wrong in [Lost, NotDone] {
            let mut bench = Bench::new();
            bench.create("one").expect("made");
            bench.cloud.state().stale = stale;
            bench.cloud.wrong("create_snapshot", [wrong]);
            if let Err(error) = bench.take("s", "one") {
                assert!(!is_final(&error), "{error}");
                bench.restart();
                bench.take("s", "one").expect("taken");
            }
            assert_eq!(bench.cloud.snapshots_now().len(), 1, "{wrong:?} {stale}");
            bench.take("s", "one").expect("a repeat");
            bench.cloud.wrong("delete_snapshot", [wrong]);
            assert_eq!(bench.snapshots().delete_snapshot(&bench.snapshot_id("s")).expect("deleted"), Outcome::Changed(()));
            assert_eq!(bench.cloud.snapshots_now(), []);
            bench.take("s", "one").expect("taken again");
        }
    }
}

#[test]
fn a_killed_drivers_snapshot_is_waited_for_until_it_is_shown() {
    let mut bench = Bench::new();
    bench.create("one").expect("made");
    // More questions than one call asks, fewer than two do.
    bench.cloud.state().stale = 44;
    bench.cloud.wrong("create_snapshot", [Lost]);
    assert!(!is_final(&bench.take("s", "one").expect_err("not shown")));
    bench.cloud.state().stale = 0;
    bench.restart();
    bench.take("s", "one").expect("shown");
    assert_eq!(bench.cloud.snapshots_now().len(), 1);
}

/// csi-snapshotter keeps the id that was answered first.
#[test]
fn snapshot_that_failed_after_its_id_was_answered_is_not_made_again_under_another() {
    for restarts in [false, true] {
        let mut bench = Bench::new();
        bench.create("one").expect("made");
        let handle = bench.take("s", "one").expect("begun").id;
        let taken = bench.cloud.snapshots_now().remove(0).id;
        bench.cloud.fail_snapshot(&taken);
        if restarts {
            bench.restart();
        }
        for _ in 0..2 {
            let error = bench.take("s", "one").expect_err("it failed");
            assert!(matches!(&error, Error::Unverified { reason, .. } if reason.contains(&taken.0)), "{error}");
        }
        assert_eq!(bench.cloud.count("create_snapshot"), 1);
        assert_eq!(bench.snapshots().delete_snapshot(&handle).expect("deleted"), Outcome::Changed(()));
        bench.take("s", "one").expect("taken anew");
    }
}

#[test]
fn copied_snapshot_with_the_same_tags_is_left_alone() {
    let mut bench = Bench::new();
    bench.create("one").expect("made");
    let handle = bench.take("s", "one").expect("taken").id;
    let original = bench.cloud.snapshots_now()[0].id.clone();
    assert_eq!(handle.recorded(), Some(original.0.as_str()));
    let copy = bench.cloud.copy_snapshot(&original);
    bench.restart();
    // CreateSnapshot's repeat, which has only the name, and a restore.
    assert_eq!(bench.take("s", "one").expect("found").id, handle);
    at_last(|| bench.copy("two", ContentSource::Snapshot(handle.clone())));
    assert_eq!(bench.cloud.disks_now()[1].source, super::super::DiskSource::Snapshot(original.clone()));
    assert_eq!(bench.snapshots().list_snapshots(None, None, 9).expect("listed").len(), 2, "each under its own id");
    assert_eq!(bench.snapshots().delete_snapshot(&handle).expect("deleted"), Outcome::Changed(()));
    assert_eq!(bench.snapshots().delete_snapshot(&handle).expect("a repeat"), Outcome::Unchanged(()));
    assert_eq!(bench.cloud.snapshots_now().into_iter().map(|left| left.id).collect::<Vec<_>>(), [copy]);
    let error = bench.copy("three", ContentSource::Snapshot(handle)).expect_err("gone, whatever carries its tag");
    assert!(matches!(error, Error::NotFound { kind: "snapshot", .. }), "{error}");
}

#[test]
fn of_two_snapshots_of_one_disk_create_chooses_the_oldest_complete_one() {
    let bench = Bench::new();
    bench.create("one").expect("made");
    bench.take("s", "one").expect("taken");
    let other = driver(&bench.cloud, bench.clock);
    bench.cloud.state().delays.snapshot = None;
    other.snapshots().expect("a controller").create_snapshot(&member("t", bench.id("one")), &Nothing).expect("taken");
    let mut ids: Vec<_> = bench.cloud.snapshots_now();
    ids.sort_by_key(|snapshot| snapshot.created);
    bench.cloud.retag(&ids[1].id, &ids[0].tags);
    at_last(|| match bench.take("s", "one")?.ready {
        true => Ok(()),
        false => Err(Error::InProgress { object: "s".to_owned(), reason: "not ready".to_owned() }),
    });
    let third = driver(&bench.cloud, bench.clock);
    let third = third.snapshots().expect("a controller");
    let found = third.find_snapshot(&snapshot_id("s")).expect("answered").expect("there");
    assert!(found.ready);
    third.delete_snapshot(&found.id).expect("deleted");
    assert_eq!(bench.cloud.snapshots_now().len(), 1, "only the one that is recorded");
    assert_eq!(
        bench.backend.garbage(&std::collections::BTreeSet::new()).expect("looked").snapshots.len(),
        1,
        "the other is shown"
    );
}

#[test]
fn snapshots_whose_disk_is_not_known_are_nobodys_choice() {
    let bench = Bench::new();
    bench.create("one").expect("made");
    bench.take("s", "one").expect("taken");
    // As a driver made it that recorded no disk.
    let mut first = bench.cloud.snapshots_now().remove(0);
    first.tags.insert(super::super::tags::VOLUME.to_owned(), "one".to_owned());
    bench.cloud.retag(&first.id, &first.tags);
    let copy = bench.cloud.copy_snapshot(&first.id);
    let other = driver(&bench.cloud, bench.clock);
    let error = other.snapshots().expect("a controller").delete_snapshot(&snapshot_id("s")).expect_err("which?");
    assert!(matches!(&error, Error::Unverified { .. }) && error.to_string().contains(&copy.0), "{error}");
    assert_eq!(bench.cloud.snapshots_now().len(), 2);
}

#[test]
fn a_copy_leaves_no_snapshot_behind() {
    let copy_of = |bench: &Bench| ContentSource::Volume(bench.id("one"));
    let bench = Bench::new();
    bench.create("one").expect("made");
    bench.copy("two", copy_of(&bench)).expect("copied");
    assert_eq!((bench.cloud.snapshots_now(), bench.cloud.count("create_snapshot")), (vec![], 1));
    assert_eq!(bench.snapshots().list_snapshots(None, None, 9).expect("listed"), []);
    // Interrupted at each request, then repeated by another driver.
    for (action, wrong) in [
        ("create_snapshot", vec![Lost]),
        ("create_disk", vec![Lost, NotDone, NotDone]),
        ("create_disk", vec![NotDone, NotDone, NotDone]),
        ("delete_snapshot", vec![NotDone, NotDone]),
    ] {
        let mut bench = Bench::new();
        bench.create("one").expect("made");
        bench.cloud.wrong(action, wrong.clone());
        if let Err(error) = bench.copy("two", copy_of(&bench)) {
            assert!(!is_final(&error), "{error}");
        }
        bench.restart();
        at_last(|| bench.copy("two", copy_of(&bench)));
        assert_eq!(bench.cloud.snapshots_now(), [], "{action} {wrong:?}");
        assert_eq!(bench.cloud.disks_now().len(), 2, "{action} {wrong:?}");
    }
    // Refused for good: nothing is left; and never made: deleting it leaves nothing.
    bench.cloud.wrong("create_disk", [Refused(super::super::CloudErrorKind::Quota)]);
    assert!(is_final(&bench.copy("three", copy_of(&bench)).expect_err("no quota")));
    assert_eq!(bench.cloud.snapshots_now(), []);
    bench.cloud.state().delays.snapshot = None;
    let error = bench.copy("four", copy_of(&bench)).expect_err("it takes for ever");
    assert!(matches!(&error, Error::InProgress { reason, .. } if reason.contains('%')), "{error}");
    bench.delete("four").expect("nothing but its snapshot");
    assert_eq!(bench.cloud.snapshots_now(), []);
}

/// The source is thawed too early.
struct Breaks;

impl Quiesce for Breaks {
    fn freeze(&self, _: &[VolumeId]) -> Result<Box<dyn FreezeGuard>> {
        Ok(Box::new(Breaks))
    }
}

impl FreezeGuard for Breaks {
    fn release(self: Box<Self>) -> Result<()> {
        Err(Error::failed("freeze", "the volume", "it was thawed"))
    }
}

#[test]
fn a_hold_that_broke_makes_no_snapshot() {
    let bench = Bench::new();
    bench.create("one").expect("made");
    let error = bench.snapshots().create_snapshot(&member("s", bench.id("one")), &Breaks).expect_err("not still");
    assert!(is_final(&error), "{error}");
    assert_eq!(bench.cloud.snapshots_now(), []);
}

#[test]
fn snapshot_of_a_hold_that_broke_is_not_found_by_the_next_call() {
    for is_lost in [true, false] {
        let bench = Bench::new();
        bench.create("one").expect("made");
        if is_lost {
            // More questions than one call asks.
            bench.cloud.state().stale = 44;
            bench.cloud.wrong("create_snapshot", [Lost]);
        } else {
            bench.cloud.wrong("delete_snapshot", [NotDone, NotDone]);
        }
        let error = bench.snapshots().create_snapshot(&member("s", bench.id("one")), &Breaks).expect_err("not still");
        assert!(!is_final(&error), "{error}");
        let torn = bench.cloud.snapshots_now().remove(0).id;
        bench.cloud.state().stale = 0;
        bench.cloud.show();
        assert_eq!(bench.snapshots().find_snapshot(&snapshot_id("s")).expect("looked"), None);
        let taken = bench.take("s", "one").expect("taken again");
        assert_ne!(taken.id.recorded(), Some(torn.0.as_str()), "{is_lost}");
        assert_eq!(bench.cloud.snapshots_now().len(), 1);
        assert_eq!(bench.take("s", "one").expect("a repeat").id, taken.id);
    }
}

#[test]
fn neighbouring_blocks_are_one_extent() {
    let bench = Bench::new();
    bench.create("one").expect("made");
    bench.take("s", "one").expect("taken");
    at_last(|| bench.copy("two", ContentSource::Snapshot(bench.snapshot_id("s"))));
    bench.cloud.state().blocks = [0, 1, 2, 5, 7, 8].into_iter().map(|block| block * 4096).collect();
    let blocks = bench.backend.changed_blocks().expect("a controller");
    let list = |offset: u64, most: usize| {
        let mut seen: Vec<Extent> = Vec::new();
        let mut emit = |extent| {
            seen.push(extent);
            if seen.len() >= most { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        blocks.allocated(&bench.snapshot_id("s"), offset, &mut emit).expect("listed");
        seen.into_iter().map(|extent| (extent.offset, extent.length)).collect::<Vec<_>>()
    };
    assert_eq!(list(0, 9), [(0, 3 * 4096), (5 * 4096, 4096), (7 * 4096, 2 * 4096)]);
    assert_eq!(list(4097, 9)[0], (4097, 2 * 4096 - 1));
    assert_eq!(list(9 * 4096, 9), []);
    assert_eq!(list(0, 1), [(0, 3 * 4096)]);
}

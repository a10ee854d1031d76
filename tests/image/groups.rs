//! Groups of snapshots: all or none.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::Ordering;

use longshore::backend::{FreezeGuard, Quiesce};
use longshore::volume::{Error, GroupId, Outcome, Result, Rollback, VolumeId};

use crate::harness::*;

fn id() -> GroupId {
    "image:g".parse().expect("an id")
}

#[test]
fn all_members_are_taken_under_one_hold() {
    isolated(|| {
        let disk = Disk::new(Kind::Btrfs, 256);
        let other = directory();
        let backend = open(vec![pool("p", &disk.pool()), pool("q", other.path())]);
        create_with(&backend, &spec("a", 8 * MIB, &[("pool", "p")])).expect("created");
        create_with(&backend, &spec("b", 8 * MIB, &[("pool", "q")])).expect("created");
        write(&disk.pool().join("volumes/a/image"), 0, MIB, 1);
        write(&other.path().join("volumes/b/image"), 0, MIB, 2);
        let held = NoQuiesce::default();
        let members = [snapshot_spec("ga", "a"), snapshot_spec("gb", "b")];
        let group = groups(&backend).create_group(&id(), "g", &members, &held).expect("a group");
        assert_eq!((held.held.load(Ordering::Relaxed), held.volumes.load(Ordering::Relaxed)), (1, 2));
        assert!(group.snapshots.iter().all(|snapshot| snapshot.created == group.created && snapshot.group == Some(id())));
        assert_eq!(groups(&backend).find_group(&id()).expect("looked").as_ref(), Some(&group));
        assert!(holds(&disk.pool().join("snapshots/ga/image"), 0, MIB, 1));
        assert!(holds(&other.path().join("snapshots/gb/image"), 0, MIB, 2));
        let of_b = snapshots(&backend).list_snapshots(Some(&volume_id("b")), None, 9).expect("a list");
        assert_eq!(of_b, group.snapshots[1..]);

        let error = snapshots(&backend).delete_snapshot(&snapshot_id("ga")).expect_err("a member");
        assert!(matches!(error, Error::InUse { .. }) && error.to_string().contains("image:g"), "{error}");
        assert_eq!(groups(&backend).delete_group(&id()).expect("deleted"), Outcome::Changed(()));
        assert_eq!(groups(&backend).delete_group(&id()).expect("again"), Outcome::Unchanged(()));
        for pool in [disk.pool(), other.path().to_owned()] {
            assert_eq!(names(&pool.join("snapshots")), [""; 0]);
            assert_eq!(names(&pool.join("groups")), [""; 0]);
            assert_clean(&pool);
        }
    });
}

#[test]
fn a_group_that_fails_leaves_none() {
    let directory = directory();
    let path = directory.path();
    let backend = open_at(path);
    create(&backend, "a", 2 * MIB);
    create(&backend, "b", 2 * MIB);
    let members = [snapshot_spec("ga", "a"), snapshot_spec("gb", "b")];
    let broken = NoQuiesce { breaks: true, ..NoQuiesce::default() };
    let error = groups(&backend).create_group(&id(), "g", &members, &broken).expect_err("the hold broke");
    assert!(matches!(error, Error::Failed { rollback: Rollback::Verified, .. }), "{error}");
    let missing = [snapshot_spec("ga", "a"), snapshot_spec("gc", "c")];
    let error = groups(&backend).create_group(&id(), "g", &missing, &NoQuiesce::default()).expect_err("no c");
    assert!(matches!(error, Error::NotFound { .. }), "{error}");
    // Something stands where the second member would go: the first must go again.
    fs::create_dir(path.join("snapshots/gb")).expect("a directory");
    let error = groups(&backend).create_group(&id(), "g", &members, &NoQuiesce::default()).expect_err("taken");
    assert!(matches!(error, Error::Unverified { .. }), "{error}");
    fs::remove_dir(path.join("snapshots/gb")).expect("removed");
    assert!(groups(&backend).find_group(&id()).expect("looked").is_none());
    assert_eq!(names(&path.join("snapshots")), [""; 0]);
    assert_clean(path);
    groups(&backend).create_group(&id(), "g", &members, &NoQuiesce::default()).expect("now it can");
}

/// A final error says that nothing was left, also by the calls before it: what those could not roll back is gone.
#[test]
fn leftovers_of_earlier_calls_go_before_a_final_error() {
    let (directory, other) = (directory(), directory());
    let backend = open(vec![pool("p", directory.path()), pool("q", other.path())]);
    create_with(&backend, &spec("a", 2 * MIB, &[("pool", "p")])).expect("created");
    // As failed calls leave it whose roll-back failed, too.
    for (path, name) in [(other.path(), "volume~v"), (directory.path(), "snapshot~s"), (directory.path(), "snapshot~gb")] {
        let left = path.join("tmp").join(name);
        fs::create_dir(&left).expect("a directory");
        fs::write(left.join("image"), "half").expect("written");
    }
    let error = create_with(&backend, &spec("v", 1 << 60, &[("pool", "p")])).expect_err("there is no such room");
    assert!(matches!(error, Error::NoCapacity { .. }), "{error}");
    let error = snapshots(&backend).create_snapshot(&snapshot_spec("s", "gone"), &NoQuiesce::default()).expect_err("no source");
    assert!(matches!(error, Error::NotFound { .. }), "{error}");
    let members = [snapshot_spec("ga", "a"), snapshot_spec("gb", "gone")];
    let error = groups(&backend).create_group(&id(), "g", &members, &NoQuiesce::default()).expect_err("no source");
    assert!(matches!(error, Error::NotFound { .. }), "{error}");
    assert_clean(directory.path());
    assert_clean(other.path());
}

/// The CO never got the members' ids, so the group's own deletion must find what is left of them.
#[test]
fn drafts_that_could_not_be_discarded_go_with_their_group() {
    let directory = directory();
    let backend = open_at(directory.path());
    create(&backend, "a", 2 * MIB);
    let draft = directory.path().join("tmp/snapshot~ga");
    // Something in the draft that is not ours to remove.
    let disturbing = Disturbing(draft.join("foreign"));
    let error = groups(&backend).create_group(&id(), "g", &[snapshot_spec("ga", "a")], &disturbing).expect_err("the hold broke");
    assert!(matches!(error, Error::Failed { rollback: Rollback::Incomplete(_), .. }), "{error}");
    assert!(groups(&backend).delete_group(&id()).is_err(), "it cannot be removed yet");
    fs::remove_dir(&disturbing.0).expect("removed");
    groups(&backend).delete_group(&id()).expect("deleted");
    assert_clean(directory.path());
}

/// Puts a directory somewhere while volumes are held, and fails.
struct Disturbing(PathBuf);

impl Quiesce for Disturbing {
    fn freeze(&self, volumes: &[VolumeId]) -> Result<Box<dyn FreezeGuard>> {
        fs::create_dir(&self.0).expect("a directory");
        NoQuiesce { breaks: true, ..NoQuiesce::default() }.freeze(volumes)
    }
}

#[test]
fn members_without_a_record_do_not_exist() {
    let directory = directory();
    let path = directory.path();
    let backend = open_at(path);
    create(&backend, "a", 2 * MIB);
    take(&backend, "alone", "a");
    let members = [snapshot_spec("ga", "a")];
    let make = || groups(&backend).create_group(&id(), "g", &members, &NoQuiesce::default()).expect("a group");
    make();
    // As a kill before the record was written leaves it.
    fs::remove_file(path.join("groups/g.json")).expect("removed");
    assert!(snapshots(&backend).find_snapshot(&snapshot_id("ga")).expect("looked").is_none());
    assert_eq!(snapshots(&backend).list_snapshots(None, None, 1).expect("a list").len(), 1);
    assert_eq!(snapshots(&backend).list_snapshots(None, None, 9).expect("a list").len(), 1);
    make();
    assert_eq!(snapshots(&backend).list_snapshots(None, None, 9).expect("a list").len(), 2);
    // As a kill in the middle of DeleteVolumeGroupSnapshot leaves it, for the same process and for the next.
    fs::remove_file(path.join("groups/g.json")).expect("removed");
    assert_eq!(groups(&backend).delete_group(&id()).expect("deleted"), Outcome::Changed(()));
    assert_eq!(names(&path.join("snapshots")), ["alone"]);
    make();
    fs::remove_file(path.join("groups/g.json")).expect("removed");
    drop(backend);
    drop(open_at(path));
    assert_eq!(names(&path.join("snapshots")), ["alone"]);
    assert_clean(path);
}

#[test]
fn a_record_in_a_pool_that_is_not_configured_is_not_gone() {
    let (one, two) = (directory(), directory());
    let both = || vec![pool("one", one.path()), pool("two", two.path())];
    let backend = open(both());
    create_with(&backend, &spec("a", 2 * MIB, &[("pool", "one")])).expect("created");
    create_with(&backend, &spec("b", 2 * MIB, &[("pool", "two")])).expect("created");
    let members = [snapshot_spec("ga", "a"), snapshot_spec("gb", "b")];
    let group = groups(&backend).create_group(&id(), "g", &members, &NoQuiesce::default()).expect("a group");
    drop(backend);
    let half = open(vec![pool("two", two.path())]);
    let error = snapshots(&half).find_snapshot(&snapshot_id("gb")).expect_err("cannot be seen");
    assert!(matches!(error, Error::BackendUnavailable { .. }), "{error}");
    assert!(snapshots(&half).delete_snapshot(&snapshot_id("gb")).is_err());
    assert!(groups(&half).delete_group(&id()).is_err());
    assert_eq!(snapshots(&half).list_snapshots(None, None, 9).expect("a list").len(), 1);
    assert_eq!(names(&two.path().join("snapshots")), ["gb"]);
    drop(half);
    let backend = open(both());
    assert_eq!(groups(&backend).find_group(&id()).expect("looked"), Some(group));
    // Without the directory of the records nothing is taken for a stray.
    fs::remove_file(one.path().join("groups/g.json")).expect("removed");
    fs::remove_dir(one.path().join("groups")).expect("removed");
    assert!(groups(&backend).delete_group(&id()).is_err());
    assert!(snapshots(&backend).delete_snapshot(&snapshot_id("ga")).is_err());
    assert_eq!(names(&one.path().join("snapshots")), ["ga"]);
}

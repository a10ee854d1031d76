//! Snapshots, alone and in groups.

use std::time::SystemTime;

use super::provision::duplicate;
use super::store::{Reservation, StoredSnapshot};
use super::{Fake, while_still};
use crate::backend::{Groups, Quiesce, SnapshotSpec, Snapshots};
use crate::os::step::step;
use crate::volume::{Bytes, Error, Group, GroupId, Outcome, RawParameters, Result, Snapshot, SnapshotId, VolumeId};

impl Snapshots for Fake {
    fn check(&self, raw: &RawParameters) -> Result<()> {
        no_parameters(raw)
    }

    fn find_snapshot(&self, id: &SnapshotId) -> Result<Option<Snapshot>> {
        Ok(self.store.lock().snapshot(id).ok().map(|stored| stored.snapshot(id)))
    }

    fn create_snapshot(&self, spec: &SnapshotSpec, quiesce: &dyn Quiesce) -> Result<Snapshot> {
        if let Some(there) = self.find_snapshot(&spec.id)? {
            return Ok(there);
        }
        let reservation = self.reserve_copies(std::slice::from_ref(spec))?;
        let stored = while_still(quiesce, std::slice::from_ref(&spec.source), || self.take(spec, SystemTime::now(), None))?;
        step("record snapshot", &spec.id, || {
            reservation.commit(|state| {
                let snapshot = stored.snapshot(&spec.id);
                state.add_snapshot(spec.id.clone(), stored);
                Ok(snapshot)
            })
        })
    }

    fn delete_snapshot(&self, id: &SnapshotId) -> Result<Outcome<()>> {
        let removed = step("delete snapshot", id, || {
            let mut state = self.store.lock();
            if let Some(group) = state.snapshot(id).ok().and_then(|stored| stored.group.as_ref()) {
                let by = format!("it belongs to group snapshot {group}; delete that as a whole");
                return Err(Error::InUse { object: format!("snapshot {id}"), by });
            }
            Ok(state.remove_snapshot(id))
        })?;
        Ok(gone(removed.is_some()))
    }

    fn list_snapshots(&self, source: Option<&VolumeId>, after: Option<&SnapshotId>, max: usize) -> Result<Vec<Snapshot>> {
        Ok(self.store.lock().snapshots_after(source, after, max))
    }
}

impl Groups for Fake {
    fn check_group(&self, raw: &RawParameters) -> Result<()> {
        no_parameters(raw)
    }

    fn find_group(&self, id: &GroupId) -> Result<Option<Group>> {
        Ok(self.store.lock().group(id))
    }

    fn group_members(&self, id: &GroupId) -> Result<Option<Vec<SnapshotId>>> {
        Ok(self.find_group(id)?.map(|group| group.snapshots.into_iter().map(|snapshot| snapshot.id).collect()))
    }

    fn create_group(&self, id: &GroupId, name: &str, members: &[SnapshotSpec], quiesce: &dyn Quiesce) -> Result<Group> {
        if let Some(there) = self.find_group(id)? {
            return Ok(there);
        }
        self.none_taken(members)?;
        let reservation = self.reserve_copies(members)?;
        let sources: Vec<VolumeId> = members.iter().map(|member| member.source.clone()).collect();
        let (created, taken) = while_still(quiesce, &sources, || {
            let created = SystemTime::now();
            let take = |member: &SnapshotSpec| Ok((member.id.clone(), self.take(member, created, Some(id))?));
            Ok((created, members.iter().map(take).collect::<Result<Vec<_>>>()?))
        })?;
        step("record group snapshot", id, || {
            reservation.commit(|state| {
                state.add_group(id.clone(), name, created, taken);
                state.group(id).ok_or_else(|| Error::NotFound { kind: "group snapshot", id: id.to_string() })
            })
        })
    }

    fn delete_group(&self, id: &GroupId) -> Result<Outcome<()>> {
        let removed = step("delete group snapshot", id, || Ok::<_, Error>(self.store.lock().remove_group(id)))?;
        Ok(gone(removed.is_some()))
    }
}

impl Fake {
    /// Reserves what these snapshots may take in all.
    ///
    /// # Errors
    /// `NotFound` for a source; `Unsupported` for one that cannot be copied; `NoCapacity`.
    fn reserve_copies(&self, members: &[SnapshotSpec]) -> Result<Reservation<'_>> {
        let mut sum = Bytes(0);
        for member in members {
            let (_, size) = self.copyable(&member.source)?;
            sum = Bytes(sum.0.saturating_add(size.0));
        }
        self.store.reserve(sum)
    }

    /// Copies one volume, which is frozen and, by its lock, keeps its size.
    fn take(&self, spec: &SnapshotSpec, created: SystemTime, group: Option<&GroupId>) -> Result<StoredSnapshot> {
        let (contents, size) = self.copyable(&spec.source)?;
        let contents = step("copy volume", &spec.source, || duplicate(contents.as_deref(), spec.id.local(), size))?;
        let (name, source) = (spec.name.as_str().into(), spec.source.clone());
        Ok(StoredSnapshot { name, source, size, created, group: group.cloned(), contents })
    }

    /// That no snapshot of another origin has the id of a member.
    fn none_taken(&self, members: &[SnapshotSpec]) -> Result<()> {
        let state = self.store.lock();
        match members.iter().find(|member| state.snapshot(&member.id).is_ok()) {
            None => Ok(()),
            Some(member) => Err(Error::Conflict {
                object: format!("snapshot {}", member.id),
                existing: "another origin".to_owned(),
                wanted: "a member of a new group".to_owned(),
            }),
        }
    }
}

fn no_parameters(raw: &RawParameters) -> Result<()> {
    if raw.is_empty() {
        return Ok(());
    }
    Err(Error::invalid("parameters", format!("{raw:?}: this backend's snapshots have none")))
}

fn gone(was_there: bool) -> Outcome<()> {
    if was_there { Outcome::Changed(()) } else { Outcome::Unchanged(()) }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Bench, Broken, GIB, Still, backend_name, id, member, raw, snapshot_id, spec};
    use super::*;
    use crate::backend::{Expand, Provision, VolumeSpec};
    use crate::volume::ContentSource;

    fn group_id(name: &str) -> GroupId {
        GroupId::derive(&backend_name(), name)
    }

    #[test]
    fn a_snapshot_stays_as_the_volume_was() {
        let bench = Bench::new();
        bench.create("a", GIB);
        bench.write("a", 0, b"old");
        let still = Still::default();
        let taken = bench.fake.create_snapshot(&member("s", "a"), &still).expect("fits");
        assert_eq!((taken.size, taken.ready, &taken.group, &taken.source), (GIB, true, &None, &id("a")));
        assert_eq!(*still.held.lock().expect("not poisoned"), [vec![id("a")]]);
        assert_eq!(bench.fake.create_snapshot(&member("s", "a"), &still).expect("a repeat"), taken);
        bench.write("a", 0, b"new");
        bench.fake.expand(&id("a"), Bytes(2 * GIB.0)).expect("room");
        bench.fake.delete(&id("a")).expect("not in use");
        assert_eq!(bench.fake.find_snapshot(&snapshot_id("s")).expect("in memory"), Some(taken));
        let restore = VolumeSpec { source: Some(ContentSource::Snapshot(snapshot_id("s"))), ..spec("b", Bytes(3 * GIB.0)) };
        bench.fake.create(&restore, &still).expect("fits");
        assert_eq!(bench.read("b", 0, 3), b"old");
        assert_eq!(bench.provisioned(), Bytes(4 * GIB.0), "the snapshot and the restored volume");
        assert_eq!(bench.fake.delete_snapshot(&snapshot_id("s")).expect("alone"), Outcome::Changed(()));
        assert_eq!(bench.fake.delete_snapshot(&snapshot_id("s")).expect("gone"), Outcome::Unchanged(()));
        assert_eq!(bench.read("b", 0, 3), b"old");
        assert_eq!(bench.provisioned(), Bytes(3 * GIB.0));
    }

    #[test]
    fn a_snapshot_of_what_was_never_touched_takes_no_memory_and_restores_to_zeroes() {
        let bench = Bench::new();
        bench.create("a", GIB);
        bench.fake.create_snapshot(&member("s", "a"), &Still::default()).expect("fits");
        assert!(bench.fake.store.lock().snapshot(&snapshot_id("s")).expect("there").contents.is_none());
        let restore = VolumeSpec { source: Some(ContentSource::Snapshot(snapshot_id("s"))), ..spec("b", GIB) };
        bench.fake.create(&restore, &Still::default()).expect("fits");
        assert_eq!(bench.read("b", GIB.0 - 8, 8), [0; 8]);
    }

    #[test]
    fn a_snapshot_that_cannot_be_taken_promises_nothing() {
        let bench = Bench::with(|config| config.capacity = Bytes(3 * GIB.0 / 2));
        bench.create("a", GIB);
        let take = |source: &str, quiesce: &dyn Quiesce| bench.fake.create_snapshot(&member("s", source), quiesce);
        assert!(matches!(take("none", &Still::default()), Err(Error::NotFound { .. })));
        assert!(matches!(take("a", &Still::default()), Err(Error::NoCapacity { .. })), "{:?}", bench.provisioned());
        bench.fake.delete(&id("a")).expect("not in use");
        bench.create("a", Bytes(GIB.0 / 2));
        for broken in [Broken::Hold, Broken::Release] {
            assert!(take("a", &broken).is_err());
        }
        bench.tmpfs("t", Bytes(GIB.0 / 2));
        assert!(matches!(take("t", &Still::default()), Err(Error::Unsupported { .. })));
        assert_eq!(bench.fake.find_snapshot(&snapshot_id("s")).expect("in memory"), None);
        assert_eq!(bench.provisioned(), GIB);
        assert!(Snapshots::check(bench.fake.as_ref(), &raw(&[("x", "y")])).is_err());
        assert!(bench.fake.check_group(&raw(&[])).is_ok());
    }

    #[test]
    fn snapshots_are_listed_by_the_page_and_by_their_source() {
        let bench = Bench::new();
        for (snapshot, source) in [("s1", "a"), ("s2", "b"), ("s3", "a"), ("s4", "a")] {
            bench.create(source, Bytes::MIB);
            bench.fake.create_snapshot(&member(snapshot, source), &Still::default()).expect("fits");
        }
        let page = |source: Option<&str>, after: Option<&str>, max| -> Vec<String> {
            let listed = bench.fake.list_snapshots(source.map(id).as_ref(), after.map(snapshot_id).as_ref(), max);
            listed.expect("in memory").into_iter().map(|snapshot| snapshot.id.local().to_owned()).collect()
        };
        assert_eq!(page(None, None, 9), ["s1", "s2", "s3", "s4"]);
        assert_eq!(page(None, Some("s2"), 1), ["s3"]);
        assert_eq!(page(Some("a"), None, 2), ["s1", "s3"]);
        assert_eq!(page(Some("a"), Some("s3"), 2), ["s4"]);
        assert_eq!(page(Some("none"), None, 9), [""; 0]);
        bench.fake.delete_snapshot(&snapshot_id("s3")).expect("alone");
        assert_eq!(page(Some("a"), None, 9), ["s1", "s4"]);
    }

    #[test]
    fn a_group_is_of_one_instant_and_goes_as_a_whole() {
        let bench = Bench::new();
        bench.create("a", GIB);
        bench.create("b", Bytes(2 * GIB.0));
        bench.write("b", 0, b"b");
        let still = Still::default();
        let members = [member("g-a", "a"), member("g-b", "b")];
        let group = bench.fake.create_group(&group_id("g"), "g", &members, &still).expect("fits");
        assert_eq!(*still.held.lock().expect("not poisoned"), [vec![id("a"), id("b")]], "one hold for both");
        assert!(group.snapshots.iter().all(|snapshot| snapshot.created == group.created));
        assert!(group.snapshots.iter().all(|snapshot| snapshot.group == Some(group_id("g"))));
        assert_eq!(bench.fake.create_group(&group_id("g"), "g", &members, &still).expect("a repeat"), group);
        assert_eq!(bench.fake.find_group(&group_id("g")).expect("in memory"), Some(group));
        assert!(matches!(bench.fake.delete_snapshot(&snapshot_id("g-a")), Err(Error::InUse { .. })));
        assert_eq!(bench.provisioned(), Bytes(6 * GIB.0));
        assert_eq!(bench.fake.delete_group(&group_id("g")).expect("there"), Outcome::Changed(()));
        assert_eq!(bench.fake.delete_group(&group_id("g")).expect("gone"), Outcome::Unchanged(()));
        assert_eq!(bench.fake.list_snapshots(None, None, 9).expect("in memory"), []);
        assert_eq!(bench.provisioned(), Bytes(3 * GIB.0));
    }

    #[test]
    fn a_group_is_all_or_nothing() {
        let bench = Bench::new();
        bench.create("a", GIB);
        bench.create("b", GIB);
        bench.tmpfs("t", GIB);
        let before = bench.provisioned();
        let create =
            |members: &[SnapshotSpec], quiesce: &dyn Quiesce| bench.fake.create_group(&group_id("g"), "g", members, quiesce);
        let both = [member("g-a", "a"), member("g-b", "b")];
        assert!(create(&both, &Broken::Release).is_err());
        assert!(create(&[member("g-a", "a"), member("g-c", "c")], &Still::default()).is_err());
        assert!(create(&[member("g-a", "a"), member("g-t", "t")], &Still::default()).is_err());
        assert_eq!(bench.fake.list_snapshots(None, None, 9).expect("in memory"), []);
        assert_eq!(bench.provisioned(), before);
        bench.fake.create_snapshot(&member("g-b", "b"), &Still::default()).expect("fits");
        assert!(matches!(create(&both, &Still::default()), Err(Error::Conflict { .. })));
    }
}

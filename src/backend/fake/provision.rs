//! Volumes come, go and grow.

use std::sync::Arc;

use super::contents::Contents;
use super::store::StoredVolume;
use super::{Fake, FakeParameters, Medium, while_still};
use crate::backend::{CapacityAnswer, CapacityQuery, Expand, Provision, Quiesce, VolumeSpec};
use crate::os::step::step;
use crate::volume::{Bytes, ContentSource, Error, Outcome, Result, Volume, VolumeId};

impl Provision for Fake {
    fn find(&self, id: &VolumeId) -> Result<Option<Volume>> {
        Ok(self.store.lock().found(id))
    }

    fn create(&self, spec: &VolumeSpec, quiesce: &dyn Quiesce) -> Result<Volume> {
        if let Some(there) = self.find(&spec.id)? {
            return Ok(there);
        }
        let medium = FakeParameters::of_volume(&spec.parameters)?.medium;
        let reservation = self.store.reserve(spec.capacity)?;
        let contents = match &spec.source {
            None => None,
            Some(_) if medium == Medium::Filesystem => return Err(unsupported_copy(&spec.id)),
            Some(source) => self.copy_of(source, spec, quiesce)?,
        };
        step("record volume", &spec.id, || {
            reservation.commit(|state| {
                let volume = StoredVolume {
                    name: spec.name.as_str().into(),
                    capacity: spec.capacity,
                    source: spec.source.clone().map(Box::new),
                    parameters: state.intern(&spec.parameters),
                    medium,
                    tier: None,
                    connected: false,
                    contents,
                    attached: std::collections::BTreeMap::new(),
                };
                state.add_volume(spec.id.clone(), volume);
                Ok(())
            })
        })?;
        self.find(&spec.id)?.ok_or_else(|| Error::volume_not_found(&spec.id))
    }

    fn delete(&self, id: &VolumeId) -> Result<Outcome<()>> {
        if let Some(how) = self.connected_how(id)? {
            return Err(Error::InUse { object: format!("volume {id}"), by: format!("{how}; unpublish and unstage it first") });
        }
        let removed = step("delete volume", id, || self.store.lock().remove_volume(id))?;
        Ok(match removed {
            Some(_) => Outcome::Changed(()),
            None => Outcome::Unchanged(()),
        })
    }

    fn list(&self, after: Option<&VolumeId>, max: usize) -> Result<Vec<Volume>> {
        Ok(self.store.lock().volumes_after(after, max))
    }

    fn capacity(&self, query: &CapacityQuery) -> Result<CapacityAnswer> {
        let available = self.store.lock().available();
        let whole = Bytes(available.0 - available.0 % self.unit());
        let minimum = query.least.max(Bytes(self.unit())).round_up(self.unit());
        Ok(CapacityAnswer { available, maximum: whole, minimum })
    }
}

impl Expand for Fake {
    fn expand(&self, id: &VolumeId, capacity: Bytes) -> Result<Outcome<Bytes>> {
        let (now, medium, contents) = {
            let state = self.store.lock();
            let volume = state.volume(id)?;
            (volume.capacity, volume.medium, volume.contents.clone())
        };
        if capacity <= now {
            return Ok(Outcome::Unchanged(now));
        }
        if medium == Medium::Filesystem && self.connected_how(id)?.is_some() {
            let by = "its tmpfs takes its size when it is mounted; unpublish and unstage it first".to_owned();
            return Err(Error::InUse { object: format!("volume {id}"), by });
        }
        let reservation = self.store.reserve(Bytes(capacity.0 - now.0))?;
        step("expand volume", id, || {
            if let Some(contents) = &contents {
                contents.grow(capacity).map_err(Error::rolled_back)?;
            }
            reservation.commit(|state| state.set_capacity(id, capacity))
        })?;
        Ok(Outcome::Changed(capacity))
    }
}

impl Fake {
    /// A copy of what a new volume is to hold; `None` is all zeroes.
    fn copy_of(&self, source: &ContentSource, spec: &VolumeSpec, quiesce: &dyn Quiesce) -> Result<Option<Arc<Contents>>> {
        let copy = |contents: Option<Arc<Contents>>, size: Bytes| {
            if size > spec.capacity {
                let reason = format!("the source has {size}; the new volume must not be smaller");
                return Err(Error::OutOfRange { field: "capacity_range.required_bytes", reason });
            }
            duplicate(contents.as_deref(), spec.id.local(), spec.capacity)
        };
        match source {
            ContentSource::Snapshot(id) => {
                let (contents, size) = self.store.lock().snapshot(id).map(|stored| (stored.contents.clone(), stored.size))?;
                step("copy snapshot", id, || copy(contents, size))
            }
            ContentSource::Volume(id) => while_still(quiesce, std::slice::from_ref(id), || {
                let (contents, size) = self.copyable(id)?;
                step("copy volume", id, || copy(contents, size))
            }),
        }
    }

    /// What a volume holds now, and its size. Call it while the volume is frozen.
    ///
    /// # Errors
    /// `Unsupported` where the contents are not ours to read.
    pub(super) fn copyable(&self, id: &VolumeId) -> Result<(Option<Arc<Contents>>, Bytes)> {
        let state = self.store.lock();
        let volume = state.volume(id)?;
        match volume.medium {
            Medium::Block => Ok((volume.contents.clone(), volume.capacity)),
            Medium::Filesystem => Err(unsupported_copy(id)),
        }
    }

    /// How a volume is connected on this node, in words; `None` if it is not.
    fn connected_how(&self, id: &VolumeId) -> Result<Option<String>> {
        let (mounted, contents) = match self.store.lock().volume(id) {
            Ok(volume) => (volume.connected, volume.contents.clone()),
            Err(_) => return Ok(None),
        };
        let devices = contents.map_or_else(|| Ok(Vec::new()), |contents| contents.devices(id))?;
        Ok(match devices.first() {
            Some(device) => Some(format!("it is connected as {}", device.path.display())),
            None => mounted.then(|| "its tmpfs is connected".to_owned()),
        })
    }
}

/// A copy that failed leaves nothing: its memory goes with the last descriptor.
pub(super) fn duplicate(contents: Option<&Contents>, label: &str, size: Bytes) -> Result<Option<Arc<Contents>>> {
    contents.map(|contents| contents.duplicate(label, size).map(Arc::new).map_err(Error::rolled_back)).transpose()
}

fn unsupported_copy(id: &VolumeId) -> Error {
    Error::Unsupported {
        what: format!("a copy from or into volume {id}"),
        reason: "a volume with medium=filesystem holds data only while it is mounted; use medium=block".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::super::testing::{Bench, Broken, GIB, Still, id, raw, spec};
    use super::*;
    use crate::volume::SnapshotId;

    #[test]
    fn a_volume_is_found_as_it_was_made_and_deleted_once() {
        let bench = Bench::new();
        assert_eq!(bench.fake.find(&id("a")).expect("in memory"), None);
        let made = bench.create("a", GIB);
        assert_eq!((made.capacity, made.name.as_str(), made.topology.len()), (GIB, "a", 0));
        assert_eq!(*made.parameters, spec("a", GIB).parameters);
        assert_eq!(bench.fake.find(&id("a")).expect("in memory"), Some(made.clone()));
        assert_eq!(bench.create("a", GIB), made, "a repeat finds it");
        assert_eq!(bench.provisioned(), GIB);
        assert_eq!(bench.fake.delete(&id("a")).expect("not in use"), Outcome::Changed(()));
        assert_eq!(bench.fake.delete(&id("a")).expect("gone"), Outcome::Unchanged(()));
        assert_eq!(bench.provisioned(), Bytes(0));
    }

    #[test]
    fn volume_that_does_not_fit_is_refused_and_reserves_nothing() {
        let bench = Bench::with(|config| config.capacity = Bytes(3 * GIB.0));
        bench.create("a", Bytes(2 * GIB.0));
        assert!(matches!(bench.fake.create(&spec("b", Bytes(2 * GIB.0)), &Still::default()), Err(Error::NoCapacity { .. })));
        assert!(matches!(bench.fake.expand(&id("a"), Bytes(4 * GIB.0)), Err(Error::NoCapacity { .. })));
        assert_eq!(bench.provisioned(), Bytes(2 * GIB.0));
        let answer = bench.fake.capacity(&CapacityQuery { least: Bytes(1), ..CapacityQuery::default() }).expect("in memory");
        assert_eq!(answer, CapacityAnswer { available: GIB, maximum: GIB, minimum: Bytes::MIB });
        bench.create("b", GIB);
    }

    #[test]
    fn volumes_grow_and_never_shrink() {
        let bench = Bench::new();
        bench.create("a", GIB);
        let contents = bench.fake.contents_of(&id("a")).expect("a memfd");
        let twice = Bytes(2 * GIB.0);
        assert_eq!(bench.fake.expand(&id("a"), twice).expect("room"), Outcome::Changed(twice));
        assert_eq!(bench.fake.expand(&id("a"), GIB).expect("large enough"), Outcome::Unchanged(twice));
        assert_eq!(contents.file.metadata().expect("fstat").len(), twice.0);
        assert_eq!((bench.volume("a").capacity, bench.provisioned()), (twice, twice));
        assert!(matches!(bench.fake.expand(&id("b"), GIB), Err(Error::NotFound { .. })));
    }

    #[test]
    fn a_clone_holds_what_its_source_held_and_zeroes_behind() {
        let bench = Bench::new();
        bench.create("a", GIB);
        bench.write("a", 4096, b"old");
        let still = Still::default();
        let larger = VolumeSpec { source: Some(ContentSource::Volume(id("a"))), ..spec("b", Bytes(2 * GIB.0)) };
        let made = bench.fake.create(&larger, &still).expect("fits");
        assert_eq!(made.source, larger.source);
        assert_eq!(*still.held.lock().expect("not poisoned"), [vec![id("a")]]);
        bench.write("a", 4096, b"new");
        assert_eq!(bench.read("b", 4096, 3), b"old");
        assert_eq!(bench.read("b", 2 * GIB.0 - 3, 3), [0; 3]);
        bench.fake.delete(&id("a")).expect("not in use");
        assert_eq!(bench.read("b", 4096, 3), b"old", "it stands alone");
    }

    #[test]
    fn a_clone_that_cannot_be_made_promises_nothing() {
        let bench = Bench::new();
        bench.create("a", GIB);
        bench.write("a", 0, b"x");
        let from = |source| VolumeSpec { source: Some(source), ..spec("b", GIB) };
        let of_volume = |name| from(ContentSource::Volume(id(name)));
        let of_snapshot = from(ContentSource::Snapshot(SnapshotId::derive(bench.fake.store.name(), "none")));
        assert!(matches!(bench.fake.create(&of_volume("none"), &Still::default()), Err(Error::NotFound { .. })));
        assert!(matches!(bench.fake.create(&of_snapshot, &Still::default()), Err(Error::NotFound { .. })));
        assert!(bench.fake.create(&of_volume("a"), &Broken::Hold).is_err());
        assert!(bench.fake.create(&of_volume("a"), &Broken::Release).is_err());
        let smaller = VolumeSpec { capacity: Bytes::MIB, ..of_volume("a") };
        assert!(matches!(bench.fake.create(&smaller, &Still::default()), Err(Error::OutOfRange { .. })));
        assert_eq!(bench.fake.find(&id("b")).expect("in memory"), None);
        assert_eq!(bench.provisioned(), GIB);
    }

    #[test]
    fn a_tmpfs_is_never_copied_and_grows_only_unmounted() {
        let bench = Bench::new();
        let tmpfs = bench.tmpfs("a", GIB);
        assert_eq!(tmpfs.parameters["backend"]["medium"], "filesystem");
        let copy = VolumeSpec { source: Some(ContentSource::Volume(id("a"))), ..spec("b", GIB) };
        assert!(matches!(bench.fake.create(&copy, &Still::default()), Err(Error::Unsupported { .. })));
        bench.create("c", GIB);
        let into = VolumeSpec {
            source: Some(ContentSource::Volume(id("c"))),
            parameters: (*tmpfs.parameters).clone(),
            ..spec("b", GIB)
        };
        assert!(matches!(bench.fake.create(&into, &Still::default()), Err(Error::Unsupported { .. })));
        bench.connect("a").expect("a tmpfs needs nothing");
        assert!(matches!(bench.fake.expand(&id("a"), Bytes(2 * GIB.0)), Err(Error::InUse { .. })));
        assert!(matches!(bench.fake.delete(&id("a")), Err(Error::InUse { .. })));
        crate::backend::Connect::disconnect(bench.fake.as_ref(), &id("a"), None).expect("known");
        bench.fake.expand(&id("a"), Bytes(2 * GIB.0)).expect("not mounted");
        assert_eq!(bench.provisioned(), Bytes(3 * GIB.0));
    }

    #[test]
    fn parameters_are_typed_and_unknown_ones_refused() {
        let bench = Bench::new();
        let backend: &dyn crate::backend::Backend = &*bench.fake;
        let known = backend.parameters(&raw(&[("medium", "filesystem")])).expect("known");
        assert_eq!(known, serde_json::json!({ "medium": "filesystem" }));
        assert!(matches!(backend.parameters(&raw(&[("media", "block")])), Err(Error::Invalid { .. })));
        let garbled = VolumeSpec { parameters: serde_json::json!({ "backend": { "medium": 3 } }), ..spec("a", GIB) };
        assert!(matches!(bench.fake.create(&garbled, &Still::default()), Err(Error::Invalid { .. })));
        assert_eq!(bench.provisioned(), Bytes(0));
    }

    #[test]
    fn ten_thousand_volumes_are_made_and_listed_by_the_page_at_once() {
        let bench = Bench::with(|config| config.capacity = Bytes(1 << 50));
        let start = Instant::now();
        for number in 0..10_000 {
            bench.create(&format!("pvc-{number:05}"), GIB);
        }
        let mut seen = Vec::new();
        loop {
            let page = bench.fake.list(seen.last(), 1000).expect("in memory");
            if page.is_empty() {
                break;
            }
            seen.extend(page.into_iter().map(|volume| volume.id));
        }
        assert_eq!(seen.len(), 10_000);
        assert!(seen.is_sorted());
        // A tenth of a second on a quiet machine; a quadratic way would take minutes.
        assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
    }
}

//! Snapshots: images that share their blocks with the volume's where the file system can, else copies.

use std::fs::File;
use std::sync::Arc;

use crate::backend::{Quiesce, SnapshotSpec, Snapshots};
use crate::volume::{Bytes, Error, Outcome, RawParameters, Result, Snapshot, SnapshotId, VolumeId};

use super::draft::{self, Draft};
use super::files::{Access, Stamp};
use super::instant::Job;
use super::layout::Kind;
use super::ledger::{Entry, Reservation};
use super::meta::{FORMAT, Membership, SnapshotMeta, VolumeMeta, to_nanos};
use super::ready::Ready;
use super::{ImageBackend, Located, capacity, scan};

impl Snapshots for ImageBackend {
    fn check(&self, raw: &RawParameters) -> Result<()> {
        no_parameters(raw)
    }

    fn find_snapshot(&self, id: &SnapshotId) -> Result<Option<Snapshot>> {
        Ok(self.visible_snapshot(id)?.map(|(_, meta)| meta.into_snapshot(self.topology.clone())))
    }

    fn create_snapshot(&self, spec: &SnapshotSpec, quiesce: &dyn Quiesce) -> Result<Snapshot> {
        self.remove_passing(Kind::Snapshot, spec.id.local())?;
        self.remove_stray(&spec.id)?;
        let begun = self.begin(spec)?;
        let pool = Arc::clone(&begun.pool);
        let draft = Draft::begin(&pool, Kind::Snapshot, spec.id.local())?;
        let instant = self.copy_at_one_instant(quiesce, &[begun.job(spec, &draft)]);
        match instant.and_then(|instant| begun.complete(spec, None, to_nanos(instant), &draft)) {
            Ok(complete) => place(draft, &pool, complete).map(|meta| meta.into_snapshot(self.topology.clone())),
            Err(error) => Err(draft.discard(error)),
        }
    }

    fn delete_snapshot(&self, id: &SnapshotId) -> Result<Outcome<()>> {
        let local = id.local();
        let Some(Located { pool, seen, .. }) = self.locate_to_delete::<SnapshotMeta>(local)? else {
            return self.finish_deletion(Kind::Snapshot, local);
        };
        let ready = pool.writable()?;
        let (meta, _) = seen.whole()?;
        if let Some(member) = meta.group
            && self.group_exists(&member)?
        {
            let by = format!("it is a member of group snapshot {}; delete that one", member.id);
            return Err(Error::InUse { object: format!("snapshot {id}"), by });
        }
        draft::throw_away(&ready, Kind::Snapshot, local)?;
        Ok(Outcome::Changed(()))
    }

    fn list_snapshots(&self, source: Option<&VolumeId>, after: Option<&SnapshotId>, max: usize) -> Result<Vec<Snapshot>> {
        let source = source.map(VolumeId::local);
        let ids = |ready: &Ready, after: Option<&str>, max| Ok(ready.ledger.snapshots(source, after, max));
        self.page(after.map(SnapshotId::local), max, ids, |ready, local| {
            // A damaged one is left out: of which volume it is, which a list must tell, is not known. Its health is logged.
            let Some(meta) = scan::snapshot_row(ready, local) else { return ready.has(Kind::Snapshot, local).map(|_| None) };
            // Where the group's record can't be looked for, its members most likely exist.
            let visible = self.is_visible(&meta).unwrap_or_else(|error| {
                tracing::warn!(snapshot = %meta.id, %error, "listed, though its group cannot be seen");
                true
            });
            Ok(visible.then(|| (*meta).clone().into_snapshot(self.topology.clone())))
        })
    }
}

/// Snapshot classes have no parameters here.
pub(super) fn no_parameters(raw: &RawParameters) -> Result<()> {
    #[derive(serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct None {}
    raw.parse::<None>().map(|_| ())
}

/// A snapshot that was begun: its source is open, its room is reserved.
pub(super) struct Begun {
    pub pool: Arc<Ready>,
    source: File,
    reservation: Reservation,
}

impl Begun {
    /// The copy to make.
    pub fn job<'a>(&'a self, spec: &'a SnapshotSpec, draft: &'a Draft<'a>) -> Job<'a> {
        Job { source: &spec.source, pool: &self.pool, image: &self.source, into: draft }
    }

    /// Writes the metadata of what was copied.
    pub fn complete(
        mut self,
        spec: &SnapshotSpec,
        group: Option<&Membership>,
        created: u64,
        draft: &Draft<'_>,
    ) -> Result<Complete> {
        // The volume may have taken more blocks since they were counted.
        let provisioned = Bytes(draft.allocated()?);
        capacity::grow(&self.pool, &mut self.reservation, provisioned)?;
        let meta = SnapshotMeta {
            format: FORMAT,
            id: spec.id.clone(),
            name: spec.name.clone(),
            source: spec.source.clone(),
            size: draft.length()?,
            provisioned,
            created,
            group: group.cloned(),
        };
        let stamp = draft.finish(&meta)?;
        Ok(Complete { meta, stamp, reservation: self.reservation })
    }
}

/// A snapshot of which all is written.
pub(super) struct Complete {
    meta: SnapshotMeta,
    stamp: Stamp,
    reservation: Reservation,
}

/// Renames a complete snapshot into place, and enters it into the ledger.
pub(super) fn place(draft: Draft<'_>, pool: &Ready, complete: Complete) -> Result<SnapshotMeta> {
    let Complete { meta, stamp, reservation } = complete;
    let placed = draft.place();
    if placed.is_ok() || pool.has(Kind::Snapshot, meta.id.local()).unwrap_or(true) {
        reservation.keep_snapshot(Entry::of(&meta));
        scan::remember_new_snapshot(pool, stamp, meta.clone());
    }
    placed.map(|()| meta)
}

impl ImageBackend {
    /// Opens the source and reserves what its snapshot may come to hold on its own.
    pub(super) fn begin(&self, spec: &SnapshotSpec) -> Result<Begun> {
        let found = self.locate::<VolumeMeta>(spec.source.local())?.ok_or_else(|| Error::volume_not_found(&spec.source))?;
        let pool = found.pool.writable()?;
        let (meta, image) = found.seen.whole()?;
        let source = pool.open_image(Kind::Volume, meta.id.local(), Access::Read)?;
        let reservation = capacity::reserve(&pool, Bytes(image.allocated))?;
        Ok(Begun { pool, source, reservation })
    }

    /// A snapshot that exists for the CO, and where.
    ///
    /// # Errors
    /// `Unverified` for a damaged one.
    pub(super) fn visible_snapshot(&self, id: &SnapshotId) -> Result<Option<(Arc<Ready>, SnapshotMeta)>> {
        let Some(found) = self.locate::<SnapshotMeta>(id.local())? else { return Ok(None) };
        let (meta, _) = found.seen.whole()?;
        Ok(self.is_visible(&meta)?.then_some((found.ready, meta)))
    }

    /// A member of a group exists while the group's record does.
    pub(super) fn is_visible(&self, meta: &SnapshotMeta) -> Result<bool> {
        meta.group.as_ref().map_or(Ok(true), |member| self.group_exists(member))
    }

    /// Removes a member whose group was never completed, or half deleted, so that its place is free.
    ///
    /// # Errors
    /// `Conflict` where a snapshot that counts is there.
    pub(super) fn remove_stray(&self, id: &SnapshotId) -> Result<()> {
        let Some(Located { pool, seen, .. }) = self.locate::<SnapshotMeta>(id.local())? else { return Ok(()) };
        let (meta, _) = seen.whole()?;
        if self.is_visible(&meta)? {
            let existing = format!("the source {}", meta.source);
            return Err(Error::Conflict { object: format!("snapshot {id}"), existing, wanted: "a new one".to_owned() });
        }
        let ready = pool.writable()?;
        draft::throw_away(&ready, Kind::Snapshot, id.local())
    }
}

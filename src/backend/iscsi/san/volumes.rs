//! Volumes, snapshots and groups are the image backend's; here is what it means for them that a node writes to the image meanwhile.
//!
//! A snapshot by shared blocks is one instant, and holds all that was acknowledged: the target writes through to the file. A copy
//! that takes its time is refused while some node may write.

use std::collections::BTreeMap;

use crate::backend::{
    CapacityAnswer, CapacityQuery, Expand, FreezeGuard, Groups, Provision, Quiesce, SnapshotSpec, Snapshots, VolumeSpec, Writers,
};
use crate::os::lio::Lio;
use crate::os::step::step;
use crate::volume::{
    Bytes, Error, Group, GroupId, NodeId, Outcome, RawParameters, Result, Snapshot, SnapshotId, Volume, VolumeId,
};

use super::TargetServer;
use super::names::Names;

impl Provision for TargetServer {
    fn unit(&self) -> u64 {
        self.images.unit()
    }

    fn find(&self, id: &VolumeId) -> Result<Option<Volume>> {
        self.images.find(id)
    }

    fn find_for_create(&self, id: &VolumeId, parameters: &serde_json::Value) -> Result<Option<Volume>> {
        self.images.find_for_create(id, parameters)
    }

    fn create(&self, spec: &VolumeSpec, quiesce: &dyn Quiesce) -> Result<Volume> {
        self.images.create(spec, &Pausing { san: self, inner: quiesce })
    }

    fn delete(&self, id: &VolumeId) -> Result<Outcome<()>> {
        let _lock = self.begin(id, "delete")?;
        let in_use = |by: String| Error::InUse { object: format!("volume {id}"), by };
        if let Some((_, record)) = self.record(id)?
            && let Some(node) = record.nodes.keys().next()
        {
            return Err(in_use(format!("it is attached to node {node}; detach it first")));
        }
        if let Some(lio) = Lio::open()? {
            let names = Names::of(id);
            if let Some(initiator) = lio.initiators(&names.target)?.first() {
                return Err(in_use(format!("target {} lets {initiator} in, which we did not; remove it by hand", names.target)));
            }
            self.take_down(&lio, &names)?;
        }
        self.images.delete(id)
    }

    fn list(&self, after: Option<&VolumeId>, max: usize) -> Result<Vec<Volume>> {
        self.images.list(after, max)
    }

    fn capacity(&self, query: &CapacityQuery) -> Result<CapacityAnswer> {
        self.images.capacity(query)
    }
}

impl Expand for TargetServer {
    /// The image first, then the disk that shows it: a repeated call finds an image that has grown already, and the disk not.
    fn expand(&self, id: &VolumeId, capacity: Bytes) -> Result<Outcome<Bytes>> {
        let _lock = self.begin(id, "expand")?;
        let grown = self.images.expand(id, capacity)?;
        let (Outcome::Changed(now) | Outcome::Unchanged(now)) = grown;
        let shown = match Lio::open()? {
            Some(lio) => self.resize(&lio, &Names::of(id), now.0)?,
            None => false,
        };
        Ok(if shown { Outcome::Changed(now) } else { grown })
    }
}

impl Snapshots for TargetServer {
    fn check(&self, raw: &RawParameters) -> Result<()> {
        Snapshots::check(&self.images, raw)
    }

    fn find_snapshot(&self, id: &SnapshotId) -> Result<Option<Snapshot>> {
        self.images.find_snapshot(id)
    }

    fn create_snapshot(&self, spec: &SnapshotSpec, quiesce: &dyn Quiesce) -> Result<Snapshot> {
        self.images.create_snapshot(spec, &Pausing { san: self, inner: quiesce })
    }

    fn delete_snapshot(&self, id: &SnapshotId) -> Result<Outcome<()>> {
        self.images.delete_snapshot(id)
    }

    fn list_snapshots(&self, source: Option<&VolumeId>, after: Option<&SnapshotId>, max: usize) -> Result<Vec<Snapshot>> {
        self.images.list_snapshots(source, after, max)
    }
}

impl Groups for TargetServer {
    fn check_group(&self, raw: &RawParameters) -> Result<()> {
        self.images.check_group(raw)
    }

    fn find_group(&self, id: &GroupId) -> Result<Option<Group>> {
        self.images.find_group(id)
    }

    fn group_members(&self, id: &GroupId) -> Result<Option<Vec<SnapshotId>>> {
        self.images.group_members(id)
    }

    fn create_group(&self, id: &GroupId, name: &str, members: &[SnapshotSpec], quiesce: &dyn Quiesce) -> Result<Group> {
        self.images.create_group(id, name, members, &Pausing { san: self, inner: quiesce })
    }

    fn delete_group(&self, id: &GroupId) -> Result<Outcome<()>> {
        self.images.delete_group(id)
    }
}

/// Pauses what nodes elsewhere write to several volumes: what one got an acknowledgement for may be the reason for what it writes to
/// another. One volume alone is not paused, and reported as written while a node has it.
struct Pausing<'a> {
    san: &'a TargetServer,
    inner: &'a dyn Quiesce,
}

/// Volumes that are paused, each until it is resumed.
struct Paused {
    lio: Option<Lio>,
    disks: Vec<Names>,
    /// The volumes that some node has, and which; paused or not.
    attached: BTreeMap<VolumeId, NodeId>,
    paused: bool,
    /// What is mounted on this machine thaws after that.
    inner: Option<Box<dyn FreezeGuard>>,
}

impl TargetServer {
    /// One of the nodes that a volume is attached to.
    fn user(&self, id: &VolumeId) -> Option<NodeId> {
        self.known().by_volume.get(id)?.first().cloned()
    }
}

impl Quiesce for Pausing<'_> {
    fn freeze(&self, volumes: &[VolumeId]) -> Result<Box<dyn FreezeGuard>> {
        // First: what a freeze writes must still reach the disk.
        let inner = Some(self.inner.freeze(volumes)?);
        let attached: BTreeMap<VolumeId, NodeId> =
            volumes.iter().filter_map(|id| Some((id.clone(), self.san.user(id)?))).collect();
        let mut paused = Paused { lio: None, disks: Vec::new(), attached, paused: false, inner };
        if paused.attached.is_empty() || volumes.len() == 1 {
            return Ok(Box::new(paused));
        }
        // A copy that takes time would stop the nodes for as long: such a group is refused.
        for id in paused.attached.keys() {
            if !self.san.images.shares(id)? {
                return Ok(Box::new(paused));
            }
        }
        let lio = paused.lio.insert(Lio::loaded()?);
        for id in paused.attached.keys() {
            let names = Names::of(id);
            paused.disks.push(names.clone());
            step("pause disk", &names.target, || lio.pause(names.hba, &names.disk))?;
        }
        paused.paused = true;
        Ok(Box::new(paused))
    }
}

impl Paused {
    /// Resumes all of them; whether all were paused until now.
    fn resume(&mut self) -> Result<bool> {
        let mut all = true;
        let mut failed = None;
        for names in self.disks.drain(..) {
            let Some(lio) = &self.lio else { continue };
            match step("resume disk", &names.target, || lio.resume(names.hba, &names.disk)) {
                Ok(paused) => all &= paused,
                Err(error) => failed = Some(error),
            }
        }
        failed.map_or(Ok(all), |error| Err(error.into()))
    }
}

impl FreezeGuard for Paused {
    fn writers(&self, volume: &VolumeId) -> Writers {
        match self.attached.get(volume) {
            Some(_) if self.paused => Writers::Frozen,
            Some(node) => Writers::Possible(format!("it is attached to node {node}")),
            // What some process of this machine does with the image.
            None => self.inner.as_ref().map_or(Writers::Unknown, |inner| inner.writers(volume)),
        }
    }

    fn release(mut self: Box<Self>) -> Result<()> {
        let resumed = self.resume();
        if let Some(inner) = self.inner.take() {
            inner.release()?;
        }
        if resumed? {
            return Ok(());
        }
        Err(Error::failed("freeze", "the volumes", "one of them was resumed by someone else meanwhile"))
    }
}

impl Drop for Paused {
    fn drop(&mut self) {
        if let Err(error) = self.resume() {
            tracing::error!(%error, "a volume stays paused: its nodes wait for it; start this driver again");
        }
    }
}

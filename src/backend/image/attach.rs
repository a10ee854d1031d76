//! To which nodes the controller has attached a volume of a shared pool: a record beside the image, which the nodes obey.
//!
//! The controller alone writes `volumes/<id>/attached.json`. Once a volume was attached, the record stays, be it without any node:
//! a node that was detached finds there that it must not connect the volume any more. Where no controller attaches
//! (`attachRequired: false`), there is no record, and the nodes' leases ([`super::lease`]) protect the volume by themselves.
//!
//! To detach is the CO's word that the node no longer uses the volume: its lease is released, too. The node first takes its lease
//! and then reads the record; the controller first writes the record and then releases leases: so that a node which connects
//! at the same time either sees the record or loses its lease before anyone else can have one.

use std::collections::{BTreeMap, BTreeSet};

use crate::backend::{Attach, Holding, check_same_attachment};
use crate::volume::{AccessMode, Error, NodeId, Outcome, Result, VolumeId};

use super::attachment::{ATTACHED_TO, AttachmentRecord, Grant};
use super::expand::sync_directory;
use super::layout::Kind;
use super::lease::{self, Access, VolumeDirectory};
use super::meta::{FORMAT, VolumeMeta};
use super::ready::Ready;
use super::{ImageBackend, Located};

impl Attach for ImageBackend {
    fn attach(
        &self,
        id: &VolumeId,
        node: &NodeId,
        mode: AccessMode,
        read_only: bool,
    ) -> Result<Outcome<BTreeMap<String, String>>> {
        let Located { pool, seen, .. } = self.locate::<VolumeMeta>(id.local())?.ok_or_else(|| Error::volume_not_found(id))?;
        let ready = pool.writable()?;
        seen.whole()?;
        let wanted = Grant { mode, read_only };
        let context = BTreeMap::from([(ATTACHED_TO.to_owned(), node.to_string())]);
        let mut record = AttachmentRecord::read(&ready, id)?.unwrap_or_else(|| AttachmentRecord {
            format: FORMAT,
            volume: id.clone(),
            nodes: BTreeMap::new(),
        });
        if let Some(grant) = record.nodes.get(node) {
            check_same_attachment(id, node, (grant.mode, grant.read_only), (mode, read_only))?;
            // Another call may have been killed before the record was durable.
            sync_directory(&ready, id.local())?;
            return Ok(Outcome::Unchanged(context));
        }
        let alone = |(_, grant): &(&NodeId, &Grant)| mode.is_single_node() || grant.mode.is_single_node();
        if let Some((other, _)) = record.nodes.iter().find(alone) {
            let by = format!("it is attached to node {other}; detach it there first");
            return Err(Error::InUse { object: format!("volume {id}"), by });
        }
        let access = if wanted.writes() { Access::Write } else { Access::Read };
        VolumeDirectory::open(&ready, id)?.ok_or_else(|| Error::volume_not_found(id))?.check_others(node, access)?;
        record.nodes.insert(node.clone(), wanted);
        record.write(&ready)?;
        Ok(Outcome::Changed(context))
    }

    /// The record first: from then on the node takes no lease.
    fn detach(&self, id: &VolumeId, node: Option<&NodeId>) -> Result<Outcome<()>> {
        let Some(Located { pool, .. }) = self.locate::<VolumeMeta>(id.local())? else { return Ok(Outcome::Unchanged(())) };
        let ready = pool.writable()?;
        let concerned = |other: &NodeId| node.is_none_or(|node| node == other);
        let mut changed = false;
        if let Some(mut record) = AttachmentRecord::read(&ready, id)? {
            let before = record.nodes.len();
            record.nodes.retain(|other, _| !concerned(other));
            if record.nodes.len() < before {
                record.write(&ready)?;
                changed = true;
            } else {
                sync_directory(&ready, id.local())?;
            }
        }
        let Some(directory) = VolumeDirectory::open(&ready, id)? else { return Ok(Outcome::Unchanged(())) };
        changed |= directory.release(|lease| {
            let released = lease.access != Access::Delete && concerned(&lease.holder.node);
            if released {
                tracing::warn!(
                    volume = %id, node = %lease.holder.node,
                    "detached, though the node has not said that it disconnected the volume: if it still runs, it must not write any more"
                );
            }
            released
        })?;
        Ok(if changed { Outcome::Changed(()) } else { Outcome::Unchanged(()) })
    }

    fn attachments(&self, ids: &[VolumeId]) -> Result<BTreeMap<VolumeId, BTreeSet<NodeId>>> {
        let mut all = BTreeMap::new();
        for id in ids {
            let nodes: BTreeSet<NodeId> = match self.search(Kind::Volume, id.local(), |ready| using(ready, id)) {
                Ok(found) => found.map(|(_, _, nodes)| nodes).unwrap_or_default(),
                // What cannot be read keeps the volume from being deleted and attached, but not the others from being listed.
                Err(error @ Error::Unverified { .. }) => {
                    tracing::error!(volume = %id, %error, "it is not known where it is attached");
                    BTreeSet::new()
                }
                Err(error) => return Err(error),
            };
            if !nodes.is_empty() {
                all.insert(id.clone(), nodes);
            }
        }
        Ok(all)
    }

    fn limit(&self, _node: &NodeId) -> Result<Option<u64>> {
        Ok(None)
    }
}

impl ImageBackend {
    /// See [`crate::backend::Provision::holders`].
    pub(super) fn held(&self, id: &VolumeId) -> Result<Option<Vec<Holding>>> {
        if !self.shared {
            return Ok(None);
        }
        let found = self.search(Kind::Volume, id.local(), |ready| {
            VolumeDirectory::open(ready, id)?.map(|directory| directory.leases()).transpose()
        })?;
        let (_, _, leases) = found.ok_or_else(|| Error::volume_not_found(id))?;
        let nodes = leases.into_iter().filter(|lease| lease.access != Access::Delete);
        Ok(Some(nodes.map(|lease| Holding { writes: lease.access == Access::Write, node: lease.holder.node }).collect()))
    }
}

/// The nodes that a volume is attached to, or that have it connected.
pub(super) fn using(ready: &Ready, id: &VolumeId) -> Result<Option<BTreeSet<NodeId>>> {
    let Some(directory) = VolumeDirectory::open(ready, id)? else { return Ok(None) };
    let leases: Vec<lease::Lease> = directory.leases()?;
    let connected = leases.into_iter().filter(|lease| lease.access != Access::Delete).map(|lease| lease.holder.node);
    let attached = AttachmentRecord::read(ready, id)?.map(|record| record.nodes).unwrap_or_default();
    Ok(Some(connected.chain(attached.into_keys()).collect()))
}

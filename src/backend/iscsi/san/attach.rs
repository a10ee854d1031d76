//! Nodes are let in and shut out.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use crate::backend::image::Image;
use crate::backend::{Attach, check_same_attachment};
use crate::os::copy::data_extents;
use crate::os::lio::Lio;
use crate::os::loopdev;
use crate::os::step::step;
use crate::volume::{AccessMode, Error, NodeId, Outcome, Result, VolumeId};

use super::super::{Attachment, initiator_name};
use super::names::Names;
use super::record::{Grant, Keys, Record};
use super::{TargetServer, is_ours, wwid};

impl Attach for TargetServer {
    fn attach(
        &self,
        id: &VolumeId,
        node: &NodeId,
        mode: AccessMode,
        read_only: bool,
    ) -> Result<Outcome<BTreeMap<String, String>>> {
        let _lock = self.begin(id, "attach")?;
        self.limit(node)?;
        let image = self.images.image(id)?.ok_or_else(|| Error::volume_not_found(id))?;
        let lio = Lio::loaded()?;
        let mut record = Record::read(id, &image.pool)?.unwrap_or_else(|| Record::new(id, self.config.chap));
        if let Some(grant) = record.nodes.get(node) {
            check_same_attachment(id, node, (grant.mode, grant.read_only), (mode, read_only))?;
            // It may have been interrupted before it was exported.
            self.export(&lio, &image, &record)?;
            return Ok(Outcome::Unchanged(self.context(&image, &record, node)?));
        }
        may_join(id, &record, mode)?;
        check_unused(id, &image, &lio, record.nodes.is_empty())?;
        record.grant(node, mode, read_only)?;
        let context = self.context(&image, &record, node)?;
        self.reserve(id, node)?;
        let admitted = record.write(&image.pool).and_then(|()| self.export(&lio, &image, &record));
        match admitted {
            Ok(()) => Ok(Outcome::Changed(context)),
            Err(failure) => {
                let undone =
                    expel(&lio, id, &initiator_name(node)).and_then(|_| self.forget(Some(&lio), &image.pool, &mut record, node));
                Err(match undone {
                    Ok(()) => failure.rolled_back(),
                    Err(undo) => failure.leaving(undo.to_string()),
                })
            }
        }
    }

    /// The kernel shuts the node out before anything else is asked: a pool that is away, or a record that cannot be read, does not
    /// keep it in.
    fn detach(&self, id: &VolumeId, node: Option<&NodeId>) -> Result<Outcome<()>> {
        let _lock = self.begin(id, "detach")?;
        let lio = Lio::open()?;
        let mut changed = false;
        if let Some(lio) = &lio {
            let initiators = match node {
                Some(node) => vec![initiator_name(node)],
                None => lio.initiators(&Names::of(id).target)?,
            };
            for initiator in &initiators {
                changed |= expel(lio, id, initiator)?;
            }
        }
        let Some((pool, mut record)) = self.record(id)? else {
            return Ok(outcome(self.forget_unrecorded(lio.as_ref(), id, node)? || changed));
        };
        let nodes: Vec<NodeId> = match node {
            Some(node) => record.nodes.contains_key(node).then(|| node.clone()).into_iter().collect(),
            None => record.nodes.keys().cloned().collect(),
        };
        for node in &nodes {
            self.forget(lio.as_ref(), &pool, &mut record, node)?;
        }
        Ok(outcome(changed || !nodes.is_empty()))
    }

    fn attachments(&self, ids: &[VolumeId]) -> Result<BTreeMap<VolumeId, BTreeSet<NodeId>>> {
        self.restore_exports();
        let known = self.known();
        Ok(ids.iter().filter_map(|id| Some((id.clone(), known.by_volume.get(id)?.clone()))).collect())
    }

    fn limit(&self, node: &NodeId) -> Result<Option<u64>> {
        if !self.config.nodes.is_empty() && !self.config.nodes.contains(node) {
            return Err(Error::NotFound { kind: "node", id: node.to_string() });
        }
        Ok(self.config.volumes_per_node)
    }
}

impl TargetServer {
    /// Counts an attachment before it is made: two calls about two volumes must not both take the last place on a node.
    fn reserve(&self, id: &VolumeId, node: &NodeId) -> Result<()> {
        let mut known = self.known();
        let attached = known.by_node.get(node).map_or(0, |volumes| volumes.len() as u64);
        if let Some(limit) = self.config.volumes_per_node.filter(|limit| attached >= *limit) {
            let reason = format!("{attached} volumes are attached to it, and volumesPerNode is {limit}; detach one first");
            return Err(Error::NodeFull { node: node.to_string(), reason });
        }
        known.insert(id, node);
        Ok(())
    }

    /// Forgets that a node, shut out already, had the volume; the last takes the target with it.
    fn forget(&self, lio: Option<&Lio>, pool: &Path, record: &mut Record, node: &NodeId) -> Result<()> {
        let last = record.nodes.keys().all(|other| other == node);
        if last {
            lio.map_or(Ok(()), |lio| self.take_down(lio, &Names::of(&record.id)))?;
            Record::remove(&record.id, pool)?;
            record.nodes.remove(node);
        } else {
            let grant = record.nodes.remove(node);
            if let Err(error) = record.write(pool) {
                record.nodes.extend(grant.map(|grant| (node.clone(), grant)));
                return Err(error);
            }
        }
        let mut known = self.known();
        known.remove(&record.id, node);
        if last {
            known.failed.remove(&record.id);
        }
        Ok(())
    }

    /// As `forget`, of a volume whose record is not there: an administrator removed a damaged one.
    fn forget_unrecorded(&self, lio: Option<&Lio>, id: &VolumeId, node: Option<&NodeId>) -> Result<bool> {
        let names = Names::of(id);
        let mut changed = false;
        if let Some(lio) = lio
            && let Some(seen) = lio.disk(names.hba, &names.disk)?
            && lio.initiators(&names.target)?.is_empty()
            && is_ours(&seen, &self.images.homes().filter_map(|(_, home)| home.ok()).collect::<Vec<PathBuf>>())
        {
            self.take_down(lio, &names)?;
            changed = true;
        }
        let mut known = self.known();
        let attached = known.by_volume.get(id).cloned().unwrap_or_default();
        for attached in attached.iter().filter(|attached| node.is_none_or(|node| node == *attached)) {
            known.remove(id, attached);
            changed = true;
        }
        known.failed.remove(id);
        Ok(changed)
    }

    /// What the node gets.
    fn context(&self, image: &Image, record: &Record, node: &NodeId) -> Result<BTreeMap<String, String>> {
        let mut blank = true;
        data_extents(&image.file, 0, &mut |_, _| {
            blank = false;
            ControlFlow::Break(())
        })?;
        let attachment = Attachment {
            portals: self.portals.iter().map(ToString::to_string).collect(),
            target: Names::of(&record.id).target,
            lun: 0,
            wwid: wwid(image),
            initiator: initiator_name(node),
            chap: record.nodes.get(node).and_then(|grant| grant.keys.as_ref()).map(Keys::chap),
            attachment: record.nodes.get(node).and_then(|grant| grant.attachment.clone()),
            blank,
        };
        Ok(attachment.to_context())
    }
}

fn expel(lio: &Lio, id: &VolumeId, initiator: &str) -> Result<bool> {
    Ok(step("expel node", &initiator, || lio.expel(&Names::of(id).target, initiator))?)
}

impl Grant {
    /// Whether the node may not write.
    pub fn is_read_only(&self) -> bool {
        self.read_only || self.mode.is_read_only()
    }
}

/// Whether a further node may have it: only where all have it in a mode for several.
fn may_join(id: &VolumeId, record: &Record, mode: AccessMode) -> Result<()> {
    let alone = |(_, grant): &(&NodeId, &Grant)| mode.is_single_node() || grant.mode.is_single_node();
    match record.nodes.iter().find(alone) {
        None => Ok(()),
        Some((other, _)) => Err(Error::InUse {
            object: format!("volume {id}"),
            by: format!("it is attached to node {other}; detach it there first"),
        }),
    }
}

/// Whether nobody else shows the image: two caches of one file lose data.
fn check_unused(id: &VolumeId, image: &Image, lio: &Lio, first: bool) -> Result<()> {
    let in_use = |by: String| Err(Error::InUse { object: format!("volume {id}"), by });
    let name = image.path.strip_prefix(&image.pool).unwrap_or(&image.path);
    if let Some(device) = loopdev::paths_of(image.inode, name)?.first() {
        return in_use(format!("{0} shows its image on this machine; see with `losetup {0}` who uses it", device.display()));
    }
    match lio.shows(image.inode)?.filter(|_| first) {
        Some(disk) if !disk.ends_with(&format!("/{}", Names::of(id).disk)) => {
            in_use(format!("{disk} shows its image; take it down by hand"))
        }
        _ => Ok(()),
    }
}

fn outcome(changed: bool) -> Outcome<()> {
    if changed { Outcome::Changed(()) } else { Outcome::Unchanged(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn detached_volume_whose_record_was_removed_by_hand_is_not_known_as_attached() {
        let directory = tempfile::tempdir().expect("a directory");
        let pool = directory.path().join("pool");
        let text = format!("{{name: san, portals: ['127.0.0.1:3260'], pools: [{{name: default, path: {}}}]}}", pool.display());
        let config = serde_yaml_ng::from_str(&text).expect("fields");
        let san = TargetServer::open(config, directory.path()).expect("opened");
        let (id, node, other): (VolumeId, NodeId, NodeId) =
            ("san:a".parse().expect("an id"), "one".parse().expect("a node"), "other".parse().expect("a node"));
        san.known().insert(&id, &node);
        san.known().insert(&id, &other);
        assert!(san.forget_unrecorded(None, &id, Some(&node)).expect("forgotten"));
        assert_eq!(san.known().by_volume.get(&id), Some(&BTreeSet::from([other])));
        assert!(san.forget_unrecorded(None, &id, None).expect("forgotten"));
        assert!(san.known().by_volume.is_empty() && san.known().by_node.is_empty());
        assert!(!san.forget_unrecorded(None, &id, None).expect("again"), "nothing changes");
    }
}

//! The node's side: a disk is attached by the cloud in a slot (LUN), and found here by that.
//!
//! Azure shows a machine nothing of a disk by which it could be recognised, and each machine has the same slots (azuredisk-csi-driver issues
//! 2034 and 3457: another volume was in the slot, and was formatted). So the controller's word is not enough: the metadata service of this
//! machine, which its own host answers, must say that the slot has this disk. From then on the kernel's count of disks tells a later disk in
//! that slot from this one.

use std::time::Duration;

use crate::backend::cloud::node::{AttachedDisks, Look, PATIENCE};
use crate::backend::cloud::{CONTEXT_DEVICE as DEVICE, CONTEXT_DISK as VOLUME};
use crate::backend::{BlockDevice, ConnectRequest, Source};
use crate::os;
use crate::os::block::Device;
use crate::os::step::step;
use crate::volume::{Error, NodeId, Result};

use super::disks::Disks;
use super::limits;
use super::metadata::{Metadata, Site};
use super::names::{disk_in, is_disk};

/// How the identity begins of what was connected: `azure-longshore-0123:5@17` is a disk, its slot, and the count.
const IDENTITY: &str = "azure-";

/// This machine, as far as managed disks go.
#[derive(Debug)]
pub struct Node {
    disks: Disks,
    site: Option<Site>,
    volume_attach_limit: Option<u64>,
    host: Host,
    patience: Duration,
}

/// Who says which disk a slot has.
#[derive(Debug)]
pub struct Host {
    pub metadata: Metadata,
    /// The resource group of the disks.
    pub group: String,
}

/// Which disk is looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    disk: String,
    lun: u32,
    /// Where it is known from before: what is in the slot with another count is another disk.
    known: Option<Option<u64>>,
}

impl Wanted {
    fn identity(&self, sequence: Option<u64>) -> String {
        let count = sequence.map(|sequence| format!("@{sequence}")).unwrap_or_default();
        format!("{IDENTITY}{}:{}{count}", self.disk, self.lun)
    }

    fn parse(identity: &str) -> Option<Wanted> {
        let rest = identity.strip_prefix(IDENTITY)?;
        let (lasting, sequence) = match rest.split_once('@') {
            Some((lasting, sequence)) => (lasting, Some(sequence.parse().ok()?)),
            None => (rest, None),
        };
        let (disk, lun) = lasting.rsplit_once(':')?;
        Some(Wanted { disk: Some(disk).filter(|disk| is_disk(disk))?.to_owned(), lun: lun.parse().ok()?, known: Some(sequence) })
    }
}

impl Node {
    /// `site` is `None` where no volume will be connected: in a process that only controls.
    pub fn new(site: Option<Site>, volume_attach_limit: Option<u64>, host: Host, disks: Disks) -> Node {
        Node { disks, site, volume_attach_limit, host, patience: PATIENCE }
    }

    /// Which disk its host says that a slot has, and of what size.
    fn in_slot(&self, lun: u32) -> Result<Option<(String, Option<u64>)>, String> {
        let all = self.host.metadata.data_disks()?;
        let found = all.into_iter().find(|found| found.lun == lun);
        Ok(found.and_then(|found| Some((disk_in(&found.id, &self.host.group)?.0, found.size))))
    }
}

impl AttachedDisks for Node {
    type Wanted = Wanted;
    const WHAT: &'static str = "disks";

    fn patience(&self) -> Duration {
        self.patience
    }

    fn wanted(&self, request: &ConnectRequest<'_>, disk: &str) -> Result<Wanted> {
        if !is_disk(disk) {
            return Err(Error::invalid(
                "publish_context",
                format!("{VOLUME}: {disk} is no disk of this backend's resource group"),
            ));
        }
        let lun = request.publish_context.get(DEVICE).and_then(|lun| lun.parse().ok());
        let lun =
            lun.ok_or_else(|| Error::invalid("publish_context", format!("{DEVICE}: the slot (LUN) of disk {disk} is missing")))?;
        Ok(Wanted { disk: disk.to_owned(), lun, known: None })
    }

    fn known<'a>(&self, source: &'a Source) -> Option<(&'a BlockDevice, Wanted)> {
        let Source::Device(device) = source else { return None };
        Some((device, Wanted::parse(&device.identity)?))
    }

    fn words(&self, wanted: &Wanted) -> (String, String, String) {
        let Wanted { disk, lun, .. } = wanted;
        (disk.clone(), format!("disk {disk} was attached on LUN {lun}"), format!("LUN {lun}"))
    }

    /// What has been in the slot since it was proven to be the disk needs no further proof.
    fn look(&self, wanted: &Wanted) -> os::Result<Look> {
        let mut look = Look::default();
        for found in self.disks.shown()? {
            let (name, number) = (&found.disk.name, found.disk.number);
            if found.lun != wanted.lun {
                look.seen.push(format!("{name} (LUN {})", found.lun));
                continue;
            }
            if wanted.known.is_some_and(|known| known != found.sequence) {
                look.seen.push(format!("{name} (another disk than before on LUN {})", found.lun));
                continue;
            }
            let path = found.disk.path();
            if Device::open_if_there(&path, number)?.is_none() {
                look.seen.push(format!("{name} (not in /dev)"));
                continue;
            }
            if wanted.known.is_none() {
                match self.in_slot(wanted.lun) {
                    Ok(Some((disk, _))) if disk == wanted.disk => {}
                    Ok(other) => {
                        let other = other.as_ref().map_or("no disk", |(other, _)| other);
                        look.seen.push(format!(
                            "{name} (on LUN {}, of which this machine's host says that it has {other})",
                            found.lun
                        ));
                        continue;
                    }
                    Err(reason) => {
                        look.seen.push(format!("{name} (on LUN {}, and which disk that has is not known: {reason})", found.lun));
                        continue;
                    }
                }
            }
            look.found.push(BlockDevice { path, number, identity: wanted.identity(found.sequence) });
        }
        Ok(look)
    }

    fn open(&self, reported: &BlockDevice, wanted: &Wanted) -> os::Result<Option<Device>> {
        let Some(open) = Device::open_if_there(&reported.path, reported.number)? else { return Ok(None) };
        // Looked up with the device open: no other has its number as long as it is.
        let is_same = self.disks.shown()?.into_iter().any(|found| {
            found.disk.number == reported.number
                && found.lun == wanted.lun
                && wanted.known.is_none_or(|known| known == found.sequence)
        });
        Ok(is_same.then_some(open))
    }

    fn take_over_size(&self, reported: &BlockDevice, _: &Device) -> Result<()> {
        let name = reported.path.file_name().unwrap_or_default().to_string_lossy();
        Ok(step("rescan", &reported.path.display(), || self.disks.rescan(&name))?)
    }

    fn denied(&self, wanted: &Wanted) -> Option<String> {
        let now = self.in_slot(wanted.lun).ok()?.map(|(disk, _)| disk);
        let other = now.as_deref().unwrap_or("no disk");
        (other != wanted.disk).then(|| {
            let Wanted { disk, lun, .. } = wanted;
            format!("this machine's host said that LUN {lun} has disk {disk}, and says now that it has {other}")
        })
    }

    fn size_by_cloud(&self, wanted: &Wanted) -> Result<Option<u64>, String> {
        let found = self.in_slot(wanted.lun)?.filter(|(disk, _)| *disk == wanted.disk);
        Ok(found.and_then(|(_, size)| size))
    }

    fn own_node_id(&self) -> Result<Option<NodeId>> {
        self.site.as_ref().map(|site| site.identity.node_id()).transpose()
    }

    fn attach_limit(&self) -> Option<u64> {
        let site = self.site.as_ref()?;
        let size = if self.volume_attach_limit.is_some() { String::new() } else { site.vm_size() };
        Some(limits::volumes(self.volume_attach_limit, &size))
    }
}

#[cfg(test)]
#[path = "connect_tests.rs"]
mod tests;

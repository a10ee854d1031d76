//! The node's side: a disk is attached by the cloud, and found here by what it says of itself.
//!
//! A disk is attached by a name with its number in it, which no other disk has had or will have. The name is asked of each disk that lies
//! open: the links in /dev/disk/by-id/google-* are not believed, which may be left over from another volume
//! (gcp-compute-persistent-disk-csi-driver issues 376, 608 and 2403).

use std::time::Duration;

use crate::backend::cloud::node::{self, AttachedDisks, Look, PATIENCE};
use crate::backend::cloud::{CONTEXT_DISK as VOLUME, DiskId};
use crate::backend::{BlockDevice, ConnectRequest, Source};
use crate::os;
use crate::os::block::Device;
use crate::os::step::step;
use crate::volume::{Error, NodeId, Result};

use super::disks::Disks;
use super::identity::Site;
use super::limits;
use super::names::{device_name, is_device_name, parse_disk};

/// How the identity begins of what was connected.
const IDENTITY: &str = "gce-";

/// This machine, as far as disks of Compute Engine go.
#[derive(Debug)]
pub struct Node {
    disks: Disks,
    site: Option<Site>,
    volume_attach_limit: Option<u64>,
    patience: Duration,
}

impl Node {
    /// `site` is `None` where no volume will be connected: in a process that only controls.
    pub fn new(site: Option<Site>, volume_attach_limit: Option<u64>, disks: Disks) -> Node {
        Node { disks, site, volume_attach_limit, patience: PATIENCE }
    }
}

impl AttachedDisks for Node {
    /// The name by which it was attached: made of its id, so that no other disk has it.
    type Wanted = String;
    const WHAT: &'static str = "disks";

    fn patience(&self) -> Duration {
        self.patience
    }

    fn wanted(&self, _request: &ConnectRequest<'_>, disk: &str) -> Result<String> {
        let disk = DiskId(disk.to_owned());
        if parse_disk(&disk).is_none() {
            return Err(Error::invalid("publish_context", format!("{VOLUME}: {disk} is no id of a disk of Compute Engine")));
        }
        Ok(device_name(&disk))
    }

    fn known<'a>(&self, source: &'a Source) -> Option<(&'a BlockDevice, String)> {
        let Source::Device(device) = source else { return None };
        let name = device.identity.strip_prefix(IDENTITY).filter(|name| is_device_name(name))?;
        Some((device, name.to_owned()))
    }

    fn words(&self, wanted: &String) -> (String, String, String) {
        let attached = format!("it was attached as {wanted}");
        (wanted.clone(), attached.clone(), format!("that {attached}"))
    }

    fn look(&self, wanted: &String) -> os::Result<Look> {
        let mut look = Look::default();
        for disk in self.disks.shown()? {
            let path = disk.path();
            // Not in /dev yet, or gone.
            let Some(open) = Device::open_if_there(&path, disk.number)? else {
                look.seen.push(format!("{} (not in /dev)", disk.name));
                continue;
            };
            let said = self.disks.attached_as(&open)?;
            if said.as_ref() == Some(wanted) {
                look.found.push(BlockDevice { path, number: disk.number, identity: format!("{IDENTITY}{wanted}") });
            } else {
                look.seen.push(format!("{} ({})", disk.name, said.as_deref().unwrap_or("without a name")));
            }
        }
        Ok(look)
    }

    fn open(&self, reported: &BlockDevice, wanted: &String) -> os::Result<Option<Device>> {
        let Some(open) = Device::open_if_there(&reported.path, reported.number)? else { return Ok(None) };
        let is_same = self.disks.attached_as(&open)?.as_ref() == Some(wanted);
        Ok(is_same.then_some(open))
    }
    fn take_over_size(&self, reported: &BlockDevice, open: &Device) -> Result<()> {
        let name = reported.path.file_name().unwrap_or_default().to_string_lossy();
        step("rescan", &reported.path.display(), || self.disks.rescan(&name))?;
        self.disks.size(open)?.map_or(Ok(()), |truth| node::await_size(open, truth))
    }

    fn own_node_id(&self) -> Result<Option<NodeId>> {
        self.site.as_ref().map(|site| site.identity.node_id()).transpose()
    }

    fn attach_limit(&self) -> Option<u64> {
        let site = self.site.as_ref()?;
        let machine_type = if self.volume_attach_limit.is_some() { String::new() } else { site.machine_type() };
        Some(limits::volumes(self.volume_attach_limit, &machine_type))
    }
}

#[cfg(test)]
#[path = "connect_tests.rs"]
mod tests;

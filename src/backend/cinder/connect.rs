//! The node's side: a volume is attached by Nova, and found here by what the disk says of itself.
//!
//! The name that Nova gives an attachment is not believed, nor are links in /dev/disk/by-id, which udev may not have made
//! (cloud-provider-openstack issues 705, 1192 and 2115): each disk that lies open is asked for its serial number.

use std::time::Duration;

use crate::backend::cloud::CONTEXT_DISK as VOLUME;
use crate::backend::cloud::node::{AttachedDisks, Look, PATIENCE};
use crate::backend::{BlockDevice, ConnectRequest, Source};
use crate::os;
use crate::os::block::Device;
use crate::os::step::step;
use crate::volume::{Error, NodeId, Result};

use super::disks::{Disks, is_serial_of};
use super::metadata::{Site, is_uuid};

/// How the identity begins of what was connected.
const IDENTITY: &str = "cinder-";

/// This machine, as far as volumes of Cinder go.
#[derive(Debug)]
pub struct Node {
    disks: Disks,
    site: Option<Site>,
    limit: u64,
    patience: Duration,
}

impl Node {
    /// `site` is `None` where no volume will be connected: in a process that only controls.
    pub fn new(site: Option<Site>, limit: u64, disks: Disks) -> Node {
        Node { disks, site, limit, patience: PATIENCE }
    }
}

impl AttachedDisks for Node {
    /// The volume's id.
    type Wanted = String;
    const WHAT: &'static str = "volumes";

    fn patience(&self) -> Duration {
        self.patience
    }

    fn wanted(&self, _request: &ConnectRequest<'_>, disk: &str) -> Result<String> {
        if !is_uuid(disk) {
            return Err(Error::invalid("publish_context", format!("{VOLUME}: {disk} is no id of a volume of Cinder")));
        }
        Ok(disk.to_owned())
    }

    fn known<'a>(&self, source: &'a Source) -> Option<(&'a BlockDevice, String)> {
        let Source::Device(device) = source else { return None };
        let id = device.identity.strip_prefix(IDENTITY).filter(|id| is_uuid(id))?;
        Some((device, id.to_owned()))
    }

    fn words(&self, wanted: &String) -> (String, String, String) {
        (wanted.clone(), format!("volume {wanted} was attached"), format!("the serial number of volume {wanted}"))
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
            match self.disks.serial(&open)? {
                Some(serial) if is_serial_of(&serial, wanted) => {
                    look.found.push(BlockDevice { path, number: disk.number, identity: format!("{IDENTITY}{wanted}") });
                }
                serial => look.seen.push(format!("{} ({})", disk.name, serial.as_deref().unwrap_or("without a serial number"))),
            }
        }
        Ok(look)
    }

    fn open(&self, reported: &BlockDevice, wanted: &String) -> os::Result<Option<Device>> {
        let Some(open) = Device::open_if_there(&reported.path, reported.number)? else { return Ok(None) };
        let is_same = self.disks.serial(&open)?.is_some_and(|serial| is_serial_of(&serial, wanted));
        Ok(is_same.then_some(open))
    }
    fn take_over_size(&self, reported: &BlockDevice, _: &Device) -> Result<()> {
        let name = reported.path.file_name().unwrap_or_default().to_string_lossy();
        Ok(step("rescan", &reported.path.display(), || self.disks.rescan(&name))?)
    }

    fn own_node_id(&self) -> Result<Option<NodeId>> {
        self.site.as_ref().map(|site| site.identity.node_id()).transpose()
    }

    fn attach_limit(&self) -> Option<u64> {
        self.site.as_ref().map(|_| self.limit)
    }
}

#[cfg(test)]
#[path = "connect_tests.rs"]
mod tests;

//! The node's side: an EBS volume is attached by the cloud, and found here by who it is.
//!
//! On Nitro an EBS volume is an NVMe disk whose controller has the volume's id for a serial number. sysfs says where to look; what is
//! believed is the controller of the disk that lies open. Names, and links made of them (`/dev/disk/by-id`), are not: they may be left
//! over from another volume. On Xen a disk has no identity but the name by which it was attached, which the controller gave to no
//! other volume; there the kernel's count of disks tells a later disk of that name from this one.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::backend::cloud::node::{self, AttachedDisks, Look, PATIENCE};
use crate::backend::cloud::{CONTEXT_DEVICE as DEVICE, CONTEXT_DISK as VOLUME};
use crate::backend::{BlockDevice, ConnectRequest, Source};
use crate::os::block::Device;
use crate::os::step::step;
use crate::os::{self, nvme};
use crate::volume::{Error, NodeId, Result};

use super::disks::Disks;
use super::identity::Place;
use super::limits::{Limits, Taken, of_type};

/// This machine, as far as EBS volumes go.
#[derive(Debug)]
pub struct Node {
    disks: Disks,
    room: Option<Room>,
    patience: Duration,
}

/// How many volumes of ours this instance takes.
#[derive(Debug)]
struct Room {
    limits: Limits,
    place: Place,
    /// As it was known last.
    taken: Mutex<Taken>,
}

impl Room {
    /// Worked out anew each time, unless the operator says it.
    fn volumes(&self) -> u64 {
        if let Some(said) = self.limits.volume_attach_limit {
            return said;
        }
        let asked = self.place.identity.metadata().taken();
        let of = of_type(&self.place.kind(), None);
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        match asked {
            Ok(now) => *taken = now,
            Err(reason) => {
                tracing::warn!(
                    reason,
                    "what is attached to this instance is not known; the last answer is used, or say volumeAttachLimit"
                )
            }
        }
        self.limits.volumes(of, *taken)
    }
}

/// Which disk is looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The volume's id without its dash, as NVMe has it: `vol0123456789abcdef0`.
    serial: String,
    /// By which it was attached: `xvdba`. Only what was on Xen is known by it later.
    name: Option<String>,
    /// On Xen, where it is known from before.
    sequence: Option<u64>,
}

impl Node {
    /// `place` is `None` where no volume will be connected: in a process that only controls.
    pub fn new(place: Option<Place>, limits: &Limits, disks: Disks) -> Node {
        let room = |place: Place| Room { limits: limits.clone(), place, taken: Mutex::default() };
        Node { disks, room: place.map(room), patience: PATIENCE }
    }
}

impl AttachedDisks for Node {
    type Wanted = Wanted;
    const WHAT: &'static str = "EBS volumes";

    fn patience(&self) -> Duration {
        self.patience
    }

    fn wanted(&self, request: &ConnectRequest<'_>, disk: &str) -> Result<Wanted> {
        let serial = disk.replacen('-', "", 1);
        if !is_serial(&serial) {
            return Err(Error::invalid("publish_context", format!("{VOLUME}: {disk:?} is no id of an EBS volume")));
        }
        let name = request.publish_context.get(DEVICE).map(|device| name_on_xen(device)).transpose()?;
        Ok(Wanted { serial, name, sequence: None })
    }

    fn known<'a>(&self, source: &'a Source) -> Option<(&'a BlockDevice, Wanted)> {
        known(source)
    }

    fn words(&self, wanted: &Wanted) -> (String, String, String) {
        let volume = wanted.volume();
        (volume.clone(), format!("{volume} was attached"), format!("the serial number {volume}"))
    }

    fn look(&self, wanted: &Wanted) -> os::Result<Look> {
        let mut look = Look::default();
        for disk in self.disks.nvme()? {
            if disk.serial != wanted.serial {
                look.seen.push(format!("{} ({})", disk.name, [disk.serial.as_str(), &disk.model].join(" ").trim()));
                continue;
            }
            let device = BlockDevice { path: in_dev(&disk.name), number: disk.number, identity: wanted.identity() };
            let Some(open) = Device::open_if_there(&device.path, device.number)? else {
                look.seen.push(format!("{} (which is it, but not in /dev)", disk.name));
                continue;
            };
            match self.disks.serial(&open)? {
                Some(serial) if serial == wanted.serial => look.found.push(device),
                Some(serial) => look.denied = Some(BlockDevice { identity: serial, ..device }),
                None => {}
            }
        }
        // A name means something only where no disk says who it is.
        if look.found.is_empty()
            && let Some(name) = &wanted.name
            && let Some(disk) = self.disks.xen(name)?
        {
            let now = Wanted { sequence: disk.sequence, ..wanted.clone() };
            let device = BlockDevice { path: in_dev(name), number: disk.number, identity: now.identity_on_xen(name) };
            if wanted.sequence.is_some_and(|sequence| disk.sequence != Some(sequence)) {
                look.seen.push(format!("{name} (another disk than before)"));
            } else if Device::open_if_there(&device.path, device.number)?.is_some() {
                look.found.push(device);
            }
        }
        Ok(look)
    }

    fn open(&self, reported: &BlockDevice, wanted: &Wanted) -> os::Result<Option<Device>> {
        let Some(open) = Device::open_if_there(&reported.path, reported.number)? else { return Ok(None) };
        let same = match &wanted.name {
            Some(name) => {
                let disk = self.disks.xen(name)?;
                disk.is_some_and(|disk| disk.number == reported.number && disk.sequence == wanted.sequence)
            }
            None => self.disks.serial(&open)?.as_ref() == Some(&wanted.serial),
        };
        Ok(same.then_some(open))
    }

    /// The controller tells the kernel of its growth, mostly.
    fn take_over_size(&self, reported: &BlockDevice, open: &Device) -> Result<()> {
        if let Some(truth) = nvme::size(open)?.filter(|truth| open.size().is_ok_and(|size| size != *truth)) {
            let name = reported.path.file_name().unwrap_or_default().to_string_lossy();
            step("rescan", &reported.path.display(), || nvme::rescan(self.disks.sysfs(), &name))?;
            node::await_size(open, truth)?;
        }
        Ok(())
    }

    fn own_node_id(&self) -> Result<Option<NodeId>> {
        self.room.as_ref().map(|room| room.place.identity.node_id()).transpose()
    }

    fn attach_limit(&self) -> Option<u64> {
        self.room.as_ref().map(Room::volumes)
    }
}

impl Wanted {
    /// The cloud's id of the volume.
    fn volume(&self) -> String {
        self.serial.replacen("vol", "vol-", 1)
    }

    fn identity(&self) -> String {
        format!("nvme-{}", self.serial)
    }

    fn identity_on_xen(&self, name: &str) -> String {
        let sequence = self.sequence.map(|sequence| format!("-{sequence}")).unwrap_or_default();
        format!("xen-{}-{name}{sequence}", self.serial)
    }

    fn parse(identity: &str) -> Option<Wanted> {
        let (kind, rest) = identity.split_once('-')?;
        let mut parts = rest.split('-');
        let serial = parts.next().filter(|serial| is_serial(serial))?.to_owned();
        let name = parts.next().map(str::to_owned);
        let sequence = parts.next().map(str::parse).transpose().ok()?;
        let whole = parts.next().is_none() && name.is_some() == (kind == "xen") && matches!(kind, "nvme" | "xen");
        whole.then_some(Wanted { serial, name, sequence })
    }
}

/// What a source says that it was.
fn known(source: &Source) -> Option<(&BlockDevice, Wanted)> {
    let Source::Device(device) = source else { return None };
    Some((device, Wanted::parse(&device.identity)?))
}

fn is_serial(text: &str) -> bool {
    text.strip_prefix("vol")
        .is_some_and(|id| !id.is_empty() && id.len() <= 17 && id.bytes().all(|byte| byte.is_ascii_alphanumeric()))
}

/// The kernel's name of what was attached as `/dev/sdf` or `/dev/xvdf`: drivers/block/xen-blkfront.c calls both `xvdf`.
fn name_on_xen(device: &str) -> Result<String> {
    let name = device.strip_prefix("/dev/").unwrap_or(device);
    if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return Err(Error::invalid("publish_context", format!("{DEVICE}: {device:?} is no device name")));
    }
    Ok(name.strip_prefix("sd").map_or_else(|| name.to_owned(), |letters| format!("xvd{letters}")))
}

fn in_dev(name: &str) -> PathBuf {
    Path::new("/dev").join(name)
}

#[cfg(test)]
#[path = "connect_tests.rs"]
mod tests;

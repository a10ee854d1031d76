//! The node's side: an EBS volume is attached by the cloud, and found here by who it is.
//!
//! On Nitro an EBS volume is an NVMe disk whose controller has the volume's id for a serial number. sysfs says where to look; what is
//! believed is the controller of the disk that lies open. Names, and links made of them (`/dev/disk/by-id`), are not: they may be left
//! over from another volume. On Xen a disk has no identity but the name by which it was attached, which the controller gave to no
//! other volume; there the kernel's count of disks tells a later disk of that name from this one.
//!
//! A node undoes nothing: the cloud detaches. What it can do before is to see that nothing is left unwritten.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::backend::cloud::{CONTEXT_DEVICE as DEVICE, CONTEXT_DISK as VOLUME, CONTEXT_EMPTY as EMPTY};
use crate::backend::{BlockDevice, Connect, ConnectRequest, Source};
use crate::os::block::{self, Device};
use crate::os::step::step;
use crate::os::{self, nvme, udev};
use crate::volume::{Bytes, Error, NodeId, Outcome, Result, VolumeId};

use super::disks::Disks;
use super::identity::Place;
use super::limits::{Limits, Taken, of_type};

/// How long a disk that was attached may take to show up, before the CO is asked to retry.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long the kernel may take to see that a disk has grown.
const GROWTH: Duration = Duration::from_secs(10);

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
struct Wanted {
    /// The volume's id without its dash, as NVMe has it: `vol0123456789abcdef0`.
    serial: String,
    /// By which it was attached: `xvdba`. Only what was on Xen is known by it later.
    name: Option<String>,
    /// On Xen, where it is known from before.
    sequence: Option<u64>,
}

/// What a look at the machine's disks found.
#[derive(Debug, Default)]
struct Look {
    found: Vec<BlockDevice>,
    /// All disks, for people.
    seen: Vec<String>,
    /// What sysfs shows as the volume, and its controller denies.
    denied: Option<BlockDevice>,
}

impl Node {
    /// `place` is `None` where no volume will be connected: in a process that only controls.
    pub fn new(place: Option<Place>, limits: &Limits, disks: Disks) -> Node {
        let room = |place: Place| Room { limits: limits.clone(), place, taken: Mutex::default() };
        Node { disks, room: place.map(room), patience: PATIENCE }
    }
}

impl Connect for Node {
    fn connect(&self, request: &ConnectRequest<'_>) -> Result<Outcome<Source>> {
        let Some(wanted) = Wanted::of(request)? else { return self.as_earlier(request) };
        let mut look = Look::default();
        udev::wait_until(Instant::now().checked_add(self.patience), || {
            look = self.look(&wanted)?;
            Ok(!look.found.is_empty())
        })?;
        let volume = wanted.volume();
        match (look.found.as_slice(), look.denied) {
            ([one], _) => Ok(Outcome::Unchanged(Source::Device(one.clone()))),
            ([], Some(denied)) => Err(Error::Unverified {
                device: denied.path.display().to_string(),
                reason: format!(
                    "the kernel shows it as {volume}, but its controller reports {}; it is not used",
                    denied.identity
                ),
            }),
            ([], None) => Err(Error::InProgress {
                object: format!("volume {}", request.id),
                reason: format!(
                    "{volume} was attached, but has not shown up on this node within {}: it is not among {}",
                    humantime::format_duration(self.patience),
                    if look.seen.is_empty() { "its disks, of which there are none".to_owned() } else { look.seen.join(", ") }
                ),
            }),
            (several, _) => Err(Error::Unverified {
                device: several.iter().map(|device| device.path.display().to_string()).collect::<Vec<_>>().join(", "),
                reason: format!("each reports the serial number {volume}; none is used"),
            }),
        }
    }

    fn connected(&self, _id: &VolumeId, hint: Option<&Source>) -> Result<Option<Source>> {
        // Which volume of the cloud it is stands in the hint alone.
        let Some((reported, wanted)) = hint.and_then(known) else { return Ok(None) };
        if self.open(reported, &wanted)?.is_some() {
            return Ok(hint.cloned());
        }
        // By now it may have another name; never two.
        let mut found = self.look(&wanted)?.found;
        Ok(if found.len() == 1 { found.pop().map(Source::Device) } else { None })
    }

    /// So it is, too, where its number is used by no mount any more: a volume may be detached under a mount, which keeps the number from others.
    fn is_same_device(&self, source: &Source) -> Result<bool> {
        let Some((reported, wanted)) = known(source) else { return Ok(false) };
        Ok(block::is_gone(reported.number) || self.open(reported, &wanted)?.is_some())
    }

    fn disconnect(&self, id: &VolumeId, hint: Option<&Source>) -> Result<Outcome<()>> {
        let Some((reported, wanted)) = hint.and_then(known) else { return Ok(Outcome::Unchanged(())) };
        // What a pod wrote to the raw device; once the cloud has detached it, it is too late.
        if let Some(open) = self.open(reported, &wanted)? {
            step("flush", id, || open.flush())?;
        }
        Ok(Outcome::Unchanged(()))
    }

    fn refresh(&self, id: &VolumeId, source: &Source) -> Result<Bytes> {
        let unproven = || Error::Unverified {
            device: match source {
                Source::Device(device) => device.path.display().to_string(),
                _ => id.to_string(),
            },
            reason: format!("it does not show volume {id}; nothing was done to it. Unstage the volume and stage it again"),
        };
        let (reported, wanted) = known(source).ok_or_else(unproven)?;
        let open = self.open(reported, &wanted)?.ok_or_else(unproven)?;
        let truth = nvme::size(&open)?;
        // The controller tells the kernel of its growth, mostly.
        if let Some(truth) = truth.filter(|truth| open.size().is_ok_and(|size| size != *truth)) {
            let name = reported.path.file_name().unwrap_or_default().to_string_lossy();
            step("rescan", &reported.path.display(), || nvme::rescan(self.disks.sysfs(), &name))?;
            let grown = || Ok(open.size()? == truth);
            if !udev::wait_until(Instant::now().checked_add(GROWTH), grown)? {
                let reason = format!("its controller reports {truth} bytes, the kernel still {}", open.size()?);
                return Err(Error::InProgress { object: reported.path.display().to_string(), reason });
            }
        }
        Ok(Bytes(open.size()?))
    }

    fn known_blank(&self, publish_context: &BTreeMap<String, String>) -> bool {
        publish_context.get(EMPTY).is_some_and(|text| text == "true")
    }

    fn node_id(&self) -> Result<Option<NodeId>> {
        self.room.as_ref().map(|room| room.place.identity.node_id()).transpose()
    }

    fn limit(&self) -> Option<u64> {
        self.room.as_ref().map(Room::volumes)
    }
}

impl Node {
    /// A call without publish_context, by which the node ends what was interrupted: the volume is what it was, or is not there.
    fn as_earlier(&self, request: &ConnectRequest<'_>) -> Result<Outcome<Source>> {
        let earlier = request.earlier.filter(|source| known(source).is_some()).ok_or_else(|| {
            let reason =
                "is missing: EBS volumes are attached first (`attachRequired: true` of the CSIDriver, and external-attacher)";
            Error::invalid("publish_context", format!("{VOLUME:?} {reason}"))
        })?;
        self.connected(request.id, Some(earlier))?.map(Outcome::Unchanged).ok_or_else(|| Error::Unverified {
            device: format!("volume {}", request.id),
            reason: "it is not attached to this node any more".to_owned(),
        })
    }

    /// What of this machine is the wanted volume.
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

    /// The device, open, if it is what it was.
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
}

impl Wanted {
    /// What publish_context says.
    fn of(request: &ConnectRequest<'_>) -> Result<Option<Wanted>> {
        let value = |key| request.publish_context.get(key).map(String::as_str);
        let Some(volume) = value(VOLUME) else { return Ok(None) };
        // What was attached must be what the PersistentVolume names.
        if let Some(recorded) = request.id.recorded().filter(|recorded| *recorded != volume) {
            let reason = format!("{VOLUME}: {volume} was attached, but volume {} is {recorded}; detach it", request.id);
            return Err(Error::invalid("publish_context", reason));
        }
        let serial = volume.replacen('-', "", 1);
        if !is_serial(&serial) {
            return Err(Error::invalid("publish_context", format!("{VOLUME}: {volume:?} is no id of an EBS volume")));
        }
        let name = value(DEVICE).map(name_on_xen).transpose()?;
        Ok(Some(Wanted { serial, name, sequence: None }))
    }

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

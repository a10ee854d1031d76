//! The node's half that is the same for all clouds: a disk is attached by the cloud, waited for, and found by what its cloud knows it by
//! ([`AttachedDisks`]).
//!
//! A node undoes nothing: the cloud detaches. What it can do before is to see that nothing is left unwritten.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::backend::{BlockDevice, Connect, ConnectRequest, ExpectedContents, Source};
use crate::os::block::{self, Device};
use crate::os::step::step;
use crate::os::{self, udev};
use crate::volume::{Bytes, Error, NodeId, Outcome, Result, VolumeId};

use super::attach::{EMPTY, VOLUME};
use super::proof;

/// How long a disk that was attached may take to show up, before the CO is asked to retry.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// How long the kernel may take to see that a disk has grown.
const GROWTH: Duration = Duration::from_secs(10);

/// What a look at the machine's disks found.
#[derive(Debug, Default)]
pub struct Look {
    pub found: Vec<BlockDevice>,
    /// All disks, for people.
    pub seen: Vec<String>,
    /// What the kernel shows as the disk, and its controller denies; its identity is what the controller reports.
    pub denied: Option<BlockDevice>,
}

/// The disks of a cloud on the machine of this process, which is all of [`Connect`] that differs between clouds.
pub trait AttachedDisks: Send + Sync {
    /// Which disk is looked for.
    type Wanted;

    /// What is attached, for people: `EBS volumes`.
    const WHAT: &'static str;

    fn patience(&self) -> Duration;

    /// What publish_context says.
    ///
    /// # Errors
    /// `Invalid`, naming the key.
    fn wanted(&self, request: &ConnectRequest<'_>, disk: &str) -> Result<Self::Wanted>;

    /// What a source says that it was: the device, and which disk.
    fn known<'a>(&self, source: &'a Source) -> Option<(&'a BlockDevice, Self::Wanted)>;

    /// What of this machine is the disk.
    fn look(&self, wanted: &Self::Wanted) -> os::Result<Look>;

    /// The device, open, if it is what it was.
    fn open(&self, reported: &BlockDevice, wanted: &Self::Wanted) -> os::Result<Option<Device>>;

    /// For people: the disk, that it was attached (`it was attached as longshore-7`), and what a disk reports that is it.
    fn words(&self, wanted: &Self::Wanted) -> (String, String, String);

    /// Has the kernel take over the size of a disk that has grown.
    fn take_over_size(&self, reported: &BlockDevice, open: &Device) -> Result<()>;

    /// What the cloud says by now against the disk's being in its slot; `None` also where it says nothing.
    fn denied(&self, _wanted: &Self::Wanted) -> Option<String> {
        None
    }

    /// How many bytes the disk has by the cloud, as this machine hears it now; `None` where it hears nothing of that.
    ///
    /// # Errors
    /// Why it is not known, for people.
    fn size_by_cloud(&self, _wanted: &Self::Wanted) -> Result<Option<u64>, String> {
        Ok(None)
    }

    /// [`Connect::node_id`]
    fn own_node_id(&self) -> Result<Option<NodeId>>;

    /// [`Connect::limit`]
    fn attach_limit(&self) -> Option<u64>;
}

impl<D: AttachedDisks> Connect for D {
    fn connect(&self, request: &ConnectRequest<'_>) -> Result<Outcome<Source>> {
        connect(self, request)
    }

    /// Which disk of the cloud it is stands in the hint alone.
    fn connected(&self, _id: &VolumeId, hint: Option<&Source>) -> Result<Option<Source>> {
        connected(self, hint)
    }

    /// So it is, too, where its number is used by no mount any more: a volume may be detached under a mount, which keeps the number from
    /// others.
    fn is_same_device(&self, source: &Source) -> Result<bool> {
        let Some((reported, wanted)) = self.known(source) else { return Ok(false) };
        Ok(block::is_gone(reported.number) || self.open(reported, &wanted)?.is_some())
    }

    /// Writes what a pod wrote to the raw device; once the cloud has detached it, it is too late.
    fn disconnect(&self, id: &VolumeId, hint: Option<&Source>) -> Result<Outcome<()>> {
        let Some((reported, wanted)) = hint.and_then(|hint| self.known(hint)) else { return Ok(Outcome::Unchanged(())) };
        if let Some(open) = self.open(reported, &wanted)? {
            step("flush", id, || open.flush())?;
        }
        Ok(Outcome::Unchanged(()))
    }

    fn refresh(&self, id: &VolumeId, source: &Source) -> Result<Bytes> {
        let (reported, open) = open_own(self, id, source)?;
        self.take_over_size(reported, &open)?;
        Ok(Bytes(open.size()?))
    }

    fn expected_contents(&self, source: &Source, publish_context: &BTreeMap<String, String>) -> Result<Option<ExpectedContents>> {
        let Some((_, wanted)) = self.known(source) else { return Ok(None) };
        proof::expected_contents(publish_context, &self.words(&wanted).2)
    }

    /// Reading what is on a device, or proving it blank, may have taken long: what was said of its slot before may be corrected by now.
    fn about_to_write(&self, id: &VolumeId, source: &Source) -> Result<()> {
        let Some((reported, wanted)) = self.known(source) else { return Ok(()) };
        self.denied(&wanted).map_or(Ok(()), |reason| {
            let device = format!("volume {id} on {}", reported.path.display());
            Err(Error::Unverified { device, reason: format!("{reason}; nothing was written to it. Stage the volume again") })
        })
    }

    /// As the controller says.
    fn known_blank(&self, _id: &VolumeId, publish_context: &BTreeMap<String, String>) -> bool {
        publish_context.get(EMPTY).is_some_and(|text| text == "true")
    }

    fn node_id(&self) -> Result<Option<NodeId>> {
        self.own_node_id()
    }

    fn limit(&self) -> Option<u64> {
        self.attach_limit()
    }
}

fn connect<D: AttachedDisks>(disks: &D, request: &ConnectRequest<'_>) -> Result<Outcome<Source>> {
    let Some(disk) = request.publish_context.get(VOLUME) else { return as_earlier(disks, request) };
    // What was attached must be what the PersistentVolume names.
    if let Some(recorded) = request.id.recorded().filter(|recorded| recorded != disk) {
        let reason = format!("{VOLUME}: {disk} was attached, but volume {} is {recorded}; detach it", request.id);
        return Err(Error::invalid("publish_context", reason));
    }
    let wanted = disks.wanted(request, disk)?;
    let mut look = Look::default();
    udev::wait_until(Instant::now().checked_add(disks.patience()), || {
        look = disks.look(&wanted)?;
        Ok(!look.found.is_empty())
    })?;
    let (name, attached, reports) = disks.words(&wanted);
    match (look.found.as_slice(), look.denied) {
        ([one], _) => {
            check_size(disks, request, one, &wanted)?;
            Ok(Outcome::Unchanged(Source::Device(one.clone())))
        }
        ([], Some(denied)) => Err(Error::Unverified {
            device: denied.path.display().to_string(),
            reason: format!("the kernel shows it as {name}, but its controller reports {}; it is not used", denied.identity),
        }),
        ([], None) => Err(Error::InProgress {
            object: format!("volume {}", request.id),
            reason: format!(
                "{attached}, but has not shown up on this node within {}: it is not among {}",
                humantime::format_duration(disks.patience()),
                if look.seen.is_empty() { "its disks, of which there are none".to_owned() } else { look.seen.join(", ") }
            ),
        }),
        (several, _) => Err(Error::Unverified {
            device: several.iter().map(|device| device.path.display().to_string()).collect::<Vec<_>>().join(", "),
            reason: format!("each reports {reports}; none is used"),
        }),
    }
}

/// Compares the size of a device with that of the disk in publish_context, which an older controller does not give.
///
/// A disk never shrinks, so that a smaller device is another disk once the kernel has asked it anew. A larger one may be the disk, grown
/// since it was attached: the cloud must say so.
///
/// # Errors
/// `Unverified`, naming both sizes; `InProgress` where the device is gone, or the cloud does not answer.
fn check_size<D: AttachedDisks>(disks: &D, request: &ConnectRequest<'_>, device: &BlockDevice, wanted: &D::Wanted) -> Result<()> {
    let Some(expected) = proof::size_in(request.publish_context)? else { return Ok(()) };
    let unfinished = |reason: String| Error::InProgress { object: format!("volume {}", request.id), reason };
    let path = device.path.display();
    let open = disks.open(device, wanted)?.ok_or_else(|| unfinished(format!("{path} went away while it was looked at")))?;
    let mut size = open.size()?;
    if size < expected {
        disks.take_over_size(device, &open)?;
        udev::wait_until(Instant::now().checked_add(GROWTH.min(disks.patience())), || {
            size = open.size()?;
            Ok(size >= expected)
        })?;
    }
    let mut cloud = expected;
    if size > expected {
        let now = disks.size_by_cloud(wanted);
        cloud = now.map_err(|reason| unfinished(format!("whether it has grown is not known: {reason}")))?.unwrap_or(expected);
    }
    if size == expected || size == cloud {
        return Ok(());
    }
    let (disk, _, slot) = disks.words(wanted);
    let (found, cloud) = (Bytes(size), Bytes(cloud));
    let reason = format!(
        "the device on {slot} has {found}, but by the cloud disk {disk} has {cloud}: it may be another disk, and was not used. Look with the \
         cloud's tools what is on {slot}, then detach volume {} and attach it again",
        request.id
    );
    Err(Error::Unverified { device: path.to_string(), reason })
}

/// A call without publish_context, by which the node ends what was interrupted: the volume is what it was, or is not there.
fn as_earlier<D: AttachedDisks>(disks: &D, request: &ConnectRequest<'_>) -> Result<Outcome<Source>> {
    let earlier = request.earlier.filter(|source| disks.known(source).is_some()).ok_or_else(|| {
        let what = D::WHAT;
        let reason =
            format!("is missing: {what} are attached first (`attachRequired: true` of the CSIDriver, and external-attacher)");
        Error::invalid("publish_context", format!("{VOLUME:?} {reason}"))
    })?;
    connected(disks, Some(earlier))?.map(Outcome::Unchanged).ok_or_else(|| Error::Unverified {
        device: format!("volume {}", request.id),
        reason: "it is not attached to this node any more".to_owned(),
    })
}

fn connected<D: AttachedDisks>(disks: &D, hint: Option<&Source>) -> Result<Option<Source>> {
    let Some((reported, wanted)) = hint.and_then(|hint| disks.known(hint)) else { return Ok(None) };
    if disks.open(reported, &wanted)?.is_some() {
        return Ok(hint.cloned());
    }
    // By now it may have another name in /dev; never two.
    let mut found = disks.look(&wanted)?.found;
    Ok(if found.len() == 1 { found.pop().map(Source::Device) } else { None })
}

/// The device of a volume, open, seen to be its own.
///
/// # Errors
/// `Unverified` where it is not.
fn open_own<'a, D: AttachedDisks>(disks: &D, id: &VolumeId, source: &'a Source) -> Result<(&'a BlockDevice, Device)> {
    let unproven = || Error::Unverified {
        device: match source {
            Source::Device(device) => device.path.display().to_string(),
            _ => id.to_string(),
        },
        reason: format!("it does not show volume {id}; nothing was done to it. Unstage the volume and stage it again"),
    };
    let (reported, wanted) = disks.known(source).ok_or_else(unproven)?;
    let open = disks.open(reported, &wanted)?.ok_or_else(unproven)?;
    Ok((reported, open))
}

/// Waits until the kernel has taken over the size, in bytes, that the controller of a disk reports.
///
/// # Errors
/// `InProgress`.
pub fn await_size(open: &Device, truth: u64) -> Result<()> {
    if udev::wait_until(Instant::now().checked_add(GROWTH), || Ok(open.size()? == truth))? {
        return Ok(());
    }
    let reason = format!("its controller reports {truth} bytes, the kernel still {}", open.size()?);
    Err(Error::InProgress { object: open.path().display().to_string(), reason })
}

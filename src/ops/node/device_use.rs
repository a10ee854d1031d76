//! Whether something uses what a volume is, and what must end before it is disconnected.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::backend::{BlockDevice, Source};
use crate::os::block::Device;
use crate::os::mounts::Mounts;
use crate::os::multipath::Map;
use crate::os::step::step;
use crate::os::{dm, holders, udev};
use crate::volume::{Error, Result, VolumeId};

use super::context::Node;
use super::mounts::mounted_target;
use super::{mapping, observe};

/// Whether nothing uses a connected volume any more, so that it may be disconnected: our own mounts first, whose places we can name,
/// then whatever else the kernel knows, in any mount namespace.
///
/// # Errors
/// `InUse`, naming where it is mounted or published; `StillInUse`, which is not final, naming who has it elsewhere.
pub(super) fn ensure_unused(node: &Node, id: &VolumeId, source: &Source) -> Result<()> {
    let mounts = Mounts::now()?;
    let sources = std::slice::from_ref(source);
    for target in node.journal.targets(id)? {
        if mounted_target(&mounts, &target, sources)? {
            return Err(published_at(id, &target.target));
        }
    }
    if let Some(mount) = observe::find(&mounts, &observe::exclusive(sources), |_| true)? {
        return Err(published_at(id, &mount.mount_point));
    }
    match source {
        Source::Device(device) => device_unused(&format!("volume {id}"), device, &mounts),
        Source::Filesystem { .. } | Source::Directory(_) => Ok(()),
    }
}

/// Whether nothing on this machine uses the device: no other device lies on it, and the kernel lets us have it exclusively.
///
/// # Errors
/// As [`ensure_unused`]; `object` is whose device it is, for messages.
pub(super) fn device_unused(object: &str, device: &BlockDevice, mounts: &Mounts) -> Result<()> {
    let holders = dm::holders(device.number)?;
    // multipathd also takes what was connected as a single disk: its map goes with the disk, if nothing uses that.
    let maps: Vec<Map> = holders.iter().filter_map(|holder| Map::of(holder).ok().flatten()).collect();
    let mounted = |map: &Map| mounts.find(|fixed| fixed.device == map.number, |mount| mount.device == map.number);
    let idle = |map: &Map| {
        dm::holders(map.number).is_ok_and(|holders| holders.is_empty()) && mounted(map).is_ok_and(|mount| mount.is_none())
    };
    if maps.len() < holders.len() || !maps.iter().all(idle) {
        let (holders, path) = (holders.join(", "), device.path.display());
        let by = format!("{holders} lies on its device {path}; take that down first (`lsblk` shows it)");
        return Err(Error::InUse { object: object.to_owned(), by });
    }
    if maps.is_empty() {
        return unclaimed(object, &device.path, device.number);
    }
    maps.iter().try_for_each(|map| unclaimed(object, &map.path, map.number))
}

/// Whether the kernel lets us have the device exclusively: the proof that no mount namespace has it mounted. A program that was killed may
/// still have it for a moment.
fn unclaimed(object: &str, path: &Path, number: (u32, u32)) -> Result<()> {
    const LINGERING: Duration = Duration::from_secs(1);
    let Some(device) = Device::open_if_there(path, number)? else { return Ok(()) };
    if udev::wait_until(Instant::now().checked_add(LINGERING), || Ok(!device.is_claimed()?))? {
        return Ok(());
    }
    Err(Error::StillInUse { object: format!("{object}, device {}", path.display()), by: holders::in_words(number, path) })
}

pub(super) fn published_at(id: &VolumeId, path: &Path) -> Error {
    Error::InUse { object: format!("volume {id}"), by: format!("it is mounted at {}; unpublish it there first", path.display()) }
}

/// Closes the volume's mapping, if there is one, seen to be gone on return.
///
/// # Errors
/// `InUse` while it is mounted or published; not final where something has it open.
pub(super) fn close_mapping(node: &Node, id: &VolumeId) -> Result<()> {
    let Some(found) = mapping::find(node, id)? else { return Ok(()) };
    ensure_unused(node, id, &Source::Device(mapping::shown(&found)))?;
    let name = mapping::name_of(node, id);
    step("close mapping", &name, || dm::remove(&name)).map(drop).map_err(|error| {
        let busy = error.errno() == Some(libc::EBUSY);
        let error = Error::from(error);
        if busy { error.leaving(format!("a process has {} open: `fuser -v` shows which", found.path.display())) } else { error }
    })
}

/// Write protection outlives the binding of a loop device: the next volume on it would find it.
pub(super) fn allow_writes(source: &Source) -> Result<()> {
    let Source::Device(device) = source else { return Ok(()) };
    let open = match Device::open(&device.path, false) {
        Ok(open) if open.number() == device.number => open,
        Ok(_) => return Ok(()),
        Err(error) if error.is_missing() => return Ok(()),
        // A disk whose path is lost for good: it goes with its session, protection and all.
        Err(error) if error.errno() == Some(libc::ENXIO) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    if open.read_only()? {
        step("allow writes", &device.path.display(), || open.set_read_only(false))?;
    }
    Ok(())
}

//! The node's side: a logical volume is active while it is connected. A new thin volume is so from its making on.

use std::path::Path;

use crate::backend::local::size_of;
use crate::backend::{BlockDevice, Connect, ConnectRequest, Source};
use crate::os::step::step;
use crate::os::{dm, lock};
use crate::volume::{Bytes, Error, IoLimits, Outcome, Result, VolumeId};

use super::config::LvmParameters;
use super::health::PARTIAL;
use super::tags::{self, Object, VolumeRecord};
use super::{Blank, Content, Found, LvmBackend, NEW, dm_uuid, mapped, mapping_of};

impl Connect for LvmBackend {
    fn connect(&self, request: &ConnectRequest<'_>) -> Result<Outcome<Source>> {
        let id = request.id;
        let parameters = LvmParameters::from_json(request.parameters)?;
        let found = match parameters.static_volume()? {
            Some((group, name)) => self.existing(group, name)?,
            None => match self.as_made(id)? {
                Some(device) => {
                    lock(&self.connected).insert(id.clone(), Content::Unmapped);
                    return Ok(Outcome::Unchanged(source(&device)));
                }
                None => self.whole(&Object::volume(id))?,
            },
        };
        let found = found.ok_or_else(|| Error::volume_not_found(id))?;
        let (device, changed) = match mapped(&found.report, &found.lv)? {
            Some(device) => (device, false),
            None => {
                self.activate(&found, id)?;
                let device = mapped(&found.report, &found.lv)?.ok_or_else(|| Error::InProgress {
                    object: format!("activate logical volume {}", found.path()),
                    reason: format!("{} has not shown up", found.lv.dm_path),
                })?;
                (device, true)
            }
        };
        lock(&self.connected).insert(id.clone(), content(&found, &device));
        if self.config.io_limits {
            self.remember_io_limits(id, limits_of(&found)?);
        }
        let source = source(&device);
        Ok(if changed { Outcome::Changed(source) } else { Outcome::Unchanged(source) })
    }

    fn connected(&self, id: &VolumeId, hint: Option<&Source>) -> Result<Option<Source>> {
        if let Some(hint) = hint
            && self.is_same_device(hint)?
        {
            return Ok(Some(hint.clone()));
        }
        if let Some(device) = self.as_made(id)? {
            return Ok(Some(source(&device)).filter(|_| device.open));
        }
        let object = Object::volume(id);
        let found = match self.locate(&object) {
            Err(Error::BackendUnavailable { .. }) if !self.is_mapped(&object)? => None,
            found => found?,
        };
        let Some(found) = found else { return Ok(None) };
        // Active alone says nothing: the node activates all at its start, and a call that deletes may have been interrupted.
        Ok(mapped(&found.report, &found.lv)?.filter(|device| device.open).map(|device| source(&device)))
    }

    fn is_same_device(&self, source: &Source) -> Result<bool> {
        let Source::Device(known) = source else { return Ok(false) };
        Ok(dm::uuid_of(known.number)?.is_some_and(|uuid| uuid == known.identity))
    }

    fn disconnect(&self, id: &VolumeId, hint: Option<&Source>) -> Result<Outcome<()>> {
        lock(&self.io_limits).remove(id);
        let identity = match hint {
            Some(Source::Device(known)) => Some(known.identity.as_str()),
            _ => None,
        };
        let found = match identity {
            Some(identity) => self.search(|report| report.lvs.values().find(|lv| dm_uuid(report, lv) == identity).cloned()),
            None => self.locate(&Object::volume(id)),
        };
        let found = match found {
            Err(Error::BackendUnavailable { .. })
                if !self.is_mapped(&Object::volume(id))? && !hint.map_or(Ok(false), |hint| self.is_same_device(hint))? =>
            {
                None
            }
            found => found?,
        };
        let Some(found) = found else {
            if let Some(hint) = hint
                && self.is_same_device(hint)?
            {
                return Err(removed(id, hint));
            }
            lock(&self.connected).remove(id);
            return Ok(Outcome::Unchanged(()));
        };
        let Some(device) = mapped(&found.report, &found.lv)? else {
            lock(&self.connected).remove(id);
            return Ok(Outcome::Unchanged(()));
        };
        if device.open {
            let holders = dm::holders(device.number)?;
            let by = if holders.is_empty() { "a mount or a program".to_owned() } else { holders.join(", ") };
            return Err(Error::StillInUse {
                object: format!("logical volume {} ({})", found.path(), found.lv.dm_path),
                by: format!("{by} has it open"),
            });
        }
        found.deactivate()?;
        lock(&self.connected).remove(id);
        Ok(Outcome::Changed(()))
    }

    /// The device has grown with the logical volume.
    fn refresh(&self, id: &VolumeId, source: &Source) -> Result<Bytes> {
        size_of(self, id, source)
    }

    fn known_blank(&self, id: &VolumeId, _publish_context: &std::collections::BTreeMap<String, String>) -> bool {
        matches!(lock(&self.connected).get(id), Some(Content::Unmapped | Content::Blank(_)))
    }

    fn about_to_write(&self, id: &VolumeId, _source: &Source) -> Result<()> {
        let connected = lock(&self.connected).get(id).cloned();
        let blank = match connected {
            Some(Content::Unknown | Content::Unmapped) => None,
            Some(Content::Blank(blank)) => Some(*blank),
            None => self.whole(&Object::volume(id))?.and_then(|found| blank(&found)),
        };
        let Some(Blank { group, path, uuid }) = blank else { return Ok(()) };
        let held = group.lock("lvchange")?;
        let same = format!("lv_uuid={uuid}");
        let clear = || group.change(&held, "lvchange", &["--select", &same, "--deltag", tags::BLANK, &path]);
        Ok(step("clear blank", id, clear)?)
    }

    fn limits_io(&self) -> bool {
        self.config.io_limits
    }

    fn io_limits(&self, id: &VolumeId) -> Result<IoLimits> {
        if let Some(limits) = lock(&self.io_limits).get(id) {
            return Ok(*limits);
        }
        // Of an earlier process. A static volume is not found by its id.
        let object = Object::volume(id);
        let limits = match self.whole(&object)? {
            Some(found) => limits_of(&found)?,
            None => self.check_not_renamed("limit the IO of", &object).map(|()| IoLimits::default())?,
        };
        self.remember_io_limits(id, limits);
        Ok(limits)
    }

    fn limit(&self) -> Option<u64> {
        self.config.volumes_per_node
    }
}

/// None of a static volume.
fn limits_of(found: &Found<'_>) -> Result<IoLimits> {
    match Object::of(&found.lv) {
        Some(_) => tags::decode::<VolumeRecord>(&found.lv)?.io_limits(),
        None => Ok(IoLimits::default()),
    }
}

impl LvmBackend {
    /// Whether the kernel has a device of this name in any of the volume groups: without one nothing is connected, though a volume group is
    /// away, as after a boot without its disks.
    fn is_mapped(&self, object: &Object) -> Result<bool> {
        for group in self.groups.values() {
            if dm::find(&group.mapping(&object.name))?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The device of a thin volume that this process made just now and nobody has written to: LVM is not asked again which logical volume it
    /// is. What was removed, renamed or made anew since has not this UUID, or not under this name; tags are LVM's alone, so this holds for a
    /// short time only.
    fn as_made(&self, id: &VolumeId) -> Result<Option<dm::Mapped>> {
        let Some(made) = lock(&self.made).get(id).filter(|made| made.at.elapsed() < NEW).cloned() else { return Ok(None) };
        let device = dm::find(&made.mapping)?.filter(|device| device.live && !device.suspended && device.uuid == made.uuid);
        Ok(device.filter(|device| is_unmapped(&made.mapping, device)))
    }

    /// The logical volume of a static volume.
    fn existing(&self, group: &str, name: &str) -> Result<Option<Found<'_>>> {
        let Some(group) = self.groups.get(group) else {
            return Err(Error::invalid("volumeGroup", format!("{group} is of no class of backend {}", self.config.name)));
        };
        let report = self.report(group)?;
        let Some(lv) = report.lvs.get(name).cloned() else { return Ok(None) };
        if lv.is("pool") || Object::of(&lv).is_some() {
            let by = "it is a thin pool, or the driver made it for another volume".to_owned();
            return Err(Error::InUse { object: format!("logical volume {}/{name}", group.name), by });
        }
        Ok(Some(Found { group, report, lv }))
    }

    /// Activates it, also where it is one that is not activated with others (`--setactivationskip`).
    pub(super) fn activate(&self, found: &Found<'_>, id: &VolumeId) -> Result<()> {
        let held = found.group.lock("lvchange")?;
        let arguments = ["--activate", "y", "--ignoreactivationskip", &found.path()];
        let activated = step("activate logical volume", id, || found.group.change(&held, "lvchange", &arguments));
        activated.map_err(|error| match found.lv.health.as_str() {
            PARTIAL => self
                .unavailable(format!("logical volume {} lies on a disk that is missing; bring it back ({error})", found.path())),
            _ => error.into(),
        })
    }
}

fn blank(found: &Found<'_>) -> Option<Blank> {
    let tagged = found.lv.has_tag(tags::BLANK);
    tagged.then(|| Blank { group: found.group.clone(), path: found.path(), uuid: found.lv.uuid.clone() })
}

/// A thin volume says by itself that nothing was written to it. One with an external origin (lvmthin(7)), on which it lies beside its pool,
/// shows that instead.
fn content(found: &Found<'_>, device: &dm::Mapped) -> Content {
    if let Some(blank) = blank(found) {
        return Content::Blank(Box::new(blank));
    }
    if found.lv.is("thin") && is_unmapped(mapping_of(&found.lv), device) { Content::Unmapped } else { Content::Unknown }
}

/// Whether nothing of a thin volume has a place in its pool, nor on an external origin, which would be a second device below it.
pub(super) fn is_unmapped(mapping: &str, device: &dm::Mapped) -> bool {
    device.below.len() == 1 && matches!(dm::thin_sectors(mapping), Ok(Some(0)))
}

fn source(device: &dm::Mapped) -> Source {
    Source::Device(BlockDevice { path: device.path.clone(), number: device.number, identity: device.uuid.clone() })
}

/// Its device is there, and LVM knows no such logical volume.
fn removed(id: &VolumeId, hint: &Source) -> Error {
    let device = match hint {
        Source::Device(device) => device.path.as_path(),
        _ => Path::new("its device"),
    };
    let reason = format!(
        "LVM has no logical volume for it any more, but the device of {id} is there. Look at it, and remove it with `dmsetup remove {}`",
        device.display()
    );
    Error::Unverified { device: device.display().to_string(), reason }
}

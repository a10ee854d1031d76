//! The node's side: the partition of a volume's data, or the device of a static one.

use std::path::Path;

use crate::backend::local::size_of;
use crate::backend::{BlockDevice, Connect, ConnectRequest, Source};
use crate::os::block::Device;
use crate::os::disk::{self, Disk, gpt};
use crate::os::{holders, lock};
use crate::volume::{Bytes, Error, Outcome, Result, VolumeId};

use super::DiskBackend;
use super::change::data_of;
use super::config::DiskParameters;
use super::look::{Ours, SYSFS, Seen, check_sound};
use super::record::{Record, State};

impl Connect for DiskBackend {
    fn connect(&self, request: &ConnectRequest<'_>) -> Result<Outcome<Source>> {
        let id = request.id;
        let parameters = DiskParameters::from_json(request.parameters)?;
        if let Some(path) = parameters.static_device()? {
            return self.static_source(path).map(Outcome::Unchanged);
        }
        let looked = self.scan()?;
        let (found, ours) = self.find_volume(&looked, id)?.ok_or_else(|| Error::volume_not_found(id))?;
        check_sound(found, ours)?;
        if ours.record.volume().is_some_and(|volume| volume.blank) {
            lock(&self.blank).insert(id.clone());
        }
        if let (true, Ok(data)) = (ours.even, data_of(&found.disk, ours.record.size())) {
            return Ok(Outcome::Unchanged(source(&found.disk, &data, ours)));
        }
        let mut held = self.hold_for(found, id)?;
        let data = held.data(id)?;
        Ok(Outcome::Changed(source(&held.disk, &data, ours)))
    }

    fn connected(&self, id: &VolumeId, hint: Option<&Source>) -> Result<Option<Source>> {
        if let Some(hint) = hint
            && self.is_same_device(hint)?
        {
            return Ok(Some(hint.clone()));
        }
        let looked = self.scan()?;
        let (found, ours) = match self.find_volume(&looked, id) {
            Ok(Some(found)) => found,
            // A disk that is not here, or of which there are two, is not connected, be it mounted still: that is the hint's.
            Ok(None) | Err(Error::BackendUnavailable { .. } | Error::Unverified { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        let Ok(data) = data_of(&found.disk, ours.record.size()) else { return Ok(None) };
        // The kernel shows partitions by itself: that one is there says nothing.
        let Some(device) = Device::open_if_there(&data.path(), data.number)? else { return Ok(None) };
        Ok(device.is_claimed()?.then(|| source(&found.disk, &data, ours)))
    }

    fn is_same_device(&self, known: &Source) -> Result<bool> {
        let Source::Device(known) = known else { return Ok(false) };
        let Some(disk) = disk::of(Path::new(SYSFS), known.number)? else { return Ok(false) };
        let now = place(&disk, known.number);
        let Some((lasting, recorded)) = known.identity.split_once('@') else { return Ok(false) };
        if recorded != now {
            return Ok(false);
        }
        let Some(named) = lasting.strip_prefix(OURS) else { return Ok(lasting == static_identity(&disk)) };
        Ok(match self.look_in_time(&disk) {
            Seen::Ours(ours) => named_by(&ours) == named,
            // Nobody could give a disk to another volume that does not answer, or whose partition is in use.
            Seen::Unknown(_) => true,
            Seen::Unclaimed | Seen::Unfit(_) | Seen::Others(_) => {
                Device::open_if_there(&known.path, known.number)?.map(|device| device.is_claimed()).transpose()? == Some(true)
            }
        })
    }

    fn disconnect(&self, id: &VolumeId, hint: Option<&Source>) -> Result<Outcome<()>> {
        let known = match hint {
            Some(hint) if self.is_same_device(hint)? => Some(hint.clone()),
            _ => self.connected(id, None)?,
        };
        if let Some(Source::Device(known)) = known
            && let Some(device) = Device::open_if_there(&known.path, known.number)?
            && device.is_claimed()?
        {
            let by = holders::in_words(known.number, &known.path);
            return Err(Error::StillInUse { object: format!("volume {id} ({})", known.path.display()), by });
        }
        lock(&self.blank).remove(id);
        Ok(Outcome::Unchanged(()))
    }

    fn refresh(&self, id: &VolumeId, source: &Source) -> Result<Bytes> {
        size_of(self, id, source)
    }

    fn known_blank(&self, id: &VolumeId, _publish_context: &std::collections::BTreeMap<String, String>) -> bool {
        lock(&self.blank).contains(id)
    }

    fn about_to_write(&self, id: &VolumeId, source: &Source) -> Result<()> {
        // A static volume has no record.
        if !matches!(source, Source::Device(device) if device.identity.starts_with(OURS)) {
            return Ok(());
        }
        let looked = self.scan()?;
        let (found, ours) = self.find_volume(&looked, id)?.ok_or_else(|| Error::volume_not_found(id))?;
        // It never becomes blank again.
        if ours.record.volume().is_some_and(|volume| !volume.blank) {
            return Ok(());
        }
        let mut held = self.hold_for(found, id)?;
        let Some(mut volume) = held.record.as_ref().and_then(Record::volume).filter(|volume| volume.blank).cloned() else {
            return Ok(());
        };
        volume.blank = false;
        held.set("clear blank", id, State::Volume(volume))
    }

    fn limit(&self) -> Option<u64> {
        self.config.volumes_per_node
    }
}

impl DiskBackend {
    /// The device of a static volume: a disk, or a partition, which is not a volume of the driver's.
    fn static_source(&self, path: &Path) -> Result<Source> {
        let device = Device::open(path, false).map_err(|error| {
            let reason = format!("{error}; see `ls -l {}` on the node", path.parent().unwrap_or(path).display());
            Error::BackendUnavailable { backend: self.config.name.to_string(), reason }
        })?;
        let number = device.number();
        let disk = disk::of(Path::new(SYSFS), number)?;
        let disk = disk.ok_or_else(|| Error::failed("look at device", path.display().to_string(), "sysfs does not show it"))?;
        let in_use = |by: String| Err(Error::InUse { object: path.display().to_string(), by });
        match self.look_in_time(&disk) {
            Seen::Ours(ours) => match &ours.record.state {
                State::Retained { .. } if disk.partition(gpt::DATA).is_some_and(|data| data.number == number) => {}
                State::Retained { .. } => return in_use("its data is in its second partition".to_owned()),
                _ => return in_use("the driver uses it for volumes of its own".to_owned()),
            },
            Seen::Unknown(why) => return Err(Error::BackendUnavailable { backend: self.config.name.to_string(), reason: why }),
            Seen::Others(by) => return in_use(by),
            Seen::Unclaimed if self.scan()?.iter().any(|looked| looked.disk.number == disk.number) => {
                return in_use(
                    "it is blank, and of a class, so that it may be given to another volume; `exclude` it there".to_owned(),
                );
            }
            Seen::Unclaimed | Seen::Unfit(_) => {}
        }
        let partition = disk.partitions.iter().find(|partition| partition.number == number);
        if partition.is_none() && !(disk.holders.is_empty() && disk.partitions.is_empty()) {
            return in_use("it has partitions, or another device is made of it".to_owned());
        }
        let path = partition.map_or_else(|| disk.path(), disk::Partition::path);
        Ok(Source::Device(BlockDevice { path, number, identity: format!("{}@{}", static_identity(&disk), place(&disk, number)) }))
    }
}

/// How the identity of what the driver made begins; after it comes what no other volume has, be it on the same disk.
const OURS: &str = "disk-";

fn named_by(ours: &Ours) -> String {
    let generation = match &ours.record.state {
        State::Volume(volume) | State::Wiping { volume, .. } | State::Retained { volume } => volume.generation,
        State::Claiming | State::Free => 0,
    };
    format!("{}-{generation}", ours.record.disk)
}

/// By the serial that its disk has, whatever is on it.
fn static_identity(disk: &Disk) -> String {
    let name = disk.wwid.as_ref().or(disk.serial.as_ref()).unwrap_or(&disk.name);
    format!("device-{}", name.replace('@', "_"))
}

/// Where a device is in this boot: on which of all disks that came, and from which of its bytes on. It may grow.
fn place(disk: &Disk, number: (u32, u32)) -> String {
    let start = disk.partitions.iter().find(|partition| partition.number == number).map_or(0, |partition| partition.start);
    format!("{}:{start}", disk.sequence.map_or_else(|| disk.name.clone(), |sequence| sequence.to_string()))
}

fn source(disk: &Disk, data: &disk::Partition, ours: &Ours) -> Source {
    let identity = format!("{OURS}{}@{}", named_by(ours), place(disk, data.number));
    Source::Device(BlockDevice { path: data.path(), number: data.number, identity })
}

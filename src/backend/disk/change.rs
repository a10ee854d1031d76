//! The record of a disk is changed: by one process at a time, and only where it still is what it was seen to be.

use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::os;
use crate::os::block::Device;
use crate::os::disk::{self, Disk, gpt, record};
use crate::os::step::step;
use crate::os::{holders, udev};
use crate::volume::{Error, Result, VolumeId};

use super::DiskBackend;
use super::look::{Looked, Ours, SYSFS, Seen, open};
use super::record::{Record, State};

/// udevd holds a shared lock of a disk while it reads it, and leaves one alone that is locked (systemd's "Locking Block Device Access").
const PATIENCE: Duration = Duration::from_secs(5);
/// For how long who only looks at a device may have it open: udevd, lsblk, a program that is being started.
pub(super) const MOMENT: Duration = Duration::from_secs(2);

/// A disk that no other process changes meanwhile, as long as all find it by the same node in /dev, on which the lock is.
pub(super) struct Held {
    pub(super) disk: Disk,
    /// Of the whole disk. Its descriptor has the lock.
    pub(super) device: Device,
    pub(super) record: Option<Record>,
    sequence: u64,
}

impl DiskBackend {
    /// Locks a disk; `None` where another has it, or it is no longer what it was seen to be.
    pub(super) fn hold(&self, looked: &Looked) -> Result<Option<Held>> {
        let device = open(&looked.disk.path(), looked.disk.number, false)?;
        let until = Instant::now().checked_add(PATIENCE);
        let locked = udev::wait_until(until, || match flock(device.file(), FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(true),
            Err(Errno::WOULDBLOCK) => Ok(false),
            Err(errno) => Err(os::Error::io("lock", device.path(), errno)),
        })?;
        if !locked {
            return Ok(None);
        }
        let Some(disk) = disk::of(Path::new(SYSFS), device.number())? else { return Ok(None) };
        if disk.sequence != looked.disk.sequence {
            return Ok(None);
        }
        let (record, sequence) = match (self.look_in_time(&disk), &looked.seen) {
            (Seen::Ours(now), Seen::Ours(before)) if same(&now, before) => (Some(now.record), now.sequence),
            (Seen::Unclaimed, Seen::Unclaimed) => (None, 0),
            _ => return Ok(None),
        };
        let mut held = Held { disk, device, record, sequence };
        // After a power cut, or where one has decayed: else what was before could come back with the next one.
        if let (Seen::Ours(ours), Some(record)) = (&looked.seen, held.record.clone())
            && !ours.even
            && let Some(volume) = record.id()
        {
            held.write("write both copies of the record", &volume, record)?;
        }
        Ok(Some(held))
    }

    /// As `hold`, for a disk of this volume.
    ///
    /// # Errors
    /// `InProgress` where another process changes it.
    pub(super) fn hold_for(&self, looked: &Looked, id: &VolumeId) -> Result<Held> {
        self.hold(looked)?.ok_or_else(|| Error::InProgress {
            object: format!("volume {id}"),
            reason: format!("another process has {} locked, or has changed its record", looked.path.display()),
        })
    }
}

fn same(now: &Ours, before: &Ours) -> bool {
    now.sequence == before.sequence && now.record == before.record
}

impl Held {
    /// Writes the record with another state, durable on return.
    pub(super) fn set(&mut self, name: &'static str, id: &VolumeId, state: State) -> Result<()> {
        let mut record = self.record.clone().ok_or_else(|| Error::failed(name, id.to_string(), "its disk has no record"))?;
        record.state = state;
        self.write(name, id, record)
    }

    pub(super) fn write(&mut self, name: &'static str, id: &VolumeId, record: Record) -> Result<()> {
        Ok(step(name, id, || self.put(record))?)
    }

    /// As `set`, within the step that makes the progress.
    pub(super) fn note_progress(&mut self, state: State) -> os::Result<()> {
        let Some(mut record) = self.record.clone() else { return Ok(()) };
        record.state = state;
        self.put(record)
    }

    fn put(&mut self, record: Record) -> os::Result<()> {
        let (device, offset) = self.place()?;
        record::write(&device, offset, &record.encode()?, self.sequence + 1)?;
        (self.record, self.sequence) = (Some(record), self.sequence + 1);
        Ok(())
    }

    /// Reads anew what the kernel shows of the disk.
    pub(super) fn refresh(&mut self) -> os::Result<()> {
        if let Some(disk) = disk::of(Path::new(SYSFS), self.device.number())? {
            self.disk = disk;
        }
        Ok(())
    }

    /// Takes the partition of the data away, by which it is seen that nobody has it open; the one that is made next is the same. Who reads it
    /// for a moment (udevd) is waited for.
    ///
    /// # Errors
    /// `InUse`, naming who has it open.
    pub(super) fn take_away_data(&mut self, id: &VolumeId) -> Result<()> {
        let data = self.data(id)?;
        let gone = step("take partition away", id, || {
            udev::wait_until(Instant::now().checked_add(MOMENT), || match gpt::delete_partition(&self.device) {
                Ok(()) => Ok(true),
                Err(error) if error.errno() == Some(libc::EBUSY) => Ok(false),
                Err(error) => Err(error),
            })
        })?;
        if gone { Ok(self.refresh()?) } else { Err(in_use(id, &data)) }
    }

    /// Opens the partition of the data, which nobody else has open exclusively meanwhile.
    ///
    /// # Errors
    /// As `take_away_data`.
    pub(super) fn open_data(&mut self, id: &VolumeId) -> Result<Device> {
        let data = self.data(id)?;
        match open_alone(&data.path())? {
            Some(device) if device.number() == data.number => Ok(device),
            Some(_) => Err(Error::failed("open", data.path().display().to_string(), "it is another device than a moment ago")),
            None => Err(in_use(id, &data)),
        }
    }

    /// Unlocks it.
    pub(super) fn release(self) {
        let Held { disk, device, .. } = self;
        drop(device);
        disk::announce(&disk);
    }

    pub(super) fn generation(&self) -> u64 {
        self.sequence + 1
    }

    /// Where the record is written. When a whole disk is closed that was open for writing, udevd has the kernel read its partition table anew,
    /// and partitions come and go: so it is the record's own partition, where the kernel shows it.
    fn place(&self) -> os::Result<(Device, u64)> {
        let own = self.disk.partition(gpt::RECORD).filter(|own| (own.start, own.size) == (gpt::RECORD_START, record::LENGTH));
        match own {
            Some(own) => Ok((open(&own.path(), own.number, true)?, 0)),
            None => Ok((open(&self.disk.path(), self.disk.number, true)?, gpt::RECORD_START)),
        }
    }

    /// The partition of the data, which the kernel shows from then on.
    pub(super) fn data(&mut self, id: &VolumeId) -> Result<disk::Partition> {
        let size = self.record.as_ref().map_or(self.disk.size, Record::size);
        if self.disk.partition(gpt::DATA).is_none() || self.disk.partition(gpt::RECORD).is_none() {
            step("show partitions", id, || gpt::add_partitions(&self.device, size, &self.disk.partitions))?;
            self.refresh()?;
        }
        data_of(&self.disk, size)
    }
}

fn in_use(id: &VolumeId, data: &disk::Partition) -> Error {
    let by = holders::in_words(data.number, &data.path());
    Error::InUse { object: format!("volume {id} ({})", data.path().display()), by }
}

/// Opens a device exclusively; `None` where another has it so. A program that this process starts has what was open here until its exec, which is
/// waited for.
pub(super) fn open_alone(path: &Path) -> os::Result<Option<Device>> {
    let mut opened = None;
    udev::wait_until(Instant::now().checked_add(MOMENT), || match Device::open_exclusive(path) {
        Ok(device) => {
            opened = Some(device);
            Ok(true)
        }
        Err(error) if error.errno() == Some(libc::EBUSY) => Ok(false),
        Err(error) => Err(error),
    })?;
    Ok(opened)
}

/// The partition of a disk's data, as the kernel shows it, `size` being what the record says of the disk's.
///
/// # Errors
/// `InProgress` where it does not show it; `Unverified` where it has another place.
pub(super) fn data_of(disk: &Disk, size: u64) -> Result<disk::Partition> {
    let Some(data) = disk.partition(gpt::DATA) else {
        let reason = "the kernel does not show its partition yet".to_owned();
        return Err(Error::InProgress { object: disk.path().display().to_string(), reason });
    };
    if (data.start, data.size) == (gpt::DATA_START, gpt::data_size(size)) {
        return Ok(data.clone());
    }
    let reason = format!("the kernel shows its partition {} elsewhere than it is; run `partx --update`", data.name);
    Err(Error::Unverified { device: disk.path().display().to_string(), reason })
}

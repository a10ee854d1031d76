//! Volumes come and go: a disk is proven to be blank once, and overwritten with zeroes after each volume.

use std::sync::Arc;
use std::time::Instant;

use crate::backend::{CapacityAnswer, CapacityQuery, PoolUsage, Provision, Provisioned, Quiesce, VolumeSpec};
use crate::os::block::Device;
use crate::os::disk::{Disk, gpt};
use crate::os::fs::{Contents, Evidence, probe};
use crate::os::step::{note, step};
use crate::os::{holders, lock, udev};
use crate::volume::{Bytes, Error, OnDelete, Outcome, Result, Volume, VolumeId};

use super::change::{Held, MOMENT, open_alone};
use super::config::{DiskClass, DiskParameters, Proof};
use super::look::{Looked, Ours, Seen, check_sound, instance};
use super::record::{Record, State, VolumeRecord};
use super::{DiskBackend, modify};

/// How much is overwritten between two notes of it in the record, in bytes.
const NOTED: u64 = 16 << 30;

impl Provision for DiskBackend {
    fn find(&self, id: &VolumeId) -> Result<Option<Volume>> {
        let looked = self.scan()?;
        let Some((_, ours)) = self.find_volume(&looked, id)? else { return Ok(None) };
        self.volume(&ours.record)
    }

    fn find_for_create(&self, id: &VolumeId, _parameters: &serde_json::Value) -> Result<Option<Volume>> {
        let looked = self.scan()?;
        let Some((looked, ours)) = self.find_volume(&looked, id)? else { return Ok(None) };
        check_sound(looked, ours)?;
        self.volume(&ours.record)
    }

    fn create(&self, spec: &VolumeSpec, _quiesce: &dyn Quiesce) -> Result<Volume> {
        let parameters = DiskParameters::from_json(&spec.parameters["backend"])?;
        let class = self.config.class(parameters.device_class.as_deref())?;
        let unsupported = |what: &str, reason: &str| Err(Error::Unsupported { what: what.to_owned(), reason: reason.to_owned() });
        if spec.source.is_some() {
            return unsupported("copying a volume", "a disk has no snapshots, and copying one takes hours");
        }
        if spec.id.is_ephemeral() {
            return unsupported("an ephemeral inline volume", "it would take, and wipe, a whole disk; name another backend");
        }
        let looked = self.scan()?;
        let fits =
            |looked: &&Looked| looked.capacity() >= spec.capacity.0 && spec.limit.is_none_or(|most| looked.capacity() <= most.0);
        let mut candidates: Vec<&Looked> = looked.iter().filter(|looked| looked.is_free(class)).filter(fits).collect();
        // What is known to be blank first, since reading all of another takes hours; one on which it failed before last.
        let failed = |looked: &Looked| lock(&self.failed).contains(&instance(&looked.disk));
        candidates.sort_by_key(|looked| (failed(looked), looked.capacity(), looked.ours().is_none()));
        let mut busy = None;
        for candidate in candidates {
            let Some(mut held) = self.hold(candidate)? else {
                busy = Some(candidate.path.display());
                continue;
            };
            lock(&self.failed).insert(instance(&candidate.disk));
            if !self.claim(&mut held, class, &spec.id)? {
                continue;
            }
            // Nobody gets the partition until the record says whose it is: a lock on the disk's node keeps only those off who ask for it.
            let Some(alone) = self.open_blank(&mut held, &spec.id)? else { continue };
            let generation = held.generation();
            let on_delete = if spec.mutable.is_empty() { None } else { Some(modify::parse(&spec.mutable)?) };
            let (id, name, parameters) = (spec.id.unrecorded(), spec.name.clone(), spec.parameters.clone());
            let volume = VolumeRecord { id, name, parameters, on_delete, generation, blank: true };
            held.set("record volume", &spec.id, State::Volume(volume))?;
            drop(alone);
            let made = held.record.as_ref().map(|record| self.volume(record)).transpose()?.flatten();
            held.release();
            lock(&self.failed).remove(&instance(&candidate.disk));
            return made.ok_or_else(|| Error::failed("create volume", spec.id.to_string(), "its record says nothing of it"));
        }
        match busy {
            Some(path) => Err(Error::InProgress {
                object: format!("volume {}", spec.id),
                reason: format!("{path} is being prepared for another volume, and no other disk is free"),
            }),
            None => Err(Error::NoCapacity { place: format!("class {}", class.name), reason: no_disk(spec, class, &looked) }),
        }
    }

    fn delete(&self, id: &VolumeId) -> Result<Outcome<()>> {
        let looked = self.scan()?;
        let unfinished =
            looked.iter().find_map(|looked| looked.ours().filter(|ours| is_wiping(ours, id)).map(|ours| (looked, ours)));
        let found = unfinished.map_or_else(|| self.find_volume(&looked, id), |unfinished| Ok(Some(unfinished)))?;
        let Some((found, ours)) = found else { return Ok(Outcome::Unchanged(())) };
        check_sound(found, ours)?;
        if let Some(why) = &ours.copied {
            let reason = format!(
                "{why}; nothing was done to it: wipe the disk by hand, and see docs/disk.md on volumes whose disk is gone"
            );
            return Err(Error::Unverified { device: found.path.display().to_string(), reason });
        }
        let mut held = self.hold_for(found, id)?;
        held.take_away_data(id)?;
        let Some(record) = held.record.clone() else { return Ok(Outcome::Unchanged(())) };
        match record.state {
            State::Volume(volume) => match volume.on_delete()? {
                OnDelete::Retain => {
                    held.set("retain volume", id, State::Retained { volume })?;
                    // For the administrator, to whom it belongs from now on.
                    held.data(id)?;
                }
                _ if volume.blank && !record.sampled => held.set("free disk", id, State::Free)?,
                _ => {
                    held.set("mark for wiping", id, State::Wiping { volume, done: 0 })?;
                    self.wipe(held, id)?;
                }
            },
            State::Wiping { .. } => self.wipe(held, id)?,
            State::Claiming | State::Free | State::Retained { .. } => return Ok(Outcome::Unchanged(())),
        }
        lock(&self.blank).remove(id);
        Ok(Outcome::Changed(()))
    }

    fn list(&self, after: Option<&VolumeId>, max: usize) -> Result<Vec<Volume>> {
        let looked = self.scan()?;
        let volumes = self.volumes(&looked)?.into_iter().map(|(volume, ..)| volume);
        Ok(volumes.filter(|volume| after.is_none_or(|after| volume.id > *after)).take(max).collect())
    }

    fn capacity(&self, query: &CapacityQuery) -> Result<CapacityAnswer> {
        let parameters = DiskParameters::from_json(&query.parameters)?;
        let class = self.config.class(parameters.device_class.as_deref())?;
        let looked = self.scan()?;
        self.remember_usage(class, &looked);
        let minimum = query.least.max(Bytes(1 << 20)).round_up(1 << 20);
        // As long as one may hold any volume, none is made: pods are to be placed elsewhere.
        if looked.iter().any(|looked| matches!(looked.seen, Seen::Unknown(_))) {
            return Ok(CapacityAnswer { available: Bytes(0), maximum: Bytes(0), minimum });
        }
        let free: Vec<u64> = looked.iter().filter(|looked| looked.is_free(class)).map(Looked::capacity).collect();
        let maximum = Bytes(free.iter().copied().max().unwrap_or(0));
        Ok(CapacityAnswer { available: Bytes(free.iter().sum()), maximum, minimum })
    }
}

impl DiskBackend {
    /// The volume on a disk, if it is whole. The id that the CO keeps names the disk: where that is not seen, the volume is not taken for
    /// deleted.
    pub(super) fn volume(&self, record: &Record) -> Result<Option<Volume>> {
        let Some(volume) = record.volume() else { return Ok(None) };
        Ok(Some(Volume {
            id: volume.id.record(&record.disk_id())?,
            name: volume.name.clone(),
            capacity: Bytes(gpt::data_size(record.size())),
            source: None,
            parameters: Arc::new(volume.parameters.clone()),
            topology: self.topology.iter().cloned().collect(),
            for_one_node: true,
        }))
    }

    /// All volumes that are whole, in the order of their ids, each with its disk.
    pub(super) fn volumes<'a>(&self, looked: &'a [Looked]) -> Result<Vec<(Volume, &'a Looked, &'a Ours)>> {
        let ours = looked.iter().filter_map(|looked| Some((looked, looked.ours()?)));
        let volume = |(looked, ours): (&'a Looked, &'a Ours)| Ok(self.volume(&ours.record)?.map(|volume| (volume, looked, ours)));
        let mut volumes: Vec<_> = ours.map(volume).filter_map(Result::transpose).collect::<Result<_>>()?;
        volumes.sort_by(|a, b| a.0.id.cmp(&b.0.id));
        Ok(volumes)
    }

    /// Makes a disk the driver's, if it is blank everywhere and nobody has it. One that is already stays as it is.
    fn claim(&self, held: &mut Held, class: &DiskClass, id: &VolumeId) -> Result<bool> {
        if held.record.as_ref().is_some_and(|record| record.state != State::Claiming) {
            return Ok(true);
        }
        let path = held.disk.path();
        let Some(device) = open_alone(&path)?.filter(|device| device.number() == held.disk.number) else { return Ok(false) };
        check_unused(&held.disk, id)?;
        if held.record.is_none() {
            let evidence = match class.proof {
                Proof::Full => Evidence::None,
                Proof::Samples => Evidence::MadeEmpty,
            };
            // Once more at the end: what came while all of it was read may be behind where it was read.
            for (name, evidence) in [("prove blank", evidence), ("prove blank again", Evidence::MadeEmpty)] {
                device.drop_cache()?;
                let contents = step(name, id, || probe(&device, evidence))?;
                if contents != Contents::Blank {
                    self.refuse(&held.disk, format!("it is not blank: {contents:?}"));
                    return Ok(false);
                }
            }
            // Proving it may have taken hours.
            check_unused(&held.disk, id)?;
            // From here on what is on it is the driver's, and is written again after an interruption.
            let record = Record::claiming(&self.config.name, &held.disk, class.proof == Proof::Samples)?;
            held.write("claim disk", id, record)?;
        }
        let Some(record) = held.record.clone() else { return Ok(false) };
        let table = gpt::Table::new(record.size(), held.disk.block, record.disk, record.data)?;
        if !table.has_room(&device)? {
            self.refuse(&held.disk, "it was written to while its partition table was not there yet".to_owned());
            return Ok(false);
        }
        step("write partition table", id, || table.write(&device))?;
        drop(device);
        // The kernel may have read it by itself by now.
        held.refresh()?;
        held.set("free disk", id, State::Free)?;
        Ok(true)
    }

    /// The partition of a free disk, once it was seen that nobody has it open, or has written to it.
    fn open_blank(&self, held: &mut Held, id: &VolumeId) -> Result<Option<Device>> {
        let device = match held.take_away_data(id).and_then(|()| held.open_data(id)) {
            Ok(device) => device,
            Err(Error::InUse { object, by }) => return Err(Error::InProgress { object, reason: by }),
            Err(error) => return Err(error),
        };
        device.drop_cache()?;
        let contents = step("check blank", id, || probe(&device, Evidence::MadeEmpty))?;
        if contents != Contents::Blank {
            self.refuse(&held.disk, format!("its partition was written to: {contents:?}"));
            return Ok(None);
        }
        Ok(Some(device))
    }

    /// Overwrites with zeroes, from where it was interrupted, and frees the disk.
    fn wipe(&self, mut held: Held, id: &VolumeId) -> Result<()> {
        let Some(State::Wiping { volume, done }) = held.record.as_ref().map(|record| record.state.clone()) else {
            return Err(Error::failed("wipe", id.to_string(), "it is not marked for that"));
        };
        let device = held.open_data(id)?;
        let size = device.size()?;
        let mut noted = done;
        step("zero", id, || {
            device.zero_out(done, |done| {
                note("zero", &format_args!("{} of {} MiB of {id}", done >> 20, size >> 20));
                if done - noted >= NOTED {
                    device.flush()?;
                    noted = done;
                    held.note_progress(State::Wiping { volume: volume.clone(), done })?;
                }
                Ok(())
            })
        })?;
        if volume.on_delete()? == OnDelete::Scrub {
            device.drop_cache()?;
            let contents = step("verify zeroes", id, || probe(&device, Evidence::None))?;
            if contents != Contents::Blank {
                let reason = format!("it was overwritten with zeroes, and {contents:?} is read; replace the disk");
                return Err(Error::Unverified { device: device.path().display().to_string(), reason });
            }
        }
        drop(device);
        // Who opened it meanwhile may have written behind.
        if let Err(error) = held.take_away_data(id) {
            held.set("mark for wiping", id, State::Wiping { volume, done: 0 })?;
            return Err(error);
        }
        let mut record = held.record.clone().ok_or_else(|| Error::failed("wipe", id.to_string(), "its disk has no record"))?;
        (record.state, record.sampled) = (State::Free, false);
        held.write("free disk", id, record)?;
        held.release();
        Ok(())
    }

    /// For metrics.
    fn remember_usage(&self, class: &DiskClass, looked: &[Looked]) {
        let looked: Vec<&Looked> = looked.iter().filter(|looked| looked.is_of(class)).collect();
        let sum = |which: &dyn Fn(&Looked) -> bool| Bytes(looked.iter().filter(|one| which(one)).map(|one| one.capacity()).sum());
        let is_volume = |looked: &Looked| looked.ours().is_some_and(|ours| ours.record.volume().is_some());
        let provisioned = Provisioned {
            provisioned: sum(&is_volume),
            volumes: looked.iter().filter(|looked| is_volume(looked)).count() as u64,
            snapshots: 0,
        };
        let usage = PoolUsage {
            total: sum(&|_| true),
            used: None,
            metadata: None,
            provisionable: sum(&|looked| looked.is_free(class)),
            provisioned: Some(provisioned),
        };
        lock(&self.usage).insert(class.name.clone(), usage);
    }
}

/// Raw block volumes of others are blank at first, too. Who only looks at a disk (udevd, lsblk) is gone in a moment.
///
/// # Errors
/// `InProgress`, naming who has it, as far as this process sees others.
fn check_unused(disk: &Disk, id: &VolumeId) -> Result<()> {
    let (path, mut users) = (disk.path(), Vec::new());
    udev::wait_until(Instant::now().checked_add(MOMENT), || {
        users = holders::binds(&disk.name);
        users.extend(holders::of(disk.number, &path));
        Ok(users.is_empty())
    })?;
    if users.is_empty() {
        return Ok(());
    }
    let reason = format!("{} is blank, but in use: {}", path.display(), holders::listed(&users));
    Err(Error::InProgress { object: format!("volume {id}"), reason })
}

fn is_wiping(ours: &Ours, id: &VolumeId) -> bool {
    let State::Wiping { volume, .. } = &ours.record.state else { return false };
    id.recorded().is_none_or(|named| ours.record.disk_id() == named) && volume.id == id.unrecorded()
}

/// Why no disk is there for a volume.
fn no_disk(spec: &VolumeSpec, class: &DiskClass, looked: &[Looked]) -> String {
    let free: Vec<u64> = looked.iter().filter(|looked| looked.is_free(class)).map(Looked::capacity).collect();
    let asked = match spec.limit {
        Some(most) => format!("{} to {most}", spec.capacity),
        None => format!("at least {}", spec.capacity),
    };
    let largest = free.iter().max().map(|size| format!(", the largest with {}", Bytes(*size))).unwrap_or_default();
    let (all, free) = (looked.iter().filter(|looked| looked.is_of(class)).count(), free.len());
    format!(
        "{asked} is asked for; of {all} disks {free} seemed free{largest}; `longshore inspect` and the driver's log show why others are not"
    )
}

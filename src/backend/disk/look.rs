//! Which disks there are, and what each is: a volume's, free, not yet used, or not to be touched.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::os::block::Device;
use crate::os::deadline::within;
use crate::os::disk::{self, Disk, gpt, record};
use crate::os::fs::{Contents, Evidence, probe};
use crate::os::{self, lock, udev};
use crate::volume::{BackendName, Error, Result, VolumeId};

use super::DiskBackend;
use super::config::{DiskClass, Proof};
use super::record::{Record, State};

pub(super) const SYSFS: &str = "/sys";
/// A disk that does not answer within this time is left alone until it does.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);
/// A smaller disk is none.
const LEAST: u64 = 16 << 20;

/// A disk of one of the classes.
#[derive(Clone, Debug)]
pub(super) struct Looked {
    pub(super) disk: Disk,
    /// By which people know it: a path that is the same after each boot, if there is one.
    pub(super) path: PathBuf,
    /// The names of the classes that take it.
    pub(super) classes: Vec<String>,
    pub(super) seen: Seen,
    /// Why it is not used, though nothing was seen on it: it was read, and is not blank.
    pub(super) refused: Option<String>,
}

#[derive(Clone, Debug)]
pub(super) enum Seen {
    /// It has a record of this backend.
    Ours(Box<Ours>),
    /// Nothing is seen on it. Whether that is so everywhere is proven before it is used.
    Unclaimed,
    /// It is not to be used: what was found, in words.
    Unfit(String),
    /// It has a record of another backend.
    Others(String),
    /// It could not be looked at, or has a record that cannot be read: it may hold a volume.
    Unknown(String),
}

#[derive(Clone, Debug)]
pub(super) struct Ours {
    pub(super) record: Record,
    /// How often the record was written.
    pub(super) sequence: u64,
    /// Both of its copies are the same.
    pub(super) even: bool,
    /// The partition table was changed: how.
    pub(super) table: Option<String>,
    /// Another disk has the same record.
    pub(super) twin: Option<String>,
    /// Why this is not the disk that the record was written for.
    pub(super) copied: Option<String>,
}

impl Ours {
    /// Why a volume on it is neither shown nor wiped.
    pub(super) fn unsound(&self) -> Option<&String> {
        self.twin.as_ref().or(self.table.as_ref())
    }
}

impl Looked {
    pub(super) fn ours(&self) -> Option<&Ours> {
        match &self.seen {
            Seen::Ours(ours) => Some(ours),
            Seen::Unclaimed | Seen::Unfit(_) | Seen::Others(_) | Seen::Unknown(_) => None,
        }
    }

    /// How large a volume on it is.
    pub(super) fn capacity(&self) -> u64 {
        gpt::data_size(self.ours().map_or(self.disk.size, |ours| ours.record.size()))
    }

    pub(super) fn is_of(&self, class: &DiskClass) -> bool {
        self.classes.contains(&class.name)
    }

    /// Whether a volume of this class can be made on it, as far as it is known now.
    pub(super) fn is_free(&self, class: &DiskClass) -> bool {
        if !self.is_of(class) || self.refused.is_some() || self.disk.read_only {
            return false;
        }
        match &self.seen {
            Seen::Unclaimed => true,
            Seen::Ours(ours) => {
                let sound = ours.copied.is_none() && ours.twin.is_none();
                let proven = class.proof == Proof::Samples || !ours.record.sampled;
                match ours.record.state {
                    State::Claiming => sound && proven,
                    State::Free => sound && proven && ours.table.is_none(),
                    State::Volume(_) | State::Wiping { .. } | State::Retained { .. } => false,
                }
            }
            Seen::Unfit(_) | Seen::Others(_) | Seen::Unknown(_) => false,
        }
    }
}

/// Set when its owner goes, however that is: also where no thread was to be had.
struct Ended(Arc<AtomicBool>);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// A disk for as long as it is in this machine.
pub(super) fn instance(disk: &Disk) -> String {
    format!("{}/{}", disk.name, disk.sequence.unwrap_or_default())
}

/// Whether another device is the same disk, by another path.
fn is_same(disk: &Disk, other: &Disk) -> bool {
    let same = |one: &Option<String>, other: &Option<String>| one.is_some() && one == other;
    let by_serial = || same(&disk.serial, &other.serial) && disk.size == other.size && disk.model == other.model;
    disk.name != other.name
        && if disk.wwid.is_some() && other.wwid.is_some() { same(&disk.wwid, &other.wwid) } else { by_serial() }
}

impl DiskBackend {
    /// All disks of all classes, looked at side by side.
    ///
    /// # Errors
    /// Where the kernel does not say which disks there are.
    pub(super) fn scan(&self) -> Result<Vec<Looked>> {
        // Before the links are read: a disk may be excluded by one that udev has yet to make.
        let done = udev::done();
        let mut links = BTreeMap::new();
        collect_links(Path::new("/dev/disk"), &mut links)?;
        let paths = |name: &str| {
            let mut paths = links.get(name).cloned().unwrap_or_default();
            paths.push(Path::new("/dev").join(name));
            paths
        };
        let may = |name: &str| self.config.classes.iter().any(|class| class.takes_path(&paths(name)));
        // A loop device has nothing by which it could be seen to be another path to a disk, and there may be hundreds.
        let all = disk::all(Path::new(SYSFS), |name| !name.starts_with("loop") || may(name))?;
        let mut looked: Vec<Looked> = all
            .iter()
            .filter_map(|disk| {
                let paths = paths(&disk.name);
                let classes = self.config.classes.iter().filter(|class| class.takes(disk, &paths));
                let classes: Vec<String> = classes.map(|class| class.name.clone()).collect();
                let path = paths.iter().find(|path| path.starts_with("/dev/disk/by-id")).cloned();
                let path = path.unwrap_or_else(|| disk.path());
                let refused = lock(&self.refused).get(&instance(disk)).cloned();
                // Until it was looked at; so it stays where no thread is to be had for that.
                let seen = Seen::Unknown("it was not looked at".to_owned());
                (!classes.is_empty()).then(|| Looked { disk: disk.clone(), path, classes, seen, refused })
            })
            .collect();
        std::thread::scope(|scope| {
            for looked in &mut looked {
                let disk = looked.disk.clone();
                let seen = &mut looked.seen;
                let work = move || *seen = self.look_in_time(&disk);
                if let Err(error) = std::thread::Builder::new().name("look".to_owned()).spawn_scoped(scope, work) {
                    tracing::warn!(%error, "no thread to look at a disk");
                }
            }
        });
        refuse_copies(&mut looked);
        for looked in &mut looked {
            if matches!(looked.seen, Seen::Unclaimed) && !udev::was_done_with(done.as_ref(), looked.disk.number) {
                looked.seen = Seen::Unknown("udev has not made its links yet".to_owned());
            }
            let others: Vec<&str> =
                all.iter().filter(|other| is_same(&looked.disk, other)).map(|other| other.name.as_str()).collect();
            if !others.is_empty() && looked.ours().is_none_or(|ours| ours.record.id().is_none()) {
                looked.refused =
                    Some(format!("it has the identity of {}, which is another path to it or a copy", others.join(", ")));
            }
        }
        Ok(looked)
    }

    /// A disk that has not answered is not asked again until it has.
    pub(super) fn look_in_time(&self, disk: &Disk) -> Seen {
        let late = || Seen::Unknown(format!("it has not answered within {} s; see the kernel's log", PATIENCE.as_secs()));
        if lock(&self.looks).get(&instance(disk)).is_some_and(|ended| !ended.load(Ordering::Acquire)) {
            return late();
        }
        let ended = Arc::new(AtomicBool::new(false));
        let (end, backend, own) = (Ended(ended.clone()), self.config.name.clone(), disk.clone());
        let seen = within(PATIENCE, move || {
            let _end = end;
            look(&backend, &own)
        });
        seen.unwrap_or_else(|| {
            lock(&self.looks).insert(instance(disk), ended);
            late()
        })
    }

    /// A disk on which something was found by reading all of it is not read again.
    pub(super) fn refuse(&self, disk: &Disk, why: String) {
        tracing::warn!(disk = %disk.path().display(), reason = %why, "not used for a volume");
        lock(&self.refused).insert(instance(disk), why);
    }

    /// The disk with a volume that is whole.
    ///
    /// # Errors
    /// `BackendUnavailable` where it is none of those that were looked at, and the disk that the id names is not among them, or some could not
    /// be looked at. `Unverified` where there are two.
    pub(super) fn find_volume<'a>(&self, looked: &'a [Looked], id: &VolumeId) -> Result<Option<(&'a Looked, &'a Ours)>> {
        let wanted = id.unrecorded();
        let named = id.recorded();
        let ours = looked.iter().filter_map(|looked| Some((looked, looked.ours()?)));
        let of_disk = ours.filter(|(_, ours)| named.is_none_or(|named| ours.record.disk_id() == named));
        let of_disk: Vec<_> = of_disk.collect();
        let found: Vec<_> =
            of_disk.iter().filter(|(_, ours)| ours.record.volume().is_some_and(|volume| volume.id == wanted)).copied().collect();
        match (found.as_slice(), named) {
            ([one], _) => Ok(Some(*one)),
            ([], Some(named)) if of_disk.is_empty() => {
                let reason = format!(
                    "disk {named} of volume {id} is not here, or is of no class: see `longshore inspect` and `lsblk -o NAME,PTUUID`; \
                     if it is gone for ever, see docs/disk.md"
                );
                Err(self.away(reason))
            }
            ([], Some(_)) => Ok(None),
            ([], None) => {
                let unknown = looked.iter().find_map(|looked| match &looked.seen {
                    Seen::Unknown(why) => Some((looked.path.display(), why)),
                    _ => None,
                });
                unknown.map_or(Ok(None), |(path, why)| {
                    let remedy = "repair it, or take it from the classes with `exclude`";
                    Err(self.away(format!("{path} may hold volume {id}: {why}; {remedy}")))
                })
            }
            ([one, other, ..], _) => Err(Error::Unverified {
                device: format!("volume {id}"),
                reason: format!(
                    "{} and {} both have a record of it; remove the one that is a copy, or was made by a call whose answer was lost",
                    one.0.path.display(),
                    other.0.path.display()
                ),
            }),
        }
    }

    fn away(&self, reason: String) -> Error {
        Error::BackendUnavailable { backend: self.config.name.to_string(), reason }
    }
}

/// Of two disks with one record neither is free, nor believed to be a volume.
fn refuse_copies(looked: &mut [Looked]) {
    let mut names: BTreeMap<gpt::Guid, Vec<String>> = BTreeMap::new();
    for looked in looked.iter() {
        if let Some(ours) = looked.ours() {
            names.entry(ours.record.disk).or_default().push(looked.disk.name.clone());
        }
    }
    for looked in looked {
        let Seen::Ours(ours) = &mut looked.seen else { continue };
        let others = names.get(&ours.record.disk).into_iter().flatten().filter(|name| **name != looked.disk.name);
        let others: Vec<&str> = others.map(String::as_str).collect();
        if !others.is_empty() {
            ours.twin =
                Some(format!("{} has the same record: it is a copy, which must be removed, or another path", others.join(", ")));
        }
    }
}

/// # Errors
/// `Unverified` where the partition table was changed, or another disk has the same record.
pub(super) fn check_sound(looked: &Looked, ours: &Ours) -> Result<()> {
    match ours.unsound() {
        None => Ok(()),
        Some(reason) => {
            let reason = format!("{reason}; nothing was done to it");
            Err(Error::Unverified { device: looked.path.display().to_string(), reason })
        }
    }
}

/// The links below `directory`, at any depth (udev makes `/dev/disk/azure/scsi1/lun0`), by the names of the disks that they lead to. What is
/// removed meanwhile, or is no link, is none.
///
/// # Errors
/// Where one cannot be read: a disk may be excluded by it.
fn collect_links(directory: &Path, found: &mut BTreeMap<String, Vec<PathBuf>>) -> os::Result<()> {
    let failed = |error| os::Error::io("list", directory, error);
    let entries = match std::fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(failed)?,
    };
    for entry in entries {
        let entry = entry.map_err(failed)?;
        let (path, kind) = (entry.path(), entry.file_type().map_err(failed)?);
        if kind.is_dir() {
            collect_links(&path, found)?;
        }
        if !kind.is_symlink() {
            continue;
        }
        let target = match std::fs::read_link(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            target => target.map_err(|error| os::Error::io("read link", &path, error))?,
        };
        if let Some(name) = target.file_name().and_then(|name| name.to_str()) {
            found.entry(name.to_owned()).or_default().push(path);
        }
    }
    Ok(())
}

/// Opens a disk or partition, seen to be the one that sysfs shows.
pub(super) fn open(path: &Path, number: (u32, u32), writable: bool) -> os::Result<Device> {
    let device = Device::open(path, writable)?;
    if device.number() == number {
        return Ok(device);
    }
    let reason = "it is another device than a moment ago".to_owned();
    Err(os::Error::Unexpected { object: path.display().to_string(), reason })
}

/// What a disk is. It may hang with it.
pub(super) fn look(backend: &BackendName, disk: &Disk) -> Seen {
    // As a controller shows its disk that has died.
    if disk.size == 0 {
        return Seen::Unknown("its size is 0".to_owned());
    }
    if disk.size < LEAST {
        return Seen::Unfit(format!("it has only {} MiB", disk.size >> 20));
    }
    let foreign = disk.partition(gpt::RECORD).is_none_or(|own| (own.start, own.size) != (gpt::RECORD_START, record::LENGTH));
    let parts = disk.partitions.iter().filter(|_| foreign).flat_map(|partition| &partition.holders);
    let holders: Vec<&str> = disk.holders.iter().chain(parts).map(String::as_str).collect();
    // Reading one path of several may fail, or hang.
    if !holders.is_empty() {
        return Seen::Unfit(format!("it is a part of {}", holders.join(", ")));
    }
    let read = || {
        let device = open(&disk.path(), disk.number, false)?;
        let table = record::read_direct(&device, 0, gpt::TABLE)?;
        let found = record::read_direct(&device, gpt::RECORD_START, record::LENGTH as usize)?;
        Ok::<_, os::Error>((device, table, found))
    };
    let (device, table, found) = match read() {
        Ok(read) => read,
        Err(error) => return Seen::Unknown(error.to_string()),
    };
    let (content, sequence, even) = match record::parse(&found) {
        record::Found::Record { content, sequence, even } => (content, sequence, even),
        record::Found::Damaged => return Seen::Unknown("its record is damaged".to_owned()),
        record::Found::None => return without_record(disk, &device).unwrap_or_else(|error| Seen::Unknown(error.to_string())),
    };
    match Record::decode(&content) {
        Ok(record) if record.backend != *backend => Seen::Others(format!("it is used by backend {}", record.backend)),
        Ok(record) => {
            let table = gpt::check(&table, disk.block, record.size(), record.data).err();
            let copied = record.copied_from(disk);
            Seen::Ours(Box::new(Ours { record, sequence, even, table, twin: None, copied }))
        }
        Err(why) => Seen::Unknown(why),
    }
}

fn without_record(disk: &Disk, device: &Device) -> os::Result<Seen> {
    let unfit = |what: String| Ok(Seen::Unfit(what));
    if record::read_direct(device, 0, gpt::DATA_START as usize)?.iter().any(|byte| *byte != 0) {
        return unfit(match probe(device, Evidence::None)? {
            Contents::Filesystem(fstype) => format!("it is not blank: it holds {fstype}"),
            Contents::Other(name) => format!("it is not blank: it holds {name}"),
            Contents::Unknown(why) => format!("it is not blank: {why}"),
            Contents::Blank => "it was written to a moment ago".to_owned(),
        });
    }
    // Last, since it keeps others from it for a moment: another look among them, which is waited for.
    let until = Instant::now().checked_add(Duration::from_secs(1));
    if !udev::wait_until(until, || Ok(!device.is_claimed()?))? {
        return unfit("it is mounted, swapped to, or otherwise in use".to_owned());
    }
    if !disk.partitions.is_empty() {
        let number = disk.partitions.len();
        return unfit(format!("the kernel shows {number} partitions of it, though it has no table; see `partx --delete`"));
    }
    if disk.read_only {
        return unfit("it is read-only".to_owned());
    }
    Ok(Seen::Unclaimed)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn links_are_found_at_any_depth_beside_what_is_none() {
        let directory = tempfile::tempdir().expect("a directory");
        let root = directory.path().join("disk");
        let mut found = BTreeMap::new();
        collect_links(&root, &mut found).expect("no such directory");
        assert!(found.is_empty());
        let lun = root.join("azure/scsi1");
        std::fs::create_dir_all(&lun).expect("a directory");
        std::fs::write(root.join("azure/notes"), "").expect("a file");
        symlink("../../../sdc", lun.join("lun0")).expect("a link");
        symlink("../../sdc", root.join("azure/resource")).expect("a link");
        collect_links(&root, &mut found).expect("read");
        found.get_mut("sdc").expect("the disk").sort();
        assert_eq!(found, BTreeMap::from([("sdc".to_owned(), vec![root.join("azure/resource"), lun.join("lun0")])]));
    }
}

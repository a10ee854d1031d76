//! What a node remembers of the units that it connects, in its state directory: written before the first login, removed after the last
//! logout, so that what a kill left is found and let go without secrets and without the CO. Passwords are not in it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::os;
use crate::os::durable;
use crate::os::iscsi::admin;
use crate::os::scsi;
use crate::os::step::step;
use crate::volume::{Error, Result, VolumeId};

const VERSION: u32 = 1;
const LONGEST: u64 = 64 << 10;

/// A volume that is connected here, or about to be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    version: u32,
    pub id: VolumeId,
    pub target: String,
    pub lun: u16,
    /// Through which it ought to be reached.
    pub portals: Vec<String>,
    /// By which its sessions are known.
    pub interface: String,
    /// `None` until it was seen.
    pub wwid: Option<String>,
    /// Of several portals one is used, and why.
    pub one_path: Option<String>,
    /// One that runs, or was interrupted.
    pub login: Option<Login>,
    /// By which attachment it is connected; `None` where that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attachment: Option<String>,
}

/// A login that may yet come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Login {
    pub portal: String,
    /// In seconds since the machine's boot; then it is over, whatever came of it.
    pub until: u64,
}

impl Login {
    /// How long after this uptime it may still come: not at all where it was of an earlier boot, which began to count anew.
    pub fn left(&self, uptime: Duration) -> Duration {
        let left = Duration::from_secs(self.until).saturating_sub(uptime);
        // `until` is in whole seconds, rounded up.
        if left > admin::LONGEST_LOGIN + Duration::from_secs(1) { Duration::ZERO } else { left }
    }
}

impl Entry {
    pub fn new(id: &VolumeId, target: &str, lun: u16, interface: &str) -> Entry {
        Entry {
            version: VERSION,
            id: id.clone(),
            target: target.to_owned(),
            lun,
            portals: Vec::new(),
            interface: interface.to_owned(),
            wwid: None,
            one_path: None,
            login: None,
            attachment: None,
        }
    }

    /// Whether it was connected by this attachment, as far as is known.
    pub fn is_by(&self, attachment: Option<&str>) -> bool {
        self.attachment.as_deref().zip(attachment).is_none_or(|(then, now)| then == now)
    }

    /// Whether it is the same unit, by whatever sessions it is reached.
    fn same_unit(&self, other: &Entry) -> bool {
        self.target == other.target && self.lun == other.lun
    }

    /// Whether it is the same unit, reached by the same sessions.
    pub fn same_paths(&self, other: &Entry) -> bool {
        self.same_unit(other) && self.interface == other.interface
    }

    /// Whether it is the same disk, which targets may show as several units. A WWID that some targets give to several disks proves nothing.
    fn same_disk(&self, other: &Entry) -> bool {
        self.registered().is_some_and(|wwid| other.wwid.as_deref() == Some(wwid))
    }

    fn registered(&self) -> Option<&str> {
        self.wwid.as_deref().filter(|wwid| scsi::is_registered(wwid))
    }

    /// Whether both cannot be connected: as one unit by the same sessions; as one disk; or, by the sessions of another initiator, as a unit
    /// of one number, which a target may give to another disk, as both WWIDs then say. That is seen once it is connected.
    fn excludes(&self, other: &Entry) -> bool {
        let differ = || self.registered().zip(other.registered()).is_some_and(|(one, other)| one != other);
        self.same_paths(other) || self.same_disk(other) || (self.same_unit(other) && self.wwid.is_some() && !differ())
    }
}

/// All of them, on disk and in memory.
#[derive(Debug)]
pub struct Connections {
    directory: PathBuf,
    entries: Mutex<BTreeMap<VolumeId, Entry>>,
}

impl Connections {
    /// Reads what is there; the directory is made by the first entry. What cannot be read is reported and left.
    pub fn open(directory: PathBuf) -> Connections {
        let (entries, unread) = read_all(&directory);
        for (path, reason) in unread {
            tracing::error!(path = %path.display(), reason, "what was connected is not known");
        }
        Connections { directory, entries: Mutex::new(entries) }
    }

    /// What is on the disk now: another process may be at it.
    ///
    /// # Errors
    /// Where an entry cannot be read: none is overlooked.
    pub fn read_again(&self) -> Result<Vec<Entry>> {
        let (entries, unread) = read_all(&self.directory);
        match unread.into_iter().next() {
            Some((path, reason)) => Err(Error::Unverified { device: path.display().to_string(), reason }),
            None => Ok(entries.into_values().collect()),
        }
    }

    /// Where a volume's entry is.
    pub fn path(&self, id: &VolumeId) -> PathBuf {
        self.directory.join(file(id))
    }

    pub fn get(&self, id: &VolumeId) -> Option<Entry> {
        self.lock().get(id).cloned()
    }

    /// In the order of their ids.
    pub fn all(&self) -> Vec<Entry> {
        self.lock().values().cloned().collect()
    }

    /// Writes an entry; a side effect, which belongs into a step.
    ///
    /// # Errors
    /// `InUse` where another volume has this unit, or its disk.
    pub fn keep(&self, entry: &Entry) -> Result<()> {
        let mut entries = self.lock();
        if entries.get(&entry.id) == Some(entry) {
            return Ok(());
        }
        ensure_only(&entries, entry)?;
        let text = serde_json::to_vec(entry).map_err(|error| Error::failed("remember session", entry.id.to_string(), error))?;
        std::fs::create_dir_all(&self.directory).map_err(|error| os::Error::io("make directory", &self.directory, error))?;
        durable::write(&self.directory, &file(&entry.id), &text)?;
        entries.insert(entry.id.clone(), entry.clone());
        Ok(())
    }

    /// Whether no other volume has this unit, or its disk.
    ///
    /// # Errors
    /// `InUse`, naming the other.
    pub fn ensure_only(&self, entry: &Entry) -> Result<()> {
        ensure_only(&self.lock(), entry)
    }

    /// Forgets a volume that is no longer connected.
    pub fn forget(&self, id: &VolumeId) -> Result<()> {
        let mut entries = self.lock();
        if entries.contains_key(id) {
            step("forget session", id, || durable::remove(&self.directory, &file(id)))?;
            entries.remove(id);
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<VolumeId, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Two caches of one disk lose data.
fn ensure_only(entries: &BTreeMap<VolumeId, Entry>, entry: &Entry) -> Result<()> {
    let same = |other: &&Entry| other.id != entry.id && entry.excludes(other);
    let Some(other) = entries.values().find(same) else { return Ok(()) };
    let mut by = format!("it is connected on this node as volume {}; unstage that first", other.id);
    if !other.same_unit(entry) {
        let (wwid, lun, target) = (entry.wwid.as_deref().unwrap_or_default(), other.lun, &other.target);
        by = format!(
            "its disk {wwid} is that of LUN {lun} of {target}, and {by}. If they are two disks, give each a WWID of its own"
        );
    }
    Err(Error::InUse { object: format!("LUN {} of {}", entry.lun, entry.target), by })
}

/// The id's own part holds letters, digits, dots, dashes and underscores only.
fn file(id: &VolumeId) -> String {
    format!("{}.json", id.local())
}

/// The entries of a directory, and what of it could not be read, and why.
fn read_all(directory: &Path) -> (BTreeMap<VolumeId, Entry>, Vec<(PathBuf, String)>) {
    let (mut entries, mut unread) = (BTreeMap::new(), Vec::new());
    match std::fs::read_dir(directory) {
        Ok(files) => {
            for path in files.filter_map(|file| Some(file.ok()?.path())) {
                match path.extension().is_some_and(|end| end == "json").then(|| read(&path)) {
                    Some(Ok(entry)) => drop(entries.insert(entry.id.clone(), entry)),
                    // Forgotten meanwhile.
                    Some(Err(_)) if !path.exists() => {}
                    Some(Err(reason)) => unread.push((path, reason)),
                    None => {}
                }
            }
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => unread.push((directory.to_owned(), error.to_string())),
    }
    (entries, unread)
}

fn read(path: &Path) -> Result<Entry, String> {
    let text = durable::read(path, LONGEST).map_err(|error| error.to_string())?.ok_or("it is gone")?;
    let entry: Entry = serde_json::from_slice(&text).map_err(|error| error.to_string())?;
    if entry.version != VERSION || path.file_name() != Some(file(&entry.id).as_ref()) {
        return Err(format!("it is of version {} and of volume {}", entry.version, entry.id));
    }
    Ok(entry)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_survives_a_restart_until_it_is_removed() {
        let directory = tempfile::tempdir().expect("a directory");
        let place = directory.path().join("iscsi/san");
        let id: VolumeId = "san:a".parse().expect("an id");
        let connections = Connections::open(place.clone());
        let mut entry = Entry::new(&id, "iqn.2001-04.com.example:x", 3, "longshore-1");
        connections.keep(&entry).expect("kept");
        entry.wwid = Some("naa.6".to_owned());
        connections.keep(&entry).expect("kept");
        assert_eq!(Connections::open(place.clone()).get(&id), Some(entry.clone()));
        let other = Entry::new(&"san:b".parse().expect("an id"), "iqn.2001-04.com.example:x", 3, "longshore-1");
        assert!(matches!(connections.keep(&other), Err(Error::InUse { .. })), "one unit, one volume");
        connections.keep(&Entry { lun: 4, ..other }).expect("another unit");
        connections.forget(&id).expect("forgotten");
        connections.forget(&id).expect("again");
        assert_eq!(Connections::open(place).all().len(), 1);
    }

    #[test]
    fn one_disk_is_not_two_volumes_of_a_node() {
        let directory = tempfile::tempdir().expect("a directory");
        let connections = Connections::open(directory.path().to_owned());
        let entry = |name: &str, lun, interface: &str, wwid: Option<&str>| Entry {
            wwid: wwid.map(str::to_owned),
            ..Entry::new(&name.parse().expect("an id"), "iqn.2001-04.com.example:x", lun, interface)
        };
        let (registered, poor) = ("naa.6001405f5d6bd2a3c4d1e0b8a7c6d5e4", "t10.IET 00010001");
        connections.keep(&entry("san:a", 1, "longshore-1", Some(registered))).expect("kept");
        let refusal = |entry: &Entry| match connections.keep(entry) {
            Err(Error::InUse { by, .. }) => by,
            other => panic!("{other:?}"),
        };
        assert!(refusal(&entry("san:b", 1, "longshore-1", None)).contains("san:a"), "the same unit");
        for wwid in [registered, poor] {
            assert!(refusal(&entry("san:b", 1, "longshore-2", Some(wwid))).contains("san:a"), "as another initiator: {wwid}");
        }
        let another = "naa.60014050000000000000000000000001";
        connections.ensure_only(&entry("san:b", 1, "longshore-2", Some(another))).expect("a LUN of another initiator's");
        connections.ensure_only(&entry("san:b", 1, "longshore-2", None)).expect("seen once it is connected");
        assert!(refusal(&entry("san:b", 2, "longshore-1", Some(registered))).contains("LUN 1 of"), "by another LUN");
        assert!(connections.ensure_only(&entry("san:b", 2, "longshore-1", Some(registered))).is_err());
        connections.keep(&entry("san:b", 2, "longshore-1", Some(poor))).expect("another disk");
        connections.keep(&entry("san:c", 3, "longshore-1", Some(poor))).expect("a WWID that proves nothing");
        connections.keep(&entry("san:d", 4, "longshore-1", None)).expect("not known yet");
    }

    #[test]
    fn connection_is_by_its_attachment_where_both_are_known() {
        let entry = Entry::new(&"san:a".parse().expect("an id"), "iqn.x", 0, "i");
        let text = serde_json::to_string(&entry).expect("JSON");
        assert!(!text.contains("attachment"), "as of an earlier version: {text}");
        assert_eq!(serde_json::from_str::<Entry>(&text).expect("an entry"), entry);
        assert!(entry.is_by(Some("1")) && entry.is_by(None));
        let entry = Entry { attachment: Some("1".to_owned()), ..entry };
        assert!(entry.is_by(Some("1")) && entry.is_by(None) && !entry.is_by(Some("2")));
    }

    #[test]
    fn interrupted_login_of_an_earlier_boot_is_not_waited_for() {
        let longest = admin::LONGEST_LOGIN.as_secs();
        let left = |until, uptime| Login { portal: String::new(), until }.left(Duration::from_secs(uptime)).as_secs();
        assert_eq!([left(longest + 100, 100), left(longest + 100, 110), left(100, 110)], [longest, longest - 10, 0]);
        assert_eq!(left(longest + 100_000, 60), 0, "it was 100,000 s after another boot");
    }

    #[test]
    fn a_damaged_entry_hides_no_other() {
        let directory = tempfile::tempdir().expect("a directory");
        let connections = Connections::open(directory.path().to_owned());
        connections.keep(&Entry::new(&"san:a".parse().expect("an id"), "iqn.x", 0, "i")).expect("kept");
        std::fs::write(directory.path().join("b.json"), "{").expect("a file");
        std::fs::copy(directory.path().join("a.json"), directory.path().join("c.json")).expect("a file");
        assert_eq!(Connections::open(directory.path().to_owned()).all().len(), 1);
    }
}

//! What this node has begun and not yet undone, on disk.
//!
//! `<state directory>/journal/<volume id>/stage.json`, and beside it one `target-<digest of the path>.json` per published
//! target. Written before the first side effect, removed after the last is undone. Each file is whole or not there.
//! A file that cannot be read is reported and kept aside as `.damaged`; nothing is guessed from it.
//!
//! No secrets: neither a request's secrets nor its publish_context are ever written here, nor the values of mount options
//! ([`RecordedFlags`]).

use std::collections::HashSet;
use std::fs;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::backend::{BlockDevice, Source};
use crate::ops::parameters::Parameters;
use crate::os::fs::Mark;
use crate::os::fs::mark::Purpose;
use crate::os::{self, durable};
use crate::volume::digest::{sha256, sha256_of};
use crate::volume::{AccessMode, Encryption, Error, MountFlags, NodeParameters, Result, VolumeId};

/// The form of the files; earlier ones are read as well. A file of a later form is left as it is, and its volume's calls are refused.
///
/// Any field that is added needs a new form: to an earlier version a field that it does not know is damage, and it would go on without
/// the entry.
pub const VERSION: u32 = 3;
/// The first form said of an interrupted mkfs, luksFormat or growth only that there was one. That is no evidence, and is not read.
const NO_EVIDENCE: [&str; 3] = ["formatting", "encrypting", "growing"];
/// The first form without [`NO_EVIDENCE`].
const WITH_EVIDENCE: u32 = 2;
/// No entry comes near it; what is larger is damaged.
const LONGEST: u64 = 1 << 20;
const STAGE: &str = "stage.json";
const FROZEN: &str = "frozen-";

/// How far a stage is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Begun, never acknowledged.
    Staging,
    /// Acknowledged.
    Staged,
    /// Its undoing has begun.
    Unstaging,
}

/// As what it is staged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Access {
    Block,
    Filesystem {
        /// The kernel's name of it; `None` until it is known.
        fstype: Option<String>,
        mount_flags: RecordedFlags,
    },
}

/// The mount options of a stage, which may hold passwords: names in clear, of each value a salted digest. That says whether a
/// repeated stage has the same options.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<String>", into = "Vec<String>")]
pub struct RecordedFlags(Vec<Recorded>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Recorded {
    name: String,
    /// Salt and digest.
    value: Option<(String, String)>,
}

impl Recorded {
    fn new(option: &str) -> Recorded {
        let (name, value) = option.split_once('=').map_or((option, None), |(name, value)| (name, Some(value)));
        let digested = |value| {
            let salt = format!("{:016x}", RandomState::new().build_hasher().finish());
            let digest = sha256_of([salt.as_str(), value]);
            (salt, digest)
        };
        Recorded { name: name.to_owned(), value: value.map(digested) }
    }

    /// What [`String::from`] wrote; `None` for an option in clear, as earlier versions wrote it.
    fn parse(text: &str) -> Option<Recorded> {
        let (name, rest) = text.split_once("=sha256:")?;
        let (salt, digest) = rest.split_once(':')?;
        let is_digits = |text: &str, length| text.len() == length && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let whole = is_digits(salt, 16) && is_digits(digest, 64);
        whole.then(|| Recorded { name: name.to_owned(), value: Some((salt.to_owned(), digest.to_owned())) })
    }

    fn is(&self, option: &str) -> bool {
        match (&self.value, option.split_once('=')) {
            (None, None) => self.name == option,
            (Some((salt, digest)), Some((name, value))) => self.name == name && sha256_of([salt.as_str(), value]) == *digest,
            _ => false,
        }
    }
}

impl From<Recorded> for String {
    fn from(recorded: Recorded) -> String {
        match recorded.value {
            Some((salt, digest)) => format!("{}=sha256:{salt}:{digest}", recorded.name),
            None => recorded.name,
        }
    }
}

impl From<Vec<String>> for RecordedFlags {
    fn from(written: Vec<String>) -> RecordedFlags {
        RecordedFlags(written.iter().map(|text| Recorded::parse(text).unwrap_or_else(|| Recorded::new(text))).collect())
    }
}

impl From<RecordedFlags> for Vec<String> {
    fn from(flags: RecordedFlags) -> Vec<String> {
        flags.0.into_iter().map(String::from).collect()
    }
}

impl From<&MountFlags> for RecordedFlags {
    fn from(flags: &MountFlags) -> RecordedFlags {
        RecordedFlags(flags.expose().iter().map(|option| Recorded::new(option)).collect())
    }
}

impl RecordedFlags {
    /// Whether these are the same, in whatever order.
    pub fn are(&self, flags: &MountFlags) -> bool {
        let mut left: Vec<&Recorded> = self.0.iter().collect();
        let found = flags.expose().iter().all(|option| {
            let at = left.iter().position(|recorded| recorded.is(option));
            at.map(|at| left.swap_remove(at)).is_some()
        });
        found && left.is_empty()
    }

    /// All of them, where none has a value.
    pub fn without_values(&self) -> Option<MountFlags> {
        self.0.iter().map(|recorded| recorded.value.is_none().then(|| recorded.name.clone())).collect()
    }

    /// With something else for each value, which still shows what the mount itself forbids (`nosuid`), and what to print.
    pub fn names(&self) -> MountFlags {
        let hidden = |recorded: &Recorded| if recorded.value.is_some() { "=" } else { "" };
        self.0.iter().map(|recorded| format!("{}{}", recorded.name, hidden(recorded))).collect()
    }
}

/// A volume that is staged here, or was to be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StageEntry {
    pub version: u32,
    pub id: VolumeId,
    pub phase: Phase,
    /// What `Connect::connect` answered; `None` until then.
    pub source: Option<Source>,
    /// The LUKS mapping that shows it in clear, where it is encrypted; `None` until then.
    #[serde(default)]
    pub mapping: Option<BlockDevice>,
    pub access: Access,
    pub mode: AccessMode,
    pub staging: PathBuf,
    pub read_only: bool,
    /// A format that was begun and not seen to end. It only says where to look: what is repeated is decided by the mark on the
    /// medium ([`crate::os::fs::mark`]), which all nodes see.
    #[serde(default)]
    pub format: Option<Format>,
    /// Set after a full check and before an ext4 that is not mounted is grown, cleared after it: what an interrupted resize2fs
    /// leaves is repaired, instead of being left to a person as damage is that nobody can explain. It holds what identifies the
    /// file system and its last mount ([`fs::ext4_uses`]): mounted since, on whatever node, its damage is no longer ours to repair.
    #[serde(default)]
    pub growth: Option<String>,
    /// An ephemeral volume, deleted when it is unpublished.
    pub inline: bool,
    /// The boot in which this was written: mounts and device numbers of another boot mean nothing.
    pub boot: String,
    /// The volume's parameters (`{"node": ..., "backend": ...}`).
    pub parameters: serde_json::Value,
    /// Seconds since 1970.
    pub created: u64,
}

/// A mkfs or luksFormat in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Format {
    pub purpose: Purpose,
    /// Where its mark lies on the device, in bytes.
    pub offset: u64,
}

impl From<&Mark> for Format {
    fn from(mark: &Mark) -> Format {
        Format { purpose: mark.purpose, offset: mark.offset }
    }
}

impl StageEntry {
    /// Whether the device may hold a part of something that must be seen to an end.
    pub fn is_interrupted(&self) -> bool {
        self.format.is_some() || self.growth.is_some()
    }

    /// The mount options that it was staged with; none for raw block.
    pub fn mount_flags(&self) -> Option<&RecordedFlags> {
        match &self.access {
            Access::Filesystem { mount_flags, .. } => Some(mount_flags),
            Access::Block => None,
        }
    }

    /// What its mounts can be of.
    pub fn shown(&self) -> Vec<Source> {
        self.source.clone().into_iter().chain(self.mapping.clone().map(Source::Device)).collect()
    }

    /// # Errors
    /// Not final where they are not as we wrote them.
    pub fn parameters(&self) -> Result<Parameters> {
        serde_json::from_value(self.parameters.clone())
            .map_err(|error| Error::failed("read parameters", self.id.to_string(), error))
    }

    /// How the volume lies on its device, by its parameters.
    ///
    /// # Errors
    /// Not final where the parameters are not as we wrote them: anyone who cannot read them must not take ciphertext for data.
    pub fn encryption(&self) -> Result<Encryption> {
        #[derive(Deserialize)]
        struct OfNode {
            #[serde(default)]
            node: NodeParameters,
        }
        let parameters = OfNode::deserialize(&self.parameters);
        Ok(parameters.map_err(|error| Error::failed("read parameters", self.id.to_string(), error))?.node.encryption)
    }
}

/// A target at which a volume is published, or was to be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TargetEntry {
    pub version: u32,
    pub id: VolumeId,
    pub target: PathBuf,
    pub block: bool,
    pub read_only: bool,
    /// The device that is mounted or shown there; since form 3, and only of what is a device. If the disk is gone since, its number
    /// still tells that the mount is the volume's.
    #[serde(default)]
    pub device: Option<BlockDevice>,
    pub boot: String,
}

/// Mounts that are frozen for a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FrozenEntry {
    pub version: u32,
    pub mounts: Vec<PathBuf>,
    pub boot: String,
}

/// What the journal has of one volume, as it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    pub id: VolumeId,
    pub directory: PathBuf,
    pub stage: Option<StageEntry>,
    /// When the stage's entry was written last: its phase is as old.
    pub written: Option<SystemTime>,
    pub targets: Vec<TargetEntry>,
    /// Files that cannot be read, kept aside already or not.
    pub damaged: Vec<PathBuf>,
    /// Files that say something which is not ours to read, and why.
    pub unreadable: Vec<(PathBuf, String)>,
}

/// The whole journal, as it was found.
#[derive(Clone, Debug, Default)]
pub struct JournalSnapshot {
    pub volumes: Vec<Found>,
    /// With the file's path.
    pub frozen: Vec<(PathBuf, FrozenEntry)>,
}

/// Reads the journal below a state directory without opening it: nothing is made, kept aside or swept, so that it can be done beside
/// a driver that runs. Costs as much as there are volumes. No journal is an empty one.
///
/// # Errors
/// Where a directory or file cannot be read.
pub fn look(state: &Path) -> Result<JournalSnapshot> {
    let directory = state.join("journal");
    let mut sight = JournalSnapshot::default();
    let mut list = names(&directory)?;
    list.sort();
    for name in list {
        if let Ok(id) = name.parse::<VolumeId>() {
            sight.volumes.extend(look_at(id, directory.join(&name))?);
        } else if name.starts_with(FROZEN) && name.ends_with(".json") {
            let path = directory.join(&name);
            if let Some(Ok(Parsed::Entry(entry))) = durable::read(&path, LONGEST)?.map(|content| parse(&content)) {
                sight.frozen.push((path, entry));
            }
        }
    }
    Ok(sight)
}

/// `None` where there is nothing of the volume.
fn look_at(id: VolumeId, directory: PathBuf) -> Result<Option<Found>> {
    let mut list = names(&directory)?;
    list.sort();
    let (stage, written) = (None, None);
    let mut found = Found { id, directory, stage, written, targets: Vec::new(), damaged: Vec::new(), unreadable: Vec::new() };
    for name in list {
        let path = found.directory.join(&name);
        if name.ends_with(".damaged") {
            found.damaged.push(path);
        } else if name == STAGE {
            found.written = fs::metadata(&path).and_then(|seen| seen.modified()).ok();
            found.stage = found.take(path, |entry: &StageEntry| &entry.id)?;
        } else if name.starts_with("target-") && name.ends_with(".json") {
            let target = found.take(path, |entry: &TargetEntry| &entry.id)?;
            found.targets.extend(target);
        }
    }
    let nothing = found.stage.is_none() && found.targets.is_empty() && found.damaged.is_empty() && found.unreadable.is_empty();
    Ok((!nothing).then_some(found))
}

impl Found {
    fn take<T: DeserializeOwned>(&mut self, path: PathBuf, named: impl Fn(&T) -> &VolumeId) -> Result<Option<T>> {
        match durable::read(&path, LONGEST)?.map(|content| parse::<T>(&content)) {
            Some(Ok(Parsed::Entry(entry))) if named(&entry) == &self.id => return Ok(Some(entry)),
            Some(Ok(Parsed::Entry(entry))) => {
                self.unreadable.push((path, format!("it is an entry of volume {}; move it away", named(&entry))));
            }
            Some(Ok(Parsed::OtherVersion(version))) => {
                self.unreadable.push((path, other_version(version)));
            }
            Some(Err(_)) => self.damaged.push(path),
            None => {}
        }
        Ok(None)
    }

    /// All files of it, for anyone who takes it away by hand.
    pub fn files(&self) -> Vec<PathBuf> {
        let stage = self.stage.iter().map(|_| self.directory.join(STAGE));
        let targets = self.targets.iter().map(|target| self.directory.join(target_name(&target.target)));
        stage.chain(targets).chain(self.damaged.iter().cloned()).collect()
    }

    /// The file of a target.
    pub fn file_of(&self, target: &Path) -> PathBuf {
        self.directory.join(target_name(target))
    }
}

/// The journal's directory.
#[derive(Debug)]
pub struct Journal {
    directory: PathBuf,
    /// Records of frozen mounts that no longer hold, but could not be removed: at the next start they would thaw what someone
    /// else holds still by then.
    stale: Mutex<Vec<String>>,
    counted: Mutex<Counted>,
}

/// What is in it, so that nobody need look to count it: as it was found at the start, and written and removed since.
#[derive(Debug, Default)]
struct Counted {
    stages: HashSet<VolumeId>,
    /// With the names of their files.
    targets: HashSet<(VolumeId, String)>,
}

impl Counted {
    fn note(&mut self, id: &VolumeId, name: &str, there: bool) {
        match (name == STAGE, there) {
            (true, true) => self.stages.insert(id.clone()),
            (true, false) => self.stages.remove(id),
            (false, true) => self.targets.insert((id.clone(), name.to_owned())),
            (false, false) => self.targets.remove(&(id.clone(), name.to_owned())),
        };
    }
}

impl Journal {
    /// Opens `<state>/journal`, making it if need be, for its owner only.
    pub fn open(state: &Path) -> Result<Journal> {
        let directory = state.join("journal");
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&directory)
            .map_err(|error| os::Error::io("make journal directory", &directory, error))?;
        Ok(Journal { directory, stale: Mutex::default(), counted: Mutex::default() })
    }

    /// The volume's stage.
    pub fn stage(&self, id: &VolumeId) -> Result<Option<StageEntry>> {
        let entry: Option<StageEntry> = read(&self.of(id), STAGE)?;
        self.belongs(id, entry, |entry| &entry.id)
    }

    /// Writes the volume's stage, durable on return.
    pub fn write_stage(&self, entry: &StageEntry) -> Result<()> {
        self.write(&entry.id, STAGE, entry)
    }

    /// Removes the volume's stage, and its directory if nothing else is in it.
    pub fn remove_stage(&self, id: &VolumeId) -> Result<()> {
        self.remove(id, STAGE)
    }

    /// One target of a volume.
    pub fn target(&self, id: &VolumeId, target: &Path) -> Result<Option<TargetEntry>> {
        let entry: Option<TargetEntry> = read(&self.of(id), &target_name(target))?;
        self.belongs(id, entry, |entry| &entry.id)
    }

    /// All targets of a volume.
    pub fn targets(&self, id: &VolumeId) -> Result<Vec<TargetEntry>> {
        let directory = self.of(id);
        let mut names: Vec<String> =
            names(&directory)?.into_iter().filter(|name| name.starts_with("target-") && name.ends_with(".json")).collect();
        names.sort();
        let mut targets = Vec::with_capacity(names.len());
        for name in names {
            let entry: Option<TargetEntry> = read(&directory, &name)?;
            targets.extend(self.belongs(id, entry, |entry| &entry.id)?);
        }
        Ok(targets)
    }

    /// Writes a target, durable on return.
    pub fn write_target(&self, entry: &TargetEntry) -> Result<()> {
        self.write(&entry.id, &target_name(&entry.target), entry)
    }

    /// Removes a target, and the volume's directory if nothing else is in it.
    pub fn remove_target(&self, id: &VolumeId, target: &Path) -> Result<()> {
        self.remove(id, &target_name(target))
    }

    /// How many stages and targets there are.
    pub fn counts(&self) -> (u64, u64) {
        let counted = self.counted();
        (counted.stages.len() as u64, counted.targets.len() as u64)
    }

    /// Counts what the start has found; from then on it counts by itself.
    pub fn found(&self, id: &VolumeId, stage: Option<&StageEntry>, targets: &[TargetEntry]) {
        let mut counted = self.counted();
        if stage.is_some() {
            counted.note(id, STAGE, true);
        }
        for target in targets {
            counted.note(id, &target_name(&target.target), true);
        }
    }

    fn counted(&self) -> MutexGuard<'_, Counted> {
        self.counted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there is anything about the volume, be it damaged.
    pub fn knows(&self, id: &VolumeId) -> Result<bool> {
        Ok(!names(&self.of(id))?.is_empty())
    }

    /// All volumes that the journal knows. Only for the start: it costs as much as there are.
    pub fn volumes(&self) -> Result<Vec<VolumeId>> {
        Ok(names(&self.directory)?.iter().filter_map(|name| name.parse().ok()).collect())
    }

    /// Removes what killed writers left: half-written files, and directories in which there is nothing. Only for the start, when
    /// nobody writes.
    pub fn sweep(&self) -> Result<()> {
        sweep_files(&self.directory)?;
        for id in self.volumes()? {
            let directory = self.of(&id);
            sweep_files(&directory)?;
            if names(&directory)?.is_empty() {
                os::step::step("remove leftover", &directory.display(), || remove_empty(&directory))?;
            }
        }
        Ok(())
    }

    /// Records mounts that are about to be frozen; answers the record's name.
    pub fn write_frozen(&self, number: u64, entry: &FrozenEntry) -> Result<String> {
        let name = format!("{FROZEN}{}-{number}.json", std::process::id());
        let content = encode(entry)?;
        let written = os::step::step("write journal", &name, || durable::write(&self.directory, &name, &content));
        written.inspect_err(|_: &os::Error| self.stale().push(name.clone()))?;
        Ok(name)
    }

    /// Forgets a record of frozen mounts.
    pub fn remove_frozen(&self, name: &str) -> Result<()> {
        let removed = os::step::step("remove journal", &name, || durable::remove(&self.directory, name));
        Ok(removed.inspect_err(|_: &os::Error| self.stale().push(name.to_owned()))?)
    }

    /// Forgets those that could not be forgotten before.
    pub fn remove_stale(&self) -> Result<()> {
        let stale = std::mem::take(&mut *self.stale());
        // One that still cannot be removed is kept in mind again.
        let failed = stale.iter().filter_map(|name| self.remove_frozen(name).err()).last();
        failed.map_or(Ok(()), |error| Err(error.but_left("what an earlier snapshot noted in the node's journal".to_owned())))
    }

    fn stale(&self) -> MutexGuard<'_, Vec<String>> {
        self.stale.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes a file that was kept aside, and the volume's directory if nothing else is in it.
    pub fn remove_damaged(&self, id: &VolumeId, name: &str) -> Result<()> {
        self.remove(id, name)
    }

    /// What was frozen when an earlier process ended.
    pub fn frozen(&self) -> Result<Vec<(String, FrozenEntry)>> {
        let mut found = Vec::new();
        for name in names(&self.directory)? {
            if name.starts_with(FROZEN) && name.ends_with(".json") {
                found.extend(read(&self.directory, &name)?.map(|entry| (name, entry)));
            }
        }
        Ok(found)
    }

    fn of(&self, id: &VolumeId) -> PathBuf {
        self.directory.join(id.to_string())
    }

    fn write<T: Serialize>(&self, id: &VolumeId, name: &str, entry: &T) -> Result<()> {
        let directory = self.of(id);
        let content = encode(entry)?;
        os::step::step("write journal", &format_args!("{}/{name}", directory.display()), || {
            match fs::DirBuilder::new().mode(0o700).create(&directory) {
                Ok(()) => durable::sync_dir(&self.directory)?,
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(os::Error::io("make journal directory", &directory, error)),
            }
            durable::write(&directory, name, &content)
        })?;
        self.counted().note(id, name, true);
        Ok(())
    }

    fn remove(&self, id: &VolumeId, name: &str) -> Result<()> {
        let directory = self.of(id);
        os::step::step("remove journal", &format_args!("{}/{name}", directory.display()), || {
            match durable::remove(&directory, name) {
                // The directory itself may be gone already.
                Err(error) if error.is_missing() => {}
                other => other?,
            }
            remove_empty(&directory)
        })?;
        self.counted().note(id, name, false);
        Ok(())
    }

    /// An entry that names another volume was put here by hand: nothing can be said of it.
    fn belongs<T>(&self, id: &VolumeId, entry: Option<T>, named: impl Fn(&T) -> &VolumeId) -> Result<Option<T>> {
        match entry {
            Some(entry) if named(&entry) != id => Err(os::Error::Unexpected {
                object: self.of(id).display().to_string(),
                reason: format!("the journal of volume {id} holds an entry of volume {}; move it away", named(&entry)),
            }
            .into()),
            other => Ok(other),
        }
    }
}

/// Removes a volume's directory if nothing is in it.
fn remove_empty(directory: &Path) -> os::Result<()> {
    match fs::remove_dir(directory) {
        Ok(()) => Ok(()),
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOTEMPTY | libc::EEXIST)) => Ok(()),
        Err(error) => Err(os::Error::io("remove journal directory", directory, error)),
    }
}

/// Removes what [`durable::write`] leaves when it is interrupted.
fn sweep_files(directory: &Path) -> Result<()> {
    for name in names(directory)?.iter().filter(|name| name.starts_with('.') && name.ends_with(".json.tmp")) {
        os::step::step("remove leftover", &directory.join(name).display(), || durable::remove(directory, name))?;
    }
    Ok(())
}

/// `target-<the first 16 hexadecimal digits of the path's SHA-256>.json`.
fn target_name(target: &Path) -> String {
    format!("target-{}.json", &sha256(target.as_os_str().as_encoded_bytes())[..16])
}

fn encode<T: Serialize>(entry: &T) -> Result<Vec<u8>> {
    serde_json::to_vec_pretty(entry).map_err(|error| Error::failed("write journal", "entry", error))
}

/// The names in a directory; none where there is no directory.
fn names(directory: &Path) -> Result<Vec<String>> {
    let list = match fs::read_dir(directory) {
        Ok(list) => list,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(os::Error::io("read journal directory", directory, error).into()),
    };
    let mut names = Vec::new();
    for entry in list {
        let entry = entry.map_err(|error| os::Error::io("read journal directory", directory, error))?;
        names.extend(entry.file_name().into_string().ok());
    }
    Ok(names)
}

#[derive(Deserialize)]
struct Versioned {
    version: u32,
}

fn read<T: DeserializeOwned>(directory: &Path, name: &str) -> Result<Option<T>> {
    let path = directory.join(name);
    let Some(content) = durable::read(&path, LONGEST)? else { return Ok(None) };
    match parse(&content) {
        Ok(Parsed::Entry(entry)) => Ok(Some(entry)),
        Ok(Parsed::OtherVersion(version)) => {
            Err(os::Error::Unexpected { object: path.display().to_string(), reason: other_version(version) }.into())
        }
        Err(error) => {
            keep_aside(&path, &error)?;
            Ok(None)
        }
    }
}

fn other_version(version: u32) -> String {
    format!(
        "the journal entry was written by another version of Longshore (form {version}, this version reads 1 to {VERSION}) and was left as \
         it is; start that version, or a later one"
    )
}

/// What a file says that is not damaged.
enum Parsed<T> {
    Entry(T),
    OtherVersion(u32),
}

fn parse<T: DeserializeOwned>(content: &[u8]) -> serde_json::Result<Parsed<T>> {
    match serde_json::from_slice::<Versioned>(content)?.version {
        VERSION => serde_json::from_slice(content).map(Parsed::Entry),
        earlier @ 1..VERSION => {
            let mut fields: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(content)?;
            if earlier < WITH_EVIDENCE {
                NO_EVIDENCE.iter().for_each(|name| drop(fields.remove(*name)));
            }
            fields.insert("version".to_owned(), VERSION.into());
            serde_json::from_value(fields.into()).map(Parsed::Entry)
        }
        other => Ok(Parsed::OtherVersion(other)),
    }
}

fn keep_aside(path: &Path, error: &serde_json::Error) -> Result<()> {
    let mut aside = path.as_os_str().to_owned();
    aside.push(".damaged");
    fs::rename(path, &aside).map_err(|error| os::Error::io("keep aside", path, error))?;
    tracing::error!(
        path = %path.display(),
        kept = %Path::new(&aside).display(),
        %error,
        "a journal file cannot be read and was kept aside; the next stage or unstage of the volume finds its device and \
         mounts without it. Remove the kept file once the volume is unstaged"
    );
    Ok(())
}

/// An entry as it would be written again; `None` where the bytes are none.
#[cfg(feature = "fuzzing")]
pub fn rewritten(kind: &str, content: &[u8]) -> Option<Vec<u8>> {
    fn again<T: Serialize + DeserializeOwned>(content: &[u8]) -> Option<Vec<u8>> {
        match parse::<T>(content) {
            Ok(Parsed::Entry(entry)) => encode(&entry).ok(),
            _ => None,
        }
    }
    match kind {
        "stage" => again::<StageEntry>(content),
        "target" => again::<TargetEntry>(content),
        _ => again::<FrozenEntry>(content),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn id() -> VolumeId {
        "image:a".parse().expect("valid")
    }

    pub fn entry() -> StageEntry {
        StageEntry {
            version: VERSION,
            id: id(),
            phase: Phase::Staging,
            source: None,
            mapping: None,
            access: Access::Filesystem { fstype: None, mount_flags: vec!["noexec".to_owned()].into() },
            mode: AccessMode::SingleNodeWriter,
            staging: "/var/lib/kubelet/s".into(),
            read_only: false,
            format: Some(Format { purpose: Purpose::Luks, offset: 4096 }),
            growth: None,
            inline: false,
            boot: "b".to_owned(),
            parameters: serde_json::json!({ "node": BTreeMap::<String, String>::new() }),
            created: 1,
        }
    }

    fn target(path: &str) -> TargetEntry {
        TargetEntry {
            version: VERSION,
            id: id(),
            target: path.into(),
            block: true,
            read_only: true,
            device: Some(BlockDevice { path: "/dev/loop3".into(), number: (7, 3), identity: "x".to_owned() }),
            boot: "b".to_owned(),
        }
    }

    fn flags(options: &[&str]) -> MountFlags {
        options.iter().map(|&option| option.to_owned()).collect()
    }

    #[test]
    fn recorded_mount_options_are_compared_and_their_values_are_not_written() {
        let given = flags(&["noexec", "password=hunter2", "context=\"a:b,c\"", "empty="]);
        let recorded = RecordedFlags::from(&given);
        let text = serde_json::to_string(&recorded).expect("it serializes");
        assert!(text.contains("noexec") && text.contains("password=sha256:") && !text.contains("hunter2"), "{text}");
        assert_ne!(text, serde_json::to_string(&RecordedFlags::from(&given)).expect("it serializes"), "salted");
        let read: RecordedFlags = serde_json::from_str(&text).expect("it is read");
        assert_eq!(read, recorded);
        // As earlier versions wrote it; what is written again has no value.
        let clear: RecordedFlags = serde_json::from_value(given.expose().into()).expect("it is read");
        assert!(!format!("{clear:?}{}", serde_json::to_string(&clear).expect("it serializes")).contains("hunter2"));
        for recorded in [&recorded, &read, &clear] {
            assert!(recorded.are(&given));
            assert!(recorded.are(&flags(&["empty=", "context=\"a:b,c\"", "noexec", "password=hunter2"])), "in another order");
            for other in [
                &["noexec", "password=hunter3", "context=\"a:b,c\"", "empty="][..],
                &["noexec", "password", "context=\"a:b,c\"", "empty="],
                &["noexec", "password=hunter2", "context=\"a:b,c\""],
                &["noexec", "noexec", "password=hunter2", "context=\"a:b,c\"", "empty="],
            ] {
                assert!(!recorded.are(&flags(other)), "{other:?}");
            }
            assert_eq!(recorded.names().to_string(), "noexec,password=***,context=***,empty=***");
            assert_eq!(recorded.without_values(), None);
        }
        let twice = RecordedFlags::from(&flags(&["ro", "ro"]));
        assert!(!twice.are(&flags(&["ro", "rw"])) && !twice.are(&flags(&["ro"])) && twice.are(&flags(&["ro", "ro"])));
        assert_eq!(twice.without_values(), Some(flags(&["ro", "ro"])));
        // A value that looks like a digest is digested as any other.
        let odd = flags(&[&format!("a=sha256:{}:{}", "0".repeat(16), "0".repeat(64))]);
        assert!(RecordedFlags::from(&odd).are(&odd));
    }

    #[test]
    fn what_is_written_is_read_and_the_last_removal_leaves_no_directory() {
        let state = tempfile::tempdir().expect("a directory");
        let journal = Journal::open(state.path()).expect("opens");
        assert_eq!(journal.stage(&id()).expect("reads"), None);
        journal.write_stage(&entry()).expect("writes");
        journal.write_target(&target("/t/1")).expect("writes");
        journal.write_target(&target("/t/2")).expect("writes");
        assert_eq!(journal.stage(&id()).expect("reads"), Some(entry()));
        assert_eq!(journal.target(&id(), Path::new("/t/2")).expect("reads"), Some(target("/t/2")));
        assert_eq!(journal.targets(&id()).expect("reads").len(), 2);
        assert_eq!(journal.volumes().expect("reads"), [id()]);
        let found = look(state.path()).expect("reads").volumes;
        assert_eq!((found.len(), &found[0].stage, found[0].targets.len()), (1, &Some(entry()), 2));
        assert!(found[0].files().iter().all(|file| file.exists()) && found[0].files().len() == 3);
        journal.remove_target(&id(), Path::new("/t/1")).expect("removes");
        journal.remove_target(&id(), Path::new("/t/1")).expect("removes again");
        journal.remove_stage(&id()).expect("removes");
        assert!(journal.knows(&id()).expect("reads"), "one target is left");
        journal.remove_target(&id(), Path::new("/t/2")).expect("removes");
        assert!(!state.path().join("journal/image:a").exists());
        journal.remove_stage(&id()).expect("nothing to remove is fine");
    }

    #[test]
    fn what_killed_writers_left_is_swept_and_entries_stay() {
        let state = tempfile::tempdir().expect("a directory");
        let journal = Journal::open(state.path()).expect("opens");
        journal.write_stage(&entry()).expect("writes");
        let directory = state.path().join("journal");
        fs::write(directory.join("image:a/.stage.json.tmp"), "{").expect("writes");
        fs::write(directory.join(".frozen-1-0.json.tmp"), "{").expect("writes");
        fs::create_dir(directory.join("image:b")).expect("makes");
        fs::write(directory.join("image:b/.stage.json.tmp"), "").expect("writes");
        journal.sweep().expect("sweeps");
        assert_eq!(names(&directory).expect("reads"), ["image:a"]);
        assert_eq!(names(&directory.join("image:a")).expect("reads"), ["stage.json"]);
        journal.sweep().expect("nothing to sweep is fine");
    }

    #[test]
    fn a_torn_file_is_kept_aside_and_nothing_is_guessed() {
        let state = tempfile::tempdir().expect("a directory");
        let journal = Journal::open(state.path()).expect("opens");
        journal.write_stage(&entry()).expect("writes");
        let path = state.path().join("journal/image:a/stage.json");
        let whole = fs::read(&path).expect("reads");
        for length in [0, 1, whole.len() / 2, whole.len() - 1] {
            fs::write(&path, &whole[..length]).expect("tears it");
            assert!(look(state.path()).expect("reads").volumes[0].damaged.contains(&path), "and left where it is");
            assert_eq!(journal.stage(&id()).expect("no error"), None, "{length} bytes");
            assert!(!path.exists() && path.with_extension("json.damaged").exists());
        }
        let found = look(state.path()).expect("reads").volumes;
        assert_eq!(found[0].damaged, [path.with_extension("json.damaged")]);
        assert!(journal.knows(&id()).expect("reads"));
    }

    #[test]
    fn a_field_that_is_not_known_is_damage_wherever_it_stands() {
        let device = BlockDevice { path: "/dev/loop3".into(), number: (7, 3), identity: "x".to_owned() };
        let entry = StageEntry { source: Some(Source::Device(device)), ..entry() };
        let whole = String::from_utf8(encode(&entry).expect("encodes")).expect("text");
        assert!(serde_json::from_slice::<StageEntry>(whole.as_bytes()).is_ok());
        for (field, misspelt) in [("fstype", "0stype"), ("identity", "identity\": \"x\", \"more"), ("boot", "boots")] {
            let damaged = whole.replace(&format!("\"{field}\""), &format!("\"{misspelt}\""));
            assert!(damaged != whole && serde_json::from_slice::<StageEntry>(damaged.as_bytes()).is_err(), "{damaged}");
        }
    }

    /// As an earlier version finds it after a downgrade.
    #[test]
    fn entry_of_a_later_form_is_kept_and_its_volume_refused() {
        let state = tempfile::tempdir().expect("a directory");
        let journal = Journal::open(state.path()).expect("opens");
        journal.write_stage(&entry()).expect("writes");
        journal.write_target(&target("/t/1")).expect("writes");
        let directory = state.path().join("journal/image:a");
        let later = |name: &str| {
            let path = directory.join(name);
            let mut fields: serde_json::Value = serde_json::from_slice(&fs::read(&path).expect("reads")).expect("JSON");
            let object = fields.as_object_mut().expect("an object");
            object.extend([("version".to_owned(), (VERSION + 1).into()), ("added".to_owned(), true.into())]);
            object.retain(|name, _| name != "boot");
            fs::write(&path, fields.to_string()).expect("writes");
            fields.to_string()
        };
        let (stage, target) = (later(STAGE), later(&target_name(Path::new("/t/1"))));
        let errors = [
            journal.stage(&id()).expect_err("of a later form"),
            journal.target(&id(), Path::new("/t/1")).expect_err("of a later form"),
            journal.targets(&id()).expect_err("of a later form"),
        ];
        for error in errors {
            let text = crate::volume::error::chain(&error);
            let form = format!("form {}, this version reads 1 to {VERSION}", VERSION + 1);
            assert!(text.contains("image:a") && text.contains(&form) && text.contains("start that version"), "{text}");
        }
        journal.sweep().expect("sweeps");
        assert!(journal.knows(&id()).expect("reads"));
        let found = look(state.path()).expect("reads").volumes;
        assert!(found[0].unreadable.len() == 2 && found[0].damaged.is_empty(), "{found:?}");
        assert_eq!(fs::read_to_string(directory.join(STAGE)).expect("kept"), stage);
        assert_eq!(fs::read_to_string(directory.join(target_name(Path::new("/t/1")))).expect("kept"), target);
        assert_eq!(names(&directory).expect("reads").len(), 2, "nothing is kept aside");
    }

    #[test]
    fn target_of_an_earlier_form_is_read_without_a_device() {
        let state = tempfile::tempdir().expect("a directory");
        let journal = Journal::open(state.path()).expect("opens");
        journal.write_target(&target("/t/1")).expect("writes");
        let path = state.path().join("journal/image:a").join(target_name(Path::new("/t/1")));
        let mut fields: serde_json::Value = serde_json::from_slice(&fs::read(&path).expect("reads")).expect("JSON");
        fields.as_object_mut().expect("an object").remove("device");
        for version in 1..VERSION {
            fields["version"] = version.into();
            fs::write(&path, fields.to_string()).expect("writes");
            let read = journal.target(&id(), Path::new("/t/1")).expect("reads");
            assert_eq!(read, Some(TargetEntry { device: None, ..target("/t/1") }), "form {version}");
        }
    }

    #[test]
    fn entry_of_the_first_form_is_read_without_its_evidence() {
        let state = tempfile::tempdir().expect("a directory");
        let journal = Journal::open(state.path()).expect("opens");
        let current = StageEntry { format: None, ..entry() };
        journal.write_stage(&current).expect("writes");
        let path = state.path().join("journal/image:a/stage.json");
        let mut fields: serde_json::Value = serde_json::from_slice(&fs::read(&path).expect("reads")).expect("JSON");
        let object = fields.as_object_mut().expect("an object");
        object.retain(|name, _| !["format", "growth"].contains(&name.as_str()));
        object.extend([("version".to_owned(), 1.into()), ("formatting".to_owned(), "xfs".into())]);
        object.extend([("encrypting".to_owned(), true.into()), ("growing".to_owned(), true.into())]);
        fs::write(&path, fields.to_string()).expect("writes");
        assert_eq!(journal.stage(&id()).expect("reads"), Some(current));
    }

    #[test]
    fn an_entry_of_another_volume_is_no_entry() {
        let state = tempfile::tempdir().expect("a directory");
        let journal = Journal::open(state.path()).expect("opens");
        journal.write_stage(&entry()).expect("writes");
        let other: VolumeId = "image:b".parse().expect("valid");
        fs::rename(state.path().join("journal/image:a"), state.path().join("journal/image:b")).expect("moves");
        assert!(journal.stage(&other).is_err());
    }
}

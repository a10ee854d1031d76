//! What the journal's files say.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::backend::{BlockDevice, Directory, Source};
use crate::ops::parameters::Parameters;
use crate::os::fs::Mark;
use crate::os::fs::mark::Purpose;
use crate::volume::digest::sha256_of;
use crate::volume::{AccessMode, Encryption, Error, MountFlags, NodeParameters, Result, VolumeId};

/// The form of the files; earlier ones are read as well. A file of a later form is left as it is, and its volume's calls are refused.
///
/// Any field that is added needs a new form: to an earlier version a field that it does not know is damage, and it would continue without
/// the entry.
pub const VERSION: u32 = 3;

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
    pub(super) name: String,
    /// Salt and digest.
    value: Option<(String, String)>,
}

impl Recorded {
    pub(super) fn new(option: &str) -> Recorded {
        let (name, value) = option.split_once('=').map_or((option, None), |(name, value)| (name, Some(value)));
        let digested = |value| {
            let salt = format!("{:016x}", RandomState::new().build_hasher().finish());
            let digest = sha256_of([salt.as_str(), value]);
            (salt, digest)
        };
        Recorded { name: name.to_owned(), value: value.map(digested) }
    }

    /// What [`String::from`] wrote; `None` for an option in clear, as earlier versions wrote it.
    pub(super) fn parse(text: &str) -> Option<Recorded> {
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

    /// As [`Source::network_directory`].
    pub fn network_directory(&self) -> Option<&Directory> {
        self.source.as_ref().and_then(Source::network_directory)
    }

    pub fn is_mounted_at_staging(&self) -> bool {
        self.access != Access::Block && self.network_directory().is_none()
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

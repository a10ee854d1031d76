//! What `longshore inspect` says, to people and, as JSON, to programs. docs/inspect.md documents each field.
//!
//! Sizes are bytes, times are seconds since 1970. What is not known is left out.

use std::path::PathBuf;

use serde::Serialize;

use super::repair::Repair;

/// The form of the JSON: within one, fields are added, but none is renamed or removed.
pub const VERSION: u32 = 1;

/// All that was seen of a node.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    pub version: u32,
    pub node: String,
    pub driver: String,
    pub state_dir: PathBuf,
    pub kubelet_dir: PathBuf,
    /// When it was looked at.
    pub time: u64,
    pub running: Running,
    pub storage: Vec<Storage>,
    pub connections: Vec<Connection>,
    pub volumes: Vec<Volume>,
    /// orphaned resources, or is not as it should be, in the order in which it is to be repaired.
    pub findings: Vec<Finding>,
    /// What could not be looked at: nothing was concluded from that.
    pub not_seen: Vec<NotSeen>,
}

/// What runs now.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Running {
    /// The driver that serves this node; absent where none is seen to run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driver: Option<Process>,
    /// Stages and unstages that the journal has as begun while the driver runs.
    pub operations: Vec<Operation>,
    /// Programs at work on our devices: mkfs, e2fsck, cryptsetup and the like.
    pub programs: Vec<Program>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Process {
    /// Absent where it is in another PID namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<u64>,
    /// It takes connections at its socket.
    pub answers: bool,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Operation {
    pub volume: String,
    /// `stage` or `unstage`.
    pub operation: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<u64>,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Program {
    pub pid: u32,
    pub name: String,
    pub since: u64,
    pub device: PathBuf,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume: Option<String>,
}

/// A pool, or where else volumes lie.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Storage {
    pub backend: String,
    pub name: String,
    pub at: String,
    pub total: u64,
    pub free: u64,
    pub read_only: bool,
    /// The process that creates and deletes volumes in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provisioner: Option<u32>,
    /// The name of its host, which in Kubernetes is its pod's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provisioner_host: Option<String>,
    /// Who has recorded on another machine that it does; no proof that it still does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recorded_provisioner: Option<RecordedProvisioner>,
}

/// What the file of a lock says.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RecordedProvisioner {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<u64>,
}

/// What the node holds towards a storage, for one volume or several: the mount of a share, the sessions with a target.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Connection {
    pub backend: String,
    /// A path, or a target's name.
    pub object: String,
    /// To where, and in what state.
    pub state: String,
    /// All of it is there, as far as the kernel knows.
    pub up: bool,
    pub volumes: Vec<String>,
}

/// How far a volume is on this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// In its storage only.
    Stored,
    Staging,
    Staged,
    Unstaging,
    /// Its mkfs, its encryption or its growth was interrupted; the next stage ends it.
    Interrupted,
    /// Staged before the last boot, and not since.
    BeforeBoot,
    /// Something of it is on this node, but no stage of it is journaled.
    Unowned,
}

/// One volume and its stack, from its storage to the pods.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Volume {
    pub id: String,
    pub state: State,
    /// Empty where all is well.
    pub problems: Vec<Problem>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stored: Option<Stored>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub journal: Option<Journaled>,
    pub devices: Vec<Device>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mapping: Option<Mapping>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filesystem: Option<Filesystem>,
    /// Where it is mounted, or should be.
    pub places: Vec<Place>,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Problem {
    /// `degraded`, `inaccessible` or `data-loss`.
    pub severity: &'static str,
    pub reason: &'static str,
    pub message: String,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Stored {
    /// The image, or what else the backend calls it by.
    pub at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capacity: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allocated: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created: Option<u64>,
    /// The nodes that have it, where its storage shows it to nodes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub attached: Vec<String>,
}

/// What the node's journal says of it.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Journaled {
    /// `staging`, `staged`, `unstaging`; absent where only targets are journaled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub staging: Option<PathBuf>,
    /// `block` or `filesystem`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub access: Option<&'static str>,
    pub read_only: bool,
    /// It lives from publish to unpublish.
    pub ephemeral: bool,
    /// Begun and not ended: `formatting`, `encrypting`, `growing`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interrupted: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<u64>,
    /// Written since the last boot.
    pub same_boot: bool,
    pub targets: Vec<PathBuf>,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Device {
    pub path: PathBuf,
    /// `7:3`
    pub number: String,
    /// What it shows: the image, as the kernel names it now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shows: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// The stage in the journal has this device.
    pub journaled: bool,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Mapping {
    pub name: String,
    pub path: PathBuf,
    /// `false`: it has no table; it was interrupted while it was made.
    pub live: bool,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Filesystem {
    #[serde(rename = "type")]
    pub fstype: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub used: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub available: Option<u64>,
}

/// What a place is to the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    Staging,
    Target,
    /// A directory of the volume that the kubelet shows to a container.
    Subpath,
    /// The bind mount that the kubelet makes of a raw block volume's device.
    DeviceMap,
    /// The journal has no entry for it.
    Unknown,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Place {
    pub role: Role,
    pub path: PathBuf,
    /// The volume is mounted there.
    pub mounted: bool,
    pub read_only: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod_uid: Option<String>,
}

/// What was found, for programs to switch on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A volume of ours is mounted where the journal has no entry for it.
    MountUnknown,
    /// The journal has a stage that is no longer mounted, or no longer has its mapping.
    MountMissing,
    /// The journal has a target at which the volume is no longer mounted.
    TargetMissing,
    /// Something else is mounted over a volume's place.
    MountForeign,
    /// A volume is mounted several times at one place.
    MountStacked,
    /// A LUKS mapping without a stage.
    MappingUnowned,
    /// A device that shows a volume, or what was one, without a stage.
    DeviceUnowned,
    /// A device that no stage has any more, still mounted in another mount namespace.
    DeviceHeld,
    /// The mount of a share, or sessions with a target, of no volume that the journal knows.
    LinkUnowned,
    /// The journal has a device that is no longer there, or is another's.
    DeviceMissing,
    /// A stage or unstage that no driver is at any more.
    StageInterrupted,
    /// The journal has a stage of before the last boot.
    StageOfEarlierBoot,
    /// A journal file that cannot be read.
    JournalDamaged,
    /// A journal's record of file systems that are frozen, by nobody.
    Frozen,
    Draft,
    Trash,
    /// Data without metadata.
    MetadataMissing,
    /// Metadata without data.
    DataMissing,
    /// The target server shows something to nodes that no record wants.
    ExportUnowned,
    /// A record of the target server's that the kernel does not show.
    ExportMissing,
    /// This node keeps others from a volume of which it has no stage.
    LeaseOrphaned,
    /// A lease of which it is not known whose it is.
    LeaseDamaged,
    /// A volume or snapshot under another name in its storage than the driver gave it.
    Renamed,
    /// The limit of a project, which nothing has.
    QuotaOrphaned,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    pub kind: Kind,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume: Option<String>,
    pub object: String,
    /// What was seen.
    pub what: String,
    /// What repairs it, for a shell, to be run in this order.
    pub commands: Vec<String>,
    /// Whether `--fix` does it.
    pub fix: bool,
    /// Why it does not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why_not: Option<String>,
    #[serde(skip)]
    pub repair: Option<Repair>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NotSeen {
    pub what: String,
    pub why: String,
}

impl Report {
    /// Whether something was found that is not as it should be.
    pub fn is_well(&self) -> bool {
        self.findings.is_empty() && self.volumes.iter().all(|volume| volume.problems.is_empty())
    }

    /// Only what is about one volume. What could not be seen stays: it may be about this one.
    pub fn retain(&mut self, id: &str) {
        self.volumes.retain(|volume| volume.id == id);
        self.findings.retain(|finding| finding.volume.as_deref() == Some(id));
        self.connections.retain(|connection| connection.volumes.iter().any(|volume| volume == id));
        self.running.operations.retain(|operation| operation.volume == id);
        self.running.programs.retain(|program| program.volume.as_deref() == Some(id));
    }

    /// The one volume that is called so, or whose id has this part.
    ///
    /// # Errors
    /// All that have it, where that is not one.
    pub fn find(&self, text: &str) -> Result<String, Vec<String>> {
        let reported = self.findings.iter().filter_map(|finding| finding.volume.as_ref());
        let mut ids: Vec<&String> = self.volumes.iter().map(|volume| &volume.id).chain(reported).collect();
        ids.sort();
        ids.dedup();
        if let Some(id) = ids.iter().find(|id| id.as_str() == text || id.split_once(':').is_some_and(|(_, local)| local == text))
        {
            return Ok((*id).clone());
        }
        match ids.iter().filter(|id| id.contains(text)).collect::<Vec<_>>().as_slice() {
            [one] => Ok((**one).clone()),
            several => Err(several.iter().map(|id| (**id).clone()).collect()),
        }
    }
}

/// One command for a shell, of words that may hold anything.
pub fn shell<'a>(words: impl IntoIterator<Item = &'a str>) -> String {
    let plain =
        |word: &str| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/._-:=+,@%".contains(&byte));
    let quoted = |word: &str| if plain(word) { word.to_owned() } else { format!("'{}'", word.replace('\'', "'\\''")) };
    words.into_iter().map(quoted).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_special_to_a_shell_are_quoted() {
        assert_eq!(shell(["umount", "--", "/a/b-c_d.e:f"]), "umount -- /a/b-c_d.e:f");
        assert_eq!(shell(["rm", "/a b", "", "it's", "$x", "a\nb", "~"]), "rm '/a b' '' 'it'\\''s' '$x' 'a\nb' '~'");
    }
}

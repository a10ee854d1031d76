//! What a volume is on this node: what its backend connected, and the LUKS mapping that may lie on that.

use std::path::Path;

use crate::backend::{BlockDevice, Source};
use crate::os::block;
use crate::os::dm::{self, Mapped};
use crate::os::mountinfo::MountTable;
use crate::os::step::step;
use crate::volume::digest::sha256;
use crate::volume::{Encryption, Error, Result, VolumeId};

use super::journal::{StageEntry, TargetEntry};
use super::{Node, observe, unexpected};

/// A longer name would not fit into a mapping's UUID, which cryptsetup makes of it.
const LONGEST_NAME: usize = 80;
const MADE_BY_CRYPTSETUP: &str = "CRYPT-";

/// What a volume is now, and was.
#[derive(Clone, Debug, Default)]
pub(super) struct Sources {
    /// What the backend says that it is connected as.
    pub connected: Option<Source>,
    /// Its mapping, be it half made, or left over on what was connected before.
    pub mapping: Option<Mapped>,
    /// All that it is, or was in this boot and still is that device: mounts of these are its own, wherever they are.
    pub all: Vec<Source>,
    /// The devices that its stage recorded in this boot, and that it is not any more. A mount keeps the number of its disk taken, even
    /// if the disk is gone: then what is mounted where the journal has the volume, and has that number, is its own.
    pub recorded: Vec<Source>,
}

impl Sources {
    /// What is to be mounted or shown to a pod; `None` where it is not all there. Ciphertext is never shown.
    pub fn used(&self, encryption: Encryption) -> Option<Source> {
        match encryption {
            Encryption::None => self.connected.clone(),
            Encryption::Luks2 => self.mapping_on_connected().map(Source::Device),
        }
    }

    /// What mounts at the journal's staging path can be of.
    pub fn at_staging(&self) -> Vec<Source> {
        self.all.iter().chain(self.recorded.iter().filter(|source| is_gone(source))).cloned().collect()
    }

    /// What mounts at a target can be of; `target` is the journal's entry of it, `boot` the present one.
    ///
    /// A mounted device node does not keep the number taken: another disk may have it by now. But then the node is not that disk's
    /// own; the one of the disk that is gone was removed with it.
    pub fn at_target(&self, table: &MountTable, target: Option<&TargetEntry>, boot: &str) -> Vec<Source> {
        let Some(target) = target.filter(|target| target.boot == boot) else { return self.all.clone() };
        let removed = target.block && table.at(&target.target).iter().all(|mount| mount.is_removed());
        let recorded = self.recorded.iter().cloned().chain(target.device.clone().map(Source::Device));
        self.all.iter().cloned().chain(recorded.filter(|source| removed || is_gone(source))).collect()
    }

    /// What its backend made of it: what it is connected as, or was.
    pub fn below_mapping(&self) -> Option<&Source> {
        let mapping = self.mapping.as_ref().map(|mapping| mapping.number);
        self.all.iter().find(|source| !matches!(source, Source::Device(device) if Some(device.number) == mapping))
    }

    /// The mapping, where it is whole and lies on what is connected now.
    pub fn mapping_on_connected(&self) -> Option<BlockDevice> {
        let (Some(mapping), Some(Source::Device(device))) = (&self.mapping, &self.connected) else { return None };
        (mapping.live && mapping.below == [device.number]).then(|| shown(mapping))
    }
}

/// Whether no device has this one's number any more.
fn is_gone(source: &Source) -> bool {
    matches!(source, Source::Device(device) if block::is_gone(device.number))
}

/// A mapping as a device like any other.
pub(super) fn shown(mapping: &Mapped) -> BlockDevice {
    BlockDevice { path: mapping.path.clone(), number: mapping.number, identity: mapping.uuid.clone() }
}

/// What a volume's mapping is called: by its id, where that is short enough, and by the driver's state directory, since the names
/// are the machine's and another driver on it may have a volume of this id.
pub(super) fn mapping_name(state: &Path, id: &VolumeId) -> String {
    let name = format!("{}{id}", mapping_prefix(state));
    if name.len() <= LONGEST_NAME {
        return name;
    }
    format!("longshore-{}", sha256(name.as_bytes()))
}

/// How the names of this driver's mappings begin, but for those of long ids.
pub(super) fn mapping_prefix(state: &Path) -> String {
    let driver = sha256(state.as_os_str().as_encoded_bytes());
    format!("longshore-{}-", &driver[..8])
}

impl Node {
    pub(super) fn sources(&self, id: &VolumeId, entry: Option<&StageEntry>) -> Result<Sources> {
        let journaled = entry.filter(|entry| self.same_boot(entry)).and_then(|entry| entry.source.clone());
        let backend = self.registry.get(id.backend());
        let connected = match backend {
            Some(backend) => backend.connect().connected(id, journaled.as_ref())?,
            None => None,
        };
        let mut all: Vec<Source> = connected.clone().into_iter().collect();
        let shown = entry.filter(|entry| self.same_boot(entry)).map(StageEntry::shown).unwrap_or_default();
        if let Some(journaled) = journaled.filter(|journaled| connected.as_ref() != Some(journaled))
            && backend.map_or(Ok(true), |backend| backend.connect().is_same_device(&journaled))?
        {
            all.push(journaled);
        }
        let mapping = self.mapping(id)?;
        all.extend(mapping.as_ref().map(self::shown).map(Source::Device));
        let recorded = observe::exclusive(&shown).into_iter().filter(|source| !all.contains(source)).collect();
        Ok(Sources { connected, mapping, all, recorded })
    }

    /// Whether what the volume is connected as answers: asked before anything that would wait for a dead server.
    pub(super) fn reach(&self, id: &VolumeId, source: &Source) -> Result<()> {
        self.backend(id)?.connect().reach(source)
    }

    /// What the volume's mapping is called below /dev/mapper.
    pub(super) fn mapping_name(&self, id: &VolumeId) -> String {
        mapping_name(self.state.path(), id)
    }

    /// The volume's mapping, whatever it lies on.
    fn mapping(&self, id: &VolumeId) -> Result<Option<Mapped>> {
        let name = self.mapping_name(id);
        match dm::find(&name)? {
            // A half-made one has no UUID yet.
            Some(other) if !other.uuid.is_empty() && !other.uuid.starts_with(MADE_BY_CRYPTSETUP) => {
                Err(unexpected(&other.path, format!("{name} is no LUKS mapping ({}); rename or remove it", other.uuid)))
            }
            found => Ok(found),
        }
    }

    /// Closes the volume's mapping, if there is one, seen to be gone on return.
    ///
    /// # Errors
    /// `InUse` while it is mounted or published; not final where something has it open.
    pub(super) fn close_mapping(&self, id: &VolumeId) -> Result<()> {
        let Some(mapping) = self.mapping(id)? else { return Ok(()) };
        self.unused(id, &Source::Device(shown(&mapping)))?;
        let name = self.mapping_name(id);
        step("close mapping", &name, || dm::remove(&name)).map(drop).map_err(|error| {
            let busy = error.errno() == Some(libc::EBUSY);
            let error = Error::from(error);
            if busy {
                error.but_left(format!("a process has {} open: `fuser -v` shows which", mapping.path.display()))
            } else {
                error
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapping_is_named_after_its_volume() {
        let name = |state: &str, id: &str| mapping_name(Path::new(state), &id.parse().expect("an id"));
        assert_eq!(name("/a", "image:a"), "longshore-6a50dc85-image:a");
        assert_ne!(name("/b", "image:a"), name("/a", "image:a"), "another driver's");
        let long = |end: &str| name("/a", &format!("image:{}{end}", "x".repeat(100)));
        assert_eq!(long("a").len(), "longshore-".len() + 64);
        assert_ne!(long("a"), long("b"));
    }

    #[test]
    fn ciphertext_is_never_shown() {
        let device = BlockDevice { path: "/dev/loop3".into(), number: (7, 3), identity: "x".to_owned() };
        let mapped = |live, below: &[(u32, u32)]| Mapped {
            path: "/dev/dm-0".into(),
            number: (253, 0),
            uuid: "CRYPT-LUKS2-0-longshore-image:a".to_owned(),
            live,
            below: below.to_vec(),
        };
        let used = |mapping| {
            let connected = Some(Source::Device(device.clone()));
            let sources = Sources { connected, mapping, ..Sources::default() };
            sources.used(Encryption::Luks2)
        };
        assert_eq!(used(None), None);
        assert_eq!(used(Some(mapped(false, &[]))), None, "half made");
        assert_eq!(used(Some(mapped(true, &[(7, 4)]))), None, "on another device");
        let whole = mapped(true, &[(7, 3)]);
        assert_eq!(used(Some(whole.clone())), Some(Source::Device(shown(&whole))));
    }
}

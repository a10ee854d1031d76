//! What a volume is on this node: what its backend connected, and the LUKS mapping that may lie on that.

use std::path::PathBuf;

use crate::backend::{BlockDevice, Directory, Source};
use crate::os::block;
use crate::os::dm::Mapped;
use crate::os::mountinfo::Mount;
use crate::os::mounts::Mounts;
use crate::volume::{Encryption, Result, VolumeId};

use super::context::Node;
use super::journal::{StageEntry, TargetEntry};
use super::{mapping, observe, resolve};

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
    pub(super) fn observe(node: &Node, id: &VolumeId, entry: Option<&StageEntry>) -> Result<Sources> {
        let journaled = entry.filter(|entry| node.same_boot(entry)).and_then(|entry| entry.source.clone());
        let backend = node.registry.get(id.backend());
        let connected = match backend {
            Some(backend) => backend.connect().connected(id, journaled.as_ref())?,
            None => None,
        };
        let mut all: Vec<Source> = connected.clone().into_iter().collect();
        let shown = entry.filter(|entry| node.same_boot(entry)).map(StageEntry::shown).unwrap_or_default();
        if let Some(journaled) = journaled.filter(|journaled| connected.as_ref() != Some(journaled))
            && backend.map_or(Ok(true), |backend| backend.connect().is_same_device(&journaled))?
        {
            all.push(journaled);
        }
        let mapping = mapping::find(node, id)?;
        all.extend(mapping.as_ref().map(mapping::shown).map(Source::Device));
        let recorded = observe::exclusive(&shown).into_iter().filter(|source| !all.contains(source)).collect();
        Ok(Sources { connected, mapping, all, recorded })
    }

    /// What is to be mounted or shown to a pod; `None` where it is not all there. Ciphertext is never shown.
    pub fn used(&self, encryption: Encryption) -> Option<Source> {
        match encryption {
            Encryption::None => self.connected.clone(),
            Encryption::Luks2 => self.mapping_on_connected().map(Source::Device),
        }
    }

    /// What mounts at the journal's staging path can be of.
    pub fn at_staging(&self) -> Vec<Source> {
        with_moved(self.all.iter().chain(self.recorded.iter().filter(|source| is_gone(source))).cloned().collect())
    }

    /// What mounts at a target can be of; `target` is the journal's entry of it, `boot` the present one.
    ///
    /// A mounted device node does not keep the number taken: another disk may have it by now. But then the node is not that disk's
    /// own; the one of the disk that is gone was removed with it.
    pub fn at_target(&self, mounts: &Mounts, target: Option<&TargetEntry>, boot: &str) -> Result<Vec<Source>> {
        let Some(target) = target.filter(|target| target.boot == boot) else { return Ok(self.all.clone()) };
        let removed = target.block && mounts.at(&target.target)?.iter().all(Mount::is_removed);
        let recorded = self.recorded.iter().cloned().chain(target.device.clone().map(Source::Device));
        let recorded = recorded.filter(|source| removed || is_gone(source));
        Ok(with_moved(self.all.iter().cloned().chain(recorded).collect()))
    }

    /// What its backend made of it: what it is connected as, or was.
    pub fn below_mapping(&self) -> Option<&Source> {
        let mapping = self.mapping.as_ref().map(|mapping| mapping.number);
        self.all.iter().find(|source| !matches!(source, Source::Device(device) if Some(device.number) == mapping))
    }

    /// The mapping, where it is whole and lies on what is connected now.
    pub fn mapping_on_connected(&self) -> Option<BlockDevice> {
        let (Some(mapping), Some(Source::Device(device))) = (&self.mapping, &self.connected) else { return None };
        (mapping.live && mapping.below == [device.number]).then(|| mapping::shown(mapping))
    }
}

/// With its directories wherever in their file systems they are by now: mountinfo shows a directory that was renamed by its new name, and
/// what is bound where the journal has the volume must come down all the same. Nothing is ever shown to a pod by these.
pub(super) fn with_moved(mut sources: Vec<Source>) -> Vec<Source> {
    let moved = |source: &Source| match source {
        Source::Directory(directory) if directory.root.is_some() => {
            Some(Source::Directory(Directory { root: Some(PathBuf::new()), ..directory.clone() }))
        }
        _ => None,
    };
    let moved: Vec<Source> = sources.iter().filter_map(moved).collect();
    sources.extend(moved);
    sources
}

/// Whether what the volume is connected as answers: asked before anything that would wait for a dead server.
pub(super) fn reach(node: &Node, id: &VolumeId, source: &Source) -> Result<()> {
    resolve::backend(node, id)?.connect().reach(source)
}

/// Whether no device has this one's number any more.
fn is_gone(source: &Source) -> bool {
    matches!(source, Source::Device(device) if block::is_gone(device.number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ciphertext_is_never_shown() {
        let device = BlockDevice { path: "/dev/loop3".into(), number: (7, 3), identity: "x".to_owned() };
        let mapped = |live, below: &[(u32, u32)]| Mapped {
            path: "/dev/dm-0".into(),
            number: (253, 0),
            uuid: "CRYPT-LUKS2-0-longshore-image:a".to_owned(),
            live,
            suspended: false,
            open: false,
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
        assert_eq!(used(Some(whole.clone())), Some(Source::Device(mapping::shown(&whole))));
    }
}

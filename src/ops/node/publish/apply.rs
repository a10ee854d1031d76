//! The steps of a publish, and their undoing.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use crate::backend::{BlockDevice, Source};
use crate::os::block::Device;
use crate::os::mount::{self, Attributes};
use crate::os::mounts::Mounts;
use crate::os::path::Root;
use crate::os::step::step;
use crate::volume::{AccessType, Capability, Error, Outcome, Result};

use super::super::context::Node;
use super::super::device_use::allow_writes;
use super::super::errors::{access_name, access_word, stacked, taken, unexpected};
use super::super::io_limits;
use super::super::journal::{Access, RecordedFlags, StageEntry, TargetEntry, VERSION};
use super::super::mounts::{apply_group, remove_place, split_flags, unmount_all};
use super::super::observe::{self, MountState};
use super::super::rollback::undo_in_reverse;
use super::super::sources::{self, with_moved};
use super::super::stage::spec::group_of;
use super::plan::PublishAction;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PublishUndo {
    Journal,
    Place,
    Mount,
    Protection,
}

/// One publish that runs.
pub(super) struct PublishRun<'a> {
    node: &'a Node,
    entry: &'a StageEntry,
    root: &'a Root,
    source: Source,
    pub(super) target: TargetEntry,
    attributes: Attributes,
    group: Option<u32>,
    pub(super) done: Vec<PublishUndo>,
}

impl<'a> PublishRun<'a> {
    pub(super) fn new(
        node: &'a Node,
        entry: &'a StageEntry,
        source: Source,
        target: PathBuf,
        capability: &Capability,
        read_only: bool,
    ) -> Result<PublishRun<'a>> {
        let (block, attributes) = match (&capability.access, &entry.access) {
            (AccessType::Block, Access::Block) => (true, Attributes::default()),
            (AccessType::Filesystem { fstype, mount_flags, .. }, Access::Filesystem { fstype: staged, .. })
                if fstype.is_none_or(|asked| suits(asked.as_str(), staged.as_deref())) =>
            {
                (false, split_flags(mount_flags)?.0)
            }
            (asked, staged) => {
                let wanted = match asked {
                    AccessType::Block => "raw block".to_owned(),
                    AccessType::Filesystem { fstype, .. } => {
                        fstype.map_or("a file system".to_owned(), |fstype| fstype.to_string())
                    }
                };
                let object = format!("stage of volume {}", entry.id);
                return Err(Error::Conflict { object, existing: access_name(staged).to_owned(), wanted });
            }
        };
        if target.starts_with(&entry.staging) || entry.staging.starts_with(&target) {
            let reason = format!("{} and the staging path {} lie in each other", target.display(), entry.staging.display());
            return Err(Error::invalid("target_path", reason));
        }
        let read_only = read_only || entry.read_only || attributes.read_only || capability.mode.is_read_only();
        // What each bind of a share forbids, the CO's options may allow where that was allowed at its stage.
        let mut attributes = Attributes { read_only, ..attributes };
        if let Source::Directory(directory) = &source {
            let flags = entry.mount_flags().map(RecordedFlags::names).unwrap_or_default();
            let staged = split_flags(&flags.after(&directory.options))?.0;
            attributes.nosuid |= staged.nosuid;
            attributes.nodev |= staged.nodev;
        }
        let boot = node.boot.clone();
        let device = match &source {
            Source::Device(device) => Some(device.clone()),
            Source::Filesystem { .. } | Source::Directory(_) => None,
        };
        let target = TargetEntry { version: VERSION, id: entry.id.clone(), target, block, read_only, device, boot };
        let group = group_of(capability);
        Ok(PublishRun { node, entry, root: &node.kubelet, source, target, attributes, group, done: Vec::new() })
    }

    /// A target that shows an earlier mount of the share, or an earlier directory, shows nothing that is there any more.
    pub(super) fn take_away_stale(&self, mounts: Mounts, sources: &[Source]) -> Result<Mounts> {
        let Source::Directory(directory) = &self.source else { return Ok(mounts) };
        sources::reach(self.node, &self.entry.id, &self.source)?;
        let target = &self.target.target;
        let at = observe::at(&mounts, target, sources)?;
        let earlier = matches!(&at, MountState::Ours(mount) if mount.device != directory.device);
        if earlier || observe::is_stale(&at, target, &self.source) {
            unmount_all(self.root, target, sources)?;
            return Ok(Mounts::now()?);
        }
        Ok(mounts)
    }

    pub(super) fn run(&mut self, decision: PublishAction) -> Result<Outcome<()>> {
        if self.target.block && decision != PublishAction::Mount {
            // What the device's number is seen to be must be so still.
            self.seen_device()?;
        }
        io_limits::apply(self.node, &self.entry.id, &self.source, &self.target.target)?;
        match decision {
            PublishAction::Nothing => return Ok(Outcome::Unchanged(())),
            PublishAction::Record => {
                self.node.journal.write_target(&self.target)?;
                return Ok(Outcome::Changed(()));
            }
            PublishAction::Mount => {}
        }
        self.node.journal.write_target(&self.target)?;
        if let Some(gid) = self.group.filter(|_| !self.target.block) {
            let root = self.node.root_of(self.entry);
            apply_group(root, &self.entry.staging, &self.source, gid, self.target.read_only)?;
        }
        let place = self.make_place()?;
        match self.source.clone() {
            Source::Device(device) if self.target.block => self.bind_device(&device, place)?,
            _ => self.bind_filesystem(place)?,
        }
        Ok(Outcome::Changed(()))
    }

    /// The directory or file to mount on.
    fn make_place(&mut self) -> Result<OwnedFd> {
        let target = self.target.target.clone();
        if self.root.open_path(&target)?.is_none() {
            self.done.push(PublishUndo::Place);
        }
        Ok(step("make target", &target.display(), || {
            if self.target.block { self.root.make_file(&target, 0o640) } else { self.root.make_dir(&target, 0o750) }
        })?)
    }

    fn bind_filesystem(&mut self, place: OwnedFd) -> Result<()> {
        let from = match &self.source {
            // Not by way of the staging path, where a share's is not mounted, and a local one may be an earlier one.
            Source::Directory(directory) => observe::open_directory(directory)?,
            source => observe::open(self.node.root_of(self.entry), &self.entry.staging, source)?,
        };
        self.bind(from, place)?;
        let target = &self.target.target;
        match observe::at(&Mounts::now()?, target, std::slice::from_ref(&self.source))? {
            MountState::Ours(mount) if self.target.read_only && !mount.is_read_only() => {
                Err(unexpected(target, "it was to be read-only, but is mounted read-write"))
            }
            MountState::Ours(_) => Ok(()),
            other => Err(not_as_made(target, &other)),
        }
    }

    fn bind_device(&mut self, device: &BlockDevice, place: OwnedFd) -> Result<()> {
        // Protected before anyone can open it at the target.
        self.protect(device)?;
        let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::CLOEXEC;
        let from = rustix::fs::open(&device.path, flags, rustix::fs::Mode::empty())
            .map_err(|errno| crate::os::Error::io("open device node", &device.path, errno))?;
        if observe::device_number(from.as_fd(), &device.path)? != Some(device.number) {
            return Err(unexpected(&device.path, format!("it is no longer the device of volume {}", self.entry.id)));
        }
        self.bind(from, place)?;
        match observe::at(&Mounts::now()?, &self.target.target, std::slice::from_ref(&self.source))? {
            MountState::Ours(_) => self.seen_device(),
            other => Err(not_as_made(&self.target.target, &other)),
        }
    }

    fn bind(&mut self, from: OwnedFd, place: OwnedFd) -> Result<()> {
        let target = self.target.target.clone();
        self.done.push(PublishUndo::Mount);
        Ok(step("bind", &target.display(), || {
            let detached = mount::clone_mount(from.as_fd(), &self.attributes)?;
            mount::attach(detached, place.as_fd(), &target)
        })?)
    }

    /// A read-only bind of a device node does not stop writes, the device's own flag does. `plan::protection` saw that
    /// no other target wants it otherwise.
    fn protect(&mut self, device: &BlockDevice) -> Result<()> {
        let open = Device::open(&device.path, false)?;
        if open.number() != device.number {
            return Err(unexpected(&device.path, format!("it is no longer the device of volume {}", self.entry.id)));
        }
        let is = open.read_only()?;
        if is == self.target.read_only {
            return Ok(());
        }
        if self.target.read_only {
            self.done.push(PublishUndo::Protection);
        }
        let name = if self.target.read_only { "forbid writes" } else { "allow writes" };
        step(name, &device.path.display(), || open.set_read_only(self.target.read_only))?;
        if open.read_only()? != self.target.read_only {
            let reason = format!("it stays {}; unstage the volume and stage it again", access_word(is));
            return Err(unexpected(&device.path, reason));
        }
        Ok(())
    }

    fn seen_device(&self) -> Result<()> {
        let Source::Device(device) = &self.source else { return Ok(()) };
        if observe::shows_device(self.root, &self.target.target, device)? {
            return Ok(());
        }
        Err(Error::Conflict {
            object: format!("target {} of volume {}", self.target.target.display(), self.entry.id),
            existing: "another device".to_owned(),
            wanted: device.path.display().to_string(),
        })
    }

    pub(super) fn undo(&mut self, error: Error) -> Error {
        let done = std::mem::take(&mut self.done);
        let left = undo_in_reverse(done, PublishUndo::Journal, |undo| self.undo_one(undo));
        if left.is_empty() { error.rolled_back() } else { error.leaving(left.join("; ")) }
    }

    fn undo_one(&self, undo: PublishUndo) -> Result<()> {
        let target = &self.target.target;
        match undo {
            PublishUndo::Mount => unmount_all(self.root, target, &with_moved(vec![self.source.clone()])).map(|_| ()),
            PublishUndo::Protection => allow_writes(&self.source),
            PublishUndo::Place => remove_place(self.root, target),
            PublishUndo::Journal => self.node.journal.remove_target(&self.entry.id, target),
        }
    }
}

/// What is mounted as it is (NFS) has a name that is none of ours; the CO's default does not apply to it.
fn suits(asked: &str, staged: Option<&str>) -> bool {
    staged.is_none_or(|staged| staged == asked || staged.parse::<crate::volume::FsType>().is_err())
}

fn not_as_made(path: &Path, at: &MountState) -> Error {
    match at {
        MountState::Stack(count) => stacked(path, *count),
        MountState::Foreign(mount) => taken(path, mount),
        MountState::Nothing | MountState::Ours(_) => unexpected(path, "the mount is not there after it was made"),
    }
}

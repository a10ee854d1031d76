//! NodePublishVolume.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use crate::backend::{BlockDevice, Source};
use crate::ops::lock::Key;
use crate::os::block::Device;
use crate::os::mount::{self, Attributes};
use crate::os::mountinfo::MountTable;
use crate::os::path::Root;
use crate::os::step::step;
use crate::volume::{AccessMode, AccessType, Capability, Error, Outcome, Result, VolumeId};

use super::execute::{apply_group, split_flags, undo_in_reverse, unmount_all};
use super::journal::{Access, Phase, RecordedFlags, StageEntry, TargetEntry, VERSION};
use super::observe::{self, At};
use super::plan::{self, Publish, SeenTarget, WantedTarget};
use super::unstage::{access_name, mounted_target};
use super::{Node, PublishRequest, unexpected};

pub(super) fn publish(node: &Node, request: &PublishRequest) -> Result<Outcome<()>> {
    let id = &node.told(&request.handle, &request.volume_context)?;
    match attempt(node, request, id) {
        Err(Error::Stale { .. }) => {
            super::stage::restage_stale_share(node, id, &request.capability)?;
            attempt(node, request, id)
        }
        other => other,
    }
}

fn attempt(node: &Node, request: &PublishRequest, id: &VolumeId) -> Result<Outcome<()>> {
    let Some(staging) = &request.staging else {
        return Err(Error::invalid("staging_target_path", "it is needed: volumes are staged before they are published"));
    };
    let staging = node.place(staging)?;
    let target = node.place(&request.target)?;
    node.backend(id)?;
    let staged = || node.journal.stage(id)?.ok_or_else(|| not_staged(id, "there is no stage of it in the journal".to_owned()));
    let key = || Key::Volume(id.clone());
    let shared = node.locks.shared(key(), "publish")?;
    let entry = staged()?;
    let (_volume, entry) = if decides_about_others(&request.capability, &entry) {
        // Released first, since no lock is upgraded; what was read may have changed since.
        drop(shared);
        (node.locks.exclusive(key(), "publish")?, staged()?)
    } else {
        (shared, entry)
    };
    let _target = node.locks.exclusive(Key::target(&target), "publish")?;
    if entry.staging != staging {
        let reason = format!("it is staged at {}, not at {}", entry.staging.display(), staging.display());
        return Err(not_staged(id, reason));
    }
    run(node, &entry, target, &request.capability, request.read_only)
}

/// Whether one target decides what another may be: then two publishes must not overlap. Each may have another access mode than the stage.
fn decides_about_others(capability: &Capability, stage: &StageEntry) -> bool {
    capability.access == AccessType::Block || [capability.mode, stage.mode].contains(&AccessMode::SingleNodeSingleWriter)
}

/// Publishes a staged volume. The caller holds the volume and the target.
pub(super) fn run(
    node: &Node,
    entry: &StageEntry,
    target: PathBuf,
    capability: &Capability,
    read_only: bool,
) -> Result<Outcome<()>> {
    let table = MountTable::read()?;
    let (source, sources) = staged_source(node, entry, &table)?;
    let mut job = Job::new(node, entry, source, target, capability, read_only)?;
    let table = job.take_away_stale(table, &sources)?;
    let others = node
        .journal
        .targets(&entry.id)?
        .into_iter()
        .filter(|other| other.target != job.target.target && mounted_target(&table, other, &sources));
    let seen = SeenTarget {
        at: observe::at(&table, &job.target.target, &sources),
        entry: node.journal.target(&entry.id, &job.target.target)?,
        others: others.collect(),
    };
    let alone = [entry.mode, capability.mode].contains(&AccessMode::SingleNodeSingleWriter);
    let wanted = WantedTarget { target: job.target.target.clone(), read_only: job.target.read_only, alone };
    if job.target.block {
        plan::protection(&entry.id, &wanted, &seen.others)?;
    }
    let decision = plan::publish(&entry.id, &wanted, &seen)?;
    if decision == Publish::Mount {
        observe::nothing_inside(&table, &job.target.target)?;
        job.done.push(Undo::Journal);
    }
    // The journal has it, but it is not there: an earlier publish did not come to its end or could not be rolled back, or the mount
    // was lost. Place and write protection are then as much ours as if they were made now.
    if decision == Publish::Mount && seen.entry.is_some() {
        job.done.push(Undo::Place);
        let protected_by_target = job.target.block && !entry.read_only && seen.others.is_empty();
        job.done.extend(protected_by_target.then_some(Undo::Protection));
    }
    match job.run(decision) {
        Ok(outcome) => Ok(outcome),
        Err(error) => Err(job.undo(error)),
    }
}

/// What is staged, seen to be so: a pod must never be given the node's own disk.
fn staged_source(node: &Node, entry: &StageEntry, table: &MountTable) -> Result<(Source, Vec<Source>)> {
    let id = &entry.id;
    if !node.same_boot(entry) {
        return Err(not_staged(id, "its stage is of before the node's last boot; stage it again".to_owned()));
    }
    if entry.phase != Phase::Staged {
        return Err(not_staged(id, "its stage did not come to its end, or is being undone; stage it again".to_owned()));
    }
    node.backend(id)?.connect().may_use(id)?;
    let sources = node.sources(id, Some(entry))?;
    let gone = || not_staged(id, "it is no longer connected; unstage it and stage it again".to_owned());
    let source = sources.used(entry.encryption()?).ok_or_else(gone)?;
    if matches!(source, Source::Directory(_)) && entry.source.as_ref() != Some(&source) {
        return Err(Error::Stale { object: super::source_name(&source), reason: "its share was mounted anew".to_owned() });
    }
    if let Access::Filesystem { .. } = entry.access {
        let staging = entry.staging.display();
        match observe::at(table, &entry.staging, std::slice::from_ref(&source)) {
            At::Ours(_) => {}
            At::Nothing => return Err(not_staged(id, format!("nothing is mounted at {staging}; stage it again"))),
            At::Stack(count) => return Err(plan::stacked(&entry.staging, count)),
            At::Foreign(mount) => return Err(plan::taken(&entry.staging, &mount)),
        }
    }
    Ok((source, sources.all))
}

fn not_staged(id: &VolumeId, reason: String) -> Error {
    Error::NotStaged { volume: id.to_string(), reason }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Undo {
    Journal,
    Place,
    Mount,
    Protection,
}

/// One publish that runs.
struct Job<'a> {
    node: &'a Node,
    entry: &'a StageEntry,
    root: &'a Root,
    source: Source,
    target: TargetEntry,
    attributes: Attributes,
    group: Option<u32>,
    done: Vec<Undo>,
}

impl<'a> Job<'a> {
    fn new(
        node: &'a Node,
        entry: &'a StageEntry,
        source: Source,
        target: PathBuf,
        capability: &Capability,
        read_only: bool,
    ) -> Result<Job<'a>> {
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
        let group = super::stage::group_of(capability);
        Ok(Job { node, entry, root: &node.kubelet, source, target, attributes, group, done: Vec::new() })
    }

    /// A target that shows an earlier mount of the share, or an earlier directory, shows nothing that is there any more.
    fn take_away_stale(&self, table: MountTable, sources: &[Source]) -> Result<MountTable> {
        let Source::Directory(directory) = &self.source else { return Ok(table) };
        self.node.reach(&self.entry.id, &self.source)?;
        let target = &self.target.target;
        let at = observe::at(&table, target, sources);
        let earlier = matches!(&at, At::Ours(mount) if mount.device != directory.device);
        if earlier || observe::is_stale(&at, target, &self.source) {
            unmount_all(self.root, target, sources)?;
            return Ok(MountTable::read()?);
        }
        Ok(table)
    }

    fn run(&mut self, decision: Publish) -> Result<Outcome<()>> {
        if self.target.block && decision != Publish::Mount {
            // What the device's number is seen to be must be so still.
            self.seen_device()?;
        }
        match decision {
            Publish::Nothing => return Ok(Outcome::Unchanged(())),
            Publish::Record => {
                self.node.journal.write_target(&self.target)?;
                return Ok(Outcome::Changed(()));
            }
            Publish::Mount => {}
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
            self.done.push(Undo::Place);
        }
        Ok(step("make target", &target.display(), || {
            if self.target.block { self.root.make_file(&target, 0o640) } else { self.root.make_dir(&target, 0o750) }
        })?)
    }

    fn bind_filesystem(&mut self, place: OwnedFd) -> Result<()> {
        let from = match &self.source {
            // Not by way of the staging path, whose directory may have gone stale.
            Source::Directory(directory) => mount::open_in(&directory.mount, &directory.directory)?,
            source => observe::open(self.node.root_of(self.entry), &self.entry.staging, source)?,
        };
        self.bind(from, place)?;
        let target = &self.target.target;
        match observe::at(&MountTable::read()?, target, std::slice::from_ref(&self.source)) {
            At::Ours(mount) if self.target.read_only && !mount.is_read_only() => {
                Err(unexpected(target, "it was to be read-only, but is mounted read-write"))
            }
            At::Ours(_) => Ok(()),
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
        match observe::at(&MountTable::read()?, &self.target.target, std::slice::from_ref(&self.source)) {
            At::Ours(_) => self.seen_device(),
            other => Err(not_as_made(&self.target.target, &other)),
        }
    }

    fn bind(&mut self, from: OwnedFd, place: OwnedFd) -> Result<()> {
        let target = self.target.target.clone();
        self.done.push(Undo::Mount);
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
            self.done.push(Undo::Protection);
        }
        let name = if self.target.read_only { "forbid writes" } else { "allow writes" };
        step(name, &device.path.display(), || open.set_read_only(self.target.read_only))?;
        if open.read_only()? != self.target.read_only {
            let reason = format!("it stays {}; unstage the volume and stage it again", plan::access_word(is));
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

    fn undo(&mut self, error: Error) -> Error {
        let done = std::mem::take(&mut self.done);
        let left = undo_in_reverse(done, Undo::Journal, |undo| self.undo_one(undo));
        if left.is_empty() { error.nothing_left() } else { error.but_left(left.join("; ")) }
    }

    fn undo_one(&self, undo: Undo) -> Result<()> {
        let target = &self.target.target;
        match undo {
            Undo::Mount => unmount_all(self.root, target, std::slice::from_ref(&self.source)).map(|_| ()),
            Undo::Protection => super::unstage::allow_writes(&self.source),
            Undo::Place => remove_place(self.root, target),
            Undo::Journal => self.node.journal.remove_target(&self.entry.id, target),
        }
    }
}

/// What is mounted as it is (NFS) has a name that is none of ours; the CO's default does not apply to it.
fn suits(asked: &str, staged: Option<&str>) -> bool {
    staged.is_none_or(|staged| staged == asked || staged.parse::<crate::volume::FsType>().is_err())
}

fn not_as_made(path: &Path, at: &At) -> Error {
    match at {
        At::Stack(count) => plan::stacked(path, *count),
        At::Foreign(mount) => plan::taken(path, mount),
        At::Nothing | At::Ours(_) => unexpected(path, "the mount is not there after it was made"),
    }
}

/// Removes the directory or file that was mounted on, once mountinfo shows that nothing is any more.
pub(super) fn remove_place(root: &Root, path: &Path) -> Result<()> {
    match observe::at(&MountTable::read()?, path, &[]) {
        At::Nothing => Ok(step("remove target", &path.display(), || root.remove(path))?),
        At::Foreign(mount) => Err(plan::taken(path, &mount)),
        At::Ours(_) | At::Stack(_) => Err(unexpected(path, "something is still mounted there")),
    }
}

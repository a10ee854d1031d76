//! The steps of a stage, and their undoing.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::backend::{BlockDevice, ConnectRequest, Directory, ExpectedContents, Source};
use crate::os;
use crate::os::block::Device;
use crate::os::fs::Mark;
use crate::os::luks::State;
use crate::os::mount::{self, Attributes};
use crate::os::mounts::Mounts;
use crate::os::step::step;
use crate::volume::{Error, FsType, MountFlags, Result};

use super::super::context::Node;
use super::super::device_use::{close_mapping, device_unused};
use super::super::errors::{access_word, stacked, taken, unexpected};
use super::super::journal::{Access, Phase, StageEntry, VERSION};
use super::super::mounts::{apply_group, split_flags, unmount_all};
use super::super::observe::{self, MountState};
use super::super::sources::Sources;
use super::plan::proof::Holds;
use super::plan::{self, Start};
use super::spec::{DesiredAccess, StageSpec};

/// How long a killed program may keep the device that it was given; the CO asks again.
pub(super) const LINGERING: Duration = Duration::from_secs(3);

/// What was done and must be undone if a later step fails. Pushed before the side effect, since it may fail half-way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StageUndo {
    Journal,
    Connection,
    Mapping,
    Directory,
    Mount,
}

/// One stage that runs.
pub(in crate::ops::node) struct StageRun<'a> {
    pub(super) node: &'a Node,
    pub(super) order: &'a StageSpec<'a>,
    /// What an earlier stage left in the journal.
    pub(super) earlier: Option<StageEntry>,
    /// As it is, or will be, in the journal.
    pub(super) entry: StageEntry,
    pub(super) device: Option<Device>,
    pub(super) luks: Option<Luks>,
    /// Of a format in progress, as the medium has it.
    pub(super) mark: Option<Mark>,
    /// What the device must hold, as far as its storage says.
    pub(super) expected: Option<ExpectedContents>,
    pub(super) done: Vec<StageUndo>,
}

/// The device below a mapping.
pub(super) struct Luks {
    pub(super) below: Device,
    /// What its header says of what is behind it.
    pub(super) state: State,
}

impl<'a> StageRun<'a> {
    pub fn new(node: &'a Node, order: &'a StageSpec<'a>, earlier: Option<StageEntry>) -> StageRun<'a> {
        let wanted = &order.wanted;
        // What was interrupted is remembered until it was done, with the device that it was for.
        let interrupted = earlier.as_ref().filter(|entry| entry.is_interrupted());
        let entry = StageEntry {
            version: VERSION,
            id: wanted.id.clone(),
            phase: Phase::Staging,
            source: interrupted.and_then(|entry| entry.source.clone()),
            mapping: None,
            access: match &wanted.access {
                DesiredAccess::Block => Access::Block,
                DesiredAccess::Filesystem { mount_flags, .. } => {
                    Access::Filesystem { fstype: None, mount_flags: mount_flags.into() }
                }
            },
            mode: wanted.mode,
            staging: wanted.staging.clone(),
            read_only: wanted.read_only,
            format: interrupted.and_then(|entry| entry.format),
            growth: interrupted.and_then(|entry| entry.growth.clone()),
            inline: wanted.inline,
            boot: node.boot.clone(),
            parameters: order.parameters.to_json(),
            created: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
        };
        StageRun { node, order, earlier, entry, device: None, luks: None, mark: None, expected: None, done: Vec::new() }
    }

    /// Runs the first round's steps, and all that follows from what they find.
    pub fn run(&mut self, steps: &[Start]) -> Result<()> {
        let adopt = steps.contains(&Start::Adopt);
        for start in steps {
            match start {
                Start::ClearMounts => self.clear_mounts()?,
                Start::Disconnect => {
                    close_mapping(self.node, &self.entry.id)?;
                    let sources = Sources::observe(self.node, &self.entry.id, self.earlier.as_ref())?;
                    let mounts = Mounts::now()?;
                    // Only devices: a share that went stale is mounted anew beside its targets.
                    for source in &sources.all {
                        if let Source::Device(device) = source {
                            device_unused(&format!("volume {}", self.entry.id), device, &mounts)?;
                        }
                    }
                    let hint = self.earlier.as_ref().and_then(|entry| entry.source.as_ref());
                    self.order.backend.connect().disconnect(&self.entry.id, hint)?;
                }
                Start::Begin => {
                    self.done.push(StageUndo::Journal);
                    if self.earlier.is_some() {
                        // What an earlier stage connected must not outlive the entry that says so.
                        self.done.extend([StageUndo::Connection, StageUndo::Mapping]);
                    }
                    self.node.journal.write_stage(&self.entry)?;
                }
                Start::Connect => self.connect()?,
                Start::Adopt => {}
            }
        }
        let source = self.unlocked()?;
        match (&self.order.wanted.access, &source) {
            (DesiredAccess::Block, Source::Device(device)) => {
                let opened = self.open(device)?;
                self.about_to_write()?;
                self.end_format(&opened)?;
                self.mark(State::Used)?;
            }
            (DesiredAccess::Block, Source::Filesystem { .. } | Source::Directory(_)) => {
                return Err(Error::Unsupported {
                    what: format!("raw block access to volume {}", self.entry.id),
                    reason: "its backend has file systems only".to_owned(),
                });
            }
            (DesiredAccess::Filesystem { .. }, Source::Directory(directory)) if !self.entry.is_mounted_at_staging() => {
                // Where an earlier version had mounted it.
                unmount_all(self.order.root, &self.entry.staging, &self.entry.shown())?;
                self.remember_fstype(&directory.fstype);
            }
            (DesiredAccess::Filesystem { .. }, _) if adopt => self.adopt()?,
            (DesiredAccess::Filesystem { .. }, Source::Filesystem { fstype, source, options }) => {
                self.mount(fstype, Path::new(source), options)?;
            }
            (DesiredAccess::Filesystem { .. }, Source::Directory(directory)) => self.bind(directory)?,
            (DesiredAccess::Filesystem { fstype, .. }, Source::Device(device)) => self.filesystem(*fstype, device)?,
        }
        self.device = None;
        self.luks = None;
        if let (Some(gid), Access::Filesystem { .. }) = (self.order.group, &self.entry.access) {
            apply_group(self.order.root, &self.entry.staging, &source, gid, self.entry.read_only)?;
        }
        // What it remembered of something interrupted is done, or was nothing.
        (self.entry.format, self.entry.growth) = (None, None);
        self.entry.phase = Phase::Staged;
        self.node.journal.write_stage(&self.entry)
    }

    /// What is known of the device's emptiness ends here, and not before: a stage that fails earlier is repeated without reading all of it.
    pub(super) fn about_to_write(&self) -> Result<()> {
        match self.entry.source.as_ref().filter(|_| !self.entry.read_only) {
            Some(source) => self.order.backend.connect().about_to_write(&self.entry.id, source),
            None => Ok(()),
        }
    }

    fn clear_mounts(&self) -> Result<()> {
        let Some(earlier) = &self.earlier else { return Ok(()) };
        let sources = Sources::observe(self.node, &earlier.id, Some(earlier))?;
        unmount_all(self.order.root, &earlier.staging, &sources.at_staging())?;
        Ok(())
    }

    pub(super) fn connect(&mut self) -> Result<()> {
        let request = ConnectRequest {
            id: &self.entry.id,
            parameters: &self.order.parameters.backend,
            publish_context: self.order.publish_context,
            secrets: self.order.secrets,
            mount_flags: &self.flags(),
            read_only: self.entry.read_only,
            earlier: self.entry.source.as_ref(),
        };
        // A share that is connected anew stays staged where that fails.
        if self.done.contains(&StageUndo::Journal) {
            self.done.push(StageUndo::Connection);
        }
        let source = self.order.backend.connect().connect(&request)?.into_inner();
        // Another device than the one whose growth was interrupted: what is on it is not ours.
        let same = match (&self.entry.source, &source) {
            (Some(Source::Device(then)), Source::Device(now)) => then.lasting_identity() == now.lasting_identity(),
            _ => false,
        };
        if !same {
            self.entry.growth = None;
        }
        self.expected = self.order.backend.connect().expected_contents(&source, self.order.publish_context)?;
        self.entry.source = Some(source);
        Ok(())
    }

    /// Sees that the device is the volume's by what it holds; before anything is written to it.
    pub(super) fn prove(&self, device: &BlockDevice, holds: &Holds) -> Result<()> {
        plan::proof::prove(&self.entry.id, &device.path.display().to_string(), self.expected.as_ref(), holds)
    }

    /// The CO's mount options; none for raw block.
    pub(super) fn flags(&self) -> MountFlags {
        match &self.order.wanted.access {
            DesiredAccess::Filesystem { mount_flags, .. } => mount_flags.clone(),
            DesiredAccess::Block => MountFlags::default(),
        }
    }

    /// Opens the device, once for all that follows, and sees that it is the one that was connected.
    pub(super) fn open(&self, device: &BlockDevice) -> Result<Device> {
        let opened = Device::open(&device.path, !self.entry.read_only).or_else(|error| match error.errno() {
            // Protected by us for a read-only target, at the time of a kill; it is looked at below.
            Some(libc::EACCES | libc::EROFS | libc::EPERM) => Device::open(&device.path, false),
            _ => Err(error),
        })?;
        if opened.number() != device.number {
            let ((major, minor), (now_major, now_minor)) = (device.number, opened.number());
            let reason = format!("volume {} is device {major}:{minor}, but this is {now_major}:{now_minor}", self.entry.id);
            return Err(unexpected(&device.path, reason));
        }
        if self.entry.read_only || !opened.read_only()? {
            return Ok(opened);
        }
        step("allow writes", &device.path.display(), || opened.set_read_only(false))?;
        if opened.read_only()? {
            return Err(Error::Conflict {
                object: format!("device {} of volume {}", device.path.display(), self.entry.id),
                existing: access_word(true).to_owned(),
                wanted: access_word(false).to_owned(),
            });
        }
        Ok(Device::open(&device.path, true)?)
    }

    /// As `open`, and not while a mkfs or a check that was killed still lives: it would write on what we find or make.
    pub(super) fn open_alone(&self, device: &BlockDevice) -> Result<Device> {
        let opened = self.open(device)?;
        if !self.entry.read_only {
            opened.lock_exclusive(LINGERING)?;
        }
        Ok(opened)
    }

    /// The staging directory, made if need be.
    fn place(&mut self) -> Result<OwnedFd> {
        let (root, staging) = (self.order.root, self.entry.staging.clone());
        if root.open_path(&staging)?.is_none() {
            self.done.push(StageUndo::Directory);
            step("make directory", &staging.display(), || root.make_dir(&staging, 0o750))?;
        }
        root.open_path(&staging)?.ok_or_else(|| unexpected(&staging, "the staging directory vanished"))
    }

    /// A directory of a local file system is bound to the staging path.
    fn bind(&mut self, directory: &Directory) -> Result<()> {
        let (mut attributes, _) = split_flags(&self.flags().after(&directory.options))?;
        attributes.read_only |= self.entry.read_only;
        let staging = self.entry.staging.clone();
        let place = self.place()?;
        self.done.push(StageUndo::Mount);
        step("bind", &format_args!("{} on {}", directory.source, staging.display()), || {
            let from = mount::open_in(&directory.mount, &directory.directory)?;
            let detached = mount::clone_mount(from.as_fd(), &attributes)?;
            mount::attach(detached, place.as_fd(), &staging)
        })?;
        drop(place);
        self.seen_mounted(&directory.fstype, attributes.read_only)
    }

    pub(super) fn mount(&mut self, fstype: &str, device: &Path, more: &[String]) -> Result<()> {
        let (attributes, options) = self.options(fstype, more)?;
        let staging = self.entry.staging.clone();
        let place = self.place()?;
        if let Some(open) = &self.device {
            let named = Device::open(device, false)?.number();
            if named != open.number() {
                return Err(unexpected(device, format!("by this name it is no longer the device of volume {}", self.entry.id)));
            }
        }
        self.done.push(StageUndo::Mount);
        step("mount", &format_args!("{} on {}", device.display(), staging.display()), || {
            let detached = mount::new_filesystem(fstype, device, &options, &attributes)?;
            mount::attach(detached, place.as_fd(), &staging)
        })
        .map_err(|error| self.refused(error))?;
        drop(place);
        self.seen_mounted(fstype, attributes.read_only)?;
        self.remember_fstype(fstype);
        Ok(())
    }

    /// The kernel says EINVAL to an option that the file system does not know.
    fn refused(&self, error: os::Error) -> Error {
        let own = split_flags(&self.flags()).map(|(_, options)| options).unwrap_or_default();
        if error.errno() == Some(libc::EINVAL) && !own.is_empty() {
            let reason = format!("the kernel refuses one of {:?}: {error}", own.to_string());
            return Error::invalid("volume_capability.mount.mount_flags", reason);
        }
        error.into()
    }

    /// One mount, of this device, as it was asked for: else what follows would write somewhere else.
    fn seen_mounted(&self, fstype: &str, read_only: bool) -> Result<()> {
        let staging = &self.entry.staging;
        match observe::at(&Mounts::now()?, staging, &self.entry.shown())? {
            MountState::Ours(mount) if mount.fstype != fstype => {
                Err(unexpected(staging, format!("{} is mounted there instead of {fstype}", mount.fstype)))
            }
            MountState::Ours(mount) if mount.is_read_only() != read_only => {
                Err(unexpected(staging, format!("it is mounted {}", access_word(mount.is_read_only()))))
            }
            MountState::Ours(_) => Ok(()),
            MountState::Nothing => Err(unexpected(staging, "the mount is not there after it was made")),
            MountState::Stack(count) => Err(stacked(staging, count)),
            MountState::Foreign(mount) => Err(taken(staging, &mount)),
        }
    }

    fn adopt(&mut self) -> Result<()> {
        let MountState::Ours(mount) = observe::at(&Mounts::now()?, &self.entry.staging, &self.entry.shown())? else {
            return Err(unexpected(&self.entry.staging, "the mount that was there is gone; repeat the call"));
        };
        tracing::warn!(volume = %self.entry.id, path = %self.entry.staging.display(), "a mount without a journal entry was taken over");
        self.remember_fstype(&mount.fstype);
        Ok(())
    }

    /// Not of a directory of the node's own: it is of the file system that it lies on, whatever is asked for.
    fn remember_fstype(&mut self, name: &str) {
        let own_directory = matches!(&self.entry.source, Some(Source::Directory(directory)) if directory.root.is_some());
        if let Access::Filesystem { fstype, .. } = &mut self.entry.access
            && !own_directory
        {
            *fstype = Some(name.to_owned());
        }
    }

    /// Attributes of the mount, options of the file system.
    fn options(&self, fstype: &str, more: &[String]) -> Result<(Attributes, MountFlags)> {
        let (mut attributes, options) = split_flags(&self.flags().after(more))?;
        let mut options = options.expose().to_vec();
        attributes.read_only |= self.entry.read_only;
        let mut add = |option: &str| {
            if !options.iter().any(|there| there == option) {
                options.push(option.to_owned());
            }
        };
        if fstype == FsType::Xfs.as_str() {
            // A restored or cloned volume has the UUID of its source, which may be mounted here too.
            add("nouuid");
        }
        if self.order.parameters.node.discard && self.device.is_some() {
            add("discard");
        }
        let protected = self.device.as_ref().map(Device::read_only).transpose()?.unwrap_or(false);
        if attributes.read_only && protected {
            // Its log cannot be replayed where nothing can be written.
            match fstype {
                "ext4" => add("noload"),
                "xfs" => add("norecovery"),
                "btrfs" => add("rescue=nologreplay"),
                _ => {}
            }
        }
        Ok((attributes, options.into()))
    }
}

//! The steps of a stage, and their undoing.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::backend::{BlockDevice, ConnectRequest, Directory, Source};
use crate::os::block::Device;
use crate::os::fs::mark::Purpose;
use crate::os::fs::{Contents, Evidence, Mark};
use crate::os::luks::State;
use crate::os::mount::{self, Attributes};
use crate::os::mountinfo::MountTable;
use crate::os::path::Root;
use crate::os::step::step;
use crate::os::{self, fs, luks, udev};
use crate::volume::{Encryption, Error, FsType, MountFlags, Result};

use super::journal::{Access, Format, Phase, StageEntry, VERSION};
use super::observe::{self, At};
use super::plan::{self, Found, Locked, Mapping, Prepare, Start, Unlock, WantedAccess};
use super::stage::Order;
use super::{Node, group, unexpected, unstage};

/// More mounts than this on top of each other are not ours.
const HIGHEST_STACK: usize = 64;

/// How long a killed program may keep the device that it was given; the CO asks again.
const LINGERING: Duration = Duration::from_secs(3);

/// What was done and must be undone if a later step fails. Pushed before the side effect, since it may fail half-way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Undo {
    Journal,
    Connection,
    Mapping,
    Directory,
    Mount,
}

/// One stage that runs.
pub(super) struct Job<'a> {
    node: &'a Node,
    order: &'a Order<'a>,
    /// What an earlier stage left in the journal.
    earlier: Option<StageEntry>,
    /// As it is, or will be, in the journal.
    entry: StageEntry,
    device: Option<Device>,
    luks: Option<Luks>,
    /// Of a format in progress, as the medium has it.
    mark: Option<Mark>,
    done: Vec<Undo>,
}

/// The device below a mapping.
struct Luks {
    below: Device,
    /// What its header says of what is behind it.
    state: State,
}

impl<'a> Job<'a> {
    pub fn new(node: &'a Node, order: &'a Order<'a>, earlier: Option<StageEntry>) -> Job<'a> {
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
                WantedAccess::Block => Access::Block,
                WantedAccess::Filesystem { mount_flags, .. } => {
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
        Job { node, order, earlier, entry, device: None, luks: None, mark: None, done: Vec::new() }
    }

    /// Runs the first round's steps, and all that follows from what they find.
    pub fn run(&mut self, steps: &[Start]) -> Result<()> {
        let adopt = steps.contains(&Start::Adopt);
        for start in steps {
            match start {
                Start::ClearMounts => self.clear_mounts()?,
                Start::Disconnect => {
                    self.node.close_mapping(&self.entry.id)?;
                    let sources = self.node.sources(&self.entry.id, self.earlier.as_ref())?;
                    let table = MountTable::read()?;
                    // Only devices: a share that went stale is mounted anew beside its targets.
                    for source in &sources.all {
                        if let Source::Device(device) = source {
                            unstage::device_unused(&format!("volume {}", self.entry.id), device, &table)?;
                        }
                    }
                    let hint = self.earlier.as_ref().and_then(|entry| entry.source.as_ref());
                    self.order.backend.connect().disconnect(&self.entry.id, hint)?;
                }
                Start::Begin => {
                    self.done.push(Undo::Journal);
                    if self.earlier.is_some() {
                        // What an earlier stage connected must not outlive the entry that says so.
                        self.done.extend([Undo::Connection, Undo::Mapping]);
                    }
                    self.node.journal.write_stage(&self.entry)?;
                }
                Start::Connect => self.connect()?,
                Start::Adopt => {}
            }
        }
        let source = self.unlocked()?;
        match (&self.order.wanted.access, &source) {
            (WantedAccess::Block, Source::Device(device)) => {
                drop(self.open(device)?);
                self.mark(State::Used)?;
            }
            (WantedAccess::Block, Source::Filesystem { .. } | Source::Directory(_)) => {
                return Err(Error::Unsupported {
                    what: format!("raw block access to volume {}", self.entry.id),
                    reason: "its backend has file systems only".to_owned(),
                });
            }
            (WantedAccess::Filesystem { .. }, _) if adopt => self.adopt()?,
            (WantedAccess::Filesystem { .. }, Source::Filesystem { fstype, source, options }) => {
                self.mount(fstype, Path::new(source), options)?;
            }
            (WantedAccess::Filesystem { .. }, Source::Directory(directory)) => self.bind(directory)?,
            (WantedAccess::Filesystem { fstype, .. }, Source::Device(device)) => self.filesystem(*fstype, device)?,
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

    /// Ends what was interrupted while it wrote on the device, without mounting and without a secret: afterwards the device holds
    /// a whole file system, or a LUKS header that tells what there is behind it, or nothing. What the medium does not say to be
    /// interrupted is left as it is, whatever the journal says.
    pub fn finish_interrupted(&mut self) -> Result<()> {
        self.connect()?;
        let Some(Source::Device(device)) = self.entry.source.clone() else { return Ok(()) };
        let opened = self.open_alone(&device)?;
        if self.order.parameters.node.encryption != Encryption::None {
            let locked = self.look_below(&device, &opened)?;
            if locked.interrupted && plan::unlock(false, &locked)?.contains(&Unlock::Wipe) {
                self.wipe_header(&opened)?;
            }
            return Ok(());
        }
        self.device = Some(opened);
        let found = self.look(None, &device)?;
        if found.interrupted.is_some() || found.growing {
            let steps = plan::prepare(None, self.entry.read_only, false, &found)?;
            for prepare in steps.into_iter().filter(|step| !matches!(step, Prepare::Mount(_) | Prepare::GrowUnmounted(_))) {
                self.prepare(prepare, &device)?;
            }
        }
        self.device = None;
        Ok(())
    }

    fn clear_mounts(&self) -> Result<()> {
        let Some(earlier) = &self.earlier else { return Ok(()) };
        let sources = self.node.sources(&earlier.id, Some(earlier))?;
        unmount_all(self.order.root, &earlier.staging, &sources.all)?;
        Ok(())
    }

    fn connect(&mut self) -> Result<()> {
        let request = ConnectRequest {
            id: &self.entry.id,
            parameters: &self.order.parameters.backend,
            publish_context: self.order.publish_context,
            secrets: self.order.secrets,
            mount_flags: &self.flags(),
            read_only: self.entry.read_only,
            earlier: self.entry.source.as_ref(),
        };
        self.done.push(Undo::Connection);
        let source = self.order.backend.connect().connect(&request)?.into_inner();
        // Another device than the one whose growth was interrupted: what is on it is not ours.
        let same = match (&self.entry.source, &source) {
            (Some(Source::Device(then)), Source::Device(now)) => then.lasting_identity() == now.lasting_identity(),
            _ => false,
        };
        if !same {
            self.entry.growth = None;
        }
        self.entry.source = Some(source);
        Ok(())
    }

    /// The CO's mount options; none for raw block.
    fn flags(&self) -> MountFlags {
        match &self.order.wanted.access {
            WantedAccess::Filesystem { mount_flags, .. } => mount_flags.clone(),
            WantedAccess::Block => MountFlags::default(),
        }
    }

    /// What is to be mounted or shown: what was connected, or the mapping that shows it in clear.
    fn unlocked(&mut self) -> Result<Source> {
        let source = self.entry.source.clone().ok_or_else(|| unexpected(&self.entry.staging, "nothing was connected"))?;
        match (&source, self.order.parameters.node.encryption) {
            (_, Encryption::None) => Ok(source),
            (Source::Device(device), Encryption::Luks2) => {
                let mapping = self.unlock(device)?;
                self.entry.mapping = Some(mapping.clone());
                Ok(Source::Device(mapping))
            }
            (Source::Filesystem { .. } | Source::Directory(_), Encryption::Luks2) => Err(Error::Unsupported {
                what: format!("encryption of volume {}", self.entry.id),
                reason: "its backend has no devices that could be encrypted".to_owned(),
            }),
        }
    }

    fn unlock(&mut self, device: &BlockDevice) -> Result<BlockDevice> {
        let id = self.entry.id.clone();
        let passphrase =
            self.order.secrets.get(Encryption::SECRET).filter(|passphrase| !passphrase.is_empty()).ok_or_else(|| {
                let reason = format!("volume {id} is encrypted: the node-stage secret must have {}", Encryption::SECRET);
                Error::invalid("secrets", reason)
            })?;
        let below = self.open_alone(device)?;
        let locked = self.look_below(device, &below)?;
        let steps = plan::unlock(self.entry.read_only, &locked)?;
        self.done.push(Undo::Mapping);
        let (object, name) = (device.path.display(), self.node.mapping_name(&id));
        for unlock in steps {
            match unlock {
                Unlock::Close => self.node.close_mapping(&id)?,
                Unlock::RecordFormat => self.record_format(&below, Purpose::Luks)?,
                Unlock::Wipe => step("wipe", &object, || luks::wipe(&below))?,
                Unlock::Format => {
                    step("encrypt", &object, || luks::format(&below, passphrase))?;
                    self.clear_mark(&below)?;
                }
                Unlock::Open => {
                    let discard = self.order.parameters.node.discard;
                    step("open mapping", &name, || luks::open(&below, &name, passphrase, self.entry.read_only, discard))?
                        .ok_or_else(|| Error::Denied {
                            object: format!("volume {id}"),
                            reason: format!("the passphrase in the secret {} does not open it", Encryption::SECRET),
                        })?;
                }
                Unlock::Grow => step("grow mapping", &name, || luks::grow(&name))?,
            }
        }
        let header = luks::header(&below)?.ok_or_else(|| unexpected(&device.path, "its LUKS header is gone"))?;
        self.luks = Some(Luks { below, state: header.state });
        let mapping = self.node.sources(&id, Some(&self.entry))?.mapping_on_connected();
        mapping.ok_or_else(|| unexpected(&device.path, format!("its mapping {name} is not there after it was opened")))
    }

    fn look_below(&mut self, device: &BlockDevice, below: &Device) -> Result<Locked> {
        let header = luks::header(below)?;
        let contents = match &header {
            // Of no interest behind a header that was used: what looks like a mark there is ciphertext.
            Some(header) if header.state != State::New => Contents::Other("LUKS".to_owned()),
            _ => self.probe(below)?,
        };
        let interrupted = self.mark.as_ref().is_some_and(|mark| mark.purpose == Purpose::Luks);
        let sources = self.node.sources(&self.entry.id, Some(&self.entry))?;
        let mapping = match (&sources.mapping, sources.mapping_on_connected()) {
            (None, _) => Mapping::None,
            (Some(_), Some(_)) => Mapping::Whole,
            (Some(_), None) => Mapping::Stale,
        };
        Ok(Locked {
            volume: self.entry.id.clone(),
            device: device.path.display().to_string(),
            contents,
            header,
            interrupted,
            device_read_only: below.read_only()?,
            mapping,
        })
    }

    /// Says in the LUKS header, if there is one, what is behind it.
    fn mark(&mut self, state: State) -> Result<()> {
        let Some(luks) = self.luks.as_mut().filter(|luks| luks.state != state) else { return Ok(()) };
        step("mark", &luks.below.path().display(), || luks::mark(&luks.below, state))?;
        luks.state = state;
        Ok(())
    }

    /// Opens the device, once for all that follows, and sees that it is the one that was connected.
    fn open(&self, device: &BlockDevice) -> Result<Device> {
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
                existing: plan::access_word(true).to_owned(),
                wanted: plan::access_word(false).to_owned(),
            });
        }
        Ok(Device::open(&device.path, true)?)
    }

    /// As `open`, and not while a mkfs or a check that was killed still lives: it would write on what we find or make.
    fn open_alone(&self, device: &BlockDevice) -> Result<Device> {
        let opened = self.open(device)?;
        if !self.entry.read_only {
            opened.hold(LINGERING)?;
        }
        Ok(opened)
    }

    fn filesystem(&mut self, fstype: Option<FsType>, device: &BlockDevice) -> Result<()> {
        self.device = Some(self.open_alone(device)?);
        let found = self.look(fstype, device)?;
        let check = self.order.parameters.node.fsck;
        let steps = plan::prepare(fstype, self.entry.read_only, check, &found)?;
        for prepare in &steps {
            if let Prepare::Mkfs(fstype) = prepare {
                // Options that are refused are no mkfs that was interrupted.
                self.order.parameters.node.mkfs_arguments(*fstype)?;
            }
        }
        steps.into_iter().try_for_each(|prepare| self.prepare(prepare, device))
    }

    fn look(&mut self, fstype: Option<FsType>, device: &BlockDevice) -> Result<Found> {
        let source = Source::Device(device.clone());
        let open = self.device.take().ok_or_else(|| unexpected(&device.path, "it is not open"))?;
        let growing = self.is_growing(&open)?;
        let (interrupted, contents) = match &self.luks {
            None => {
                let contents = self.probe(&open)?;
                (self.mark.as_ref().map(|mark| mark.purpose), contents)
            }
            Some(luks) => match step("probe", &device.path.display(), || fs::probe(&open, Evidence::None))? {
                // A mkfs that came to its end, on another node or before the journal was lost.
                Contents::Filesystem(whole) => (None, Contents::Filesystem(whole)),
                // Noise, or half a file system: whatever it looks like means nothing.
                _ if luks.state == State::New => (Some(Purpose::Filesystem(fstype.unwrap_or(FsType::DEFAULT))), Contents::Blank),
                other => (None, other),
            },
        };
        let fs_size = match &contents {
            Contents::Filesystem(fstype) if interrupted.is_none() && !growing => Some(fs::size_on_device(&open, *fstype)?),
            _ => None,
        };
        let found = Found {
            volume: self.entry.id.clone(),
            device: device.path.display().to_string(),
            contents,
            interrupted,
            growing,
            fs_size,
            device_size: open.size()?,
            device_read_only: open.read_only()?,
            // Also in a mount namespace that we do not see.
            mounted: MountTable::read()?.iter().any(|mount| observe::is_filesystem_of(mount, &source)) || open.is_claimed()?,
        };
        self.device = Some(open);
        Ok(found)
    }

    /// Whether a growth of ours was interrupted, and nobody mounted the file system since, on whatever node.
    fn is_growing(&mut self, open: &Device) -> Result<bool> {
        if let Some(luks) = &self.luks {
            return Ok(luks.state == State::Growing);
        }
        let Some(journaled) = &self.entry.growth else { return Ok(false) };
        if fs::ext4_uses(open)? == *journaled {
            return Ok(true);
        }
        self.entry.growth = None;
        Ok(false)
    }

    /// What is on the device, but for the mark of a format, which is remembered.
    fn probe(&mut self, open: &Device) -> Result<Contents> {
        let connect = self.order.backend.connect();
        let beneath = connect.backing_file(&self.entry.id, open)?;
        let evidence = match &beneath {
            Some(file) => Evidence::Beneath(file),
            None if connect.known_blank(self.order.publish_context) => Evidence::MadeEmpty,
            None => Evidence::None,
        };
        let journaled = self.entry.format.map(|format| format.offset);
        let probed = step("probe", &open.path().display(), || fs::probe_marked(open, evidence, journaled))?;
        self.entry.format = probed.mark.as_ref().map(Format::from);
        self.mark = probed.mark;
        Ok(probed.contents)
    }

    /// Says on the medium that a format begins, and in the journal where that stands. The medium first: all nodes see it.
    fn record_format(&mut self, device: &Device, purpose: Purpose) -> Result<()> {
        let earlier = self.mark.take();
        let mark = Mark::new(device, purpose)?;
        step("mark format", &device.path().display(), || mark.write(device))?;
        if let Some(earlier) = earlier.filter(|earlier| earlier.offset != mark.offset) {
            step("clear mark", &device.path().display(), || earlier.clear(device))?;
        }
        self.entry.format = Some(Format::from(&mark));
        self.mark = Some(mark);
        self.node.journal.write_stage(&self.entry)
    }

    /// After a format that came to its end, or never wrote anything.
    fn clear_mark(&mut self, device: &Device) -> Result<()> {
        if let Some(mark) = &self.mark {
            step("clear mark", &device.path().display(), || mark.clear(device))?;
        }
        (self.mark, self.entry.format) = (None, None);
        Ok(())
    }

    /// Takes away an interrupted luksFormat, so that the device is blank as before.
    fn wipe_header(&mut self, device: &Device) -> Result<()> {
        step("wipe", &device.path().display(), || luks::wipe(device))?;
        self.clear_mark(device)
    }

    fn opened(&self, device: &BlockDevice) -> Result<&Device> {
        self.device.as_ref().ok_or_else(|| unexpected(&device.path, "it is not open"))
    }

    fn prepare(&mut self, prepare: Prepare, device: &BlockDevice) -> Result<()> {
        let name = device.path.display().to_string();
        match prepare {
            // A LUKS header over it says it.
            Prepare::RecordMkfs(_) if self.luks.is_some() => self.mark(State::New),
            Prepare::RecordMkfs(fstype) => {
                self.with_device(device, |job, open| job.record_format(open, Purpose::Filesystem(fstype)))
            }
            Prepare::Wipe => Ok(step("wipe", &name, || wipe_ends(self.opened(device)?, self.mark.as_ref()))?),
            Prepare::Mkfs(fstype) => self.mkfs(fstype, device),
            Prepare::Check(fstype) => self.check(&name, fstype, || fs::check(self.opened(device)?, fstype).map_err(Error::from)),
            Prepare::CheckFully(fstype) => {
                self.check(&name, fstype, || fs::check_fully(self.opened(device)?, fs::Repair::Safely).map_err(Error::from))
            }
            Prepare::RepairGrowth(fstype) => {
                self.check(&name, fstype, || fs::check_fully(self.opened(device)?, fs::Repair::All).map_err(Error::from))
            }
            Prepare::RecordGrowth => {
                self.mark(State::Growing)?;
                self.entry.growth = Some(fs::ext4_uses(self.opened(device)?)?);
                self.node.journal.write_stage(&self.entry)
            }
            Prepare::GrowUnmounted(_) => {
                step("grow", &name, || fs::grow_unmounted(self.opened(device)?).map_err(Error::from))?;
                self.entry.growth = None;
                Ok(())
            }
            Prepare::Mount(fstype) => {
                self.mark(State::Used)?;
                self.mount(fstype.as_str(), &device.path, &[])
            }
            Prepare::GrowMounted(fstype) => {
                let mount = observe::open(self.order.root, &self.entry.staging, &Source::Device(device.clone()))?;
                step("grow", &name, || fs::grow_mounted(self.opened(device)?, fstype, mount.as_fd()).map_err(Error::from))
            }
        }
    }

    fn check(&self, name: &str, fstype: FsType, check: impl FnOnce() -> Result<fs::Checked>) -> Result<()> {
        let said = match step("check", &name, check)? {
            fs::Checked::Clean => return Ok(()),
            fs::Checked::Repaired => "the check before the mount repaired errors",
            fs::Checked::Completed => "an earlier check was interrupted while it wrote the superblock; this one has completed it",
        };
        tracing::warn!(volume = %self.entry.id, device = %name, %fstype, "{said}");
        Ok(())
    }

    fn mkfs(&mut self, fstype: FsType, device: &BlockDevice) -> Result<()> {
        let arguments = self.order.parameters.node.mkfs_arguments(fstype)?;
        self.with_device(device, |job, open| {
            let made = step("mkfs", &device.path.display(), || fs::mkfs(open, fstype, &arguments, job.mark.as_ref()));
            // It may have refused before it wrote anything: then the device is as blank as before.
            if job.luks.is_none() && (made.is_ok() || matches!(job.probe(open), Ok(Contents::Blank))) {
                job.clear_mark(open)?;
            }
            Ok(made?)
        })
    }

    /// Lends the open device to what also changes the job.
    fn with_device<T>(&mut self, device: &BlockDevice, act: impl FnOnce(&mut Self, &Device) -> Result<T>) -> Result<T> {
        let open = self.device.take().ok_or_else(|| unexpected(&device.path, "it is not open"))?;
        let outcome = act(self, &open);
        self.device = Some(open);
        outcome
    }

    /// The staging directory, made if need be.
    fn place(&mut self) -> Result<OwnedFd> {
        let (root, staging) = (self.order.root, self.entry.staging.clone());
        if root.open_path(&staging)?.is_none() {
            self.done.push(Undo::Directory);
            step("make directory", &staging.display(), || root.make_dir(&staging, 0o750))?;
        }
        root.open_path(&staging)?.ok_or_else(|| unexpected(&staging, "the staging directory vanished"))
    }

    /// A directory of a shared mount is bound to the staging path: what the mount is like is its first user's choice, what the bind
    /// forbids is this one's.
    fn bind(&mut self, directory: &Directory) -> Result<()> {
        let (mut attributes, _) = split_flags(&self.flags().after(&directory.options))?;
        attributes.read_only |= self.entry.read_only;
        let staging = self.entry.staging.clone();
        let place = self.place()?;
        self.done.push(Undo::Mount);
        step("bind", &format_args!("{} on {}", directory.source, staging.display()), || {
            let from = mount::open_in(&directory.mount, &directory.directory)?;
            let detached = mount::clone_mount(from.as_fd(), &attributes)?;
            mount::attach(detached, place.as_fd(), &staging)
        })?;
        drop(place);
        self.seen_mounted(&directory.fstype, attributes.read_only)?;
        self.remember_fstype(&directory.fstype);
        Ok(())
    }

    fn mount(&mut self, fstype: &str, device: &Path, more: &[String]) -> Result<()> {
        let (attributes, options) = self.options(fstype, more)?;
        let staging = self.entry.staging.clone();
        let place = self.place()?;
        if let Some(open) = &self.device {
            let named = Device::open(device, false)?.number();
            if named != open.number() {
                return Err(unexpected(device, format!("by this name it is no longer the device of volume {}", self.entry.id)));
            }
        }
        self.done.push(Undo::Mount);
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
        match observe::at(&MountTable::read()?, staging, &self.entry.shown()) {
            At::Ours(mount) if mount.fstype != fstype => {
                Err(unexpected(staging, format!("{} is mounted there instead of {fstype}", mount.fstype)))
            }
            At::Ours(mount) if mount.is_read_only() != read_only => {
                Err(unexpected(staging, format!("it is mounted {}", plan::access_word(mount.is_read_only()))))
            }
            At::Ours(_) => Ok(()),
            At::Nothing => Err(unexpected(staging, "the mount is not there after it was made")),
            At::Stack(count) => Err(plan::stacked(staging, count)),
            At::Foreign(mount) => Err(plan::taken(staging, &mount)),
        }
    }

    fn adopt(&mut self) -> Result<()> {
        let table = MountTable::read()?;
        let At::Ours(mount) = observe::at(&table, &self.entry.staging, &self.entry.shown()) else {
            return Err(unexpected(&self.entry.staging, "the mount that was there is gone; repeat the call"));
        };
        tracing::warn!(volume = %self.entry.id, path = %self.entry.staging.display(), "a mount without a journal entry was taken over");
        self.remember_fstype(&mount.fstype);
        Ok(())
    }

    fn remember_fstype(&mut self, name: &str) {
        if let Access::Filesystem { fstype, .. } = &mut self.entry.access {
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

    /// Undoes what was done, in reverse, going on after an error; says in the error what is left.
    pub fn undo(mut self, error: Error) -> Error {
        self.device = None;
        self.luks = None;
        // It may still become connected: what was begun stays in the journal, for the next stage or unstage.
        if matches!(error, Error::InProgress { .. } | Error::BackendUnavailable { .. } | Error::Throttled { .. }) {
            return error;
        }
        if matches!(error, Error::Unverified { .. }) {
            // It was left as it is, and it is for a person to decide: there is nothing that a repeat would complete.
            self.entry.format = None;
        }
        let done = std::mem::take(&mut self.done);
        let mut left = undo_in_reverse(done, Undo::Journal, |undo| self.undo_one(undo));
        if let (Some(format), Some(source)) = (self.entry.format, &self.entry.source) {
            let name = super::source_name(source);
            left.push(format!("{} was interrupted on {name}; the next stage repeats it", format.purpose));
        }
        if self.entry.growth.is_some() {
            left.push("the growth of its file system was interrupted; the next stage continues it".to_owned());
        }
        if left.is_empty() { error.nothing_left() } else { error.but_left(left.join("; ")) }
    }

    fn undo_one(&self, undo: Undo) -> Result<()> {
        let (id, staging) = (&self.entry.id, &self.entry.staging);
        match undo {
            Undo::Mount => unmount_all(self.order.root, staging, &self.entry.shown()).map(|_| ()),
            Undo::Directory => Ok(step("remove directory", &staging.display(), || self.order.root.remove(staging))?),
            Undo::Mapping => self.node.close_mapping(id),
            Undo::Connection => {
                if let Some(source) = &self.entry.source {
                    self.node.unused(id, source)?;
                }
                self.order.backend.connect().disconnect(id, self.entry.source.as_ref())?;
                Ok(())
            }
            // An inline volume's entry goes with the volume.
            Undo::Journal if self.entry.is_interrupted() || self.entry.inline => Ok(()),
            Undo::Journal => self.node.journal.remove_stage(id),
        }
    }
}

/// Undoes the latest first, going on after an error; answers what could not be undone. The journal goes only when nothing
/// else is left: what it says must be true to the last.
pub(super) fn undo_in_reverse<U: Copy + PartialEq>(done: Vec<U>, journal: U, undo_one: impl Fn(U) -> Result<()>) -> Vec<String> {
    let mut left = Vec::new();
    for undo in done.into_iter().rev() {
        if undo == journal && !left.is_empty() {
            continue;
        }
        if let Err(failure) = undo_one(undo) {
            left.push(failure.to_string());
        }
    }
    left
}

/// The CO's mount options, parted.
///
/// # Errors
/// `Invalid` for an option that makes no sense here.
pub(super) fn split_flags(flags: &MountFlags) -> Result<(Attributes, MountFlags)> {
    mount::split_options(flags).map_err(|error| Error::invalid("volume_capability.mount.mount_flags", error.to_string()))
}

/// Gives the file system of `source`, mounted at `path`, to the group. Answers whether anything had to be done.
pub(super) fn apply_group(root: &Root, path: &Path, source: &Source, gid: u32, read_only: bool) -> Result<bool> {
    if read_only {
        return Ok(false);
    }
    let place = observe::open(root, path, source)?;
    Ok(step("apply group", &format_args!("{gid} to {}", path.display()), || group::apply(place.as_fd(), path, gid))?)
}

/// Unmounts all that lies at `path`, which must all be of `sources`; seen to be none on return. Answers how many there were.
///
/// # Errors
/// `InUse` for a mount of someone else, which stays; not final where the kernel says that it is busy.
pub(super) fn unmount_all(root: &Root, path: &Path, sources: &[Source]) -> Result<usize> {
    for count in 0..HIGHEST_STACK {
        let table = MountTable::read()?;
        if let At::Foreign(mount) = observe::at(&table, path, sources) {
            return Err(plan::taken(path, &mount));
        }
        let Some(top) = table.at(path).last().map(|mount| mount.id) else { return Ok(count) };
        step("unmount", &path.display(), || unmount_patiently(root, path, top)).map_err(|error| {
            let busy = error.errno() == Some(libc::EBUSY);
            let error = Error::from(error);
            if busy {
                let path = path.display();
                error.but_left(format!("{path} is still mounted, a process uses it: `fuser -vm {path}` shows which"))
            } else {
                error
            }
        })?;
    }
    Err(plan::stacked(path, HIGHEST_STACK))
}

/// A program that we start at this moment for another volume has our own descriptors until its exec, those in this mount too: so EBUSY is
/// believed only after a while.
fn unmount_patiently(root: &Root, path: &Path, id: u64) -> os::Result<()> {
    const STARTING: Duration = Duration::from_secs(1);
    let mut busy = None;
    let attempt = || match mount::unmount(root, path, id) {
        Ok(()) => Ok(true),
        Err(error) if error.errno() == Some(libc::EBUSY) => {
            busy = Some(error);
            Ok(false)
        }
        Err(error) => Err(error),
    };
    let done = udev::wait_until(Instant::now().checked_add(STARTING), attempt)?;
    busy.filter(|_| !done).map_or(Ok(()), Err)
}

/// Zeroes at both ends, where signatures lie: a mkfs that is not forced refuses over one. The mark of the format stays.
fn wipe_ends(device: &Device, mark: Option<&Mark>) -> Result<()> {
    const END: u64 = 1 << 20;
    let size = device.size()?;
    let kept = mark.map_or(size..size, Mark::range);
    for (from, to) in [(0, END.min(kept.start)), (size.saturating_sub(END).min(kept.start), kept.start), (kept.end, size)] {
        device.zero(from, to - from)?;
    }
    Ok(device.flush()?)
}

//! The file system of a stage on a device: made if the device is proven blank, checked, grown, mounted.

use std::os::fd::AsFd;

use crate::backend::{BlockDevice, Source};
use crate::os::block::Device;
use crate::os::fs;
use crate::os::fs::mark::{self, Purpose};
use crate::os::fs::{Contents, Evidence, Mark};
use crate::os::luks::State;
use crate::os::mounts::Mounts;
use crate::os::step::step;
use crate::volume::{Error, FsType, Result};

use super::super::errors::unexpected;
use super::super::journal::Format;
use super::super::observe;
use super::apply::{LINGERING, StageRun};
use super::plan::filesystem::{self as plan, DeviceContents, Prepare};
use super::plan::proof::Holds;

impl StageRun<'_> {
    pub(super) fn filesystem(&mut self, fstype: Option<FsType>, device: &BlockDevice) -> Result<()> {
        self.device = Some(self.open_alone(device)?);
        let found = self.look(fstype, device)?;
        if self.luks.is_none() {
            self.prove(device, &self.holds(device, &found)?)?;
        }
        let check = self.order.parameters.node.fsck;
        let steps = plan::prepare(fstype, self.entry.read_only, check, &found)?;
        for prepare in &steps {
            if let Prepare::Mkfs(fstype) = prepare {
                // Options that are refused are no mkfs that was interrupted.
                self.order.parameters.node.mkfs_arguments(*fstype)?;
            }
        }
        self.about_to_write()?;
        steps.into_iter().try_for_each(|prepare| self.prepare(prepare, device))
    }

    /// What of the device says whose it is. A file system whose growth was interrupted may have a superblock in the making.
    fn holds(&self, device: &BlockDevice, found: &DeviceContents) -> Result<Holds> {
        let on_device = |fstype| Ok(fs::uuid_on_device(self.opened(device)?, fstype)?.map_or(Holds::Else, Holds::Uuid));
        match (&self.mark, &found.contents) {
            (Some(mark), _) => Ok(Holds::Uuid(mark.uuid.clone())),
            (None, _) if found.growing => on_device(FsType::Ext4),
            (None, Contents::Filesystem(fstype)) => on_device(*fstype),
            (None, Contents::Blank) => Ok(Holds::Nothing),
            (None, Contents::Other(_) | Contents::Unknown(_)) => Ok(Holds::Else),
        }
    }

    pub(super) fn look(&mut self, fstype: Option<FsType>, device: &BlockDevice) -> Result<DeviceContents> {
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
        let found = DeviceContents {
            volume: self.entry.id.clone(),
            device: device.path.display().to_string(),
            contents,
            interrupted,
            growing,
            fs_size,
            device_size: open.size()?,
            device_read_only: open.read_only()?,
            // Also in a mount namespace that we do not see.
            mounted: open.is_claimed()?
                || observe::find(&Mounts::now()?, &[source], |mount| mount.block_node().is_none())?.is_some(),
        };
        self.device = Some(open);
        Ok(found)
    }

    /// Whether a growth of ours was interrupted, and nobody mounted the file system since, on whatever node.
    pub(super) fn is_growing(&mut self, open: &Device) -> Result<bool> {
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
    pub(super) fn probe(&mut self, open: &Device) -> Result<Contents> {
        let connect = self.order.backend.connect();
        let beneath = connect.backing_file(&self.entry.id, open)?;
        let evidence = match &beneath {
            Some(file) => Evidence::Beneath(file),
            None if connect.known_blank(&self.entry.id, self.order.publish_context) => Evidence::MadeEmpty,
            None => Evidence::None,
        };
        let journaled = self.entry.format.map(|format| format.offset);
        let probed = step("probe", &open.path().display(), || fs::probe_marked(open, evidence, journaled))?;
        self.entry.format = probed.mark.as_ref().map(Format::from);
        self.mark = probed.mark;
        // Nothing is written to what may be another's.
        let is_ours = |mark: &Mark| self.expected.as_ref().is_none_or(|expected| expected.may_be(&mark.uuid));
        if let Some(finished) = probed.finished.filter(|mark| !self.entry.read_only && is_ours(mark)) {
            step("clear mark", &open.path().display(), || finished.clear(open))?;
        }
        Ok(probed.contents)
    }

    /// Says on the medium that a format begins, and in the journal where that stands. The journal first: once the device has grown, the mark is
    /// not where its size says. Where an earlier mark stands elsewhere, the journal has it until the new one is written.
    pub(super) fn record_format(&mut self, device: &Device, purpose: Purpose) -> Result<()> {
        let earlier = self.mark.take();
        // A repeat keeps the UUID: it may be the volume's own, which a call without publish_context does not say.
        let given =
            self.expected.as_ref().and_then(|expected| expected.uuid.as_ref()).or(earlier.as_ref().map(|earlier| &earlier.uuid));
        let mark = match given {
            Some(uuid) => Mark::with_uuid(device, purpose, uuid.clone())?,
            None => Mark::new(device, purpose)?,
        };
        let write = || step("mark format", &device.path().display(), || mark.write(device));
        let recorded = self.entry.format.replace(Format::from(&mark));
        match earlier.filter(|earlier| earlier.offset != mark.offset) {
            None => {
                if let Err(error) = self.node.journal.write_stage(&self.entry) {
                    self.entry.format = recorded;
                    return Err(error);
                }
                write()?;
            }
            Some(earlier) => {
                write()?;
                self.node.journal.write_stage(&self.entry)?;
                step("clear mark", &device.path().display(), || earlier.clear(device))?;
            }
        }
        self.mark = Some(mark);
        Ok(())
    }

    /// After a format that came to its end, or never wrote anything.
    pub(super) fn clear_mark(&mut self, device: &Device) -> Result<()> {
        if let Some(mark) = &self.mark {
            step("clear mark", &device.path().display(), || mark.clear(device))?;
        }
        (self.mark, self.entry.format) = (None, None);
        Ok(())
    }

    /// What a pod writes to a raw device must never be taken for a format that was interrupted before.
    pub(super) fn end_format(&mut self, device: &Device) -> Result<()> {
        if self.entry.read_only || self.luks.is_some() {
            return Ok(());
        }
        let journaled = self.entry.format.map(|format| format.offset);
        // Where it cannot be read, nobody treats it as one.
        while let Some(mark) = mark::find(device, journaled).ok().flatten() {
            // The mkfs that was killed may still live.
            device.lock_exclusive(LINGERING)?;
            // Another node may have the device, too.
            device.drop_cache()?;
            step("clear mark", &device.path().display(), || mark.clear(device))?;
        }
        Ok(())
    }

    pub(super) fn opened(&self, device: &BlockDevice) -> Result<&Device> {
        self.device.as_ref().ok_or_else(|| unexpected(&device.path, "it is not open"))
    }

    pub(super) fn prepare(&mut self, prepare: Prepare, device: &BlockDevice) -> Result<()> {
        let name = device.path.display().to_string();
        match prepare {
            // A LUKS header over it says it.
            Prepare::RecordMkfs(_) if self.luks.is_some() => self.mark(State::New),
            Prepare::RecordMkfs(fstype) => {
                self.with_device(device, |job, open| job.record_format(open, Purpose::Filesystem(fstype)))
            }
            Prepare::Wipe => {
                let open = self.opened(device)?;
                Ok(step("wipe", &name, || fs::wipe(open, self.mark.as_ref()))?)
            }
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

    pub(super) fn check(&self, name: &str, fstype: FsType, check: impl FnOnce() -> Result<fs::Checked>) -> Result<()> {
        let said = match step("check", &name, check)? {
            fs::Checked::Clean => return Ok(()),
            fs::Checked::Repaired => "the check before the mount repaired errors",
            fs::Checked::Completed => "an earlier check was interrupted while it wrote the superblock; this one has completed it",
        };
        tracing::warn!(volume = %self.entry.id, device = %name, %fstype, "{said}");
        Ok(())
    }

    pub(super) fn mkfs(&mut self, fstype: FsType, device: &BlockDevice) -> Result<()> {
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
    pub(super) fn with_device<T>(
        &mut self,
        device: &BlockDevice,
        act: impl FnOnce(&mut Self, &Device) -> Result<T>,
    ) -> Result<T> {
        let open = self.device.take().ok_or_else(|| unexpected(&device.path, "it is not open"))?;
        let outcome = act(self, &open);
        self.device = Some(open);
        outcome
    }
}

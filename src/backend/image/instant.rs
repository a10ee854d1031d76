//! Copies of volumes as they are at one instant, or none.
//!
//! | the storage copies a volume | nobody can write it | it may be written |
//! |---|---|---|
//! | by FICLONE: the kernel locks the image meanwhile | taken | one volume is taken, as after a power failure at that instant |
//! | by reading it | taken | refused |
//!
//! Of several volumes one may be written, if it is taken by FICLONE: its instant is the group's, since the others stand still before
//! and after. Two that are written have no common instant: nothing in the kernel stops writes to several loop devices at once.
//!
//! That nobody can write a volume is seen when its copy begins. A node, another process or a pod that still has a device open may begin
//! to write meanwhile: each write sets the image's modification time, which must be the same after the copy.

use std::fs::File;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, SystemTime};

use rustix::fs::{AtFlags, StatxFlags};

use crate::backend::{FreezeGuard, Quiesce, Writers};
use crate::os::loopdev;
use crate::volume::{Bytes, Error, Result, VolumeId};

use super::ImageBackend;
use super::connect::image_name;
use super::draft::Draft;
use super::files::IMAGE;
use super::layout::Kind;
use super::ready::Ready;

/// A part of the kernel's tick.
const CLOCK_PAUSE: Duration = Duration::from_millis(1);

/// One volume to copy.
#[derive(Debug)]
pub(super) struct Job<'a> {
    pub source: &'a VolumeId,
    /// Where its image lies.
    pub pool: &'a Ready,
    pub image: &'a File,
    pub into: &'a Draft<'a>,
}

impl Job<'_> {
    /// Whether both lie in one pool that shares extents.
    fn shares(&self) -> bool {
        self.pool.path == self.into.pool().path && self.pool.shares_extents()
    }

    fn copy(&self, state: &State) -> Result<()> {
        match state {
            State::Written(how) if !self.into.share_from(self.image)? => Err(self.needs_time(how)),
            State::Written(_) => Ok(()),
            State::Frozen | State::Idle => {
                if !self.shares() {
                    warn_of_freeze(self);
                }
                self.into.copy_from(self.image).map(drop)
            }
        }
    }

    /// Refused: the volume may be written meanwhile.
    fn refused(&self, how: &str, remedy: &str) -> Error {
        Error::InUse { object: format!("volume {}", self.source), by: format!("{how}; {remedy}") }
    }

    /// As [`Job::refused`], where the copy takes its time.
    fn needs_time(&self, how: &str) -> Error {
        let to = self.into.pool();
        let cause = if self.pool.path == to.path {
            format!("{} has no reflinks", to.called())
        } else {
            format!("{} shares no extents with {}", to.called(), self.pool.called())
        };
        let remedy = format!(
            "a copy of it takes time, since {cause}, and would be of no single instant: stop the pods that use the volume, or use a \
             pool on xfs or btrfs and stay in it"
        );
        self.refused(how, &remedy)
    }
}

/// Who writes to a volume while it is copied.
#[derive(Debug)]
enum State {
    Frozen,
    /// Nobody, as far as can be seen.
    Idle,
    /// Perhaps a pod; how it is in use.
    Written(String),
}

impl ImageBackend {
    /// Copies volumes as they are at one instant; returns when that was.
    ///
    /// # Errors
    /// `InUse` where they have no common instant, because a pod may write to them meanwhile, or did. Also where the freeze broke
    /// before all was copied: then the copies are worth nothing.
    pub(super) fn copy_at_one_instant(&self, quiesce: &dyn Quiesce, jobs: &[Job<'_>]) -> Result<SystemTime> {
        let sources: Vec<VolumeId> = jobs.iter().map(|job| job.source.clone()).collect();
        let held = quiesce.freeze(&sources)?;
        let states = jobs.iter().map(|job| self.state(&*held, job)).collect::<Result<Vec<_>>>()?;
        let jobs: Vec<(&Job<'_>, State)> = jobs.iter().zip(states).collect();
        check_common_instant(&jobs)?;
        let watched = jobs.iter().filter(|(job, state)| match state {
            State::Frozen => !job.shares(),
            State::Idle => true,
            State::Written(_) => false,
        });
        let unchanged = Unchanged::from(watched.map(|(job, _)| *job))?;
        let instant = SystemTime::now();
        // The guard thaws when it is dropped, also on the way out with an error.
        for (job, state) in &jobs {
            job.copy(state)?;
        }
        unchanged.check()?;
        held.release()?;
        Ok(instant)
    }

    fn state(&self, held: &dyn FreezeGuard, job: &Job<'_>) -> Result<State> {
        let used = match held.writers(job.source) {
            Writers::Frozen => return Ok(State::Frozen),
            Writers::Possible(how) => Some(how),
            Writers::None => self.used_elsewhere(job)?,
            Writers::Unknown => match used_on_this_machine(job)? {
                Some(how) => Some(how),
                None => self.used_elsewhere(job)?,
            },
        };
        Ok(used.map_or(State::Idle, State::Written))
    }

    /// How a volume that nobody on this machine writes may be written by another node, as the leases in a shared pool tell; `None` where
    /// none can.
    fn used_elsewhere(&self, job: &Job<'_>) -> Result<Option<String>> {
        let own = self.holder.as_ref().map(|holder| &holder.node);
        let holders = self.held(job.source)?.unwrap_or_default();
        let other = holders.into_iter().find(|holder| holder.writes && Some(&holder.node) != own);
        Ok(other.map(|holder| format!("node {} has it connected for writing", holder.node)))
    }
}

/// # Errors
/// `InUse` for a volume that may be written while its copy takes time, and for the second that may be written.
fn check_common_instant(jobs: &[(&Job<'_>, State)]) -> Result<()> {
    let mut written = None;
    for (job, state) in jobs {
        let State::Written(how) = state else { continue };
        if !job.shares() {
            return Err(job.needs_time(how));
        }
        if let Some((other, other_how)) = written.replace((job, how)) {
            let remedy = format!(
                "volume {} ({other_how}) may be written at the same time, and two volumes that are written have no common instant: \
                 stop the pods that use all but one of them, use file systems instead of raw devices, or take single snapshots",
                other.source
            );
            return Err(job.refused(how, &remedy));
        }
    }
    Ok(())
}

/// How a volume is used by other processes of this machine; `None` where no loop device shows its image.
fn used_on_this_machine(job: &Job<'_>) -> Result<Option<String>> {
    let inode = super::files::look_at(job.image, &job.pool.place(Kind::Volume, job.source.local()))?.inode;
    let devices = devices_of(job.source, inode)?;
    Ok(devices.first().map(|path| {
        let node = "it was not attached by this process, which therefore cannot freeze what is on it";
        format!("{} shows it on this machine; {node}", path.display())
    }))
}

/// The loop devices of this machine that show a volume's image, no matter who made them.
pub(super) fn devices_of(id: &VolumeId, inode: (u64, u64)) -> Result<Vec<PathBuf>> {
    Ok(loopdev::paths_of(inode, &image_name(id))?)
}

fn warn_of_freeze(job: &Job<'_>) {
    let length = job.image.metadata().map_or(0, |meta| meta.len());
    tracing::warn!(
        volume = %job.source, length = %Bytes(length), pool = job.into.pool().name,
        "no reflinks here: the volume stays frozen until all its data is copied; use xfs or btrfs for an instant"
    );
}

/// Images that must not change while they are copied.
struct Unchanged<'a> {
    images: Vec<(&'a Job<'a>, Stamp)>,
}

/// Modification time and length of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    seconds: i64,
    nanos: u32,
    length: u64,
}

impl Stamp {
    /// As the storage has it, not as this machine remembers it.
    fn of(job: &Job<'_>) -> Result<Stamp> {
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC;
        let seen = rustix::fs::statx(job.image, "", flags, StatxFlags::MTIME | StatxFlags::SIZE).map_err(|errno| {
            job.pool.failure(crate::os::Error::io("stat", job.pool.place(Kind::Volume, job.source.local()).join(IMAGE), errno))
        })?;
        Ok(Stamp { seconds: seen.stx_mtime.tv_sec, nanos: seen.stx_mtime.tv_nsec, length: seen.stx_size })
    }

    /// Whether a write in this moment would leave the modification time as it is: it has the granularity of the kernel's tick, and
    /// in some file systems (ext4 with inodes of 128 bytes) that of a second.
    fn is_of_now(&self) -> bool {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::RealtimeCoarse);
        now.tv_sec == self.seconds && (self.nanos == 0 || i64::from(self.nanos) == now.tv_nsec)
    }
}

impl<'a> Unchanged<'a> {
    /// Notes what the images are now. From the return on each write to one of them shows.
    #[allow(clippy::disallowed_methods, reason = "a clock has no event to wait for, and its tick is milliseconds")]
    fn from(jobs: impl Iterator<Item = &'a Job<'a>>) -> Result<Unchanged<'a>> {
        let images = jobs.map(|job| Ok((job, Stamp::of(job)?))).collect::<Result<Vec<_>>>()?;
        while images.iter().any(|(_, stamp)| stamp.is_of_now()) {
            thread::sleep(CLOCK_PAUSE);
        }
        Ok(Unchanged { images })
    }

    /// # Errors
    /// `InUse` for one that was written since.
    fn check(&self) -> Result<()> {
        for (job, before) in &self.images {
            if Stamp::of(job)? != *before {
                let how = "it was written to while it was copied, by something that this process does not see";
                return Err(job.refused(how, "stop what uses it, on any node, and take the copy again"));
            }
        }
        Ok(())
    }
}

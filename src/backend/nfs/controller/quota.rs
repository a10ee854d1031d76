//! Capacities enforced, where the controller runs on the server and the share lies on xfs with project quotas: a project per volume.

use crate::os::dir::OpenDir;
use crate::os::lock;
use crate::os::quota;
use crate::os::step::step;
use crate::volume::{Error, Result};

use super::super::export::OURS;
use super::record::VolumeRecord;
use super::share::Ready;

/// So many numbers are tried before we give up.
const TRIES: u32 = 10_000;
/// Numbers from here on are ours to choose; those below are what people give by hand.
const FIRST: u32 = 1 << 20;

impl Ready {
    /// The share's own directory on this machine, where quotas are configured.
    fn local(&self) -> Result<Option<OpenDir>> {
        let Some(path) = &self.config.quota else { return Ok(None) };
        let failed = |error: crate::os::Error| self.down(format!("quota: {error}"));
        let directory = OpenDir::open(path).map_err(failed)?;
        let inode = |directory: &OpenDir| Ok(directory.existing(OURS)?.stat_self()?.st_ino);
        if inode(&directory).map_err(failed)? != inode(&self.root).map_err(failed)? {
            return Err(
                self.down(format!("quota: {} is not the directory that the server exports as this share", path.display()))
            );
        }
        Ok(Some(directory))
    }

    /// Gives the empty draft of a volume a project of its own, and that its limit.
    pub fn begin_quota(&self, record: &mut VolumeRecord) -> Result<()> {
        let Some(local) = self.local()? else { return Ok(()) };
        let name = record.id.local();
        let failed = |error| self.failure(error);
        let draft = local.existing(format!("{OURS}/drafts/{name}")).map_err(failed)?;
        // One at a time: a number is taken by its limit.
        let _places = lock(&self.places);
        let start = FIRST + hash(name) % (u32::MAX / 2);
        for project in (start..).take(TRIES as usize) {
            let seen = quota::get(&local, project).map_err(failed)?;
            if seen.limit == 0 && seen.used == 0 {
                step("set quota", &record.directory.display(), || {
                    quota::limit(&local, project, record.capacity.0)?;
                    quota::set_project(&draft, project)
                })
                .map_err(failed)?;
                record.project = Some(project);
                return Ok(());
            }
        }
        Err(Error::NoCapacity {
            place: format!("share {}", self.called),
            reason: "no project number is free for its quota".to_owned(),
        })
    }

    /// Makes the limit what the record says.
    pub fn set_quota(&self, record: &VolumeRecord) -> Result<()> {
        let (Some(project), Some(local)) = (record.project, self.local()?) else { return Ok(()) };
        step("set quota", &record.directory.display(), || quota::limit(&local, project, record.capacity.0))
            .map_err(|error| self.failure(error))
    }

    /// Forgets the limit of a volume that is gone. A failure costs a number, nothing else.
    pub fn clear_quota(&self, record: &VolumeRecord) {
        let Some(project) = record.project else { return };
        let cleared = self.local().and_then(|local| match local {
            Some(local) => {
                step("clear quota", &record.directory.display(), || quota::limit(&local, project, 0)).map_err(Error::from)
            }
            None => Ok(()),
        });
        if let Err(error) = cleared {
            tracing::warn!(volume = %record.id, project, %error, "the limit of a project that is gone stays");
        }
    }
}

/// FNV-1a: spreads names over numbers.
fn hash(name: &str) -> u32 {
    name.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

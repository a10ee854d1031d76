//! Capacities enforced by project quotas (xfs, ext4): a project per volume.
//!
//! A number is recorded before anything has it. It is chosen where neither a file nor a limit has it, so that what a deleted volume left in
//! the trash, an archive or in its place is never counted to another volume. Who owns a file in the initial user namespace can give it
//! another project: this is no boundary against a hostile pod, and health reports where a volume's directory has another one.

use crate::os;
use crate::os::dir::OpenDir;
use crate::os::lock;
use crate::os::quota::{self, Projects};
use crate::os::step::step;
use crate::volume::{Bytes, Error, HealthProblem, Result, Severity};

use super::base::Ready;
use super::record::VolumeRecord;
use super::subdir::OURS;

/// So many numbers are tried before we give up.
const TRIES: u32 = 10_000;
/// Numbers from here on are ours to choose: below are those of people, and the kubelet's for emptyDir (from 1048577 on).
const FIRST: u32 = 1 << 31;
/// So many there are; the last of all is none.
const COUNT: u32 = u32::MAX - FIRST;

impl Ready {
    /// Where quotas are set, if they are.
    fn quotas(&self) -> Result<Option<OpenDir>> {
        self.location.quotas(&self.root).map_err(|reason| self.down(format!("quota: {reason}")))
    }

    /// Gives the empty draft of a volume a project of its own, and that its limit; writes the record before that, in any case.
    pub fn begin_quota(&self, record: &mut VolumeRecord) -> Result<()> {
        if record.is_in_memory()? {
            return self.write_record(record);
        }
        let Some(quotas) = self.quotas()? else { return self.write_record(record) };
        let name = record.id.local();
        let failed = |error| self.failure(error);
        let draft = quotas.existing(format!("{OURS}/drafts/{name}")).map_err(failed)?;
        // One at a time: a number is taken by what has it.
        let _places = lock(&self.places);
        let start = hash(name) % COUNT;
        for project in (0..TRIES).map(|number| FIRST + start.wrapping_add(number) % COUNT) {
            if !quota::get(&quotas, project).map_err(failed)?.is_unused() {
                continue;
            }
            record.project = Some(project);
            self.write_record(record)?;
            // In this order no limit is without a file ([`left`]).
            step("set quota", &record.directory.display(), || {
                quota::set_project(&draft, project)?;
                quota::limit(&quotas, project, record.capacity.0)
            })
            .map_err(failed)?;
            return Ok(());
        }
        Err(Error::NoCapacity { place: self.place(), reason: "no project number is free for its quota".to_owned() })
    }

    /// Makes an empty directory among the drafts part of the volume's project: no file is linked from one project into another.
    pub fn join_quota(&self, record: &VolumeRecord, draft: &str) -> Result<()> {
        let (Some(project), Some(quotas)) = (record.project, self.quotas()?) else { return Ok(()) };
        let join = || quota::set_project(quotas.existing(format!("{OURS}/drafts/{draft}"))?, project);
        step("set quota", &record.directory.display(), join).map_err(|error| self.failure(error))
    }

    /// Makes the limit what the record says.
    pub fn set_quota(&self, record: &VolumeRecord) -> Result<()> {
        let (Some(project), Some(quotas)) = (record.project, self.quotas()?) else { return Ok(()) };
        step("set quota", &record.directory.display(), || quota::limit(&quotas, project, record.capacity.0))
            .map_err(|error| self.failure(error))
    }

    /// Forgets the limit of a volume that is gone. A failure costs a number, nothing else.
    pub fn clear_quota(&self, record: &VolumeRecord) {
        let Some(project) = record.project else { return };
        let cleared = self.quotas().and_then(|quotas| match quotas {
            Some(quotas) => {
                step("clear quota", &record.directory.display(), || quota::limit(&quotas, project, 0)).map_err(Error::from)
            }
            None => Ok(()),
        });
        if let Err(error) = cleared {
            tracing::warn!(volume = %record.id, project, %error, "the limit of a project that is gone stays");
        }
    }

    /// What is wrong with the limit of a volume that was made with one.
    pub fn quota_problem(&self, record: &VolumeRecord) -> Result<Option<HealthProblem>> {
        let Some(project) = record.project else { return Ok(None) };
        let problem = |what: String| {
            let message = format!(
                "the capacity of volume {} is not enforced: {what}; project {project} is to have {}",
                record.id, record.capacity
            );
            Ok(Some(HealthProblem { severity: Severity::Degraded, reason: "CapacityNotEnforced", message }))
        };
        let Some(quotas) = self.quotas()? else { return problem("quotas are not in use any more".to_owned()) };
        let failed = |error| self.failure(error);
        if quota::projects(&quotas).map_err(failed)? != Projects::Limited {
            return problem("its file system is not mounted with prjquota".to_owned());
        }
        let Some(directory) = quotas.directory(&record.directory).map_err(failed)? else { return Ok(None) };
        match quota::project(&directory).map_err(failed)? {
            Some((found, true)) if found == project => {}
            found => {
                let found = found.map_or_else(|| "none".to_owned(), |(found, _)| found.to_string());
                let shown = directory.shown().display();
                return problem(format!("{shown} has the project {found}, which someone has set; set it by \"chattr -R -p\""));
            }
        }
        let limit = quota::get(&quotas, project).map_err(failed)?.limit;
        if limit == 0 || limit > record.capacity.0.next_multiple_of(1 << 20) {
            return problem(format!(
                "the limit of its project is {limit} bytes; expand the volume, or set it by xfs_quota or setquota"
            ));
        }
        Ok(None)
    }
}

/// The projects of deleted volumes that have a limit yet, and nothing else: whichever base of the file system they were of.
pub(super) fn left(quotas: &OpenDir) -> os::Result<Vec<(u32, Bytes)>> {
    let projects = quota::all(quotas, FIRST)?.into_iter();
    Ok(projects
        .filter(|(_, quota)| quota.limit > 0 && quota.inodes == 0)
        .map(|(project, quota)| (project, Bytes(quota.limit)))
        .collect())
}

/// FNV-1a: spreads names over numbers.
fn hash(name: &str) -> u32 {
    name.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

//! What `longshore inspect` shows of a base: its volumes with what they use, and what is left of others, by looking only.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::fd::AsFd;
use std::path::{Component, Path};
use std::time::{Duration, UNIX_EPOCH};

use rustix::fs::FileType;

use crate::backend::{Leftover, LeftoverKind, LockRecord, Place, Stored, Survey, words};
use crate::os;
use crate::os::dir::OpenDir;
use crate::os::fs;
use crate::os::mountinfo::MountTable;
use crate::volume::{Bytes, Health, Result, VolumeId};

use super::base::{Base, LOCK_BELOW_BASE};
use super::health::{missing, problem_of};
use super::place::record_name;
use super::quota;
use super::record::{self, Phase, VolumeRecord};
use super::subdir::OURS;

impl Base {
    /// Adds what is there. Nothing is made, remembered or locked. A base that was never used has nothing.
    ///
    /// # Errors
    /// `BackendUnavailable` where it is not the one that was used.
    pub fn survey(&self, survey: &mut Survey) -> Result<()> {
        if self.is_new()? {
            return Ok(());
        }
        let root = self.verified_root()?;
        let failed = |error: os::Error| self.down(error.to_string());
        let usage = fs::usage(root.as_fd()).map_err(failed)?;
        let lock = LockRecord::read(&root.path_of(LOCK_BELOW_BASE)).map_err(failed)?;
        let provisioner = lock.clone().filter(|lock| lock.held).map(|lock| lock.holder);
        // What someone makes or deletes just now is not left.
        let is_provisioned = provisioner.is_some();
        survey.places.push(Place {
            name: self.location.noun().to_owned(),
            at: self.location.called(),
            total: Bytes(usage.total),
            free: Bytes(usage.available),
            read_only: false,
            provisioner,
            recorded: lock.filter(LockRecord::is_of_another_host),
        });
        // Before the records, so that each has the record of the volume that it is of.
        let directories = names(Some(&root)).map_err(failed)?;
        let mut taken: BTreeSet<OsString> = [OURS, "lost+found"].map(OsString::from).into();
        let (mut projects, mut all_read) = (BTreeSet::new(), true);
        let own = |name: &str| root.directory(Path::new(OURS).join(name)).map_err(failed);
        let volumes = own("volumes")?;
        for name in names(volumes.as_ref()).map_err(failed)? {
            let id = name.to_str().and_then(|name| VolumeId::from_parts(&self.backend, name.strip_suffix(".json")?).ok());
            let (Some(id), Some(volumes)) = (id, &volumes) else { continue };
            match record::read::<VolumeRecord>(volumes, &record_name(id.local())) {
                Ok(None) => {}
                Ok(Some(record)) => {
                    let first = record.directory.components().find(|part| matches!(part, Component::Normal(_)));
                    taken.extend(first.map(|part| part.as_os_str().to_owned()));
                    projects.extend(record.project);
                    self.survey_volume(&root, id, record, is_provisioned, survey);
                }
                Err(error) => {
                    all_read = false;
                    survey.unseen.push((format!("volume {id}"), error.to_string()));
                }
            }
        }
        survey.volumes.sort_by(|a, b| a.id.cmp(&b.id));
        if !is_provisioned {
            let what = "its volume was deleted; the driver removes it when it runs";
            for name in names(own("trash")?.as_ref()).map_err(failed)? {
                survey.leftovers.push(left(LeftoverKind::Trash, &name, &root.path_of(OURS).join("trash").join(&name), what));
            }
        }
        // Of a record that cannot be read it is not known what is its own.
        if all_read {
            match self.location.quotas(&root) {
                Ok(Some(quotas)) => self.survey_quotas(&quotas, &projects, survey).map_err(failed)?,
                Ok(None) => {}
                Err(reason) => survey.unseen.push((format!("the quotas of {}", self.location.called()), reason)),
            }
            let what = "no volume has it: its volume was deleted and is retained, or another program made it; see what is in it";
            for name in directories.into_iter().filter(|name| !taken.contains(name)) {
                let stat = root.stat(&name).map_err(failed)?;
                if stat.is_some_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory) {
                    survey.leftovers.push(left(LeftoverKind::WithoutMetadata, &name, &root.path_of(&name), what));
                }
            }
        }
        Ok(())
    }

    /// `known` are the projects of the volumes: one may have lost its directory to another project, and health says so.
    fn survey_quotas(&self, quotas: &OpenDir, known: &BTreeSet<u32>, survey: &mut Survey) -> os::Result<()> {
        let table = MountTable::read()?;
        let mount =
            table.index().holder(quotas.shown()).map_or_else(|| quotas.shown().to_owned(), |mount| mount.mount_point.clone());
        let left = quota::left(quotas)?.into_iter().filter(|(project, _)| !known.contains(project));
        let left = left.map(|(project, limit)| Leftover {
            kind: LeftoverKind::Quota,
            id: project.to_string(),
            object: mount.clone(),
            what: format!(
                "project {project} may have {limit} and has no file: its volume was deleted, or its record removed by hand"
            ),
            commands: vec![words(&["setquota", "-P", &project.to_string(), "0", "0", "0", "0", &mount.display().to_string()])],
            removable: false,
        });
        survey.leftovers.extend(left);
        Ok(())
    }

    fn survey_volume(&self, root: &OpenDir, id: VolumeId, record: VolumeRecord, is_provisioned: bool, survey: &mut Survey) {
        let path = root.path_of(&record.directory);
        let unfinished = |kind, what: &str| Leftover {
            kind,
            id: id.to_string(),
            object: path.clone(),
            what: what.to_owned(),
            commands: Vec::new(),
            removable: false,
        };
        match record.phase {
            Phase::Making | Phase::Deleting { .. } if is_provisioned => {}
            Phase::Making => survey
                .leftovers
                .push(unfinished(LeftoverKind::Draft, "its making was interrupted; CreateVolume or DeleteVolume continues")),
            Phase::Deleting { .. } => survey
                .leftovers
                .push(unfinished(LeftoverKind::Trash, "its deletion was interrupted; the driver continues it when it runs")),
            Phase::Whole => {
                let health: Health = match root.directory(&record.directory) {
                    Ok(Some(_)) => Vec::new(),
                    Ok(None) => vec![missing(&path)],
                    Err(error) => vec![problem_of(&error.into(), self.location.unreachable())],
                };
                let quota = record.project.and_then(|project| os::quota::get(root, project).ok()).filter(|quota| quota.limit > 0);
                survey.volumes.push(Stored {
                    id,
                    at: path.display().to_string(),
                    capacity: Some(record.capacity),
                    allocated: quota.map(|quota| Bytes(quota.used)),
                    created: Some(UNIX_EPOCH + Duration::from_nanos(record.created)),
                    attached: Vec::new(),
                    health,
                });
            }
        }
    }
}

/// Of a directory that there may not be.
fn names(directory: Option<&OpenDir>) -> os::Result<Vec<OsString>> {
    let entries = directory.map_or(Ok(Vec::new()), |directory| directory.entries(usize::MAX))?;
    let mut names: Vec<OsString> = entries.into_iter().map(|entry| entry.name).collect();
    names.sort_unstable();
    Ok(names)
}

fn left(kind: LeftoverKind, name: &OsStr, path: &Path, what: &str) -> Leftover {
    Leftover {
        kind,
        id: name.to_string_lossy().into_owned(),
        object: path.to_owned(),
        what: what.to_owned(),
        commands: vec![words(&["rm", "--recursive", "--one-file-system", "--", &path.display().to_string()])],
        removable: false,
    }
}

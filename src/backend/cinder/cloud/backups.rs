//! Backups as snapshots, where the VolumeSnapshotClass says `type: backup`: they lie elsewhere than their volume, and outlive it.
//!
//! A backup is made of a temporary snapshot, which is of one instant and lets the volume be attached and detached meanwhile; cinder-csi-plugin
//! does the same. The temporary snapshot is deleted once the backup is whole, and only then the CO is given an id: csi-snapshotter keeps the
//! first that it gets, and a backup may fail after hours.
//!
//! When a backup has been restored, cinder-backup replaces all metadata of the new volume by that of the volume that was backed up
//! (cinder/backup/driver.py, `_restore_vol_meta`): tags that say it is another volume. The description is left as it is
//! (`_restore_vol_base_meta`). So it says whose the volume is ([`record::restored_mark`]), and the metadata is set again afterwards.

use std::sync::{MutexGuard, PoisonError};

use super::*;
use crate::backend::cloud::tags::SNAPSHOT;

/// How long the snapshot that a backup is made of may take in one call. Nothing is frozen meanwhile.
const TEMPORARY: Duration = Duration::from_secs(30);

impl CinderCloud {
    fn check_backups(&self, action: &'static str) -> Answer<()> {
        let reason = "a snapshot that is a backup is only used with `backups: true` in the configuration of this backend";
        self.backups.then_some(()).ok_or_else(|| invalid(action, "backups", reason.to_owned()))
    }

    fn backup(&self, id: &str) -> Answer<Option<api::Backup>> {
        const ACTION: &str = "show backup";
        self.check_backups(ACTION)?;
        self.api.look(Service::Volume, &Request::get(ACTION, format!("backups/{id}")), "backup")
    }

    /// Those with this name; it is all that backups can be looked for by, of what is known before they are made.
    fn backups_named(&self, name: Option<&String>) -> Answer<Vec<api::Backup>> {
        let request = Request::get("list backups", "backups/detail");
        let request = name.into_iter().fold(request, |request, name| request.query("name", name));
        let mut all = Vec::new();
        self.api.list(&request, "backups", |page| all.extend(page))?;
        Ok(all)
    }

    /// The snapshot that a backup was made of, while it is there.
    fn temporary(&self, backup: &api::Backup) -> Answer<Option<api::Snapshot>> {
        let found = backup.snapshot_id.as_ref().map(|id| self.snapshot(id)).transpose()?.flatten();
        Ok(found.filter(|found| found.metadata.contains_key(record::FOR_BACKUP)))
    }

    fn delete_temporary(&self, temporary: &api::Snapshot) -> Answer<()> {
        match temporary.status.as_str() {
            "deleting" => return Ok(()),
            // For good, where the scheduler found no cinder-backup (cinder/scheduler/manager.py, `create_backup`).
            "backing-up" => {
                let reason = format!(
                    "snapshot {0} is backing-up; if no backup of it is being made, an administrator resets it: \
                     openstack volume snapshot set --state available {0}",
                    temporary.id
                );
                return Err(refusal(CloudErrorKind::InUse, "delete snapshot", "backing-up", reason));
            }
            _ => {}
        }
        match self.delete_snapshot(&CloudSnapshotId(temporary.id.clone())) {
            Err(refusal) if refusal.because != CloudErrorKind::NotFound => Err(refusal),
            _ => Ok(()),
        }
    }

    /// Removes the snapshot that a backup was made of, if it is there, and waits until it is gone.
    fn remove_temporary(&self, action: &'static str, backup: &api::Backup) -> Answer<()> {
        let Some(temporary) = self.temporary(backup)? else { return Ok(()) };
        self.delete_temporary(&temporary)?;
        match self.clock.look_until(self.clock.now() + INSTANT, || self.snapshot(&temporary.id), Option::is_none)? {
            None => Ok(()),
            Some(left) => {
                let reason = format!("snapshot {}, of which backup {} was made, is {}", left.id, backup.id, left.status);
                Err(refusal(CloudErrorKind::Running, action, "snapshot", reason))
            }
        }
    }

    pub(super) fn backup_by_id(&self, id: &str) -> Answer<Option<CloudSnapshot>> {
        let Some(backup) = self.backup(id)? else { return Ok(None) };
        if backup.status.starts_with("error") {
            tracing::warn!(
                backup = id,
                status = backup.status,
                reason = backup.fail_reason,
                "Cinder could not make or delete it"
            );
        }
        let has_temporary = self.temporary(&backup)?.is_some();
        Ok(Some(convert::backup(backup, has_temporary)))
    }

    /// Snapshots and backups with these tags. A snapshot of which a backup is made is not in it.
    pub(super) fn snapshots_and_backups_with(&self, tags: &Tags, take: Take<'_, CloudSnapshot>) -> Answer<()> {
        let mut snapshots = Vec::new();
        self.snapshots_with(tags, &mut |page| snapshots.extend(page))?;
        for backup in self.backups_named(tags.get(SNAPSHOT))? {
            if !has_all(&record::tags(backup.metadata.clone()), tags) {
                continue;
            }
            let is_of = |found: &CloudSnapshot| backup.snapshot_id.as_ref() == Some(&found.id.0);
            // What is no longer listed is gone.
            let temporary = snapshots.iter().position(is_of).map(|place| snapshots.swap_remove(place));
            take(vec![convert::backup(backup, temporary.is_some())]);
        }
        take(snapshots);
        Ok(())
    }

    /// Makes a backup of its temporary snapshot, or completes one.
    pub(super) fn back_up(&self, begun: &CloudSnapshot, spec: &CloudSnapshotSpec) -> Answer<Accepted<CloudSnapshot>> {
        const ACTION: &str = "create backup";
        self.check_backups(ACTION)?;
        if let Some(backup) = record::backup(&begun.id) {
            return self.complete(backup);
        }
        let settings: SnapshotSettings = read_settings(ACTION, &spec.settings)?;
        let name = spec.tags.get(SNAPSHOT);
        // An earlier request may have made it whose answer was lost.
        let before = self.backups_named(name)?.into_iter().find(|made| made.snapshot_id.as_ref() == Some(&begun.id.0));
        if let Some(made) = before {
            return self.complete(&made.id);
        }
        let look = || self.snapshot(&begun.id.0);
        let temporary = self
            .clock
            .look_until(self.clock.now() + TEMPORARY, look, |seen| seen.as_ref().is_none_or(|seen| seen.status != "creating"))?;
        match temporary.as_ref().map(|temporary| temporary.status.as_str()) {
            Some("available") => {}
            Some(status) if status.starts_with("error") => return Err(self.message(ACTION, &begun.id.0, status)?),
            Some(status) => return Err(unfinished(format!("snapshot {}, of which it is to be made, is {status}", begun.id))),
            None => return Err(unfinished(format!("snapshot {}, of which it was to be made, is gone", begun.id))),
        }
        let mut backup = json!({
            "volume_id": spec.disk.0,
            "snapshot_id": begun.id.0,
            "name": name,
            "force": true,
            "metadata": record::metadata(&spec.tags),
        });
        if let Some(zone) = settings.availability {
            backup["availability_zone"] = zone.into();
        }
        let request = Request::change(ACTION, "POST", "backups", Repeat::Doubles).body(json!({"backup": backup}));
        let made: api::Made = self.api.get(Service::Volume, &request, "backup")?;
        self.complete(&made.id)
    }

    /// A backup, once it is whole and its temporary snapshot is gone.
    fn complete(&self, id: &str) -> Answer<Accepted<CloudSnapshot>> {
        let backup = self.backup(id)?.ok_or_else(|| unfinished(format!("backup {id} was accepted, and is not there")))?;
        match backup.status.as_str() {
            "available" | "restoring" => {}
            // The next call deletes it, and makes another.
            status if status.starts_with("error") => {
                let reason = backup.fail_reason.unwrap_or_default();
                return Err(unfinished(format!("backup {id} is in {status}, and will be made again: {reason}")));
            }
            status => return Err(unfinished(format!("backup {id} is {status}"))),
        }
        self.remove_temporary("create backup", &backup)?;
        Ok(Accepted::done(convert::backup(backup, false)))
    }

    /// With the snapshot that it was made of, which goes first: once the backup is gone, nothing names it.
    pub(super) fn delete_backup(&self, id: &str) -> Answer<Accepted<()>> {
        const ACTION: &str = "delete backup";
        let Some(backup) = self.backup(id)? else {
            return Err(refusal(CloudErrorKind::NotFound, ACTION, "id", format!("there is no backup {id}")));
        };
        if backup.status == "creating" {
            let reason = format!("backup {id} is still being made, and Cinder deletes it only afterwards");
            return Err(refusal(CloudErrorKind::Running, ACTION, "creating", reason));
        }
        self.remove_temporary(ACTION, &backup)?;
        let request = Request::change(ACTION, "DELETE", format!("backups/{id}"), Repeat::Harmless);
        let status = || Ok(self.backup(id)?.map(|backup| backup.status));
        self.delete(&request, OperationId(format!("delete/backups/{id}")), status)
    }

    /// How the deletion of a backup goes.
    pub(super) fn backup_deletion(&self, id: &str) -> Answer<OperationState> {
        let found = self.backup(id)?;
        self.deletion("delete backup", id, found.as_ref().map(|found| found.status.as_str()))
    }

    /// The volume that an earlier request for the same has made of a backup, if its metadata has been replaced since: else it is found by that.
    pub(super) fn restored(&self, spec: &DiskSpec) -> Answer<Option<Disk>> {
        let mark = record::restored_mark(&spec.tags);
        let name = spec.tags.get(NAME).cloned().unwrap_or_default();
        // A person who restores a backup of a restored volume copies its description, too.
        let is_of_this = |volume: &api::Volume| match (volume.metadata.get(record::RESTORED_OF), &spec.source) {
            (Some(of), DiskSource::Snapshot(snapshot)) => record::backup(snapshot) == Some(of),
            _ => true,
        };
        let is_it = |volume: &api::Volume| volume.description.as_ref() == Some(&mark) && is_of_this(volume);
        let mut found = None;
        self.api.list(
            &Request::get("list volumes", "volumes/detail").query("name", name),
            "volumes",
            |page: Vec<api::Volume>| {
                found = found.take().or_else(|| page.into_iter().find(is_it));
            },
        )?;
        self.keep_tags(mark.clone(), spec.tags.clone());
        found.map(|volume| self.disk(volume)).transpose()
    }

    /// Remembers what a volume carries that is being restored, for when that is replaced; another process may have asked for it. Answers what
    /// this process knows of one whose metadata has been replaced, with its mark.
    pub(super) fn note_restored(&self, volume: &api::Volume) -> Option<(String, Tags)> {
        let mark = volume.description.clone().filter(|text| record::is_restored_mark(text))?;
        let tags = record::tags(volume.metadata.clone());
        if record::restored_mark(&tags) != mark {
            let own = self.restoring().get(&mark).cloned()?;
            return Some((mark, own));
        }
        match volume.status.as_str() {
            "creating" => self.keep_tags(mark, tags),
            // From now on nobody but people changes it.
            _ => drop(self.restoring().remove(&mark)),
        }
        None
    }

    fn restoring(&self) -> MutexGuard<'_, BTreeMap<String, Tags>> {
        self.restoring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a volume that is restored of a backup is to carry, for when its metadata has been replaced.
    fn keep_tags(&self, mark: String, tags: Tags) {
        let mut all = self.restoring();
        if all.len() >= MOST {
            all.clear();
        }
        all.insert(mark, tags);
    }

    /// A volume, with its own metadata again where a backup's has replaced it and this process knows its own. Nobody replaces it after that: it
    /// was the last that the restoration did with it.
    pub(super) fn with_own_metadata(&self, volume: api::Volume) -> api::Volume {
        let Some((mark, mut own)) = self.note_restored(&volume) else { return volume };
        own.extend(volume.metadata.get_key_value(record::RESTORED_OF).map(|(key, backup)| (key.clone(), backup.clone())));
        let path = format!("volumes/{}/metadata", volume.id);
        let request = Request::change("replace metadata", "PUT", path, Repeat::Harmless);
        let metadata = record::metadata(&own);
        let set = self.api.send(Service::Volume, &request.body(json!({"metadata": metadata})));
        let metadata = serde_json::from_value(metadata).unwrap_or_default();
        match set {
            Ok(_) => {
                if volume.status != "creating" {
                    self.restoring().remove(&mark);
                }
                api::Volume { metadata, ..volume }
            }
            // It is not whole before it has its own. The look-up may be about others, too.
            Err(refusal) => {
                tracing::warn!(volume = volume.id, %refusal, "the metadata of a restored volume cannot be set");
                let status = if volume.status.starts_with("error") { volume.status } else { "creating".to_owned() };
                api::Volume { metadata, status, ..volume }
            }
        }
    }
}

fn unfinished(reason: String) -> Refusal {
    refusal(CloudErrorKind::Running, "create backup", "not yet", reason)
}

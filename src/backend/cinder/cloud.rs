//! Cinder and Nova as a [`Cloud`]: their words made those of all clouds.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::backend::cloud::ask_each::ask_each;
use crate::backend::cloud::clock::Clock;
use crate::backend::cloud::rest::Request;
use crate::backend::cloud::retry::Repeat;
use crate::backend::cloud::tags::{NAME, SOURCE, TEMPORARY};
use crate::backend::cloud::{
    Accepted, Answer, AttachSpec, Batches, Blocks, Change, ChangeState, Changing, Cloud, CloudConstants, CloudErrorKind,
    CloudSnapshot, CloudSnapshotId, CloudSnapshotSpec, Consistency, DeviceAddress, Disk, DiskId, DiskSource, DiskSpec, DiskState,
    Idempotency, Instance, Operation, OperationChange, OperationId, OperationState, OperationVisibility, Refusal, SnapshotState,
    Tags, Take, Which, WhichOperations, invalid, read_settings, refusal,
};
use crate::volume::{Bytes, NodeId};

use super::api::{self, OpenStack, Service};
use super::convert::{self, gib};
use super::metadata::is_uuid;
use super::parameters::{DiskSettings, SnapshotSettings};
use super::record::{self, LONGEST};
use super::zones::ZoneMap;

mod backups;

/// How long a snapshot or a copy may take until it is of one instant: until then its source is frozen.
const INSTANT: Duration = Duration::from_secs(15);
/// How long an expansion may take behind which a retype is to follow in the same call.
const EXPANSION: Duration = Duration::from_secs(30);
/// How much is remembered of changes that run.
const MOST: usize = 10_000;

/// The API reads what it wrote in its database: what lags are copies of that.
const CONSTANTS: CloudConstants = CloudConstants {
    disks: Idempotency::FindFirst,
    snapshots: Idempotency::FindFirst,
    consistency: Consistency {
        settled: Duration::from_secs(60),
        shown: Duration::from_secs(10),
        startup_grace: Duration::from_secs(10),
        stuck: Duration::from_secs(300),
    },
    batches: Batches { one_by_one: true, ids: 10, values: 4, attachments: 1 },
    operations: OperationVisibility::Listed,
    failed_may_have_data: true,
    shows_identity: true,
    longest_value: LONGEST,
};

/// What was asked for of a volume that changes: its status says that it has ended, and not how.
#[derive(Clone, Debug)]
struct Asked {
    capacity: u64,
    kind: Option<String>,
}

#[derive(Debug)]
pub struct CinderCloud {
    api: OpenStack,
    clock: Clock,
    zones: ZoneMap,
    /// How many volumes a machine takes, its root among them where that is one: Nova does not say which it is.
    limit: u64,
    asked: Mutex<BTreeMap<DiskId, Asked>>,
    /// Whether snapshots may be backups.
    backups: bool,
    /// The tags of volumes that are restored of backups, by their descriptions.
    restoring: Mutex<BTreeMap<String, Tags>>,
}

impl CinderCloud {
    pub fn new(api: OpenStack, clock: Clock, zones: ZoneMap, limit: u64, backups: bool) -> CinderCloud {
        CinderCloud { api, clock, zones, limit, asked: Mutex::default(), backups, restoring: Mutex::default() }
    }

    fn volume(&self, id: &str) -> Answer<Option<api::Volume>> {
        if !is_uuid(id) {
            return Ok(None);
        }
        self.api.look(Service::Volume, &Request::get("show volume", format!("volumes/{id}")), "volume")
    }

    fn snapshot(&self, id: &str) -> Answer<Option<api::Snapshot>> {
        if !is_uuid(id) {
            return Ok(None);
        }
        self.api.look(Service::Volume, &Request::get("show snapshot", format!("snapshots/{id}")), "snapshot")
    }

    fn disk(&self, volume: api::Volume) -> Answer<Disk> {
        let volume = self.with_own_metadata(volume);
        let listed = convert::is_between(&volume).then(|| self.attachments(&volume.id)).transpose()?;
        Ok(convert::disk(volume, listed, &self.zones))
    }

    fn attachments(&self, volume: &str) -> Answer<Vec<api::Attachment>> {
        let request = Request::get("list attachments", "attachments/detail").query("volume_id", volume);
        let mut all = Vec::new();
        self.api.list(&request, "attachments", |page| all.extend(page))?;
        Ok(all)
    }

    /// Deletes what Cinder still has of an attachment that Nova does not know, as where a server was deleted while Cinder was away: nobody
    /// else does, and with it the volume can neither be attached nor deleted. Cinder asks Nova once more, and refuses it for an attachment
    /// that a server uses (cinder/volume/api.py, `attachment_deletion_allowed`). `unknown` is Nova's answer.
    fn delete_left_attachment(&self, instance: &NodeId, disk: &DiskId, unknown: Refusal) -> Answer<Accepted<()>> {
        const ACTION: &str = "delete attachment";
        let of_it = |attachment: &api::Attachment| {
            attachment.instance.as_deref() == Some(instance.as_str()) && attachment.status != "detached"
        };
        let Some(left) = self.attachments(&disk.0)?.into_iter().find(of_it) else { return Err(unknown) };
        tracing::warn!(volume = %disk, server = %instance, attachment = left.id, %unknown, "Cinder has an attachment that Nova does not know; it is deleted");
        let request = Request::change(ACTION, "DELETE", format!("attachments/{}", left.id), Repeat::Harmless);
        match self.api.send(Service::Volume, &request) {
            Ok(_) => Ok(Accepted::done(())),
            Err(refusal) if refusal.maybe_done || refusal.because == CloudErrorKind::InUse => Err(refusal),
            // A Cinder before 2024.1, or no right to it.
            Err(refusal) => {
                let remedy = "it is left: an administrator deletes it (`openstack volume attachment delete`)";
                tracing::warn!(volume = %disk, server = %instance, attachment = left.id, %refusal, remedy);
                Err(unknown)
            }
        }
    }

    /// Those with this metadata. Of a volume whose attachments come or go, these are asked for then.
    fn disks_with(&self, tags: &Tags, take: Take<'_, Disk>) -> Answer<()> {
        let request = Request::get("list volumes", "volumes/detail").query("metadata", record::metadata(tags).to_string());
        let mut between = Vec::new();
        self.api.list(&request.for_list(), "volumes", |page: Vec<api::Volume>| {
            page.iter().for_each(|volume| drop(self.note_restored(volume)));
            let (later, now): (Vec<_>, Vec<_>) = page.into_iter().partition(convert::is_between);
            between.extend(later);
            let disks = now.into_iter().map(|volume| convert::disk(volume, None, &self.zones));
            take(disks.filter(|disk| has_all(&disk.tags, tags)).collect());
        })?;
        for volume in between {
            let disk = self.disk(volume)?;
            take(Some(disk).filter(|disk| has_all(&disk.tags, tags)).into_iter().collect());
        }
        Ok(())
    }

    /// Without backups.
    fn snapshots_with(&self, tags: &Tags, take: Take<'_, CloudSnapshot>) -> Answer<()> {
        let request = Request::get("list snapshots", "snapshots/detail").query("metadata", record::metadata(tags).to_string());
        self.api.list(&request.for_list(), "snapshots", |page: Vec<api::Snapshot>| {
            take(page.into_iter().map(convert::snapshot).filter(|found| has_all(&found.tags, tags)).collect());
        })
    }

    fn all_snapshots_with(&self, tags: &Tags, take: Take<'_, CloudSnapshot>) -> Answer<()> {
        // What is only the way to a copy is no backup.
        match self.backups && !tags.contains_key(TEMPORARY) {
            true => self.snapshots_and_backups_with(tags, take),
            false => self.snapshots_with(tags, take),
        }
    }

    /// Sends an action of a volume.
    fn act(&self, action: &'static str, disk: &DiskId, body: Value) -> Answer<()> {
        let request = Request::change(action, "POST", format!("volumes/{disk}/action"), Repeat::Harmless).body(body);
        self.api.send(Service::Volume, &request).map(drop)
    }

    /// Refuses an id that is no UUID, which is not put into a path: there is no such volume.
    fn known(&self, action: &'static str, id: &str) -> Answer<()> {
        match is_uuid(id) {
            true => Ok(()),
            false => Err(refusal(CloudErrorKind::NotFound, action, "id", format!("there is no {id}"))),
        }
    }

    fn server(&self, action: &'static str, instance: &NodeId) -> Answer<()> {
        let reason = || format!("{instance} is not the UUID of a server");
        is_uuid(instance.as_str()).then_some(()).ok_or_else(|| refusal(CloudErrorKind::NoInstance, action, "id", reason()))
    }

    /// Sends a deletion, which has ended once `operation` has.
    fn delete(
        &self,
        request: &Request,
        operation: OperationId,
        status: impl FnOnce() -> Answer<Option<String>>,
    ) -> Answer<Accepted<()>> {
        match self.api.send(Service::Volume, request) {
            Ok(_) => {}
            // Another call has asked for it; that deletion may have ended since.
            Err(refusal)
                if matches!(refusal.because, CloudErrorKind::InUse | CloudErrorKind::TooSoon)
                    && matches!(status()?.as_deref(), Some("deleting") | None) => {}
            Err(refusal) => return Err(refusal),
        }
        Ok(Accepted { result: (), operation: Some(operation) })
    }

    /// What Cinder's last message about a resource says went wrong.
    fn message(&self, action: &'static str, id: &str, status: &str) -> Answer<Refusal> {
        let request = Request::get("list messages", "messages").query("resource_uuid", id);
        let mut all: Vec<api::Message> = self.api.get(Service::Volume, &request, "messages")?;
        all.sort_by(|one, other| one.created_at.cmp(&other.created_at));
        Ok(match all.pop() {
            Some(last) => refusal(api::because_later(&last.user_message), action, &last.event_id, last.user_message),
            None => refusal(
                CloudErrorKind::Other,
                action,
                status,
                format!("its status is {status}, and Cinder has no message about it"),
            ),
        })
    }

    fn failed(&self, action: &'static str, id: &str, status: &str) -> Answer<OperationState> {
        Ok(OperationState::Failed(Box::new(self.message(action, id, status)?)))
    }

    /// A deletion, by the status of what is deleted; `None` is gone.
    fn deletion(&self, action: &'static str, id: &str, status: Option<&str>) -> Answer<OperationState> {
        match status {
            None => Ok(OperationState::Done),
            Some("deleting") => Ok(OperationState::Running),
            // The back end refused it (in use by a copy), and it is as it was.
            Some(status @ ("available" | "in-use")) => {
                let Refusal { code, message, .. } = self.message(action, id, status)?;
                let message = format!("it was not deleted, and is {status} again: {message}");
                Ok(OperationState::Failed(Box::new(refusal(CloudErrorKind::InUse, action, &code, message))))
            }
            Some(status) => self.failed(action, id, status),
        }
    }

    /// By the id that this backend gave it: `delete/volumes/ID`.
    fn operation(&self, id: &OperationId) -> Answer<Option<Operation>> {
        let parts: Vec<&str> = id.0.split('/').collect();
        let (state, disks) = match parts.as_slice() {
            ["delete", "volumes", volume] => {
                let found = self.volume(volume)?;
                let state = self.deletion("delete volume", volume, found.as_ref().map(|found| found.status.as_str()))?;
                (state, vec![DiskId((*volume).to_owned())])
            }
            ["delete", "snapshots", snapshot] => {
                let found = self.snapshot(snapshot)?;
                let state = self.deletion("delete snapshot", snapshot, found.as_ref().map(|found| found.status.as_str()))?;
                (state, Vec::new())
            }
            ["delete", "backups", backup] => (self.backup_deletion(backup)?, Vec::new()),
            _ => return Ok(None),
        };
        Ok(Some(Operation { id: id.clone(), disks, changes: OperationChange::Existence, action: "delete".to_owned(), state }))
    }

    /// What runs about a volume, by its status, or what failed.
    fn operation_of(&self, disk: &DiskId) -> Answer<Option<Operation>> {
        let Some(volume) = self.volume(&disk.0)? else { return Ok(None) };
        let status = volume.status.clone();
        let state = match status.as_str() {
            _ if convert::is_busy(&status) => OperationState::Running,
            // The message is about the backup (cinder/backup/manager.py, `restore_backup`).
            "error_restoring" => {
                let own = record::tags(self.with_own_metadata(api::Volume { status: status.clone(), ..volume }).metadata);
                self.failed(
                    "restore backup",
                    own.get(SOURCE).and_then(|source| record::backup_in(source)).unwrap_or(&disk.0),
                    &status,
                )?
            }
            _ if status.starts_with("error") => self.failed("change volume", &disk.0, &status)?,
            _ => return Ok(None),
        };
        let id = OperationId(format!("{status}/volumes/{disk}"));
        Ok(Some(Operation { id, disks: vec![disk.clone()], changes: OperationChange::Existence, action: status, state }))
    }

    fn body(&self, spec: &DiskSpec) -> Answer<Value> {
        const ACTION: &str = "create volume";
        let settings: DiskSettings = read_settings(ACTION, &spec.settings)?;
        let zone = spec.zones.first().cloned();
        if let (Some(asked), Some(zone)) = (&settings.availability, &zone)
            && asked != zone
        {
            let reason =
                format!("the StorageClass says {asked}, and the volume is to be reached from {zone}; leave availability out");
            return Err(invalid(ACTION, "availability", reason));
        }
        let mut volume = Map::new();
        let mut put = |key: &str, value: Value| drop(volume.insert(key.to_owned(), value));
        put("size", gib(spec.capacity).into());
        put("name", spec.tags.get(NAME).cloned().into());
        put("metadata", record::metadata(&spec.tags));
        if let Some(kind) = settings.kind {
            if spec.multi_attach {
                self.check_multi_attach(&kind)?;
            }
            put("volume_type", kind.into());
        }
        if let Some(zone) = zone.or(settings.availability) {
            put("availability_zone", zone.into());
        }
        match &spec.source {
            DiskSource::Empty => {}
            DiskSource::Snapshot(snapshot) => match record::backup(snapshot) {
                Some(backup) => {
                    put("backup_id", backup.into());
                    put("description", record::restored_mark(&spec.tags).into());
                }
                None => put("snapshot_id", snapshot.0.clone().into()),
            },
            DiskSource::Disk(source) => put("source_volid", source.0.clone().into()),
        }
        Ok(json!({"volume": volume}))
    }

    /// Whether a type makes volumes for several machines, as far as Cinder shows its properties to a user.
    fn check_multi_attach(&self, kind: &str) -> Answer<()> {
        const ACTION: &str = "list types";
        let mut all: Vec<api::VolumeType> = Vec::new();
        self.api.list(&Request::get(ACTION, "types"), "volume_types", |page| all.extend(page))?;
        let found = all.into_iter().find(|found| found.name == kind).and_then(|found| found.extra_specs);
        match found {
            Some(specs) if specs.get("multiattach").is_none_or(|value| !value.ends_with("True")) => {
                let reason = format!(
                    "volumes of type {kind} are for one node; a type for several has the property multiattach=\"<is> True\""
                );
                Err(invalid(ACTION, "multiattach", reason))
            }
            _ => Ok(()),
        }
    }

    /// Until something else is asked for of it. Without it a change that has failed is sent again by the next call.
    fn remember(&self, disk: &DiskId, asked: Asked) {
        let mut all = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= MOST {
            all.clear();
        }
        all.insert(disk.clone(), asked);
    }

    fn change(&self, disk: &DiskId) -> Answer<Option<Changing>> {
        let Some(volume) = self.volume(&disk.0)? else { return Ok(None) };
        let asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner).get(disk).cloned();
        let is_as_asked = asked
            .as_ref()
            .is_none_or(|asked| volume.size >= asked.capacity && (asked.kind.is_none() || asked.kind == volume.volume_type));
        let state = match volume.status.as_str() {
            "extending" | "retyping" => ChangeState::Modifying,
            status if status.starts_with("error") || !is_as_asked => ChangeState::Failed,
            _ => ChangeState::Done,
        };
        let message = match state {
            ChangeState::Failed => Some(self.message("change volume", &disk.0, &volume.status)?.message),
            _ => None,
        };
        let capacity = Bytes(volume.size << 30);
        Ok(Some(Changing { disk: disk.clone(), state, capacity, progress: 0, since: None, message }))
    }
}

fn has_all(tags: &Tags, wanted: &Tags) -> bool {
    wanted.iter().all(|(key, value)| tags.get(key) == Some(value))
}

/// Each value is a list of its own: Cinder filters metadata by one value for a key.
fn tagged(key: &str, values: &[String]) -> impl Iterator<Item = Tags> {
    values.iter().map(move |value| Tags::from([(key.to_owned(), value.clone())]))
}

impl Cloud for CinderCloud {
    fn constants(&self) -> CloudConstants {
        CONSTANTS
    }

    fn disks(&self, which: &Which<DiskId>, take: Take<'_, Disk>) -> Answer<()> {
        match which {
            Which::Ids(ids) => {
                take(ask_each(ids, |id| self.volume(&id.0)?.map(|volume| self.disk(volume)).transpose())?);
                Ok(())
            }
            Which::Tagged { key, values } => tagged(key, values).try_for_each(|tags| self.disks_with(&tags, take)),
            Which::All { tags } => self.disks_with(tags, take),
            Which::Named(_) => {
                Err(invalid("list volumes", "name", "a name of Cinder's may be that of several volumes".to_owned()))
            }
        }
    }

    /// Of a copy it waits until that is of one instant.
    fn create_disk(&self, spec: &DiskSpec) -> Answer<Accepted<Disk>> {
        if let DiskSource::Snapshot(snapshot) = &spec.source
            && record::backup(snapshot).is_some()
            && let Some(found) = self.restored(spec)?
        {
            return Ok(Accepted::done(found));
        }
        let request = Request::change("create volume", "POST", "volumes", Repeat::Doubles).body(self.body(spec)?);
        let mut made: api::Volume = self.api.get(Service::Volume, &request, "volume")?;
        if let DiskSource::Disk(_) = spec.source {
            let look = || self.volume(&made.id).map_err(Refusal::perhaps);
            let seen = self.clock.look_until(self.clock.now() + INSTANT, look, |seen| {
                seen.as_ref().is_none_or(|seen| seen.status != "creating")
            })?;
            made = seen.unwrap_or(made);
        }
        Ok(Accepted::done(convert::disk(made, None, &self.zones)))
    }

    /// In the same zone, of the same type.
    fn copies_disk(&self, source: &Disk, spec: &DiskSpec) -> bool {
        let (Ok(from), Ok(to)) = (DiskSettings::read(&source.settings), DiskSettings::read(&spec.settings)) else { return false };
        let is_of_type = to.kind.is_none() || to.kind == from.kind;
        is_of_type && source.zones == spec.zones && source.capacity <= spec.capacity && source.state != DiskState::Unusable
    }

    fn tag_disk(&self, disk: &DiskId, tags: &Tags) -> Answer<Accepted<()>> {
        const ACTION: &str = "set metadata";
        self.known(ACTION, &disk.0)?;
        let request = Request::change(ACTION, "POST", format!("volumes/{disk}/metadata"), Repeat::Harmless);
        self.api.send(Service::Volume, &request.body(json!({"metadata": record::metadata(tags)})))?;
        Ok(Accepted::done(()))
    }

    fn delete_disk(&self, disk: &DiskId) -> Answer<Accepted<()>> {
        const ACTION: &str = "delete volume";
        self.known(ACTION, &disk.0)?;
        let request = Request::change(ACTION, "DELETE", format!("volumes/{disk}"), Repeat::Harmless);
        let status = || Ok(self.volume(&disk.0)?.map(|volume| volume.status));
        self.delete(&request, OperationId(format!("delete/volumes/{disk}")), status)
    }

    /// One ([`CONSTANTS`]). Nova chooses the name of the device.
    fn attach_disks(&self, instance: &NodeId, disks: &[AttachSpec]) -> Answer<Accepted<()>> {
        const ACTION: &str = "attach volume";
        let [spec] = disks else { return Err(invalid(ACTION, "disks", "one volume at a time".to_owned())) };
        self.server(ACTION, instance)?;
        let request = Request::change(ACTION, "POST", format!("servers/{instance}/os-volume_attachments"), Repeat::Harmless);
        self.api.send(Service::Compute, &request.body(json!({"volumeAttachment": {"volumeId": spec.disk.0}})))?;
        Ok(Accepted::done(()))
    }

    fn detach_disks(&self, instance: &NodeId, disks: &[DiskId]) -> Answer<Accepted<()>> {
        const ACTION: &str = "detach volume";
        let [disk] = disks else { return Err(invalid(ACTION, "disks", "one volume at a time".to_owned())) };
        self.server(ACTION, instance)?;
        self.known(ACTION, &disk.0)?;
        let path = format!("servers/{instance}/os-volume_attachments/{disk}");
        match self.api.send(Service::Compute, &Request::change(ACTION, "DELETE", path, Repeat::Harmless)) {
            Err(unknown) if matches!(unknown.because, CloudErrorKind::NoInstance | CloudErrorKind::NotAttached) => {
                self.delete_left_attachment(instance, disk, unknown)
            }
            sent => sent.map(|_| Accepted::done(())),
        }
    }

    /// Cinder changes one of both at a time: a type follows the size.
    fn change_disk(&self, disk: &DiskId, change: &Change) -> Answer<Accepted<Changing>> {
        self.known("extend volume", &disk.0)?;
        let settings =
            change.settings.as_ref().map(|settings| read_settings::<DiskSettings>("retype volume", settings)).transpose()?;
        let capacity = change.capacity.map(gib);
        let kind = settings.as_ref().and_then(|settings| settings.kind.clone());
        if let Some(gib) = capacity {
            self.act("extend volume", disk, json!({"os-extend": {"new_size": gib}}))?;
            if kind.is_some() {
                let look = || self.volume(&disk.0).map_err(Refusal::perhaps);
                let seen = self.clock.look_until(self.clock.now() + EXPANSION, look, |seen| {
                    seen.as_ref().is_none_or(|seen| seen.status != "extending")
                })?;
                if let Some(seen) = seen.filter(|seen| seen.size < gib) {
                    let why = self.message("extend volume", &disk.0, &seen.status)?;
                    return Err(why.perhaps());
                }
            }
        }
        if let Some(settings) = settings {
            let policy = if settings.may_migrate { "on-demand" } else { "never" };
            let body = json!({"os-retype": {"new_type": settings.kind, "migration_policy": policy}});
            self.act("retype volume", disk, body)
                .map_err(|refusal| Refusal { maybe_done: refusal.maybe_done || capacity.is_some(), ..refusal })?;
        }
        self.remember(disk, Asked { capacity: capacity.unwrap_or_default(), kind });
        let capacity = change.capacity.unwrap_or_default();
        let begun =
            Changing { disk: disk.clone(), state: ChangeState::Modifying, capacity, progress: 0, since: None, message: None };
        Ok(Accepted::done(begun))
    }

    fn changes(&self, disks: &[DiskId]) -> Answer<Vec<Changing>> {
        disks.iter().filter_map(|disk| self.change(disk).transpose()).collect()
    }

    /// It is of one instant once it is no longer in creation. A volume in use is snapshotted with `force` (until microversion 3.66).
    fn create_snapshot(&self, spec: &CloudSnapshotSpec) -> Answer<Accepted<CloudSnapshot>> {
        const ACTION: &str = "create snapshot";
        let settings: SnapshotSettings = read_settings(ACTION, &spec.settings)?;
        let mut snapshot = json!({
            "volume_id": spec.disk.0,
            "name": spec.tags.get(NAME),
            "force": true,
            "metadata": record::metadata(&spec.tags),
        });
        if settings.is_backup {
            snapshot["metadata"][record::FOR_BACKUP] = "true".into();
        }
        let request = Request::change(ACTION, "POST", "snapshots", Repeat::Doubles).body(json!({"snapshot": snapshot}));
        let made: api::Snapshot = self.api.get(Service::Volume, &request, "snapshot")?;
        let look = || self.snapshot(&made.id).map_err(Refusal::perhaps);
        let seen = self
            .clock
            .look_until(self.clock.now() + INSTANT, look, |seen| seen.as_ref().is_none_or(|seen| seen.status != "creating"))?;
        let made = convert::snapshot(seen.unwrap_or(made));
        if matches!(made.state, SnapshotState::Failed | SnapshotState::FailedUnfinished) {
            let why = self.message(ACTION, &made.id.0, "error").map_or_else(|refusal| refusal.to_string(), |why| why.to_string());
            tracing::warn!(snapshot = %made.id, why, "Cinder could not make it");
        }
        Ok(Accepted::done(made))
    }

    fn finish_snapshot(&self, begun: &CloudSnapshot, spec: &CloudSnapshotSpec) -> Answer<Accepted<CloudSnapshot>> {
        self.back_up(begun, spec)
    }

    fn delete_snapshot(&self, snapshot: &CloudSnapshotId) -> Answer<Accepted<()>> {
        const ACTION: &str = "delete snapshot";
        if let Some(backup) = record::backup(snapshot) {
            return self.delete_backup(backup);
        }
        self.known(ACTION, &snapshot.0)?;
        let request = Request::change(ACTION, "DELETE", format!("snapshots/{snapshot}"), Repeat::Harmless);
        let status = || Ok(self.snapshot(&snapshot.0)?.map(|snapshot| snapshot.status));
        self.delete(&request, OperationId(format!("delete/snapshots/{snapshot}")), status)
    }

    /// Cinder has none of its own: what runs, and how it ended, is in a volume's status and in messages.
    fn operations(&self, which: &WhichOperations) -> Answer<Vec<Operation>> {
        match which {
            WhichOperations::Ids(ids) => ask_each(ids, |id| self.operation(id)),
            WhichOperations::Of(disks) => ask_each(disks, |disk| self.operation_of(disk)),
        }
    }

    fn snapshots(&self, which: &Which<CloudSnapshotId>, take: Take<'_, CloudSnapshot>) -> Answer<()> {
        match which {
            Which::Ids(ids) => {
                take(ask_each(ids, |id| match record::backup(id) {
                    Some(backup) => self.backup_by_id(backup),
                    None => Ok(self.snapshot(&id.0)?.map(convert::snapshot)),
                })?);
                Ok(())
            }
            Which::Tagged { key, values } => tagged(key, values).try_for_each(|tags| self.all_snapshots_with(&tags, take)),
            Which::All { tags } => self.all_snapshots_with(tags, take),
            Which::Named(_) => {
                Err(invalid("list snapshots", "name", "a name of Cinder's may be that of several snapshots".to_owned()))
            }
        }
    }

    /// What is no UUID is no server.
    fn instances(&self, ids: &[NodeId]) -> Answer<Vec<Instance>> {
        let ids: Vec<&NodeId> = ids.iter().filter(|id| is_uuid(id.as_str())).collect();
        ask_each(&ids, |id| {
            let request = Request::get("show server", format!("servers/{id}"));
            let found: Option<api::Server> = self.api.look(Service::Compute, &request, "server")?;
            Ok(found.and_then(|server| convert::instance(server, id, &self.zones, self.limit)))
        })
    }

    /// Cinder's.
    fn zones(&self) -> Answer<Vec<String>> {
        let request = Request::get("list zones", "os-availability-zone");
        let all: Vec<api::Zone> = self.api.get(Service::Volume, &request, "availabilityZoneInfo")?;
        Ok(all.into_iter().filter(|zone| zone.state.available).map(|zone| zone.name).collect())
    }

    fn address(&self, disk: &DiskId, _: &Instance, _: &[String]) -> Option<DeviceAddress> {
        Some(DeviceAddress::Identity(disk.0.clone()))
    }

    fn blocks(
        &self,
        _: Option<&CloudSnapshotId>,
        _: &CloudSnapshotId,
        _: u64,
        _: &mut dyn FnMut(Blocks) -> ControlFlow<()>,
    ) -> Answer<()> {
        Err(invalid("blocks", "unsupported", "Cinder does not say which blocks of a snapshot have changed".to_owned()))
    }
}

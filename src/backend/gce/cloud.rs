//! Compute Engine as a [`Cloud`]: its words made those of all clouds.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::backend::cloud::ask_each::ask_each;
use crate::backend::cloud::clock::Clock;
use crate::backend::cloud::{
    Accepted, Answer, AttachSpec, Batches, Blocks, Change, ChangeState, Changing, Cloud, CloudConstants, CloudErrorKind,
    CloudSnapshot, CloudSnapshotId, CloudSnapshotSpec, Consistency, DeviceAddress, Disk, DiskId, DiskSource, DiskSpec, DiskState,
    Idempotency, Instance, Operation, OperationId, OperationVisibility, Refusal, SnapshotState, Tags, Take, Which,
    WhichOperations, invalid, read_settings, refusal,
};
use crate::volume::NodeId;

use super::api::{self, Gce, Request};
use super::convert::{self, gib};
use super::limits;
use super::names::{self, Called, InstanceName, Place};
use super::parameters::{DiskSettings, MANY_READERS, SnapshotSettings};
use super::record::{self, LONGEST, Record};

mod images;

/// A disk names so many of its users at most; of one with as many the machines are asked.
const MOST_USERS: usize = 50;
/// How often labels that another program changed at the same time are read again.
const ATTEMPTS: u32 = 4;
/// How long a snapshot may take until it is of one instant: until then its source is frozen.
const INSTANT: Duration = Duration::from_secs(15);
/// For so long what was described is used again by the requests of the same call.
const LATELY: Duration = Duration::from_secs(30);
/// How many descriptions are kept.
const MOST: usize = 1024;

/// Descriptions by name or number are those of the moment; only lists may be out of date.
const CONSTANTS: CloudConstants = CloudConstants {
    disks: Idempotency::UniqueName,
    snapshots: Idempotency::UniqueName,
    consistency: Consistency {
        settled: Duration::from_secs(60),
        shown: Duration::from_secs(10),
        startup_grace: Duration::from_secs(5),
        stuck: Duration::from_secs(300),
    },
    batches: Batches { one_by_one: true, ids: 10, values: 4, attachments: 1 },
    operations: OperationVisibility::Listed,
    failed_may_have_data: false,
    shows_identity: true,
    longest_value: LONGEST,
};

#[derive(Debug)]
pub struct GceCloud {
    api: Gce,
    clock: Clock,
    /// The region's, as they were asked for once.
    zones: OnceLock<Vec<String>>,
    /// By number, when it was described.
    described: Mutex<BTreeMap<u64, (Duration, Described)>>,
    /// Whether snapshots may be images.
    images: bool,
}

/// What requests say of a disk beside its number.
#[derive(Debug)]
struct Described {
    /// It never changes.
    name: String,
    access_mode: Option<String>,
    /// With their fingerprint, by which the API refuses a change of others than these; taken by the request that changes them.
    labels: Option<(BTreeMap<String, String>, String)>,
}

impl From<&api::Disk> for Described {
    fn from(disk: &api::Disk) -> Described {
        let api::Disk { name, access_mode, labels, label_fingerprint, .. } = disk.clone();
        Described { name, access_mode, labels: Some((labels, label_fingerprint)) }
    }
}

impl GceCloud {
    pub fn new(api: Gce, clock: Clock, images: bool) -> GceCloud {
        GceCloud { api, clock, zones: OnceLock::new(), described: Mutex::default(), images }
    }

    fn remember(&self, disk: &api::Disk) {
        let mut described = self.described.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.clock.now();
        if described.len() >= MOST {
            described.retain(|_, (when, _)| *when + LATELY > now);
        }
        if described.len() < MOST {
            described.insert(disk.id, (now, Described::from(disk)));
        }
    }

    /// What `take` takes of a disk that was described a moment ago, or else of what it is now.
    fn lately<T>(
        &self,
        action: &'static str,
        id: &DiskId,
        take: impl Fn(&mut Described) -> Option<T>,
    ) -> Answer<(Place, u64, T)> {
        let kept = |number: u64| {
            let mut described = self.described.lock().unwrap_or_else(PoisonError::into_inner);
            let (when, disk) = described.get_mut(&number)?;
            (*when + LATELY > self.clock.now()).then(|| take(disk))?
        };
        if let Some((place, Called::Number(number))) = names::parse_disk(id)
            && let Some(taken) = kept(number)
        {
            return Ok((place, number, taken));
        }
        let (place, disk) = self.disk(action, id)?;
        let now = || kept(disk.id).or_else(|| take(&mut Described::from(&disk)));
        let unused = || refusal(CloudErrorKind::Unavailable, action, "description", format!("that of {id} lacks something"));
        Ok((place, disk.id, now().ok_or_else(unused)?))
    }

    /// A disk, by its name or number.
    fn look(&self, place: &Place, which: &str) -> Answer<Option<api::Disk>> {
        let action = place.action("disks.get", "regionDisks.get");
        let found: Option<api::Disk> = self.api.look(&Request::get(action, format!("{}/disks/{which}", place.path())))?;
        if let Some(disk) = &found {
            self.remember(disk);
        }
        found.map(|disk| self.with_all_users(disk)).transpose()
    }

    fn with_all_users(&self, disk: api::Disk) -> Answer<api::Disk> {
        let Some(place) = convert::place_of(&disk).filter(|_| disk.users.len() >= MOST_USERS) else { return Ok(disk) };
        let (path, project) = (format!("/{}/disks/{}", place.path(), disk.name), self.api.project()?);
        let mut users = Vec::new();
        for zone in convert::zones_of(&disk, &place) {
            self.api.list(
                &Request::get("instances.list", format!("zones/{zone}/instances")).for_list(),
                |page: Vec<api::Instance>| {
                    let has_it = |machine: &api::Instance| machine.disks.iter().any(|attached| attached.source.ends_with(&path));
                    let url = |machine: api::Instance| format!("projects/{project}/zones/{zone}/instances/{}", machine.name);
                    users.extend(page.into_iter().filter(has_it).map(url));
                },
            )?;
        }
        Ok(api::Disk { users, ..disk })
    }

    /// This very disk; `action` is what it is asked for.
    fn disk(&self, action: &'static str, id: &DiskId) -> Answer<(Place, api::Disk)> {
        let missing = || refusal(CloudErrorKind::NotFound, action, "notFound", format!("there is no disk {id}"));
        let (place, called) = names::parse_disk(id).ok_or_else(missing)?;
        let disk = self.look(&place, &called.to_string())?;
        let disk = disk.filter(|disk| called.is(disk.id, &disk.name)).ok_or_else(missing)?;
        Ok((place, disk))
    }

    /// Sends a change, whose operation is polled then.
    fn begin<T>(&self, request: &Request, result: T) -> Answer<Accepted<T>> {
        let operation: api::Operation = self.api.send(request)?;
        Ok(Accepted { result, operation: Some(convert::operation_id(&operation)) })
    }

    /// As a request's body names it.
    fn url(&self, path: &str) -> Answer<String> {
        Ok(format!("projects/{}/{path}", self.api.project()?))
    }

    /// The zones of the region, and the region itself.
    fn places(&self) -> Answer<Vec<Place>> {
        let zones = self.zones()?.into_iter().map(Place::Zone);
        Ok(zones.chain([Place::Region(self.api.region()?)]).collect())
    }

    fn instance(&self, asked: &InstanceName) -> Answer<Option<api::Instance>> {
        let project = self.api.project()?;
        if asked.project != project {
            let message = format!("node {} is of project {}, and the disks are of project {project}", asked.name, asked.project);
            return Err(invalid("instances.get", "project", message));
        }
        self.api.look(&Request::get("instances.get", asked.path()))
    }

    fn body(&self, spec: &DiskSpec, place: &Place) -> Answer<Value> {
        let settings: DiskSettings = read_settings("disks.insert", &spec.settings)?;
        let record = Record::of(&spec.tags).map_err(|reason| invalid("disks.insert", "description", reason))?;
        let mut body = Map::new();
        let mut put = |key: &str, value: Value| drop(body.insert(key.to_owned(), value));
        put("name", spec.key.clone().into());
        put("sizeGb", gib(spec.capacity).to_string().into());
        put("type", self.url(&format!("{}/diskTypes/{}", place.path(), settings.kind))?.into());
        put("description", record.description.into());
        put("labels", json!(record.labels));
        if let Place::Region(_) = place {
            let zones = spec.zones.iter().map(|zone| self.url(&format!("zones/{zone}"))).collect::<Answer<Vec<_>>>()?;
            put("replicaZones", json!(zones));
        }
        if let Some(iops) = settings.iops {
            put("provisionedIops", iops.to_string().into());
        }
        if let Some(throughput) = settings.throughput {
            put("provisionedThroughput", throughput.to_string().into());
        }
        if let Some(key) = &settings.kms_key {
            put("diskEncryptionKey", json!({"kmsKeyName": key}));
        }
        if settings.is_confidential {
            put("enableConfidentialCompute", true.into());
        }
        if let Some(mode) = &settings.access_mode {
            put("accessMode", mode.clone().into());
        }
        if !settings.resource_tags.is_empty() {
            put("params", json!({"resourceManagerTags": settings.resource_tags}));
        }
        if !settings.storage_pools.is_empty() {
            let pool = settings.storage_pools.get(place.name());
            let reason =
                || format!("there is no storage pool for {}; add one to storage-pools, or leave the zone out", place.name());
            put("storagePool", pool.cloned().ok_or_else(|| invalid("disks.insert", "storage-pools", reason()))?.into());
        }
        match &spec.source {
            DiskSource::Empty => {}
            DiskSource::Snapshot(snapshot) => match names::parse_image(snapshot) {
                Some(number) => {
                    let found = self.image("images.get", number)?;
                    put("sourceImage", self.url(&format!("global/images/{}", found.name))?.into());
                }
                None => {
                    let missing =
                        || refusal(CloudErrorKind::NotFound, "snapshots.get", "notFound", format!("there is no {snapshot}"));
                    let found = self.snapshot(snapshot)?.ok_or_else(missing)?;
                    put("sourceSnapshot", self.url(&format!("global/snapshots/{}", found.name))?.into());
                }
            },
            DiskSource::Disk(source) => {
                let (place, found) = self.disk("disks.insert", source)?;
                put("sourceDisk", self.url(&format!("{}/disks/{}", place.path(), found.name))?.into());
            }
        }
        Ok(Value::Object(body))
    }

    fn snapshot(&self, id: &CloudSnapshotId) -> Answer<Option<api::Snapshot>> {
        let Some(number) = names::parse_snapshot(id) else { return Ok(None) };
        let found: Option<api::Snapshot> = self.api.look(&Request::get("snapshots.get", format!("global/snapshots/{number}")))?;
        Ok(found.filter(|found| found.id == number))
    }

    fn snapshot_named(&self, name: &str) -> Answer<Option<api::Snapshot>> {
        self.api.look(&Request::get("snapshots.get", format!("global/snapshots/{name}")))
    }

    /// Snapshots or images with the label of these tags.
    fn listed(&self, action: &'static str, path: &str, tags: &Tags, take: impl FnMut(Vec<api::Snapshot>)) -> Answer<()> {
        let request = Request::get(action, path).for_list();
        let request = record::filter(tags).into_iter().fold(request, |request, filter| request.query("filter", filter));
        self.api.list(&request, take)
    }

    /// What runs in a place. All of it: what is about an attachment is recognised by its request's id only.
    fn running(&self, place: &Place, take: &mut dyn FnMut(api::Operation)) -> Answer<()> {
        let action = place.action("zoneOperations.list", "regionOperations.list");
        let request = Request::get(action, format!("{}/operations", place.path())).query("filter", "status != \"DONE\"");
        self.api.list(&request, |page| page.into_iter().for_each(&mut *take))
    }

    /// The places of the operations that are about a disk: its own, and those of the machines that it can be attached to.
    fn places_of(&self, disk: &DiskId) -> Answer<Vec<Place>> {
        match names::parse_disk(disk) {
            None => Ok(Vec::new()),
            Some((place @ Place::Zone(_), _)) => Ok(vec![place]),
            // Not only its own two: which these are is not known once it is gone.
            Some((place @ Place::Region(_), _)) => {
                let is_near = |zone: &String| names::region_of(zone) == place.name();
                let zones = self.zones()?.into_iter().filter(is_near).map(Place::Zone);
                Ok(zones.chain([place.clone()]).collect())
            }
        }
    }
}

impl Cloud for GceCloud {
    fn constants(&self) -> CloudConstants {
        CONSTANTS
    }

    /// By number or name, each in a request of its own: the answer is of the moment, and what is not there is not there. A list by a filter has
    /// neither.
    fn disks(&self, which: &Which<DiskId>, take: Take<'_, Disk>) -> Answer<()> {
        match which {
            Which::Ids(ids) => {
                let look = |id: &DiskId| {
                    let Some((place, called)) = names::parse_disk(id) else { return Ok(None) };
                    let found = self.look(&place, &called.to_string())?.filter(|disk| called.is(disk.id, &disk.name));
                    Ok(found.and_then(|disk| convert::disk_called(disk, id)))
                };
                take(ask_each(ids, look)?);
                Ok(())
            }
            Which::Named(names) => {
                let places = self.places()?;
                let all: Vec<_> = names.iter().flat_map(|name| places.iter().map(move |place| (place, name))).collect();
                take(ask_each(&all, |(place, name)| Ok(self.look(place, name)?.and_then(convert::disk)))?);
                Ok(())
            }
            Which::All { tags } => {
                let has_all = |disk: &Disk| tags.iter().all(|(key, value)| disk.tags.get(key) == Some(value));
                let mut crowded = Vec::new();
                self.api.all_disks(record::filter(tags).as_deref(), |page| {
                    let (many, few) = page.into_iter().partition(|disk| disk.users.len() >= MOST_USERS);
                    crowded.extend::<Vec<api::Disk>>(many);
                    let few: Vec<api::Disk> = few;
                    take(few.into_iter().filter_map(convert::disk).filter(has_all).collect());
                })?;
                for disk in crowded {
                    take(convert::disk(self.with_all_users(disk)?).into_iter().filter(has_all).collect());
                }
                Ok(())
            }
            Which::Tagged { .. } => {
                Err(invalid("disks.list", "tags", "a disk of Compute Engine is looked for by its name".to_owned()))
            }
        }
    }

    fn create_disk(&self, spec: &DiskSpec) -> Answer<Accepted<Disk>> {
        let mut zones = spec.zones.iter();
        let place = match (zones.next(), zones.next()) {
            (Some(zone), None) => Place::Zone(zone.clone()),
            (Some(zone), Some(_)) => Place::Region(names::region_of(zone).to_owned()),
            (None, _) => return Err(invalid("disks.insert", "zone", "a disk of Compute Engine is in a zone".to_owned())),
        };
        let action = place.action("disks.insert", "regionDisks.insert");
        let request = api::change(action, "POST", format!("{}/disks", place.path()), &spec.key).body(self.body(spec, &place)?);
        let operation: api::Operation = self.api.send(&request)?;
        let number = operation.target_id.as_deref().and_then(|number| number.parse::<u64>().ok());
        let id = match number {
            Some(number) => names::disk_id(&place, number),
            None => {
                let lost = refusal(CloudErrorKind::Unavailable, action, "unreadable answer", "it has no targetId".to_owned());
                return Err(lost.perhaps());
            }
        };
        let made = Disk {
            id,
            name: Some(spec.key.clone()),
            state: DiskState::Creating,
            capacity: spec.capacity,
            zones: spec.zones.clone(),
            site: None,
            tags: spec.tags.clone(),
            attachments: Vec::new(),
            source: spec.source.clone(),
            settings: spec.settings.clone(),
            multi_attach: spec.multi_attach,
            created: None,
        };
        Ok(Accepted { result: made, operation: Some(convert::operation_id(&operation)) })
    }

    /// "Create a clone of a disk": in the same zones, of the same type, with the same key.
    fn copies_disk(&self, source: &Disk, spec: &DiskSpec) -> bool {
        let (Ok(from), Ok(to)) = (DiskSettings::read(&source.settings), DiskSettings::read(&spec.settings)) else { return false };
        let same = from.kind == to.kind && from.kms_key == to.kms_key && from.is_confidential == to.is_confidential;
        same && source.zones == spec.zones && source.capacity <= spec.capacity
    }

    fn tag_disk(&self, disk: &DiskId, tags: &Tags) -> Answer<Accepted<()>> {
        let changed = Record::changed(tags).map_err(|reason| invalid("disks.setLabels", "labels", reason))?;
        let mut attempt = 1;
        loop {
            let (place, number, (mut labels, fingerprint)) = self.lately("disks.setLabels", disk, |disk| disk.labels.take())?;
            labels.extend(changed.clone());
            let action = place.action("disks.setLabels", "regionDisks.setLabels");
            let path = format!("{}/disks/{number}/setLabels", place.path());
            let body = json!({"labels": labels, "labelFingerprint": fingerprint});
            match self.begin(&api::change(action, "POST", path, &disk.0).body(body), ()) {
                // Another program changed them since they were read: its labels must stay.
                Err(refusal) if refusal.code == "conditionNotMet" && attempt < ATTEMPTS => attempt += 1,
                answer => return answer,
            }
        }
    }

    /// By its name, once its number is seen to be the disk's: a deletion does not take a number for certain.
    fn delete_disk(&self, disk: &DiskId) -> Answer<Accepted<()>> {
        let (place, found) = self.disk("disks.delete", disk)?;
        let action = place.action("disks.delete", "regionDisks.delete");
        self.begin(&api::change(action, "DELETE", format!("{}/disks/{}", place.path(), found.name), &disk.0), ())
    }

    /// One ([`CONSTANTS`]).
    fn attach_disks(&self, instance: &NodeId, disks: &[AttachSpec]) -> Answer<Accepted<()>> {
        const ACTION: &str = "instances.attachDisk";
        let [spec] = disks else { return Err(invalid(ACTION, "disks", "one disk at a time".to_owned())) };
        let node = self.named(ACTION, instance)?;
        // Its number was seen in this call, and is looked at again once it is attached.
        let take = |disk: &mut Described| Some((disk.name.clone(), disk.access_mode.clone()));
        let (place, _, (name, access_mode)) = self.lately(ACTION, &spec.disk, take)?;
        let reads = spec.access.read_only || spec.access.mode.is_read_only() || access_mode.as_deref() == Some(MANY_READERS);
        let body = json!({
            "source": self.url(&format!("{}/disks/{name}", place.path()))?,
            "deviceName": spec.device.as_str(),
            "mode": if reads { "READ_ONLY" } else { "READ_WRITE" },
            "autoDelete": false,
        });
        self.begin(&api::change(ACTION, "POST", format!("{}/attachDisk", node.path()), &spec.disk.0).body(body), ())
    }

    /// By the name by which the machine shows this disk: it may have been attached by other programs.
    fn detach_disks(&self, instance: &NodeId, disks: &[DiskId]) -> Answer<Accepted<()>> {
        const ACTION: &str = "instances.detachDisk";
        let [disk] = disks else { return Err(invalid(ACTION, "disks", "one disk at a time".to_owned())) };
        let node = self.named(ACTION, instance)?;
        let missing = || refusal(CloudErrorKind::NoInstance, ACTION, "notFound", format!("there is no instance {instance}"));
        let machine = self.instance(&node)?.ok_or_else(missing)?;
        // Another program may have attached another disk by the name of one of its own.
        let ours = Some(names::device_name(disk)).filter(|name| names::number_in(name).is_some());
        let mut device = machine.disks.iter().find(|attached| Some(&attached.device_name) == ours.as_ref());
        if device.is_none() {
            let (place, found) = self.disk(ACTION, disk)?;
            let path = format!("/{}/disks/{}", place.path(), found.name);
            device = machine.disks.iter().find(|attached| attached.source.ends_with(&path));
        }
        let reason = || format!("disk {disk} is not attached to {instance}");
        let device = device.ok_or_else(|| refusal(CloudErrorKind::NotAttached, ACTION, "notAttached", reason()))?;
        let request = api::change(ACTION, "POST", format!("{}/detachDisk", node.path()), &disk.0);
        self.begin(&request.query("deviceName", &device.device_name), ())
    }

    fn change_disk(&self, disk: &DiskId, change: &Change) -> Answer<Accepted<Changing>> {
        let (place, now) = self.disk("disks.update", disk)?;
        let settings =
            change.settings.as_ref().map(|settings| read_settings::<DiskSettings>("disks.update", settings)).transpose()?;
        let capacity = change.capacity.map(gib).filter(|gib| *gib > now.size_gb);
        let path = format!("{}/disks/{}", place.path(), now.id);
        let request = match (&settings, capacity) {
            (None, None) => None,
            (None, Some(gib)) => {
                let action = place.action("disks.resize", "regionDisks.resize");
                let body = json!({"sizeGb": gib.to_string()});
                Some(api::change(action, "POST", format!("{path}/resize"), &disk.0).body(body))
            }
            (Some(settings), capacity) => {
                let fields = [
                    ("sizeGb", capacity),
                    ("provisionedIops", settings.iops.filter(|iops| now.provisioned_iops != Some(*iops))),
                    ("provisionedThroughput", settings.throughput.filter(|rate| now.provisioned_throughput != Some(*rate))),
                ];
                let fields =
                    fields.into_iter().filter_map(|(field, value)| Some((field.to_owned(), Value::from(value?.to_string()))));
                let mut body: Map<String, Value> = fields.collect();
                let mask = body.keys().cloned().collect::<Vec<_>>().join(",");
                body.insert("name".to_owned(), now.name.clone().into());
                let action = place.action("disks.update", "regionDisks.update");
                let request = api::change(action, "PATCH", path, &disk.0).query("updateMask", mask.clone()).body(body.into());
                (!mask.is_empty()).then_some(request)
            }
        };
        let capacity = change.capacity.unwrap_or(crate::volume::Bytes(now.size_gb << 30));
        let done = Changing { disk: disk.clone(), state: ChangeState::Done, capacity, progress: 100, since: None, message: None };
        match request {
            Some(request) => self.begin(&request, done),
            None => Ok(Accepted::done(done)),
        }
    }

    /// A change is over with its operation.
    fn changes(&self, _: &[DiskId]) -> Answer<Vec<Changing>> {
        Ok(Vec::new())
    }

    /// It is of one instant once it is no longer in creation; what is uploaded afterwards is of that instant.
    fn create_snapshot(&self, spec: &CloudSnapshotSpec) -> Answer<Accepted<CloudSnapshot>> {
        const ACTION: &str = "snapshots.insert";
        let settings: SnapshotSettings = read_settings(ACTION, &spec.settings)?;
        let record = Record::of(&spec.tags).map_err(|reason| invalid(ACTION, "description", reason))?;
        let (place, disk) = self.disk(ACTION, &spec.disk)?;
        let mut body = json!({
            "name": spec.key,
            "sourceDisk": self.url(&format!("{}/disks/{}", place.path(), disk.name))?,
            "description": record.description,
            "labels": record.labels,
        });
        if !settings.locations.is_empty() {
            body["storageLocations"] = json!(settings.locations);
        }
        if settings.is_archive {
            body["snapshotType"] = "ARCHIVE".into();
        }
        if settings.is_image {
            body["labels"][record::FOR_IMAGE] = "true".into();
        }
        let operation: api::Operation = self.api.send(&api::change(ACTION, "POST", "global/snapshots", &spec.key).body(body))?;
        let operation = convert::operation_id(&operation);
        let look = || {
            let found = self.snapshot_named(&spec.key).map_err(Refusal::perhaps)?;
            // It failed, which its operation says, or is not shown.
            if found.is_none() {
                self.operation_failed(&operation)?;
            }
            Ok(found)
        };
        let end = self.clock.now() + INSTANT;
        let found = self.clock.look_until(end, look, |found| found.as_ref().is_some_and(|found| found.status != "CREATING"))?;
        let Some(found) = found.map(convert::snapshot) else {
            let message = format!("operation {} has made snapshot {}, which is not shown", operation.0, spec.key);
            return Err(refusal(CloudErrorKind::Unavailable, ACTION, "not shown", message).perhaps());
        };
        // What is uploaded for hours is waited for by its own state, and not by its operation.
        let has_ended = !matches!(found.state, SnapshotState::Pending | SnapshotState::Unfinished);
        Ok(Accepted { result: found, operation: has_ended.then_some(operation) })
    }

    fn finish_snapshot(&self, begun: &CloudSnapshot, spec: &CloudSnapshotSpec) -> Answer<Accepted<CloudSnapshot>> {
        self.finish_image(begun, spec)
    }

    fn delete_snapshot(&self, snapshot: &CloudSnapshotId) -> Answer<Accepted<()>> {
        const ACTION: &str = "snapshots.delete";
        if let Some(number) = names::parse_image(snapshot) {
            return self.delete_image(number);
        }
        let missing = || refusal(CloudErrorKind::NotFound, ACTION, "notFound", format!("there is no snapshot {snapshot}"));
        let number = names::parse_snapshot(snapshot).ok_or_else(missing)?;
        self.begin(&api::change(ACTION, "DELETE", format!("global/snapshots/{number}"), &snapshot.0), ())
    }

    /// As `disks`. Of disks only what runs is listed: how an operation ended, its own request has heard.
    fn operations(&self, which: &WhichOperations) -> Answer<Vec<Operation>> {
        match which {
            WhichOperations::Ids(ids) => {
                ask_each(ids, |id| Ok(self.operation(id)?.as_ref().and_then(|found| convert::operation(found, &[]))))
            }
            WhichOperations::Of(disks) => {
                let mut all = Vec::new();
                let mut places = disks.iter().map(|disk| self.places_of(disk)).collect::<Answer<Vec<_>>>()?.concat();
                places.sort();
                places.dedup();
                for place in places {
                    self.running(&place, &mut |found| all.extend(convert::operation(&found, disks)))?;
                }
                Ok(all)
            }
        }
    }

    fn snapshots(&self, which: &Which<CloudSnapshotId>, take: Take<'_, CloudSnapshot>) -> Answer<()> {
        match which {
            Which::Ids(ids) => {
                take(ask_each(ids, |id| match names::parse_image(id) {
                    Some(number) => self.image_by_number(number),
                    None => Ok(self.snapshot(id)?.map(convert::snapshot)),
                })?);
                Ok(())
            }
            Which::Named(names) => {
                take(ask_each(names, |name| self.snapshot_or_image(name))?);
                Ok(())
            }
            Which::All { tags } => {
                let has_all = |found: &CloudSnapshot| tags.iter().all(|(key, value)| found.tags.get(key) == Some(value));
                let mut all = |part: Vec<CloudSnapshot>| take(part.into_iter().filter(has_all).collect());
                if self.images {
                    return self.snapshots_and_images(tags, &mut all);
                }
                self.listed("snapshots.list", "global/snapshots", tags, |page| {
                    all(page.into_iter().map(convert::snapshot).collect());
                })
            }
            Which::Tagged { .. } => {
                Err(invalid("snapshots.list", "tags", "a snapshot of Compute Engine is looked for by its name".to_owned()))
            }
        }
    }

    /// What is no name of an instance is none.
    fn instances(&self, ids: &[NodeId]) -> Answer<Vec<Instance>> {
        let asked: Vec<InstanceName> = ids.iter().filter_map(|id| InstanceName::parse(id.as_str())).collect();
        ask_each(&asked, |asked| {
            Ok(self.instance(asked)?.and_then(|found| {
                let limit = limits::of_type(names::last(&found.machine_type));
                convert::instance(&found, asked, limit)
            }))
        })
    }

    fn zones(&self) -> Answer<Vec<String>> {
        if let Some(zones) = self.zones.get() {
            return Ok(zones.clone());
        }
        let region = self.api.region()?;
        let mut zones = Vec::new();
        self.api.list(&Request::get("zones.list", "zones"), |page: Vec<api::Zone>| {
            let is_near = |zone: &api::Zone| names::last(&zone.region) == region;
            zones.extend(page.into_iter().filter(is_near).map(|zone| zone.name));
        })?;
        if zones.is_empty() {
            return Err(invalid("zones.list", "region", format!("region {region} has no zones; correct the backend's region")));
        }
        Ok(self.zones.get_or_init(|| zones).clone())
    }

    fn address(&self, disk: &DiskId, _: &Instance, _: &[String]) -> Option<DeviceAddress> {
        Some(DeviceAddress::Identity(names::device_name(disk)))
    }

    fn blocks(
        &self,
        _: Option<&CloudSnapshotId>,
        _: &CloudSnapshotId,
        _: u64,
        _: &mut dyn FnMut(Blocks) -> ControlFlow<()>,
    ) -> Answer<()> {
        Err(invalid("blocks", "unsupported", "Compute Engine does not say which blocks of a snapshot have changed".to_owned()))
    }
}

impl GceCloud {
    fn named(&self, action: &'static str, instance: &NodeId) -> Answer<InstanceName> {
        let reason = || format!("{instance} is no instance; it would be projects/P/zones/Z/instances/N");
        InstanceName::parse(instance.as_str()).ok_or_else(|| refusal(CloudErrorKind::NoInstance, action, "name", reason()))
    }

    /// `None` for one that is not known (any more).
    fn operation(&self, id: &OperationId) -> Answer<Option<api::Operation>> {
        let action = match id.0.split('/').next() {
            Some("zones") => "zoneOperations.get",
            Some("regions") => "regionOperations.get",
            _ => "globalOperations.get",
        };
        self.api.look(&Request::get(action, id.0.clone()))
    }

    /// # Errors
    /// That of the operation, where it has failed.
    fn operation_failed(&self, id: &OperationId) -> Answer<()> {
        use crate::backend::cloud::OperationState;
        let found = self.operation(id).map_err(Refusal::perhaps)?;
        match found.as_ref().and_then(|found| convert::operation(found, &[])).map(|operation| operation.state) {
            Some(OperationState::Failed(refusal)) => Err(*refusal),
            _ => Ok(()),
        }
    }
}

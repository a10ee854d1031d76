//! Azure as a [`Cloud`]: its words made those of all clouds.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::backend::cloud::ask_each::ask_each;
use crate::backend::cloud::clock::Clock;
use crate::backend::cloud::rest::Request;
use crate::backend::cloud::retry::Repeat;
use crate::backend::cloud::{
    Accepted, Answer, AttachSpec, Batches, Blocks, Change, ChangeState, Changing, Cloud, CloudConstants, CloudErrorKind,
    CloudSnapshot, CloudSnapshotId, CloudSnapshotSpec, Consistency, DeviceAddress, Disk, DiskId, DiskSource, DiskSpec, DiskState,
    Idempotency, Instance, Operation, OperationChange, OperationId, OperationState, OperationVisibility, Refusal, SnapshotState,
    Tags, Take, Which, WhichOperations, invalid, read_settings, refusal,
};
use crate::volume::{Bytes, NodeId};

use super::api::{self, Azure};
use super::convert::{self, Machines, gib};
use super::names::{self, MachineName, is_disk};
use super::parameters::{Caching, DiskSettings, effective_caching};
use super::record::{self, LONGEST};

/// A machine has no more slots ("LUN").
const SLOTS: u32 = 64;
/// How long a request waits for the change before it of the same machine.
const MACHINE: Duration = Duration::from_secs(40);
const PAUSE: Duration = Duration::from_millis(1000);
/// When the status of an operation could not be read for so long, the machine is asked whether it still runs.
const UNREADABLE: Duration = Duration::from_secs(10);
/// How much is remembered of what hosts are to cache.
const MOST: usize = 20_000;

/// Descriptions by name are those of the moment; only lists may be out of date, and who has a disk of a machine that was deleted.
const CONSTANTS: CloudConstants = CloudConstants {
    disks: Idempotency::UniqueName,
    snapshots: Idempotency::UniqueName,
    consistency: Consistency {
        settled: Duration::from_secs(60),
        shown: Duration::from_secs(10),
        startup_grace: Duration::from_secs(5),
        stuck: Duration::from_secs(300),
    },
    batches: Batches { one_by_one: true, ids: 10, values: 4, attachments: 16 },
    operations: OperationVisibility::Described,
    failed_may_have_data: false,
    shows_identity: false,
    longest_value: LONGEST,
};

/// Where disks are.
#[derive(Clone, Debug)]
pub struct Place {
    pub subscription: String,
    pub group: String,
    pub location: String,
}

#[derive(Debug)]
pub struct AzureCloud {
    api: Azure,
    place: Place,
    /// The region's, as they were asked for once.
    zones: OnceLock<Vec<String>>,
    /// What hosts are to cache of the disks that were described.
    caching: Mutex<BTreeMap<DiskId, Caching>>,
    /// The last change of each machine that this process began, until it is seen to have ended.
    changing: Mutex<BTreeMap<MachineName, OperationId>>,
    clock: Clock,
}

impl AzureCloud {
    pub fn new(api: Azure, place: Place, clock: Clock) -> AzureCloud {
        let (caching, changing) = (Mutex::default(), Mutex::default());
        AzureCloud { api, place, zones: OnceLock::new(), caching, changing, clock }
    }

    /// A resource id below the subscription, with the slash in front.
    fn id(&self, path: &str) -> String {
        format!("/subscriptions/{}/{path}", self.place.subscription)
    }

    /// `disks` or `snapshots` and a name; all of them without one.
    fn resource(&self, kind: &str, name: Option<&str>) -> String {
        let group = &self.place.group;
        let name = name.map(|name| format!("/{name}")).unwrap_or_default();
        self.id(&format!("resourceGroups/{group}/providers/Microsoft.Compute/{kind}{name}"))
    }

    fn get(&self, action: &'static str, id: &str, version: &str) -> Request {
        Request::get(action, path(id)).query("api-version", version)
    }

    fn change(&self, action: &'static str, method: &'static str, id: &str, repeat: Repeat) -> Request {
        Request::change(action, method, path(id), repeat).query("api-version", api::DISKS)
    }

    /// A name that is none is that of nothing.
    fn disk(&self, name: &str) -> Answer<Option<api::Disk>> {
        if !is_disk(name) {
            return Ok(None);
        }
        self.api.look(&self.get("disks.get", &self.resource("disks", Some(name)), api::DISKS))
    }

    fn snapshot(&self, name: &str) -> Answer<Option<api::Snapshot>> {
        if !is_disk(name) {
            return Ok(None);
        }
        self.api.look(&self.get("snapshots.get", &self.resource("snapshots", Some(name)), api::DISKS))
    }

    fn machine(&self, name: &MachineName) -> Answer<Option<api::Machine>> {
        let request = self.get("virtualMachines.get", &self.id(&name.path()), api::MACHINES);
        self.api.look(&request.query("$expand", "instanceView"))
    }

    /// Disks of these names, with the machines that have them: each machine is asked once, after all disks.
    fn described(&self, all: &[String]) -> Answer<(Vec<api::Disk>, Machines)> {
        let disks = ask_each(all, |name| self.disk(name))?;
        let holders: BTreeSet<MachineName> = disks.iter().flat_map(convert::holders).collect();
        let holders: Vec<MachineName> = holders.into_iter().collect();
        let machines = ask_each(&holders, |holder| Ok(Some((holder.clone(), self.machine(holder)?))))?;
        Ok((disks, machines.into_iter().collect()))
    }

    fn shown(&self, all: &[String], take: Take<'_, Disk>) -> Answer<()> {
        let (disks, machines) = self.described(all)?;
        let disks: Vec<Disk> = disks.into_iter().map(|disk| convert::disk(disk, &machines)).collect();
        for disk in &disks {
            self.remember(disk);
        }
        take(disks);
        Ok(())
    }

    fn remember(&self, disk: &Disk) -> Caching {
        let settings = DiskSettings::read(&disk.settings).unwrap_or_default();
        let caching = effective_caching(convert::caching(disk), settings.sku, disk.capacity, settings.max_shares);
        let mut all = self.caching.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= MOST {
            all.clear();
        }
        all.insert(disk.id.clone(), caching);
        caching
    }

    fn caching(&self, id: &DiskId) -> Answer<Caching> {
        let known = self.caching.lock().unwrap_or_else(PoisonError::into_inner).get(id).copied();
        if let Some(caching) = known {
            return Ok(caching);
        }
        let missing = || refusal(CloudErrorKind::NotFound, "disks.get", "ResourceNotFound", format!("there is no disk {id}"));
        Ok(self.remember(&convert::disk(self.disk(&id.0)?.ok_or_else(missing)?, &Machines::new())))
    }

    fn body(&self, spec: &DiskSpec, settings: &DiskSettings) -> Answer<Value> {
        const ACTION: &str = "disks.put";
        let tags = record::azure_tags(&spec.tags).map_err(|reason| invalid(ACTION, "tags", reason))?;
        let creation = match &spec.source {
            DiskSource::Empty => json!({"createOption": "Empty"}),
            DiskSource::Snapshot(snapshot) => {
                json!({"createOption": "Copy", "sourceResourceId": self.resource("snapshots", Some(&snapshot.0))})
            }
            DiskSource::Disk(disk) => json!({"createOption": "Copy", "sourceResourceId": self.resource("disks", Some(&disk.0))}),
        };
        let export = &settings.export;
        let mut properties = json!({
            "creationData": creation,
            "diskSizeGB": gib(spec.capacity),
            "networkAccessPolicy": export.policy,
            "publicNetworkAccess": export.public,
        });
        if let Some(id) = &export.disk_access_id {
            properties["diskAccessId"] = id.as_str().into();
        }
        if settings.performance_plus {
            properties["creationData"]["performancePlus"] = true.into();
        }
        if let Some(size) = settings.logical_sector_size {
            properties["creationData"]["logicalSectorSize"] = size.into();
        }
        if let Some(iops) = settings.iops {
            properties["diskIOPSReadWrite"] = iops.into();
        }
        if let Some(mbps) = settings.mbps {
            properties["diskMBpsReadWrite"] = mbps.into();
        }
        if let Some(tier) = &settings.tier {
            properties["tier"] = tier.as_str().into();
        }
        if let Some(bursts) = settings.bursting {
            properties["burstingEnabled"] = bursts.into();
        }
        if settings.max_shares > 1 {
            properties["maxShares"] = settings.max_shares.into();
        }
        if let Some(id) = &settings.disk_encryption_set_id {
            let by = settings.encryption_type.as_deref().unwrap_or("EncryptionAtRestWithCustomerKey");
            properties["encryption"] = json!({"diskEncryptionSetId": id, "type": by});
        }
        let mut body = json!({
            "location": self.place.location,
            "sku": {"name": settings.sku.name()},
            "tags": tags,
            "properties": properties,
        });
        let zones = convert::zone_numbers(&spec.zones);
        if !zones.is_empty() {
            body["zones"] = zones.into();
        }
        Ok(body)
    }

    /// Adds tags, and leaves alone all others: another program may change them at the same time ("Tags", `Merge`).
    fn merge_tags(&self, disk: &DiskId, tags: &Tags) -> Answer<Option<OperationId>> {
        const ACTION: &str = "tags.update";
        self.known(ACTION, &disk.0)?;
        let tags = record::azure_tags(tags).map_err(|reason| invalid(ACTION, "tags", reason))?;
        let id = format!("{}/providers/Microsoft.Resources/tags/default", self.resource("disks", Some(&disk.0)));
        let request = Request::change(ACTION, "PATCH", path(&id), Repeat::Harmless).query("api-version", api::TAGS);
        self.api.begin(&request.body(json!({"operation": "Merge", "properties": {"tags": tags}})))
    }

    /// Refuses an id that is none of ours, which is not put into a path.
    fn known(&self, action: &'static str, id: &str) -> Answer<()> {
        match is_disk(id) {
            true => Ok(()),
            false => Err(refusal(CloudErrorKind::NotFound, action, "id", format!("there is no {id} in {}", self.place.group))),
        }
    }

    fn named(&self, action: &'static str, instance: &NodeId) -> Answer<MachineName> {
        let reason = || format!("{instance} is no machine; it would be GROUP/NAME");
        MachineName::parse(instance.as_str()).ok_or_else(|| refusal(CloudErrorKind::NoInstance, action, "name", reason()))
    }

    /// Only these disks of the machine are concerned, whatever else is attached to it or comes at the same time.
    fn attach_or_detach(&self, instance: &NodeId, body: Value) -> Answer<Accepted<()>> {
        const ACTION: &str = "virtualMachines.attachDetachDataDisks";
        let name = self.named(ACTION, instance)?;
        let id = format!("{}/attachDetachDataDisks", self.id(&name.path()));
        let request = Request::change(ACTION, "POST", path(&id), Repeat::Harmless).query("api-version", api::MACHINES);
        self.await_machine(ACTION, &name)?;
        let operation = self.api.begin(&request.body(body))?;
        match &operation {
            Some(operation) => self.changing().insert(name, operation.clone()),
            None => self.changing().remove(&name),
        };
        Ok(Accepted { result: (), operation })
    }

    /// Waits until the last change of a machine has ended: the next one would be refused, or end that one midway (`OperationPreempted`). What
    /// comes meanwhile goes into one request.
    fn await_machine(&self, action: &'static str, name: &MachineName) -> Answer<()> {
        let until = self.clock.now() + MACHINE;
        let mut read = self.clock.now();
        loop {
            let last = self.changing().get(name).cloned();
            let Some(last) = last else { return Ok(()) };
            let is_over = match self.operation(&last) {
                Ok(operation) => {
                    read = self.clock.now();
                    operation.is_none_or(|operation| operation.state != OperationState::Running)
                }
                // A look that failed says nothing; one that fails for ever must not bar the machine.
                Err(_) if self.clock.now() < read + UNREADABLE => false,
                Err(_) => {
                    read = self.clock.now();
                    let is_updating = |machine: &api::Machine| machine.properties.provisioning_state == "Updating";
                    self.machine(name).is_ok_and(|machine| !machine.as_ref().is_some_and(is_updating))
                }
            };
            if is_over {
                self.has_ended(&last);
                return Ok(());
            }
            if self.clock.now() >= until {
                let message = format!("operation {} of the same machine has not ended; retry", last.0);
                return Err(refusal(CloudErrorKind::TooSoon, action, "busy", message));
            }
            self.clock.sleep(PAUSE);
        }
    }

    fn changing(&self) -> MutexGuard<'_, BTreeMap<MachineName, OperationId>> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An operation that has ended changes no machine any more.
    fn has_ended(&self, operation: &OperationId) {
        self.changing().retain(|_, last| last != operation);
    }

    /// Sends a deletion. What does not exist is answered as what is deleted.
    fn delete(&self, action: &'static str, kind: &str, name: &str) -> Answer<Accepted<()>> {
        self.known(action, name)?;
        let request = self.change(action, "DELETE", &self.resource(kind, Some(name)), Repeat::Harmless);
        Ok(Accepted { result: (), operation: self.api.begin(&request)? })
    }

    fn operation(&self, id: &OperationId) -> Answer<Option<Operation>> {
        let state = self.api.operation(id)?;
        if state != Some(OperationState::Running) {
            self.has_ended(id);
        }
        Ok(state.map(|state| Operation {
            id: id.clone(),
            disks: Vec::new(),
            changes: OperationChange::Existence,
            action: "operation".to_owned(),
            state,
        }))
    }
}

/// A resource id as a path has it.
fn path(id: &str) -> String {
    id.trim_start_matches('/').to_owned()
}

/// What a name's resource is already.
fn exists(action: &'static str, name: &str) -> Refusal {
    refusal(CloudErrorKind::Exists, action, "Exists", format!("{name} exists"))
}

fn has_all(tags: &Tags, wanted: &Tags) -> bool {
    wanted.iter().all(|(key, value)| tags.get(key) == Some(value))
}

impl Cloud for AzureCloud {
    fn constants(&self) -> CloudConstants {
        CONSTANTS
    }

    /// By name one after the other: the answer is of the moment, and what is not there is not there. A list has neither, nor the slots.
    fn disks(&self, which: &Which<DiskId>, take: Take<'_, Disk>) -> Answer<()> {
        match which {
            Which::Ids(ids) => self.shown(&ids.iter().map(|id| id.0.clone()).collect::<Vec<_>>(), take),
            Which::Named(names) => self.shown(names, take),
            Which::All { tags } => {
                let request = self.get("disks.list", &self.resource("disks", None), api::DISKS).for_list();
                self.api.list(&request, |page: Vec<api::Disk>| {
                    let disks = page.into_iter().map(|disk| convert::disk(disk, &Machines::new()));
                    take(disks.filter(|disk| has_all(&disk.tags, tags)).collect());
                })
            }
            Which::Tagged { .. } => Err(invalid("disks.list", "tags", "a disk of Azure is looked for by its name".to_owned())),
        }
    }

    /// A PUT of a name that exists would change that disk: it is looked for first, and the request is not sent again where it may have been
    /// done.
    fn create_disk(&self, spec: &DiskSpec) -> Answer<Accepted<Disk>> {
        const ACTION: &str = "disks.put";
        self.known(ACTION, &spec.key)?;
        let settings: DiskSettings = read_settings(ACTION, &spec.settings)?;
        if self.disk(&spec.key)?.is_some() {
            return Err(exists(ACTION, &spec.key));
        }
        let request = self.change(ACTION, "PUT", &self.resource("disks", Some(&spec.key)), Repeat::Doubles);
        let operation = self.api.begin(&request.body(self.body(spec, &settings)?))?;
        let made = Disk {
            id: DiskId(spec.key.clone()),
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
        Ok(Accepted { result: made, operation })
    }

    /// In the same zones; those whose rates are chosen only through snapshots ("Deploy a Premium SSD v2", limitations).
    fn copies_disk(&self, source: &Disk, spec: &DiskSpec) -> bool {
        let (Ok(from), Ok(to)) = (DiskSettings::read(&source.settings), DiskSettings::read(&spec.settings)) else { return false };
        let may_be = !from.sku.has_rates() && !to.sku.has_rates() && from.disk_encryption_set_id == to.disk_encryption_set_id;
        may_be && source.zones == spec.zones && source.capacity <= spec.capacity && source.state != DiskState::Unusable
    }

    fn tag_disk(&self, disk: &DiskId, tags: &Tags) -> Answer<Accepted<()>> {
        Ok(Accepted { result: (), operation: self.merge_tags(disk, tags)? })
    }

    fn delete_disk(&self, disk: &DiskId) -> Answer<Accepted<()>> {
        self.delete("disks.delete", "disks", &disk.0)
    }

    fn attach_disks(&self, instance: &NodeId, disks: &[AttachSpec]) -> Answer<Accepted<()>> {
        const ACTION: &str = "virtualMachines.attachDetachDataDisks";
        let mut all = Vec::new();
        for spec in disks {
            self.known(ACTION, &spec.disk.0)?;
            let lun: u32 =
                spec.device.as_str().parse().map_err(|_| invalid(ACTION, "lun", format!("{} is no slot", spec.device)))?;
            let caching = self.caching(&spec.disk)?;
            all.push(json!({"diskId": self.resource("disks", Some(&spec.disk.0)), "lun": lun, "caching": caching}));
        }
        self.attach_or_detach(instance, json!({"dataDisksToAttach": all}))
    }

    fn detach_disks(&self, instance: &NodeId, disks: &[DiskId]) -> Answer<Accepted<()>> {
        disks.iter().try_for_each(|disk| self.known("virtualMachines.attachDetachDataDisks", &disk.0))?;
        let all: Vec<Value> = disks.iter().map(|disk| json!({"diskId": self.resource("disks", Some(&disk.0))})).collect();
        self.attach_or_detach(instance, json!({"dataDisksToDetach": all}))
    }

    /// Tags first, which another request sets, and which does no harm alone.
    fn change_disk(&self, disk: &DiskId, change: &Change) -> Answer<Accepted<Changing>> {
        const ACTION: &str = "disks.update";
        self.known(ACTION, &disk.0)?;
        let settings = change.settings.as_ref().map(|settings| read_settings::<DiskSettings>(ACTION, settings)).transpose()?;
        let mut operation = None;
        if let Some(settings) = settings.as_ref().filter(|settings| !settings.tags.is_empty()) {
            operation = self.merge_tags(disk, &settings.tags)?;
        }
        let missing = || refusal(CloudErrorKind::NotFound, ACTION, "ResourceNotFound", format!("there is no disk {disk}"));
        let now = self.disk(&disk.0)?.ok_or_else(missing)?;
        let mut properties = Map::new();
        let mut body = Map::new();
        if let Some(gib) = change.capacity.map(gib).filter(|gib| *gib > now.properties.disk_size_gb) {
            properties.insert("diskSizeGB".to_owned(), gib.into());
        }
        if let Some(settings) = &settings {
            if !now.sku.name.eq_ignore_ascii_case(settings.sku.name()) {
                body.insert("sku".to_owned(), json!({"name": settings.sku.name()}));
            }
            if let Some(iops) = settings.iops.filter(|iops| now.properties.iops != Some(*iops)) {
                properties.insert("diskIOPSReadWrite".to_owned(), iops.into());
            }
            if let Some(mbps) = settings.mbps.filter(|mbps| now.properties.mbps != Some(*mbps)) {
                properties.insert("diskMBpsReadWrite".to_owned(), mbps.into());
            }
            let tier = settings.tier.as_ref().filter(|tier| now.properties.tier.as_ref() != Some(*tier));
            if let Some(tier) = tier.filter(|_| settings.sku.has_tiers()) {
                properties.insert("tier".to_owned(), tier.as_str().into());
            }
            let bursting = settings.bursting.filter(|bursts| now.properties.bursting_enabled.unwrap_or_default() != *bursts);
            if let Some(bursts) = bursting.filter(|_| settings.sku.has_tiers()) {
                properties.insert("burstingEnabled".to_owned(), bursts.into());
            }
        }
        if !properties.is_empty() {
            body.insert("properties".to_owned(), properties.into());
        }
        if !body.is_empty() {
            let request = self.change(ACTION, "PATCH", &self.resource("disks", Some(&disk.0)), Repeat::Harmless);
            operation = self.api.begin(&request.body(body.into()))?;
        }
        let capacity = change.capacity.unwrap_or(Bytes(now.properties.disk_size_gb << 30));
        let done = Changing { disk: disk.clone(), state: ChangeState::Done, capacity, progress: 100, since: None, message: None };
        Ok(Accepted { result: done, operation })
    }

    /// A change is over with its operation.
    fn changes(&self, _: &[DiskId]) -> Answer<Vec<Changing>> {
        Ok(Vec::new())
    }

    /// Of the instant of its request; what is copied in the background afterwards is of that instant ("Create an incremental snapshot").
    fn create_snapshot(&self, spec: &CloudSnapshotSpec) -> Answer<Accepted<CloudSnapshot>> {
        const ACTION: &str = "snapshots.put";
        self.known(ACTION, &spec.key)?;
        self.known(ACTION, &spec.disk.0)?;
        let tags = record::azure_tags(&spec.tags).map_err(|reason| invalid(ACTION, "tags", reason))?;
        let missing = || refusal(CloudErrorKind::NotFound, ACTION, "ResourceNotFound", format!("there is no disk {}", spec.disk));
        let source = self.disk(&spec.disk.0)?.ok_or_else(missing)?;
        if self.snapshot(&spec.key)?.is_some() {
            return Err(exists(ACTION, &spec.key));
        }
        let body = json!({
            "location": self.place.location,
            "tags": tags,
            "properties": {
                "creationData": {"createOption": "Copy", "sourceResourceId": self.resource("disks", Some(&spec.disk.0))},
                "incremental": true,
                "networkAccessPolicy": "DenyAll",
                "publicNetworkAccess": "Disabled",
            },
        });
        let request = self.change(ACTION, "PUT", &self.resource("snapshots", Some(&spec.key)), Repeat::Doubles);
        let operation = self.api.begin(&request.body(body))?;
        let seen = self.snapshot(&spec.key).map_err(Refusal::perhaps)?;
        if let Some(seen) = seen.filter(|seen| seen.properties.time_created.is_some()) {
            return Ok(Accepted { result: convert::snapshot(seen), operation });
        }
        let made = CloudSnapshot {
            id: CloudSnapshotId(spec.key.clone()),
            name: Some(spec.key.clone()),
            disk: spec.disk.clone(),
            state: SnapshotState::Pending,
            capacity: Bytes(source.properties.disk_size_gb << 30),
            created: std::time::SystemTime::now(),
            progress: 0,
            tags: spec.tags.clone(),
        };
        Ok(Accepted { result: made, operation })
    }

    fn delete_snapshot(&self, snapshot: &CloudSnapshotId) -> Answer<Accepted<()>> {
        self.delete("snapshots.delete", "snapshots", &snapshot.0)
    }

    /// By the address that its request was answered with; of disks only what runs, by the descriptions of the disk and its machines.
    fn operations(&self, which: &WhichOperations) -> Answer<Vec<Operation>> {
        match which {
            WhichOperations::Ids(ids) => ask_each(ids, |id| self.operation(id)),
            WhichOperations::Of(disks) => {
                let (found, machines) = self.described(&disks.iter().map(|disk| disk.0.clone()).collect::<Vec<_>>())?;
                Ok(found.iter().flat_map(|disk| convert::operations_of(disk, &machines)).collect())
            }
        }
    }

    fn snapshots(&self, which: &Which<CloudSnapshotId>, take: Take<'_, CloudSnapshot>) -> Answer<()> {
        let names: Vec<&String> = match which {
            Which::Ids(ids) => ids.iter().map(|id| &id.0).collect(),
            Which::Named(names) => names.iter().collect(),
            Which::All { tags } => {
                let request = self.get("snapshots.list", &self.resource("snapshots", None), api::DISKS).for_list();
                return self.api.list(&request, |page: Vec<api::Snapshot>| {
                    take(page.into_iter().map(convert::snapshot).filter(|found| has_all(&found.tags, tags)).collect());
                });
            }
            Which::Tagged { .. } => {
                return Err(invalid("snapshots.list", "tags", "a snapshot of Azure is looked for by its name".to_owned()));
            }
        };
        take(ask_each(&names, |name| Ok(self.snapshot(name)?.map(convert::snapshot)))?);
        Ok(())
    }

    /// What is no name of a machine is none.
    fn instances(&self, ids: &[NodeId]) -> Answer<Vec<Instance>> {
        ask_each(ids, |id| {
            let Some(name) = MachineName::parse(id.as_str()) else { return Ok(None) };
            Ok(self.machine(&name)?.map(|found| convert::instance(&found, id, &self.place.group)))
        })
    }

    /// Those of the region that this subscription has.
    fn zones(&self) -> Answer<Vec<String>> {
        const ACTION: &str = "locations.list";
        if let Some(zones) = self.zones.get() {
            return Ok(zones.clone());
        }
        let location = &self.place.location;
        let mut zones = Vec::new();
        self.api.list(&self.get(ACTION, &self.id("locations"), api::SUBSCRIPTIONS), |page: Vec<api::Location>| {
            let here = page.into_iter().filter(|found| found.name.eq_ignore_ascii_case(location));
            zones.extend(here.flat_map(|found| found.zones).map(|zone| names::zone_of(location, &zone.logical_zone)));
        })?;
        if zones.is_empty() {
            let message = format!("region {location} has no zones for this subscription; set withoutZones, or correct location");
            return Err(invalid(ACTION, "location", message));
        }
        Ok(self.zones.get_or_init(|| zones).clone())
    }

    /// A slot: Azure shows a machine nothing of a disk by which it could be recognised.
    fn address(&self, _: &DiskId, instance: &Instance, taken: &[String]) -> Option<DeviceAddress> {
        let mut slots = (0..SLOTS).map(|lun| lun.to_string());
        slots.find(|lun| !instance.attached.contains_key(lun) && !taken.contains(lun)).map(DeviceAddress::Slot)
    }

    fn blocks(
        &self,
        _: Option<&CloudSnapshotId>,
        _: &CloudSnapshotId,
        _: u64,
        _: &mut dyn FnMut(Blocks) -> ControlFlow<()>,
    ) -> Answer<()> {
        Err(invalid("blocks", "unsupported", "which blocks of a snapshot have changed is not read from Azure".to_owned()))
    }
}

#[cfg(test)]
#[path = "cloud_tests.rs"]
mod tests;

//! EC2 as a [`Cloud`]: its words made those of all clouds.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::{Duration, Instant};

use crate::backend::cloud::pages::Pages;
use crate::backend::cloud::{
    Accepted, Answer, AttachSpec, Batches, Blocks, Change, Changing, Cloud, CloudConstants, CloudErrorKind, CloudSnapshot,
    CloudSnapshotId, CloudSnapshotSpec, Consistency, DeviceAddress, Disk, DiskId, DiskSource, DiskSpec, Idempotency, Instance,
    MachineState, OperationVisibility, Page, Take, Which, pages,
};
use crate::volume::NodeId;

use super::api::{self, Ec2, MOST_IDS, MOST_VALUES, Select};
use super::convert::{TypeLimits, changing, disk, gib, invalid, read, select, snapshot, status_words, type_limits};
use super::limits::of_type;
use super::parameters::{DiskSettings, SnapshotSettings};

const CONSTANTS: CloudConstants = CloudConstants {
    disks: Idempotency::Token,
    // CreateSnapshot has no ClientToken: a repeated request makes another snapshot.
    snapshots: Idempotency::FindFirst,
    consistency: Consistency {
        // EC2 API reference, "Eventual consistency", asks callers to try for up to five minutes.
        settled: Duration::from_secs(300),
        shown: Duration::from_secs(15),
        startup_grace: Duration::from_secs(15),
        // What takes seconds has taken minutes.
        stuck: Duration::from_secs(300),
    },
    batches: Batches { one_by_one: false, ids: MOST_IDS, values: MOST_VALUES, attachments: 1 },
    // Disks, attachments and snapshots say themselves how far they are.
    operations: OperationVisibility::None,
    failed_may_have_data: false,
    shows_identity: true,
    // EC2 user guide, "Tag restrictions".
    longest_value: 256,
};

/// So long calls wait for what EC2 says of types.
const TYPES_WITHIN: Duration = Duration::from_secs(3);
/// So long after a request about types that was not answered there is no other.
const TYPES_PAUSE: Duration = Duration::from_secs(60);

/// What EC2 says of types. Of one that it does not know any more, or did not tell, it is asked again by the next driver only.
#[derive(Debug, Default)]
struct Types {
    reported: BTreeMap<String, Option<TypeLimits>>,
    /// When it was asked, until it answers.
    unanswered: Option<Instant>,
}

#[derive(Debug)]
pub struct Ec2Cloud {
    api: Arc<Ec2>,
    types: Arc<Mutex<Types>>,
}

fn locked(types: &Mutex<Types>) -> MutexGuard<'_, Types> {
    types.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Ec2Cloud {
    pub fn new(api: Ec2) -> Ec2Cloud {
        Ec2Cloud { api: Arc::new(api), types: Arc::default() }
    }

    /// What these types take, by EC2's word. Without it, which may be a right that is missing, the built-in table stands in: nothing is
    /// attached or detached while this waits.
    fn learn_types(&self, kinds: impl Iterator<Item = String>) {
        let mut types = self.types();
        let unknown: Vec<String> = kinds.filter(|kind| !types.reported.contains_key(kind)).collect();
        if unknown.is_empty() || types.unanswered.is_some_and(|asked| asked.elapsed() < TYPES_PAUSE) {
            return;
        }
        types.unanswered = Some(Instant::now());
        drop(types);
        let (api, types) = (Arc::clone(&self.api), Arc::clone(&self.types));
        // It is dropped once there is an answer.
        let (answered, answer) = mpsc::channel::<()>();
        let ask = move || {
            let _answered = answered;
            learn(&api, &types, unknown);
        };
        // Where no thread can be had, it is as if there were no answer.
        std::thread::Builder::new().name("ec2 types".to_owned()).spawn(ask).ok();
        answer.recv_timeout(TYPES_WITHIN).ok();
    }

    fn types(&self) -> MutexGuard<'_, Types> {
        locked(&self.types)
    }

    /// What is attached to each card, where EC2 says that there are several.
    fn cards(&self, instance: &api::Instance) -> BTreeMap<u32, usize> {
        let reported = self.types().reported.get(&instance.instance_type).cloned().flatten();
        let cards = reported.map(|reported| reported.cards).unwrap_or_default();
        let disks_on = |card: u32| instance.disks.iter().filter(|disk| disk.card == card).count();
        cards.into_iter().map(|card| (card, disks_on(card))).collect()
    }

    /// All that a machine takes: what is attached already counts.
    fn limit(&self, instance: &api::Instance) -> u64 {
        let reported =
            self.types().reported.get(&instance.instance_type).and_then(|reported| Some(reported.as_ref()?.attachments));
        let of = of_type(&instance.instance_type, reported);
        let further = instance.network_interfaces.saturating_sub(1) as u64;
        of.most.saturating_sub(if of.shared { further } else { 0 })
    }
}

fn learn(api: &Ec2, types: &Mutex<Types>, unknown: Vec<String>) {
    let answer = api.describe_instance_types(&unknown);
    let mut types = locked(types);
    let unknown = unknown.into_iter().map(|kind| (kind, None));
    match answer {
        Ok(reported) => {
            let reported = reported.iter().map(|reported| (reported.instance_type.clone(), type_limits(reported)));
            types.reported.extend(unknown.chain(reported));
            types.unanswered = None;
        }
        Err(error) => {
            tracing::warn!(%error, "DescribeInstanceTypes did not report the attachment limits; the built-in table is used");
            types.unanswered = Some(Instant::now());
            if error.because == CloudErrorKind::Denied {
                types.reported.extend(unknown);
            }
        }
    }
}

impl Cloud for Ec2Cloud {
    fn constants(&self) -> CloudConstants {
        CONSTANTS
    }

    fn disks(&self, which: &Which<DiskId>, take: Take<'_, Disk>) -> Answer<()> {
        let fetch = |page: Option<&str>| {
            let page = self.api.describe_volumes(&select(which, page, |id| &id.0)?)?;
            Ok(Page { items: page.items.into_iter().map(disk).collect(), next: page.next })
        };
        pages::each("DescribeVolumes", fetch, take)
    }

    fn create_disk(&self, spec: &DiskSpec) -> Answer<Accepted<Disk>> {
        let settings: DiskSettings = read("CreateVolume", &spec.settings)?;
        let (iops, throughput) = (settings.iops.map(Into::into), settings.throughput.map(Into::into));
        let snapshot = match &spec.source {
            DiskSource::Empty => None,
            DiskSource::Snapshot(snapshot) => Some(snapshot.0.clone()),
            DiskSource::Disk(source) => {
                let copy = api::CopyVolume {
                    client_token: spec.key.clone(),
                    source_volume_id: source.0.clone(),
                    size: Some(gib(spec.capacity)),
                    volume_type: Some(settings.kind.name().to_owned()),
                    iops,
                    throughput,
                    multi_attach: spec.multi_attach.then_some(true),
                    tags: spec.tags.clone(),
                };
                return self.api.copy_volume(&copy).map(disk).map(Accepted::done);
            }
        };
        let zone = spec.zones.first().cloned();
        let zone = zone.ok_or_else(|| invalid("CreateVolume", "zone", "a volume of EC2 is in one zone".to_owned()))?;
        let create = api::CreateVolume {
            client_token: spec.key.clone(),
            zone,
            size: Some(gib(spec.capacity)),
            volume_type: Some(settings.kind.name().to_owned()),
            iops,
            throughput,
            encrypted: settings.encrypted,
            kms_key_id: settings.kms_key_id,
            initialization_rate: settings.initialization_rate.filter(|_| snapshot.is_some()).map(Into::into),
            snapshot_id: snapshot,
            multi_attach: spec.multi_attach.then_some(true),
            outpost_arn: settings.outpost_arn,
            tags: spec.tags.clone(),
        };
        self.api.create_volume(&create).map(disk).map(Accepted::done)
    }

    /// EBS user guide, "Copy an Amazon EBS volume": in the same zone, not on an Outpost, at least of the same size, with the source's key.
    /// When volumes could first be copied the source had to be encrypted; the guide has had no such word since, so that EC2 is asked.
    /// Another key, which EC2's API takes and its published model has not, goes through a snapshot.
    fn copies_disk(&self, source: &Disk, spec: &DiskSpec) -> bool {
        let (Ok(from), Ok(to)) = (DiskSettings::read(&source.settings), DiskSettings::read(&spec.settings)) else { return false };
        let same_place = source.zones == spec.zones && source.site.is_none() && to.outpost_arn.is_none();
        let same_encryption = to.encrypted.is_none_or(|encrypted| Some(encrypted) == from.encrypted)
            && to.kms_key_id.is_none_or(|key| Some(key) == from.kms_key_id);
        same_place && same_encryption && source.capacity <= spec.capacity
    }

    fn tag_disk(&self, disk: &DiskId, tags: &BTreeMap<String, String>) -> Answer<Accepted<()>> {
        self.api.create_tags(&disk.0, tags).map(Accepted::done)
    }

    fn delete_disk(&self, disk: &DiskId) -> Answer<Accepted<()>> {
        self.api.delete_volume(&disk.0).map(Accepted::done)
    }

    /// One ([`CONSTANTS`]). How it is to be used, EC2 does not ask.
    fn attach_disks(&self, instance: &NodeId, disks: &[AttachSpec]) -> Answer<Accepted<()>> {
        for AttachSpec { disk, device, card, .. } in disks {
            self.api.attach_volume(&disk.0, instance.as_str(), device.as_str(), *card)?;
        }
        Ok(Accepted::done(()))
    }

    fn detach_disks(&self, instance: &NodeId, disks: &[DiskId]) -> Answer<Accepted<()>> {
        for disk in disks {
            self.api.detach_volume(&disk.0, instance.as_str())?;
        }
        Ok(Accepted::done(()))
    }

    fn change_disk(&self, disk: &DiskId, change: &Change) -> Answer<Accepted<Changing>> {
        let settings = change.settings.as_ref().map(|settings| read::<DiskSettings>("ModifyVolume", settings)).transpose()?;
        let modify = api::ModifyVolume {
            volume_id: disk.0.clone(),
            size: change.capacity.map(gib),
            volume_type: settings.as_ref().map(|settings| settings.kind.name().to_owned()),
            iops: settings.as_ref().and_then(|settings| settings.iops).map(Into::into),
            throughput: settings.as_ref().and_then(|settings| settings.throughput).map(Into::into),
            multi_attach: None,
        };
        self.api.modify_volume(&modify).map(changing).map(Accepted::done)
    }

    fn changes(&self, disks: &[DiskId]) -> Answer<Vec<Changing>> {
        let ids = disks.iter().map(|id| id.0.clone()).collect();
        Ok(self.api.describe_volumes_modifications(&Select::Ids(ids))?.items.into_iter().map(changing).collect())
    }

    fn create_snapshot(&self, spec: &CloudSnapshotSpec) -> Answer<Accepted<CloudSnapshot>> {
        let settings: SnapshotSettings = read("CreateSnapshot", &spec.settings)?;
        let create = api::CreateSnapshot {
            volume_id: spec.disk.0.clone(),
            description: None,
            outpost_arn: settings.outpost_arn.clone(),
            tags: spec.tags.clone(),
        };
        let made = self.api.create_snapshot(&create)?;
        // A convenience that costs by the hour and has a quota of its own: the snapshot is as good without.
        let zones = settings.zones();
        if !zones.is_empty()
            && let Err(error) = self.api.enable_fast_snapshot_restores(&made.snapshot_id, &zones)
        {
            tracing::warn!(snapshot = made.snapshot_id, zones = zones.join(","), %error, "fast restore could not be enabled");
        }
        Ok(Accepted::done(snapshot(made)))
    }

    fn delete_snapshot(&self, snapshot: &CloudSnapshotId) -> Answer<Accepted<()>> {
        self.api.delete_snapshot(&snapshot.0).map(Accepted::done)
    }

    fn snapshots(&self, which: &Which<CloudSnapshotId>, take: Take<'_, CloudSnapshot>) -> Answer<()> {
        let fetch = |page: Option<&str>| {
            let page = self.api.describe_snapshots(&select(which, page, |id| &id.0)?)?;
            Ok(Page { items: page.items.into_iter().map(snapshot).collect(), next: page.next })
        };
        pages::each("DescribeSnapshots", fetch, take)
    }

    fn instances(&self, ids: &[NodeId]) -> Answer<Vec<Instance>> {
        let select = Select::Ids(ids.iter().map(|id| id.as_str().to_owned()).collect());
        let found = self.api.describe_instances(&select)?.items;
        self.learn_types(found.iter().map(|instance| instance.instance_type.clone()));
        Ok(found.iter().filter_map(|found| self.instance(found)).collect())
    }

    fn zones(&self) -> Answer<Vec<String>> {
        let zones = self.api.describe_availability_zones()?.into_iter();
        // Local and wavelength zones offer little of what EBS has, and nobody gets there by chance.
        let usual = |zone: &api::Zone| zone.state == "available" && (zone.kind.is_empty() || zone.kind == "availability-zone");
        Ok(zones.filter(usual).map(|zone| zone.name).collect())
    }

    /// On Nitro an EBS volume has an identity, too, which the node finds it by; which instance is on Xen, the node knows.
    fn address(&self, _: &DiskId, instance: &Instance, taken: &[String]) -> Option<DeviceAddress> {
        free_name(instance, taken).map(DeviceAddress::Slot)
    }

    fn impaired(&self, disks: &[DiskId]) -> Answer<Vec<(DiskId, String)>> {
        let ids = disks.iter().map(|id| id.0.clone()).collect();
        let reported = self.api.describe_volume_status(&Select::Ids(ids))?.items;
        let impaired = reported.into_iter().filter(|reported| matches!(reported.summary.status.as_str(), "impaired" | "warning"));
        Ok(impaired.map(|reported| (DiskId(reported.volume_id.clone()), status_words(&reported))).collect())
    }

    fn blocks(
        &self,
        base: Option<&CloudSnapshotId>,
        of: &CloudSnapshotId,
        offset: u64,
        take: &mut dyn FnMut(Blocks) -> ControlFlow<()>,
    ) -> Answer<()> {
        // Blocks of snapshots have 512 KiB (EBS user guide, "Concepts for EBS direct APIs"); what the answer says counts.
        let start = offset / (512 << 10);
        let mut pages = Pages::new(if base.is_some() { "ListChangedBlocks" } else { "ListSnapshotBlocks" });
        let mut token: Option<String> = None;
        loop {
            let page = match base {
                None => self.api.list_snapshot_blocks(&of.0, start, token.as_deref())?,
                Some(base) => self.api.list_changed_blocks(&base.0, &of.0, start, token.as_deref())?,
            };
            token = pages.after(page.indices.is_empty(), page.next)?;
            let offsets = page.indices.iter().map(|index| index.saturating_mul(page.block_size)).collect();
            if take(Blocks { offsets, size: page.block_size }).is_break() || token.is_none() {
                return Ok(());
            }
        }
    }
}

impl Ec2Cloud {
    fn instance(&self, found: &api::Instance) -> Option<Instance> {
        use api::InstanceState as State;
        if found.state == State::Terminated {
            return None;
        }
        let state = match found.state {
            State::Stopping | State::Stopped => MachineState::Stopped,
            State::ShuttingDown => MachineState::BeingDeleted,
            _ => MachineState::Running,
        };
        Some(Instance {
            id: found.instance_id.parse().ok()?,
            zone: Some(found.zone.clone()),
            site: found.outpost_arn.clone(),
            kind: found.instance_type.clone(),
            state,
            attached: found.disks.iter().map(|disk| (disk.device.clone(), DiskId(disk.volume_id.clone()))).collect(),
            limit: Some(self.limit(found)),
            cards: self.cards(found),
        })
    }
}

/// Device names in the order in which they are given: as many as the 127 volumes that the largest instances take beside their root.
/// Those that AWS recommends come first, `/dev/xvdba` and so on (EC2 user guide, "Device names for volumes on Amazon EC2 instances");
/// single letters, which AMIs use themselves, come last. EC2 refuses names after `/dev/xvddx` (as aws-ebs-csi-driver found out,
/// pkg/cloud/devicemanager).
fn names() -> impl Iterator<Item = String> {
    let two_letters = ['b', 'c', 'd', 'a'].into_iter().flat_map(|first| ('a'..='z').map(move |second| (first, second)));
    let two_letters = two_letters.filter(|letters| !matches!(letters, ('d', 'y' | 'z')));
    let one_letter = ('b'..='z').map(|letter| format!("/dev/sd{letter}"));
    two_letters.map(|(first, second)| format!("/dev/xvd{first}{second}")).chain(one_letter)
}

fn free_name(instance: &Instance, taken: &[String]) -> Option<String> {
    names().find(|name| !instance.attached.keys().chain(taken).any(|other| same_device(other, name)))
}

/// `/dev/sdf` and `/dev/xvdf` are one.
fn same_device(one: &str, other: &str) -> bool {
    fn bare(name: &str) -> &str {
        let name = name.trim_start_matches("/dev/");
        name.strip_prefix("xvd").or_else(|| name.strip_prefix("sd")).unwrap_or(name)
    }
    bare(one) == bare(other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_that_nothing_else_has() {
        let attached = ["/dev/xvda", "/dev/sdba", "/dev/xvdbb"].map(|name| (name.to_owned(), DiskId("vol-1".to_owned())));
        let instance = Instance {
            id: "i-1".parse().expect("a node"),
            zone: Some("z".to_owned()),
            site: None,
            kind: "m5.large".to_owned(),
            state: MachineState::Running,
            attached: attached.into(),
            limit: None,
            cards: BTreeMap::new(),
        };
        assert_eq!(names().count(), 127);
        assert!(!names().any(|name| ["/dev/xvddy", "/dev/xvddz", "/dev/xvda", "/dev/sda"].contains(&name.as_str())));
        assert_eq!(free_name(&instance, &["/dev/xvdbc".to_owned()]).as_deref(), Some("/dev/xvdbd"));
        let all: Vec<String> = names().collect();
        assert_eq!(free_name(&instance, &all), None);
    }
}

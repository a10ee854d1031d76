//! EC2 as a [`Cloud`]: its words made those of all clouds.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use serde_json::Value;

use crate::backend::cloud::{
    Answer, Attachment, AttachmentState, Blocks, BlocksFrom, Change, ChangeState, Changing, Cloud, CloudErrorKind, CloudSnapshot,
    CloudSnapshotId, CloudSnapshotSpec, Disk, DiskId, DiskSource, DiskSpec, DiskState, Instance, Page, Refusal, SnapshotState,
    Which,
};
use crate::volume::{Bytes, NodeId};

use super::api::{self, Ec2, Filter, Select};
use super::kinds::Kind;
use super::limits::{Attachments, of_type};
use super::parameters::{DiskSettings, SnapshotSettings};

const GIB: u64 = 1 << 30;

/// What EC2 says of a type that it does not know any more, or did not tell, is asked again by the next driver only.
type Types = BTreeMap<String, Option<TypeLimits>>;

#[derive(Clone, Debug)]
struct TypeLimits {
    attachments: Attachments,
    /// Where there are several.
    cards: Vec<u32>,
}

#[derive(Debug)]
pub struct Ec2Cloud {
    api: Ec2,
    types: Mutex<Types>,
}

impl Ec2Cloud {
    pub fn new(api: Ec2) -> Ec2Cloud {
        Ec2Cloud { api, types: Mutex::default() }
    }

    /// What these types take, by EC2's word. Without it, which may be a right that is missing, the built-in table stands in.
    fn learn_types(&self, kinds: impl Iterator<Item = String>) {
        let known = |kind: &String| self.types().contains_key(kind);
        let unknown: Vec<String> = kinds.filter(|kind| !known(kind)).collect();
        if unknown.is_empty() {
            return;
        }
        match self.api.describe_instance_types(&unknown) {
            Ok(reported) => {
                let reported = reported.iter().map(|reported| (reported.instance_type.clone(), type_limits(reported)));
                let all: Types = unknown.into_iter().map(|kind| (kind, None)).chain(reported).collect();
                self.types().extend(all);
            }
            Err(error) => {
                tracing::warn!(%error, "DescribeInstanceTypes did not report the attachment limits; the built-in table is used");
                if error.because == CloudErrorKind::Denied {
                    self.types().extend(unknown.into_iter().map(|kind| (kind, None)));
                }
            }
        }
    }

    fn types(&self) -> std::sync::MutexGuard<'_, Types> {
        self.types.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is attached to each card, where EC2 says that there are several.
    fn cards(&self, instance: &api::Instance) -> BTreeMap<u32, usize> {
        let reported = self.types().get(&instance.instance_type).cloned().flatten();
        let cards = reported.map(|reported| reported.cards).unwrap_or_default();
        let disks_on = |card: u32| instance.disks.iter().filter(|disk| disk.card == card).count();
        cards.into_iter().map(|card| (card, disks_on(card))).collect()
    }

    /// All that a machine takes: what is attached already counts.
    fn limit(&self, instance: &api::Instance) -> u64 {
        let reported = self.types().get(&instance.instance_type).and_then(|reported| Some(reported.as_ref()?.attachments));
        let of = of_type(&instance.instance_type, reported);
        let further = instance.network_interfaces.saturating_sub(1) as u64;
        of.most.saturating_sub(if of.shared { further } else { 0 })
    }
}

impl Cloud for Ec2Cloud {
    fn disks(&self, which: &Which<DiskId>, page: Option<&str>) -> Answer<Page<Disk>> {
        let page = self.api.describe_volumes(&select(which, page, |id| &id.0))?;
        Ok(Page { items: page.items.into_iter().map(disk).collect(), next: page.next })
    }

    fn create_disk(&self, spec: &DiskSpec) -> Answer<Disk> {
        let settings: DiskSettings = read("CreateVolume", &spec.settings)?;
        let (iops, throughput) = (settings.iops.map(Into::into), settings.throughput.map(Into::into));
        let snapshot = match &spec.source {
            DiskSource::Empty => None,
            DiskSource::Snapshot(snapshot) => Some(snapshot.0.clone()),
            DiskSource::Disk(source) => {
                let copy = api::CopyVolume {
                    client_token: spec.token.clone(),
                    source_volume_id: source.0.clone(),
                    size: Some(gib(spec.capacity)),
                    volume_type: Some(settings.kind.name().to_owned()),
                    iops,
                    throughput,
                    multi_attach: spec.multi_attach.then_some(true),
                    tags: spec.tags.clone(),
                };
                return self.api.copy_volume(&copy).map(disk);
            }
        };
        let create = api::CreateVolume {
            client_token: spec.token.clone(),
            zone: spec.zone.clone(),
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
        self.api.create_volume(&create).map(disk)
    }

    /// EBS user guide, "Copy an Amazon EBS volume": in the same zone, not on an Outpost, at least of the same size, with the source's key.
    /// When volumes could first be copied the source had to be encrypted; the guide has had no such word since, so that EC2 is asked.
    /// Another key, which EC2's API takes and its published model has not, goes through a snapshot.
    fn copies_disk(&self, source: &Disk, spec: &DiskSpec) -> bool {
        let (Ok(from), Ok(to)) = (DiskSettings::read(&source.settings), DiskSettings::read(&spec.settings)) else { return false };
        let same_place = source.zone == spec.zone && source.site.is_none() && to.outpost_arn.is_none();
        let same_encryption = to.encrypted.is_none_or(|encrypted| Some(encrypted) == from.encrypted)
            && to.kms_key_id.is_none_or(|key| Some(key) == from.kms_key_id);
        same_place && same_encryption && source.capacity <= spec.capacity
    }

    fn tag_disk(&self, disk: &DiskId, tags: &BTreeMap<String, String>) -> Answer<()> {
        self.api.create_tags(&disk.0, tags)
    }

    fn delete_disk(&self, disk: &DiskId) -> Answer<()> {
        self.api.delete_volume(&disk.0)
    }

    fn attach_disk(&self, disk: &DiskId, instance: &NodeId, device: &str, card: Option<u32>) -> Answer<()> {
        self.api.attach_volume(&disk.0, instance.as_str(), device, card).map(drop)
    }

    fn detach_disk(&self, disk: &DiskId, instance: &NodeId) -> Answer<()> {
        self.api.detach_volume(&disk.0, instance.as_str()).map(drop)
    }

    fn change_disk(&self, disk: &DiskId, change: &Change) -> Answer<Changing> {
        let settings = change.settings.as_ref().map(|settings| read::<DiskSettings>("ModifyVolume", settings)).transpose()?;
        let modify = api::ModifyVolume {
            volume_id: disk.0.clone(),
            size: change.capacity.map(gib),
            volume_type: settings.as_ref().map(|settings| settings.kind.name().to_owned()),
            iops: settings.as_ref().and_then(|settings| settings.iops).map(Into::into),
            throughput: settings.as_ref().and_then(|settings| settings.throughput).map(Into::into),
            multi_attach: None,
        };
        self.api.modify_volume(&modify).map(changing)
    }

    fn changes(&self, disks: &[DiskId]) -> Answer<Vec<Changing>> {
        let ids = disks.iter().map(|id| id.0.clone()).collect();
        Ok(self.api.describe_volumes_modifications(&Select::Ids(ids))?.items.into_iter().map(changing).collect())
    }

    fn create_snapshot(&self, spec: &CloudSnapshotSpec) -> Answer<CloudSnapshot> {
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
        Ok(snapshot(made))
    }

    fn delete_snapshot(&self, snapshot: &CloudSnapshotId) -> Answer<()> {
        self.api.delete_snapshot(&snapshot.0)
    }

    fn snapshots(&self, which: &Which<CloudSnapshotId>, page: Option<&str>) -> Answer<Page<CloudSnapshot>> {
        let page = self.api.describe_snapshots(&select(which, page, |id| &id.0))?;
        Ok(Page { items: page.items.into_iter().map(snapshot).collect(), next: page.next })
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

    fn device_name(&self, instance: &Instance, taken: &[String]) -> Option<String> {
        free_name(instance, taken)
    }

    fn impaired(&self, disks: &[DiskId]) -> Answer<Vec<(DiskId, String)>> {
        let ids = disks.iter().map(|id| id.0.clone()).collect();
        let reported = self.api.describe_volume_status(&Select::Ids(ids))?.items;
        let impaired = reported.into_iter().filter(|reported| matches!(reported.summary.status.as_str(), "impaired" | "warning"));
        Ok(impaired.map(|reported| (DiskId(reported.volume_id.clone()), status_words(&reported))).collect())
    }

    fn blocks(&self, base: Option<&CloudSnapshotId>, of: &CloudSnapshotId, from: &BlocksFrom) -> Answer<Blocks> {
        let (offset, token) = match from {
            BlocksFrom::Offset(offset) => (*offset, None),
            BlocksFrom::Token(token) => (0, Some(token.as_str())),
        };
        // Blocks of snapshots have 512 KiB (EBS user guide, "Concepts for EBS direct APIs"); what the answer says counts.
        let start = offset / (512 << 10);
        let page = match base {
            None => self.api.list_snapshot_blocks(&of.0, start, token)?,
            Some(base) => self.api.list_changed_blocks(&base.0, &of.0, start, token)?,
        };
        Ok(Blocks {
            offsets: page.indices.iter().map(|index| index.saturating_mul(page.block_size)).collect(),
            size: page.block_size,
            next: page.next,
        })
    }
}

impl Ec2Cloud {
    fn instance(&self, found: &api::Instance) -> Option<Instance> {
        use api::InstanceState as State;
        if found.state == State::Terminated {
            return None;
        }
        Some(Instance {
            id: found.instance_id.parse().ok()?,
            zone: found.zone.clone(),
            site: found.outpost_arn.clone(),
            kind: found.instance_type.clone(),
            running: matches!(found.state, State::Running | State::Pending | State::Stopping | State::Stopped),
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

fn gib(capacity: Bytes) -> u64 {
    capacity.0.div_ceil(GIB)
}

fn select<Id>(which: &Which<Id>, page: Option<&str>, text: impl Fn(&Id) -> &str) -> Select {
    let token = page.map(str::to_owned);
    match which {
        Which::Ids(ids) => Select::Ids(ids.iter().map(|id| text(id).to_owned()).collect()),
        Which::Tagged { key, values } => Select::Filtered { filters: vec![Filter::tag(key, values)], token },
        Which::All { tags } => {
            Select::All { filters: tags.iter().map(|(key, value)| Filter::tag(key, [value])).collect(), token }
        }
    }
}

fn disk(volume: api::Volume) -> Disk {
    use api::VolumeState as State;
    let site = volume.outpost_arn.clone();
    let settings = DiskSettings {
        kind: Kind::named(&volume.volume_type).unwrap_or_default(),
        iops: volume.iops.and_then(|iops| u32::try_from(iops).ok()),
        throughput: volume.throughput.and_then(|throughput| u32::try_from(throughput).ok()),
        encrypted: Some(volume.encrypted),
        kms_key_id: volume.kms_key_id,
        outpost_arn: volume.outpost_arn,
        initialization_rate: None,
    };
    Disk {
        id: DiskId(volume.volume_id),
        state: match volume.state {
            // A state that nobody knows is waited out.
            State::Creating | State::Unknown => DiskState::Creating,
            State::Available => DiskState::Available,
            State::InUse => DiskState::InUse,
            State::Deleting => DiskState::Deleting,
            State::Deleted => DiskState::Deleted,
            State::Error => DiskState::Failed,
        },
        capacity: Bytes(volume.size.saturating_mul(GIB)),
        zone: volume.zone,
        site,
        tags: volume.tags,
        attachments: volume.attachments.into_iter().filter_map(attachment).collect(),
        snapshot: volume.snapshot_id.map(CloudSnapshotId),
        settings: serde_json::to_value(settings).unwrap_or_default(),
        multi_attach: volume.multi_attach,
        created: volume.create_time,
    }
}

fn attachment(attachment: api::VolumeAttachment) -> Option<Attachment> {
    use api::AttachmentState as State;
    Some(Attachment {
        instance: attachment.instance_id?.parse().ok()?,
        device: attachment.device.unwrap_or_default(),
        state: match attachment.state {
            State::Attaching => AttachmentState::Attaching,
            State::Attached => AttachmentState::Attached,
            State::Detaching | State::Unknown => AttachmentState::Detaching,
            State::Detached => AttachmentState::Detached,
            State::Busy => AttachmentState::Busy,
        },
        since: attachment.attach_time,
    })
}

fn changing(modification: api::Modification) -> Changing {
    use api::ModificationState as State;
    Changing {
        disk: DiskId(modification.volume_id),
        state: match modification.state {
            State::Modifying | State::Unknown => ChangeState::Modifying,
            State::Optimizing => ChangeState::Usable,
            State::Completed => ChangeState::Done,
            State::Failed => ChangeState::Failed,
        },
        capacity: Bytes(modification.target_size.unwrap_or_default().saturating_mul(GIB)),
        progress: modification.progress,
        since: modification.start_time,
        message: modification.status_message,
    }
}

fn snapshot(snapshot: api::Snapshot) -> CloudSnapshot {
    use api::SnapshotState as State;
    CloudSnapshot {
        id: CloudSnapshotId(snapshot.snapshot_id),
        disk: DiskId(snapshot.volume_id),
        state: match snapshot.state {
            State::Pending | State::Recovering | State::Unknown => SnapshotState::Pending,
            State::Completed => SnapshotState::Completed,
            State::Error | State::Recoverable => SnapshotState::Failed,
        },
        capacity: Bytes(snapshot.volume_size.saturating_mul(GIB)),
        created: snapshot.start_time.unwrap_or(std::time::UNIX_EPOCH),
        progress: snapshot.progress,
        tags: snapshot.tags,
    }
}

/// What EC2 says of a type; `None` where it does not say how many.
fn type_limits(reported: &api::InstanceType) -> Option<TypeLimits> {
    let ebs = reported.ebs_info.as_ref()?;
    let shared = ebs.attachment_limit_type.as_deref() != Some("dedicated");
    let attachments = Attachments { most: ebs.maximum_ebs_attachments?, shared };
    Some(TypeLimits { attachments, cards: if ebs.cards.len() > 1 { ebs.cards.clone() } else { Vec::new() } })
}

fn status_words(reported: &api::VolumeStatus) -> String {
    let details = reported.summary.details.iter().map(|detail| format!("{} {}", detail.name, detail.status));
    let events = reported.events.iter().map(|event| format!("{}: {}", event.kind, event.description));
    let all: Vec<String> = [reported.summary.status.clone()].into_iter().chain(details).chain(events).collect();
    all.join("; ")
}

/// What the policy drafted.
fn read<T: serde::de::DeserializeOwned>(action: &'static str, settings: &Value) -> Answer<T> {
    serde_json::from_value(settings.clone()).map_err(|error| Refusal {
        because: CloudErrorKind::Invalid,
        action,
        code: "settings".to_owned(),
        message: error.to_string(),
        request_id: None,
        maybe_done: false,
        retry_after: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_that_nothing_else_has() {
        let attached = ["/dev/xvda", "/dev/sdba", "/dev/xvdbb"].map(|name| (name.to_owned(), DiskId("vol-1".to_owned())));
        let instance = Instance {
            id: "i-1".parse().expect("a node"),
            zone: "z".to_owned(),
            site: None,
            kind: "m5.large".to_owned(),
            running: true,
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

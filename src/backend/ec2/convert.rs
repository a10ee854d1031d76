//! The words of EC2's API made those of all clouds.

use serde_json::Value;

use crate::backend::cloud::{
    Answer, Attachment, AttachmentState, ChangeState, Changing, CloudErrorKind, CloudSnapshot, CloudSnapshotId, DeviceAddress,
    Disk, DiskId, DiskSource, DiskState, Refusal, SnapshotState, Which,
};
use crate::volume::Bytes;

use super::api::{self, Filter, Select};
use super::kinds::Kind;
use super::limits::Attachments;
use super::parameters::DiskSettings;

const GIB: u64 = 1 << 30;

/// How many disks instances of a type take.
#[derive(Clone, Debug)]
pub(super) struct TypeLimits {
    pub attachments: Attachments,
    /// Where there are several.
    pub cards: Vec<u32>,
}

/// Whole GiB, rounded up.
pub(super) fn gib(capacity: Bytes) -> u64 {
    capacity.0.div_ceil(GIB)
}

pub(super) fn select<Id>(which: &Which<Id>, page: Option<&str>, text: impl Fn(&Id) -> &str) -> Answer<Select> {
    let token = page.map(str::to_owned);
    Ok(match which {
        Which::Ids(ids) => Select::Ids(ids.iter().map(|id| text(id).to_owned()).collect()),
        Which::Tagged { key, values } => Select::Filtered { filters: vec![Filter::tag(key, values)], token },
        Which::All { tags } => {
            Select::All { filters: tags.iter().map(|(key, value)| Filter::tag(key, [value])).collect(), token }
        }
        Which::Named(_) => {
            return Err(invalid("Describe", "names", "a volume or snapshot of EC2 has no name of its own".to_owned()));
        }
    })
}

pub(super) fn disk(volume: api::Volume) -> Disk {
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
        name: None,
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
        zones: [volume.zone].into(),
        site,
        tags: volume.tags,
        attachments: volume.attachments.into_iter().filter_map(attachment).collect(),
        // What was copied from a volume is shown without that.
        source: volume.snapshot_id.map_or(DiskSource::Empty, |snapshot| DiskSource::Snapshot(CloudSnapshotId(snapshot))),
        settings: serde_json::to_value(settings).unwrap_or_default(),
        multi_attach: volume.multi_attach,
        created: volume.create_time,
    }
}

fn attachment(attachment: api::VolumeAttachment) -> Option<Attachment> {
    use api::AttachmentState as State;
    Some(Attachment {
        instance: attachment.instance_id?.parse().ok()?,
        device: DeviceAddress::Slot(attachment.device.unwrap_or_default()),
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

pub(super) fn changing(modification: api::Modification) -> Changing {
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

pub(super) fn snapshot(snapshot: api::Snapshot) -> CloudSnapshot {
    use api::SnapshotState as State;
    CloudSnapshot {
        id: CloudSnapshotId(snapshot.snapshot_id),
        name: None,
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
pub(super) fn type_limits(reported: &api::InstanceType) -> Option<TypeLimits> {
    let ebs = reported.ebs_info.as_ref()?;
    let shared = ebs.attachment_limit_type.as_deref() != Some("dedicated");
    let attachments = Attachments { most: ebs.maximum_ebs_attachments?, shared };
    Some(TypeLimits { attachments, cards: if ebs.cards.len() > 1 { ebs.cards.clone() } else { Vec::new() } })
}

pub(super) fn status_words(reported: &api::VolumeStatus) -> String {
    let details = reported.summary.details.iter().map(|detail| format!("{} {}", detail.name, detail.status));
    let events = reported.events.iter().map(|event| format!("{}: {}", event.kind, event.description));
    let all: Vec<String> = [reported.summary.status.clone()].into_iter().chain(details).chain(events).collect();
    all.join("; ")
}

/// What the policy drafted.
pub(super) fn read<T: serde::de::DeserializeOwned>(action: &'static str, settings: &Value) -> Answer<T> {
    serde_json::from_value(settings.clone()).map_err(|error| invalid(action, "settings", error.to_string()))
}

/// A request that is not sent.
pub(super) fn invalid(action: &'static str, code: &str, message: String) -> Refusal {
    Refusal {
        because: CloudErrorKind::Invalid,
        action,
        code: code.to_owned(),
        message,
        request_id: None,
        maybe_done: false,
        retry_after: None,
    }
}

//! What a publish has to do, from what is wanted and what was seen. Pure.

use std::path::PathBuf;

use crate::volume::{Error, Result, VolumeId};

use super::super::errors::{access_word, stacked};
use super::super::journal::TargetEntry;
use super::super::observe::MountState;

/// How a volume is to be published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DesiredTarget {
    pub target: PathBuf,
    pub read_only: bool,
    /// No other target on this node (SINGLE_NODE_SINGLE_WRITER).
    pub alone: bool,
}

/// What there is at a target.
#[derive(Clone, Debug)]
pub struct TargetObservation {
    pub at: MountState,
    pub entry: Option<TargetEntry>,
    /// The other targets of the volume that are mounted.
    pub others: Vec<TargetEntry>,
}

/// What a publish has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PublishAction {
    /// It is there.
    Nothing,
    /// It is there, but not in the journal.
    Record,
    Mount,
}

/// # Errors
/// `Conflict` where something else, or the same otherwise, is mounted at the target; `InUse` where another target forbids it.
pub fn publish(id: &VolumeId, wanted: &DesiredTarget, seen: &TargetObservation) -> Result<PublishAction> {
    let object = || format!("target {} of volume {id}", wanted.target.display());
    if wanted.alone
        && let Some(other) = seen.others.first()
    {
        return Err(Error::InUse {
            object: format!("volume {id}"),
            by: format!(
                "it may have one user only (SINGLE_NODE_SINGLE_WRITER) and is published at {}; unpublish it there first",
                other.target.display()
            ),
        });
    }
    match &seen.at {
        MountState::Nothing => Ok(PublishAction::Mount),
        MountState::Stack(count) => Err(stacked(&wanted.target, *count)),
        MountState::Foreign(mount) => Err(Error::Conflict {
            object: object(),
            existing: format!("a mount of {} ({})", mount.source.display(), mount.fstype),
            wanted: "this volume".to_owned(),
        }),
        MountState::Ours(mount) => {
            let read_only = match &seen.entry {
                // A bind of a device node shows nothing of it in mountinfo.
                Some(entry) if entry.block => entry.read_only,
                _ => mount.options.iter().any(|option| option == "ro"),
            };
            if read_only != wanted.read_only {
                let [existing, wanted] = [read_only, wanted.read_only].map(|read_only| access_word(read_only).to_owned());
                return Err(Error::Conflict { object: object(), existing, wanted });
            }
            Ok(if seen.entry.is_some() { PublishAction::Nothing } else { PublishAction::Record })
        }
    }
}

/// Write protection lies on the device, not on a bind of its node: one way for all its targets.
///
/// # Errors
/// `InUse` where another target has it the other way.
pub fn protection(id: &VolumeId, wanted: &DesiredTarget, others: &[TargetEntry]) -> Result<()> {
    match others.iter().find(|other| other.read_only != wanted.read_only) {
        None => Ok(()),
        Some(other) => Err(Error::InUse {
            object: format!("volume {id}"),
            by: format!(
                "its raw block device is published {} at {}, and cannot be {} at the same time on one node; unpublish it there first",
                access_word(other.read_only),
                other.target.display(),
                access_word(wanted.read_only)
            ),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::journal::VERSION;
    use super::super::super::observe::testing::{mounted, ours};
    use super::*;

    fn id() -> VolumeId {
        "image:a".parse().expect("valid")
    }

    fn target_wanted(read_only: bool, alone: bool) -> DesiredTarget {
        DesiredTarget { target: "/k/t".into(), read_only, alone }
    }

    fn target(path: &str, block: bool, read_only: bool) -> TargetEntry {
        TargetEntry { version: VERSION, id: id(), target: path.into(), block, read_only, device: None, boot: "b".to_owned() }
    }

    #[test]
    fn a_target_is_mounted_recorded_or_right() {
        let entry = || Some(target("/k/t", false, false));
        let cases = [
            (MountState::Nothing, None, PublishAction::Mount),
            (MountState::Nothing, entry(), PublishAction::Mount),
            (MountState::Ours(mounted("ext4", "rw,nosuid")), entry(), PublishAction::Nothing),
            (MountState::Ours(mounted("ext4", "rw")), None, PublishAction::Record),
        ];
        for (at, entry, expected) in cases {
            let seen = TargetObservation { at, entry, others: Vec::new() };
            assert_eq!(publish(&id(), &target_wanted(false, false), &seen).expect("fits"), expected, "{seen:?}");
        }
    }

    #[test]
    fn a_target_that_is_otherwise_is_refused() {
        let see = |at, entry| TargetObservation { at, entry, others: Vec::new() };
        let cases = [
            (see(MountState::Foreign(mounted("tmpfs", "rw")), None), false),
            (see(MountState::Ours(mounted("ext4", "rw")), Some(target("/k/t", false, false))), true),
            (see(MountState::Ours(mounted("ext4", "ro")), None), false),
            (see(MountState::Ours(mounted("devtmpfs", "rw")), Some(target("/k/t", true, true))), false),
        ];
        for (seen, read_only) in cases {
            let result = publish(&id(), &target_wanted(read_only, false), &seen);
            assert!(matches!(result, Err(Error::Conflict { .. })), "{seen:?}: {result:?}");
        }
        let result = publish(&id(), &target_wanted(false, false), &see(MountState::Stack(2), None));
        assert!(matches!(result, Err(Error::InUse { .. })));
    }

    #[test]
    fn a_single_writer_is_alone_on_its_node() {
        let others = vec![target("/k/other", false, false)];
        let seen = TargetObservation { at: MountState::Nothing, entry: None, others };
        assert!(matches!(publish(&id(), &target_wanted(false, true), &seen), Err(Error::InUse { .. })));
        assert_eq!(publish(&id(), &target_wanted(false, false), &seen).expect("others may share"), PublishAction::Mount);
        let again = TargetObservation { at: ours(), entry: Some(target("/k/t", false, false)), others: Vec::new() };
        assert_eq!(publish(&id(), &target_wanted(false, true), &again).expect("a repeat"), PublishAction::Nothing);
    }

    #[test]
    fn a_device_is_protected_for_all_its_targets_or_for_none() {
        let others = [target("/k/other", true, true)];
        assert!(protection(&id(), &target_wanted(true, false), &others).is_ok());
        assert!(matches!(protection(&id(), &target_wanted(false, false), &others), Err(Error::InUse { .. })));
        assert!(protection(&id(), &target_wanted(false, false), &[]).is_ok());
    }
}

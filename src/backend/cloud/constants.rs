//! What is constant in a cloud, declared by it: how a repeated request is recognised, how long its descriptions may be out of date, and
//! how much one request takes.

use std::time::Duration;

/// By what the repeat of a request that makes something is recognised, so that it makes no second one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Idempotency {
    /// The caller chooses the name ([`super::DiskSpec::key`]), and a place has no two resources of one name: the repeat is refused
    /// ([`super::CloudErrorKind::Exists`]). The name is free again once its resource is deleted (Compute Engine, Azure).
    UniqueName,
    /// A token goes with the request, and the repeat is answered with what the first one made. It is used up for ever (EC2's volumes).
    Token,
    /// By nothing: what is to be made is looked for by its metadata first (Cinder, EC2's snapshots).
    FindFirst,
}

/// How long a description may be out of date, and how long something takes that takes its usual time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Consistency {
    /// After this long a description is taken for true.
    pub settled: Duration,
    /// How long something that must be there is waited for, until it is shown.
    pub shown: Duration,
    /// How long after a process first acts what one before it did is taken not to be shown yet.
    pub startup_grace: Duration,
    /// After this long in one state, an attachment is stuck.
    pub stuck: Duration,
}

/// The most of what one request takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batches {
    /// Whether a look-up sends a request for each id or name all the same, as many at a time: then nobody waits long for others.
    pub one_by_one: bool,
    /// Ids of disks, of snapshots, of machines.
    pub ids: usize,
    /// Values of one tag, or names.
    pub values: usize,
    /// Disks that one request attaches to a machine, or detaches from it.
    pub attachments: usize,
}

/// What a cloud tells of operations that it still works on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationVisibility {
    /// It has none.
    None,
    /// By id and by disk ([`super::Cloud::operations`]).
    Listed,
    /// So, too; and those that are in the way of others show in the description of their disk: one that shows none is not asked about again.
    Described,
}

/// What is constant in a cloud.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CloudConstants {
    pub disks: Idempotency,
    pub snapshots: Idempotency,
    pub consistency: Consistency,
    pub batches: Batches,
    pub operations: OperationVisibility,
    /// Whether a disk that was used may be reported as one that could not be made: its first attachment is noted in its tag then, whatever
    /// it was made of.
    pub failed_may_have_data: bool,
    /// Whether a machine is shown which disk a device is. Where it is not, the node compares what the device is with what publish_context
    /// says of the disk.
    pub shows_identity: bool,
    /// The longest value of a tag, in characters; what is longer is cut into several tags.
    pub longest_value: usize,
}

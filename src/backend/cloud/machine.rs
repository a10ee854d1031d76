//! What becomes of a disk on a machine, by the state of the machine.

/// The state of a machine that exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MachineState {
    /// It runs, or is starting.
    Running,
    /// It does not run, and may again on the same host, or anywhere, with its disks.
    Stopped,
    /// It has no host (Azure), and its disks are still reserved for it.
    Deallocated,
    /// Its memory is kept, and with it what it has not written yet.
    Hibernated,
    /// The cloud could not bring it into the state that it should have: its description may not be what is.
    Failed,
    /// With it go its attachments.
    BeingDeleted,
}

/// How a disk is detached from a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DetachRule {
    /// By a request, and it is detached once it is not shown there any more.
    Request,
    /// Not by a request: the deletion of the machine does it, which is waited for.
    Wait,
    /// It stays: what to do, for people.
    Refuse(&'static str),
    /// It is detached, whatever its description says.
    Detached,
}

/// `None` is a machine that does not exist, or is terminated, by the cloud's complete answer.
const RULES: [(Option<MachineState>, DetachRule); 7] = [
    (Some(MachineState::Running), DetachRule::Request),
    (Some(MachineState::Stopped), DetachRule::Request),
    (Some(MachineState::Deallocated), DetachRule::Request),
    (Some(MachineState::Hibernated), DetachRule::Refuse("it is hibernated; start it, or stop it without hibernation")),
    (Some(MachineState::Failed), DetachRule::Request),
    (Some(MachineState::BeingDeleted), DetachRule::Wait),
    (None, DetachRule::Detached),
];

pub(super) fn detach_rule(state: Option<MachineState>) -> DetachRule {
    RULES.iter().find(|(of, _)| *of == state).map_or(DetachRule::Request, |(_, rule)| *rule)
}

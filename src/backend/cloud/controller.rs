//! The controller's half of a backend: its cloud, and what this process remembers. What it can is in a file for each capability.

use std::sync::{Arc, OnceLock};

use super::api::Cloud;
use super::attachment_history::AttachmentHistory;
use super::changes::Changes;
use super::clock::Clock;
use super::constants::CloudConstants;
use super::device_names::DeviceNames;
use super::lists::Lists;
use super::memory::RecentOperations;
use super::policy::Policy;
use super::pollers::Pollers;
use super::probe::LastProbe;
use super::tags::Owner;

pub(super) struct Controller {
    pub owner: Owner,
    pub policy: Arc<dyn Policy>,
    pub cloud: Arc<dyn Cloud>,
    /// The cloud's.
    pub constants: CloudConstants,
    pub clock: Clock,
    pub pollers: Pollers,
    pub memory: RecentOperations,
    pub history: AttachmentHistory,
    pub nodes: DeviceNames,
    pub changes: Changes,
    pub lists: Lists,
    pub probed: LastProbe,
    /// They do not change while a process lives.
    pub zones: OnceLock<Vec<String>>,
}

impl Controller {
    pub fn new(owner: Owner, policy: Arc<dyn Policy>, cloud: Arc<dyn Cloud>, clock: Clock) -> Controller {
        let constants = cloud.constants();
        Controller {
            owner,
            policy,
            constants,
            clock,
            pollers: Pollers::new(&cloud, clock),
            memory: RecentOperations::new(clock, constants),
            history: AttachmentHistory::new(clock, constants.consistency.settled),
            nodes: DeviceNames::default(),
            changes: Changes::new(clock),
            lists: Lists::default(),
            probed: LastProbe::default(),
            zones: OnceLock::new(),
            cloud,
        }
    }
}

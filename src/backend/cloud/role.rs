//! What a process does with a cloud.

use crate::backend::configuration::Purpose;

/// What this process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Role {
    /// It makes volumes and attaches them: it asks the API.
    pub provision: bool,
    /// It connects them: it is a machine of the cloud.
    pub connect: bool,
}

impl Role {
    pub fn of(purpose: Purpose) -> Role {
        match purpose {
            Purpose::Serve { controller, node } => Role { provision: controller, connect: node },
            Purpose::Inspect => Role { provision: false, connect: false },
            Purpose::Compare => Role { provision: true, connect: false },
        }
    }
}

//! What a server that gives no answer means.

use crate::os;

/// Why a server does not give what it should.
#[derive(Clone, Debug)]
pub enum Silence {
    Dead(String),
    /// ESTALE.
    Stale(String),
}

impl From<os::Error> for Silence {
    fn from(error: os::Error) -> Silence {
        match error.errno() {
            Some(libc::ESTALE) => Silence::Stale(error.to_string()),
            _ => Silence::Dead(error.to_string()),
        }
    }
}

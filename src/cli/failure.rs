//! Why a command fails, and the exit code that says so.

use std::io;
use std::path::PathBuf;

use tonic::Code;

use crate::config::ConfigError;
use crate::volume;

use super::codes::{code_name, may_still_run};

/// Why the program ends with something else than 0.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("{0}")]
    Usage(String),
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("cannot read {}: {source}", path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    #[error("{endpoint} cannot be reached: {reason}; is `longshore serve` running there, and may you write to its socket?")]
    Unreachable { endpoint: String, reason: String },
    /// The driver's answer.
    #[error("{}: {message}", code_name(*code))]
    Call { code: Code, message: String },
    /// What Probe found.
    #[error("not ready: it starts or stops, or none of its backends can be used; its log and /readyz name the cause")]
    NotReady,
    #[error("cannot {step}: {source}")]
    Serve { step: &'static str, source: Box<dyn std::error::Error + Send + Sync> },
    #[error("cannot make the directory {}: {source}", path.display())]
    Directory { path: PathBuf, source: io::Error },
    /// The node, or a part of it, cannot be looked at or repaired.
    #[error(transparent)]
    Node(#[from] volume::Error),
    /// What the driver ends without having seen.
    #[cfg(feature = "cloud")]
    #[error("{0}")]
    PreStop(String),
    /// There is no API server to speak to.
    #[cfg(feature = "cloud")]
    #[error("{0}")]
    Api(String),
    #[error("cannot write the output: {0}")]
    Output(io::Error),
}

impl Failure {
    /// As `longshore --help` documents them.
    pub fn exit_code(&self) -> u8 {
        match self {
            #[cfg(feature = "cloud")]
            Failure::PreStop(_) => 1,
            #[cfg(feature = "cloud")]
            Failure::Api(_) => 3,
            Failure::NotReady => 4,
            Failure::Call { code, .. } if may_still_run(*code) => 4,
            Failure::Call { .. } | Failure::Serve { .. } | Failure::Directory { .. } | Failure::Output(_) => 1,
            Failure::Usage(_) | Failure::Config(_) | Failure::Unreadable { .. } => 2,
            Failure::Node(volume::Error::Invalid { .. }) => 2,
            Failure::Node(volume::Error::InUse { .. }) => 4,
            Failure::Unreachable { .. } | Failure::Node(_) => 3,
        }
    }

    /// What to do, where the message does not say it.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Failure::Call { code, .. } if may_still_run(*code) => {
                Some("this is not final: it may still be running or have left something behind; repeat the same call")
            }
            Failure::Call { code: Code::Unimplemented, .. } => {
                Some("see `longshore call get-plugin-capabilities` for what this driver serves")
            }
            _ => None,
        }
    }
}

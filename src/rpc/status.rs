//! The one place where a gRPC code is chosen.
//!
//! The sidecars and the kubelet read some codes as "it may still be running" and keep the undo pending, all others as
//! "it is over". [`code`] maps every [`Error`] to one code; [`is_final`] says how the CO will read it.

use tonic::{Code, Status};

use super::cut;
use super::method::Rpc;
use crate::volume::error::chain;
use crate::volume::{Error, Rollback};

/// The longest message in bytes. It travels in an HTTP header, percent-encoded: clients cap the sum of those.
const LONGEST_MESSAGE: usize = 2048;

/// The status for the caller of `rpc`.
pub fn status(rpc: Rpc, error: &Error) -> Status {
    build(code(rpc, error), chain(error))
}

/// For an RPC that no configured backend offers, or that this process does not serve.
pub(super) fn not_offered(rpc: Rpc) -> Status {
    let message = format!("{} is not offered: no configured backend can do it; see the capabilities", rpc.name());
    build(Code::Unimplemented, message)
}

/// For the log only: the caller is gone.
pub(super) fn client_gone() -> Status {
    build(Code::Cancelled, "the client went away, or took nothing for too long".to_owned())
}

#[allow(clippy::disallowed_methods, reason = "this is the one place that chooses a code")]
fn build(code: Code, mut message: String) -> Status {
    if message.len() > LONGEST_MESSAGE {
        message = format!("{} ...", cut(&message, LONGEST_MESSAGE));
    }
    Status::new(code, message)
}

/// The code for `error` in the answer to `rpc`.
pub fn code(rpc: Rpc, error: &Error) -> Code {
    match error {
        Error::Invalid { .. } => Code::InvalidArgument,
        Error::OutOfRange { .. } => Code::OutOfRange,
        Error::NotFound { .. } => Code::NotFound,
        Error::Conflict { .. } => Code::AlreadyExists,
        Error::InUse { .. } | Error::WrongNode { .. } | Error::NotStaged { .. } | Error::Unverified { .. } => {
            Code::FailedPrecondition
        }
        Error::NodeFull { .. } | Error::NoCapacity { .. } => Code::ResourceExhausted,
        Error::Busy { .. } | Error::InvalidPageToken { .. } => Code::Aborted,
        Error::InProgress { .. } => Code::DeadlineExceeded,
        // Probe has a code of its own for "not healthy" (CSI spec, "Probe Errors").
        Error::BackendUnavailable { .. } | Error::Throttled { .. } if rpc == Rpc::Probe => Code::FailedPrecondition,
        Error::BackendUnavailable { .. } | Error::Stale { .. } | Error::Throttled { .. } | Error::StillInUse { .. } => {
            Code::Unavailable
        }
        Error::Denied { .. } => Code::PermissionDenied,
        Error::Unsupported { .. } => rpc.unsupported(),
        Error::Failed { rollback: Rollback::Verified, .. } => Code::Internal,
        Error::Failed { rollback: Rollback::Unknown | Rollback::Incomplete(_), .. } => Code::Unavailable,
    }
}

/// As gRPC's Go library prints it (google.golang.org/grpc/codes, code_string.go): so the sidecars' metrics have it.
pub(super) const fn name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "Canceled",
        Code::Unknown => "Unknown",
        Code::InvalidArgument => "InvalidArgument",
        Code::DeadlineExceeded => "DeadlineExceeded",
        Code::NotFound => "NotFound",
        Code::AlreadyExists => "AlreadyExists",
        Code::PermissionDenied => "PermissionDenied",
        Code::ResourceExhausted => "ResourceExhausted",
        Code::FailedPrecondition => "FailedPrecondition",
        Code::Aborted => "Aborted",
        Code::OutOfRange => "OutOfRange",
        Code::Unimplemented => "Unimplemented",
        Code::Internal => "Internal",
        Code::Unavailable => "Unavailable",
        Code::DataLoss => "DataLoss",
        Code::Unauthenticated => "Unauthenticated",
    }
}

/// Whether the CO takes `code` as the end of the matter. One that is not final keeps it trying, or undoing.
pub fn is_final(rpc: Rpc, code: Code) -> bool {
    match code {
        Code::Cancelled | Code::DeadlineExceeded | Code::Unavailable | Code::Aborted => false,
        // The provisioner takes it as final, so that another place may be tried; the others do not.
        Code::ResourceExhausted => rpc == Rpc::CreateVolume,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::time::Duration;

    use super::*;

    /// One of each variant, with the code that the design's table gives it and whether that is final for a node's RPC.
    fn table() -> Vec<(Error, Code, bool)> {
        let text = || "x".to_owned();
        let failed = || Error::failed("mkfs", "/dev/loop3", io::Error::other("no answer"));
        vec![
            (Error::invalid("name", "is required"), Code::InvalidArgument, true),
            (Error::OutOfRange { field: "capacity_range", reason: text() }, Code::OutOfRange, true),
            (Error::NotFound { kind: "volume", id: text() }, Code::NotFound, true),
            (Error::Conflict { object: text(), existing: text(), wanted: text() }, Code::AlreadyExists, true),
            (Error::InUse { object: text(), by: text() }, Code::FailedPrecondition, true),
            (Error::WrongNode { object: text(), reason: text() }, Code::FailedPrecondition, true),
            (Error::NotStaged { volume: text(), reason: text() }, Code::FailedPrecondition, true),
            (Error::NodeFull { node: text(), reason: text() }, Code::ResourceExhausted, false),
            (Error::NoCapacity { place: text(), reason: text() }, Code::ResourceExhausted, false),
            (
                Error::Busy { object: text(), operation: "stage", step: text(), since: Duration::from_secs(3) },
                Code::Aborted,
                false,
            ),
            (Error::InvalidPageToken { token: text() }, Code::Aborted, false),
            (Error::InProgress { object: text(), reason: text() }, Code::DeadlineExceeded, false),
            (Error::BackendUnavailable { backend: text(), reason: text() }, Code::Unavailable, false),
            (Error::Stale { object: text(), reason: text() }, Code::Unavailable, false),
            (Error::Throttled { backend: text(), reason: text() }, Code::Unavailable, false),
            (Error::StillInUse { object: text(), by: text() }, Code::Unavailable, false),
            (Error::Denied { object: text(), reason: text() }, Code::PermissionDenied, true),
            (Error::Unsupported { what: text(), reason: text() }, Code::FailedPrecondition, true),
            (Error::Unverified { device: text(), reason: text() }, Code::FailedPrecondition, true),
            (failed().rolled_back(), Code::Internal, true),
            (failed().leaving("a loop device"), Code::Unavailable, false),
            (failed().leaving("a loop device").rolled_back(), Code::Unavailable, false),
            (failed(), Code::Unavailable, false),
        ]
    }

    #[test]
    fn every_error_has_its_code_and_its_finality() {
        for (error, expected, is_over) in table() {
            assert_eq!(code(Rpc::NodeStageVolume, &error), expected, "{error}");
            assert_eq!(is_final(Rpc::NodeStageVolume, expected), is_over, "{error}");
        }
    }

    #[test]
    fn error_with_unknown_rollback_is_final_in_no_rpc() {
        let error = Error::failed("mkfs", "/dev/loop3", io::Error::other("no answer"));
        for rpc in Rpc::ALL {
            assert!(!is_final(*rpc, code(*rpc, &error)), "{}", rpc.name());
        }
    }

    #[test]
    fn unsupported_and_down_and_full_depend_on_the_rpc() {
        let unsupported = Error::Unsupported { what: "snapshots".to_owned(), reason: "no reflinks".to_owned() };
        for (rpc, expected) in [
            (Rpc::CreateVolume, Code::InvalidArgument),
            (Rpc::ControllerModifyVolume, Code::InvalidArgument),
            (Rpc::NodePublishVolume, Code::FailedPrecondition),
            (Rpc::CreateVolumeGroupSnapshot, Code::FailedPrecondition),
            (Rpc::DeleteSnapshot, Code::Unimplemented),
        ] {
            assert_eq!(code(rpc, &unsupported), expected, "{}", rpc.name());
        }
        let down = Error::BackendUnavailable { backend: "local".to_owned(), reason: "the pool is gone".to_owned() };
        assert_eq!(code(Rpc::Probe, &down), Code::FailedPrecondition);
        assert!(is_final(Rpc::CreateVolume, Code::ResourceExhausted));
    }

    #[test]
    fn a_long_message_is_cut_between_characters() {
        let error = Error::invalid("name", "ü".repeat(4000));
        let status = status(Rpc::CreateVolume, &error);
        assert!(status.message().len() <= LONGEST_MESSAGE + 4, "{}", status.message().len());
        assert!(status.message().ends_with(" ..."));
    }

    #[test]
    fn the_message_is_the_whole_chain_of_causes() {
        let error = Error::failed("mkfs", "/dev/loop3", io::Error::other("no answer"));
        let status = status(Rpc::NodeStageVolume, &error);
        assert!(status.message().contains("mkfs") && status.message().contains("no answer"), "{}", status.message());
    }
}

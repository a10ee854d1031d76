//! What a refusal means: by its status, and its text where one status has several meanings (Cinder has no codes).
//!
//! The texts are those of cinder/exception.py, cinder/volume/api.py and nova/exception.py.

use crate::backend::cloud::CloudErrorKind::{self, *};

/// `action` is the request's, `message` the service's words.
pub(super) fn because(action: &str, status: u16, message: &str) -> CloudErrorKind {
    let names = |part: &str| message.contains(part);
    match status {
        401 => Denied,
        // `OverQuota`: 413 is the answer of Cinder's quotas, and of what limits rates before it.
        413 if names("quota") || names("exceeds") || names("Maximum number of") => Quota,
        413 | 429 => Throttled,
        403 if names("disk devices") => InstanceFull,
        403 if names("uota") => Quota,
        403 => Denied,
        404 => missing(action, message),
        400 | 409 => refused(action, status, message),
        500.. => Unavailable,
        _ => Other,
    }
}

/// What does not exist. What is none of these, such as a service or a project, says nothing of a volume.
fn missing(action: &str, message: &str) -> CloudErrorKind {
    let is = |kind: &str| message.starts_with(kind);
    if is("Volume type") {
        return Invalid;
    }
    if is("Instance") && message.contains("is not attached") || is("volume_id not found") || is("Volume attachment") {
        return NotAttached;
    }
    if message.contains("could not be found") && is("Instance") {
        return NoInstance;
    }
    if message.contains("could not be found") && (is("Volume") || is("Snapshot") || is("Backup")) && action != "list volumes" {
        return NotFound;
    }
    Other
}

fn refused(action: &str, status: u16, message: &str) -> CloudErrorKind {
    let names = |part: &str| message.contains(part);
    match action {
        "attach volume" if status == 409 => TooSoon,
        "attach volume" if names("multiattach") || names("availability_zone") => Invalid,
        "attach volume" if names("tatus must be") || names("already attached") || names("in-use") || names("InvalidVolume") => {
            InUse
        }
        // What the state of the machine may explain, or the volume's own.
        "detach volume" | "delete attachment" => InUse,
        "delete backup" if names("tatus must be") => TooSoon,
        "delete volume" | "delete snapshot" | "delete backup" => InUse,
        // While another volume is made of it.
        "create volume" if names("Originating backup status") => TooSoon,
        "create backup" if names("must be available") => TooSoon,
        "extend volume" | "retype volume" | "create snapshot" if names("tatus must be") || names("status is") => TooSoon,
        "extend volume" if names("must be greater") => TooSoon,
        "retype volume" if names("Retype needs volume to be in") => TooSoon,
        _ if names("No valid host") || names("No valid backend") || names("No storage") => NoCapacity,
        _ if status == 400 => Invalid,
        _ => Other,
    }
}

/// What a message about a request that was accepted means.
pub(super) fn because_later(message: &str) -> CloudErrorKind {
    let names = |part: &str| message.contains(part);
    match message {
        _ if names("weighted backend") || names("No valid") || names("no space") || names("capacity") => NoCapacity,
        _ if names("quota") => Quota,
        _ => Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_refusal_has_its_kind() {
        for (action, status, message, expected) in [
            ("show volume", 404, "Volume 1 could not be found.", NotFound),
            ("show snapshot", 404, "Snapshot 1 could not be found.", NotFound),
            ("show server", 404, "Instance 1 could not be found.", NoInstance),
            ("attach volume", 404, "Volume 1 could not be found.", NotFound),
            ("detach volume", 404, "Instance 1 is not attached to volume 2", NotAttached),
            ("detach volume", 404, "volume_id not found: 2", NotAttached),
            // Nothing is said of a volume.
            ("show volume", 404, "The resource could not be found.", Other),
            ("show volume", 404, "", Other),
            ("list volumes", 404, "Volume 1 could not be found.", Other),
            ("create volume", 404, "Volume type with name x could not be found.", Invalid),
            ("create volume", 404, "Snapshot 1 could not be found.", NotFound),
            (
                "create volume",
                413,
                "VolumeLimitExceeded: Maximum number of volumes allowed (10) exceeded for quota 'volumes'.",
                Quota,
            ),
            (
                "create volume",
                413,
                "VolumeSizeExceedsAvailableQuota: Requested volume or snapshot exceeds allowed gigabytes quota.",
                Quota,
            ),
            ("create volume", 413, "This request was rate-limited.", Throttled),
            ("create volume", 429, "Too many requests", Throttled),
            (
                "attach volume",
                403,
                "The maximum allowed number of disk devices (1) to attach to a single instance has been exceeded.",
                InstanceFull,
            ),
            ("create volume", 403, "Policy doesn't allow volume:create to be performed.", Denied),
            ("create volume", 401, "The request you have made requires authentication.", Denied),
            ("attach volume", 400, "Invalid volume: volume '1' status must be 'available'. Currently in 'in-use'", InUse),
            ("attach volume", 400, "Invalid volume: Volume 1 is already attached to instance 2", InUse),
            ("attach volume", 400, "Invalid volume: Instance 1 and volume 2 are not in the same availability_zone.", Invalid),
            ("attach volume", 409, "Cannot 'attach_volume' instance 1 while it is in task_state rebooting", TooSoon),
            ("detach volume", 400, "Invalid volume: Unable to detach volume. Volume status must be 'in-use'", InUse),
            ("detach volume", 409, "Cannot 'detach_volume' instance 1 while it is in vm_state suspended", InUse),
            ("delete volume", 400, "Invalid volume: Volume status must be available or error or have snapshots", InUse),
            (
                "extend volume",
                400,
                "Invalid volume: Volume 1 status must be '{'status': 'in-use'}' to extend, currently extending.",
                TooSoon,
            ),
            (
                "retype volume",
                400,
                "Invalid volume: Retype needs volume to be in available or in-use state, not be part of",
                TooSoon,
            ),
            ("create volume", 400, "Invalid input received: Volume size must be greater than snapshot's", Invalid),
            ("show backup", 404, "Backup 1 could not be found.", NotFound),
            ("create volume", 404, "Backup 1 could not be found.", NotFound),
            (
                "create volume",
                400,
                "Invalid input received: Originating backup status must be one of 'available' values",
                TooSoon,
            ),
            (
                "create backup",
                400,
                "Invalid snapshot: Snapshot to be backed up must be available, but the current status is \"backing-up\".",
                TooSoon,
            ),
            ("create backup", 413, "BackupLimitExceeded: Maximum number of backups allowed (10) exceeded", Quota),
            ("delete backup", 400, "Invalid backup: Backup status must be available or error", TooSoon),
            ("delete backup", 400, "Invalid backup: Incremental backups exist for this backup.", InUse),
            ("create volume", 503, "", Unavailable),
            ("create volume", 409, "something new", Other),
        ] {
            assert_eq!(because(action, status, message), expected, "{action} {status} {message}");
        }
        assert_eq!(because_later("schedule allocate volume:Could not find any available weighted backend."), NoCapacity);
        assert_eq!(because_later("create volume:Driver failed."), Other);
    }
}

//! What the API's refusals mean, and the errors of its operations.
//!
//! A request that is refused has a `reason` (`quotaExceeded`), an operation that failed a code (`QUOTA_EXCEEDED`): the same word in two
//! spellings, mostly. Of a few only the text says which of several causes it is.

use crate::backend::cloud::CloudErrorKind::{self, *};

/// In the spelling of operations. What is not here is `Other`, or `Unavailable` with a status of 500 and above.
const CODES: &[(&str, CloudErrorKind)] = &[
    ("ACCESS_NOT_CONFIGURED", Denied),
    ("ALREADY_EXISTS", Exists),
    ("AUTH_ERROR", Denied),
    ("BACKEND_ERROR", Unavailable),
    ("BAD_REQUEST", Invalid),
    // A fingerprint that is out of date: another program changed the labels.
    ("CONDITION_NOT_MET", TooSoon),
    ("FORBIDDEN", Denied),
    ("INSUFFICIENT_PERMISSIONS", Denied),
    ("INTERNAL_ERROR", Unavailable),
    ("INVALID", Invalid),
    ("INVALID_FIELD_VALUE", Invalid),
    ("INVALID_PARAMETER", Invalid),
    ("INVALID_USAGE", Invalid),
    ("PERMISSIONS_ERROR", Denied),
    ("QUOTA_EXCEEDED", Quota),
    ("RATE_LIMIT_EXCEEDED", Throttled),
    ("REGION_QUOTA_EXCEEDED", Quota),
    ("REQUIRED", Invalid),
    ("RESOURCE_ALREADY_EXISTS", Exists),
    ("RESOURCE_IN_USE", InUse),
    ("RESOURCE_IN_USE_BY_ANOTHER_RESOURCE", InUse),
    ("RESOURCE_NOT_READY", TooSoon),
    // Of one disk: its snapshots, or changes of its size and rates, come too soon one after the other.
    ("RESOURCE_OPERATION_RATE_EXCEEDED", TooSoon),
    ("SERVICE_UNAVAILABLE", Unavailable),
    ("STOCKOUT", NoCapacity),
    ("UNSUPPORTED_OPERATION", Invalid),
    ("USER_RATE_LIMIT_EXCEEDED", Throttled),
    ("WOULD_EXCEED_QUOTA", Quota),
    ("ZONE_RESOURCE_POOL_EXHAUSTED", NoCapacity),
    ("ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", NoCapacity),
];

/// What a refusal means: `code` is the reason of a response, or the code of an operation; `status` is HTTP's, 0 where there is none.
pub(super) fn because(action: &str, code: &str, message: &str, status: u16) -> CloudErrorKind {
    let code = constant(code);
    let names = |part: &str| message.contains(part);
    match code.as_str() {
        "NOT_FOUND" | "RESOURCE_NOT_FOUND" => missing(message),
        // Each instance has a queue of some 32 operations (gcp-compute-persistent-disk-csi-driver issue 1129): it says nothing of the quota
        // of requests, which has the same code.
        "RATE_LIMIT_EXCEEDED" | "USER_RATE_LIMIT_EXCEEDED" if names("pending operations") => TooSoon,
        // (gcp-compute-persistent-disk-csi-driver issue 1819)
        "UNSUPPORTED_OPERATION" | "INVALID" | "INVALID_USAGE" if names("Maximum") && names("disks count") => InstanceFull,
        _ if action == "instances.detachDisk" && names("No attached disk found") => NotAttached,
        // What the state of the machine explains.
        "RESOURCE_NOT_READY" if action == "instances.detachDisk" => InUse,
        "INVALID" | "BAD_REQUEST" | "FORBIDDEN" if names("Cloud KMS") || names("kmsKey") || names("cryptoKeys") => Key,
        code => match CODES.iter().find(|(listed, _)| *listed == code) {
            Some((_, because)) => *because,
            None if status == 429 => Throttled,
            None if status == 401 || status == 403 => Denied,
            None if status == 412 => TooSoon,
            None if status >= 500 => Unavailable,
            None => Other,
        },
    }
}

/// What does not exist, by the last resource that the message names: a project or a zone that is not there says nothing of a disk.
fn missing(message: &str) -> CloudErrorKind {
    let resource = message.split('\'').nth(1).unwrap_or(message);
    let mut parts = resource.rsplit('/');
    match (parts.next(), parts.next()) {
        (Some(_), Some("disks" | "snapshots" | "images" | "operations")) => NotFound,
        (Some(_), Some("instances")) => NoInstance,
        _ => Other,
    }
}

/// `quotaExceeded` is `QUOTA_EXCEEDED`.
fn constant(code: &str) -> String {
    if !code.chars().any(|letter| letter.is_ascii_lowercase()) {
        return code.to_owned();
    }
    let parts = code.chars().map(|letter| if letter.is_ascii_uppercase() { format!("_{letter}") } else { letter.to_string() });
    parts.collect::<String>().to_ascii_uppercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: &str = "Exceeded limit 'maximum_persistent_disks' on resource 'vm'. Maximum attached persistent disks count should be less than \
                        or equal to [16].";

    #[test]
    fn each_code_has_its_kind() {
        for (action, code, message, status, expected) in [
            ("disks.get", "notFound", "The resource 'projects/p/zones/z/disks/1' was not found", 404, NotFound),
            ("snapshots.get", "notFound", "The resource 'projects/p/global/snapshots/1' was not found", 404, NotFound),
            ("images.get", "notFound", "The resource 'projects/p/global/images/1' was not found", 404, NotFound),
            ("instances.get", "notFound", "The resource 'projects/p/zones/z/instances/i' was not found", 404, NoInstance),
            (
                "instances.attachDisk",
                "RESOURCE_NOT_FOUND",
                "The resource 'projects/p/zones/z/disks/d' was not found",
                0,
                NotFound,
            ),
            // Nothing is said of a disk.
            ("disks.get", "notFound", "The resource 'projects/p' was not found", 404, Other),
            ("disks.get", "notFound", "The resource 'projects/p/zones/z' was not found", 404, Other),
            ("disks.get", "notFound", "", 404, Other),
            ("disks.insert", "alreadyExists", "", 409, Exists),
            ("disks.insert", "RESOURCE_ALREADY_EXISTS", "", 0, Exists),
            ("disks.delete", "resourceInUseByAnotherResource", "", 400, InUse),
            ("instances.attachDisk", "RESOURCE_IN_USE_BY_ANOTHER_RESOURCE", "", 0, InUse),
            ("disks.insert", "quotaExceeded", "", 403, Quota),
            ("disks.insert", "QUOTA_EXCEEDED", "", 0, Quota),
            ("disks.insert", "REGION_QUOTA_EXCEEDED", "", 0, Quota),
            ("disks.insert", "ZONE_RESOURCE_POOL_EXHAUSTED", "", 0, NoCapacity),
            ("disks.insert", "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", "", 0, NoCapacity),
            ("disks.insert", "rateLimitExceeded", "Quota exceeded for quota metric 'Queries'", 403, Throttled),
            ("disks.insert", "RATE_LIMIT_EXCEEDED", "", 0, Throttled),
            ("instances.attachDisk", "rateLimitExceeded", "Too many pending operations on a resource.", 403, TooSoon),
            ("disks.update", "RESOURCE_OPERATION_RATE_EXCEEDED", "", 0, TooSoon),
            ("disks.delete", "resourceNotReady", "", 400, TooSoon),
            ("instances.detachDisk", "resourceNotReady", "", 400, InUse),
            (
                "disks.setLabels",
                "conditionNotMet",
                "Labels fingerprint either invalid or resource labels have changed",
                412,
                TooSoon,
            ),
            ("instances.attachDisk", "UNSUPPORTED_OPERATION", FULL, 0, InstanceFull),
            ("instances.attachDisk", "UNSUPPORTED_OPERATION", "pd-ssd disk type cannot be used by c4", 0, Invalid),
            ("instances.detachDisk", "invalid", "No attached disk found with device name 'x'", 400, NotAttached),
            ("disks.insert", "INVALID_USAGE", "", 0, Invalid),
            ("disks.insert", "INTERNAL_ERROR", "", 0, Unavailable),
            ("disks.insert", "forbidden", "Required 'compute.disks.create' permission for 'projects/p'", 403, Denied),
            (
                "disks.insert",
                "invalid",
                "Cloud KMS error when using key projects/p/locations/l/keyRings/r/cryptoKeys/k",
                400,
                Key,
            ),
            ("disks.insert", "authError", "Invalid Credentials", 401, Denied),
            ("disks.insert", "backendError", "", 503, Unavailable),
            ("disks.insert", "somethingNew", "", 429, Throttled),
            ("disks.insert", "somethingNew", "", 502, Unavailable),
            ("disks.insert", "somethingNew", "", 400, Other),
        ] {
            assert_eq!(because(action, code, message, status), expected, "{action} {code} {message}");
        }
    }
}

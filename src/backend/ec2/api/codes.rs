//! What EC2's error codes mean ("Error codes for the Amazon EC2 API", and the EBS direct APIs' exceptions).

use crate::backend::cloud::CloudErrorKind::{self, *};

/// A code that ends in `*` stands for all that begin so. What is not here is `Other`, or `Unavailable` with a status of 500 and above.
const CODES: &[(&str, CloudErrorKind)] = &[
    ("InvalidID", NotFound),
    ("InvalidSnapshot.NotFound", NotFound),
    ("InvalidSnapshotID.Malformed", NotFound),
    ("InvalidVolume.NotFound", NotFound),
    ("InvalidVolumeID.Duplicate", Invalid),
    ("InvalidVolumeID.Malformed", NotFound),
    ("InvalidVolumeID.ZoneMismatch", Invalid),
    ("InvalidVolumeModification.NotFound", NotFound),
    ("ResourceNotFoundException", NotFound),
    ("InvalidInstanceID", NoInstance),
    ("InvalidInstanceID.Malformed", NoInstance),
    ("InvalidInstanceID.NotFound", NoInstance),
    ("InvalidInstanceID.NotLinkable", InUse),
    ("InvalidAttachment.NotFound", NotAttached),
    ("IncorrectInstanceState", InUse),
    ("IncorrectState", InUse),
    ("InvalidSnapshot.InUse", InUse),
    ("InvalidState", InUse),
    ("InvalidVolume.InUse", InUse),
    ("VolumeInUse", InUse),
    ("InvalidDevice.InUse", NameTaken),
    ("AttachmentLimitExceeded", InstanceFull),
    ("IdempotentParameterMismatch", OtherParameters),
    // One copy of a volume at a time, five in a region (EBS user guide, "Copy an Amazon EBS volume").
    ("ConcurrentCopyVolumeLimitExceeded", TooSoon),
    ("CopyVolumesLimitExceeded", TooSoon),
    ("ConcurrentSnapshotLimitExceeded", TooSoon),
    ("ConcurrentTagAccess", TooSoon),
    ("IncorrectModificationState", TooSoon),
    ("PendingSnapshotLimitExceeded", TooSoon),
    ("SnapshotCreationPerVolumeRateExceeded", TooSoon),
    ("VolumeModificationRateExceeded", TooSoon),
    ("FastSnapshotRestoreLimitExceeded", Quota),
    ("MaxIOPSLimitExceeded", Quota),
    ("ResourceLimitExceeded", Quota),
    ("ServiceQuotaExceededException", Quota),
    ("SnapshotLimitExceeded", Quota),
    ("TagLimitExceeded", Quota),
    ("VolumeIOPSLimit", Quota),
    ("VolumeLimitExceeded", Quota),
    ("VolumeModificationSizeLimitExceeded", Quota),
    ("VolumeTypeNotAvailableInZone", Invalid),
    ("InsufficientCapacity", NoCapacity),
    ("InsufficientVolumeCapacity", NoCapacity),
    ("InvalidKmsKey*", Key),
    ("KMS*", Key),
    ("KmsKey*", Key),
    ("AccessDenied", Denied),
    ("AccessDeniedException", Denied),
    ("AuthFailure", Denied),
    ("Blocked", Denied),
    ("ExpiredToken", Denied),
    ("ExpiredTokenException", Denied),
    ("IncompleteSignature", Denied),
    ("InvalidAccessKeyId", Denied),
    ("InvalidClientTokenId", Denied),
    ("InvalidSignatureException", Denied),
    ("MissingAuthenticationToken", Denied),
    ("OperationNotPermitted", Denied),
    ("OptInRequired", Denied),
    ("PendingVerification", Denied),
    ("RequestExpired", Denied),
    ("SignatureDoesNotMatch", Denied),
    ("UnauthorizedOperation", Denied),
    ("UnrecognizedClientException", Denied),
    ("DependencyViolation", InUse),
    ("InvalidAction", Invalid),
    ("InvalidAvailabilityZone*", Invalid),
    ("InvalidBlockDeviceMapping", Invalid),
    ("InvalidFilter", Invalid),
    ("InvalidInput", Invalid),
    ("InvalidNextToken", Invalid),
    ("InvalidPaginationToken", Invalid),
    ("InvalidParameter", Invalid),
    ("InvalidParameterCombination", Invalid),
    ("InvalidParameterDependency", Invalid),
    ("InvalidParameterValue", Invalid),
    ("InvalidQueryParameter", Invalid),
    ("InvalidRequest", Invalid),
    ("InvalidTagKey*", Invalid),
    ("InvalidVolume.ZoneMismatch", Invalid),
    ("InvalidZone.NotFound", Invalid),
    ("MalformedQueryString", Invalid),
    ("MissingAction", Invalid),
    ("MissingParameter", Invalid),
    ("UnknownParameter", Invalid),
    ("UnknownVolumeType.Unsupported", Invalid),
    ("Unsupported", Invalid),
    ("UnsupportedHostConfiguration", Invalid),
    ("UnsupportedInstanceAttribute", Invalid),
    ("UnsupportedOperation", Invalid),
    ("UnsupportedOperationException", Invalid),
    ("ValidationError", Invalid),
    ("ValidationException", Invalid),
    ("BandwidthLimitExceeded", Throttled),
    ("EC2ThrottledException", Throttled),
    ("RequestLimitExceeded", Throttled),
    ("RequestThrottled", Throttled),
    ("RequestThrottledException", Throttled),
    ("ThrottledException", Throttled),
    ("Throttling", Throttled),
    ("ThrottlingException", Throttled),
    ("TooManyRequestsException", Throttled),
    ("InternalError", Unavailable),
    ("InternalFailure", Unavailable),
    ("InternalServerException", Unavailable),
    ("RequestTimeout", Unavailable),
    ("ServerInternal", Unavailable),
    ("ServiceUnavailable", Unavailable),
    ("ServiceUnavailableException", Unavailable),
    ("Unavailable", Unavailable),
];

/// What a refusal of `action` means. EC2 uses a few codes for several things, which only the message tells apart.
pub(super) fn because(action: &str, code: &str, message: &str, status: u16) -> CloudErrorKind {
    let listed = |entry: &&(&str, CloudErrorKind)| match entry.0.strip_suffix('*') {
        Some(start) => code.starts_with(start),
        None => code == entry.0,
    };
    match (action, code) {
        ("AttachVolume", "InvalidParameterValue") if message.contains("already in use") => NameTaken,
        ("DetachVolume", "IncorrectState") if message.contains("'available'") => NotAttached,
        (_, "IncorrectInstanceState" | "IncorrectState")
            if ["terminated", "shutting-down"].iter().any(|s| message.contains(s)) =>
        {
            NoInstance
        }
        // "The client token you have provided is associated with a resource that is already deleted." (aws-ebs-csi-driver issue 3010,
        // crossplane-contrib/provider-aws issue 1858): also what a volume leaves behind whose key could not be used.
        (_, "IdempotentParameterMismatch") if message.contains("already deleted") => TokenSpent,
        // An id that cannot be is of nothing.
        (_, "InvalidParameterValue") if message.contains("Expected: 'i-") => NoInstance,
        (_, "InvalidParameterValue") if ["Expected: 'vol-", "Expected: 'snap-"].iter().any(|s| message.contains(s)) => NotFound,
        _ => match CODES.iter().find(listed) {
            Some((_, because)) => *because,
            None if status == 429 => Throttled,
            None if status >= 500 => Unavailable,
            None => Other,
        },
    }
}

/// Whether other credentials could be answered otherwise.
pub(super) fn credentials_refused(code: &str) -> bool {
    matches!(
        code,
        "AuthFailure"
            | "ExpiredToken"
            | "ExpiredTokenException"
            | "InvalidAccessKeyId"
            | "InvalidClientTokenId"
            | "InvalidSignatureException"
            | "RequestExpired"
            | "SignatureDoesNotMatch"
            | "UnrecognizedClientException"
    )
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_code_is_listed_once_and_found() {
        let codes: BTreeSet<&str> = CODES.iter().map(|(code, _)| *code).collect();
        assert_eq!(codes.len(), CODES.len());
        for (code, expected) in CODES {
            assert_eq!(because("DeleteSnapshot", &code.replace('*', ".Something"), "", 400), *expected, "{code}");
            // The code decides, whatever the status.
            assert_eq!(because("DeleteSnapshot", &code.replace('*', ""), "", 503), *expected, "{code}");
        }
    }

    /// With EC2's own messages.
    #[test]
    fn the_codes_that_matter_mean_what_ec2_says() {
        for (action, code, message, expected) in [
            ("DescribeVolumes", "InvalidVolume.NotFound", "The volume 'vol-1' does not exist.", NotFound),
            ("AttachVolume", "InvalidVolume.NotFound", "The volume 'vol-1' does not exist.", NotFound),
            ("AttachVolume", "InvalidInstanceID.NotFound", "The instance ID 'i-1' does not exist", NoInstance),
            ("AttachVolume", "VolumeInUse", "vol-1 is already attached to an instance", InUse),
            ("AttachVolume", "IncorrectState", "vol-1 is not 'available'.", InUse),
            ("AttachVolume", "IncorrectState", "Instance 'i-1' is not 'running'.", InUse),
            ("AttachVolume", "IncorrectInstanceState", "The instance 'i-1' is 'terminated'.", NoInstance),
            (
                "AttachVolume",
                "InvalidParameterValue",
                "Invalid value '/dev/xvdaa' for unixDevice. Attachment point /dev/xvdaa is already in use",
                NameTaken,
            ),
            ("CreateVolume", "InvalidParameterValue", "Volume iops of 2 is too low; minimum is 100.", Invalid),
            ("DetachVolume", "IncorrectState", "Volume 'vol-1' is in the 'available' state.", NotAttached),
            ("DetachVolume", "IncorrectState", "Volume 'vol-1' is in the 'detaching' state.", InUse),
            ("DetachVolume", "InvalidAttachment.NotFound", "No volume attachment was found.", NotAttached),
            ("DeleteVolume", "VolumeInUse", "Volume vol-1 is currently attached to i-1", InUse),
            ("AttachVolume", "AttachmentLimitExceeded", "", InstanceFull),
            ("AttachVolume", "InvalidVolume.ZoneMismatch", "The volume 'vol-1' is not in the same availability zone", Invalid),
            ("CreateVolume", "VolumeLimitExceeded", "", Quota),
            ("CreateVolume", "MaxIOPSLimitExceeded", "", Quota),
            ("CreateVolume", "InsufficientVolumeCapacity", "", NoCapacity),
            ("CreateVolume", "IdempotentParameterMismatch", "", OtherParameters),
            (
                "CreateVolume",
                "IdempotentParameterMismatch",
                "The client token you have provided is associated with a resource that is already deleted. Please use a different \
                 client token.",
                TokenSpent,
            ),
            ("CreateVolume", "InvalidKmsKey.InvalidState", "", Key),
            ("CreateVolume", "KMSKeyNotAccessibleFault", "", Key),
            ("CreateVolume", "KMS.DisabledException", "", Key),
            ("ModifyVolume", "VolumeModificationRateExceeded", "", TooSoon),
            ("ModifyVolume", "IncorrectModificationState", "", TooSoon),
            ("CreateVolume", "UnauthorizedOperation", "You are not authorized to perform this operation.", Denied),
            ("CreateVolume", "RequestLimitExceeded", "Request limit exceeded.", Throttled),
            ("ListSnapshotBlocks", "RequestThrottledException", "", Throttled),
            ("CreateVolume", "InternalError", "", Unavailable),
            ("CopyVolumes", "CopyVolumesLimitExceeded", "", TooSoon),
            ("CopyVolumes", "InvalidAction", "The action CopyVolumes is not valid for this web service.", Invalid),
            ("CopyVolumes", "UnauthorizedOperation", "You are not authorized to perform this operation.", Denied),
            ("CreateVolume", "SomethingNew", "", Other),
            (
                "DetachVolume",
                "InvalidParameterValue",
                "Value (x) for parameter instanceId is invalid. Expected: 'i-...'.",
                NoInstance,
            ),
            (
                "DescribeVolumes",
                "InvalidParameterValue",
                "Value (x) for parameter volumes is invalid. Expected: 'vol-...'.",
                NotFound,
            ),
        ] {
            assert_eq!(because(action, code, message, 400), expected, "{action} {code} {message}");
        }
        assert_eq!(because("CreateVolume", "SomethingNew", "", 500), Unavailable);
        assert_eq!(because("CreateVolume", "SomethingNew", "", 429), Throttled);
    }
}

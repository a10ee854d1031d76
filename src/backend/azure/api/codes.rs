//! What the API's refusals mean, and the errors of its operations.
//!
//! Some codes stand for several causes (`OperationNotAllowed`, `Conflict`), of which only the text says which it is
//! (cloud-provider-azure, pkg/retry; azuredisk-csi-driver, pkg/azuredisk/azure_controller_common.go).

use crate::backend::cloud::CloudErrorKind::{self, *};

/// What is not here is `Other`, or `Unavailable` with a status of 500 and above.
const CODES: &[(&str, CloudErrorKind)] = &[
    ("AllocationFailed", NoCapacity),
    ("AttachDiskWhileBeingDetached", InUse),
    ("AuthenticationFailed", Denied),
    ("AuthorizationFailed", Denied),
    ("BadRequest", Invalid),
    // Another request to the same resource runs.
    ("Conflict", TooSoon),
    ("ConflictingConcurrentWriteNotAllowed", TooSoon),
    // The disk is another machine's.
    ("ConflictingUserInput", InUse),
    ("DiskEncryptionSetNotFound", Key),
    ("ExpiredAuthenticationToken", Denied),
    ("InternalServerError", Unavailable),
    ("InternalExecutionError", Unavailable),
    ("InternalOperationError", Unavailable),
    ("InvalidAuthenticationToken", Denied),
    ("InvalidParameter", Invalid),
    ("InvalidRequestContent", Invalid),
    ("InvalidResourceName", Invalid),
    ("KeyVaultAccessForbidden", Key),
    ("KeyVaultKeyNotFound", Key),
    ("LinkedAuthorizationFailed", Denied),
    ("OverconstrainedAllocationRequest", NoCapacity),
    ("OverconstrainedZonalAllocationRequest", NoCapacity),
    ("PropertyChangeNotAllowed", Invalid),
    ("QuotaExceeded", Quota),
    ("ResourceRequestsThrottled", Throttled),
    ("RetryableError", Unavailable),
    ("ServiceUnavailable", Unavailable),
    ("SkuNotAvailable", NoCapacity),
    ("SubscriptionRequestsThrottled", Throttled),
    ("TooManyRequests", Throttled),
    ("ZonalAllocationFailed", NoCapacity),
];

/// What a refusal means: `status` is HTTP's, 0 for an operation that failed.
pub(super) fn because(action: &str, code: &str, message: &str, status: u16) -> CloudErrorKind {
    let names = |part: &str| message.to_ascii_lowercase().contains(part);
    let is_of_machine = action.starts_with("virtualMachines.");
    if status == 429 {
        return Throttled;
    }
    match code {
        "ResourceNotFound" | "NotFound" => missing(message),
        // The scale set is gone, with all its machines.
        "ParentResourceNotFound" if is_of_machine => NoInstance,
        // Of a scale set, a machine that was deleted (cloud-provider-azure).
        "InvalidParameter" | "InvalidInstanceId" if is_of_machine && names("instance") && names("not") && names("valid") => {
            NoInstance
        }
        "OperationNotAllowed" | "InvalidParameter" if names("maximum number of data disks") => InstanceFull,
        "OperationNotAllowed" | "Conflict" if names("quota") => Quota,
        "OperationNotAllowed" | "Conflict" | "AttachDiskWhileBeingDetached" if names("attached") && !names("not attached") => {
            InUse
        }
        "InvalidParameter" | "OperationNotAllowed" | "Conflict" if is_of_machine && names("not attached") => NotAttached,
        // A LUN that another disk has.
        "InvalidParameter" | "OperationNotAllowed" | "Conflict" if names("lun") && (names("already") || names("in use")) => {
            NameTaken
        }
        // A size, or a type, that a disk cannot have as it is now.
        "OperationNotAllowed" if !is_of_machine => InUse,
        // What came after it runs in its place: whether it was done nobody says (azuredisk-csi-driver PR 1356).
        "OperationPreempted" => Unavailable,
        code => match CODES.iter().find(|(listed, _)| *listed == code) {
            Some((_, because)) => *because,
            None if status == 401 || status == 403 => Denied,
            None if status == 412 => TooSoon,
            None if status >= 500 => Unavailable,
            None => Other,
        },
    }
}

/// What does not exist, by the resource that the message names: that a resource group is not there says nothing of a disk.
fn missing(message: &str) -> CloudErrorKind {
    let message = message.to_ascii_lowercase();
    let names = |part: &str| message.contains(part);
    if names("/virtualmachines") || names("/virtualmachinescalesets") {
        return NoInstance;
    }
    if names("/diskencryptionsets") {
        return Key;
    }
    if names("/disks") || names("/snapshots") {
        return NotFound;
    }
    Other
}

#[cfg(test)]
mod tests {
    use super::*;

    const NO_DISK: &str = "The Resource 'Microsoft.Compute/disks/d' under resource group 'g' was not found.";
    const NO_VM: &str = "The Resource 'Microsoft.Compute/virtualMachines/vm' under resource group 'g' was not found.";

    #[test]
    fn each_code_has_its_kind() {
        const ATTACH: &str = "virtualMachines.attachDetachDataDisks";
        for (action, code, message, status, expected) in [
            ("disks.get", "ResourceNotFound", NO_DISK, 404, NotFound),
            ("virtualMachines.get", "ResourceNotFound", NO_VM, 404, NoInstance),
            (ATTACH, "ResourceNotFound", NO_DISK, 404, NotFound),
            (ATTACH, "ParentResourceNotFound", "", 404, NoInstance),
            (
                ATTACH,
                "InvalidParameter",
                "The provided instanceId 3 is not an active Virtual Machine Scale Set VM instanceId. valid",
                400,
                NoInstance,
            ),
            // Nothing is said of a disk.
            ("disks.get", "ResourceGroupNotFound", "Resource group 'g' could not be found.", 404, Other),
            ("disks.get", "SubscriptionNotFound", "", 404, Other),
            (ATTACH, "Conflict", "", 409, TooSoon),
            (ATTACH, "ConflictingConcurrentWriteNotAllowed", "", 409, TooSoon),
            (ATTACH, "AttachDiskWhileBeingDetached", "", 409, InUse),
            (
                ATTACH,
                "OperationNotAllowed",
                "The maximum number of data disks allowed to be attached to a VM of this size is 4.",
                409,
                InstanceFull,
            ),
            (ATTACH, "OperationPreempted", "", 0, Unavailable),
            (ATTACH, "OperationNotAllowed", "Something else", 409, Other),
            (ATTACH, "InvalidParameter", "A disk with LUN 3 already exists", 400, NameTaken),
            (ATTACH, "InvalidParameter", "Disk d is not attached to the VM", 400, NotAttached),
            ("disks.delete", "OperationNotAllowed", "Disk d is attached to VM vm.", 409, InUse),
            ("disks.update", "OperationNotAllowed", "can be resized only when deallocated", 409, InUse),
            ("disks.update", "OperationNotAllowed", "can be enabled only while it is not attached", 409, InUse),
            (
                "disks.put",
                "OperationNotAllowed",
                "Operation could not be completed as it results in exceeding approved Quota",
                409,
                Quota,
            ),
            ("disks.put", "SkuNotAvailable", "", 409, NoCapacity),
            ("disks.put", "KeyVaultAccessForbidden", "", 400, Key),
            ("disks.put", "AuthorizationFailed", "", 403, Denied),
            ("disks.put", "InvalidParameter", "", 400, Invalid),
            ("disks.get", "OperationNotAllowed", "too many requests", 429, Throttled),
            ("disks.get", "SubscriptionRequestsThrottled", "", 429, Throttled),
            ("disks.get", "SomethingNew", "", 401, Denied),
            ("disks.get", "SomethingNew", "", 503, Unavailable),
            ("disks.put", "PreconditionFailed", "", 412, TooSoon),
            ("disks.get", "SomethingNew", "", 400, Other),
        ] {
            assert_eq!(because(action, code, message, status), expected, "{action} {code} {message}");
        }
    }
}

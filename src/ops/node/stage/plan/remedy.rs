//! What a person may do about a device whose contents are unknown.

pub(super) fn wipe_remedy(device: &str) -> String {
    // The device is disconnected again when a person reads this.
    format!(
        "If nothing on it is wanted, use a new volume, or clear the storage of this one (`blkdiscard --zeroout`), but not as \
         {device}: by now that may be another's"
    )
}

//! What proves that a device is the disk, where the cloud shows a machine only slots ([`super::CloudConstants::shows_identity`]): beside the
//! word of the cloud for the slot, what the device itself is. Here is how the controller tells that to a node. The node
//! compares the size when it connects the device ([`super::node`]), and the contents when it is staged ([`ExpectedContents`]).

use std::collections::BTreeMap;
use std::time::UNIX_EPOCH;

use crate::backend::ExpectedContents;
use crate::volume::digest::uuid_of;
use crate::volume::{Error, Result};

use super::api::Disk;
use super::tags::Owner;

/// Key of publish_context: how many bytes the disk has.
pub const SIZE: &str = "size";
/// Key of publish_context: the UUID of whatever this driver makes on the disk, or made on the one that it was copied from.
pub const CONTENTS: &str = "contents";
/// Key of publish_context: `true` where the disk was copied from a snapshot or a disk.
pub const COPIED: &str = "copied";
/// Key of publish_context: `true` where the disk was made by another program. What is on it was not made by this driver, and has any UUID.
pub const EXISTING: &str = "existing";

/// The UUID for what this driver makes on a disk. Its name alone may be that of a later disk; two controllers that both think that they
/// lead must come to the same, so that it is not random.
pub(super) fn contents_of(owner: &Owner, disk: &Disk) -> String {
    let created = disk.created.and_then(|created| created.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
    uuid_of(["longshore contents", &owner.cluster, owner.backend.as_str(), &disk.id.0, &created.as_nanos().to_string()])
}

/// What publish_context says that the disk holds; `slot` is where it was attached, for people.
///
/// # Errors
/// `Invalid` for what is no UUID.
pub(super) fn expected_contents(publish_context: &BTreeMap<String, String>, slot: &str) -> Result<Option<ExpectedContents>> {
    let is_true = |key: &str| publish_context.get(key).is_some_and(|text| text == "true");
    let Some(text) = publish_context.get(CONTENTS) else {
        let remedy = "make a file system on it where it was attached before, or use a new volume".to_owned();
        let existing = ExpectedContents { uuid: None, is_copy: true, place: slot.to_owned(), remedy };
        return Ok(is_true(EXISTING).then_some(existing));
    };
    let uuid = text.to_ascii_lowercase();
    let is_uuid =
        uuid.split('-').map(str::len).eq([8, 4, 4, 4, 12]) && uuid.bytes().all(|byte| byte == b'-' || byte.is_ascii_hexdigit());
    if !is_uuid {
        let reason = format!("{CONTENTS}: {text:?} is no UUID; correct the tag longshore.dev.{CONTENTS} of the disk");
        return Err(Error::invalid("publish_context", reason));
    }
    let remedy = format!(
        "detach the volume and attach it again. If it is this volume's, made anew by someone else, put its UUID into the disk's tag \
         longshore.dev.{CONTENTS} before"
    );
    Ok(Some(ExpectedContents { uuid: Some(uuid), is_copy: is_true(COPIED), place: slot.to_owned(), remedy }))
}

/// How many bytes publish_context says that the disk has; an older controller does not say it.
///
/// # Errors
/// `Invalid` for what is no number.
pub(super) fn size_in(publish_context: &BTreeMap<String, String>) -> Result<Option<u64>> {
    let Some(text) = publish_context.get(SIZE) else { return Ok(None) };
    let size = text.parse().map_err(|_| Error::invalid("publish_context", format!("{SIZE}: {text:?} is no number of bytes")))?;
    Ok(Some(size))
}

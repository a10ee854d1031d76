//! What proves that a device is the disk, where the cloud shows a machine only slots ([`super::CloudConstants::shows_identity`]): beside the
//! word of the cloud for the slot, what the device itself is.

use std::collections::BTreeMap;
use std::time::Instant;

use crate::backend::{BlockDevice, ConnectRequest};
use crate::os::udev;
use crate::volume::{Bytes, Error, Result};

use super::node::{AttachedDisks, GROWTH};

/// Key of publish_context: how many bytes the disk has.
pub const SIZE: &str = "size";

/// Compares the size of a device with that of the disk in publish_context, which an older controller does not give.
///
/// A disk never shrinks, so that a smaller device is another disk once the kernel has asked it anew. A larger one may be the disk, grown
/// since it was attached: the cloud must say so.
///
/// # Errors
/// `Unverified`, naming both sizes; `InProgress` where the device is gone, or the cloud does not answer.
pub(super) fn check_size<D: AttachedDisks>(
    disks: &D,
    request: &ConnectRequest<'_>,
    device: &BlockDevice,
    wanted: &D::Wanted,
) -> Result<()> {
    let Some(told) = size_in(request.publish_context)? else { return Ok(()) };
    let unfinished = |reason: String| Error::InProgress { object: format!("volume {}", request.id), reason };
    let path = device.path.display();
    let open = disks.open(device, wanted)?.ok_or_else(|| unfinished(format!("{path} went away while it was looked at")))?;
    let mut size = open.size()?;
    if size < told {
        disks.take_over_size(device, &open)?;
        udev::wait_until(Instant::now().checked_add(GROWTH.min(disks.patience())), || {
            size = open.size()?;
            Ok(size >= told)
        })?;
    }
    let mut cloud = told;
    if size > told {
        let now = disks.size_by_cloud(wanted);
        cloud = now.map_err(|reason| unfinished(format!("whether it has grown is not known: {reason}")))?.unwrap_or(told);
    }
    if size == told || size == cloud {
        return Ok(());
    }
    let (disk, _, slot) = disks.words(wanted);
    let (found, cloud) = (Bytes(size), Bytes(cloud));
    let reason = format!(
        "the device on {slot} has {found}, but by the cloud disk {disk} has {cloud}: it may be another disk, and was not used. Look with the \
         cloud's tools what is on {slot}, then detach volume {} and attach it again",
        request.id
    );
    Err(Error::Unverified { device: path.to_string(), reason })
}

fn size_in(publish_context: &BTreeMap<String, String>) -> Result<Option<u64>> {
    let Some(text) = publish_context.get(SIZE) else { return Ok(None) };
    let size = text.parse().map_err(|_| Error::invalid("publish_context", format!("{SIZE}: {text:?} is no number of bytes")))?;
    Ok(Some(size))
}

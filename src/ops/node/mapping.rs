//! The LUKS mapping of an encrypted volume: what it is called, and which there is.

use std::path::Path;

use crate::backend::BlockDevice;
use crate::os::dm::{self, Mapped};
use crate::volume::digest::sha256;
use crate::volume::{Result, VolumeId};

use super::context::Node;
use super::errors::unexpected;

/// A longer name would not fit into a mapping's UUID, which cryptsetup makes of it.
const LONGEST_NAME: usize = 80;
const MADE_BY_CRYPTSETUP: &str = "CRYPT-";

/// A mapping as a device like any other.
pub(super) fn shown(mapping: &Mapped) -> BlockDevice {
    BlockDevice { path: mapping.path.clone(), number: mapping.number, identity: mapping.uuid.clone() }
}

/// What a volume's mapping is called: by its id, where that is short enough, and by the driver's state directory, since the names
/// are the machine's and another driver on it may have a volume of this id.
pub(super) fn mapping_name(state: &Path, id: &VolumeId) -> String {
    let name = format!("{}{id}", mapping_prefix(state));
    if name.len() <= LONGEST_NAME {
        return name;
    }
    format!("longshore-{}", sha256(name.as_bytes()))
}

/// How the names of this driver's mappings begin, but for those of long ids.
pub(super) fn mapping_prefix(state: &Path) -> String {
    let driver = sha256(state.as_os_str().as_encoded_bytes());
    format!("longshore-{}-", &driver[..8])
}

/// What the volume's mapping is called below /dev/mapper.
pub(super) fn name_of(node: &Node, id: &VolumeId) -> String {
    mapping_name(node.state.path(), id)
}

/// The volume's mapping, whatever it lies on.
pub(super) fn find(node: &Node, id: &VolumeId) -> Result<Option<Mapped>> {
    let name = name_of(node, id);
    match dm::find(&name)? {
        // A half-made one has no UUID yet.
        Some(other) if !other.uuid.is_empty() && !other.uuid.starts_with(MADE_BY_CRYPTSETUP) => {
            Err(unexpected(&other.path, format!("{name} is no LUKS mapping ({}); rename or remove it", other.uuid)))
        }
        found => Ok(found),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapping_is_named_after_its_volume() {
        let name = |state: &str, id: &str| mapping_name(Path::new(state), &id.parse().expect("an id"));
        assert_eq!(name("/a", "image:a"), "longshore-6a50dc85-image:a");
        assert_ne!(name("/b", "image:a"), name("/a", "image:a"), "another driver's");
        let long = |end: &str| name("/a", &format!("image:{}{end}", "x".repeat(100)));
        assert_eq!(long("a").len(), "longshore-".len() + 64);
        assert_ne!(long("a"), long("b"));
    }
}

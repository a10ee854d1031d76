//! What backends of a node's own storage have in common: where their volumes are, their classes, and the parameter that may change.

use serde::Deserialize;

use crate::os::block::Device;
use crate::volume::{BackendName, Bytes, Error, NodeId, OnDelete, RawParameters, Result, Topology, VolumeId, topology};

use super::{Connect, Source};

/// Reachable from this node alone; from everywhere where there is none.
pub(super) fn topology_of(node: Option<&NodeId>) -> Option<Topology> {
    node.map(|node| Topology::from_iter([(topology::NODE.to_owned(), node.as_str().to_owned())]))
}

/// A way to make volumes, which a StorageClass names by `deviceClass`.
pub(super) trait Class {
    fn name(&self) -> &str;
}

/// Checks what is the same for all classes of all backends.
///
/// # Errors
/// `Invalid`, naming the field.
pub(super) fn check_classes<C: Class>(backend: &BackendName, classes: &[C], volumes_per_node: Option<u64>) -> Result<()> {
    if classes.is_empty() {
        return Err(Error::invalid("classes", format!("backend {backend} needs at least one")));
    }
    if volumes_per_node == Some(0) {
        return Err(Error::invalid("volumesPerNode", "0 would allow no volume at all; leave it out for no limit"));
    }
    for (index, class) in classes.iter().enumerate() {
        if classes.iter().take(index).any(|other| other.name() == class.name()) {
            return Err(Error::invalid("classes.name", format!("two classes are called {}", class.name())));
        }
    }
    Ok(())
}

/// The class that a StorageClass means: the first, where it names none.
///
/// # Errors
/// `Invalid` where there is none of this name.
pub(super) fn class<'a, C: Class>(backend: &BackendName, classes: &'a [C], name: Option<&str>) -> Result<&'a C> {
    let found = match name {
        Some(name) => classes.iter().find(|class| class.name() == name),
        None => classes.first(),
    };
    found.ok_or_else(|| {
        let known: Vec<&str> = classes.iter().map(Class::name).collect();
        let reason = format!("backend {backend} has no class {:?}; there are {}", name.unwrap_or_default(), known.join(", "));
        Error::invalid("parameters.deviceClass", reason)
    })
}

/// For fields that are left out where nothing else was said.
pub(super) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// What may change in a volume's life where that is only what becomes of its data at its end.
///
/// # Errors
/// `Invalid`, naming the parameter.
pub(super) fn mutable_on_delete(raw: &RawParameters) -> Result<OnDelete> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase", deny_unknown_fields)]
    struct MutableParameters {
        on_delete: OnDelete,
    }
    raw.parse().map(|MutableParameters { on_delete }| on_delete)
}

/// The size of a connected device, seen to be the volume's.
///
/// # Errors
/// `Unverified` where it is another's by now.
pub(super) fn size_of(connect: &dyn Connect, id: &VolumeId, source: &Source) -> Result<Bytes> {
    let Source::Device(known) = source else { return Err(Error::volume_not_found(id)) };
    let device = Device::open(&known.path, false)?;
    if device.number() != known.number || !connect.is_same_device(source)? {
        let reason = format!("it is not the device of {id}; nothing was done to it. Unstage the volume and stage it again");
        return Err(Error::Unverified { device: known.path.display().to_string(), reason });
    }
    Ok(Bytes(device.size()?))
}

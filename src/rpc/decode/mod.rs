//! Requests become types that need no further check.
//!
//! Each request has one `TryFrom`; nothing else builds the types here. The order is that of csi-sanity and of good sense:
//! first what is missing (INVALID_ARGUMENT, naming the field), then what is malformed (the same), and last the ids: one that
//! cannot be ours names nothing that exists, which is NOT_FOUND for a look-up and "done already" for a removal.

use std::collections::{BTreeMap, HashMap};
use std::path::{Component, Path, PathBuf};
use std::str::FromStr;

use crate::ops::node::Handle;
use crate::volume::parameters::KUBERNETES_PREFIX;
use crate::volume::{Error, NodeId, RawParameters, Result, Secrets, SnapshotId, VolumeId};

pub(super) mod capability;
pub(super) mod controller;
pub(super) mod group;
pub(super) mod metadata;
pub(super) mod node;
pub(super) mod snapshot;

/// CSI spec, "Size Limits", in bytes: a string.
const LONGEST_STRING: usize = 128;
/// The same: a map, keys and values together.
const LARGEST_MAP: usize = 4096;
/// Paths are exempt from the limit of strings; the kernel's PATH_MAX holds.
const LONGEST_PATH: usize = 4096;

/// A field that must be there.
fn required<'a>(field: &'static str, text: &'a str) -> Result<&'a str> {
    match text {
        "" => Err(Error::invalid(field, "is required")),
        text => Ok(text),
    }
}

/// A string within the protocol's limit.
fn short<'a>(field: &'static str, text: &'a str) -> Result<&'a str> {
    match text.len() {
        0..=LONGEST_STRING => Ok(text),
        length => Err(Error::invalid(field, format!("has {length} bytes; the most is {LONGEST_STRING}"))),
    }
}

/// A name that the CO suggests. Control characters are banned, other than white space (CSI spec, CreateVolumeRequest.name).
fn name(text: &str) -> Result<String> {
    let text = short("name", required("name", text)?)?;
    match text.chars().find(|letter| letter.is_control() && !matches!(letter, '\t' | '\n' | '\r')) {
        None => Ok(text.to_owned()),
        Some(banned) => Err(Error::invalid("name", format!("holds the control character U+{:04X}", u32::from(banned)))),
    }
}

/// A map within the protocol's limit. What the sidecars and the kubelet add by themselves (a pod's name, its tokens) is
/// not counted: the user could not make it smaller.
fn map(field: &'static str, map: HashMap<String, String>) -> Result<BTreeMap<String, String>> {
    let own = map.iter().filter(|(key, _)| !key.starts_with(KUBERNETES_PREFIX));
    match own.map(|(key, value)| key.len() + value.len()).sum::<usize>() {
        0..=LARGEST_MAP => Ok(map.into_iter().collect()),
        size => Err(Error::invalid(field, format!("has {size} bytes; the most is {LARGEST_MAP}"))),
    }
}

fn parameters(field: &'static str, values: HashMap<String, String>) -> Result<RawParameters> {
    map(field, values).map(RawParameters::new)
}

fn secrets(values: HashMap<String, String>) -> Result<Secrets> {
    map("secrets", values).map(Secrets::new)
}

/// An absolute path without NUL and without `..`.
fn path(field: &'static str, text: &str) -> Result<PathBuf> {
    let text = sound_path(field, text)?;
    match Path::new(text).is_absolute() {
        true => Ok(PathBuf::from(text)),
        false => Err(Error::invalid(field, format!("{text:?} is not an absolute path"))),
    }
}

fn optional_path(field: &'static str, text: &str) -> Result<Option<PathBuf>> {
    (!text.is_empty()).then(|| path(field, text)).transpose()
}

fn sound_path<'a>(field: &'static str, text: &'a str) -> Result<&'a str> {
    let text = required(field, text)?;
    if text.len() > LONGEST_PATH {
        return Err(Error::invalid(field, format!("has {} bytes; the most is {LONGEST_PATH}", text.len())));
    }
    if text.contains('\0') {
        return Err(Error::invalid(field, "holds a NUL character"));
    }
    if Path::new(text).components().any(|component| component == Component::ParentDir) {
        return Err(Error::invalid(field, format!("{text:?} holds \"..\"")));
    }
    Ok(text)
}

/// A path at which a volume is looked for. No volume of ours is ever at a relative path, so none is found there
/// (csi-sanity expects NOT_FOUND).
fn place(field: &'static str, id: &str, text: &str) -> Result<PathBuf> {
    let text = sound_path(field, text)?;
    match Path::new(text).is_absolute() {
        true => Ok(PathBuf::from(text)),
        false => Err(Error::NotFound { kind: "volume", id: format!("{id} at {text:?}, which is not an absolute path,") }),
    }
}

/// At most so many entries; 0 is no limit.
fn max(field: &'static str, count: i32) -> Result<usize> {
    usize::try_from(count).map_err(|_| Error::invalid(field, format!("{count} is negative")))
}

/// An id of ours, or why it is none: it names nothing that exists.
fn lookup<Id: FromStr<Err = Error>>(kind: &'static str, text: &str) -> Result<Id> {
    text.parse().map_err(|error| match error {
        Error::Invalid { reason, .. } => Error::NotFound { kind, id: format!("{}; such a {kind}", cut(&reason)) },
        other => other,
    })
}

/// Untrusted text in a message, not longer than is of use.
fn cut(text: &str) -> String {
    crate::rpc::cut(text, 2 * LONGEST_STRING).to_owned()
}

fn volume(text: &str) -> Result<VolumeId> {
    lookup("volume", text)
}

fn snapshot_id(text: &str) -> Result<SnapshotId> {
    lookup("snapshot", text)
}

fn node_id(text: &str) -> Result<NodeId> {
    lookup("node", text)
}

/// What a CO may call a static volume. Such a handle is no string of ours, so that it may be longer; Kubernetes
/// takes any.
const LONGEST_HANDLE: usize = 1024;

/// A volume that need not be of our making.
fn handle(text: &str) -> Result<Handle> {
    match text.parse() {
        Ok(id) => Ok(Handle::Id(id)),
        Err(_) if text.len() <= LONGEST_HANDLE && !text.contains(char::is_control) => Ok(Handle::Name(text.to_owned())),
        Err(_) => Err(Error::NotFound { kind: "volume", id: cut(text) }),
    }
}

/// `[A-Za-z0-9._-]{1,128}`, not beginning with a dot: it becomes a file's name.
fn is_inline(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= LONGEST_STRING
        && !text.starts_with('.')
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-'))
}

#[cfg(test)]
pub(super) mod testing {
    //! Requests with all that they need, for tests to take something out of.

    use std::fmt::Debug;

    use crate::csi;
    use crate::volume::Error;

    pub(in crate::rpc) fn capability() -> csi::VolumeCapability {
        use csi::volume_capability::{AccessMode, AccessType, MountVolume, access_mode::Mode};
        csi::VolumeCapability {
            access_type: Some(AccessType::Mount(MountVolume::default())),
            access_mode: Some(AccessMode { mode: Mode::SingleNodeWriter.into() }),
        }
    }

    /// Decodes `request`, which must be refused as INVALID_ARGUMENT naming `field`.
    pub(in crate::rpc) fn refused<R, Q>(request: Q, field: &str)
    where
        R: TryFrom<Q, Error = Error>,
        Q: Debug,
    {
        let shown = format!("{request:?}");
        match R::try_from(request) {
            Err(Error::Invalid { field: named, reason }) => assert_eq!(named, field, "{reason}: {shown}"),
            Err(other) => panic!("{other:?} for {shown}"),
            Ok(_) => panic!("accepted: {shown}"),
        }
    }

    pub(in crate::rpc) fn not_found<R: TryFrom<Q, Error = Error>, Q: Debug>(request: Q) {
        let shown = format!("{request:?}");
        match R::try_from(request) {
            Err(Error::NotFound { .. }) => {}
            Err(other) => panic!("{other:?} for {shown}"),
            Ok(_) => panic!("accepted: {shown}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_short_and_printable() {
        assert!(name(&"n".repeat(128)).is_ok(), "csi-sanity uses the longest");
        assert_eq!(name("gîte \t 2").expect("any Unicode"), "gîte \t 2");
        for bad in ["", &"n".repeat(129), "a\0b", "bell\u{7}", "\u{85}", "\u{b}"] {
            assert!(matches!(name(bad), Err(Error::Invalid { field: "name", .. })), "{bad:?}");
        }
    }

    #[test]
    fn maps_are_small_apart_from_what_kubernetes_adds() {
        let of = |key: &str, size: usize| HashMap::from([(key.to_owned(), "v".repeat(size))]);
        assert!(map("parameters", of("key", LARGEST_MAP - 3)).is_ok());
        assert!(matches!(map("parameters", of("key", LARGEST_MAP)), Err(Error::Invalid { field: "parameters", .. })));
        assert!(map("volume_context", of("csi.storage.k8s.io/serviceAccount.tokens", 3 * LARGEST_MAP)).is_ok());
    }

    #[test]
    fn paths_are_absolute_and_sound() {
        assert_eq!(path("target_path", "/a/b").expect("sound"), Path::new("/a/b"));
        for bad in ["", "a/b", "/a\0b", "/a/../b", &format!("/{}", "a".repeat(LONGEST_PATH))] {
            assert!(matches!(path("target_path", bad), Err(Error::Invalid { field: "target_path", .. })), "{bad:?}");
        }
        assert!(matches!(place("volume_path", "image:a", "some/path"), Err(Error::NotFound { .. })));
        assert!(matches!(place("volume_path", "image:a", ""), Err(Error::Invalid { .. })));
    }

    #[test]
    fn an_id_that_cannot_be_ours_is_not_found_and_says_why() {
        let error = volume("fake-vol-id").expect_err("no colon");
        assert!(matches!(error, Error::NotFound { kind: "volume", .. }));
        assert!(error.to_string().contains("<backend>:<id>"), "{error}");
        let error = volume(&"x".repeat(1 << 20)).expect_err("too long");
        assert!(error.to_string().len() < 1024, "what the caller sent is not sent back whole");
    }

    #[test]
    fn a_handle_is_an_id_or_any_text() {
        assert!(matches!(handle("image:a"), Ok(Handle::Id(_))));
        for name in ["csi-1f", "server/share#a b", "..", "image:../x"] {
            assert_eq!(handle(name).expect("a static volume"), Handle::Name(name.to_owned()));
        }
        for bad in ["a\nb", &"c".repeat(1025)] {
            assert!(matches!(handle(bad), Err(Error::NotFound { .. })), "{bad:?}");
        }
    }

    #[test]
    fn a_negative_count_is_refused() {
        assert_eq!(max("max_entries", 0).expect("no limit"), 0);
        assert!(matches!(max("max_entries", -1), Err(Error::Invalid { field: "max_entries", .. })));
    }
}

//! Identifiers, in the form `<backend name>:<id>`.
//!
//! The id part never holds a slash, is never `.` or `..`, and may be used as a file name as it is.
//!
//! A storage that names its objects itself (a cloud) has its own id of the object recorded in ours: `<backend name>:d-<its id>.<id>`. The
//! CO keeps that with the PersistentVolume, so that each later call names exactly one object, whatever else carries the same tags.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::digest::sha256;
use super::error::{Error, Result};

/// The longest identifier in bytes, as csi.proto's size limit for a string (CSI spec, "Size Limits").
pub const MAX_ID: usize = 128;
const MAX_BACKEND_NAME: usize = 32;

/// The name of a configured backend: 1 to 32 characters of `[a-z0-9-]`, first a letter.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(extend("pattern" = "^[a-z][a-z0-9-]{0,31}$"))]
pub struct BackendName(Arc<str>);

impl BackendName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for BackendName {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let first = text.bytes().next().is_some_and(|byte| byte.is_ascii_lowercase());
        let rest = text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
        if first && rest && text.len() <= MAX_BACKEND_NAME {
            return Ok(BackendName(text.into()));
        }
        Err(Error::invalid(
            "backend",
            format!("{text:?} is no backend name: 1 to 32 characters of a-z, 0-9 and -, first a letter"),
        ))
    }
}

impl TryFrom<String> for BackendName {
    type Error = Error;
    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl From<BackendName> for String {
    fn from(name: BackendName) -> String {
        name.as_str().to_owned()
    }
}

impl fmt::Display for BackendName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The part behind the colon: `[A-Za-z0-9._-]+`, not `.` or `..`, not beginning with a dot.
fn valid_local(text: &str) -> bool {
    !text.is_empty()
        && !text.starts_with('.')
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-'))
}

/// Derives the id part from the name that the CO suggested: the name itself where it may be a file name, else a
/// digest of it. Two names never give one id: what looks like a digest is digested too.
fn local_from_name(name: &str) -> String {
    // An inline volume's handle from the kubelet has 68; with the longest backend name there is room for a recorded id of 24.
    const LONGEST_PLAIN: usize = 68;
    let reserved =
        [DIGESTED, STATIC].iter().any(|prefix| name.starts_with(prefix)) || split(name).0.is_some() || is_ephemeral(name);
    if name.len() <= LONGEST_PLAIN && valid_local(name) && !reserved {
        return name.to_owned();
    }
    format!("{DIGESTED}{}", digest(name))
}

/// How the id of a name begins that could not be one itself.
const DIGESTED: &str = "h-";
/// Prefix of the id that we give a static volume: a digest of its handle follows, or the storage's own id ([`VolumeId::existing`]).
const STATIC: &str = "x-";

/// How the id of an object begins whose storage's own id is recorded in it: `d-<storage's id>.<id>`.
const RECORDED: &str = "d-";

/// The storage's own id, where one is recorded, and the part that is derived from the name.
fn split(local: &str) -> (Option<&str>, &str) {
    if let Some(stored) = existing(local) {
        return (Some(stored), local);
    }
    let recorded = local.strip_prefix(RECORDED).and_then(|rest| rest.split_once('.'));
    match recorded.filter(|(stored, derived)| !stored.is_empty() && valid_local(derived)) {
        Some((stored, derived)) => (Some(stored), derived),
        None => (None, local),
    }
}

/// What the storage calls an object that was not made by us; `None` for any other id.
fn existing(local: &str) -> Option<&str> {
    local.strip_prefix(STATIC).filter(|stored| !stored.is_empty() && !is_digest(stored))
}

/// How the id of an ephemeral inline volume begins; a digest follows.
const EPHEMERAL: &str = "e-";
/// Hexadecimal digits of a digest in an id.
const DIGITS: usize = 40;

fn digest(name: &str) -> String {
    sha256(name.as_bytes())[..DIGITS].to_owned()
}

/// Only the whole form is reserved: a CO may have volumes already whose names begin like it.
fn is_ephemeral(local: &str) -> bool {
    local.strip_prefix(EPHEMERAL).is_some_and(is_digest)
}

fn is_digest(text: &str) -> bool {
    text.len() == DIGITS && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

macro_rules! handle {
    ($(#[$doc:meta])* $name:ident, $field:literal, $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name {
            backend: BackendName,
            local: String,
        }

        impl $name {
            /// The id of what the CO calls `name`, in `backend`: always the same for the same name.
            pub fn derive(backend: &BackendName, name: &str) -> Self {
                Self { backend: backend.clone(), local: local_from_name(name) }
            }

            /// An id from its parts, as a backend finds them in its storage.
            pub fn from_parts(backend: &BackendName, local: &str) -> Result<Self> {
                if !valid_local(local) || backend.as_str().len() + 1 + local.len() > MAX_ID {
                    return Err(Self::malformed(&format!("{backend}:{local}")));
                }
                Ok(Self { backend: backend.clone(), local: local.to_owned() })
            }

            fn malformed(text: &str) -> Error {
                Error::invalid(
                    $field,
                    format!(
                        "{text:?} is no {}: <backend>:<id> of at most {MAX_ID} bytes, the id of A-Z a-z 0-9 . _ - \
                         and not beginning with a dot",
                        $what
                    ),
                )
            }

            /// The backend that it lives in.
            pub fn backend(&self) -> &BackendName {
                &self.backend
            }

            /// The part behind the colon; safe as a file name.
            pub fn local(&self) -> &str {
                &self.local
            }

            /// Of the part behind the colon, what is derived from the CO's name: the same with and without a recorded id.
            pub fn derived(&self) -> &str {
                split(&self.local).1
            }

            /// The storage's own id of the object, where it is recorded.
            pub fn recorded(&self) -> Option<&str> {
                split(&self.local).0
            }

            /// The same id with the storage's own id of the object recorded in it.
            ///
            /// # Errors
            /// `Invalid` where `stored` has other characters than `[A-Za-z0-9_-]`, or the id would be longer than [`MAX_ID`].
            pub fn record(&self, stored: &str) -> Result<Self> {
                let id: Self = format!("{}:{RECORDED}{stored}.{}", self.backend, self.derived()).parse()?;
                match id.recorded() == Some(stored) {
                    true => Ok(id),
                    false => Err(Error::invalid($field, format!("{stored:?} cannot be recorded in an id"))),
                }
            }

            /// The same id without a recorded one: what CreateVolume derives before it knows what the storage will call the object.
            pub fn unrecorded(&self) -> Self {
                Self { backend: self.backend.clone(), local: self.derived().to_owned() }
            }
        }

        impl FromStr for $name {
            type Err = Error;

            fn from_str(text: &str) -> Result<Self> {
                let malformed = || Self::malformed(text);
                let (backend, local) = text.split_once(':').ok_or_else(malformed)?;
                let backend = backend.parse().map_err(|_| malformed())?;
                Self::from_parts(&backend, local)
            }
        }

        impl TryFrom<String> for $name {
            type Error = Error;
            fn try_from(text: String) -> Result<Self> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> String {
                String::from(&id)
            }
        }

        impl From<&$name> for String {
            fn from(id: &$name) -> String {
                [id.backend.as_str(), ":", &id.local].concat()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}:{}", self.backend, self.local)
            }
        }
    };
}

handle!(
    /// A volume. Its text form is CSI's `volume_id`.
    VolumeId,
    "volume_id",
    "volume id"
);
handle!(
    /// A snapshot. Its text form is CSI's `snapshot_id`.
    SnapshotId,
    "snapshot_id",
    "snapshot id"
);
handle!(
    /// A group of snapshots taken at one instant. Its text form is CSI's `group_snapshot_id`.
    GroupId,
    "group_snapshot_id",
    "group snapshot id"
);

impl VolumeId {
    /// Our own id of a static volume, whose handle may be any text: never one that [`VolumeId::derive`] gives.
    pub fn by_hand(backend: &BackendName, handle: &str) -> Self {
        VolumeId { backend: backend.clone(), local: format!("{STATIC}{}", digest(handle)) }
    }

    /// The id of an object that the storage calls `stored` and that was not made by us: never one that [`VolumeId::derive`] gives.
    /// `stored` is recorded in it.
    ///
    /// # Errors
    /// `Invalid` where `stored` has other characters than `[A-Za-z0-9._-]`, looks like a digest, or the id would be longer than [`MAX_ID`].
    pub fn existing(backend: &BackendName, stored: &str) -> Result<Self> {
        let id = VolumeId::from_parts(backend, &format!("{STATIC}{stored}"))?;
        match id.is_existing() {
            true => Ok(id),
            false => Err(VolumeId::malformed(&id.to_string())),
        }
    }

    /// Whether the id has the form of [`VolumeId::existing`].
    pub fn is_existing(&self) -> bool {
        existing(&self.local).is_some()
    }

    /// The id of the ephemeral inline volume that `mark` describes: never one that [`VolumeId::derive`] gives.
    pub fn ephemeral(backend: &BackendName, mark: &str) -> Self {
        VolumeId { backend: backend.clone(), local: format!("{EPHEMERAL}{}", digest(mark)) }
    }

    /// Whether the id has the form of [`VolumeId::ephemeral`]. Whose it is, the volume's name in its storage says.
    pub fn is_ephemeral(&self) -> bool {
        is_ephemeral(self.derived())
    }
}

/// A node, as NodeGetInfo names it: 1 to 192 printable characters.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(extend("pattern" = "^[!-~]{1,192}$"))]
pub struct NodeId(String);

impl NodeId {
    /// The node id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for NodeId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let printable = text.bytes().all(|byte| byte.is_ascii_graphic());
        if text.is_empty() || text.len() > 192 || !printable {
            return Err(Error::invalid("node_id", format!("{text:?} is no node id: 1 to 192 printable ASCII characters")));
        }
        Ok(NodeId(text.to_owned()))
    }
}

impl TryFrom<String> for NodeId {
    type Error = Error;
    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl From<NodeId> for String {
    fn from(node: NodeId) -> String {
        node.0
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error {
    pub fn volume_not_found(id: &VolumeId) -> Self {
        Error::NotFound { kind: "volume", id: id.to_string() }
    }

    pub fn snapshot_not_found(id: &SnapshotId) -> Self {
        Error::NotFound { kind: "snapshot", id: id.to_string() }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn backend() -> BackendName {
        "image".parse().expect("a valid name")
    }

    proptest! {
        #[test]
        fn any_name_becomes_an_id_that_survives_its_text(name in "\\PC{1,200}") {
            let id = VolumeId::derive(&backend(), &name);
            prop_assert_eq!(id.to_string().parse::<VolumeId>().expect("our own id parses"), id);
        }

        #[test]
        fn parsing_never_panics_and_accepts_only_what_it_prints(text in "\\PC{0,140}") {
            if let Ok(id) = text.parse::<VolumeId>() {
                prop_assert_eq!(id.to_string(), text);
                prop_assert!(!id.local().contains('/') && !id.local().starts_with('.'));
            }
        }

        #[test]
        fn two_names_never_share_an_id(a in "[a-zA-Z0-9h./-]{1,80}", b in "[a-zA-Z0-9h./-]{1,80}") {
            prop_assume!(a != b);
            prop_assert_ne!(VolumeId::derive(&backend(), &a), VolumeId::derive(&backend(), &b));
        }

        #[test]
        fn recorded_id_of_any_name_is_read_again(name in "(d-)?[a-z.-]{0,9}\\PC{1,120}", stored in "[a-z]{1,4}-[0-9a-f]{1,19}") {
            let longest: BackendName = "b".repeat(MAX_BACKEND_NAME).parse().expect("a name");
            let derived = VolumeId::derive(&longest, &name);
            prop_assert_eq!(derived.recorded(), None);
            let recorded = derived.record(&stored).expect("there is room");
            let read: VolumeId = recorded.to_string().parse().expect("our own id parses");
            prop_assert_eq!((read.recorded(), read.unrecorded()), (Some(stored.as_str()), derived));
        }
    }

    #[test]
    fn a_name_that_looks_like_a_digest_is_digested() {
        let digested = VolumeId::derive(&backend(), "über");
        let impostor = VolumeId::derive(&backend(), digested.local());
        assert_ne!(digested, impostor);
    }

    #[test]
    fn name_in_the_form_of_a_recorded_id_is_digested() {
        let recorded = VolumeId::derive(&backend(), "pvc-1").record("vol-1").expect("recorded");
        assert_eq!(recorded.to_string(), "image:d-vol-1.pvc-1");
        assert_ne!(VolumeId::derive(&backend(), recorded.local()), recorded);
        for not_recordable in ["", "a.b", "a/b", "a b"] {
            assert!(recorded.record(not_recordable).is_err(), "{not_recordable:?}");
        }
    }

    #[test]
    fn id_of_existing_disk_is_not_derived_from_any_name() {
        let existing = VolumeId::existing(&backend(), "europe-west3-a_data.1").expect("an id");
        assert_eq!(existing.to_string(), "image:x-europe-west3-a_data.1");
        assert_eq!(existing.to_string().parse::<VolumeId>().expect("our own id parses"), existing);
        assert!(existing.is_existing());
        assert_eq!((existing.recorded(), existing.unrecorded()), (Some("europe-west3-a_data.1"), existing.clone()));
        assert_ne!(VolumeId::derive(&backend(), existing.local()), existing);
        let by_hand = VolumeId::by_hand(&backend(), "any text");
        assert!(!by_hand.is_existing() && by_hand.recorded().is_none());
        for stored in ["", "a/b", &"f".repeat(DIGITS), &"a".repeat(MAX_ID)] {
            VolumeId::existing(&backend(), stored).expect_err(stored);
        }
    }

    #[test]
    fn id_of_ephemeral_volume_is_not_derived_from_any_name() {
        let ephemeral = VolumeId::ephemeral(&backend(), "csi-1 of node n1");
        assert!(ephemeral.is_ephemeral());
        assert_eq!(ephemeral.to_string().parse::<VolumeId>().expect("our own id parses"), ephemeral);
        let derived = VolumeId::derive(&backend(), ephemeral.local());
        assert_ne!(derived, ephemeral);
        assert!(!derived.is_ephemeral());
        // Volumes with such names may exist: their ids stay what they are.
        for name in ["e-mail", "e-", &ephemeral.local()[..41], &ephemeral.local().to_uppercase()] {
            assert_eq!(VolumeId::derive(&backend(), name).local(), name);
        }
    }

    #[test]
    fn paths_are_no_ids() {
        for text in ["image:..", "image:.", "image:a/b", "image:", "image", ":a", "image:.a", "Image:a", "image:a\n", "image:a\0"]
        {
            assert!(text.parse::<VolumeId>().is_err(), "{text:?}");
        }
    }
}

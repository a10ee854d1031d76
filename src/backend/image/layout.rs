//! What lies where in a pool, and how much may be provisioned from it.
//!
//! ```text
//! longshore-pool.json   says that this is a pool, and of which backend
//! lock                  held (flock) by the one process that provisions; says which that is
//! index                 a cache of what the metadata files say (see [`super::index`]); may be removed
//! volumes/<id>/         image, meta.json: the directory's presence is the volume's existence
//! snapshots/<id>/       image, meta.json
//! groups/<id>.json      a group's record: its presence is the existence of its members
//! tmp/<kind>~<id>/      being made: renamed into place when whole and synced
//! trash/<kind>~<id>/    deleted by a rename, waiting for its files to be unlinked
//! archive/, retained/   <id>.<unix time>/: deleted, but kept for the operator
//! exports/              who else shows an image, where that is not a loop device's matter (the `iscsi` backend)
//! ```
//! What lies in `tmp` and `trash` belongs to nobody: the lock's holder empties them when it opens the pool.

pub(super) const MARKER: &str = "longshore-pool.json";
pub(super) const LOCK: &str = "lock";
pub(super) const INDEX: &str = "index";
pub(super) const GROUPS: &str = "groups";
pub(super) const TMP: &str = "tmp";
pub(super) const TRASH: &str = "trash";
pub(super) const ARCHIVE: &str = "archive";
pub(super) const RETAINED: &str = "retained";
pub(super) const VOLUMES: &str = "volumes";
pub(super) const SNAPSHOTS: &str = "snapshots";
/// Without these something was lost.
pub(super) const ESSENTIAL: [&str; 3] = [VOLUMES, SNAPSHOTS, GROUPS];

/// Beside the image of a volume of a shared pool: to which nodes it is attached.
pub(super) const ATTACHED: &str = "attached.json";
/// The file that the record is written into next, and the one that is being replaced: see [`super::room`]. Names that earlier versions remove
/// with a volume.
pub(super) const ATTACHED_SPARE: &str = ".attached.json.tmp";
pub(super) const ATTACHED_BEFORE: &str = ".lease-0000000000000000.tmp";
/// The name of the only lease that lets its holder write.
pub(super) const EXCLUSIVE: &str = "lease";
pub(super) const READER: &str = "lease-";
/// The file that a lease is written into next.
pub(super) const LEASE_SPARE: &str = ".lease.tmp";
/// Hexadecimal digits of the digest of a holder, in the names of its files.
pub(super) const DIGITS: usize = 16;
/// These can be made anew.
pub(super) const PASSING: [&str; 4] = [TMP, TRASH, ARCHIVE, RETAINED];
pub(super) const DIRECTORIES: [&str; 7] = [VOLUMES, SNAPSHOTS, GROUPS, TMP, TRASH, ARCHIVE, RETAINED];
/// What is made in a directory before [`MARKER`].
pub(super) const OWN_ENTRIES: [&str; 8] = [LOCK, VOLUMES, SNAPSHOTS, GROUPS, TMP, TRASH, ARCHIVE, RETAINED];

/// What has an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Volume,
    Snapshot,
}

impl Kind {
    pub const fn directory(self) -> &'static str {
        match self {
            Kind::Volume => VOLUMES,
            Kind::Snapshot => SNAPSHOTS,
        }
    }

    /// Its name in `tmp` and `trash`: `~` is in no id, so no two things share one.
    pub fn passing_name(self, local: &str) -> String {
        match self {
            Kind::Volume => format!("volume~{local}"),
            Kind::Snapshot => format!("snapshot~{local}"),
        }
    }
}

/// How much may be provisioned.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub overcommit: f64,
    pub capacity: Option<u64>,
}

impl Limits {
    /// In bytes, where the file system has `total`.
    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a factor of the operator's"
    )]
    pub fn provisionable(self, total: u64) -> u64 {
        (self.capacity.unwrap_or(total) as f64 * self.overcommit) as u64
    }
}

/// Whether a volume's directory may hold a file of this name because of leases and attachments.
pub(super) fn is_lease_name(name: &str) -> bool {
    let digest = |name: &str| name.len() == DIGITS && name.bytes().all(|byte| byte.is_ascii_hexdigit());
    let temporary = name.strip_prefix('.').and_then(|name| name.strip_suffix(".tmp"));
    let base = temporary.unwrap_or(name);
    base == EXCLUSIVE || base == ATTACHED || base.strip_prefix(READER).is_some_and(digest)
}

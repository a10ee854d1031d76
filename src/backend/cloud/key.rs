//! By what the request that makes a disk or a snapshot is recognised when it is repeated, and by what its result is looked for then.

use crate::volume::VolumeId;
use crate::volume::digest::sha256_of;

use super::constants::Idempotency;
use super::controller::Controller;
use super::pollers::Key;
use super::tags::VOLUME;

/// Of a name, behind the prefix: enough that no two are the same, and so few that a handle has room for it beside the volume's own id.
const DIGEST: usize = 32;

impl Controller {
    /// The key of a request for what `what` stands for. A token is used up with its disk, so that the next one is of the next
    /// `generation`; a name is not.
    pub fn request_key(&self, idempotency: Idempotency, what: &str, generation: u32) -> String {
        match idempotency {
            Idempotency::Token => self.token(what, generation),
            Idempotency::UniqueName => self.name(what),
            Idempotency::FindFirst => String::new(),
        }
    }

    /// At most 64 characters (EC2 API reference, "Ensuring idempotency").
    fn token(&self, what: &str, generation: u32) -> String {
        sha256_of([self.owner.cluster.as_str(), self.owner.backend.as_str(), what, &generation.to_string()])
    }

    /// Letters, digits and dashes, a letter first: a name in every cloud (Compute Engine has the strictest rule, RFC 1035 with at most 63
    /// characters). Two clusters of one account never choose the same.
    fn name(&self, what: &str) -> String {
        let digest = sha256_of([self.owner.cluster.as_str(), self.owner.backend.as_str(), what]);
        format!("longshore-{}", digest.get(..DIGEST).unwrap_or(&digest))
    }

    /// By what the disk of a volume is looked for whose id is not known.
    pub fn disk_key(&self, id: &VolumeId) -> Key {
        self.lookup_key(self.constants.disks, id.derived(), &Key::Tag(VOLUME, id.derived().to_owned()))
    }

    /// By what the snapshot that `what` stands for, and which has this tag, is looked for.
    pub fn snapshot_key(&self, what: &str, tag: &Key) -> Key {
        self.lookup_key(self.constants.snapshots, what, tag)
    }

    fn lookup_key(&self, idempotency: Idempotency, what: &str, tag: &Key) -> Key {
        match idempotency {
            Idempotency::UniqueName => Key::Name(self.name(what)),
            Idempotency::Token | Idempotency::FindFirst => tag.clone(),
        }
    }
}

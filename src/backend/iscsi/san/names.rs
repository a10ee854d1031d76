//! What a volume is called in the kernel.

use crate::volume::digest::sha256;
use crate::volume::{BackendName, VolumeId};

use super::super::attachment::name_part;
use super::AUTHORITY;

/// How the names of our disks begin.
const DISK: &str = "longshore-";

/// Of one volume; no two volumes share one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Names {
    /// `iqn.2026-11.dev.longshore:<backend>:<volume>`
    pub target: String,
    /// `longshore-<volume>`
    pub disk: String,
    /// All disks of a backend are of one adapter.
    pub hba: u32,
}

impl Names {
    pub fn of(id: &VolumeId) -> Names {
        Names::from_part(id.backend(), &name_part(id.local()))
    }

    /// From the name of a disk; `None` where it is not one of ours.
    pub fn of_disk(backend: &BackendName, disk: &str) -> Option<Names> {
        disk.strip_prefix(DISK).filter(|part| !part.is_empty()).map(|part| Names::from_part(backend, part))
    }

    fn from_part(backend: &BackendName, part: &str) -> Names {
        Names { target: format!("{AUTHORITY}:{backend}:{part}"), disk: format!("{DISK}{part}"), hba: hba(backend) }
    }
}

/// The number of a backend's adapter.
pub(super) fn hba(backend: &BackendName) -> u32 {
    u32::from_str_radix(&sha256(backend.as_str().as_bytes())[..8], 16).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn id(text: &str) -> VolumeId {
        text.parse().expect("an id")
    }

    #[test]
    fn a_plain_id_is_its_own_name() {
        let names = Names::of(&id("san:pvc-1"));
        assert_eq!(names.target, "iqn.2026-11.dev.longshore:san:pvc-1");
        assert_eq!(Names::of_disk(id("san:x").backend(), &names.disk), Some(names));
        assert_eq!(Names::of_disk(id("san:x").backend(), "other"), None);
    }

    #[test]
    fn an_id_cannot_be_chosen_to_meet_a_digest() {
        let digested = Names::of(&id("san:A_b")).target;
        let impostor = digested.rsplit(':').next().expect("a part");
        assert_ne!(Names::of(&id(&format!("san:{impostor}"))).target, digested);
    }

    proptest! {
        #[test]
        fn names_are_legal_and_no_two_ids_share_one(one in "[A-Za-z0-9_-][A-Za-z0-9._-]{0,90}", two in "[A-Za-z0-9_-][A-Za-z0-9._-]{0,90}") {
            let (a, b) = (Names::of(&id(&format!("san:{one}"))), Names::of(&id(&format!("san:{two}"))));
            let legal = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b".-:".contains(&byte);
            prop_assert!(a.target.bytes().all(legal) && a.target.len() <= 223);
            prop_assert_eq!(one == two, a.target == b.target);
            prop_assert_eq!(one == two, a.disk == b.disk);
        }
    }
}

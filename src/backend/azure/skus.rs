//! Types of managed disks ("Azure managed disk types").

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::volume::Bytes;

const GIB: u64 = 1 << 30;
const TIB: u64 = 1 << 40;
/// Hosts cache no disk of this size or more ("Disk caching").
const UNCACHED: u64 = 4 * TIB;
/// Disks of up to this size have neither bursting on demand nor performance plus ("Enable on-demand bursting", limitations).
const SMALL: u64 = 512 * GIB;
/// Performance tiers, each with the largest disk, in GiB, whose own it is ("Performance tiers for managed disks").
const TIERS: [(&str, u64); 14] = [
    ("P1", 4),
    ("P2", 8),
    ("P3", 16),
    ("P4", 32),
    ("P6", 64),
    ("P10", 128),
    ("P15", 256),
    ("P20", 512),
    ("P30", 1024),
    ("P40", 2048),
    ("P50", 4096),
    ("P60", 8192),
    ("P70", 16_384),
    ("P80", 32_767),
];
/// From here on only a disk that is larger than 4 TiB has the tier.
const OF_LARGE: usize = 11;

/// The performance tier of this name, in any case.
pub fn tier_named(name: &str) -> Option<&'static str> {
    TIERS.iter().find(|(tier, _)| tier.eq_ignore_ascii_case(name)).map(|(tier, _)| *tier)
}

/// The place in [`TIERS`] of that of a disk of this size.
fn own_place(capacity: Bytes) -> usize {
    TIERS.iter().position(|(_, most)| capacity.0 <= most * GIB).unwrap_or(TIERS.len() - 1)
}

pub fn own_tier(capacity: Bytes) -> &'static str {
    TIERS[own_place(capacity)].0
}

/// Why a disk of this size cannot have a tier, if it cannot.
pub fn why_no_tier(tier: &str, capacity: Bytes) -> Option<String> {
    let own = own_place(capacity);
    let wanted = TIERS.iter().position(|(name, _)| *name == tier)?;
    if wanted < own {
        return Some(format!("{tier} is less than {}, the tier of a disk of {capacity}", own_tier(capacity)));
    }
    (wanted >= OF_LARGE && own < OF_LARGE).then(|| format!("{tier} is for disks of more than 4 TiB"))
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Sku {
    #[serde(rename = "Standard_LRS")]
    Standard,
    /// What azuredisk-csi-driver makes where a class says nothing.
    #[default]
    #[serde(rename = "StandardSSD_LRS")]
    StandardSsd,
    #[serde(rename = "StandardSSD_ZRS")]
    StandardSsdZrs,
    #[serde(rename = "Premium_LRS")]
    Premium,
    #[serde(rename = "Premium_ZRS")]
    PremiumZrs,
    #[serde(rename = "PremiumV2_LRS")]
    PremiumV2,
    #[serde(rename = "UltraSSD_LRS")]
    Ultra,
}

impl Sku {
    pub const ALL: [Sku; 7] =
        [Sku::Standard, Sku::StandardSsd, Sku::StandardSsdZrs, Sku::Premium, Sku::PremiumZrs, Sku::PremiumV2, Sku::Ultra];

    pub fn name(self) -> &'static str {
        match self {
            Sku::Standard => "Standard_LRS",
            Sku::StandardSsd => "StandardSSD_LRS",
            Sku::StandardSsdZrs => "StandardSSD_ZRS",
            Sku::Premium => "Premium_LRS",
            Sku::PremiumZrs => "Premium_ZRS",
            Sku::PremiumV2 => "PremiumV2_LRS",
            Sku::Ultra => "UltraSSD_LRS",
        }
    }

    /// In any case.
    pub fn named(name: &str) -> Option<Sku> {
        Sku::ALL.into_iter().find(|sku| sku.name().eq_ignore_ascii_case(name))
    }

    /// Whether it is kept in all zones of its region, and any machine there can have it attached.
    pub fn is_in_all_zones(self) -> bool {
        matches!(self, Sku::StandardSsdZrs | Sku::PremiumZrs)
    }

    /// Whether its IOPS and MB/s are chosen.
    pub fn has_rates(self) -> bool {
        matches!(self, Sku::PremiumV2 | Sku::Ultra)
    }

    /// Whether it has a performance tier that can be raised.
    pub fn has_tiers(self) -> bool {
        matches!(self, Sku::Premium | Sku::PremiumZrs)
    }

    /// Whether a disk of this type and size may burst on demand.
    pub fn may_burst(self, capacity: Bytes) -> bool {
        self.has_tiers() && capacity.0 > SMALL
    }

    /// Whether it may have performance plus ("Increase IOPS and throughput limits", limitations).
    pub fn has_performance_plus(self) -> bool {
        matches!(self, Sku::Standard | Sku::StandardSsd | Sku::Premium)
    }

    /// Whether a disk of this type and size may have it.
    pub fn may_have_performance_plus(self, capacity: Bytes) -> bool {
        self.has_performance_plus() && capacity.0 > SMALL
    }

    /// How many machines may have it attached at once ("Share an Azure managed disk"), whatever its size; a smaller disk takes fewer.
    pub fn most_shares(self) -> u64 {
        match self {
            Sku::Standard => 1,
            Sku::StandardSsd | Sku::StandardSsdZrs | Sku::Premium | Sku::PremiumZrs => 10,
            Sku::PremiumV2 | Sku::Ultra => 15,
        }
    }

    /// Whether a host may cache a disk of this type and size.
    pub fn may_be_cached(self, capacity: Bytes) -> bool {
        !self.has_rates() && capacity.0 < UNCACHED
    }

    /// Whether a disk may change from this type to that one without being copied ("Change the disk type of an Azure managed disk"): in the
    /// same zones, and not to or from types whose rates are chosen.
    pub fn may_become(self, other: Sku) -> bool {
        self == other || (!self.has_rates() && !other.has_rates() && self.is_in_all_zones() == other.is_in_all_zones())
    }

    pub fn bounds(self) -> (Bytes, Bytes) {
        let most = match self {
            Sku::PremiumV2 | Sku::Ultra => 64 * TIB,
            // 32,767 GiB.
            _ => 32 * TIB - GIB,
        };
        (Bytes(GIB), Bytes(most))
    }
}

impl fmt::Display for Sku {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_api() {
        for sku in Sku::ALL {
            assert_eq!(Sku::named(&sku.name().to_ascii_lowercase()), Some(sku));
            assert_eq!(serde_json::to_value(sku).expect("JSON"), sku.name());
        }
        assert!(Sku::Standard.may_become(Sku::Premium) && !Sku::Premium.may_become(Sku::PremiumZrs));
        assert!(!Sku::Premium.may_become(Sku::Ultra) && Sku::Ultra.may_become(Sku::Ultra));
        assert!(
            !Sku::Premium.may_burst(Bytes(512 * GIB))
                && Sku::PremiumZrs.may_burst(Bytes(513 * GIB))
                && !Sku::Ultra.may_burst(Bytes(TIB))
        );
        assert!(Sku::Premium.may_be_cached(Bytes(4 * TIB - GIB)) && !Sku::Premium.may_be_cached(Bytes(4 * TIB)));
    }
    #[test]
    fn tier_is_that_of_the_size_or_a_higher_one() {
        assert_eq!((tier_named("p30"), tier_named("P5")), (Some("P30"), None));
        for (tier, gib, refused) in [
            ("P10", 128, None),
            ("P10", 129, Some("less than P15")),
            ("P50", 4, None),
            ("P60", 4096, Some("more than 4 TiB")),
            ("P60", 4097, None),
            ("P80", 8193, None),
            ("P60", 8193, Some("less than P70")),
        ] {
            let why = why_no_tier(tier, Bytes(gib * GIB));
            assert_eq!(why.is_some(), refused.is_some(), "{tier} {gib}: {why:?}");
            assert!(why.unwrap_or_default().contains(refused.unwrap_or_default()), "{tier} {gib}");
        }
    }
}

//! The types of EBS volumes, and what can be asked of them.
//!
//! Sizes and rates are those of the EBS user guide ("Amazon EBS volume types"). They are there to work out a rate from a size, and to
//! refuse what no region has ever had; what a region has today is the cloud's word, which refuses with its own.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::volume::Bytes;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    Standard,
    Gp2,
    #[default]
    Gp3,
    Io1,
    Io2,
    St1,
    Sc1,
}

/// What a type allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    pub smallest: Bytes,
    pub largest: Bytes,
    /// `None` where IOPS cannot be chosen.
    pub iops: Option<Rate>,
    /// In MiB/s; `None` where it cannot be chosen.
    pub throughput: Option<Rate>,
    /// Whether IOPS must be chosen.
    pub iops_needed: bool,
    /// Whether it may be attached to several instances.
    pub multi_attach: bool,
}

/// What may be chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    pub least: u32,
    pub most: u32,
    /// The most per GiB of its size; `None` is no such bound.
    pub per_gib: Option<u32>,
}

const TIB: u64 = 1 << 40;

impl Kind {
    pub const ALL: [Kind; 7] = [Kind::Standard, Kind::Gp2, Kind::Gp3, Kind::Io1, Kind::Io2, Kind::St1, Kind::Sc1];

    pub fn name(self) -> &'static str {
        match self {
            Kind::Standard => "standard",
            Kind::Gp2 => "gp2",
            Kind::Gp3 => "gp3",
            Kind::Io1 => "io1",
            Kind::Io2 => "io2",
            Kind::St1 => "st1",
            Kind::Sc1 => "sc1",
        }
    }

    /// `None` for a type that is not known.
    pub fn named(name: &str) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| kind.name() == name)
    }

    pub fn bounds(self) -> Bounds {
        let plain = |smallest: u64, largest: u64| Bounds {
            smallest: Bytes(smallest << 30),
            largest: Bytes(largest),
            iops: None,
            throughput: None,
            iops_needed: false,
            multi_attach: false,
        };
        match self {
            Kind::Standard => plain(1, TIB),
            Kind::Gp2 => plain(1, 16 * TIB),
            Kind::Gp3 => Bounds {
                iops: Some(Rate { least: 3_000, most: 80_000, per_gib: Some(500) }),
                throughput: Some(Rate { least: 125, most: 2_000, per_gib: None }),
                ..plain(1, 64 * TIB)
            },
            Kind::Io1 => Bounds {
                iops: Some(Rate { least: 100, most: 64_000, per_gib: Some(50) }),
                iops_needed: true,
                multi_attach: true,
                ..plain(4, 16 * TIB)
            },
            Kind::Io2 => Bounds {
                iops: Some(Rate { least: 100, most: 256_000, per_gib: Some(1_000) }),
                iops_needed: true,
                multi_attach: true,
                ..plain(4, 64 * TIB)
            },
            Kind::St1 | Kind::Sc1 => plain(125, 16 * TIB),
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

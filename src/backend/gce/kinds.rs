//! Types of disks ("About Persistent Disk", "About Hyperdisk").

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::volume::Bytes;

const GIB: u64 = 1 << 30;
const TIB: u64 = 1 << 40;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// What gcp-compute-persistent-disk-csi-driver makes where a class says nothing.
    #[default]
    #[serde(rename = "pd-standard")]
    Standard,
    #[serde(rename = "pd-balanced")]
    Balanced,
    #[serde(rename = "pd-ssd")]
    Ssd,
    #[serde(rename = "pd-extreme")]
    Extreme,
    #[serde(rename = "hyperdisk-balanced")]
    HyperdiskBalanced,
    #[serde(rename = "hyperdisk-balanced-high-availability")]
    HyperdiskHighAvailability,
    #[serde(rename = "hyperdisk-extreme")]
    HyperdiskExtreme,
    #[serde(rename = "hyperdisk-throughput")]
    HyperdiskThroughput,
    #[serde(rename = "hyperdisk-ml")]
    HyperdiskMl,
}

impl Kind {
    pub const ALL: [Kind; 9] = [
        Kind::Standard,
        Kind::Balanced,
        Kind::Ssd,
        Kind::Extreme,
        Kind::HyperdiskBalanced,
        Kind::HyperdiskHighAvailability,
        Kind::HyperdiskExtreme,
        Kind::HyperdiskThroughput,
        Kind::HyperdiskMl,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Kind::Standard => "pd-standard",
            Kind::Balanced => "pd-balanced",
            Kind::Ssd => "pd-ssd",
            Kind::Extreme => "pd-extreme",
            Kind::HyperdiskBalanced => "hyperdisk-balanced",
            Kind::HyperdiskHighAvailability => "hyperdisk-balanced-high-availability",
            Kind::HyperdiskExtreme => "hyperdisk-extreme",
            Kind::HyperdiskThroughput => "hyperdisk-throughput",
            Kind::HyperdiskMl => "hyperdisk-ml",
        }
    }

    pub fn named(name: &str) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| kind.name() == name)
    }

    pub fn is_hyperdisk(self) -> bool {
        self.name().starts_with("hyperdisk-")
    }

    /// Whether it is kept in two zones only.
    pub fn is_always_regional(self) -> bool {
        self == Kind::HyperdiskHighAvailability
    }

    /// Whether it can be kept in two zones.
    pub fn may_be_regional(self) -> bool {
        matches!(self, Kind::Standard | Kind::Balanced | Kind::Ssd | Kind::HyperdiskHighAvailability)
    }

    /// Whether several machines may write to it at once (`READ_WRITE_MANY`).
    pub fn has_several_writers(self) -> bool {
        matches!(self, Kind::HyperdiskBalanced | Kind::HyperdiskHighAvailability | Kind::HyperdiskExtreme)
    }

    pub fn has_iops(self) -> bool {
        matches!(self, Kind::Extreme | Kind::HyperdiskBalanced | Kind::HyperdiskHighAvailability | Kind::HyperdiskExtreme)
    }

    pub fn has_throughput(self) -> bool {
        matches!(self, Kind::HyperdiskBalanced | Kind::HyperdiskHighAvailability | Kind::HyperdiskThroughput | Kind::HyperdiskMl)
    }

    /// The smallest and the largest disk; of those in two zones where `regional`.
    pub fn bounds(self, regional: bool) -> (Bytes, Bytes) {
        let (least, most) = match self {
            Kind::Standard if regional => (200 * GIB, 64 * TIB),
            Kind::Standard | Kind::Balanced | Kind::Ssd => (10 * GIB, 64 * TIB),
            Kind::Extreme => (500 * GIB, 64 * TIB),
            Kind::HyperdiskBalanced | Kind::HyperdiskHighAvailability | Kind::HyperdiskMl => (4 * GIB, 64 * TIB),
            Kind::HyperdiskExtreme => (64 * GIB, 64 * TIB),
            Kind::HyperdiskThroughput => (2 * TIB, 32 * TIB),
        };
        (Bytes(least), Bytes(most))
    }

    /// The least IOPS and MiB/s that a disk of this size must have: one that grows needs more in the same request.
    pub fn least_rates(self, capacity: Bytes) -> (u64, u64) {
        match self {
            Kind::HyperdiskExtreme => (2 * capacity.0.div_ceil(GIB), 0),
            Kind::HyperdiskThroughput => (0, 10 * capacity.0.div_ceil(TIB)),
            _ => (0, 0),
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_api() {
        for kind in Kind::ALL {
            assert_eq!(Kind::named(kind.name()), Some(kind));
            assert_eq!(serde_json::to_value(kind).expect("JSON"), kind.name());
        }
    }
}

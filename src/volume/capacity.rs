//! Sizes in bytes.

use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize};

use super::error::{Error, Result};

/// A number of bytes. Reads `10GiB`, `500M` or plain bytes; prints binary units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct Bytes(pub u64);

impl Bytes {
    pub const MIB: Bytes = Bytes(1 << 20);
    pub const GIB: Bytes = Bytes(1 << 30);

    /// `count` mebibytes.
    pub const fn mib(count: u64) -> Bytes {
        Bytes(count << 20)
    }

    /// The next multiple of `unit` bytes, this number included; saturates.
    pub const fn round_up(self, unit: u64) -> Bytes {
        Bytes(self.0.div_ceil(unit).saturating_mul(unit))
    }
}

impl FromStr for Bytes {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        text.parse::<bytesize::ByteSize>()
            .map(|size| Bytes(size.as_u64()))
            .map_err(|_| Error::invalid("size", format!("{text:?} is no size: write 10GiB, 500M or a number of bytes")))
    }
}

/// From a number of bytes, as files of ours have it, or from text, as people write it.
impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Size;
        impl Visitor<'_> for Size {
            type Value = Bytes;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a size such as 10GiB, 500M or a number of bytes")
            }

            fn visit_u64<E: de::Error>(self, bytes: u64) -> Result<Bytes, E> {
                Ok(Bytes(bytes))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Bytes, E> {
                text.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Size)
    }
}

impl JsonSchema for Bytes {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Bytes".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        schemars::json_schema!({
            "description": "As 10GiB or 500M, or a number of bytes.",
            "anyOf": [
                {"type": "integer", "minimum": 0},
                {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)? *([KMGTPEkmgtpe]i?)?[Bb]?$"},
            ],
        })
    }
}

impl fmt::Display for Bytes {
    /// Exact: `10 GiB` only where it is a whole number of them, else bytes with the rounded unit behind.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(&str, u32); 5] = [("PiB", 50), ("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
        for (unit, shift) in UNITS {
            if self.0 >= 1 << shift {
                if self.0.is_multiple_of(1 << shift) {
                    return write!(f, "{} {unit}", self.0 >> shift);
                }
                #[allow(clippy::cast_precision_loss, reason = "only for show; the exact figure stands beside it")]
                let rounded = self.0 as f64 / (1u64 << shift) as f64;
                return write!(f, "{rounded:.1} {unit} ({} bytes)", self.0);
            }
        }
        write!(f, "{} bytes", self.0)
    }
}

/// What the CO asks for: at least `required`, at most `limit` (CSI spec, CapacityRange).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CapacityRange {
    required: Option<Bytes>,
    limit: Option<Bytes>,
}

impl CapacityRange {
    /// A range from the protocol's numbers, where 0 means "not said".
    pub fn new(required_bytes: i64, limit_bytes: i64) -> Result<Self> {
        let said = |field: &'static str, value: i64| match value {
            0 => Ok(None),
            value => u64::try_from(value)
                .map(|bytes| Some(Bytes(bytes)))
                .map_err(|_| Error::OutOfRange { field, reason: format!("{value} is negative") }),
        };
        let required = said("capacity_range.required_bytes", required_bytes)?;
        let limit = said("capacity_range.limit_bytes", limit_bytes)?;
        if let (Some(required), Some(limit)) = (required, limit)
            && required > limit
        {
            return Err(Error::invalid(
                "capacity_range",
                format!("required_bytes ({required}) is more than limit_bytes ({limit})"),
            ));
        }
        Ok(CapacityRange { required, limit })
    }

    /// The least that is asked for.
    pub fn required(&self) -> Option<Bytes> {
        self.required
    }

    /// The most that is allowed.
    pub fn limit(&self) -> Option<Bytes> {
        self.limit
    }

    /// Whether a volume of `capacity` satisfies the range.
    pub fn accepts(&self, capacity: Bytes) -> bool {
        self.required.is_none_or(|required| capacity >= required) && self.limit.is_none_or(|limit| capacity <= limit)
    }

    /// The size to make: what is required, else `default`, in whole `unit`s and at least `least`. A smaller requirement is met by that
    /// (CSI spec, CapacityRange: "Volume MUST be at least this big").
    ///
    /// # Errors
    /// OUT_OF_RANGE where the limit leaves no such size.
    pub fn choose(&self, default: Bytes, least: Bytes, unit: u64) -> Result<Bytes> {
        let wanted = match (self.required, self.limit) {
            (Some(required), _) => required,
            (None, Some(limit)) => default.max(least).min(limit),
            (None, None) => default.max(least),
        };
        let size = wanted.max(least).round_up(unit);
        match self.limit {
            // Without a requirement any size up to the limit will do, so round down instead.
            Some(limit) if size > limit && self.required.is_none() && limit.0 - limit.0 % unit >= least.0.max(unit) => {
                Ok(Bytes(limit.0 - limit.0 % unit))
            }
            Some(limit) if size > limit => Err(Error::OutOfRange {
                field: "capacity_range.limit_bytes",
                reason: format!(
                    "no size of whole {} and at least {} up to {limit}; allow at least {size}",
                    Bytes(unit),
                    wanted.max(least)
                ),
            }),
            _ => Ok(size),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(required: i64, limit: i64) -> CapacityRange {
        CapacityRange::new(required, limit).expect("a valid range")
    }

    #[test]
    fn sizes_read_as_people_write_them() {
        for (text, bytes) in [("10GiB", 10 << 30), ("500M", 500_000_000), ("4096", 4096), ("1 KiB", 1024)] {
            assert_eq!(text.parse::<Bytes>().expect(text), Bytes(bytes));
        }
        assert!("ten".parse::<Bytes>().is_err());
        assert!("-1".parse::<Bytes>().is_err());
    }

    #[test]
    fn required_bytes_are_rounded_up_and_never_above_the_limit() {
        let least = Bytes::MIB;
        assert_eq!(range(5000, 0).choose(Bytes::GIB, Bytes(4096), 4096).expect("fits"), Bytes(8192));
        assert!(range(5000, 6000).choose(Bytes::GIB, Bytes(4096), 4096).is_err());
        assert_eq!(range(0, 5 << 20).choose(Bytes::GIB, least, 4096).expect("fits"), Bytes::mib(5));
        assert_eq!(range(0, (5 << 20) + 1).choose(Bytes::GIB, least, 4096).expect("fits"), Bytes::mib(5));
        assert_eq!(range(0, 0).choose(Bytes::GIB, least, 4096).expect("fits"), Bytes::GIB);
        assert_eq!(range(1, 0).choose(Bytes::GIB, least, 4096).expect("rounded up"), least);
        assert!(range(1, 4096).choose(Bytes::GIB, least, 4096).is_err());
        assert!(range(0, 4096).choose(Bytes::GIB, least, 4096).is_err());
    }

    #[test]
    fn nonsense_is_refused() {
        assert!(CapacityRange::new(-1, 0).is_err());
        assert!(CapacityRange::new(2, 1).is_err());
    }
}

//! How much a pod may read and write of a volume in a second.

use std::fmt;
use std::num::NonZeroU64;

use serde::{Deserialize, Serialize};

use super::{Bytes, Error, Result};

/// Limits of one volume for each pod that has it. `None` leaves a limit as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct IoLimits {
    /// Bytes a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_bandwidth: Option<IoLimit>,
    /// Bytes a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_bandwidth: Option<IoLimit>,
    /// Requests a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_iops: Option<IoLimit>,
    /// Requests a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_iops: Option<IoLimit>,
}

/// The most in a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum IoLimit {
    /// As much as there is.
    Max,
    Of(NonZeroU64),
}

impl IoLimits {
    /// The names of the parameters above.
    pub const KEYS: [&str; 4] = ["readBandwidth", "writeBandwidth", "readIops", "writeIops"];

    /// Of a volume that nobody limits any more.
    pub const MAX: IoLimits = IoLimits {
        read_bandwidth: Some(IoLimit::Max),
        write_bandwidth: Some(IoLimit::Max),
        read_iops: Some(IoLimit::Max),
        write_iops: Some(IoLimit::Max),
    };

    /// That each is one with which a pod can work, and which the kernel shows as it was given.
    ///
    /// # Errors
    /// `Invalid`, naming the parameter.
    pub fn check(&self) -> Result<()> {
        // Slower, a process that ends could not be ended for hours, since it waits for its writes. The kernel has IOPS as 32 bits, the
        // largest of which is "max".
        let (bandwidth, iops) = ((64 << 10, u64::MAX - 1), (10, u64::from(u32::MAX) - 1));
        for (key, limit, (least, most)) in [
            ("readBandwidth", self.read_bandwidth, bandwidth),
            ("writeBandwidth", self.write_bandwidth, bandwidth),
            ("readIops", self.read_iops, iops),
            ("writeIops", self.write_iops, iops),
        ] {
            if let Some(IoLimit::Of(number)) = limit.filter(|limit| *limit != IoLimit::Max)
                && !(least..=most).contains(&number.get())
            {
                return Err(Error::invalid("parameters", format!("{key}: {number} is not between {least} and {most}")));
            }
        }
        Ok(())
    }

    /// Whether nothing is limited by them.
    pub fn are_max(&self) -> bool {
        IoLimits::MAX.with(*self) == IoLimits::MAX
    }

    /// These, and what `later` says instead.
    #[must_use]
    pub fn with(self, later: IoLimits) -> IoLimits {
        IoLimits {
            read_bandwidth: later.read_bandwidth.or(self.read_bandwidth),
            write_bandwidth: later.write_bandwidth.or(self.write_bandwidth),
            read_iops: later.read_iops.or(self.read_iops),
            write_iops: later.write_iops.or(self.write_iops),
        }
    }
}

/// As a control group has it (`io.max`): `max` or a number.
impl fmt::Display for IoLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            IoLimit::Max => f.write_str("max"),
            IoLimit::Of(number) => number.fmt(f),
        }
    }
}

impl From<IoLimit> for String {
    fn from(limit: IoLimit) -> String {
        limit.to_string()
    }
}

impl TryFrom<String> for IoLimit {
    type Error = String;

    fn try_from(text: String) -> std::result::Result<IoLimit, String> {
        if text == "max" {
            return Ok(IoLimit::Max);
        }
        let wrong = || format!("{text:?} is no limit: write 100MiB, a number other than 0, or max for none");
        let Bytes(number) = text.parse().map_err(|_: Error| wrong())?;
        NonZeroU64::new(number).map(IoLimit::Of).ok_or_else(wrong)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volume::RawParameters;

    fn parsed(pairs: &[(&str, &str)]) -> Result<IoLimits> {
        RawParameters::new(pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))).parse()
    }

    #[test]
    fn limit_is_a_size_a_number_or_none() {
        let limits = parsed(&[("readBandwidth", "2MiB"), ("writeIops", "120"), ("readIops", "max")]).expect("limits");
        let as_text = |limit: Option<IoLimit>| limit.map(|limit| limit.to_string());
        assert_eq!(as_text(limits.read_bandwidth).as_deref(), Some("2097152"));
        assert_eq!(as_text(limits.write_iops).as_deref(), Some("120"));
        assert_eq!((as_text(limits.read_iops).as_deref(), limits.write_bandwidth), (Some("max"), None));
        let json = serde_json::to_value(limits).expect("JSON");
        assert_eq!(serde_json::from_value::<IoLimits>(json).expect("our own"), limits);
        for wrong in ["0", "-1", "", "unlimited", "0MiB"] {
            let error = parsed(&[("writeIops", wrong)]).expect_err(wrong).to_string();
            assert!(error.contains("writeIops") && error.contains("max"), "{wrong}: {error}");
        }
    }

    #[test]
    fn every_key_is_a_field() {
        for key in IoLimits::KEYS {
            let limits = parsed(&[(key, "65536")]).expect(key);
            limits.check().expect(key);
            assert!(!limits.are_max(), "{key}");
            let error = parsed(&[(key, "9")]).expect("a number").check().expect_err("too slow").to_string();
            assert!(error.contains(key), "{error}");
        }
    }

    #[test]
    fn later_limits_replace_only_what_they_name() {
        let class = parsed(&[("readIops", "100"), ("writeIops", "50")]).expect("limits");
        let later = parsed(&[("writeIops", "max"), ("readBandwidth", "1k")]).expect("limits");
        let both = parsed(&[("readIops", "100"), ("writeIops", "max"), ("readBandwidth", "1000")]).expect("limits");
        assert_eq!(class.with(later), both);
        assert_eq!(class.with(IoLimits::default()), class);
        assert!(parsed(&[("writeIops", "max")]).expect("limits").are_max() && IoLimits::default().are_max());
        assert!(!both.are_max());
    }

    #[test]
    fn limit_that_the_kernel_would_change_is_refused() {
        // `riops` is 32 bits, and the largest is shown as "max" (block/blk-throttle.c, tg_set_limit).
        for (key, value, fits) in [
            ("readIops", "4294967294", true),
            ("readIops", "4294967295", false),
            ("writeIops", "5000000000", false),
            ("writeBandwidth", "18446744073709551614", true),
            ("writeBandwidth", "18446744073709551615", false),
            ("readBandwidth", "64KiB", true),
            ("readBandwidth", "65535", false),
            ("readIops", "10", true),
            ("readIops", "max", true),
        ] {
            assert_eq!(parsed(&[(key, value)]).expect(value).check().is_ok(), fits, "{key} {value}");
        }
    }
}

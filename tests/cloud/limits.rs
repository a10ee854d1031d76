//! What sizes, IOPS and throughput EBS takes, by type: "Amazon EBS volume types" in the Amazon EBS User Guide.

use super::actions::{Refusal, refuse};

/// GiB, IOPS (none where it takes none), IOPS for each GiB at most, MiB/s.
struct Limits {
    size: (u64, u64),
    iops: Option<(u64, u64)>,
    ratio: u64,
    throughput: Option<(u64, u64)>,
}

const fn limits(size: (u64, u64), iops: Option<(u64, u64)>, ratio: u64, throughput: Option<(u64, u64)>) -> Limits {
    Limits { size, iops, ratio, throughput }
}

const TYPES: &[(&str, Limits)] = &[
    ("gp2", limits((1, 16_384), None, 0, None)),
    ("gp3", limits((1, 65_536), Some((3000, 80_000)), 500, Some((125, 2000)))),
    ("io1", limits((4, 16_384), Some((100, 64_000)), 50, None)),
    ("io2", limits((4, 65_536), Some((100, 256_000)), 1000, None)),
    ("st1", limits((125, 16_384), None, 0, None)),
    ("sc1", limits((125, 16_384), None, 0, None)),
    ("standard", limits((1, 1024), None, 0, None)),
];
/// gp3 has 3000 IOPS whatever its size, and a MiB/s for each four of them.
const FREE_IOPS: u64 = 3000;

pub fn takes_iops(kind: &str) -> bool {
    TYPES.iter().any(|(name, limits)| *name == kind && limits.iops.is_some())
}

pub fn check(kind: &str, size: u64, iops: Option<u64>, throughput: Option<u64>) -> Result<(), Refusal> {
    let Some((_, limits)) = TYPES.iter().find(|(name, _)| *name == kind) else {
        return refuse("UnknownVolumeType", format!("Unknown volume type: {kind}"));
    };
    let bounded = |what: &str, value: u64, (least, most): (u64, u64)| match value {
        value if value < least => {
            refuse("InvalidParameterValue", format!("Volume {what} of {value} is too low; minimum is {least}."))
        }
        value if value > most => {
            refuse("InvalidParameterValue", format!("Volume {what} of {value} is too high; maximum is {most}."))
        }
        _ => Ok(()),
    };
    bounded("size", size, limits.size)?;
    match (iops, limits.iops) {
        (Some(iops), Some(bounds)) => {
            bounded("iops", iops, bounds)?;
            if iops > (size * limits.ratio).max(if kind == "gp3" { FREE_IOPS } else { 0 }) {
                let message =
                    format!("Iops to volume size ratio of {}.000000 is too high; maximum is {}", iops / size, limits.ratio);
                return refuse("InvalidParameterValue", message);
            }
        }
        (Some(_), None) => {
            return refuse("InvalidParameterCombination", format!("The parameter iops is not supported for {kind} volumes."));
        }
        (None, Some(_)) if kind.starts_with("io") => {
            return refuse("MissingParameter", format!("The parameter iops must be specified for {kind} volumes."));
        }
        (None, _) => {}
    }
    match (throughput, limits.throughput) {
        (Some(throughput), Some(bounds)) => {
            bounded("throughput", throughput, bounds)?;
            if throughput * 4 > iops.unwrap_or(FREE_IOPS) {
                let message = "Throughput (MiBps) to iops ratio is too high; maximum is 0.250000 MiBps per iops.";
                return refuse("InvalidParameterValue", message);
            }
            Ok(())
        }
        (Some(_), None) => {
            refuse("InvalidParameterCombination", format!("The parameter throughput is not supported for {kind} volumes."))
        }
        (None, _) => Ok(()),
    }
}

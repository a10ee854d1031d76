//! What is wrong with a volume or with a whole storage system.

/// How bad it is (CSI spec, VolumeHealthErrorType and StorageHealthErrorType).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Usable, not as it should be.
    Degraded,
    /// Cannot be used (from here).
    Inaccessible,
    /// Data is lost, or very likely.
    DataLoss,
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthProblem {
    pub severity: Severity,
    /// CamelCase, for machines: `ImageMissing`.
    pub reason: &'static str,
    /// For people: what was seen, and what to do.
    pub message: String,
}

/// All that is known to be wrong; empty is healthy. No two of one severity and reason.
pub type Health = Vec<HealthProblem>;

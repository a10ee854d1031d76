//! How much is in a backend, for metrics.

use crate::volume::Bytes;

/// How much is in a backend.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// By name; `None` for one that cannot be used now.
    pub pools: Vec<(String, Option<PoolUsage>)>,
    /// Of volumes to nodes, where volumes are attached at all.
    pub attachments: Option<u64>,
}

/// How much is in a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolUsage {
    /// What lies below it.
    pub total: Bytes,
    /// Of that, by any file.
    pub used: Option<Bytes>,
    /// Of a thin pool: what part of its metadata is used, in hundredths of a percent.
    pub metadata: Option<u32>,
    /// What may be provisioned.
    pub provisionable: Bytes,
    /// `None` where this process does not provision from it.
    pub provisioned: Option<Provisioned>,
}

/// What was provisioned from a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Provisioned {
    pub provisioned: Bytes,
    pub volumes: u64,
    pub snapshots: u64,
}

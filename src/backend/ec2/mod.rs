//! Amazon EBS.

pub mod connect;
pub mod disks;
pub mod limits;
pub mod metadata;
pub mod zone;

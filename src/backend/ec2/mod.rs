//! AWS Elastic Block Store.

pub mod api;

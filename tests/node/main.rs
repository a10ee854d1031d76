//! The node's operations on the real kernel: loop devices, file systems, bind mounts, in a mount namespace of each test's own.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod block;
mod filesystem;
mod harness;
#[path = "../common/holder.rs"]
mod holder;
mod inline;
mod mounts;
mod recovery;

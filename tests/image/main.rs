//! The image backend on the real kernel: what the files, extents and loop devices show, not what our code says.

#![allow(clippy::disallowed_methods, reason = "tests start programs")]

mod boots;
mod capacity;
mod content;
mod groups;
mod harness;
mod lists;
mod node;
mod pools;
mod shared;

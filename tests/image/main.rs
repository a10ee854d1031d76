//! The image backend on the real kernel: what the files, extents and loop devices show, not what our code says.

#![allow(clippy::disallowed_methods, reason = "tests start programs")]

mod bench;
mod boots;
mod capacity;
mod content;
mod groups;
mod node;
mod pools;
mod shared;

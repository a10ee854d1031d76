//! The backends of cloud block stores, against an emulated cloud that is as unfriendly as real ones: socket in, cloud out.
//!
//! It takes a driver with the feature `faults`, whose clock of the cloud runs as fast as the emulated one, and which can be killed at
//! each step.
#![cfg(all(feature = "ec2", feature = "faults"))]
#![allow(clippy::disallowed_methods, reason = "tests start programs, and the emulated cloud waits")]

#[path = "../common/mod.rs"]
mod common;

mod actions;
#[cfg(feature = "azure")]
mod azure;
mod bad_input;
mod buckets;
#[cfg(feature = "cinder")]
mod cinder;
mod clock;
mod cluster;
mod company;
mod driver;
mod ec2 {
    mod cluster;
}
#[cfg_attr(not(any(feature = "azure", feature = "cinder")), allow(dead_code, reason = "only the proxies of the others use it"))]
mod emulated;
mod fault_injection;
mod front;
mod garbage;
#[cfg(feature = "gce")]
mod gce;
mod lifecycle;
mod limits;
mod machine;
mod moto;
mod peers;
mod proxy;
mod proxy_tests;
mod rights;
mod rights_tests;
mod sanity;
#[cfg(any(feature = "azure", feature = "cinder", feature = "gce"))]
mod scale;
mod state;
#[cfg(any(feature = "azure", feature = "cinder", feature = "gce"))]
mod tenant;
mod tls;
mod wire;
mod xml;

/// What the tests' drivers sign with.
const KEY: &str = "AKIALONGSHORETEST000";

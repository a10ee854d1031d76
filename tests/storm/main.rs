//! Clients that give up, repeat themselves, come out of order and all at once; and volumes that are stuck.
#![cfg(feature = "faults")]

#[path = "../common/mod.rs"]
mod common;

mod calls;
mod gate;
mod storms;
mod stuck;
mod timeouts;

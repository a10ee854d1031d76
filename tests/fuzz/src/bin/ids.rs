//! Ids of volumes, snapshots, groups, nodes and backends.
#![no_main]

use std::fmt::Display;
use std::str::FromStr;

use libfuzzer_sys::fuzz_target;
use longshore::volume::id::MAX_ID;
use longshore::volume::{BackendName, GroupId, NodeId, SnapshotId, VolumeId};

/// What is accepted is printed as it was.
fn same<Id: FromStr + Display>(text: &str) -> bool {
    match text.parse::<Id>() {
        Ok(id) => {
            assert_eq!(id.to_string(), text);
            true
        }
        Err(_) => false,
    }
}

macro_rules! handle {
    ($id:ident, $text:expr, $other:expr, $backend:expr) => {
        if same::<$id>($text) {
            assert!($text.len() <= MAX_ID);
            let id: $id = $text.parse().expect("just parsed");
            let local = id.local();
            assert!(!local.is_empty() && !local.starts_with('.'));
            assert!(local.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte)));
            assert_eq!($id::from_parts(id.backend(), local).expect("its own parts"), id);
        }
        // Any name gives an id that can be one, always the same, and no other name's.
        let derived = $id::derive($backend, $text);
        assert!(same::<$id>(&derived.to_string()));
        assert_eq!(derived == $id::derive($backend, $other), $text == $other);
    };
}

// A text, and in a second line another.
fuzz_target!(|input: &str| {
    let (text, other) = input.split_once('\n').unwrap_or((input, "other"));
    let longest: BackendName = "a23456789012345678901234567890-2".parse().expect("32 characters");
    handle!(VolumeId, text, other, &longest);
    handle!(SnapshotId, text, other, &longest);
    handle!(GroupId, text, other, &longest);
    if same::<NodeId>(text) {
        assert!(text.len() <= 192 && text.bytes().all(|byte| byte.is_ascii_graphic()));
    }
    if same::<BackendName>(text) {
        assert!(text.len() <= 32 && !text.contains(':'));
    }
});

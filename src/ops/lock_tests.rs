use std::path::Path;
use std::sync::Arc;

use super::lock::{Key, Locks};
use crate::os::step::{self, Progress};

fn volume() -> Key {
    Key::Volume("image:a".parse().expect("a valid id"))
}

#[test]
fn second_caller_gets_what_the_first_one_does() {
    let locks = Locks::default();
    let progress = Arc::new(Progress::default());
    let guard = step::with_progress(progress, || {
        let guard = locks.exclusive(volume(), "stage").expect("free");
        step::note("mkfs", &"/dev/loop3");
        guard
    });
    let error = locks.shared(volume(), "publish").expect_err("held");
    assert!(error.to_string().contains("stage has been at \"mkfs /dev/loop3\""), "{error}");
    drop(guard);
    assert!(locks.shared(volume(), "publish").is_ok());
}

#[test]
fn sharers_keep_the_exclusive_out_until_the_last_has_left() {
    let locks = Locks::default();
    let first = locks.shared(volume(), "publish").expect("free");
    let second = locks.shared(volume(), "publish").expect("shared");
    drop(first);
    assert!(locks.exclusive(volume(), "unstage").is_err());
    drop(second);
    assert!(locks.exclusive(volume(), "unstage").is_ok());
    assert!(locks.running().is_empty(), "an idle lock costs nothing");
}

#[test]
fn id_with_and_without_a_recorded_disk_shares_one_lock() {
    let locks = Locks::default();
    let derived: crate::volume::VolumeId = "ebs:pvc-1".parse().expect("a valid id");
    let recorded = derived.record("vol-1").expect("recorded");
    let _created = locks.exclusive(Key::Volume(derived), "create volume").expect("free");
    locks.exclusive(Key::Volume(recorded), "delete volume").expect_err("it is being created");
}

#[test]
fn keys_do_not_disturb_each_other() {
    let locks = Locks::default();
    let _volume = locks.exclusive(volume(), "stage").expect("free");
    let _target = locks.exclusive(Key::target(Path::new("/a")), "publish").expect("another object");
}

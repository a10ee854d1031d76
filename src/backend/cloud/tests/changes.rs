//! Volumes grow and change, whatever the cloud does.

use super::super::CloudErrorKind;
use super::fake::Wrong::{Lost, Refused, Rival};
use super::*;
use crate::backend::{Expand, Modify};

impl Bench {
    fn expanding(&self) -> &dyn Expand {
        Backend::expand(&self.backend).expect("it can")
    }
    fn modifying(&self) -> &dyn Modify {
        self.backend.modify().expect("a controller")
    }
}

fn twice() -> Bytes {
    Bytes(2 * GIB.0)
}

#[test]
fn size_and_attributes_become_one_change() {
    let bench = Bench::new();
    bench.create("one").expect("made");
    std::thread::scope(|scope| {
        let grown = scope.spawn(|| bench.expanding().expand(&bench.id("one"), twice()).expect("grown"));
        bench.modifying().modify(&bench.id("one"), &raw(&[("speed", "9")])).expect("changed");
        assert_eq!(grown.join().expect("no panic").into_inner(), twice());
    });
    assert_eq!(bench.cloud.count("change_disk"), 1);
    let disk = &bench.cloud.disks_now()[0];
    assert_eq!((disk.capacity, &disk.settings), (twice(), &json!({"speed": "9"})));
    assert_eq!(bench.expanding().expand(&bench.id("one"), twice()).expect("so already"), Outcome::Unchanged(twice()));
    assert_eq!(bench.modifying().modify(&bench.id("one"), &raw(&[("speed", "9")])).expect("so already"), Outcome::Unchanged(()));
    assert_eq!(bench.cloud.count("change_disk"), 1);
    let error = bench.expanding().expand(&bench.id("one"), Bytes(3 * GIB.0)).expect_err("too soon");
    assert!(matches!(&error, Error::Throttled { reason, .. } if reason.contains("may be changed again from 20")), "{error}");
    assert!(matches!(bench.modifying().modify(&id("none"), &raw(&[("speed", "9")])), Err(Error::NotFound { .. })));
    assert!(bench.modifying().check(&raw(&[("spede", "9")])).is_err());
}

/// Between the look and the request another controller, or what a killed process began, has made the disk so: "cannot be resized to a smaller
/// size".
#[test]
fn refused_change_that_another_program_has_made_is_done() {
    let bench = Bench::new();
    bench.create("one").expect("made");
    bench.cloud.wrong("change_disk", [Rival(CloudErrorKind::Invalid)]);
    assert_eq!(bench.expanding().expand(&bench.id("one"), twice()).expect("it is so"), Outcome::Changed(twice()));
    bench.create("two").expect("made");
    bench.cloud.wrong("change_disk", [Refused(CloudErrorKind::Invalid)]);
    bench.expanding().expand(&bench.id("two"), twice()).expect_err("it is not");
}

#[test]
fn a_new_volume_has_its_attributes_at_once() {
    let bench = Bench::new();
    let mutable = raw(&[("speed", "3")]);
    bench.create_as(&VolumeSpec { mutable: mutable.clone(), ..spec("one") }).expect("made");
    assert_eq!(bench.modifying().modify(&bench.id("one"), &mutable).expect("so already"), Outcome::Unchanged(()));
    assert_eq!(bench.cloud.count("change_disk"), 0);
}

#[test]
fn a_change_that_continues_is_waited_for() {
    let mut bench = Bench::new();
    bench.create("one").expect("made");
    bench.cloud.state().delays.change = None;
    bench.cloud.wrong("change_disk", [Lost]);
    let error = bench.expanding().expand(&bench.id("one"), twice()).expect_err("no answer");
    assert!(!is_final(&error), "{error}");
    bench.restart();
    let error = bench.expanding().expand(&bench.id("one"), twice()).expect_err("it continues");
    assert!(matches!(error, Error::InProgress { .. }), "{error}");
    std::thread::scope(|scope| {
        let grown = scope.spawn(|| bench.expanding().expand(&bench.id("one"), twice()).expect("grown").into_inner());
        bench.cloud.change(&bench.cloud.disks_now()[0].id, twice());
        assert_eq!(grown.join().expect("no panic"), twice());
    });
    assert_eq!(bench.cloud.count("change_disk"), 1);
}

#[test]
fn a_refusal_to_change_has_its_meaning() {
    let bench = Bench::new();
    bench.create("one").expect("made");
    for (because, is_over) in [
        (CloudErrorKind::TooSoon, false),
        (CloudErrorKind::Invalid, true),
        (CloudErrorKind::Denied, true),
        (CloudErrorKind::Throttled, false),
    ] {
        bench.cloud.wrong("change_disk", [Refused(because)]);
        let error = bench.expanding().expand(&bench.id("one"), twice()).expect_err("refused");
        assert_eq!(is_final(&error), is_over, "{error}");
    }
    let error = bench.expanding().expand(&bench.id("one"), Bytes(GIB.0 << 20)).expect_err("too large");
    assert!(matches!(error, Error::OutOfRange { .. }), "{error}");
    // Its type was changed after it was made: the bound is that of its type now.
    let disk = bench.cloud.disks_now()[0].id.clone();
    bench.cloud.with_disk(&disk, |disk| disk.settings = json!({"speed": "slow"}));
    let error = bench.expanding().expand(&bench.id("one"), Bytes(65 * GIB.0)).expect_err("too large for a slow one");
    assert!(matches!(error, Error::OutOfRange { .. }), "{error}");
    // What is refused together is tried apart, and each gets its own.
    let before = bench.cloud.count("change_disk");
    bench.cloud.wrong("change_disk", [CloudErrorKind::Invalid; 3].map(Refused));
    std::thread::scope(|scope| {
        let grown = scope.spawn(|| bench.expanding().expand(&bench.id("one"), twice()).expect_err("refused"));
        let changed = bench.modifying().modify(&bench.id("one"), &raw(&[("speed", "9")])).expect_err("refused");
        assert!(is_final(&changed) && is_final(&grown.join().expect("no panic")));
    });
    assert_eq!(bench.cloud.count("change_disk"), before + 3);
    // Any other refusal is both's.
    bench.cloud.wrong("change_disk", [Refused(CloudErrorKind::Throttled)]);
    std::thread::scope(|scope| {
        let grown = scope.spawn(|| bench.expanding().expand(&bench.id("one"), twice()).expect_err("refused"));
        let changed = bench.modifying().modify(&bench.id("one"), &raw(&[("speed", "9")])).expect_err("refused");
        assert_eq!(changed.to_string(), grown.join().expect("no panic").to_string());
    });
}

#[test]
fn a_change_that_is_not_shown_yet_is_not_asked_for_again() {
    let bench = Bench::new();
    bench.create("one").expect("made");
    bench.expanding().expand(&bench.id("one"), twice()).expect("grown");
    bench.cloud.with_disk(&bench.cloud.disks_now()[0].id.clone(), |disk| disk.capacity = GIB);
    assert_eq!(bench.expanding().expand(&bench.id("one"), twice()).expect("grown"), Outcome::Changed(twice()));
    assert_eq!(bench.cloud.count("change_disk"), 1);
}

//! What is made once stays one, in clouds whose repeats are recognised by a name, or by nothing.

use super::super::CloudErrorKind;
use super::fake::Wrong::{Lost, NotDone, Refused};
use super::stand_in::StandIn;
use super::*;

/// A cloud, and one driver of it after the other.
pub(super) struct Site {
    pub clock: Clock,
    pub cloud: Arc<StandIn>,
    pub backend: CloudBackend,
}

impl Site {
    pub fn new(cloud: StandIn) -> Site {
        let (clock, cloud) = (Clock::fast(SPEED, Duration::from_secs(3600)), Arc::new(cloud));
        Site { clock, backend: driver_of(Arc::clone(&cloud) as _, clock), cloud }
    }

    /// The driver is killed, and another one begins.
    pub fn restart(&mut self) {
        self.backend = driver_of(Arc::clone(&self.cloud) as _, Clock::fast(SPEED, Duration::ZERO));
    }

    pub fn provision(&self) -> &dyn Provision {
        self.backend.provision().expect("a controller")
    }

    /// As `ops` does: find first.
    pub fn ensure(&self, spec: &VolumeSpec) -> Result<Volume> {
        match self.provision().find(&spec.id)? {
            Some(volume) => Ok(volume),
            None => self.provision().create(spec, &Nothing),
        }
    }

    /// Until it has succeeded, each time by another process.
    pub fn insist(&mut self, spec: &VolumeSpec) -> Volume {
        for _ in 0..9 {
            match self.ensure(spec) {
                Ok(volume) => return volume,
                Err(error) => assert!(!is_final(&error), "{error}"),
            }
            self.restart();
        }
        panic!("it is never made")
    }
}

fn in_zone(name: &str, place: &str) -> VolumeSpec {
    VolumeSpec { topology: TopologyRequirement { requisite: Vec::new(), preferred: vec![zone(place)] }, ..spec(name) }
}

#[test]
fn lost_request_of_a_cloud_without_tokens_makes_one_disk() {
    for wrong in [vec![Lost], vec![NotDone], vec![Lost, Lost], vec![NotDone, Lost, Lost], vec![NotDone, NotDone, NotDone]] {
        for cloud in [StandIn::new, StandIn::without_names] {
            let mut site = Site::new(cloud());
            site.cloud.wrong("create_disk", wrong.clone());
            let made = site.insist(&spec("one"));
            let disks = site.cloud.disks_now();
            assert_eq!(disks.len(), 1, "{wrong:?}");
            assert_eq!(made.id.recorded(), Some(disks[0].id.0.as_str()), "the cloud's own id is recorded");
            assert_eq!(site.ensure(&spec("one")).expect("a repeat"), made);
            assert_eq!(*made.parameters, spec("one").parameters, "what is kept in a text comes back as it was");
            site.cloud.wrong("delete_disk", [Lost]);
            assert_eq!(site.provision().delete(&made.id).expect("deleted"), Outcome::Changed(()));
            assert_eq!(site.provision().delete(&made.id).expect("a repeat"), Outcome::Unchanged(()));
            assert_eq!(site.cloud.disks_now(), []);
        }
    }
}

#[test]
fn disk_that_is_not_shown_yet_is_not_made_again() {
    for cloud in [StandIn::new, StandIn::without_names] {
        let site = Site::new(cloud());
        site.cloud.wrong("create_disk", [Lost]);
        site.cloud.state().hides = true;
        for _ in 0..2 {
            assert!(!is_final(&site.ensure(&spec("one")).expect_err("not shown")));
            assert!(!is_final(&site.provision().delete(&id("one")).expect_err("it may be there")));
        }
        site.cloud.state().hides = false;
        site.ensure(&spec("one")).expect("found");
        assert_eq!(site.cloud.disks_now().len(), 1);
    }
}

#[test]
fn name_is_used_again_after_its_disk() {
    let mut site = Site::new(StandIn::new());
    let first = site.ensure(&spec("one")).expect("made");
    site.provision().delete(&first.id).expect("deleted");
    let second = site.ensure(&spec("one")).expect("made again");
    assert_eq!(first.id, second.id);
    assert!(site.provision().find(&second.id).expect("looked").is_some(), "what this process deleted was another disk");
    site.restart();
    site.provision().delete(&second.id).expect("deleted");
    assert_eq!(site.cloud.disks_now(), []);
    assert!(second.id.to_string().len() <= 128);
}

#[test]
fn disk_of_the_name_is_compared_before_it_is_used() {
    let site = Site::new(StandIn::new());
    site.ensure(&spec("one")).expect("made");
    let larger = VolumeSpec { capacity: Bytes(2 * GIB.0), ..spec("one") };
    let other = driver_of(Arc::clone(&site.cloud) as _, site.clock);
    let create = |spec| other.provision().expect("a controller").create(spec, &Nothing);
    assert!(matches!(create(&larger), Err(Error::Conflict { .. })));
    // A look that fails after the refusal ends nothing.
    site.cloud.wrong("disks", [Refused(CloudErrorKind::Throttled), Refused(CloudErrorKind::Denied)]);
    for _ in 0..2 {
        assert!(!is_final(&other.provision().expect("a controller").find(&id("one")).expect_err("no answer")));
    }
    // One of the name that is not ours is neither used nor deleted, and not taken for absent.
    site.cloud.retag(|tags| drop(tags.insert(super::super::tags::CLUSTER.to_owned(), "theirs".to_owned())));
    let other = driver_of(Arc::clone(&site.cloud) as _, site.clock);
    let provision = other.provision().expect("a controller");
    for error in [
        provision.find(&id("one")).map(drop).expect_err("not ours"),
        provision.create(&spec("one"), &Nothing).map(drop).expect_err("not ours"),
        provision.delete(&id("one")).map(drop).expect_err("not ours"),
    ] {
        assert!(matches!(error, Error::Unverified { .. }), "{error}");
    }
    assert_eq!((site.cloud.disks_now().len(), site.cloud.count("delete_disk")), (1, 0));
}

/// A name is unique in one zone only: the volume, scheduled elsewhere after a lost answer, must not get a second disk of its name there.
#[test]
fn volume_wanted_in_another_zone_after_a_lost_answer_gets_no_second_disk() {
    for is_restarted in [false, true] {
        for cloud in [StandIn::new, StandIn::without_names] {
            let mut site = Site::new(cloud());
            site.cloud.wrong("create_disk", [Lost, NotDone, NotDone]);
            site.cloud.wrong("disks", [Refused(CloudErrorKind::Throttled)]);
            assert!(!is_final(&site.ensure(&in_zone("one", "a")).expect_err("throttled")));
            site.cloud.state().hides = true;
            assert!(!is_final(&site.provision().create(&in_zone("one", "a"), &Nothing).expect_err("lost")));
            site.cloud.state().hides = false;
            if is_restarted {
                site.restart();
            }
            let elsewhere = site.provision().create(&in_zone("one", "b"), &Nothing);
            assert!(matches!(elsewhere, Err(Error::Conflict { .. })), "{elsewhere:?}");
            assert_eq!(site.cloud.disks_now().len(), 1);
        }
    }
}

#[test]
fn lost_request_for_a_snapshot_makes_one() {
    for wrong in [vec![Lost], vec![NotDone], vec![Lost, Lost], vec![Refused(CloudErrorKind::Exists)]] {
        for cloud in [StandIn::new, StandIn::without_names] {
            let mut site = Site::new(cloud());
            let volume = site.ensure(&spec("one")).expect("made");
            site.cloud.wrong("create_snapshot", wrong.clone());
            let mut made = None;
            for _ in 0..5 {
                let snapshots = site.backend.snapshots().expect("it can");
                let found = snapshots.find_snapshot(&snapshot_id("s")).expect("looked");
                match found.map_or_else(|| snapshots.create_snapshot(&member("s", volume.id.clone()), &Nothing), Ok) {
                    Ok(snapshot) => made = Some(snapshot),
                    Err(error) => assert!(!is_final(&error), "{error}"),
                }
                site.restart();
            }
            let snapshots = site.cloud.snapshots_now();
            assert_eq!(snapshots.len(), 1, "{wrong:?}");
            let made = made.expect("made");
            assert_eq!(made.id.recorded(), Some(snapshots[0].id.0.as_str()));
            site.backend.snapshots().expect("it can").delete_snapshot(&made.id).expect("deleted");
            assert_eq!(site.cloud.snapshots_now(), []);
        }
    }
}

#[test]
fn copy_of_a_volume_has_a_source_and_one_by_an_administrator_is_left_alone() {
    for cloud in [StandIn::new, StandIn::without_names] {
        let mut site = Site::new(cloud());
        let one = site.ensure(&spec("one")).expect("made");
        let source = Some(crate::volume::ContentSource::Volume(one.id.clone()));
        site.cloud.wrong("create_disk", [Lost]);
        let two = site.insist(&VolumeSpec { source: source.clone(), ..spec("two") });
        assert_eq!(two.source, source);
        assert_eq!((site.cloud.disks_now().len(), site.cloud.snapshots_now().len()), (2, 0));
        site.provision().delete(&two.id).expect("deleted");
    }
    let mut site = Site::new(StandIn::without_names());
    let one = site.ensure(&spec("one")).expect("made");
    site.cloud.copy_by_hand();
    site.restart();
    assert_eq!(site.ensure(&spec("one")).expect("found"), one);
    site.provision().delete(&one.id).expect("deleted");
    assert_eq!(site.cloud.disks_now()[0].id.0, "by-hand");
}

#[test]
fn requests_are_no_larger_than_the_cloud_takes() {
    let site = Site::new(StandIn::new());
    let volumes: Vec<VolumeId> = (0..25).map(|number| site.ensure(&spec(&format!("v{number}"))).expect("made").id).collect();
    let before = site.cloud.count("disks");
    let found = site.backend.attach().expect("a controller").attachments(&volumes).expect("asked");
    assert_eq!(found.len(), 25);
    assert_eq!(site.cloud.count("disks") - before, 3);
}

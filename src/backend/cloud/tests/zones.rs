//! Disks in one zone, in several, and in none.

use serde_json::json;

use super::identity::Site;
use super::stand_in::StandIn;
use super::*;

fn in_zones(name: &str, count: u64, topology: TopologyRequirement) -> VolumeSpec {
    VolumeSpec { parameters: json!({"node": {}, "backend": null, "zones": count}), topology, ..spec(name) }
}

fn asked(requisite: &[&str], preferred: &[&str]) -> TopologyRequirement {
    let zones = |names: &[&str]| names.iter().map(|name| zone(name)).collect();
    TopologyRequirement { requisite: zones(requisite), preferred: zones(preferred) }
}

#[test]
fn disk_of_two_zones_is_made_where_it_is_asked_for_and_reached_from_both() {
    let site = Site::new(StandIn::new());
    for (name, topology, expected) in [
        ("preferred", asked(&["c", "a"], &["c", "a"]), ["a", "c"]),
        ("allowed", asked(&["a", "b", "c"], &["c", "b", "a"]), ["b", "c"]),
        ("too few", asked(&["c"], &["c"]), ["a", "c"]),
    ] {
        let made = site.ensure(&in_zones(name, 2, topology)).expect("made");
        assert_eq!(made.topology, expected.map(zone), "{name}");
        assert_eq!(site.provision().find(&made.id).expect("looked"), Some(made));
    }
    let made = site.ensure(&in_zones("any", 2, asked(&[], &[]))).expect("made");
    assert_eq!(made.topology.len(), 2);
    let error = site.ensure(&in_zones("four", 4, asked(&[], &[]))).expect_err("there are three");
    assert!(error.to_string().contains("zones a and b and c"), "{error}");
}

#[test]
fn disk_of_an_earlier_request_is_used_where_it_meets_the_requirement() {
    for cloud in [StandIn::new, StandIn::without_names] {
        let site = Site::new(cloud());
        let made = site.ensure(&in_zones("two", 2, asked(&["a", "b", "c"], &["c", "b", "a"]))).expect("made");
        let single = site.ensure(&in_zones("single", 1, asked(&["a", "b"], &["a"]))).expect("made");
        // Another process hears of nothing but what is asked for, and the nodes are listed in another order.
        let repeat = |name: &str, count: u64, topology: TopologyRequirement| {
            let other = standby(Arc::clone(&site.cloud) as _, site.clock);
            other.provision().expect("a controller").create(&in_zones(name, count, topology), &Nothing)
        };
        assert_eq!(repeat("two", 2, asked(&["a", "b", "c"], &["c", "a", "b"])).expect("the same"), made);
        assert_eq!(repeat("two", 2, asked(&["b"], &["b"])).expect("reached from there"), made);
        assert_eq!(repeat("two", 2, asked(&[], &[])).expect("anywhere"), made);
        let error = repeat("two", 2, asked(&["a"], &["a"])).expect_err("not reached from there");
        assert!(matches!(&error, Error::Conflict { existing, .. } if existing.contains("zones b and c")), "{error}");
        assert_eq!(repeat("single", 1, asked(&["b", "a"], &["b"])).expect("the same"), single);
        assert!(matches!(repeat("single", 1, asked(&["b"], &["b"])), Err(Error::Conflict { .. })));
        assert!(matches!(repeat("single", 2, asked(&["a", "b"], &["a"])), Err(Error::Conflict { .. })));
        assert_eq!(site.cloud.disks_now().len(), 2);
    }
}

#[test]
fn disk_without_a_zone_is_reached_from_everywhere() {
    let site = Site::new(StandIn::new());
    let made = site.ensure(&in_zones("one", 0, asked(&["a"], &["a"]))).expect("made");
    assert_eq!((made.topology, site.cloud.disks_now()[0].zones.len()), (Vec::new(), 0));
}

/// What a controller that runs outside of the cloud must offer, too: disks are made in the zone that the scheduler chose.
#[test]
fn topology_is_offered_wherever_the_controller_runs() {
    let site = Site::new(StandIn::new());
    assert!(site.backend.has_topology() && site.backend.topology().expect("asked").is_none());
}

#[test]
fn disk_is_attached_to_machines_of_its_zones_only() {
    let bench = Bench::new();
    for (zones, at, is_near) in [
        (vec!["a", "b"], Some("b"), true),
        (vec!["a", "b"], Some("c"), false),
        (vec!["a", "b"], None, false),
        (vec![], Some("c"), true),
        (vec![], None, true),
    ] {
        let name = format!("{zones:?} {at:?}");
        bench.create(&name).expect("made");
        let disk = bench.cloud.disks_now().into_iter().last().expect("a disk").id;
        bench.cloud.with_disk(&disk, |disk| disk.zones = zones.iter().map(|zone| (*zone).to_owned()).collect());
        bench.cloud.state().instances.get_mut(&node("i-1")).expect("a machine").zone = at.map(str::to_owned);
        // What was seen of the machine before is not believed for ever.
        bench.clock.sleep(Duration::from_secs(11));
        match bench.attach(&name, "i-1") {
            Ok(_) => assert!(is_near, "{name}"),
            Err(error) => {
                assert!(!is_near && matches!(error, Error::Invalid { field: "node_id", .. }), "{name}: {error}");
            }
        }
    }
}

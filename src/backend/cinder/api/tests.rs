//! The client's requests, and what it makes of answers.

use serde_json::json;

use super::http::{Entry, endpoint};
use super::*;

#[test]
fn endpoint_is_that_of_the_region_and_the_interface() {
    let url = |interface: &str, region: &str, url: &str| json!({"interface": interface, "region": region, "region_id": region, "url": url});
    let catalog = json!([
        {"type": "volumev3", "endpoints": [url("public", "A", "https://a:8776/v3/p/"), url("internal", "A", "http://a:8776"), url("public", "B", "https://b")]},
        {"type": "compute", "endpoints": [url("public", "A", "https://n/v2.1")]},
    ]);
    let catalog: Vec<Entry> = serde_json::from_value(catalog).expect("a catalog");
    let find = |service, region, interface| endpoint(&catalog, service, region, interface);
    assert_eq!(find(Service::Volume, Some("A"), None).as_deref(), Ok("https://a:8776/v3/p"));
    assert_eq!(find(Service::Volume, Some("B"), Some("publicURL")).as_deref(), Ok("https://b"));
    assert_eq!(find(Service::Compute, None, Some("public")).as_deref(), Ok("https://n/v2.1"));
    for (service, region, interface, words) in [
        (Service::Volume, None, None, "say region_name"),
        (Service::Volume, Some("C"), None, "there are A, B"),
        (Service::Volume, Some("A"), Some("internal"), "in clear"),
        (Service::Compute, Some("A"), Some("admin"), "has no admin endpoint of compute"),
    ] {
        let error = find(service, region, interface).expect_err(words);
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn next_page_is_that_behind_the_marker() {
    let request = Request::get("list volumes", "volumes/detail");
    let marker = marker_in(&request, "http://elsewhere/v3/p/volumes/detail?limit=2&marker=abc-1&metadata=x");
    assert_eq!(marker.as_deref(), Ok("abc-1"));
    assert_eq!(marker_in(&request, "http://elsewhere/v3/p/volumes").expect_err("no marker").code, "endless list");
}

#[test]
fn time_without_a_zone_is_utc() {
    let with = moment("2026-11-26T01:02:03.000000Z").expect("a time");
    assert_eq!(moment("2026-11-26T01:02:03.000000"), Some(with));
    assert_eq!(moment("yesterday"), None);
}

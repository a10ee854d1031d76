//! The client's requests, and what it makes of answers.

use super::*;

#[test]
fn request_id_is_a_uuid_with_the_mark_of_its_disk() {
    let (one, two) = (request_id("z-a-b_7"), request_id("z-a-b_7"));
    assert_ne!(one, two, "each request has its own");
    for id in [&one, &two] {
        assert!(is_about(id, "z-a-b_7") && !is_about(id, "z-a-b_8"), "{id}");
        let lengths: Vec<usize> = id.split('-').map(str::len).collect();
        assert_eq!(lengths, [8, 4, 4, 4, 12]);
        assert_eq!((&id[14..15], &id[19..20]), ("4", "8"));
    }
}

#[test]
fn list_that_lacks_a_zone_is_none() {
    let page = |text: &str| serde_json::from_str::<Aggregated>(text).expect("a page");
    let fine = page(r#"{"items": {"zones/a": {"warning": {"code": "NO_RESULTS_ON_PAGE", "message": "m"}}}}"#);
    let lacks = [
        page(r#"{"items": {"zones/a": {"warning": {"code": "UNREACHABLE", "message": "m"}}}}"#),
        page(r#"{"unreachables": ["zones/a"]}"#),
        page(r#"{"warning": {"code": "PARTIAL_SUCCESS", "message": "m"}}"#),
    ];
    let why = |page: &Aggregated| {
        incomplete(page.items.values().map(|scope| &scope.warning).chain([&page.warning]), &page.unreachables)
    };
    assert_eq!(why(&fine), None);
    assert!(lacks.iter().all(|page| why(page).is_some()));
}

//! What the client makes of answers.

use super::*;

#[test]
fn of_an_address_only_the_path_is_used() {
    let path = |url: &str| path_of(url);
    assert_eq!(path("https://management.azure.com/subscriptions/s?a=b&c=d").as_deref(), Some("subscriptions/s?a=b&c=d"));
    assert_eq!(path("https://evil.example/x").as_deref(), Some("x"));
    assert_eq!(path("/subscriptions/s").as_deref(), Some("subscriptions/s"));
    for url in ["", "https://management.azure.com", "https://management.azure.com/", "https://m/a b", "https://m/a\r\nb"] {
        assert_eq!(path(url), None, "{url}");
    }
}

fn ended(text: &str) -> Refusal {
    failed(&serde_json::from_str(text).expect("a status"))
}

#[test]
fn operation_that_was_cancelled_or_has_no_code_may_be_done() {
    for (text, because, maybe_done) in [
        (
            r#"{"status": "Failed", "error": {"code": "AttachDiskWhileBeingDetached", "message": "attached"}}"#,
            CloudErrorKind::InUse,
            false,
        ),
        (r#"{"status": "Failed", "error": {"code": "QuotaExceeded", "message": "m"}}"#, CloudErrorKind::Quota, false),
        (r#"{"status": "Failed", "error": {"code": "OperationPreempted", "message": "m"}}"#, CloudErrorKind::Unavailable, true),
        (
            r#"{"status": "Failed", "error": {"code": "InternalExecutionError", "message": "m"}}"#,
            CloudErrorKind::Unavailable,
            true,
        ),
        (r#"{"status": "Canceled"}"#, CloudErrorKind::Unavailable, true),
        (r#"{"status": "Canceled", "error": {"code": "QuotaExceeded", "message": "m"}}"#, CloudErrorKind::Unavailable, true),
        (r#"{"status": "Failed"}"#, CloudErrorKind::Unavailable, true),
        (r#"{"status": "Failed", "error": {"code": null, "message": null}}"#, CloudErrorKind::Unavailable, true),
    ] {
        let refusal = ended(text);
        assert_eq!((refusal.because, refusal.maybe_done), (because, maybe_done), "{text}");
    }
}

#[test]
fn only_detail_says_what_a_code_without_meaning_is() {
    let refusal = ended(
        r#"{"status": "Failed", "error": {"code": "Conflict", "message": "m",
            "details": [{"code": "SkuNotAvailable", "message": "none left in zone 1"}]}}"#,
    );
    assert_eq!((refusal.because, refusal.message.as_str()), (CloudErrorKind::NoCapacity, "none left in zone 1"));
}

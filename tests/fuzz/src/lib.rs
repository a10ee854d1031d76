//! What several targets assert.

/// A record that is accepted is written and read as the same, with all its fields but those of earlier forms that are `dropped`, and no
/// part of its file is taken for a whole one. `rewritten` reads a file and gives its record as it would be written; `None` where it is
/// none.
pub fn same_again_and_never_torn(rewritten: impl Fn(&[u8]) -> Option<Vec<u8>>, dropped: &[&str], content: &[u8]) {
    let Some(written) = rewritten(content) else { return };
    assert_eq!(rewritten(&written).as_ref(), Some(&written), "{}", String::from_utf8_lossy(&written));
    let fields = |text| serde_json::from_slice::<serde_json::Map<_, _>>(text).expect("a record is an object");
    let (given, kept) = (fields(content), fields(&written));
    let is_kept = |key: &String| kept.contains_key(key) || dropped.contains(&key.as_str());
    assert!(given.keys().all(is_kept), "a field is lost: {given:?}");
    for whole in [content, &written] {
        // White space at the end is no loss.
        let length = whole.trim_ascii_end().len();
        let step = length / 64 + 1;
        for cut in (0..length).step_by(step).chain([length - 1]) {
            let torn = &whole[..cut];
            assert!(rewritten(torn).is_none(), "taken for whole: {}", String::from_utf8_lossy(torn));
        }
    }
}

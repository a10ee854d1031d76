//! Tags, as Cinder keeps them: metadata, of which a key has no slash (Block Storage API v3, "metadata", with the pattern of
//! cinder/api/validation/parameter_types.py).

use serde_json::Value;
use serde_json::map::Map;

use crate::backend::cloud::Tags;
use crate::backend::cloud::tags::OURS;

/// Of a key and of a value, in characters.
pub const LONGEST: usize = 255;
const KEPT: &str = "longshore.dev:";

fn kept_key(key: &str) -> String {
    key.strip_prefix(OURS).map_or_else(|| key.to_owned(), |rest| format!("{KEPT}{rest}"))
}

/// Metadata that keeps these tags.
pub fn metadata<'a>(tags: impl IntoIterator<Item = (&'a String, &'a String)>) -> Value {
    tags.into_iter().map(|(key, value)| (kept_key(key), Value::from(value.as_str()))).collect::<Map<_, _>>().into()
}

/// The tags again.
pub fn tags(metadata: Tags) -> Tags {
    let tag = |(key, value): (String, String)| {
        (key.strip_prefix(KEPT).map_or_else(|| key.clone(), |rest| format!("{OURS}{rest}")), value)
    };
    metadata.into_iter().map(tag).collect()
}

/// Whether a user may have this metadata on a volume.
///
/// # Errors
/// Why not.
pub fn check_metadata(key: &str, value: &str) -> Result<(), String> {
    if key.starts_with(KEPT) {
        return Err(format!("{key:?}: what begins with {KEPT} is not for users"));
    }
    let fits = key.chars().all(|letter| letter.is_ascii_alphanumeric() || "-_:. ".contains(letter));
    if key.is_empty() || !fits || key.len() > LONGEST || value.chars().count() > LONGEST {
        return Err(format!(
            "{key:?} has 1 to {LONGEST} letters, digits, spaces and any of -_:. in each key, and at most {LONGEST} characters in each value"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::cloud::tags::{CLUSTER, PARAMETERS};

    #[test]
    fn tags_are_given_back_as_they_were() {
        let all: Tags = [(CLUSTER, "Клас\"тер"), (PARAMETERS, "{}"), ("team", "storage")]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into();
        let kept = metadata(&all);
        for key in kept.as_object().expect("a map").keys() {
            check_metadata(key.trim_start_matches(KEPT), "").expect("a key of Cinder's");
        }
        assert_eq!(tags(serde_json::from_value(kept).expect("texts")), all);
    }

    #[test]
    fn metadata_that_cinder_refuses_is_refused() {
        let long = "x".repeat(LONGEST + 1);
        for (key, value) in [("", "a"), ("a/b", "c"), (long.as_str(), "a"), ("a", long.as_str()), ("longshore.dev:blank", "a")] {
            check_metadata(key, value).expect_err(key);
        }
        check_metadata("cost center: 7", "").expect("metadata");
    }
}

//! Tags, as Azure keeps them: 50 of a resource, of names without `/` and some other characters, and values of 256 characters ("Use tags to
//! organize your Azure resources", "Limitations").

use std::collections::BTreeMap;

use crate::backend::cloud::Tags;
use crate::backend::cloud::tags::OURS;

/// In characters.
pub const LONGEST: usize = 256;
/// One less than Azure takes: a tag is added before the first attachment.
const MOST: usize = 49;
const LONGEST_NAME: usize = 512;
const PREFIX: &str = "longshore.dev.";

/// The tags in Azure's form.
///
/// # Errors
/// Where there are too many.
pub fn azure_tags(tags: &Tags) -> Result<BTreeMap<String, String>, String> {
    let name = |key: &String| key.strip_prefix(OURS).map_or_else(|| key.clone(), |short| format!("{PREFIX}{short}"));
    let all: BTreeMap<String, String> = tags.iter().map(|(key, value)| (name(key), value.clone())).collect();
    match all.len() {
        0..=MOST => Ok(all),
        count => {
            Err(format!("a new disk has at most {MOST} tags, and these are {count}: shorten the parameters, or take fewer tags"))
        }
    }
}

/// The tags again. Their names have no case, and may come in another one.
pub fn tags(kept: &BTreeMap<String, String>) -> Tags {
    let key = |name: &String| {
        let lower = name.to_ascii_lowercase();
        lower.strip_prefix(PREFIX).map_or_else(|| name.clone(), |short| format!("{OURS}{short}"))
    };
    kept.iter().map(|(name, value)| (key(name), value.clone())).collect()
}

/// Whether a user may give this tag.
///
/// # Errors
/// Why not.
pub fn check_tag(key: &str, value: &str) -> Result<(), String> {
    let lower = key.to_ascii_lowercase();
    if let Some(prefix) = ["longshore.dev", "microsoft", "azure", "windows"].into_iter().find(|prefix| lower.starts_with(prefix))
    {
        return Err(format!("the tag {key:?}: what begins with {prefix} is not for users"));
    }
    let is_name = (1..=LONGEST_NAME).contains(&key.chars().count()) && !key.contains(['<', '>', '%', '&', '\\', '?', '/']);
    if !is_name || key.trim() != key || value.chars().count() > LONGEST {
        let rule = "a name has 1 to 512 characters without <>%&\\?/, a value at most 256";
        return Err(format!("{key}={value} is no tag: {rule}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_given_back_as_they_were() {
        let all: Tags = [("longshore.dev/cluster", "Клас\"тер"), ("longshore.dev/parameters-1", "{}"), ("Team", "storage")]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into();
        let kept = azure_tags(&all).expect("it fits");
        assert!(kept.keys().all(|name| !name.contains('/')));
        assert_eq!(tags(&kept), all);
        let upper = BTreeMap::from([("LONGSHORE.DEV.cluster".to_owned(), "c".to_owned())]);
        assert_eq!(tags(&upper), Tags::from([("longshore.dev/cluster".to_owned(), "c".to_owned())]));
        let many: Tags = (0..51).map(|number| (number.to_string(), String::new())).collect();
        assert!(azure_tags(&many).expect_err("too many").contains("at most 49"));
    }

    #[test]
    fn tag_that_azure_refuses_is_refused() {
        for (key, value) in
            [("", "a"), ("a/b", ""), ("Microsoft.x", ""), ("Longshore.dev.x", ""), (" a", ""), ("a", &"x".repeat(257))]
        {
            check_tag(key, value).expect_err(key);
        }
        check_tag("team", "Storage & more").expect("a tag");
    }
}

//! Tags, as Compute Engine keeps them.
//!
//! Labels have 63 characters of a small set, so that most of ours are in the description, as JSON of at most 2,048 characters, which cannot be
//! changed once the disk is made. What changes is in a label (`longshore-blank`), and so is what a list is filtered by (`longshore-owner`).
//! All other labels are tags of the user.

use std::collections::BTreeMap;

use crate::backend::cloud::Tags;
use crate::backend::cloud::tags::{BACKEND, BLANK, CLUSTER, OURS};
use crate::volume::digest::sha256_of;

/// In characters (Compute Engine API, "description").
pub const LONGEST: usize = 2048;
const BLANK_LABEL: &str = "longshore-blank";
const OWNER_LABEL: &str = "longshore-owner";
/// On a snapshot of which an image is made.
pub const FOR_IMAGE: &str = "longshore-image";
/// In the description of an image: the instant that it is of (RFC 3339).
pub const INSTANT: &str = "longshore.dev/instant";

/// A resource's tags in the cloud's form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub description: String,
    pub labels: BTreeMap<String, String>,
}

impl Record {
    /// # Errors
    /// Why they cannot be kept.
    pub fn of(tags: &Tags) -> Result<Record, String> {
        let mut described = BTreeMap::new();
        let mut labels: BTreeMap<String, String> = owner(tags).map(|owner| (OWNER_LABEL.to_owned(), owner)).into_iter().collect();
        for (key, value) in tags {
            match key.strip_prefix(OURS) {
                _ if key == BLANK => drop(labels.insert(BLANK_LABEL.to_owned(), value.clone())),
                Some(short) => drop(described.insert(short, value)),
                None => drop(labels.insert(key.clone(), value.clone())),
            }
        }
        let description = ascii(&serde_json::to_string(&described).map_err(|error| error.to_string())?);
        if description.len() > LONGEST {
            return Err(format!(
                "what is recorded with a volume has {} characters, and a description has at most {LONGEST}: shorten its parameters",
                description.len()
            ));
        }
        Ok(Record { description, labels })
    }

    /// The labels that keep these tags, which change.
    ///
    /// # Errors
    /// Where one of them is in the description.
    pub fn changed(tags: &Tags) -> Result<BTreeMap<String, String>, String> {
        let label = |(key, value): (&String, &String)| match key.strip_prefix(OURS) {
            _ if key == BLANK => Ok((BLANK_LABEL.to_owned(), value.clone())),
            Some(_) => Err(format!("the tag {key} is in the description, which cannot be changed")),
            None => Ok((key.clone(), value.clone())),
        };
        tags.iter().map(label).collect()
    }

    /// The tags again. A description that is not ours has none.
    pub fn tags(description: &str, labels: &BTreeMap<String, String>) -> Tags {
        let described: BTreeMap<String, String> = serde_json::from_str(description).unwrap_or_default();
        let mut tags: Tags = described.into_iter().map(|(key, value)| (format!("{OURS}{key}"), value)).collect();
        for (key, value) in labels {
            match key.as_str() {
                OWNER_LABEL | FOR_IMAGE => None,
                BLANK_LABEL => tags.insert(BLANK.to_owned(), value.clone()),
                _ => tags.insert(key.clone(), value.clone()),
            };
        }
        tags
    }
}

/// The filter of a list of all with these tags; `None` where no label says so.
pub fn filter(tags: &Tags) -> Option<String> {
    owner(tags).map(|owner| format!("labels.{OWNER_LABEL} = \"{owner}\""))
}

/// A cluster and a backend as the value of a label.
fn owner(tags: &Tags) -> Option<String> {
    Some(sha256_of([tags.get(CLUSTER)?.as_str(), tags.get(BACKEND)?])[..32].to_owned())
}

/// JSON with all other characters escaped.
fn ascii(json: &str) -> String {
    let mut text = String::new();
    for letter in json.chars() {
        match letter.is_ascii() {
            true => text.push(letter),
            false => letter.encode_utf16(&mut [0; 2]).iter().for_each(|unit| text += &format!("\\u{unit:04x}")),
        }
    }
    text
}

/// Whether a user may give this label ("Requirements for labels").
///
/// # Errors
/// Why not.
pub fn check_label(key: &str, value: &str) -> Result<(), String> {
    let fits = |text: &str| {
        text.chars().count() <= 63
            && text.chars().all(|letter| !letter.is_uppercase() && (letter.is_alphanumeric() || "_-".contains(letter)))
    };
    if key.starts_with("longshore-") {
        return Err(format!("the label {key:?}: what begins with longshore- is not for users"));
    }
    if !key.starts_with(char::is_lowercase) || !fits(key) || !fits(value) {
        let rule = "a key has 1 to 63 characters, a value at most 63, of lower-case letters, digits, - and _, and a key begins with a letter";
        return Err(format!("{key}={value} is no label: {rule}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tags(pairs: &[(&str, &str)]) -> Tags {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn tags_are_given_back_as_they_were() {
        let all = tags(&[
            (CLUSTER, "Клас\"тер 😀"),
            (BACKEND, "pd"),
            ("longshore.dev/volume", "pvc-1"),
            ("longshore.dev/parameters", r#"{"node":{},"backend":{"type":"pd-ssd"}}"#),
            (BLANK, "never-attached"),
            ("team", "storage"),
        ]);
        let record = Record::of(&all).expect("it fits");
        assert!(record.description.is_ascii());
        assert_eq!(record.labels.keys().collect::<Vec<_>>(), [BLANK_LABEL, OWNER_LABEL, "team"]);
        for (key, value) in record.labels.iter().filter(|(key, _)| *key != "team") {
            check_label(&key.replace("longshore-", "x"), value).expect("a label's charset");
        }
        assert_eq!(Record::tags(&record.description, &record.labels), all);
        assert_eq!(filter(&all), Some(format!("labels.{OWNER_LABEL} = \"{}\"", record.labels[OWNER_LABEL])));
        assert_eq!(Record::tags("a disk of another program", &BTreeMap::new()), Tags::new());
    }

    #[test]
    fn what_does_not_fit_or_cannot_change_is_refused() {
        let long = "x".repeat(LONGEST);
        assert!(Record::of(&tags(&[("longshore.dev/parameters", &long)])).expect_err("too long").contains("2048"));
        assert!(Record::changed(&tags(&[("longshore.dev/volume", "other")])).is_err());
        assert_eq!(Record::changed(&tags(&[(BLANK, "used")])), Ok(tags(&[(BLANK_LABEL, "used")])));
        for (key, value) in [("Team", "a"), ("1a", "b"), ("a", "B"), ("a.b", "c"), ("", "a"), ("longshore-owner", "a")] {
            check_label(key, value).expect_err(key);
        }
        check_label("team_1", "").expect("a label");
    }
}

//! Tags that the operator and the classes ask for: `tagSpecification_1: "team={{ .PVCNamespace }}"`.

use std::collections::BTreeMap;

use crate::volume::{Error, RawParameters, Result};

/// How the parameters begin that each hold a tag (aws-ebs-csi-driver, "Tagging").
pub const PREFIX: &str = "tagSpecification_";

/// A variable, and the key in what the sidecars tell of the claim: csi-provisioner and csi-snapshotter with `--extra-create-metadata`.
const VARIABLES: [(&str, &str); 6] = [
    ("PVCName", "pvc/name"),
    ("PVCNamespace", "pvc/namespace"),
    ("PVName", "pv/name"),
    ("VolumeSnapshotName", "volumesnapshot/name"),
    ("VolumeSnapshotNamespace", "volumesnapshot/namespace"),
    ("VolumeSnapshotContentName", "volumesnapshotcontent/name"),
];

/// The most that a resource may have (EC2 user guide, "Tag restrictions"), less what we need ourselves.
const MOST: usize = 30;

/// Takes the tags out of the parameters, their templates filled in.
///
/// # Errors
/// `Invalid`, naming the parameter.
pub fn take(raw: &mut RawParameters) -> Result<BTreeMap<String, String>> {
    let given = raw.split_prefixed(PREFIX);
    let mut tags = BTreeMap::new();
    for (parameter, text) in given {
        let refuse = |reason: String| Err(Error::invalid("parameters", format!("{parameter}: {reason}")));
        let Some((key, value)) = text.split_once('=') else {
            return refuse(format!("{text:?} is no tag; write key=value"));
        };
        let value = match fill(value, raw) {
            Ok(value) => value,
            Err(reason) => return refuse(reason),
        };
        if let Err(reason) = check(key, &value) {
            return refuse(reason);
        }
        if tags.insert(key.to_owned(), value).is_some() {
            return refuse(format!("the tag {key:?} is there twice"));
        }
    }
    if tags.len() > MOST {
        return Err(Error::invalid("parameters", format!("{} tags; at most {MOST} can be given", tags.len())));
    }
    Ok(tags)
}

/// Whether a tag may be given.
///
/// # Errors
/// Why not.
pub fn check(key: &str, value: &str) -> Result<(), String> {
    if key.is_empty() || key.chars().count() > 128 {
        return Err(format!("the key {key:?} must have 1 to 128 characters"));
    }
    if value.chars().count() > 256 {
        return Err(format!("the value of {key:?} is longer than 256 characters"));
    }
    for ours in ["aws:", "longshore.dev/"] {
        if key.to_ascii_lowercase().starts_with(ours) {
            return Err(format!("the key {key:?}: what begins with {ours} is not for users"));
        }
    }
    Ok(())
}

/// Fills in `{{ .PVCName }}` and so on.
fn fill(template: &str, raw: &RawParameters) -> Result<String, String> {
    let mut filled = String::new();
    let mut rest = template;
    while let Some((before, behind)) = rest.split_once("{{") {
        let Some((inside, after)) = behind.split_once("}}") else {
            return Err(format!("{template:?}: {{{{ without }}}}"));
        };
        let name = inside.trim();
        let known = VARIABLES.iter().find(|(variable, _)| name.strip_prefix('.') == Some(variable));
        let Some((_, key)) = known else {
            let known: Vec<&str> = VARIABLES.iter().map(|(variable, _)| *variable).collect();
            return Err(format!("{name:?} is no variable that is known; there are .{}", known.join(", .")));
        };
        let Some(value) = raw.metadata(key) else {
            return Err(format!("the value of {name} is unknown; start the sidecar with --extra-create-metadata"));
        };
        filled.push_str(before);
        filled.push_str(value);
        rest = after;
    }
    Ok(filled + rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(pairs: &[(&str, &str)]) -> RawParameters {
        RawParameters::new(pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())))
    }

    #[test]
    fn templates_are_filled_in() {
        let mut parameters = raw(&[
            ("tagSpecification_1", "team={{ .PVCNamespace }}/{{.PVCName}}"),
            ("tagSpecification_2", "plain="),
            ("type", "gp3"),
            ("csi.storage.k8s.io/pvc/name", "data"),
            ("csi.storage.k8s.io/pvc/namespace", "shop"),
        ]);
        let tags = take(&mut parameters).expect("fine");
        assert_eq!(tags, BTreeMap::from([("team".to_owned(), "shop/data".to_owned()), ("plain".to_owned(), String::new())]));
        assert_eq!(parameters.get("type"), Some("gp3"));
        assert_eq!(parameters.get("tagSpecification_1"), None);
    }

    #[test]
    fn impossible_value_is_named() {
        for (text, words) in [
            ("no tag", "write key=value"),
            ("=value", "1 to 128"),
            ("aws:x=y", "not for users"),
            ("longshore.dev/cluster=other", "not for users"),
            ("a={{ .PVCNmae }}", "no variable"),
            ("a={{ .PVName", "without"),
            ("a={{ .PVName }}", "--extra-create-metadata"),
        ] {
            let error = take(&mut raw(&[("tagSpecification_7", text)])).expect_err(text).to_string();
            assert!(error.contains("tagSpecification_7") && error.contains(words), "{text}: {error}");
        }
    }
}

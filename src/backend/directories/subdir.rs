//! Where below a top directory a volume lies: `subDir`, with the variables that csi-driver-nfs knows.

use std::path::{Component, Path, PathBuf};

use crate::volume::{Error, RawParameters, Result};

/// The controller's own directory in each top directory; no volume's.
pub const OURS: &str = ".longshore";

/// The longest path of a directory below a top one: PATH_MAX less what lies before it.
const LONGEST: usize = 2048;

const FIELD: &str = "parameters.subDir";
/// A variable, and the key in what the provisioner tells of the claim.
const VARIABLES: [(&str, &str); 3] =
    [("${pvc.metadata.name}", "pvc/name"), ("${pvc.metadata.namespace}", "pvc/namespace"), ("${pv.metadata.name}", "pv/name")];

/// Fills a template in, and checks what became of it.
///
/// # Errors
/// `Invalid`, naming what cannot be.
pub fn fill(template: &str, raw: &RawParameters) -> Result<String> {
    let mut filled = template.to_owned();
    for (variable, key) in VARIABLES {
        if !template.contains(variable) {
            continue;
        }
        let value = raw.metadata(key).ok_or_else(|| {
            let reason =
                format!("the provisioner did not pass the value of {variable} is; start it with --extra-create-metadata");
            Error::invalid(FIELD, reason)
        })?;
        if value.is_empty() || value.contains('/') || value.contains("${") || value == "." || value == ".." {
            return Err(Error::invalid(FIELD, format!("{variable} is {value:?}, which is no name of one directory")));
        }
        filled = filled.replace(variable, value);
    }
    if let Some(unknown) = filled.find("${") {
        let known: Vec<&str> = VARIABLES.iter().map(|(variable, _)| *variable).collect();
        let rest = filled.get(unknown..).unwrap_or_default();
        return Err(Error::invalid(
            FIELD,
            format!("{rest:?} begins with no variable that is known; there are {}", known.join(", ")),
        ));
    }
    check(&filled)?;
    Ok(filled)
}

/// Whether this is a directory below a top one that may be a volume's.
pub fn check(directory: &str) -> Result<()> {
    if directory.is_empty() {
        return Err(Error::invalid(FIELD, "is empty: a volume is a directory of its own, never the whole share or base"));
    }
    self::directory(directory).map(|_| ())
}

/// A directory below a top one; empty is the top one itself.
///
/// # Errors
/// `Invalid`, naming `subDir`, for what climbs, is absolute, or is ours.
pub fn directory(text: &str) -> Result<PathBuf> {
    let refuse = |reason: &str| Err(Error::invalid("subDir", format!("{text:?} {reason}")));
    if text.is_empty() {
        return Ok(PathBuf::new());
    }
    if text.starts_with('/') {
        return refuse("is absolute; it is a directory below the share or base");
    }
    if text.chars().any(char::is_control) || text.len() > LONGEST {
        return refuse("holds a control character, or is too long");
    }
    for part in text.split('/') {
        match part {
            "" => return refuse("has an empty component"),
            "." | ".." => return refuse("has the component . or .., and would leave its directory"),
            OURS => return refuse("is the driver's own directory"),
            part if part.len() > 255 => return refuse("has a component of more than 255 bytes"),
            _ => {}
        }
    }
    Ok(PathBuf::from(text))
}

/// Whether one of two directories lies in the other, or is it.
pub fn overlap(a: &Path, b: &Path) -> bool {
    a.starts_with(b) || b.starts_with(a)
}

/// All directories on the way to one, from the top, without it.
pub fn parents(directory: &Path) -> Vec<&Path> {
    let mut parents: Vec<&Path> =
        directory.ancestors().skip(1).filter(|parent| matches!(parent.components().next(), Some(Component::Normal(_)))).collect();
    parents.reverse();
    parents
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn raw(name: &str) -> RawParameters {
        let pairs = [("csi.storage.k8s.io/pvc/name", name), ("csi.storage.k8s.io/pvc/namespace", "shop")];
        RawParameters::new(pairs.map(|(key, value)| (key.to_owned(), value.to_owned())))
    }

    #[test]
    fn variables_become_one_component_each() {
        assert_eq!(fill("a/${pvc.metadata.namespace}/${pvc.metadata.name}-x", &raw("data")).expect("fine"), "a/shop/data-x");
        assert_eq!(fill("plain", &raw("data")).expect("fine"), "plain");
        for bad in ["../../etc", "a/b", "..", ".", "", "${pvc.metadata.namespace}", "a\nb", ".longshore"] {
            assert!(fill("${pvc.metadata.name}", &raw(bad)).is_err(), "{bad:?}");
        }
        // Harmless alone, and not behind a dot.
        assert!(fill(".${pvc.metadata.name}", &raw("longshore")).is_err());
    }

    #[test]
    fn missing_subdirectory_variables_are_asked_for() {
        let error = fill("${pv.metadata.name}", &raw("data")).expect_err("missing").to_string();
        assert!(error.contains("--extra-create-metadata"), "{error}");
        let error = fill("${pvc.metadata.uid}", &raw("data")).expect_err("unknown").to_string();
        assert!(error.contains("${pvc.metadata.uid}") && error.contains("${pv.metadata.name}"), "{error}");
    }

    #[test]
    fn paths_that_lead_elsewhere_are_refused() {
        for bad in ["", "/", "/a", "a//b", "a/", "a/../b", "..", ".", "./a", ".longshore", "a/.longshore/b", "a\0b", "a\u{7f}"] {
            assert!(check(bad).is_err(), "{bad:?}");
        }
        assert!(check(&"n".repeat(256)).is_err());
        assert!(check(&"n/".repeat(1200)).is_err());
        for good in ["a", "a/b c", "...", "a/.hidden", "ümläut", ".longshore2"] {
            assert!(check(good).is_ok(), "{good:?}");
        }
    }

    proptest! {
        #[test]
        fn accepted_subdirectory_stays_below_the_share(name in "\\PC{0,40}", template in "[a-z./]{0,8}\\$\\{pvc.metadata.name\\}[a-z./]{0,8}") {
            if let Ok(directory) = fill(&template, &raw(&name)) {
                let parts: Vec<Component<'_>> = Path::new(&directory).components().collect();
                prop_assert!(parts.iter().all(|part| matches!(part, Component::Normal(name) if *name != OURS)));
                prop_assert_eq!(parts.len(), directory.split('/').count());
                prop_assert_eq!(directory.matches('/').count(), template.matches('/').count());
            }
        }
    }

    #[test]
    fn directories_overlap_by_whole_components() {
        assert!(overlap(Path::new("a/b"), Path::new("a")) && overlap(Path::new("a"), Path::new("a")));
        assert!(!overlap(Path::new("a/b"), Path::new("a/bc")));
        assert_eq!(parents(Path::new("a/b/c")), [Path::new("a"), Path::new("a/b")]);
        assert!(parents(Path::new("a")).is_empty());
    }

    #[test]
    fn a_directory_stays_below_its_top_directory() {
        assert_eq!(directory("a/b c").expect("sound"), Path::new("a/b c"));
        for bad in ["/a", "..", "a/../b", "a/..", "./a", "a//b", "a/", ".longshore", "a/.longshore/b", "a\nb", &"x".repeat(256)] {
            assert!(matches!(directory(bad), Err(Error::Invalid { field: "subDir", .. })), "{bad:?}");
        }
    }
}

//! What a person may do, as commands.

use std::path::Path;

use super::super::facts::Ours;
use super::super::report::shell;

pub(super) const HAS_POD: &str = "a pod may use it; take the pod away, or unpublish it";

pub(super) const BLIND: &str = "its storage could not be looked at";

pub(super) const EPHEMERAL: &str = "its data would go with it; the next start of the driver ends it";

pub(super) fn command(words: &[String]) -> String {
    shell(words.iter().map(String::as_str))
}

pub(super) fn text(path: &Path) -> String {
    path.display().to_string()
}

/// cryptsetup neither opens nor closes one that was interrupted.
pub(super) fn close(ours: &Ours) -> String {
    if ours.mapped.live { shell(["cryptsetup", "close", &ours.name]) } else { shell(["dmsetup", "remove", &ours.name]) }
}

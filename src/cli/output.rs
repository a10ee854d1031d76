//! What is written for people and programs, and what the environment says of them.

use std::io::{self, Write};

use serde::Serialize;

use super::failure::Failure;

/// Writes to standard output.
pub fn print(text: &str) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).map_err(Failure::Output)
}

pub fn json<T: Serialize>(value: &T) -> Result<String, Failure> {
    serde_json::to_string_pretty(value).map(|text| text + "\n").map_err(|error| Failure::Output(error.into()))
}

/// A variable of the environment; one that isn't UTF-8 counts as not set.
pub fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// Whether this runs in a container of a pod: the kubelet gives this variable to each.
pub fn in_pod() -> bool {
    variable("KUBERNETES_SERVICE_HOST").is_some_and(|host| !host.is_empty())
}

/// Whether people with this environment read UTF-8.
pub fn reads_utf8() -> bool {
    let set = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().filter_map(variable).find(|value| !value.is_empty());
    set.is_some_and(|locale| locale.to_lowercase().replace('-', "").contains("utf8"))
}

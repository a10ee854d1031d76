//! Secrets from the CO: a type that cannot be printed.

use std::collections::BTreeMap;
use std::fmt;

/// The `secrets` map of a request. `Debug` shows how many there are, never a key or a value.
#[derive(Clone, Default)]
pub struct Secrets(BTreeMap<String, String>);

impl Secrets {
    pub fn new(values: impl IntoIterator<Item = (String, String)>) -> Self {
        Secrets(values.into_iter().collect())
    }

    /// The secret called `key`.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str)
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secrets({} hidden)", self.0.len())
    }
}

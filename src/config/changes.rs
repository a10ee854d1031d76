//! What differs between the configuration in force and the one that a reload has read, and which of it can be applied while calls run.

use std::fmt;

use serde::Serialize;
use serde_json::{Map, Value};

use super::Config;

/// The settings outside of the backends that a reload applies. Those of a backend: [`crate::backend::catalog::Row::reloadable`].
pub const RELOADABLE: [&str; 3] = ["log.level", "inlineMaxSize", "allowInlineParameters"];

const BACKENDS: &str = "backends";

/// A setting with another value. Its values are for people: a list or map of settings is shown by the names of its entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// As in the file, list entries by name or place: `backends[local].pools[default].capacity`.
    pub setting: String,
    /// `None` where it is not set.
    pub before: Option<String>,
    pub after: Option<String>,
    pub reloadable: bool,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |value: &Option<String>| value.clone().unwrap_or_else(|| "not set".to_owned());
        write!(f, "{}: {} -> {}", self.setting, shown(&self.before), shown(&self.after))
    }
}

impl Config {
    /// What is different in `new`, in the order of the names.
    ///
    /// # Errors
    /// Where one of the two has no form as a file.
    pub fn changes(&self, new: &Config) -> Result<Vec<Change>, serde_json::Error> {
        let (before, after) = (fields(self)?, fields(new)?);
        let mut changes = Changes { reloadable: &RELOADABLE, below: String::new(), found: Vec::new() };
        changes.compare_maps("", "", &before, &after, &[BACKENDS]);
        let mut found = changes.found;
        let names = |config: &Config| config.backends.iter().map(|backend| backend.name().to_string()).collect::<Vec<_>>();
        let (names_before, names_after) = (names(self), names(new));
        if names_before != names_after {
            // Their order counts, too: the first is the default.
            found.push(Change {
                setting: BACKENDS.to_owned(),
                before: Some(list(names_before)),
                after: Some(list(names_after)),
                reloadable: false,
            });
            return Ok(found);
        }
        for (before, after) in self.backends.iter().zip(&new.backends) {
            let below = format!("{BACKENDS}[{}].", before.name());
            let mut changes = Changes { reloadable: before.reloadable(), below, found };
            changes.compare_maps("", "", &fields(before)?, &fields(after)?, &[]);
            found = changes.found;
        }
        Ok(found)
    }
}

fn fields(value: &impl Serialize) -> Result<Map<String, Value>, serde_json::Error> {
    serde_json::from_value(serde_json::to_value(value)?)
}

/// Collects what differs below one place of the file.
struct Changes<'a> {
    /// Paths below that place, without the names of list entries.
    reloadable: &'a [&'a str],
    below: String,
    found: Vec<Change>,
}

impl Changes<'_> {
    fn compare_maps(
        &mut self,
        path: &str,
        pattern: &str,
        before: &Map<String, Value>,
        after: &Map<String, Value>,
        without: &[&str],
    ) {
        let join = |base: &str, key: &str| if base.is_empty() { key.to_owned() } else { format!("{base}.{key}") };
        let only_after = after.keys().filter(|key| !before.contains_key(*key));
        for key in before.keys().chain(only_after).filter(|key| !without.contains(&key.as_str())) {
            self.compare(&join(path, key), &join(pattern, key), before.get(key), after.get(key));
        }
    }

    fn compare(&mut self, path: &str, pattern: &str, before: Option<&Value>, after: Option<&Value>) {
        match (before, after) {
            _ if before == after => {}
            (Some(Value::Object(before)), Some(Value::Object(after))) => self.compare_maps(path, pattern, before, after, &[]),
            (Some(Value::Array(before)), Some(Value::Array(after))) if same_entries(before, after) => {
                for (at, (before, after)) in before.iter().zip(after).enumerate() {
                    let label = name(before).map_or_else(|| at.to_string(), str::to_owned);
                    self.compare(&format!("{path}[{label}]"), &format!("{pattern}[]"), Some(before), Some(after));
                }
            }
            _ => self.found.push(Change {
                setting: format!("{}{path}", self.below),
                before: before.map(shown),
                after: after.map(shown),
                reloadable: self.reloadable.contains(&pattern),
            }),
        }
    }
}

/// Whether two lists of maps have the same entries in the same order, as far as their names and number say.
fn same_entries(before: &[Value], after: &[Value]) -> bool {
    before.len() == after.len()
        && before.iter().zip(after).all(|(before, after)| before.is_object() && after.is_object() && name(before) == name(after))
}

fn name(entry: &Value) -> Option<&str> {
    entry.get("name").and_then(Value::as_str)
}

/// A value for people, and for the log: no more of a map than its keys.
fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => without_credentials(text),
        Value::Array(entries) => {
            let entry = |entry: &Value| name(entry).map_or_else(|| shown(entry), str::to_owned);
            list(entries.iter().map(entry).collect())
        }
        Value::Object(fields) => format!("{{{}}}", fields.keys().cloned().collect::<Vec<_>>().join(", ")),
        other => other.to_string(),
    }
}

fn list(entries: Vec<String>) -> String {
    format!("[{}]", entries.join(", "))
}

/// A URL may have a user and a password.
fn without_credentials(text: &str) -> String {
    let Some((scheme, rest)) = text.split_once("://") else { return text.to_owned() };
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    match authority.rsplit_once('@') {
        Some((_, host)) => format!("{scheme}://***@{host}{path}"),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::{Catalog, Layer};
    use super::*;

    const FILE: &str = "\
inlineMaxSize: 2GiB
backends:
- {name: local, type: image, pools: [{name: a, path: /srv/a}, {name: b, path: /srv/b, capacity: 1GiB}]}
- {name: nas, type: nfs, shares: [{server: one, share: /srv}], forbidMountOptions: [exec]}
- {name: san, type: iscsi}
";

    fn read(yaml: &str) -> Config {
        let file = Layer::from_yaml(Path::new("file.yaml"), yaml, &Catalog::built_in()).expect(yaml);
        Config::resolve([file], "host").expect(yaml)
    }

    /// Of the file above with these replacements.
    fn changes(replaced: &[(&str, &str)]) -> Vec<(String, bool)> {
        let mut yaml = FILE.to_owned();
        for (old, new) in replaced {
            assert!(yaml.contains(old), "{old}");
            yaml = yaml.replace(old, new);
        }
        let changes = read(FILE).changes(&read(&yaml)).expect("compared");
        changes.iter().map(|change| (change.to_string(), change.reloadable)).collect()
    }

    fn one(replaced: &[(&str, &str)]) -> (String, bool) {
        let mut found = changes(replaced);
        assert_eq!(found.len(), 1, "{found:?}");
        found.remove(0)
    }

    #[test]
    fn same_configuration_in_other_words_has_no_changes() {
        assert_eq!(changes(&[]), []);
        assert_eq!(changes(&[("2GiB", "2048MiB"), ("path: /srv/a", "path: /srv/a, overcommit: 1")]), []);
    }

    #[test]
    fn reloadable_setting_is_named_with_its_old_and_new_value() {
        for (old, new, change) in [
            ("inlineMaxSize: 2GiB", "inlineMaxSize: 1GiB", "inlineMaxSize: 2147483648 -> 1073741824"),
            ("backends:", "log: {level: debug}\nbackends:", "log.level: info -> debug"),
            ("backends:", "allowInlineParameters: [size]\nbackends:", "allowInlineParameters: [size, fsType] -> [size]"),
            (", capacity: 1GiB", "", "backends[local].pools[b].capacity: 1073741824 -> not set"),
            ("path: /srv/a", "path: /srv/a, overcommit: 2", "backends[local].pools[a].overcommit: 1.0 -> 2.0"),
            ("share: /srv", "share: /srv, capacity: 1MiB", "backends[nas].shares[0].capacity: not set -> 1048576"),
            ("[exec]", "[exec, nolock]", "backends[nas].forbidMountOptions: [exec] -> [exec, nolock]"),
            ("type: nfs", "type: nfs, allowMountOptions: [suid]", "backends[nas].allowMountOptions: not set -> [suid]"),
            ("type: iscsi", "type: iscsi, allowedPortals: [192.0.2.1]", "backends[san].allowedPortals: not set -> [192.0.2.1]"),
        ] {
            assert_eq!(one(&[(old, new)]), (change.to_owned(), true));
        }
    }

    #[test]
    fn setting_that_needs_a_restart_is_named_with_its_old_and_new_value() {
        for (old, new, change) in [
            ("backends:", "driverName: a.b\nbackends:", "driverName: longshore.csi.dev -> a.b"),
            ("backends:", "log: {format: json}\nbackends:", "log.format: text -> json"),
            ("path: /srv/a", "path: /srv/c", "backends[local].pools[a].path: /srv/a -> /srv/c"),
            ("name: a,", "name: c,", "backends[local].pools: [a, b] -> [c, b]"),
            ("server: one", "server: two", "backends[nas].shares[0].server: one -> two"),
            ("- {name: san, type: iscsi}\n", "", "backends: [local, nas, san] -> [local, nas]"),
            ("name: san", "name: other", "backends: [local, nas, san] -> [local, nas, other]"),
            ("name: san, type: iscsi", "name: san, type: fake, capacity: 1GiB", "backends[san].type: iscsi -> fake"),
        ] {
            let found = changes(&[(old, new)]);
            assert!(found.contains(&(change.to_owned(), false)), "{change}: {found:?}");
        }
    }

    #[test]
    fn value_with_credentials_is_shown_without_them() {
        for (text, expected) in [
            ("https://user:secret@host:1/path", "https://***@host:1/path"),
            ("https://a@b:secret@host?x=1", "https://***@host?x=1"),
            ("https://host/a@b", "https://host/a@b"),
            ("/srv/a@b", "/srv/a@b"),
        ] {
            assert_eq!(without_credentials(text), expected);
        }
        assert_eq!(shown(&serde_json::json!({"password": "secret"})), "{password}");
    }

    #[test]
    fn every_reloadable_setting_is_one_of_the_schema() {
        let schema = super::super::schema(&Catalog::built_in()).to_value();
        let definitions = &schema["$defs"];
        let resolve = |value: &Value| -> Value {
            let reference = std::iter::once(value).chain(value["anyOf"].as_array().into_iter().flatten());
            let named = reference.filter_map(|value| value["$ref"].as_str()?.strip_prefix("#/$defs/")).next();
            named.map_or_else(|| value.clone(), |name| definitions[name].clone())
        };
        let find = |from: &Value, path: &str| {
            path.split('.').fold(from.clone(), |at, part| {
                let key = part.trim_end_matches("[]");
                let field = resolve(&at["properties"][key]);
                assert!(!field.is_null(), "{path}: {at:#}");
                if part.ends_with("[]") { resolve(&field["items"]) } else { field }
            })
        };
        for path in RELOADABLE {
            find(&schema, path);
        }
        let types = definitions["Backend"]["allOf"].as_array().expect("types");
        for row in Catalog::built_in().rows() {
            let own = types.iter().find(|entry| entry["if"]["properties"]["type"]["const"] == row.kind).expect("a schema");
            row.reloadable.iter().for_each(|path| drop(find(&own["then"], path)));
        }
    }
}

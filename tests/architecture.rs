//! The layers, held by a test: arrows point down only.
//!
//! main -> cli, server -> rpc -> ops -> backend, os -> volume, metrics; a backend may use os. Only rpc, server and the
//! command line's client know of gRPC.

use std::fs;
use std::path::{Path, PathBuf};

/// A layer, and what of this crate it may name.
const LAYERS: [(&str, &[&str]); 9] = [
    ("volume", &["volume"]),
    ("metrics.rs", &[]),
    ("os", &["os", "metrics", "volume"]),
    ("backend", &["backend", "os", "metrics", "volume"]),
    ("ops", &["ops", "backend", "os", "metrics", "volume"]),
    ("rpc", &["rpc", "csi", "ops", "backend", "metrics", "volume"]),
    ("config", &["config", "backend", "volume"]),
    ("server", &["server", "rpc", "admin", "csi", "pluginregistration", "ops", "os", "volume"]),
    ("cli", &["cli", "config", "server", "rpc", "admin", "csi", "ops", "backend", "os", "metrics", "volume"]),
];

/// Crates that speak gRPC, and the layers that may.
const GRPC: [&str; 5] = ["tonic::", "prost::", "prost_types::", "crate::csi", "crate::admin"];
const GRPC_LAYERS: [&str; 3] = ["rpc", "server", "cli"];

fn sources(path: &Path) -> Vec<PathBuf> {
    if path.is_file() {
        return vec![path.to_owned()];
    }
    let entries = fs::read_dir(path).expect("a readable directory");
    entries
        .flat_map(|entry| sources(&entry.expect("a readable entry").path()))
        .filter(|path| path.extension().is_some_and(|end| end == "rs"))
        .collect()
}

/// The modules named behind `crate::`, also in a braced list.
fn named(code: &str) -> Vec<String> {
    let mut names = Vec::new();
    for part in code.split("crate::").skip(1) {
        let list = part
            .strip_prefix('{')
            .map_or_else(|| vec![part], |list| list.split('}').next().unwrap_or_default().split(',').collect());
        for item in list {
            let name: String = item.trim().chars().take_while(|letter| letter.is_alphanumeric() || *letter == '_').collect();
            names.push(name);
        }
    }
    names
}

fn without_comments(code: &str) -> String {
    code.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}

#[test]
fn arrows_point_down_only() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut seen = 0;
    for (layer, allowed) in LAYERS {
        for path in sources(&root.join(layer)) {
            let code = without_comments(&fs::read_to_string(&path).expect("a readable source"));
            for name in named(&code) {
                seen += 1;
                assert!(
                    allowed.contains(&name.as_str()),
                    "{} names crate::{name}; {layer} may name only {allowed:?}",
                    path.display()
                );
            }
            if !GRPC_LAYERS.contains(&layer) {
                for word in GRPC {
                    assert!(!code.contains(word), "{} names {word}: only {GRPC_LAYERS:?} know of gRPC", path.display());
                }
            }
        }
    }
    assert!(seen > 50, "the test has stopped finding what it looks for");
}

#[test]
fn programs_are_started_in_os_only() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for path in sources(&root).into_iter().filter(|path| !path.starts_with(root.join("os"))) {
        let code = fs::read_to_string(&path).expect("a readable source");
        let production = code.split("#[cfg(test)]").next().unwrap_or_default();
        assert!(!without_comments(production).contains("Command::new"), "{} starts a program", path.display());
    }
}

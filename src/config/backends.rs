//! What a list of backends must be as a whole.

use std::collections::BTreeSet;
use std::path::PathBuf;

use crate::backend::catalog::BackendConfig;
use crate::volume::BackendName;

/// Each backend by itself, then all together.
pub(super) fn check(backends: &[BackendConfig]) -> Result<(), String> {
    if backends.is_empty() {
        return Err(
            "none is given; name at least one, or leave the field out for an image pool in the state directory".to_owned()
        );
    }
    let mut names = BTreeSet::new();
    let mut pools: Vec<(&BackendName, PathBuf)> = Vec::new();
    for backend in backends {
        let name = backend.name();
        if !names.insert(name) {
            return Err(format!("two are called {name}; the name is part of every volume id, so each needs its own"));
        }
        backend.validate().map_err(|error| format!("{name}: {error}"))?;
        let paths: Vec<PathBuf> = backend.storage_paths().into_iter().map(|storage| storage.path).collect();
        for path in &paths {
            if let Some((other, _)) = pools.iter().find(|(_, used)| used.starts_with(path) || path.starts_with(used.as_path())) {
                return Err(format!(
                    "{name}: pool {} shares its directory with one of {other}; each needs its own",
                    path.display()
                ));
            }
        }
        pools.extend(paths.into_iter().map(|path| (name, path)));
    }
    Ok(())
}

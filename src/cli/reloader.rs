//! What `longshore reload` asks for, in the driver: its configuration file read again, and applied as a whole or not at all.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use crate::admin::{ChangedSetting, ReloadResponse};
use crate::backend::registry::Registry;
use crate::config::{Change, Config};
use crate::ops::Node;
use crate::ops::node::InlineLimits;
use crate::os::lock;
use crate::server;

/// A running driver, and the sources of its configuration.
pub struct Reloader {
    pub file: Option<PathBuf>,
    /// Reads the file again, as at the start: below the same flags and environment.
    pub read: Box<dyn Fn() -> Result<Config, String> + Send + Sync>,
    /// Held from reading the file until it is applied: of two reloads the second one compares with what the first one has applied.
    pub in_force: Mutex<Config>,
    pub registry: Registry,
    pub node: Option<Arc<Node>>,
    pub log: server::Log,
}

impl Reloader {
    /// # Errors
    /// What is wrong with the file; nothing was applied.
    pub fn run(&self, check: bool) -> Result<ReloadResponse, String> {
        let file =
            self.file.as_ref().ok_or("reload: this driver was started without a configuration file; start it with --config")?;
        let file = file.display().to_string();
        let ran = self.compare_and_apply(check).map_err(|reason| format!("reload {file}: {reason}; nothing was applied"));
        match &ran {
            _ if check => {}
            Err(reason) => tracing::warn!(reason, "the configuration was not reloaded"),
            Ok((changes, true)) => tracing::info!(file, changed = summary(changes), "the configuration was reloaded"),
            Ok((changes, false)) if changes.is_empty() => {
                tracing::info!(file, "the configuration was reloaded; nothing has changed")
            }
            Ok((changes, false)) => {
                let (changed, restart) = (summary(changes), summary(changes.iter().filter(|change| !change.reloadable)));
                tracing::warn!(
                    file,
                    changed,
                    restart,
                    "the configuration was not reloaded: settings need a restart of the driver"
                );
            }
        }
        let (changes, applied) = ran?;
        let changed = changes.into_iter().map(|Change { setting, before, after, reloadable }| ChangedSetting {
            name: setting,
            before,
            after,
            needs_restart: !reloadable,
        });
        Ok(ReloadResponse { file, changed: changed.collect(), applied })
    }

    /// What has changed, and whether it was applied.
    fn compare_and_apply(&self, check: bool) -> Result<(Vec<Change>, bool), String> {
        let mut in_force = lock(&self.in_force);
        let new = (self.read)()?;
        let changes = in_force.changes(&new).map_err(|error| error.to_string())?;
        if check || changes.is_empty() || changes.iter().any(|change| !change.reloadable) {
            return Ok((changes, false));
        }
        self.apply(&in_force, &new)?;
        *in_force = new;
        Ok((changes, true))
    }

    /// What can fail comes first.
    fn apply(&self, before: &Config, new: &Config) -> Result<(), String> {
        let backends = new.backends.iter().filter_map(|config| Some((config, self.registry.get(config.name())?)));
        let prepared = backends.map(|(config, backend)| config.reload(backend.as_ref())).collect::<Result<Vec<_>, _>>();
        let prepared = prepared.map_err(|error| error.to_string())?;
        // A level that `longshore log-level` has set stays until that of the file changes.
        if before.log.level != new.log.level {
            self.log.set(new.log.level.as_str())?;
        }
        prepared.into_iter().for_each(|apply| apply());
        if let Some(node) = &self.node {
            node.set_inline_limits(inline_limits(new));
        }
        Ok(())
    }
}

/// What pods may ask of ephemeral inline volumes.
pub fn inline_limits(config: &Config) -> InlineLimits {
    InlineLimits { max_size: config.inline_max_size, allowed_parameters: config.allow_inline_parameters.clone() }
}

fn summary<'a>(changes: impl IntoIterator<Item = &'a Change>) -> String {
    changes.into_iter().map(Change::to_string).collect::<Vec<_>>().join("; ")
}

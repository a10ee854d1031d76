//! What the backends say of their own storage: volume groups, disks. Directories have checks of their own ([`super::places`]).

use crate::backend::catalog::{BackendConfig, OpenContext, Purpose};
use crate::volume::{HealthProblem, Severity};

use super::setup::Setup;
use super::{Check, Level};

pub(super) const STORAGE: &str = "storage";

/// As NodeGetStorageHealth would answer of this backend; opened to look, so that nothing is made or locked.
pub(super) fn storage(setup: &Setup, config: &BackendConfig) -> Vec<Check> {
    let called = format!("backend {}", config.name());
    let remedy = format!("docs/{}.md says what to do; `longshore inspect` shows the volumes that have it", config.kind());
    let unknown = |error: &dyn std::fmt::Display| vec![Check::error(STORAGE, format!("{called}: {error}"), remedy.clone())];
    let backend = match config.open(&OpenContext::to_look(Purpose::Inspect, &setup.node_id, &setup.state_dir)) {
        Ok(backend) => backend,
        Err(error) => return unknown(&error),
    };
    let Some(report) = backend.health() else { return Vec::new() };
    match report.storage_health() {
        Ok(health) if health.is_empty() => vec![Check::ok(STORAGE, format!("{called} finds nothing wrong with its storage"))],
        Ok(health) => health.iter().map(|problem| check(&called, problem, &remedy)).collect(),
        Err(error) => unknown(&error),
    }
}

fn check(called: &str, problem: &HealthProblem, remedy: &str) -> Check {
    let level = match problem.severity {
        Severity::Degraded => Level::Warning,
        Severity::Inaccessible | Severity::DataLoss => Level::Error,
    };
    let found = format!("{called}: {}: {}", problem.reason, problem.message);
    Check { name: STORAGE, level, found, remedy: Some(remedy.to_owned()) }
}

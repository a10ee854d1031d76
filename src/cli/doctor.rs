//! `longshore doctor`: shows what `ops::doctor` found.

use std::fmt::Write as _;

use serde::Serialize;

use crate::backend::catalog::{Catalog, Row};
use crate::config::{Config, Layer};
use crate::ops::doctor::{self, Check, Level, Setup};

use super::args::DoctorArgs;
use super::{Failure, in_pod, print, serve};

/// The form of the JSON: within one, fields are added, but none is renamed or removed.
const VERSION: u32 = 1;

#[derive(Serialize)]
struct Report<'a> {
    version: u32,
    /// The worst.
    level: Level,
    checks: &'a [Check],
}

/// Answers the exit code.
pub fn run(args: &DoctorArgs, catalog: &Catalog) -> Result<u8, Failure> {
    let flags = Layer { mode: args.mode, ..args.place.layer() };
    let config = serve::configure(catalog, flags, args.place.config.as_deref())?;
    let checks = doctor::examine(&setup(&config, catalog));
    let level = checks.iter().map(|check| check.level).max().unwrap_or(Level::Ok);
    if args.json {
        let report = Report { version: VERSION, level, checks: &checks };
        print(&(serde_json::to_string_pretty(&report).map_err(|error| Failure::Output(error.into()))? + "\n"))?;
    } else {
        print(&shown(&checks))?;
    }
    Ok(u8::from(level == Level::Error))
}

fn setup(config: &Config, catalog: &Catalog) -> Setup {
    let is_configured = |row: &&Row| config.backends.iter().any(|backend| backend.kind() == row.kind);
    let rows: Vec<&Row> = catalog.rows().iter().filter(is_configured).collect();
    Setup {
        node: config.mode.node(),
        driver: config.driver_name.to_string(),
        endpoint: config.endpoint.path().to_owned(),
        state_dir: config.state_dir.path().to_owned(),
        kubelet_dir: config.kubelet_dir.path().to_owned(),
        storage: config.backends.iter().flat_map(|backend| backend.storage_paths()).collect(),
        tools: rows.iter().flat_map(|row| row.tools).copied().collect(),
        node_checks: rows.iter().flat_map(|row| row.node_checks).copied().collect(),
        in_pod: in_pod(),
    }
}

fn shown(checks: &[Check]) -> String {
    let mut text = String::new();
    for check in checks {
        let level = match check.level {
            Level::Ok => "ok",
            Level::Warning => "WARNING",
            Level::Error => "ERROR",
        };
        writeln!(text, "{level:<8} {:<17} {}", check.name, check.found).ok();
        if let Some(remedy) = &check.remedy {
            writeln!(text, "{:26} -> {remedy}", "").ok();
        }
    }
    let count = |level| checks.iter().filter(|check| check.level == level).count();
    let (ok, warnings, errors) = (count(Level::Ok), count(Level::Warning), count(Level::Error));
    writeln!(text, "\n{ok} ok, {warnings} warnings, {errors} errors").ok();
    text
}

//! `longshore doctor`: shows what `ops::doctor` found.

use std::fmt::Write as _;
use std::time::Duration;

use serde::Serialize;

use crate::admin::{StandbyRequest, StandbyResponse};
use crate::backend::catalog::{Catalog, Row};
use crate::config::{Config, Layer};
use crate::ops::doctor::{self, Check, Level, Setup};

use super::args::DoctorArgs;
use super::call::{self, Client};
use super::progress::Progress;
use super::{Failure, in_pod, print, serve};

/// The form of the JSON: within one, fields are added, but none is renamed or removed.
const VERSION: u32 = 1;
/// For the answer of the driver that runs here.
const PATIENCE: Duration = Duration::from_secs(5);

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
    let mut checks = doctor::examine(&setup(&config, catalog));
    checks.extend(standby(&config));
    let level = checks.iter().map(|check| check.level).max().unwrap_or(Level::Ok);
    if args.json {
        let report = Report { version: VERSION, level, checks: &checks };
        print(&(serde_json::to_string_pretty(&report).map_err(|error| Failure::Output(error.into()))? + "\n"))?;
    } else {
        print(&shown(&checks))?;
    }
    let counts = |check: &&Check| !(args.before_start && doctor::is_of_storage(check));
    Ok(u8::from(checks.iter().filter(counts).any(|check| check.level == Level::Error)))
}

/// What the driver that runs here says of itself: it also knows of locks that are not on this machine.
fn standby(config: &Config) -> Option<Check> {
    const NAME: &str = "standby";
    if !config.mode.controller() {
        return None;
    }
    let answer = call::runtime().ok()?.block_on(async {
        let client = Client::connect(&config.endpoint, PATIENCE, Progress::new(false)).await?;
        client.answer("standby", client.admin().standby(StandbyRequest {})).await
    });
    match answer {
        Ok(StandbyResponse { reason: Some(reason), .. }) => {
            Some(Check::ok(NAME, format!("the driver here is on standby: {reason}")))
        }
        Ok(StandbyResponse { contended: true, .. }) => Some(Check::ok(NAME, "the driver here provisions")),
        // Nothing is to be waited for, or the check of the socket says what is wrong.
        Ok(_) | Err(_) => None,
    }
}

fn setup(config: &Config, catalog: &Catalog) -> Setup {
    let is_configured = |row: &&Row| config.backends.iter().any(|backend| backend.kind() == row.kind);
    let rows: Vec<&Row> = catalog.rows().iter().filter(is_configured).collect();
    Setup {
        node: config.mode.node(),
        node_id: config.node_id.clone(),
        driver: config.driver_name.to_string(),
        endpoint: config.endpoint.path().to_owned(),
        state_dir: config.state_dir.path().to_owned(),
        kubelet_dir: config.kubelet_dir.path().to_owned(),
        storage: config.backends.iter().flat_map(|backend| backend.storage_paths()).collect(),
        backends: config.backends.iter().filter(|backend| backend.storage_paths().is_empty()).cloned().collect(),
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

//! `longshore inspect`: shows what `ops::node::inspect` found, and asks before anything is repaired.

use std::io::{self, IsTerminal, Write as _};

use serde::Serialize;

use crate::backend::catalog::{BackendConfig, Catalog, OpenContext, Purpose};
use crate::config::Config;
use crate::ops::node::NodeSettings;
use crate::ops::node::inspect::{self, Configured, Finding, Repairer, Report, Setup};
use crate::volume;

use super::args::InspectArgs;
use super::output::json;
use super::reloader::inline_limits;
use super::tree::Lines;
use super::{Failure, print, serve};

mod text;

use text::{kind, shown, summary};

/// Something was found.
const FOUND: u8 = 1;
/// Something could not be looked at.
const UNSEEN: u8 = 3;

/// Answers the exit code.
pub fn run(args: &InspectArgs, catalog: &Catalog) -> Result<u8, Failure> {
    if args.fix && !args.yes && (args.json || !io::stdin().is_terminal()) {
        return Err(Failure::Usage("--fix asks for confirmation; without a terminal, add --yes".to_owned()));
    }
    let config = serve::configure(catalog, args.place.layer(), args.place.config.as_deref())?;
    if let Some(backend) = &args.backend {
        return super::garbage::run(args, &config, backend);
    }
    let setup = setup(&config);
    let report = look(&setup, args.volume.as_deref())?;
    if args.fix {
        return fix(&setup, report, args);
    }
    if args.json {
        print(&json(&report)?)?;
    } else {
        print(&shown(&report, args.volume.is_some(), Lines::for_output()))?;
    }
    Ok(exit_code(&report))
}

fn exit_code(report: &Report) -> u8 {
    match (report.is_well(), report.not_seen.is_empty()) {
        (false, _) => FOUND,
        (true, false) => UNSEEN,
        (true, true) => 0,
    }
}

fn look(setup: &Setup, volume: Option<&str>) -> Result<Report, Failure> {
    let mut report = inspect::inspect(setup)?;
    if let Some(text) = volume {
        let id = report.find(text).map_err(|several| no_such(text, &several, &report))?;
        report.retain(&id);
    }
    Ok(report)
}

fn no_such(text: &str, several: &[String], report: &Report) -> Failure {
    if !several.is_empty() {
        return Failure::Usage(format!("{text:?} is a part of several ids: {}", several.join(", ")));
    }
    let unseen: Vec<String> = report.not_seen.iter().map(|unseen| format!("{}: {}", unseen.what, unseen.why)).collect();
    if unseen.is_empty() {
        return Failure::Usage(format!("no volume on this node or in its storage is called {text:?}"));
    }
    let reason = format!("{text:?} was not found, but not everything could be looked at: {}", unseen.join("; "));
    Failure::Node(volume::Error::InProgress { object: "inspect".to_owned(), reason })
}

/// What `serve` would serve, opened to be looked at.
fn setup(config: &Config) -> Setup {
    let context = OpenContext::to_look(Purpose::Inspect, &config.node_id, config.state_dir.path());
    let open = |backend: &BackendConfig| Configured { name: backend.name().clone(), backend: backend.open(&context) };
    let backends = config.backends.iter().map(open);
    Setup {
        node: NodeSettings {
            node_id: config.node_id.clone(),
            kubelet_dir: config.kubelet_dir.path().to_owned(),
            state_dir: config.state_dir.path().to_owned(),
            inline_limits: inline_limits(config),
        },
        driver: config.driver_name.to_string(),
        endpoint: config.endpoint.path().to_owned(),
        backends: backends.collect(),
    }
}

/// What was done about a finding.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Action<'a> {
    #[serde(flatten)]
    finding: &'a Finding,
    /// `done` or `failed`.
    result: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

#[derive(Serialize)]
struct Fixed<'a> {
    actions: Vec<Action<'a>>,
    /// What is there afterwards.
    #[serde(flatten)]
    report: Report,
}

fn fix(setup: &Setup, report: Report, args: &InspectArgs) -> Result<u8, Failure> {
    let plan: Vec<&Finding> = report.findings.iter().filter(|finding| finding.fix).collect();
    if !args.json {
        print(&shown(&report, args.volume.is_some(), Lines::for_output()))?;
        let nothing = if plan.is_empty() { "\nnothing that --fix could do\n" } else { "\n--fix will:\n" };
        let steps = plan.iter().enumerate().map(|(at, finding)| format!("  {}. {}\n", at + 1, reported(finding)));
        print(&(nothing.to_owned() + &steps.collect::<String>()))?;
    }
    if let Some(driver) = report.running.driver.as_ref().filter(|_| !plan.is_empty()) {
        let pid = driver.pid.map_or("a process that cannot be seen from here".to_owned(), |pid| format!("process {pid}"));
        let by = format!("the driver runs ({pid}); stop it first, or run the commands above one by one");
        return Err(volume::Error::InUse { object: "this node".to_owned(), by }.into());
    }
    if plan.is_empty() || !(args.yes || agreed(plan.len())?) {
        if args.json {
            print(&json(&Fixed { actions: Vec::new(), report: report.clone() })?)?;
        }
        return Ok(exit_code(&report));
    }
    let actions = repair(setup, &plan, !args.json)?;
    let after = look(setup, None).map(|mut after| {
        if let (Some(_), [volume]) = (&args.volume, report.volumes.as_slice()) {
            after.retain(&volume.id);
        }
        after
    })?;
    let mut code = exit_code(&after);
    if actions.iter().any(|action| action.error.is_some()) {
        code = FOUND;
    }
    if args.json {
        print(&json(&Fixed { actions, report: after })?)?;
    } else {
        print(&format!("\nafterwards: {}\n", summary(&after)))?;
    }
    Ok(code)
}

fn repair<'a>(setup: &Setup, plan: &[&'a Finding], aloud: bool) -> Result<Vec<Action<'a>>, Failure> {
    let repairer = Repairer::new(setup)?;
    let mut actions = Vec::new();
    for &finding in plan {
        let Some(repair) = &finding.repair else { continue };
        let error = repairer.repair(repair).err().map(|error| volume::error::chain(&error));
        let result = if error.is_some() { "failed" } else { "done" };
        if aloud {
            let why = error.as_ref().map(|error| format!(": {error}")).unwrap_or_default();
            print(&format!("{result}: {}{why}\n", reported(finding)))?;
        }
        actions.push(Action { finding, result, error });
    }
    Ok(actions)
}

/// Asks on the terminal.
fn agreed(count: usize) -> Result<bool, Failure> {
    let mut stderr = io::stderr().lock();
    write!(stderr, "\nrepair {count}? [y/N] ").and_then(|()| stderr.flush()).map_err(Failure::Output)?;
    let mut answer = String::new();
    io::stdin().read_line(&mut answer).map_err(Failure::Output)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// What a finding's repair comes to, for people.
fn reported(finding: &Finding) -> String {
    let name = kind(finding);
    match finding.commands.as_slice() {
        [] => format!("{name} {}", finding.object),
        commands => format!("{name} {}: as by `{}`", finding.object, commands.join("; ")),
    }
}

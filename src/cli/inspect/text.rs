//! What `longshore inspect` shows to people.

use std::fmt::Write as _;
use std::time::Duration;

use crate::cli::table::size;
use crate::cli::tree::{Branch, Lines};
use crate::ops::node::inspect::{Finding, Report, Role, State, Volume};

/// As in the JSON.
pub(super) fn kind(finding: &Finding) -> String {
    serde_json::to_value(finding.kind).ok().and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
}

pub(super) fn shown(report: &Report, one: bool, lines: Lines) -> String {
    let mut text = if one { String::new() } else { head(report) };
    for volume in &report.volumes {
        text.push_str(&lines.draw(&stack(volume, report.time)));
        if one {
            text.push_str(&story(volume, report));
        }
    }
    for operation in &report.running.operations {
        let since = operation.since.map(|since| format!(" since {}", ago(report.time, since))).unwrap_or_default();
        writeln!(text, "running: {} of {}{since}", operation.operation, operation.volume).ok();
    }
    for program in &report.running.programs {
        let since = ago(report.time, program.since);
        writeln!(text, "running: {} (process {}) on {} since {since}", program.name, program.pid, program.device.display()).ok();
    }
    for (at, finding) in report.findings.iter().enumerate() {
        text.push_str(if at == 0 && !text.is_empty() { "\n" } else { "" });
        text.push_str(&found(at + 1, finding, report.running.driver.is_some()));
    }
    for unseen in &report.not_seen {
        writeln!(text, "not looked at: {}: {}", unseen.what, unseen.why).ok();
    }
    if !one {
        writeln!(text, "\n{}", summary(report)).ok();
    }
    // A path may hold what a terminal obeys.
    text.replace(|letter: char| letter.is_control() && letter != '\n', "?")
}

fn head(report: &Report) -> String {
    let driver = match &report.running.driver {
        Some(driver) => {
            let pid = driver.pid.map(|pid| format!(" as process {pid}")).unwrap_or_default();
            let since = driver.since.map(|since| format!(" since {}", ago(report.time, since))).unwrap_or_default();
            let answers = if driver.answers { "" } else { ", but does not answer at its socket" };
            format!("runs{pid}{since}{answers}")
        }
        None => "does not run".to_owned(),
    };
    let mut text = format!("node {}: {} {driver}\n", report.node, report.driver);
    for place in &report.storage {
        let provisioner = place.provisioner.map(|pid| {
            let host = place.provisioner_host.as_ref().map(|host| format!(" on {host}")).unwrap_or_default();
            format!(", provisioned from by process {pid}{host}")
        });
        // Locks of other machines cannot be seen.
        let recorded = place.recorded_provisioner.as_ref().map(|record| {
            let pid = record.pid.map_or_else(|| "a process".to_owned(), |pid| format!("process {pid}"));
            let host = record.host.as_ref().map(|host| format!(" on {host}")).unwrap_or_default();
            let since = record.since.map(|since| format!(" {} ago", ago(report.time, since))).unwrap_or_default();
            format!(", recorded by {pid}{host}{since} as provisioned from (not seen from here)")
        });
        let provisioner = provisioner.or(recorded).unwrap_or_default();
        let more = format!("{}{provisioner}", if place.read_only { ", read-only" } else { "" });
        let (free, total) = (bytes(place.free), bytes(place.total));
        writeln!(text, "pool {} of {}: {}, {free} free of {total}{more}", place.name, place.backend, place.at).ok();
    }
    for connection in &report.connections {
        let volumes = match connection.volumes.len() {
            1 => "1 volume".to_owned(),
            count => format!("{count} volumes"),
        };
        let down = if connection.up { "" } else { ", NOT UP" };
        writeln!(text, "connection of {}: {}: {}, {volumes}{down}", connection.backend, connection.object, connection.state).ok();
    }
    text.push('\n');
    text
}

fn bytes(bytes: u64) -> String {
    size(i64::try_from(bytes).unwrap_or(i64::MAX))
}

/// To two units: `3h 2m`.
fn ago(now: u64, then: u64) -> String {
    let since = Duration::from_secs(now.saturating_sub(then));
    let text = humantime::format_duration(since).to_string();
    text.split(' ').take(2).collect::<Vec<_>>().join(" ")
}

fn stack(volume: &Volume, now: u64) -> Branch {
    let capacity = volume.stored.as_ref().and_then(|stored| stored.capacity).map(|capacity| format!(", {}", bytes(capacity)));
    let since = volume.journal.as_ref().and_then(|journal| journal.since).map(|since| format!(" {} ago", ago(now, since)));
    let state = match volume.state {
        State::Stored => "stored, not on this node".to_owned(),
        State::Staging => format!("stage begun{}", since.unwrap_or_default()),
        State::Staged => format!("staged{}", since.unwrap_or_default()),
        State::Unstaging => "being unstaged".to_owned(),
        State::Interrupted => "interrupted while it was written; the next stage ends it".to_owned(),
        State::BeforeBoot => format!("staged before the last boot{}", since.unwrap_or_default()),
        State::Unowned => "no stage is journaled".to_owned(),
    };
    let health = if volume.problems.is_empty() { "" } else { ", UNHEALTHY" };
    let mut root = Branch::new(format!("{}  {state}{}{health}", volume.id, capacity.unwrap_or_default()));
    root.children.extend(
        volume
            .problems
            .iter()
            .map(|problem| Branch::new(format!("! {} {}: {}", problem.severity, problem.reason, problem.message))),
    );
    let mut layers: Vec<String> = Vec::new();
    if let Some(stored) = volume.stored.as_ref().filter(|_| volume.state != State::Stored) {
        let made = stored.created.map(|created| format!(", made {} ago", ago(now, created))).unwrap_or_default();
        let allocated = stored.allocated.map(|allocated| format!("  {} on disk", bytes(allocated))).unwrap_or_default();
        layers.push(format!("image    {}{allocated}{made}", stored.at));
    }
    let attached = volume.stored.as_ref().map(|stored| stored.attached.join(", ")).filter(|nodes| !nodes.is_empty());
    root.children.extend(attached.map(|nodes| Branch::new(format!("attached {nodes}"))));
    for device in &volume.devices {
        let stray = if device.journaled { "" } else { "  no stage has it" };
        layers.push(format!("device   {} ({}){stray}", device.path.display(), device.number));
    }
    layers.extend(volume.mapping.iter().map(|mapping| format!("mapping  {} ({})", mapping.name, mapping.path.display())));
    if let Some(filesystem) = &volume.filesystem {
        let usage =
            filesystem.used.zip(filesystem.total).map(|(used, total)| format!("  {} used of {}", bytes(used), bytes(total)));
        layers.push(format!("{:<8} {}", filesystem.fstype, usage.unwrap_or_default().trim_start()).trim_end().to_owned());
    }
    let mut places: Vec<Branch> = volume
        .places
        .iter()
        .map(|place| {
            let role = match place.role {
                Role::Staging => "staging",
                Role::Target => "target",
                Role::Subpath => "subpath",
                Role::DeviceMap => "device",
                Role::Unknown => "unknown",
            };
            let pod = place.pod_uid.as_ref().map(|pod| format!("  pod {pod}")).unwrap_or_default();
            let read_only = if place.read_only { "  read-only" } else { "" };
            let mounted = if place.mounted { "" } else { "  NOT MOUNTED" };
            Branch::new(format!("{role:<8} {}{pod}{read_only}{mounted}", place.path.display()))
        })
        .collect();
    for layer in layers.into_iter().rev() {
        places = vec![Branch { text: layer, children: places }];
    }
    root.children.extend(places);
    root
}

/// What the journal says, in what the kernel differs, and what is to be done.
fn story(volume: &Volume, report: &Report) -> String {
    let mut text = String::new();
    let journal = volume.journal.as_ref().map_or("no entry".to_owned(), |journal| {
        let phase = journal.phase.unwrap_or("no stage");
        let at = journal.staging.as_ref().map(|staging| format!(" at {}", staging.display())).unwrap_or_default();
        let access = journal.access.map(|access| format!(", {access}")).unwrap_or_default();
        let read_only = if journal.read_only { ", read-only" } else { "" };
        let boot = if journal.same_boot { "" } else { ", before the last boot" };
        let interrupted = journal.interrupted.map(|what| format!(", {what} was begun and not ended")).unwrap_or_default();
        let targets: String = journal.targets.iter().map(|target| format!("\n          target {}", target.display())).collect();
        format!("{phase}{at}{access}{read_only}{boot}{interrupted}{targets}")
    });
    writeln!(text, "\njournal:  {journal}").ok();
    let differs: Vec<&str> = report.findings.iter().map(|finding| finding.what.as_str()).collect();
    let none = if report.not_seen.is_empty() { "in nothing" } else { "in nothing that could be looked at" };
    writeln!(text, "differs:  {}", if differs.is_empty() { none.to_owned() } else { differs.join("\n          ") }).ok();
    let next: Vec<&str> = report.findings.iter().flat_map(|finding| finding.commands.iter().map(String::as_str)).collect();
    let next = match (next.is_empty(), volume.problems.is_empty()) {
        (true, true) => "nothing to do".to_owned(),
        (true, false) => "see what is said of its health above".to_owned(),
        (false, _) => next.join("\n          "),
    };
    writeln!(text, "next:     {next}").ok();
    text
}

fn found(number: usize, finding: &Finding, driver_runs: bool) -> String {
    let volume = finding.volume.as_ref().map(|volume| format!(" of {volume}")).unwrap_or_default();
    let mut text = format!("{number}. {}{volume}: {}\n   {}\n", kind(finding), finding.object, finding.what);
    for command in &finding.commands {
        writeln!(text, "     {command}").ok();
    }
    match &finding.why_not {
        Some(why) => writeln!(text, "   not by --fix: {why}").ok(),
        None if driver_runs => writeln!(text, "   --fix does it, once no driver runs").ok(),
        None => writeln!(text, "   --fix does it").ok(),
    };
    text
}

pub(super) fn summary(report: &Report) -> String {
    let staged = report.volumes.iter().filter(|volume| volume.state == State::Staged).count();
    let unhealthy = report.volumes.iter().filter(|volume| !volume.problems.is_empty()).count();
    let (volumes, findings, unseen) = (report.volumes.len(), report.findings.len(), report.not_seen.len());
    format!("{volumes} volumes, {staged} staged, {unhealthy} unhealthy; {findings} to repair; {unseen} not looked at")
}

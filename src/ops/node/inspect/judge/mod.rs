//! From what was seen to what it means: the stack of each volume, orphaned resources, and what repairs it. Pure.

use std::path::PathBuf;

use crate::backend::{Leftover, LeftoverKind, SharedConnection};
use crate::volume::VolumeId;

use super::super::observe::{self};
use super::facts::Facts;
use super::repair::Repair;
use super::report::{Finding, Kind, Report, VERSION, shell};

use remedies::{command, text};
use story::Story;
use view::{View, is_staged, shown_connection, surveys};

mod findings;
mod remedies;
mod story;
mod view;

pub(super) fn judge(facts: &Facts, node: &str, driver: &str) -> Report {
    let view = View::new(facts);
    let mut volumes = Vec::new();
    let mut findings = Vec::new();
    for id in view.ids() {
        let story = Story::new(&view, id);
        volumes.push(story.volume());
        findings.extend(story.findings());
    }
    for (name, survey) in surveys(facts) {
        let is_orphaned = |leftover: &&Leftover| leftover.kind != LeftoverKind::Lease || !is_staged(facts, &leftover.id);
        findings.extend(survey.leftovers.iter().filter(is_orphaned).map(|leftover| of_storage(name, leftover)));
    }
    findings.extend(facts.connections.iter().filter_map(|(backend, connection)| view.unowned(backend, connection)));
    findings.extend(view.frozen());
    Report {
        version: VERSION,
        node: node.to_owned(),
        driver: driver.to_owned(),
        state_dir: facts.state.clone(),
        kubelet_dir: facts.kubelet.clone(),
        time: facts.now,
        running: view.running(),
        storage: view.storage(),
        connections: facts.connections.iter().map(|(backend, connection)| shown_connection(backend, connection)).collect(),
        volumes,
        findings,
        not_seen: facts.not_seen.clone(),
    }
}

impl<'a> View<'a> {
    /// A connection that was made for volumes of which the journal knows nothing.
    fn unowned(&self, backend: &str, connection: &SharedConnection) -> Option<Finding> {
        let mut staged = self.entries.values().filter_map(|entry| entry.found.stage.as_ref()?.source.as_ref());
        let carried = staged.any(|source| connection.carries(source));
        if carried || connection.users.iter().any(|id| self.entries.contains_key(id)) {
            return None;
        }
        let why_not = observe::mounted_from(&self.facts.mounts, connection)
            .map(|mount| format!("{} is mounted from it", mount.mount_point.display()));
        let of = match connection.users.as_slice() {
            [] => "no volume".to_owned(),
            users => users.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
        };
        Some(Finding {
            kind: Kind::LinkUnowned,
            volume: connection.users.first().filter(|_| connection.users.len() == 1).map(ToString::to_string),
            object: connection.object.clone(),
            what: format!("{}; it is of {of}, and the journal has no entry of it", connection.state),
            commands: connection.release.iter().map(|words| command(words)).collect(),
            fix: why_not.is_none(),
            repair: why_not
                .is_none()
                .then(|| Repair::ReleaseConnection { backend: backend.to_owned(), connection: connection.clone() }),
            why_not,
        })
    }

    /// While a driver runs it holds them still for a snapshot.
    fn frozen(&self) -> Option<Finding> {
        let left: Vec<_> = self.facts.frozen.iter().filter(|_| self.facts.driver.is_none()).collect();
        let (first, _) = left.first()?;
        let here = left.iter().filter(|(_, entry)| entry.boot == self.facts.boot);
        let paths: Vec<&PathBuf> = here.flat_map(|(_, entry)| &entry.mounts).collect();
        let thaw = |path: &&PathBuf| format!("{} || true", shell(["fsfreeze", "--unfreeze", &text(path)]));
        let records: Vec<String> = left.iter().map(|(path, _)| text(path)).collect();
        let forget = shell(["rm", "--force", "--"].into_iter().chain(records.iter().map(String::as_str)));
        Some(Finding {
            kind: Kind::Frozen,
            volume: None,
            object: text(first),
            what: "a snapshot was interrupted; the file systems that it froze may be so yet".to_owned(),
            commands: paths.iter().map(thaw).chain([forget]).collect(),
            fix: true,
            why_not: None,
            repair: Some(Repair::Thaw),
        })
    }
}

fn of_storage(backend: &str, leftover: &Leftover) -> Finding {
    let kind = match leftover.kind {
        LeftoverKind::Draft => Kind::Draft,
        LeftoverKind::Trash => Kind::Trash,
        LeftoverKind::WithoutMetadata => Kind::MetadataMissing,
        LeftoverKind::WithoutData => Kind::DataMissing,
        LeftoverKind::Export => Kind::ExportUnowned,
        LeftoverKind::NotExported => Kind::ExportMissing,
        LeftoverKind::Lease => Kind::LeaseOrphaned,
        LeftoverKind::LeaseDamaged => Kind::LeaseDamaged,
        LeftoverKind::Renamed => Kind::Renamed,
        LeftoverKind::Quota => Kind::QuotaOrphaned,
    };
    let why_not = match leftover.kind {
        LeftoverKind::NotExported => "starting the driver does it",
        LeftoverKind::Export => "it is not the driver's",
        LeftoverKind::Lease | LeftoverKind::LeaseDamaged => "it keeps other nodes from the volume, which may be in use",
        LeftoverKind::Renamed => "who renamed it may use it, and only an administrator knows what for",
        LeftoverKind::Quota => "it harms nothing: only its number stays taken",
        _ => "no data is ever moved or deleted by --fix",
    };
    let why_not = (!leftover.removable).then(|| why_not.to_owned());
    Finding {
        kind,
        volume: Some(leftover.id.clone()).filter(|id| id.parse::<VolumeId>().is_ok()),
        object: text(&leftover.object),
        what: leftover.what.clone(),
        commands: leftover.commands.iter().map(|words| command(words)).collect(),
        fix: leftover.removable,
        why_not,
        repair: leftover.removable.then(|| Repair::Remove { backend: backend.to_owned(), leftover: leftover.clone() }),
    }
}

#[cfg(test)]
mod tests;

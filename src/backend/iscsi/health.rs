//! What is wrong with sessions and paths, by what sysfs says now: nothing is asked of a target.

use std::collections::BTreeMap;

use crate::backend::ReportHealth;
use crate::os::iscsi;
use crate::volume::{Error, Health, HealthProblem, Result, Severity, VolumeId};

use super::IscsiBackend;
use super::memory::Entry;

impl ReportHealth for IscsiBackend {
    fn volume_health(&self, id: &VolumeId) -> Result<Health> {
        let stored = match self.san.as_ref().map(|san| san.volume_health(id)) {
            None | Some(Err(Error::NotFound { .. })) => None,
            Some(health) => Some(health?),
        };
        let connected = self.memory.get(id).map(|entry| self.paths_health(&entry)).transpose()?;
        match (stored, connected) {
            (None, None) => Err(Error::volume_not_found(id)),
            (stored, connected) => Ok([stored, connected].into_iter().flatten().flatten().collect()),
        }
    }

    fn storage_health(&self) -> Result<Health> {
        let own = self.own_sessions();
        let lost: Vec<String> = iscsi::sessions()?
            .into_iter()
            .filter(|session| session.interface.starts_with(&own) && !session.is_up())
            .map(|session| {
                let portal = session.portal.map_or_else(|| "its portal".to_owned(), |portal| portal.to_string());
                format!("the session with {} at {portal} is {}", session.target, session.state)
            })
            .collect();
        let message = format!("{}; look at the network and at the target, iscsid tries again by itself", lost.join("; "));
        let mut health = self.san.as_ref().map_or_else(|| Ok(Health::new()), ReportHealth::storage_health)?;
        if !lost.is_empty() {
            health.push(HealthProblem { severity: Severity::Degraded, reason: "SessionLost", message });
        }
        Ok(health)
    }

    fn unhealthy(&self, after: Option<&VolumeId>, max: usize) -> Result<Vec<(VolumeId, Health)>> {
        let stored = self.san.as_ref().map_or_else(|| Ok(Vec::new()), |san| san.unhealthy(after, max))?;
        let mut unhealthy: BTreeMap<VolumeId, Health> = stored.into_iter().collect();
        for entry in self.memory.all().into_iter().filter(|entry| after.is_none_or(|after| entry.id > *after)) {
            let health = self.paths_health(&entry)?;
            if !health.is_empty() {
                unhealthy.entry(entry.id).or_default().extend(health);
            }
        }
        Ok(unhealthy.into_iter().take(max).collect())
    }
}

impl IscsiBackend {
    fn paths_health(&self, entry: &Entry) -> Result<Health> {
        let paths = self.paths(entry)?;
        let up: Vec<String> = paths
            .iter()
            .filter(|path| path.session.is_up())
            .filter_map(|path| path.session.portal.as_ref().map(ToString::to_string))
            .collect();
        let wanted = if entry.one_path.is_some() { 1 } else { entry.portals.len() };
        let lost: Vec<&str> = entry.portals.iter().filter(|portal| !up.contains(portal)).map(String::as_str).collect();
        let about = format!("volume {}: LUN {} of {}", entry.id, entry.lun, entry.target);
        let mut health = Health::new();
        let mut add = |severity, reason, message: String| {
            health.push(HealthProblem { severity, reason, message: format!("{about} {message}") });
        };
        if up.is_empty() {
            let portals = lost.join(", ");
            add(
                Severity::Inaccessible,
                "SessionLost",
                format!("has no path by {portals}; look at the network and at the target, iscsid tries again by itself"),
            );
        } else if up.len() < wanted {
            let (up, lost) = (up.join(", "), lost.join(", "));
            add(
                Severity::Degraded,
                "PathLost",
                format!(
                    "is reached by {up} only, not by {lost}; look at the network and at the target. A session that was there is \
                         tried again by itself, another at the next stage"
                ),
            );
        }
        if let Some(reason) = &entry.one_path {
            add(Severity::Degraded, "OnePath", format!("has several portals, of which one is used: {reason}"));
        }
        Ok(health)
    }
}

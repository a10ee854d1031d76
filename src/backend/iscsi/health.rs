//! What is wrong with sessions and paths, by what sysfs says now: nothing is asked of a target. On the target server, what is wrong
//! with images and exports, too.

use std::collections::BTreeMap;

use crate::backend::ReportHealth;
use crate::os::iscsi;
use crate::volume::{Error, Health, HealthProblem, Result, Severity, VolumeId};

use super::IscsiBackend;
use super::connections::Entry;

impl ReportHealth for IscsiBackend {
    fn volume_health(&self, id: &VolumeId) -> Result<Health> {
        let here = self.connections.get(id).map(|entry| self.paths_health(&entry)).transpose()?;
        // Which volumes there are, only their target server knows.
        let stored = self.san.as_ref().map_or_else(|| Ok(Health::new()), |san| san.volume_health(id));
        match (stored, here) {
            (Ok(stored), here) => Ok(stored.into_iter().chain(here.into_iter().flatten()).collect()),
            (Err(Error::NotFound { .. }), Some(here)) => Ok(here),
            (Err(error), _) => Err(error),
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
        let problem = HealthProblem { severity: Severity::Degraded, reason: "SessionLost", message };
        let stored = self.san.as_ref().map_or_else(|| Ok(Health::new()), |san| san.storage_health())?;
        Ok(stored.into_iter().chain((!lost.is_empty()).then_some(problem)).collect())
    }

    fn unhealthy(&self, after: Option<&VolumeId>, max: usize) -> Result<Vec<(VolumeId, Health)>> {
        let mut unhealthy = BTreeMap::new();
        for entry in self.connections.all().into_iter().filter(|entry| after.is_none_or(|after| entry.id > *after)) {
            let health = self.paths_health(&entry)?;
            if !health.is_empty() {
                unhealthy.insert(entry.id, health);
            }
        }
        if let Some(san) = &self.san {
            for (id, health) in san.unhealthy(after, max)? {
                unhealthy.entry(id).or_default().extend(health);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Role;

    #[test]
    fn volume_that_is_not_connected_is_not_reported_missing_by_a_node() {
        let state = tempfile::tempdir().expect("a directory");
        let config = serde_yaml_ng::from_str("{name: san}").expect("fields");
        let node = "node-1".parse().expect("a node id");
        let backend = IscsiBackend::open(config, Role { provision: false }, node, state.path()).expect("opened");
        assert_eq!(backend.volume_health(&"san:a".parse().expect("an id")).expect("nothing is known"), []);
    }
}

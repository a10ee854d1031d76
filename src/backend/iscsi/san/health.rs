//! What is wrong with exports, beside what is wrong with images.

use std::net::UdpSocket;

use crate::backend::ReportHealth;
use crate::os::lio::Lio;
use crate::volume::{Error, Health, HealthProblem, Result, Severity, VolumeId};

use super::TargetServer;

impl ReportHealth for TargetServer {
    fn volume_health(&self, id: &VolumeId) -> Result<Health> {
        let mut health = self.images.volume_health(id)?;
        health.extend(self.export_problem(id));
        Ok(health)
    }

    fn storage_health(&self) -> Result<Health> {
        let mut health = self.images.storage_health()?;
        let target = Lio::loaded().err().map(|error| problem(Severity::Inaccessible, "TargetMissing", error.to_string()));
        health.extend(target.or_else(|| self.portal_problem()));
        Ok(health)
    }

    /// Only what is attached can lack its export.
    fn unhealthy(&self, after: Option<&VolumeId>, max: usize) -> Result<Vec<(VolumeId, Health)>> {
        let mut found: Vec<(VolumeId, Health)> = self.images.unhealthy(after, max)?;
        let attached: Vec<VolumeId> =
            self.known().by_volume.keys().filter(|id| after.is_none_or(|after| *id > after)).cloned().collect();
        for id in attached {
            let Some(problem) = self.export_problem(&id) else { continue };
            match found.iter_mut().find(|(known, _)| *known == id) {
                Some((_, health)) => health.push(problem),
                None => found.push((id, vec![problem])),
            }
        }
        found.sort_by(|(one, _), (other, _)| one.cmp(other));
        found.truncate(max);
        Ok(found)
    }
}

impl TargetServer {
    /// Whether the kernel shows what is recorded.
    fn export_problem(&self, id: &VolumeId) -> Option<HealthProblem> {
        if !self.known().by_volume.contains_key(id) {
            return None;
        }
        let lacking = || -> Result<Option<String>> {
            let Some((_, record)) = self.record(id)? else { return Ok(None) };
            Ok(match Lio::open()? {
                Some(lio) => self.lacking(&lio, &record)?,
                None => Some("the kernel's target".to_owned()),
            })
        };
        let message = match lacking() {
            Ok(None) => return None,
            Ok(Some(what)) => format!(
                "it is attached, but {what} is missing in the kernel's target; attach it again, or start the controller again"
            ),
            Err(Error::BackendUnavailable { .. }) => return None,
            Err(error) => format!("whether it is exported cannot be seen: {error}"),
        };
        Some(problem(Severity::Inaccessible, "ExportMissing", message))
    }

    /// Portals whose address this machine does not have: the kernel listens there all the same, but nobody can come.
    fn portal_problem(&self) -> Option<HealthProblem> {
        let absent = |portal: &&std::net::SocketAddr| {
            let refused = UdpSocket::bind((portal.ip(), 0)).err();
            refused.is_some_and(|error| error.kind() == std::io::ErrorKind::AddrNotAvailable)
        };
        let absent: Vec<String> = self.portals.iter().filter(absent).map(ToString::to_string).collect();
        let severity = if absent.len() == self.portals.len() { Severity::Inaccessible } else { Severity::Degraded };
        let message =
            || format!("no interface of this machine has the address of {}; bring it up, or change portals", absent.join(", "));
        (!absent.is_empty()).then(|| problem(severity, "PortalUnreachable", message()))
    }
}

fn problem(severity: Severity, reason: &'static str, message: String) -> HealthProblem {
    HealthProblem { severity, reason, message }
}

//! Where disks are made, and which machines can have them attached.

use crate::backend::VolumeSpec;
use crate::volume::digest::sha256;
use crate::volume::{Error, Result, Topology, TopologyRequirement};

use super::api::{Disk, Instance, Zones};
use super::controller::Controller;

impl Controller {
    /// As many zones as the disk is to be kept in: first the one that is preferred, else one that is allowed, else any, then each volume's
    /// by its digest, so that they are spread. What is allowed comes before what is not, since a volume must be reachable from there (CSI
    /// spec, TopologyRequirement). Any is the first by name, so that a repeat chooses the same. With it the site in the zone, where one is
    /// asked for; nobody gets to one by chance.
    ///
    /// # Errors
    /// `Invalid` where there are not so many zones.
    pub fn choose_zones(&self, spec: &VolumeSpec, count: usize) -> Result<(Zones, Option<String>)> {
        if count == 0 {
            return Ok((Zones::new(), None));
        }
        let (first, site) = self.choose_zone(spec)?;
        let mut zones = Zones::from([first]);
        if zones.len() < count {
            let asked = spec.topology.preferred.iter().chain(&spec.topology.requisite);
            let further = asked.filter_map(|segments| self.policy.zone(segments)).chain(self.zones()?);
            further.for_each(|zone| {
                if zones.len() < count {
                    zones.insert(zone);
                }
            });
        }
        if zones.len() < count {
            let reason = format!("the volume is to be kept in {count} zones, and there is only {}", words(&zones));
            return Err(Error::invalid("accessibility_requirements", reason));
        }
        Ok((zones, site))
    }

    fn choose_zone(&self, spec: &VolumeSpec) -> Result<(String, Option<String>)> {
        let place = |segments: &Topology| {
            let zone = self.policy.zone(segments)?;
            Some(self.policy.site(segments).map(|site| (zone, site)))
        };
        if let Some(preferred) = spec.topology.preferred.iter().find_map(place) {
            return preferred;
        }
        let mut zones: Vec<_> = spec.topology.requisite.iter().filter_map(place).collect::<Result<_>>()?;
        if zones.iter().any(|(_, site)| site.is_none()) {
            zones.retain(|(_, site)| site.is_none());
        }
        if zones.is_empty() {
            zones = self.zones()?.into_iter().map(|zone| (zone, None)).collect();
        }
        zones.sort();
        zones.dedup();
        let digest = sha256(spec.id.derived().as_bytes());
        let place = usize::from_str_radix(&digest[..8], 16).unwrap_or_default();
        let chosen = zones.get(place % zones.len().max(1)).cloned();
        chosen.ok_or_else(|| Error::BackendUnavailable {
            backend: self.owner.backend.to_string(),
            reason: "the cloud tells of no zone in which a disk could be".to_owned(),
        })
    }

    pub fn zones(&self) -> Result<Vec<String>> {
        if let Some(zones) = self.zones.get() {
            return Ok(zones.clone());
        }
        let mut zones = self.cloud.zones().map_err(|refusal| super::errors::unknown(&self.owner.backend, "zones", &refusal))?;
        zones.sort();
        Ok(self.zones.get_or_init(|| zones).clone())
    }

    /// The zones of which a volume must be reached from one; empty where it may be anywhere.
    pub fn required_zones(&self, topology: &TopologyRequirement) -> Zones {
        let asked = if topology.requisite.is_empty() { &topology.preferred } else { &topology.requisite };
        asked.iter().filter_map(|segments| self.policy.zone(segments)).collect()
    }
}

/// Checks that the machine is where the disk can be attached.
///
/// # Errors
/// `Invalid`, naming both places.
pub(super) fn check_reach(instance: &Instance, disk: &Disk) -> Result<()> {
    let (node, zones) = (&instance.id, words(&disk.zones));
    let is_near = disk.zones.is_empty() || instance.zone.as_ref().is_some_and(|zone| disk.zones.contains(zone));
    if !is_near {
        let place = words(&instance.zone.iter().cloned().collect());
        return Err(Error::invalid("node_id", format!("node {node} is in {place}, disk {} in {zones}", disk.id)));
    }
    if instance.site != disk.site {
        let place = |site: &Option<String>| site.clone().unwrap_or_else(|| format!("in the data centers of {zones}"));
        let reason = format!("node {node} is {}, disk {} is {}", place(&instance.site), disk.id, place(&disk.site));
        return Err(Error::invalid("node_id", reason));
    }
    Ok(())
}

/// For people: `zone a`, `zones a and b`, `no zone`.
pub(super) fn words(zones: &Zones) -> String {
    let all: Vec<&str> = zones.iter().map(String::as_str).collect();
    match all.as_slice() {
        [] => "no zone".to_owned(),
        [zone] => format!("zone {zone}"),
        zones => format!("zones {}", zones.join(" and ")),
    }
}

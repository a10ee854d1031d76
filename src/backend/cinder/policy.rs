//! Cinder's own rules: nothing here asks it.

use serde_json::Value;

use crate::backend::cloud::{Disk, DiskId, Draft, Policy, Tags, in_zone, to_json};
use crate::backend::{SnapshotSpec, VolumeSpec};
use crate::volume::topology::ZONE;
use crate::volume::{AccessMode, Bytes, RawParameters, Result, Topology};

use super::metadata::Site;
use super::parameters::{CinderParameters, DiskSettings, Retype, SnapshotParameters};
use super::zones::ZoneMap;

/// Further keys by which a StorageClass may name a zone, one of Nova: Kubernetes' own label, and that of cinder-csi-plugin. They are never
/// returned: all keys that a plugin returns have one prefix (CSI spec, Topology).
const ACCEPTED: [&str; 2] = ["topology.kubernetes.io/zone", "topology.cinder.csi.openstack.org/zone"];

/// A size is a number of GiB of 31 bits (cinder/db: `volumes.size` is an integer); a type, or a quota, may have less.
const LARGEST: Bytes = Bytes((i32::MAX as u64) << 30);

#[derive(Debug)]
pub struct CinderPolicy {
    /// What the operator wants on everything.
    pub metadata: Tags,
    /// Of this node, where volumes are connected.
    pub site: Option<Site>,
    pub zones: ZoneMap,
    /// A snapshot may be a backup.
    pub backups: bool,
}

impl Policy for CinderPolicy {
    fn kind(&self) -> &'static str {
        "cinder"
    }

    fn access_modes(&self) -> &[AccessMode] {
        // Several nodes: types with multiattach, raw block.
        &AccessMode::ALL
    }

    fn has_changed_blocks(&self) -> bool {
        false
    }

    fn parameters(&self, raw: &RawParameters) -> Result<Value> {
        to_json(&CinderParameters::parse(raw)?)
    }

    fn topology(&self) -> Result<Option<Topology>> {
        match &self.site {
            None => Ok(None),
            Some(_) if self.zones.is_any => Ok(Some(Topology::default())),
            Some(site) => Ok(Some(in_zone(&self.zones.of_compute(&site.zone()?)))),
        }
    }

    fn has_topology(&self) -> bool {
        !self.zones.is_any
    }

    /// `None` where the segments name none, or two.
    fn zone(&self, segments: &Topology) -> Option<String> {
        let of_compute =
            ACCEPTED.into_iter().filter_map(|key| segments.segments().get(key)).map(|zone| self.zones.of_compute(zone));
        let mut zones = of_compute.chain(segments.segments().get(ZONE).cloned());
        let zone = zones.next()?;
        zones.all(|other| other == zone).then_some(zone)
    }

    fn places(&self, disk: &Disk) -> Vec<Topology> {
        disk.zones.iter().map(|zone| in_zone(zone)).collect()
    }

    fn bounds(&self, _: &Value) -> (Bytes, Bytes) {
        (Bytes::GIB, LARGEST)
    }

    fn largest(&self, _: &Disk) -> Result<Bytes> {
        Ok(LARGEST)
    }

    fn draft(&self, spec: &VolumeSpec) -> Result<Draft> {
        let settings = CinderParameters::read(&spec.parameters["backend"])?.settings(Retype::parse(&spec.mutable)?);
        Ok(Draft {
            settings: to_json(&settings)?,
            tags: self.metadata.clone(),
            multi_attach: spec.several_nodes,
            zones: usize::from(!self.zones.is_any),
        })
    }

    fn why_vanished(&self, disk: &DiskId) -> String {
        format!("Cinder accepted volume {disk}, and it was deleted before it was available; see openstack volume message list")
    }

    fn check_mutable(&self, raw: &RawParameters) -> Result<()> {
        Retype::parse(raw).map(drop)
    }

    fn amend(&self, disk: &Disk, _: Bytes, raw: &RawParameters) -> Result<Option<Value>> {
        let now = DiskSettings::read(&disk.settings)?;
        Retype::parse(raw)?.resolve(&now).as_ref().map(to_json).transpose()
    }

    fn check_snapshot(&self, raw: &RawParameters) -> Result<()> {
        SnapshotParameters::parse(raw, self.backups).map(drop)
    }

    fn draft_snapshot(&self, spec: &SnapshotSpec) -> Result<Draft> {
        let settings = SnapshotParameters::parse(&spec.parameters, self.backups)?;
        Ok(Draft { settings: to_json(&settings)?, tags: self.metadata.clone(), ..Draft::default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zones_of_nova_are_made_those_of_cinder() {
        let zones = ZoneMap { is_any: false, by_compute: [("az1".to_owned(), "ceph".to_owned())].into() };
        let policy = CinderPolicy { metadata: Tags::new(), site: None, zones, backups: false };
        let topology = |pairs: &[(&str, &str)]| -> Topology {
            pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
        };
        for key in ACCEPTED {
            assert_eq!(policy.zone(&topology(&[(key, "az1")])).as_deref(), Some("ceph"), "{key}");
            assert_eq!(policy.zone(&topology(&[(key, "az2")])).as_deref(), Some("az2"), "{key}");
        }
        assert_eq!(policy.zone(&topology(&[(ZONE, "az1")])).as_deref(), Some("az1"), "it is Cinder's already");
        assert_eq!(policy.zone(&topology(&[(ZONE, "ceph"), (ACCEPTED[0], "az1")])).as_deref(), Some("ceph"));
        assert_eq!(policy.zone(&topology(&[(ZONE, "az1"), (ACCEPTED[0], "az1")])), None, "two zones");
        assert_eq!(policy.zone(&Topology::default()), None);
        assert!(policy.has_topology());
    }
}

//! Azure's own rules: nothing here asks it.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::backend::cloud::{Disk, DiskId, Draft, Policy, Tags, in_zone, to_json};
use crate::backend::{SnapshotSpec, VolumeSpec};
use crate::volume::topology::ZONE;
use crate::volume::{AccessMode, Bytes, RawParameters, Result, Topology};

use super::convert::CACHING;
use super::metadata::Site;
use super::parameters::{AzureParameters, Caching, ConfiguredPlace, DiskSettings, Mutable, SnapshotParameters};

/// Further keys by which a StorageClass may name a zone: Kubernetes' own label, and that of azuredisk-csi-driver. They are never returned:
/// all keys that a plugin returns have one prefix (CSI spec, Topology).
const ACCEPTED: [&str; 2] = ["topology.kubernetes.io/zone", "topology.disk.csi.azure.com/zone"];

#[derive(Debug)]
pub struct AzurePolicy {
    /// What the operator wants on everything.
    pub tags: Tags,
    /// Of this node, where volumes are connected.
    pub site: Option<Site>,
    pub without_zones: bool,
    /// Where disks and snapshots are.
    pub place: ConfiguredPlace,
}

impl AzurePolicy {
    fn tags(&self, asked: BTreeMap<String, String>) -> Tags {
        self.tags.clone().into_iter().chain(asked).collect()
    }
}

impl Policy for AzurePolicy {
    fn kind(&self) -> &'static str {
        "azure"
    }

    fn access_modes(&self) -> &[AccessMode] {
        // Several nodes: maxShares, raw block.
        &AccessMode::ALL
    }

    fn has_changed_blocks(&self) -> bool {
        false
    }

    fn parameters(&self, raw: &RawParameters) -> Result<Value> {
        to_json(&AzureParameters::parse(&self.place.strip(raw))?)
    }

    /// The disk has its tags: they are not recorded once more.
    fn requested_parameters(&self, made: &Value) -> Value {
        let mut asked = made.clone();
        asked.as_object_mut().and_then(|asked| asked.remove("tags"));
        asked
    }

    /// A machine in no zone has no segments.
    fn topology(&self) -> Result<Option<Topology>> {
        let Some(site) = self.site.as_ref().filter(|_| !self.without_zones) else { return Ok(None) };
        let zone = site.zone()?;
        Ok(Some(if zone.is_empty() { Topology::default() } else { in_zone(&zone) }))
    }

    fn has_topology(&self) -> bool {
        !self.without_zones
    }

    /// `None` where the segments name none, or two.
    fn zone(&self, segments: &Topology) -> Option<String> {
        let mut zones = ACCEPTED.into_iter().chain([ZONE]).filter_map(|key| segments.segments().get(key));
        let zone = zones.next()?;
        zones.all(|other| other == zone).then(|| zone.clone()).filter(|zone| !zone.is_empty())
    }

    fn places(&self, disk: &Disk) -> Vec<Topology> {
        disk.zones.iter().map(|zone| in_zone(zone)).collect()
    }

    fn bounds(&self, parameters: &Value) -> (Bytes, Bytes) {
        // Parameters that do not go together were refused when they were parsed.
        AzureParameters::read(parameters).and_then(|parameters| parameters.sku()).unwrap_or_default().bounds()
    }

    fn largest(&self, disk: &Disk) -> Result<Bytes> {
        Ok(DiskSettings::read(&disk.settings)?.sku.bounds().1)
    }

    fn draft(&self, spec: &VolumeSpec) -> Result<Draft> {
        let parameters = AzureParameters::read(&spec.parameters["backend"])?;
        let mutable = Mutable::parse(&self.place.strip(&spec.mutable))?;
        let settings = parameters.settings(&mutable, spec.several_nodes)?;
        settings.check_size(spec.capacity)?;
        let mut tags = self.tags(parameters.tags()?);
        tags.extend(mutable.tags()?);
        if parameters.caching()? == Caching::ReadOnly {
            tags.insert(CACHING.to_owned(), "ReadOnly".to_owned());
        }
        Ok(Draft {
            multi_attach: settings.max_shares > 1,
            zones: if self.without_zones || settings.sku.is_in_all_zones() { 0 } else { 1 },
            settings: to_json(&settings)?,
            tags,
        })
    }

    fn why_vanished(&self, disk: &DiskId) -> String {
        format!(
            "Azure accepted disk {disk} and deleted it before it was available; check the StorageClass' diskEncryptionSetID, and that its \
             identity may use its key (get, wrapKey, unwrapKey)"
        )
    }

    fn check_mutable(&self, raw: &RawParameters) -> Result<()> {
        Mutable::parse(&self.place.strip(raw)).map(drop)
    }

    fn amend(&self, disk: &Disk, capacity: Bytes, raw: &RawParameters) -> Result<Option<Value>> {
        let now = DiskSettings::read(&disk.settings)?;
        let Some(wanted) = Mutable::parse(&self.place.strip(raw))?.resolve(&now, &disk.tags)? else { return Ok(None) };
        // What the disk has already it can have.
        let tier = wanted.tier.clone().filter(|tier| now.tier.as_ref() != Some(tier));
        let bursting = wanted.bursting.filter(|bursts| now.bursting != Some(*bursts));
        DiskSettings { tier, bursting, ..wanted.clone() }.check_size(capacity)?;
        to_json(&wanted).map(Some)
    }

    fn check_snapshot(&self, raw: &RawParameters) -> Result<()> {
        SnapshotParameters::parse(&self.place.strip(raw)).map(drop)
    }

    fn draft_snapshot(&self, spec: &SnapshotSpec) -> Result<Draft> {
        Ok(Draft { tags: self.tags(SnapshotParameters::parse(&self.place.strip(&spec.parameters))?), ..Draft::default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_accepted_key_names_a_zone() {
        let policy = AzurePolicy { tags: Tags::new(), site: None, without_zones: false, place: ConfiguredPlace::default() };
        let topology = |pairs: &[(&str, &str)]| -> Topology {
            pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
        };
        for key in ACCEPTED.into_iter().chain([ZONE]) {
            assert_eq!(policy.zone(&topology(&[(key, "westeurope-1")])).as_deref(), Some("westeurope-1"), "{key}");
        }
        assert_eq!(policy.zone(&topology(&[(ACCEPTED[0], "w-1"), (ZONE, "w-2")])), None, "two zones");
        assert_eq!(policy.zone(&topology(&[(ACCEPTED[1], "")])), None, "a machine in no zone");
    }
}

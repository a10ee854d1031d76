//! Compute Engine's own rules: nothing here asks it.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::backend::cloud::{Disk, DiskId, Draft, Policy, Tags, in_zone, to_json};
use crate::backend::{SnapshotSpec, VolumeSpec};
use crate::volume::topology::ZONE;
use crate::volume::{AccessMode, Bytes, RawParameters, Result, Topology};

use super::identity::Site;
use super::parameters::{DiskSettings, GceParameters, Rates, SnapshotParameters};

/// Further keys by which a StorageClass may name a zone: Kubernetes' own label, and that of gcp-compute-persistent-disk-csi-driver. They are
/// never returned: all keys that a plugin returns have one prefix (CSI spec, Topology).
const ACCEPTED: [&str; 2] = ["topology.kubernetes.io/zone", "topology.gke.io/zone"];

#[derive(Debug)]
pub struct GcePolicy {
    /// What the operator wants on everything.
    pub labels: Tags,
    /// Of this node, where volumes are connected.
    pub site: Option<Site>,
    /// A snapshot may be an image.
    pub images: bool,
}

impl GcePolicy {
    fn tags(&self, asked: BTreeMap<String, String>) -> Tags {
        self.labels.clone().into_iter().chain(asked).collect()
    }
}

impl Policy for GcePolicy {
    fn kind(&self) -> &'static str {
        "gce"
    }

    fn access_modes(&self) -> &[AccessMode] {
        // Several nodes: Hyperdisks, raw block.
        &AccessMode::ALL
    }

    fn has_changed_blocks(&self) -> bool {
        false
    }

    fn parameters(&self, raw: &RawParameters) -> Result<Value> {
        to_json(&GceParameters::parse(raw)?)
    }

    /// The disk has its labels: they are not recorded once more.
    fn requested_parameters(&self, made: &Value) -> Value {
        let mut asked = made.clone();
        asked.as_object_mut().and_then(|asked| asked.remove("labels"));
        asked
    }

    fn topology(&self) -> Result<Option<Topology>> {
        self.site.as_ref().map(|site| Ok(in_zone(&site.zone()?))).transpose()
    }

    /// `None` where the segments name none, or two.
    fn zone(&self, segments: &Topology) -> Option<String> {
        let mut zones = ACCEPTED.into_iter().chain([ZONE]).filter_map(|key| segments.segments().get(key));
        let zone = zones.next()?;
        zones.all(|other| other == zone).then(|| zone.clone())
    }

    fn places(&self, disk: &Disk) -> Vec<Topology> {
        disk.zones.iter().map(|zone| in_zone(zone)).collect()
    }

    fn bounds(&self, parameters: &Value) -> (Bytes, Bytes) {
        // Parameters that do not go together were refused when they were parsed.
        let parameters = GceParameters::read(parameters).unwrap_or_default();
        parameters.kind().unwrap_or_default().bounds(parameters.is_regional().unwrap_or_default())
    }

    fn largest(&self, disk: &Disk) -> Result<Bytes> {
        Ok(DiskSettings::read(&disk.settings)?.kind.bounds(disk.zones.len() > 1).1)
    }

    fn draft(&self, spec: &VolumeSpec) -> Result<Draft> {
        let parameters = GceParameters::read(&spec.parameters["backend"])?;
        let settings = parameters.settings(spec.capacity, &Rates::parse(&spec.mutable)?, spec.several_nodes)?;
        Ok(Draft {
            multi_attach: super::convert::is_for_several(settings.access_mode.as_deref()),
            settings: to_json(&settings)?,
            tags: self.tags(parameters.labels()?),
            zones: if parameters.is_regional()? { 2 } else { 1 },
        })
    }

    fn why_vanished(&self, disk: &DiskId) -> String {
        format!(
            "Compute Engine accepted disk {disk} and deleted it before it was available; check the StorageClass' disk-encryption-kms-key, and \
             that the Compute Engine service agent may use the key (roles/cloudkms.cryptoKeyEncrypterDecrypter)"
        )
    }

    fn check_mutable(&self, raw: &RawParameters) -> Result<()> {
        Rates::parse(raw).map(drop)
    }

    fn amend(&self, disk: &Disk, capacity: Bytes, raw: &RawParameters) -> Result<Option<Value>> {
        let now = DiskSettings::read(&disk.settings)?;
        Rates::parse(raw)?.resolve(&now, capacity)?.as_ref().map(to_json).transpose()
    }

    fn check_snapshot(&self, raw: &RawParameters) -> Result<()> {
        SnapshotParameters::parse(raw, self.images).map(drop)
    }

    fn draft_snapshot(&self, spec: &SnapshotSpec) -> Result<Draft> {
        let (settings, labels) = SnapshotParameters::parse(&spec.parameters, self.images)?;
        Ok(Draft { settings: to_json(&settings)?, tags: self.tags(labels), ..Draft::default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_accepted_key_names_a_zone() {
        let policy = GcePolicy { labels: Tags::new(), site: None, images: false };
        let topology = |pairs: &[(&str, &str)]| -> Topology {
            pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
        };
        for key in ACCEPTED.into_iter().chain([ZONE]) {
            assert_eq!(policy.zone(&topology(&[(key, "z-a-b")])).as_deref(), Some("z-a-b"), "{key}");
        }
        assert_eq!(policy.zone(&topology(&[(ACCEPTED[0], "z-a-b"), (ZONE, "z-a-c")])), None, "two zones");
        assert_eq!(policy.zone(&Topology::default()), None);
    }
}

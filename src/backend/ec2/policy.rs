//! EBS's own rules: nothing here asks EC2.

use std::time::Duration;

use serde_json::Value;

use crate::backend::cloud::{Disk, DiskId, Draft, Policy, Tags, to_json};
use crate::backend::{SnapshotSpec, VolumeSpec};
use crate::volume::{AccessMode, Bytes, Error, RawParameters, Result, Topology};

use super::identity::Place;
use super::parameters::{DiskSettings, Ec2Parameters, Rates, SnapshotSettings};
use super::{tags, zone};

/// After a modification a volume must wait so long for the next (EBS user guide, "Requirements for EBS volume modifications").
const COOLDOWN: Duration = Duration::from_secs(6 * 60 * 60);

/// The tag that the AWS console shows as a resource's name.
const NAME: &str = "Name";

#[derive(Debug)]
pub struct Ec2Policy {
    /// What the operator wants on everything.
    pub tags: Tags,
    /// Of this node, where volumes are connected.
    pub place: Option<Place>,
}

impl Ec2Policy {
    fn tags(&self, name: &str, asked: &Tags) -> Tags {
        let mut all = Tags::from([(NAME.to_owned(), name.to_owned())]);
        all.extend(self.tags.clone());
        all.extend(asked.clone());
        all
    }
}

impl Policy for Ec2Policy {
    fn kind(&self) -> &'static str {
        "ec2"
    }

    fn access_modes(&self) -> &[AccessMode] {
        // Several nodes: io1 and io2, raw block.
        &AccessMode::ALL
    }

    fn parameters(&self, raw: &RawParameters) -> Result<Value> {
        to_json(&Ec2Parameters::parse(raw)?)
    }

    /// The disk has its tags: recorded once more in its parameters, they would need twice as many of the 50 that a resource may have.
    fn requested_parameters(&self, made: &Value) -> Value {
        let mut asked = made.clone();
        asked.as_object_mut().and_then(|asked| asked.remove("tags"));
        asked
    }

    fn topology(&self) -> Result<Option<Topology>> {
        let Some(place) = &self.place else { return Ok(None) };
        Ok(Some(zone::segments(&place.zone()?, place.outpost()?.as_deref())))
    }

    fn zone(&self, segments: &Topology) -> Option<String> {
        zone::named_by(segments).map(str::to_owned)
    }

    fn places(&self, disk: &Disk) -> Vec<Topology> {
        disk.zones.iter().map(|zone| zone::segments(zone, disk.site.as_deref())).collect()
    }

    fn site(&self, segments: &Topology) -> Result<Option<String>> {
        zone::outpost_named_by(segments)
    }

    fn placed(&self, settings: Value, outpost: &str) -> Result<Value> {
        let mut settings = DiskSettings::read(&settings)?;
        if let Some(other) = settings.outpost_arn.filter(|said| said != outpost) {
            let reason = format!(
                "outpostArn: the volume is asked for on Outpost {outpost}, and its class says {other}; leave it out there"
            );
            return Err(Error::invalid("parameters", reason));
        }
        settings.outpost_arn = Some(outpost.to_owned());
        to_json(&settings)
    }

    fn bounds(&self, parameters: &Value) -> (Bytes, Bytes) {
        // What is no type was refused when it was parsed.
        let kind = Ec2Parameters::read(parameters).and_then(|parameters| parameters.rates.kind()).unwrap_or_default();
        (kind.bounds().smallest, kind.bounds().largest)
    }

    fn largest(&self, disk: &Disk) -> Result<Bytes> {
        Ok(DiskSettings::read(&disk.settings)?.kind.bounds().largest)
    }

    fn draft(&self, spec: &VolumeSpec) -> Result<Draft> {
        let parameters = Ec2Parameters::read(&spec.parameters["backend"])?;
        let settings = parameters.settings(spec.capacity, &Rates::parse(&spec.mutable)?)?;
        if spec.several_nodes && !settings.kind.bounds().multi_attach {
            let reason = format!("{} volumes are for one node; for several, take type io2", settings.kind);
            return Err(Error::invalid("volume_capabilities", reason));
        }
        Ok(Draft {
            settings: to_json(&settings)?,
            tags: self.tags(&spec.name, &parameters.tags),
            multi_attach: spec.several_nodes,
            zones: 1,
        })
    }

    /// EBS user guide, "Requirements for Amazon EBS encryption": without the right to use the key, CreateVolume answers, and the volume is
    /// deleted (aws-ebs-csi-driver issues 1951 and 3010).
    fn why_vanished(&self, disk: &DiskId) -> String {
        format!(
            "EC2 accepted volume {disk} and deleted it before it was available; the usual cause is a KMS key that may not be used. Check the \
             StorageClass' kmsKeyId, or the account's default key for EBS encryption, and that the driver's role has kms:CreateGrant, \
             kms:Decrypt, kms:DescribeKey and kms:GenerateDataKeyWithoutPlaintext for it"
        )
    }

    fn check_mutable(&self, raw: &RawParameters) -> Result<()> {
        Rates::parse(raw).map(drop)
    }

    fn amend(&self, disk: &Disk, capacity: Bytes, raw: &RawParameters) -> Result<Option<Value>> {
        if raw.is_empty() {
            return Ok(None);
        }
        let now = DiskSettings::read(&disk.settings)?;
        let wanted = Rates::parse(raw)?.resolve(capacity, Some(&now))?;
        // What nobody asks for is what it is.
        let same = |wanted: Option<u32>, now: Option<u32>| wanted.is_none() || wanted == now;
        if wanted.kind == now.kind && same(wanted.iops, now.iops) && same(wanted.throughput, now.throughput) {
            return Ok(None);
        }
        to_json(&wanted).map(Some)
    }

    fn cooldown(&self) -> Option<Duration> {
        Some(COOLDOWN)
    }

    fn check_snapshot(&self, raw: &RawParameters) -> Result<()> {
        snapshot_settings(raw).map(drop)
    }

    fn draft_snapshot(&self, spec: &SnapshotSpec) -> Result<Draft> {
        let (settings, tags) = snapshot_settings(&spec.parameters)?;
        Ok(Draft { settings: to_json(&settings)?, tags: self.tags(&spec.name, &tags), ..Draft::default() })
    }
}

fn snapshot_settings(raw: &RawParameters) -> Result<(SnapshotSettings, Tags)> {
    let mut rest = raw.clone();
    let tags = tags::take(&mut rest)?;
    Ok((rest.parse()?, tags))
}

//! What a StorageClass, a VolumeAttributesClass and a VolumeSnapshotClass may say, as gcp-compute-persistent-disk-csi-driver names it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::volume::{Bytes, Error, Number, RawParameters, Result};

use super::kinds::Kind;
use super::names::is_resource_name;
use super::record::check_label;

/// Parameters of the other driver that this one refuses, and why.
const REFUSED: [(&str, &str); 8] = [
    ("data-cache-mode", "a cache on local disks is not offered"),
    ("data-cache-size", "a cache on local disks is not offered"),
    ("disk-type-preference", "name one type of disk"),
    ("enable-multi-zone-provisioning", "one volume of several disks is not offered"),
    ("hyperdisk-type", "name one type of disk"),
    ("pd-type", "name one type of disk"),
    ("use-allowed-disk-topologies", "which machines take a type of disk is not part of a volume's topology"),
    ("use-allowed-disk-topology", "which machines take a type of disk is not part of a volume's topology"),
];

/// The other driver takes these keys in any case.
fn in_lower_case(raw: &RawParameters) -> Result<RawParameters> {
    let mut values = BTreeMap::new();
    for (key, value) in raw.clone().split_prefixed("") {
        let lower = key.to_ascii_lowercase();
        if let Some((_, why)) = REFUSED.iter().find(|(refused, _)| *refused == lower) {
            return Err(refuse(&key, why));
        }
        if values.insert(lower, value).is_some() {
            return Err(refuse(&key, "it is there twice, in upper and lower case"));
        }
    }
    Ok(RawParameters::new(values))
}

/// Of a StorageClass.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct GceParameters {
    /// `pd-standard` (default), `pd-balanced`, `pd-ssd`, `pd-extreme`, or a Hyperdisk.
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// `none` (default), or `regional-pd`: kept in two zones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replication_type: Option<String>,
    /// `projects/P/locations/L/keyRings/R/cryptoKeys/K`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_encryption_kms_key: Option<String>,
    /// `key=value,key=value`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub labels: Option<String>,
    /// `parent/key/value,parent/key/value`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource_tags: Option<String>,
    /// I/O operations per second (pd-extreme, Hyperdisk).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provisioned_iops_on_create: Option<Number>,
    /// In MiB/s, such as `240Mi` or `240` (Hyperdisk).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provisioned_throughput_on_create: Option<String>,
    /// `none`; `regional-hard-failover` is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub availability_class: Option<String>,
    /// `true`: a Hyperdisk in confidential mode; needs a key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enable_confidential_storage: Option<String>,
    /// `projects/P/zones/Z/storagePools/N`, one for each zone, separated by commas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub storage_pools: Option<String>,
    /// `READ_WRITE_SINGLE` (default), `READ_WRITE_MANY`, `READ_ONLY_MANY` (Hyperdisk).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub access_mode: Option<String>,
}

/// Of a VolumeAttributesClass.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rates {
    #[serde(default)]
    pub iops: Option<Number>,
    /// As `provisioned-throughput-on-create`.
    #[serde(default)]
    pub throughput: Option<String>,
}

/// Of a VolumeSnapshotClass.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct SnapshotParameters {
    /// One region or multi-region, such as `eu`.
    #[serde(default)]
    pub storage_locations: Option<String>,
    /// `snapshots` (default), `archive`: cheaper to keep, and slower to restore, or `images` where the configuration allows it.
    #[serde(default)]
    pub snapshot_type: Option<String>,
    /// Of an image: the family that it belongs to.
    #[serde(default)]
    pub image_family: Option<String>,
    #[serde(default)]
    pub labels: Option<String>,
}

/// How a snapshot is to be made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotSettings {
    pub locations: Vec<String>,
    pub is_archive: bool,
    pub is_image: bool,
    pub image_family: Option<String>,
}

/// How a disk is to be, or is: what is sent, and what the API describes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskSettings {
    pub kind: Kind,
    pub iops: Option<u64>,
    /// In MiB/s.
    pub throughput: Option<u64>,
    pub kms_key: Option<String>,
    pub is_confidential: bool,
    /// By zone.
    pub storage_pools: BTreeMap<String, String>,
    pub access_mode: Option<String>,
    pub resource_tags: BTreeMap<String, String>,
}

impl DiskSettings {
    /// Of a disk that was described.
    ///
    /// # Errors
    /// `Invalid` where they are not of this backend.
    pub fn read(kept: &Value) -> Result<DiskSettings> {
        serde_json::from_value(kept.clone()).map_err(|error| Error::invalid("settings", error.to_string()))
    }
}

pub(super) const MANY_WRITERS: &str = "READ_WRITE_MANY";
pub(super) const MANY_READERS: &str = "READ_ONLY_MANY";

fn refuse(field: &str, reason: impl std::fmt::Display) -> Error {
    Error::invalid("parameters", format!("{field}: {reason}"))
}

impl GceParameters {
    /// # Errors
    /// `Invalid`, naming the parameter.
    pub fn parse(raw: &RawParameters) -> Result<GceParameters> {
        let parameters: GceParameters = in_lower_case(raw)?.parse()?;
        let kind = parameters.kind()?;
        // What hangs on the size is checked with it; what can never be, here.
        parameters.settings(kind.bounds(parameters.is_regional()?).1, &Rates::default(), false)?;
        parameters.labels()?;
        Ok(parameters)
    }

    /// As they were kept with the volume.
    ///
    /// # Errors
    /// `Invalid` where they were not made by `parse`.
    pub fn read(kept: &Value) -> Result<GceParameters> {
        Ok(match kept {
            Value::Null => GceParameters::default(),
            kept => serde_json::from_value(kept.clone()).map_err(|error| Error::invalid("parameters", error.to_string()))?,
        })
    }

    pub fn kind(&self) -> Result<Kind> {
        let Some(name) = &self.kind else { return Ok(Kind::default()) };
        Kind::named(name).ok_or_else(|| {
            let known: Vec<&str> = Kind::ALL.into_iter().map(Kind::name).collect();
            refuse("type", format!("{name:?} is no type of disk; there are {}", known.join(", ")))
        })
    }

    /// Whether it is kept in two zones.
    pub fn is_regional(&self) -> Result<bool> {
        let kind = self.kind()?;
        match self.replication_type.as_deref() {
            None => Ok(kind.is_always_regional()),
            Some("none") if !kind.is_always_regional() => Ok(false),
            Some("regional-pd") if kind.may_be_regional() => Ok(true),
            Some("none" | "regional-pd") => Err(refuse("replication-type", format!("not with disks of type {kind}"))),
            Some(other) => Err(refuse("replication-type", format!("{other:?} is neither none nor regional-pd"))),
        }
    }

    pub fn labels(&self) -> Result<BTreeMap<String, String>> {
        labels(self.labels.as_deref())
    }

    /// How a disk of this size is to be made, with these mutable parameters over those of the class, for one node or several.
    ///
    /// # Errors
    /// `Invalid`, naming the parameter.
    pub fn settings(&self, capacity: Bytes, mutable: &Rates, several_nodes: bool) -> Result<DiskSettings> {
        let kind = self.kind()?;
        let iops = mutable.iops.or(self.provisioned_iops_on_create).map(|iops| iops.0.into());
        let throughput = mutable.throughput.as_deref().or(self.provisioned_throughput_on_create.as_deref());
        let throughput = throughput.map(mebibytes).transpose()?;
        check_rates(kind, iops, throughput)?;
        let (least_iops, least_throughput) = kind.least_rates(capacity);
        if let Some("regional-hard-failover") = self.availability_class.as_deref() {
            return Err(refuse("availability-class", "attaching a disk by force is not offered"));
        }
        if let Some(other) = self.availability_class.as_deref().filter(|class| *class != "none") {
            return Err(refuse("availability-class", format!("{other:?} is not known")));
        }
        let is_confidential = flag("enable-confidential-storage", self.enable_confidential_storage.as_deref())?;
        if is_confidential && (!kind.is_hyperdisk() || self.disk_encryption_kms_key.is_none()) {
            return Err(refuse("enable-confidential-storage", "only for a Hyperdisk with disk-encryption-kms-key"));
        }
        if self.storage_pools.is_some() && (!kind.is_hyperdisk() || kind.is_always_regional()) {
            return Err(refuse("storage-pools", format!("disks of type {kind} are in no pool")));
        }
        Ok(DiskSettings {
            kind,
            iops: iops.map(|iops: u64| iops.max(least_iops)),
            throughput: throughput.map(|throughput| throughput.max(least_throughput)),
            kms_key: self.disk_encryption_kms_key.clone(),
            is_confidential,
            storage_pools: self.pools()?,
            access_mode: self.access_mode(kind, several_nodes)?,
            resource_tags: self.tags()?,
        })
    }

    fn access_mode(&self, kind: Kind, several_nodes: bool) -> Result<Option<String>> {
        let mode = self.access_mode.as_deref().map(str::to_ascii_uppercase);
        match mode.as_deref() {
            Some("READ_WRITE_SINGLE") | None if several_nodes => {
                let many = kind.has_several_writers().then(|| MANY_WRITERS.to_owned());
                let reason = format!("disks of type {kind} are for one node; for several, take type hyperdisk-balanced");
                many.map(Some).ok_or_else(|| Error::invalid("volume_capabilities", reason))
            }
            Some("READ_WRITE_SINGLE") | None => Ok(None),
            Some(MANY_WRITERS) if kind.has_several_writers() => Ok(mode),
            Some(MANY_READERS) if kind == Kind::HyperdiskMl => Ok(mode),
            Some(MANY_WRITERS | MANY_READERS) => Err(refuse("access-mode", format!("not with disks of type {kind}"))),
            Some(_) => Err(refuse("access-mode", format!("neither READ_WRITE_SINGLE, {MANY_WRITERS} nor {MANY_READERS}"))),
        }
    }

    fn pools(&self) -> Result<BTreeMap<String, String>> {
        let mut pools = BTreeMap::new();
        for pool in list(self.storage_pools.as_deref()) {
            let parts: Vec<&str> = pool.split('/').collect();
            let ["projects", _, "zones", zone, "storagePools", _] = parts.as_slice() else {
                return Err(refuse("storage-pools", format!("{pool:?} is no pool; write projects/P/zones/Z/storagePools/N")));
            };
            if pools.insert((*zone).to_owned(), pool.to_owned()).is_some() {
                return Err(refuse("storage-pools", format!("there are two in zone {zone}")));
            }
        }
        Ok(pools)
    }

    fn tags(&self) -> Result<BTreeMap<String, String>> {
        let tag = |text: &str| match text.rsplit_once('/') {
            Some((key, value)) if key.contains('/') && !value.is_empty() => Ok((key.to_owned(), value.to_owned())),
            _ => Err(refuse("resource-tags", format!("{text:?} is no tag; write parent/key/value"))),
        };
        list(self.resource_tags.as_deref()).map(tag).collect()
    }
}

impl Rates {
    /// # Errors
    /// `Invalid`, naming the parameter.
    pub fn parse(raw: &RawParameters) -> Result<Rates> {
        let rates: Rates = in_lower_case(raw)?.parse()?;
        rates.throughput.as_deref().map(mebibytes).transpose()?;
        Ok(rates)
    }

    /// What a disk of this size is to have instead of what it has, if it is something else.
    ///
    /// # Errors
    /// `Invalid`, naming the parameter.
    pub fn resolve(&self, now: &DiskSettings, capacity: Bytes) -> Result<Option<DiskSettings>> {
        let asked = self.throughput.as_deref().map(mebibytes).transpose()?;
        check_rates(now.kind, self.iops.map(|iops| iops.0.into()), asked)?;
        let (least_iops, least_throughput) = now.kind.least_rates(capacity);
        let iops = self.iops.map(|iops| iops.0.into()).or(now.iops).map(|iops: u64| iops.max(least_iops));
        let throughput = asked.or(now.throughput).map(|throughput| throughput.max(least_throughput));
        let is_other = iops != now.iops || throughput != now.throughput;
        Ok(is_other.then(|| DiskSettings { iops, throughput, ..now.clone() }))
    }
}

impl SnapshotParameters {
    /// `images`: whether the configuration allows them.
    ///
    /// # Errors
    /// `Invalid`, naming the parameter.
    pub fn parse(raw: &RawParameters, images: bool) -> Result<(SnapshotSettings, BTreeMap<String, String>)> {
        let parameters: SnapshotParameters = in_lower_case(raw)?.parse()?;
        let (is_archive, is_image) = match parameters.snapshot_type.as_deref() {
            None | Some("snapshots") => (false, false),
            Some("archive") => (true, false),
            Some("images") if images => (false, true),
            Some("images") => {
                return Err(refuse("snapshot-type", "images needs `images: true` in the configuration of this backend"));
            }
            Some(other) => {
                return Err(refuse("snapshot-type", format!("{other:?} is not offered; write snapshots, archive or images")));
            }
        };
        if let Some(family) = &parameters.image_family {
            if !is_image {
                return Err(refuse("image-family", "only an image has one; write snapshot-type: images"));
            }
            if !is_resource_name(family) {
                return Err(refuse(
                    "image-family",
                    format!("{family:?} is no name: lower-case letters, digits and dashes (RFC 1035)"),
                ));
            }
        }
        let locations: Vec<String> = list(parameters.storage_locations.as_deref()).map(str::to_owned).collect();
        if locations.len() > 1 {
            return Err(refuse("storage-locations", "a snapshot is in one region or multi-region"));
        }
        let settings = SnapshotSettings { locations, is_archive, is_image, image_family: parameters.image_family };
        Ok((settings, labels(parameters.labels.as_deref())?))
    }
}

fn check_rates(kind: Kind, iops: Option<u64>, throughput: Option<u64>) -> Result<()> {
    if iops.is_some() && !kind.has_iops() {
        return Err(refuse("iops", format!("cannot be chosen for disks of type {kind}")));
    }
    if throughput.is_some() && !kind.has_throughput() {
        return Err(refuse("throughput", format!("cannot be chosen for disks of type {kind}")));
    }
    Ok(())
}

/// `240` and `240Mi` are the same; `1Gi` is 1024.
fn mebibytes(text: &str) -> Result<u64> {
    let (digits, factor) = match text.strip_suffix("Gi") {
        Some(digits) => (digits, 1024),
        None => (text.strip_suffix("Mi").unwrap_or(text), 1),
    };
    let number = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(factor));
    number.ok_or_else(|| refuse("throughput", format!("{text:?} is no number of MiB/s; write 240 or 240Mi")))
}

fn flag(field: &str, text: Option<&str>) -> Result<bool> {
    match text {
        None | Some("false") => Ok(false),
        Some("true") => Ok(true),
        Some(other) => Err(refuse(field, format!("{other:?} is neither true nor false"))),
    }
}

fn list(text: Option<&str>) -> impl Iterator<Item = &str> {
    text.into_iter().flat_map(|text| text.split(',')).map(str::trim).filter(|part| !part.is_empty())
}

fn labels(text: Option<&str>) -> Result<BTreeMap<String, String>> {
    let label = |text: &str| {
        let (key, value) =
            text.split_once('=').ok_or_else(|| refuse("labels", format!("{text:?} is no label; write key=value")))?;
        check_label(key, value).map_err(|reason| refuse("labels", reason))?;
        Ok((key.to_owned(), value.to_owned()))
    };
    list(text).map(label).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn raw(pairs: &[(&str, &str)]) -> RawParameters {
        RawParameters::new(pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())))
    }

    #[test]
    fn class_of_the_other_driver_is_understood() {
        let parameters = GceParameters::parse(&raw(&[
            ("Type", "hyperdisk-balanced"),
            ("provisioned-iops-on-create", "3000"),
            ("provisioned-throughput-on-create", "140Mi"),
            ("disk-encryption-kms-key", "projects/p/locations/l/keyRings/r/cryptoKeys/k"),
            ("labels", "team=storage, env=test"),
            ("resource-tags", "123/key/value"),
            ("storage-pools", "projects/p/zones/z-a-b/storagePools/one"),
            ("replication-type", "none"),
        ]));
        let parameters = parameters.expect("fine");
        let settings = parameters.settings(Bytes(10 * GIB), &Rates::default(), false).expect("fine");
        assert_eq!((settings.kind, settings.iops, settings.throughput), (Kind::HyperdiskBalanced, Some(3000), Some(140)));
        assert_eq!(settings.storage_pools["z-a-b"], "projects/p/zones/z-a-b/storagePools/one");
        assert_eq!(settings.resource_tags, BTreeMap::from([("123/key".to_owned(), "value".to_owned())]));
        assert_eq!(parameters.labels().expect("fine").len(), 2);
        let kept = serde_json::to_value(&parameters).expect("JSON");
        assert_eq!(GceParameters::read(&kept).expect("fine"), parameters);
        let over = Rates::parse(&raw(&[("iops", "5000")])).expect("fine");
        assert_eq!(parameters.settings(Bytes(10 * GIB), &over, true).expect("fine").iops, Some(5000));
        assert_eq!(GceParameters::parse(&raw(&[])).expect("fine").kind().expect("fine"), Kind::Standard);
    }

    #[test]
    fn impossible_value_is_named() {
        for (pairs, words) in [
            (&[("type", "pd-fast")][..], "type: \"pd-fast\" is no type"),
            (&[("type", "pd-ssd"), ("provisioned-iops-on-create", "10000")], "iops: cannot be chosen"),
            (&[("type", "hyperdisk-extreme"), ("provisioned-throughput-on-create", "10")], "throughput: cannot be chosen"),
            (&[("type", "hyperdisk-ml"), ("provisioned-throughput-on-create", "many")], "no number of MiB/s"),
            (&[("type", "pd-extreme"), ("replication-type", "regional-pd")], "replication-type"),
            (&[("type", "hyperdisk-balanced-high-availability"), ("replication-type", "none")], "replication-type"),
            (&[("availability-class", "regional-hard-failover")], "by force"),
            (&[("enable-confidential-storage", "true")], "only for a Hyperdisk"),
            (&[("storage-pools", "pool")], "are in no pool"),
            (&[("type", "hyperdisk-ml"), ("storage-pools", "pool")], "is no pool"),
            (&[("access-mode", "READ_WRITE_MANY")], "access-mode: not with"),
            (&[("labels", "Team=a")], "labels: Team=a is no label"),
            (&[("resource-tags", "a=b")], "parent/key/value"),
            (&[("Data-Cache-Size", "1Gi")], "Data-Cache-Size: a cache"),
            (&[("pd-type", "pd-ssd")], "name one type"),
            (&[("type", "pd-ssd"), ("Type", "pd-ssd")], "twice"),
            (&[("typ", "pd-ssd")], "typ"),
        ] {
            let error = GceParameters::parse(&raw(pairs)).expect_err(words).to_string();
            assert!(error.contains(words), "{pairs:?}: {error}");
        }
        let parameters = GceParameters::parse(&raw(&[("type", "pd-ssd")])).expect("fine");
        let error = parameters.settings(Bytes(10 * GIB), &Rates::default(), true).expect_err("one node").to_string();
        assert!(error.contains("for one node"), "{error}");
        for (pairs, images, words) in [
            (&[("snapshot-type", "images")][..], false, "images: true"),
            (&[("snapshot-type", "image")], true, "snapshots, archive or images"),
            (&[("storage-locations", "eu,us")], true, "one region"),
            (&[("image-family", "f")], true, "snapshot-type: images"),
            (&[("snapshot-type", "images"), ("image-family", "Base")], true, "RFC 1035"),
        ] {
            let error = SnapshotParameters::parse(&raw(pairs), images).expect_err(words).to_string();
            assert!(error.contains(words), "{pairs:?}: {error}");
        }
        let parse = |pairs: &[(&str, &str)]| SnapshotParameters::parse(&raw(pairs), true).expect("fine");
        let (settings, labels) = parse(&[("storage-locations", "eu"), ("labels", "a=b")]);
        assert_eq!((settings.locations, settings.is_archive, labels.len()), (vec!["eu".to_owned()], false, 1));
        assert!(parse(&[("snapshot-type", "archive")]).0.is_archive);
        let (image, _) = parse(&[("snapshot-type", "images"), ("image-family", "f")]);
        assert_eq!((image.is_image, image.image_family.as_deref()), (true, Some("f")));
    }

    #[test]
    fn growing_hyperdisk_keeps_its_least_rates() {
        let now = DiskSettings { kind: Kind::HyperdiskExtreme, iops: Some(1000), ..DiskSettings::default() };
        let none = Rates::default();
        assert_eq!(none.resolve(&now, Bytes(500 * GIB)).expect("fine"), None);
        assert_eq!(none.resolve(&now, Bytes(1000 * GIB)).expect("fine").expect("more").iops, Some(2000));
        let now = DiskSettings { kind: Kind::HyperdiskThroughput, throughput: Some(40), ..DiskSettings::default() };
        assert_eq!(none.resolve(&now, Bytes(8 << 40)).expect("fine").expect("more").throughput, Some(80));
        let rates = Rates { throughput: Some("40Mi".to_owned()), iops: None };
        assert_eq!(rates.resolve(&now, Bytes(4 << 40)).expect("fine"), None);
        let ssd = DiskSettings { kind: Kind::Ssd, ..DiskSettings::default() };
        rates.resolve(&ssd, Bytes(GIB)).expect_err("it has none to choose");
    }
}

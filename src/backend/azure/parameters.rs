//! What a StorageClass, a VolumeAttributesClass and a VolumeSnapshotClass may say, as azuredisk-csi-driver names it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::volume::{Bytes, Error, Number, RawParameters, Result};

use super::record::check_tag;
use super::skus::{Sku, tier_named, why_no_tier};

const ELSEWHERE: &str = "is another than in the backend's configuration; have a backend for each";

/// Parameters of the other driver that this one refuses, and why.
const REFUSED: [(&str, &str); 14] = [
    ("attachdiskinitialdelay", "an attachment is waited for by its operation"),
    ("diskname", "the driver chooses names"),
    ("enableasyncattach", "attachments are always waited for by their operation"),
    ("fstype", "use csi.storage.k8s.io/fstype"),
    ("instantaccessdurationminutes", "is not offered"),
    ("dataaccessauthmode", "no data of a snapshot are exported"),
    ("location", ELSEWHERE),
    ("perfprofile", "settings of a block device are not the driver's"),
    ("resourcegroup", ELSEWHERE),
    ("subscriptionid", ELSEWHERE),
    ("tagvaluedelimiter", "tags are separated by commas"),
    ("useragent", "is always the driver's own"),
    ("writeacceleratorenabled", "is not offered"),
    ("zoned", "zones are chosen by topology"),
];

/// Those that are known, as they are written here.
const KNOWN: [&str; 17] = [
    "DiskIOPSReadWrite",
    "DiskMBpsReadWrite",
    "LogicalSectorSize",
    "cachingMode",
    "diskAccessID",
    "diskEncryptionSetID",
    "diskEncryptionType",
    "enableBursting",
    "enablePerformancePlus",
    "incremental",
    "kind",
    "maxShares",
    "networkAccessPolicy",
    "performanceTier",
    "publicNetworkAccess",
    "skuName",
    "tags",
];

const ENCRYPTIONS: [&str; 2] = ["EncryptionAtRestWithCustomerKey", "EncryptionAtRestWithPlatformAndCustomerKeys"];

/// Where a backend's disks and snapshots are. A class may say the same.
#[derive(Clone, Debug, Default)]
pub struct ConfiguredPlace {
    pub subscription: Option<String>,
    pub resource_group: Option<String>,
    pub location: Option<String>,
}

impl ConfiguredPlace {
    /// The parameters without what says this place.
    pub fn strip(&self, raw: &RawParameters) -> RawParameters {
        let is_here = |key: &str, value: &str| {
            let here = match key.to_ascii_lowercase().as_str() {
                "location" => &self.location,
                "resourcegroup" => &self.resource_group,
                "subscriptionid" => &self.subscription,
                _ => return false,
            };
            here.as_deref().is_some_and(|here| here.eq_ignore_ascii_case(value))
        };
        RawParameters::new(raw.clone().split_prefixed("").into_iter().filter(|(key, value)| !is_here(key, value)))
    }
}

/// The other driver takes these keys in any case.
fn in_our_case(raw: &RawParameters) -> Result<RawParameters> {
    let mut values = BTreeMap::new();
    for (key, value) in raw.clone().split_prefixed("") {
        let lower = key.to_ascii_lowercase();
        if let Some((_, why)) = REFUSED.iter().find(|(refused, _)| *refused == lower) {
            return Err(refuse(&key, why));
        }
        let ours = if lower == "storageaccounttype" { "skuName" } else { &key };
        let known = KNOWN.into_iter().find(|known| known.eq_ignore_ascii_case(ours));
        if values.insert(known.map_or_else(|| key.clone(), str::to_owned), value).is_some() {
            return Err(refuse(&key, "it is there twice, in upper and lower case, or as skuName and storageAccountType"));
        }
    }
    Ok(RawParameters::new(values))
}

/// Of a StorageClass.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AzureParameters {
    /// `StandardSSD_LRS` (default) and others.
    #[serde(rename = "skuName", default, skip_serializing_if = "Option::is_none")]
    pub sku_name: Option<String>,
    /// `None` (default) or `ReadOnly`: what the host caches.
    #[serde(rename = "cachingMode", default, skip_serializing_if = "Option::is_none")]
    pub caching_mode: Option<String>,
    /// I/O operations per second (PremiumV2_LRS, UltraSSD_LRS).
    #[serde(rename = "DiskIOPSReadWrite", default, skip_serializing_if = "Option::is_none")]
    pub iops: Option<Number>,
    /// In MB/s (PremiumV2_LRS, UltraSSD_LRS).
    #[serde(rename = "DiskMBpsReadWrite", default, skip_serializing_if = "Option::is_none")]
    pub mbps: Option<Number>,
    /// 512 or 4096 (PremiumV2_LRS, UltraSSD_LRS).
    #[serde(rename = "LogicalSectorSize", default, skip_serializing_if = "Option::is_none")]
    pub logical_sector_size: Option<Number>,
    /// `P30`, of a larger disk than this one (Premium_LRS, Premium_ZRS).
    #[serde(rename = "performanceTier", default, skip_serializing_if = "Option::is_none")]
    pub performance_tier: Option<String>,
    /// `true`: bursting on demand (Premium_LRS, Premium_ZRS, of more than 512 GiB).
    #[serde(rename = "enableBursting", default, skip_serializing_if = "Option::is_none")]
    pub enable_bursting: Option<String>,
    /// `/subscriptions/S/resourceGroups/G/providers/Microsoft.Compute/diskEncryptionSets/N`.
    #[serde(rename = "diskEncryptionSetID", default, skip_serializing_if = "Option::is_none")]
    pub disk_encryption_set_id: Option<String>,
    /// `EncryptionAtRestWithCustomerKey` (default), or `EncryptionAtRestWithPlatformAndCustomerKeys`: as the disk encryption set has it.
    #[serde(rename = "diskEncryptionType", default, skip_serializing_if = "Option::is_none")]
    pub disk_encryption_type: Option<String>,
    /// `true`: higher limits (Premium_LRS, StandardSSD_LRS, Standard_LRS, of more than 512 GiB).
    #[serde(rename = "enablePerformancePlus", default, skip_serializing_if = "Option::is_none")]
    pub enable_performance_plus: Option<String>,
    /// `DenyAll` (default), `AllowPrivate` or `AllowAll`: whether the disk's data may be exported.
    #[serde(rename = "networkAccessPolicy", default, skip_serializing_if = "Option::is_none")]
    pub network_access_policy: Option<String>,
    /// `Disabled` (default) or `Enabled`.
    #[serde(rename = "publicNetworkAccess", default, skip_serializing_if = "Option::is_none")]
    pub public_network_access: Option<String>,
    /// `/subscriptions/S/resourceGroups/G/providers/Microsoft.Compute/diskAccesses/N`, with `AllowPrivate`.
    #[serde(rename = "diskAccessID", default, skip_serializing_if = "Option::is_none")]
    pub disk_access_id: Option<String>,
    /// How many machines may have it attached at once.
    #[serde(rename = "maxShares", default, skip_serializing_if = "Option::is_none")]
    pub max_shares: Option<Number>,
    /// `key=value,key=value`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tags: Option<String>,
    /// `Managed`, as the other driver's classes have it; nothing else is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
}

/// Of a VolumeAttributesClass.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mutable {
    #[serde(rename = "skuName", default)]
    pub sku_name: Option<String>,
    #[serde(rename = "DiskIOPSReadWrite", default)]
    pub iops: Option<Number>,
    #[serde(rename = "DiskMBpsReadWrite", default)]
    pub mbps: Option<Number>,
    #[serde(rename = "performanceTier", default)]
    pub performance_tier: Option<String>,
    #[serde(rename = "enableBursting", default)]
    pub enable_bursting: Option<String>,
    #[serde(default)]
    pub tags: Option<String>,
}

/// Of a VolumeSnapshotClass.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SnapshotParameters {
    /// `true`; `false`, a whole copy each time, is refused.
    #[serde(default)]
    pub incremental: Option<String>,
    #[serde(default)]
    pub tags: Option<String>,
}

/// What of a disk a host caches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Caching {
    #[default]
    None,
    ReadOnly,
}

/// Who may export the data of a disk, by a URL or over a private link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Export {
    pub policy: String,
    pub public: String,
    pub disk_access_id: Option<String>,
}

impl Default for Export {
    /// Nobody.
    fn default() -> Export {
        Export { policy: "DenyAll".to_owned(), public: "Disabled".to_owned(), disk_access_id: None }
    }
}

/// How a disk is to be, or is: what is sent, and what the API describes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskSettings {
    pub sku: Sku,
    pub iops: Option<u64>,
    pub mbps: Option<u64>,
    /// Its performance tier, where it has or is to have another than that of its size.
    #[serde(default)]
    pub tier: Option<String>,
    /// Whether it bursts on demand; `None` where that is as it is.
    #[serde(default)]
    pub bursting: Option<bool>,
    pub logical_sector_size: Option<u64>,
    pub disk_encryption_set_id: Option<String>,
    /// Said when it is made, and never looked at afterwards; as the next two.
    #[serde(default)]
    pub encryption_type: Option<String>,
    #[serde(default)]
    pub performance_plus: bool,
    #[serde(default)]
    pub export: Export,
    pub max_shares: u64,
    /// To be set, of a change.
    #[serde(default)]
    pub tags: BTreeMap<String, String>,
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

fn refuse(field: &str, reason: impl std::fmt::Display) -> Error {
    Error::invalid("parameters", format!("{field}: {reason}"))
}

fn sku(name: Option<&String>) -> Result<Sku> {
    let Some(name) = name else { return Ok(Sku::default()) };
    Sku::named(name).ok_or_else(|| {
        let known: Vec<&str> = Sku::ALL.into_iter().map(Sku::name).collect();
        refuse("skuName", format!("{name:?} is no type of disk; there are {}", known.join(", ")))
    })
}

fn check_rates(sku: Sku, iops: Option<Number>, mbps: Option<Number>) -> Result<()> {
    for (field, value) in [("DiskIOPSReadWrite", iops), ("DiskMBpsReadWrite", mbps)] {
        if value.is_some() && !sku.has_rates() {
            return Err(refuse(field, format!("cannot be chosen for disks of type {sku}")));
        }
    }
    Ok(())
}

/// The performance tier, and whether it bursts, of a disk of this type; `None` where that is not asked for, or there is none.
fn performance(sku: Sku, tier: Option<&String>, bursting: Option<&String>) -> Result<(Option<String>, Option<bool>)> {
    for (field, value) in [("performanceTier", tier), ("enableBursting", bursting)] {
        if value.is_some_and(|value| value != "false") && !sku.has_tiers() {
            return Err(refuse(field, format!("is for disks of types Premium_LRS and Premium_ZRS, not {sku}")));
        }
    }
    let named = |name: &String| {
        let tier = tier_named(name).map(str::to_owned);
        tier.ok_or_else(|| refuse("performanceTier", format!("{name:?} is none; there are P1 to P80")))
    };
    let bursting = bursting.map(|text| flag("enableBursting", text)).transpose()?.filter(|_| sku.has_tiers());
    Ok((tier.map(named).transpose()?, bursting))
}

fn flag(field: &str, text: &str) -> Result<bool> {
    match text {
        "true" => Ok(true),
        "false" => Ok(false),
        other => Err(refuse(field, format!("{other:?} is neither true nor false"))),
    }
}

/// One of these words, as the API writes it.
fn word(field: &str, text: &str, words: &[&str]) -> Result<String> {
    let known = words.iter().find(|word| word.eq_ignore_ascii_case(text));
    known.map(|word| (*word).to_owned()).ok_or_else(|| refuse(field, format!("{text:?} is none of {}", words.join(", "))))
}

fn tags(text: Option<&str>) -> Result<BTreeMap<String, String>> {
    let parts = text.into_iter().flat_map(|text| text.split(',')).map(str::trim).filter(|part| !part.is_empty());
    let tag = |text: &str| {
        let (key, value) = text.split_once('=').ok_or_else(|| refuse("tags", format!("{text:?} is no tag; write key=value")))?;
        check_tag(key, value).map_err(|reason| refuse("tags", reason))?;
        Ok((key.to_owned(), value.to_owned()))
    };
    parts.map(tag).collect()
}

impl DiskSettings {
    /// Whether a disk of this size can be so.
    ///
    /// # Errors
    /// `Invalid`, naming the parameter.
    pub fn check_size(&self, capacity: Bytes) -> Result<()> {
        if let Some(reason) = self.tier.as_ref().and_then(|tier| why_no_tier(tier, capacity)) {
            return Err(refuse("performanceTier", reason));
        }
        if self.bursting == Some(true) && !self.sku.may_burst(capacity) {
            return Err(refuse("enableBursting", format!("is for disks of more than 512 GiB, and this has {capacity}")));
        }
        if self.performance_plus && !self.sku.may_have_performance_plus(capacity) {
            return Err(refuse("enablePerformancePlus", format!("is for disks of more than 512 GiB, and this has {capacity}")));
        }
        Ok(())
    }
}

impl AzureParameters {
    /// # Errors
    /// `Invalid`, naming the parameter.
    pub fn parse(raw: &RawParameters) -> Result<AzureParameters> {
        let parameters: AzureParameters = in_our_case(raw)?.parse()?;
        if let Some(kind) = parameters.kind.as_ref().filter(|kind| !kind.eq_ignore_ascii_case("managed")) {
            return Err(refuse("kind", format!("{kind:?} is not offered; leave it out, or write Managed")));
        }
        parameters.caching()?;
        parameters.settings(&Mutable::default(), false)?;
        parameters.tags()?;
        Ok(parameters)
    }

    /// As they were kept with the volume.
    ///
    /// # Errors
    /// `Invalid` where they were not made by `parse`.
    pub fn read(kept: &Value) -> Result<AzureParameters> {
        Ok(match kept {
            Value::Null => AzureParameters::default(),
            kept => serde_json::from_value(kept.clone()).map_err(|error| Error::invalid("parameters", error.to_string()))?,
        })
    }

    pub fn sku(&self) -> Result<Sku> {
        sku(self.sku_name.as_ref())
    }

    pub fn tags(&self) -> Result<BTreeMap<String, String>> {
        tags(self.tags.as_deref())
    }

    pub fn caching(&self) -> Result<Caching> {
        let caching = match self.caching_mode.as_deref().map(str::to_ascii_lowercase).as_deref() {
            None | Some("none") => return Ok(Caching::None),
            Some("readonly") => Caching::ReadOnly,
            Some("readwrite") => {
                let reason = "ReadWrite is refused: a host that fails loses what it has confirmed; write ReadOnly or None";
                return Err(refuse("cachingMode", reason));
            }
            Some(other) => return Err(refuse("cachingMode", format!("{other:?} is neither None nor ReadOnly"))),
        };
        if self.sku()?.has_rates() || self.max_shares.is_some_and(|shares| shares.0 > 1) {
            return Err(refuse(
                "cachingMode",
                "hosts cache no disks of types PremiumV2_LRS and UltraSSD_LRS, and none for several machines",
            ));
        }
        Ok(caching)
    }

    /// How a disk is to be made, with these mutable parameters over those of the class, for one node or several.
    ///
    /// # Errors
    /// `Invalid`, naming the parameter.
    pub fn settings(&self, over: &Mutable, several_nodes: bool) -> Result<DiskSettings> {
        let sku = sku(over.sku_name.as_ref().or(self.sku_name.as_ref()))?;
        let (iops, mbps) = (over.iops.or(self.iops), over.mbps.or(self.mbps));
        check_rates(sku, iops, mbps)?;
        let (tier, bursting) = (over.performance_tier.as_ref(), over.enable_bursting.as_ref());
        let (tier, bursting) =
            performance(sku, tier.or(self.performance_tier.as_ref()), bursting.or(self.enable_bursting.as_ref()))?;
        let max_shares = self.max_shares.map_or(1, |shares| shares.0.into());
        if !(1..=sku.most_shares()).contains(&max_shares) {
            return Err(refuse("maxShares", format!("{max_shares} is not between 1 and {} (of {sku})", sku.most_shares())));
        }
        if several_nodes && max_shares < 2 {
            let reason = "a disk for several nodes has maxShares of 2 or more in its StorageClass";
            return Err(Error::invalid("volume_capabilities", reason));
        }
        let logical_sector_size = self.logical_sector_size.map(|size| u64::from(size.0));
        match logical_sector_size {
            Some(512 | 4096) if sku.has_rates() => {}
            None => {}
            Some(other) => {
                return Err(refuse(
                    "LogicalSectorSize",
                    format!("{other}: 512 or 4096, with PremiumV2_LRS and UltraSSD_LRS only"),
                ));
            }
        }
        check_resource("diskEncryptionSetID", "diskEncryptionSets", self.disk_encryption_set_id.as_deref())?;
        let encryption_type = self.disk_encryption_type.as_deref();
        let encryption_type = encryption_type.map(|text| word("diskEncryptionType", text, &ENCRYPTIONS)).transpose()?;
        if encryption_type.is_some() && self.disk_encryption_set_id.is_none() {
            return Err(refuse("diskEncryptionType", "is that of a disk encryption set; name one in diskEncryptionSetID"));
        }
        let performance_plus =
            self.enable_performance_plus.as_deref().map(|text| flag("enablePerformancePlus", text)).transpose()?;
        let performance_plus = performance_plus.unwrap_or(false);
        if performance_plus && !sku.has_performance_plus() {
            return Err(refuse(
                "enablePerformancePlus",
                format!("is for disks of types Premium_LRS, StandardSSD_LRS and Standard_LRS, not {sku}"),
            ));
        }
        Ok(DiskSettings {
            sku,
            iops: iops.map(|iops| iops.0.into()),
            mbps: mbps.map(|mbps| mbps.0.into()),
            tier,
            // A new disk does not burst unless that is asked for.
            bursting: bursting.filter(|bursts| *bursts),
            logical_sector_size,
            disk_encryption_set_id: self.disk_encryption_set_id.clone(),
            encryption_type,
            performance_plus,
            export: self.export()?,
            max_shares,
            tags: BTreeMap::new(),
        })
    }

    fn export(&self) -> Result<Export> {
        let mut export = Export::default();
        if let Some(policy) = &self.network_access_policy {
            export.policy = word("networkAccessPolicy", policy, &["DenyAll", "AllowPrivate", "AllowAll"])?;
        }
        if let Some(public) = &self.public_network_access {
            export.public = word("publicNetworkAccess", public, &["Disabled", "Enabled"])?;
        }
        check_resource("diskAccessID", "diskAccesses", self.disk_access_id.as_deref())?;
        if self.disk_access_id.is_some() != (export.policy == "AllowPrivate") {
            return Err(refuse("diskAccessID", "goes with networkAccessPolicy: AllowPrivate, and that with it"));
        }
        export.disk_access_id = self.disk_access_id.clone();
        Ok(export)
    }
}

fn check_resource(field: &str, kind: &str, id: Option<&str>) -> Result<()> {
    let Some(id) = id else { return Ok(()) };
    let form = format!("/subscriptions/S/resourceGroups/G/providers/Microsoft.Compute/{kind}/N");
    let (parts, wanted): (Vec<&str>, Vec<&str>) = (id.split('/').collect(), form.split('/').collect());
    let fits = |(part, wanted): (&&str, &&str)| match *wanted {
        "S" | "G" | "N" => !part.is_empty(),
        word => part.eq_ignore_ascii_case(word),
    };
    match parts.len() == wanted.len() && parts.iter().zip(&wanted).all(fits) {
        true => Ok(()),
        false => Err(refuse(field, format!("{id:?} is none; write {form}"))),
    }
}

impl Mutable {
    /// # Errors
    /// `Invalid`, naming the parameter.
    pub fn parse(raw: &RawParameters) -> Result<Mutable> {
        let mutable: Mutable = in_our_case(raw)?.parse()?;
        sku(mutable.sku_name.as_ref())?;
        tags(mutable.tags.as_deref())?;
        Ok(mutable)
    }

    pub fn tags(&self) -> Result<BTreeMap<String, String>> {
        tags(self.tags.as_deref())
    }

    /// What a disk with these tags is to have instead of what it has, if it is something else.
    ///
    /// # Errors
    /// `Invalid`, naming the parameter.
    pub fn resolve(&self, now: &DiskSettings, has: &BTreeMap<String, String>) -> Result<Option<DiskSettings>> {
        let wanted = match &self.sku_name {
            Some(name) => sku(Some(name))?,
            None => now.sku,
        };
        if !now.sku.may_become(wanted) {
            let reason = format!("a disk of type {} cannot become one of {wanted}; make a volume of a snapshot of it", now.sku);
            return Err(refuse("skuName", reason));
        }
        check_rates(wanted, self.iops, self.mbps)?;
        let (tier, bursting) = performance(wanted, self.performance_tier.as_ref(), self.enable_bursting.as_ref())?;
        let (tier, bursting) = (tier.or(now.tier.clone()), bursting.or(now.bursting));
        let iops = self.iops.map(|iops| iops.0.into()).or(now.iops);
        let mbps = self.mbps.map(|mbps| mbps.0.into()).or(now.mbps);
        let tags: BTreeMap<_, _> = self.tags()?.into_iter().filter(|(key, value)| has.get(key) != Some(value)).collect();
        let changed = DiskSettings { sku: wanted, iops, mbps, tier, bursting, tags, ..now.clone() };
        Ok((changed != *now).then_some(changed))
    }
}

impl SnapshotParameters {
    /// The tags of a snapshot.
    ///
    /// # Errors
    /// `Invalid`, naming the parameter.
    pub fn parse(raw: &RawParameters) -> Result<BTreeMap<String, String>> {
        let parameters: SnapshotParameters = in_our_case(raw)?.parse()?;
        match parameters.incremental.as_deref() {
            None | Some("true") => tags(parameters.tags.as_deref()),
            Some(other) => Err(refuse("incremental", format!("{other:?} is not offered; leave it out, or write true"))),
        }
    }
}

/// What a host caches of a disk of this type and size, where this is asked for.
pub fn effective_caching(asked: Caching, sku: Sku, capacity: Bytes, max_shares: u64) -> Caching {
    if sku.may_be_cached(capacity) && max_shares < 2 { asked } else { Caching::None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(pairs: &[(&str, &str)]) -> RawParameters {
        RawParameters::new(pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())))
    }

    #[test]
    fn class_of_the_other_driver_is_understood() {
        let set = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/diskEncryptionSets/set";
        let parameters = AzureParameters::parse(&raw(&[
            ("SkuName", "premiumv2_lrs"),
            ("DiskIOPSReadWrite", "4000"),
            ("DiskMBpsReadWrite", "150"),
            ("LogicalSectorSize", "4096"),
            ("diskEncryptionSetID", set),
            ("maxShares", "2"),
            ("cachingMode", "None"),
            ("kind", "Managed"),
            ("tags", "team=storage, env=test"),
        ]));
        let parameters = parameters.expect("fine");
        let settings = parameters.settings(&Mutable::default(), true).expect("fine");
        assert_eq!((settings.sku, settings.iops, settings.mbps, settings.max_shares), (Sku::PremiumV2, Some(4000), Some(150), 2));
        assert_eq!((settings.logical_sector_size, settings.disk_encryption_set_id.as_deref()), (Some(4096), Some(set)));
        assert_eq!(parameters.tags().expect("fine").len(), 2);
        let kept = serde_json::to_value(&parameters).expect("JSON");
        assert_eq!(AzureParameters::read(&kept).expect("fine"), parameters);
        let over = Mutable::parse(&raw(&[("DiskIOPSReadWrite", "5000")])).expect("fine");
        assert_eq!(parameters.settings(&over, false).expect("fine").iops, Some(5000));
        let access = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Compute/diskAccesses/a";
        let plus = AzureParameters::parse(&raw(&[
            ("storageAccountType", "Premium_LRS"),
            ("enablePerformancePlus", "true"),
            ("networkAccessPolicy", "allowprivate"),
            ("diskAccessID", access),
            ("diskEncryptionSetID", set),
            ("diskEncryptionType", "encryptionatrestwithplatformandcustomerkeys"),
        ]));
        let plus = plus.and_then(|parameters| parameters.settings(&Mutable::default(), false)).expect("fine");
        assert_eq!((plus.sku, plus.encryption_type.as_deref()), (Sku::Premium, Some(ENCRYPTIONS[1])));
        assert_eq!((plus.export.policy.as_str(), plus.export.disk_access_id.as_deref()), ("AllowPrivate", Some(access)));
        plus.check_size(Bytes(513 << 30)).expect("fine");
        plus.check_size(Bytes(512 << 30)).expect_err("too small");
        assert_eq!(AzureParameters::parse(&raw(&[])).expect("fine").sku().expect("fine"), Sku::StandardSsd);
        let cached = AzureParameters::parse(&raw(&[("cachingMode", "ReadOnly")])).expect("fine").caching().expect("fine");
        assert_eq!(effective_caching(cached, Sku::Premium, Bytes(1 << 30), 1), Caching::ReadOnly);
        assert_eq!(effective_caching(cached, Sku::Premium, Bytes(4 << 40), 1), Caching::None);
    }

    #[test]
    fn impossible_value_is_named() {
        for (pairs, words) in [
            (&[("skuName", "Fast_LRS")][..], "skuName: \"Fast_LRS\" is no type"),
            (&[("DiskIOPSReadWrite", "1000")], "DiskIOPSReadWrite: cannot be chosen"),
            (&[("skuName", "UltraSSD_LRS"), ("DiskMBpsReadWrite", "many")], "whole number"),
            (&[("cachingMode", "ReadWrite")], "a host that fails loses"),
            (&[("cachingMode", "ReadOnly"), ("skuName", "UltraSSD_LRS")], "hosts cache no disks"),
            (&[("maxShares", "20")], "maxShares: 20"),
            (&[("skuName", "Standard_LRS"), ("maxShares", "2")], "maxShares: 2"),
            (&[("LogicalSectorSize", "4096")], "LogicalSectorSize"),
            (&[("diskEncryptionSetID", "set")], "is none; write /subscriptions"),
            (&[("performanceTier", "P30")], "performanceTier: is for disks of types Premium_LRS"),
            (&[("performanceTier", "P5"), ("skuName", "Premium_LRS")], "\"P5\" is none"),
            (&[("enableBursting", "true"), ("skuName", "UltraSSD_LRS")], "enableBursting: is for disks of types"),
            (&[("enableBursting", "yes"), ("skuName", "Premium_LRS")], "neither true nor false"),
            (&[("kind", "Dedicated")], "kind"),
            (&[("networkAccessPolicy", "DenySome")], "none of DenyAll, AllowPrivate, AllowAll"),
            (&[("networkAccessPolicy", "AllowPrivate")], "diskAccessID: goes with"),
            (&[("diskAccessID", "/subscriptions/s")], "diskAccesses/N"),
            (&[("publicNetworkAccess", "true")], "publicNetworkAccess"),
            (&[("diskEncryptionType", "EncryptionAtRestWithCustomerKey")], "name one in diskEncryptionSetID"),
            (&[("enablePerformancePlus", "true"), ("skuName", "PremiumV2_LRS")], "enablePerformancePlus: is for disks of types"),
            (&[("skuName", "Premium_LRS"), ("storageAccountType", "Premium_LRS")], "twice"),
            (&[("tags", "a")], "tags: \"a\" is no tag"),
            (&[("Perfprofile", "basic")], "Perfprofile: settings"),
            (&[("resourceGroup", "g")], "another than in the backend's configuration"),
            (&[("skuName", "Premium_LRS"), ("skuname", "Premium_LRS")], "twice"),
            (&[("sku", "Premium_LRS")], "sku"),
        ] {
            let error = AzureParameters::parse(&raw(pairs)).expect_err(words).to_string();
            assert!(error.contains(words), "{pairs:?}: {error}");
        }
        let error = AzureParameters::default().settings(&Mutable::default(), true).expect_err("one node").to_string();
        assert!(error.contains("maxShares"), "{error}");
        SnapshotParameters::parse(&raw(&[("incremental", "false")])).expect_err("not offered");
        SnapshotParameters::parse(&raw(&[("resourceGroup", "g")])).expect_err("not offered");
        assert_eq!(SnapshotParameters::parse(&raw(&[("incremental", "true"), ("tags", "a=b")])).expect("fine").len(), 1);
    }

    #[test]
    fn class_may_say_where_the_backend_is() {
        let text = |text: &str| Some(text.to_owned());
        let place = ConfiguredPlace { subscription: text("0b3c"), resource_group: text("Storage"), location: text("westeurope") };
        let same =
            [("resourceGroup", "storage"), ("subscriptionID", "0B3C"), ("location", "westeurope"), ("skuName", "Premium_LRS")];
        assert_eq!(AzureParameters::parse(&place.strip(&raw(&same))).expect("fine").sku().expect("fine"), Sku::Premium);
        for (key, value) in [("resourcegroup", "other"), ("subscriptionId", "1"), ("Location", "eastus")] {
            AzureParameters::parse(&place.strip(&raw(&[(key, value)]))).expect_err(key);
        }
        AzureParameters::parse(&ConfiguredPlace::default().strip(&raw(&[("location", "")]))).expect_err("it is not known here");
    }

    #[test]
    fn only_what_is_other_is_changed() {
        let now = DiskSettings { sku: Sku::Premium, max_shares: 1, ..DiskSettings::default() };
        let has = BTreeMap::from([("a".to_owned(), "b".to_owned())]);
        let resolve = |pairs: &[(&str, &str)]| Mutable::parse(&raw(pairs)).expect("fine").resolve(&now, &has);
        assert_eq!(resolve(&[("skuName", "Premium_LRS"), ("tags", "a=b")]).expect("fine"), None);
        let changed = resolve(&[("skuName", "Standard_LRS"), ("tags", "a=c")]).expect("fine").expect("another");
        assert_eq!((changed.sku, changed.tags.len()), (Sku::Standard, 1));
        let tier = resolve(&[("performanceTier", "p30"), ("enableBursting", "true")]).expect("fine").expect("another");
        assert_eq!((tier.tier.as_deref(), tier.bursting), (Some("P30"), Some(true)));
        tier.check_size(Bytes(600 << 30)).expect("it can be");
        tier.check_size(Bytes(512 << 30)).expect_err("it does not burst");
        tier.check_size(Bytes(2 << 40)).expect_err("it has a higher tier");
        let cheap = Mutable::parse(&raw(&[("skuName", "Standard_LRS"), ("enableBursting", "false")])).expect("fine");
        assert_eq!(cheap.resolve(&tier, &has).expect("fine").expect("another").sku, Sku::Standard);
        for pairs in [&[("skuName", "UltraSSD_LRS")][..], &[("skuName", "Premium_ZRS")], &[("DiskIOPSReadWrite", "500")]] {
            resolve(pairs).expect_err("it cannot be");
        }
    }
}

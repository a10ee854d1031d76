//! What the operator configures, and what a StorageClass or the attributes of a static volume may say.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::backend::local::{self, Class, is_default};
use crate::volume::{BackendName, Bytes, Error, IoLimit, IoLimits, NodeId, OnDelete, RawParameters, Result};

/// Volume groups of a node, in which volumes are logical volumes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct LvmConfig {
    /// The part of every volume id before the colon.
    pub name: BackendName,
    /// Where volumes are made, and how; a StorageClass chooses one by `deviceClass`, the first is the default.
    pub classes: Vec<DeviceClass>,
    /// How many volumes this node may have connected. Default: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volumes_per_node: Option<u64>,
    /// Volumes may limit what each pod reads and writes of them in a second. The driver needs the node's /sys/fs/cgroup, version 2. Default:
    /// no.
    #[serde(default, skip_serializing_if = "is_default")]
    pub io_limits: bool,
    /// The node that has the volume groups. Default: the node that reads this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeId>,
}

/// One way to make volumes: in a volume group, or in a thin pool of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct DeviceClass {
    /// As a StorageClass names it.
    pub name: String,
    /// The volume group, which exists.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub volume_group: String,
    /// Its physical volumes, as absolute paths: /dev/disk/by-id/... is the same after each boot. LVM looks at no other device.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<PathBuf>,
    /// In place of `volumeGroup` and `devices`: several volume groups. A volume is made in the one in which the largest would fit.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volume_groups: Vec<VolumeGroupOfClass>,
    /// Makes thin volumes in this thin pool of the volume group, which exists and zeroes its chunks. Default: thick volumes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thin_pool: Option<String>,
    /// How many times the size of the thin pool may be provisioned to volumes and snapshots. Default 1.0.
    #[serde(default = "one")]
    pub overcommit: f64,
    /// Extends the thin pool, and its metadata, before it is full. Default: nobody does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub autoextend: Option<Autoextend>,
    /// Of thick volumes: how much of the volume group is left free, as `10GiB` or a number of bytes. Default 0.
    #[serde(default, skip_serializing_if = "is_default")]
    pub spare: Bytes,
    /// Of thick volumes: what DeleteVolume does with the data before its extents are free. Default `discard`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub wipe: Wipe,
    /// Of thick volumes: over how many physical volumes each is laid out. Default `linear`.
    #[serde(default)]
    pub layout: Layout,
    /// Of `striped`, `raid5`, `raid6` and `raid10`: the number of stripes that hold data. Default 2, of raid6 3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stripes: Option<u64>,
    /// Of `raid1`, `raid5`, `raid6` and `raid10`: each image has checksums (dm-integrity), so that what a disk reads back wrong is repaired
    /// from another. Default: no.
    #[serde(default, skip_serializing_if = "is_default")]
    pub raid_integrity: bool,
    /// Of thick volumes: further options of lvcreate(8), each as `--option=value`: `--readahead`; of layouts with stripes `--stripesize`; of
    /// RAID `--regionsize`, `--minrecoveryrate` and `--maxrecoveryrate`; with `raidIntegrity` `--raidintegritymode` and
    /// `--raidintegrityblocksize`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lvcreate_options: Vec<String>,
}

/// One of several volume groups.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct VolumeGroupOfClass {
    /// The volume group, which exists.
    pub name: String,
    /// Its physical volumes, as those of one alone.
    pub devices: Vec<PathBuf>,
}

/// When a thin pool is extended, and by how much: as `thin_pool_autoextend_threshold` and `thin_pool_autoextend_percent` in lvm.conf(5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Autoextend {
    /// As soon as so many percent of its data or of its metadata are used: 50 to 95. Default 70.
    #[serde(default = "threshold")]
    pub threshold: u8,
    /// By so many percent of what it has: 1 to 100. Default 20.
    #[serde(default = "percent")]
    pub percent: u8,
}

fn threshold() -> u8 {
    70
}

fn percent() -> u8 {
    20
}

/// What is left on the disks of a thick volume that is deleted. No other volume shows it in any case: what one is made of, or grows by, is
/// overwritten with zeroes before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Wipe {
    /// All of it, until its extents are used again.
    None,
    /// What the disks keep of extents that are discarded, where they can do that.
    #[default]
    Discard,
    /// Nothing: zeroes are written over it. Then its extents are discarded.
    Zero,
}

/// How the extents of a thick volume are laid out (lvmraid(7)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Layout {
    /// One copy, wherever there is room.
    #[default]
    Linear,
    /// One copy, spread over physical volumes.
    Striped,
    /// Two copies.
    Raid1,
    /// One physical volume may fail.
    Raid5,
    /// Two physical volumes may fail.
    Raid6,
    /// Two copies, spread over physical volumes.
    Raid10,
}

fn one() -> f64 {
    1.0
}

/// The longest name in LVM (lvm(8)).
const LONGEST_NAME: usize = 127;

impl LvmConfig {
    /// Checks what needs no I/O.
    ///
    /// # Errors
    /// `Invalid`, naming the field.
    pub fn validate(&self) -> Result<()> {
        local::check_classes(&self.name, &self.classes, self.volumes_per_node)?;
        self.classes.iter().try_for_each(DeviceClass::check_volume_groups)?;
        let members = self.with_one_group_each();
        for (index, class) in members.iter().enumerate() {
            class.validate()?;
            for other in members.iter().take(index).filter(|other| other.volume_group == class.volume_group) {
                if other.name == class.name {
                    let reason = format!("class {} has volume group {} twice", class.name, class.volume_group);
                    return Err(Error::invalid("classes.volumeGroups", reason));
                }
                if other.devices != class.devices {
                    let reason =
                        format!("classes {} and {} have the same volume group with other devices", other.name, class.name);
                    return Err(Error::invalid("classes.devices", reason));
                }
            }
        }
        Ok(())
    }

    /// Each class once for each of its volume groups.
    pub(super) fn with_one_group_each(&self) -> Vec<DeviceClass> {
        let each = |class: &DeviceClass| -> Vec<DeviceClass> {
            if class.volume_groups.is_empty() {
                return vec![class.clone()];
            }
            let of = |group: &VolumeGroupOfClass| DeviceClass {
                volume_group: group.name.clone(),
                devices: group.devices.clone(),
                volume_groups: Vec::new(),
                ..class.clone()
            };
            class.volume_groups.iter().map(of).collect()
        };
        self.classes.iter().flat_map(each).collect()
    }

    /// A class in its volume groups, once each.
    ///
    /// # Errors
    /// As of [`LvmConfig::class`].
    pub(super) fn members(&self, name: Option<&str>) -> Result<Vec<&DeviceClass>> {
        let name = &self.class(name)?.name;
        Ok(self.classes.iter().filter(|class| class.name == *name).collect())
    }

    /// A class in a volume group; in its first, where that is not one of it any more.
    ///
    /// # Errors
    /// As of [`LvmConfig::class`].
    pub(super) fn class_in(&self, name: Option<&str>, volume_group: &str) -> Result<&DeviceClass> {
        let first = self.class(name)?;
        Ok(self.members(name)?.into_iter().find(|class| class.volume_group == volume_group).unwrap_or(first))
    }

    /// Whether these limits may be set.
    ///
    /// # Errors
    /// `Invalid` where one cannot be, or pods are not limited at all.
    pub(super) fn check_io_limits(&self, limits: IoLimits) -> Result<()> {
        limits.check()?;
        if self.io_limits || limits == IoLimits::default() {
            return Ok(());
        }
        let reason = format!("{} need ioLimits: true in the configuration of backend {}", IoLimits::KEYS.join(", "), self.name);
        Err(Error::invalid("parameters", reason))
    }

    /// The class that a StorageClass means.
    ///
    /// # Errors
    /// `Invalid` where there is none of this name.
    pub(super) fn class(&self, name: Option<&str>) -> Result<&DeviceClass> {
        local::class(&self.name, &self.classes, name)
    }

    /// The device-mapper targets that volumes in this volume group need. A snapshot of a thin volume is none of the target `snapshot`, but
    /// `lvcreate --snapshot` wants it.
    pub(super) fn targets(&self, volume_group: &str) -> Vec<&'static str> {
        let has = |is: fn(&DeviceClass) -> bool| self.classes.iter().any(|class| class.volume_group == volume_group && is(class));
        let needed: [(&[&'static str], bool); 3] = [
            (&["thin-pool", "snapshot"], has(|class| class.thin_pool.is_some())),
            (&["raid"], has(|class| class.layout.is_raid())),
            (&["integrity"], has(|class| class.raid_integrity)),
        ];
        needed.iter().filter(|(_, needed)| *needed).flat_map(|(targets, _)| *targets).copied().collect()
    }

    /// What is to become of the data of a thick volume that was made in this class. Where the class makes no thick volumes in its volume
    /// group any more, or is gone, nobody knows what it said: then as the strictest of those says that do.
    pub(super) fn wipe(&self, volume_group: &str, class: Option<&str>) -> Wipe {
        let is_thick = |one: &&DeviceClass| one.volume_group == volume_group && one.thin_pool.is_none();
        let own = self.class_in(class, volume_group).ok().filter(is_thick);
        let strictest = || self.classes.iter().filter(is_thick).map(|one| one.wipe).max();
        own.map(|one| one.wipe).or_else(strictest).unwrap_or_default()
    }
}

impl Class for DeviceClass {
    fn name(&self) -> &str {
        &self.name
    }
}

/// A class and one of its volume groups.
pub(super) type Place = (String, String);

impl DeviceClass {
    pub(super) fn place(&self) -> Place {
        (self.name.clone(), self.volume_group.clone())
    }

    fn check_volume_groups(&self) -> Result<()> {
        let reason = match (self.volume_group.is_empty() && self.devices.is_empty(), self.volume_groups.is_empty()) {
            (true, true) => "has no volume group: set volumeGroup and devices, or volumeGroups",
            (false, false) => "has both volumeGroups and volumeGroup or devices: use one of them",
            _ => return Ok(()),
        };
        Err(Error::invalid("classes.volumeGroup", format!("class {} {reason}", self.name)))
    }

    fn check_options(&self) -> Result<()> {
        if self.raid_integrity && !self.layout.is_raid() {
            let reason = format!("class {} has no RAID layout to repair what does not match its checksum", self.name);
            return Err(Error::invalid("classes.raidIntegrity", reason));
        }
        if self.thin_pool.is_some() && !self.lvcreate_options.is_empty() {
            let reason = format!("class {} makes thin volumes; their pool says how their data lies", self.name);
            return Err(Error::invalid("classes.lvcreateOptions", reason));
        }
        let mut allowed = vec!["--readahead"];
        if self.layout.least_stripes() > 1 {
            allowed.push("--stripesize");
        }
        if self.layout.is_raid() {
            allowed.extend(["--regionsize", "--minrecoveryrate", "--maxrecoveryrate"]);
        }
        if self.raid_integrity {
            allowed.extend(["--raidintegritymode", "--raidintegrityblocksize"]);
        }
        for option in &self.lvcreate_options {
            let is_plain =
                |value: &str| !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'.');
            if !option.split_once('=').is_some_and(|(name, value)| allowed.contains(&name) && is_plain(value)) {
                let reason = format!("{option:?} of class {} is none of these, with =VALUE: {}", self.name, allowed.join(", "));
                return Err(Error::invalid("classes.lvcreateOptions", reason));
            }
        }
        Ok(())
    }

    fn validate(&self) -> Result<()> {
        check_name("classes.name", &self.name)?;
        check_name("classes.volumeGroup", &self.volume_group)?;
        self.thin_pool.iter().try_for_each(|pool| check_name("classes.thinPool", pool))?;
        if self.devices.is_empty() {
            return Err(Error::invalid(
                "classes.devices",
                format!("class {} needs the physical volumes of its volume group", self.name),
            ));
        }
        for device in &self.devices {
            let text = device.to_str().filter(|text| text.starts_with("/dev/") && !text.contains([',', ' ']));
            text.ok_or_else(|| Error::invalid("classes.devices", format!("{} is no path below /dev", device.display())))?;
        }
        if !self.overcommit.is_finite() || self.overcommit <= 0.0 {
            let reason = format!("{} must be more than 0; 1 provisions no more than there is", self.overcommit);
            return Err(Error::invalid("classes.overcommit", reason));
        }
        if self.thin_pool.is_some() && (self.layout != Layout::Linear || self.stripes.is_some() || self.spare.0 > 0) {
            return Err(Error::invalid(
                "classes.thinPool",
                "layout, stripes and spare are of thick volumes: a thin pool has its own",
            ));
        }
        if self.thin_pool.is_some() && self.wipe != Wipe::default() {
            let reason = format!(
                "class {} makes thin volumes; their pool zeroes each chunk before it is used again. Leave wipe out",
                self.name
            );
            return Err(Error::invalid("classes.wipe", reason));
        }
        if let Some(Autoextend { threshold, percent }) = self.autoextend {
            if self.thin_pool.is_none() {
                return Err(Error::invalid("classes.autoextend", format!("class {} has no thin pool to extend", self.name)));
            }
            if !(50..=95).contains(&threshold) {
                let reason = format!("threshold {threshold} is not between 50 and 95: at 95 % a pool gets no further volume");
                return Err(Error::invalid("classes.autoextend", reason));
            }
            if !(1..=100).contains(&percent) {
                return Err(Error::invalid("classes.autoextend", format!("percent {percent} is not between 1 and 100")));
            }
        }
        self.check_options()?;
        match (self.layout, self.stripes) {
            (Layout::Linear | Layout::Raid1, Some(_)) => {
                Err(Error::invalid("classes.stripes", format!("class {} has a layout without stripes", self.name)))
            }
            (layout, Some(stripes)) if stripes < layout.least_stripes() => {
                let reason = format!("{stripes} are too few for class {}: at least {}", self.name, layout.least_stripes());
                Err(Error::invalid("classes.stripes", reason))
            }
            _ => Ok(()),
        }
    }

    /// The number of stripes that hold data.
    pub(super) fn stripes(&self) -> u64 {
        self.stripes.unwrap_or(self.layout.least_stripes())
    }
}

impl Layout {
    fn is_raid(self) -> bool {
        !matches!(self, Layout::Linear | Layout::Striped)
    }

    fn least_stripes(self) -> u64 {
        match self {
            Layout::Linear | Layout::Raid1 => 1,
            Layout::Striped | Layout::Raid5 | Layout::Raid10 => 2,
            Layout::Raid6 => 3,
        }
    }

    /// `lvcreate --type`.
    pub(super) fn segment_type(self) -> &'static str {
        match self {
            Layout::Linear => "linear",
            Layout::Striped => "striped",
            Layout::Raid1 => "raid1",
            Layout::Raid5 => "raid5",
            Layout::Raid6 => "raid6",
            Layout::Raid10 => "raid10",
        }
    }
}

/// lvm(8): A-Z a-z 0-9 + _ . - and no hyphen first.
fn check_name(field: &'static str, name: &str) -> Result<()> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'_' | b'.' | b'-');
    let plain = !name.is_empty() && name.len() <= LONGEST_NAME && !name.starts_with(['-', '.']) && name.bytes().all(allowed);
    if plain {
        Ok(())
    } else {
        Err(Error::invalid(field, format!("{name:?} is no name in LVM: A-Z a-z 0-9 + _ . - and no hyphen or dot first")))
    }
}

/// Parameters of a StorageClass, and attributes of a static volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct LvmParameters {
    /// The class of the backend in which volumes are made. Default: the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_class: Option<String>,
    /// What DeleteVolume does with the data: `delete` (default: the extents are discarded where the disk can), `retain` (the logical volume
    /// stays, renamed) or `scrub` (a thick volume is overwritten with zeroes first).
    #[serde(skip_serializing_if = "is_default")]
    pub on_delete: OnDelete,
    /// With `ioLimits` in the configuration: the most bytes that each pod reads of the volume in a second, as `100MiB`, or `max`. Default: no
    /// limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_bandwidth: Option<IoLimit>,
    /// The most bytes that it writes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_bandwidth: Option<IoLimit>,
    /// The most requests by which it reads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_iops: Option<IoLimit>,
    /// The most requests by which it writes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_iops: Option<IoLimit>,
    /// Of a static volume alone: the volume group of one of the backend's classes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_group: Option<String>,
    /// Of a static volume alone: the logical volume, as it is called in its volume group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logical_volume: Option<String>,
}

pub(super) fn check_on_delete(field: &'static str, on_delete: OnDelete, thin: bool) -> Result<()> {
    match on_delete {
        OnDelete::Archive => Err(Error::invalid(field, "there is no archive in a volume group; use delete, retain or scrub")),
        OnDelete::Scrub if thin => {
            let reason = "overwriting a thin volume would allocate all of it; its pool zeroes each chunk before it is used again. Use delete";
            Err(Error::invalid(field, reason))
        }
        _ => Ok(()),
    }
}

impl LvmParameters {
    /// Of a StorageClass.
    ///
    /// # Errors
    /// `Invalid`, naming the parameter.
    pub(super) fn of_class(raw: &RawParameters, config: &LvmConfig) -> Result<LvmParameters> {
        let parameters: LvmParameters = raw.parse()?;
        if parameters.volume_group.is_some() || parameters.logical_volume.is_some() {
            let reason = "volumeGroup and logicalVolume are attributes of static volumes; use deviceClass in a StorageClass";
            return Err(Error::invalid("parameters", reason));
        }
        let class = config.class(parameters.device_class.as_deref())?;
        check_on_delete("parameters.onDelete", parameters.on_delete, class.thin_pool.is_some())?;
        config.check_io_limits(parameters.io_limits())?;
        Ok(parameters)
    }

    pub(super) fn io_limits(&self) -> IoLimits {
        let LvmParameters { read_bandwidth, write_bandwidth, read_iops, write_iops, .. } = *self;
        IoLimits { read_bandwidth, write_bandwidth, read_iops, write_iops }
    }

    /// Of a static volume: its volume group and logical volume.
    ///
    /// # Errors
    /// `Invalid`, naming the attribute.
    pub(super) fn static_volume(&self) -> Result<Option<(&str, &str)>> {
        match (&self.volume_group, &self.logical_volume) {
            (None, None) => Ok(None),
            (Some(group), Some(volume)) => {
                check_name("volumeGroup", group)?;
                check_name("logicalVolume", volume)?;
                if self.io_limits() != IoLimits::default() {
                    let reason = "limits of reads and writes are kept with volumes that the driver made; a static one has none";
                    return Err(Error::invalid("volume_context", reason));
                }
                Ok(Some((group, volume)))
            }
            _ => Err(Error::invalid("volume_context", "a static volume has both volumeGroup and logicalVolume")),
        }
    }

    /// From the backend's own part of a volume's parameters.
    pub(super) fn from_json(own: &serde_json::Value) -> Result<LvmParameters> {
        if own.is_null() {
            return Ok(LvmParameters::default());
        }
        LvmParameters::deserialize(own).map_err(|error| Error::invalid("parameters", error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(in crate::backend::lvm) fn config(yaml: &str) -> Result<LvmConfig> {
        let config: LvmConfig = serde_yaml_ng::from_str(yaml).map_err(|error| Error::invalid("config", error.to_string()))?;
        config.validate()?;
        Ok(config)
    }

    const BOTH: &str = "{name: lvm, classes: [{name: thick, volumeGroup: vg0, devices: [/dev/sda]}, \
                        {name: thin, volumeGroup: vg0, devices: [/dev/sda], thinPool: pool0, overcommit: 4}]}";

    fn raw(pairs: &[(&str, &str)]) -> RawParameters {
        RawParameters::new(pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())))
    }

    #[test]
    fn configuration_reads_as_people_write_it() {
        let config = config(BOTH).expect("valid");
        assert_eq!(config.class(None).expect("the first").name, "thick");
        assert_eq!(config.class(Some("thin")).expect("named").thin_pool.as_deref(), Some("pool0"));
        assert!(config.class(Some("fast")).expect_err("none").to_string().contains("there are thick, thin"));
    }

    #[test]
    fn impossible_value_is_refused_by_name() {
        for (class, field) in [
            ("volumeGroup: vg0, devices: []", "classes.devices"),
            ("volumeGroup: vg0, devices: [sda]", "classes.devices"),
            ("volumeGroup: -vg0, devices: [/dev/sda]", "classes.volumeGroup"),
            ("volumeGroup: 'vg 0', devices: [/dev/sda]", "classes.volumeGroup"),
            ("volumeGroup: vg0, devices: [/dev/sda], thinPool: a/b", "classes.thinPool"),
            ("volumeGroup: vg0, devices: [/dev/sda], thinPool: p, layout: raid1", "classes.thinPool"),
            ("volumeGroup: vg0, devices: [/dev/sda], overcommit: 0", "classes.overcommit"),
            ("volumeGroup: vg0, devices: [/dev/sda], autoextend: {}", "classes.autoextend"),
            ("volumeGroup: vg0, devices: [/dev/sda], thinPool: p, autoextend: {threshold: 96}", "classes.autoextend"),
            ("volumeGroup: vg0, devices: [/dev/sda], thinPool: p, autoextend: {percent: 0}", "classes.autoextend"),
            ("volumeGroup: vg0, devices: [/dev/sda], layout: raid1, stripes: 2", "classes.stripes"),
            ("volumeGroup: vg0, devices: [/dev/sda], layout: raid6, stripes: 2", "classes.stripes"),
            ("volumeGroup: vg0, devices: [/dev/sda], layout: raid7", "raid7"),
            ("thinPool: p", "classes.volumeGroup"),
            ("volumeGroup: vg0, devices: [/dev/sda], volumeGroups: [{name: v, devices: [/dev/sdb]}]", "classes.volumeGroup"),
            ("devices: [/dev/sda], volumeGroups: [{name: v, devices: [/dev/sdb]}]", "classes.volumeGroup"),
            ("volumeGroups: [{name: v, devices: []}]", "classes.devices"),
            ("volumeGroups: [{name: v, devices: [/dev/a]}, {name: v, devices: [/dev/a]}]", "classes.volumeGroups"),
            ("volumeGroup: vg0, devices: [/dev/sda], raidIntegrity: true", "classes.raidIntegrity"),
            ("volumeGroup: vg0, devices: [/dev/sda], layout: striped, raidIntegrity: true", "classes.raidIntegrity"),
            ("volumeGroup: vg0, devices: [/dev/sda], thinPool: p, lvcreateOptions: [--readahead=8]", "classes.lvcreateOptions"),
            ("volumeGroup: vg0, devices: [/dev/sda], wipe: shred", "shred"),
            ("volumeGroup: vg0, devices: [/dev/sda], thinPool: p, wipe: zero", "classes.wipe"),
            ("volumeGroup: vg0, devices: [/dev/sda], thinPool: p, wipe: none", "classes.wipe"),
            ("volumeGroup: vg0, devices: [/dev/sda], thinpool: p", "thinpool"),
        ] {
            let yaml = format!("{{name: lvm, classes: [{{name: a, {class}}}]}}");
            let error = config(&yaml).expect_err(&yaml).to_string();
            assert!(error.contains(field), "{yaml}: {error}");
        }
        for (classes, field) in [
            ("[]", "classes"),
            ("[{name: a, volumeGroup: v, devices: [/dev/a]}, {name: a, volumeGroup: w, devices: [/dev/b]}]", "classes.name"),
            ("[{name: a, volumeGroup: v, devices: [/dev/a]}, {name: b, volumeGroup: v, devices: [/dev/b]}]", "classes.devices"),
        ] {
            let error = config(&format!("{{name: lvm, classes: {classes}}}")).expect_err(classes).to_string();
            assert!(error.contains(field), "{classes}: {error}");
        }
    }

    #[test]
    fn option_of_lvcreate_that_the_driver_relies_on_is_refused() {
        let with = |layout: &str, option: &str| {
            let class =
                format!("{{name: a, volumeGroup: v, devices: [/dev/sda], layout: {layout}, lvcreateOptions: ['{option}']}}");
            config(&format!("{{name: lvm, classes: [{class}]}}"))
        };
        for option in [
            "--name=other",
            "-nother",
            "--size=1G",
            "--extents=1",
            "--addtag=longshore",
            "--activate=y",
            "--zero=y",
            "--wipesignatures=y",
            "--type=linear",
            "--thinpool=p",
            "--config=devices/issue_discards=1",
            "--devices=/dev/sdb",
            "--permission=r",
            "--stripesize",
            "--stripesize=",
            "--stripesize=64k /dev/sdb",
            "/dev/sdb",
            "",
        ] {
            let error = with("raid5", option).expect_err(option).to_string();
            assert!(error.contains("lvcreateOptions") && error.contains("--regionsize"), "{option}: {error}");
        }
        for (layout, option, allowed) in [
            ("linear", "--readahead=auto", true),
            ("linear", "--stripesize=64k", false),
            ("striped", "--stripesize=64k", true),
            ("striped", "--regionsize=1m", false),
            ("raid1", "--regionsize=1m", true),
            ("raid1", "--stripesize=64k", false),
            ("raid6", "--maxrecoveryrate=10m", true),
            ("raid1", "--raidintegritymode=bitmap", false),
            ("raid1, raidIntegrity: true", "--raidintegritymode=bitmap", true),
        ] {
            assert_eq!(with(layout, option).is_ok(), allowed, "{layout} {option}");
        }
    }

    #[test]
    fn class_of_several_volume_groups_is_one_in_each() {
        let mut config = config(
            "{name: lvm, classes: [{name: one, volumeGroup: v, devices: [/dev/a]}, {name: both, wipe: zero, \
             volumeGroups: [{name: w, devices: [/dev/b]}, {name: v, devices: [/dev/a]}]}]}",
        )
        .expect("valid");
        config.classes = config.with_one_group_each();
        let of =
            |name| config.members(name).expect("known").into_iter().map(|class| class.volume_group.as_str()).collect::<Vec<_>>();
        assert_eq!((of(None), of(Some("both"))), (vec!["v"], vec!["w", "v"]));
        let member = config.class_in(Some("both"), "v").expect("known");
        assert_eq!((member.name.as_str(), member.devices[0].to_str()), ("both", Some("/dev/a")));
        assert_eq!(config.class_in(Some("both"), "gone").expect("known").volume_group, "w");
        assert_eq!((config.wipe("v", Some("both")), config.wipe("v", Some("one"))), (Wipe::Zero, Wipe::Discard));
    }

    #[test]
    fn data_of_a_class_that_is_gone_is_wiped_as_the_strictest_one_left_says() {
        let config = config(
            "{name: lvm, classes: [{name: fast, volumeGroup: vg0, devices: [/dev/sda], wipe: none}, \
             {name: plain, volumeGroup: vg0, devices: [/dev/sda]}, \
             {name: secret, volumeGroup: vg1, devices: [/dev/sdb], wipe: zero}, \
             {name: test, volumeGroup: vg1, devices: [/dev/sdb], wipe: none}, \
             {name: thin, volumeGroup: vg1, devices: [/dev/sdb], thinPool: p}, \
             {name: other, volumeGroup: vg2, devices: [/dev/sdc], thinPool: p}]}",
        )
        .expect("valid");
        for (group, class, wipe) in [
            ("vg0", None, Wipe::None),
            ("vg0", Some("fast"), Wipe::None),
            ("vg0", Some("plain"), Wipe::Discard),
            ("vg1", Some("secret"), Wipe::Zero),
            ("vg1", Some("test"), Wipe::None),
            ("vg0", Some("gone"), Wipe::Discard),
            ("vg1", Some("gone"), Wipe::Zero),
            ("vg1", None, Wipe::Zero),
            ("vg1", Some("thin"), Wipe::Zero),
            ("vg2", Some("other"), Wipe::Discard),
        ] {
            assert_eq!(config.wipe(group, class), wipe, "{group} {class:?}");
        }
    }

    #[test]
    fn parameters_that_cannot_be_are_refused_by_name() {
        let config = config(BOTH).expect("valid");
        for (pairs, field) in [
            (&[("deviceClass", "fast")][..], "deviceClass"),
            (&[("onDelete", "archive")], "onDelete"),
            (&[("onDelete", "scrub"), ("deviceClass", "thin")], "onDelete"),
            (&[("volumeGroup", "vg0"), ("logicalVolume", "a")], "static volumes"),
            (&[("device_class", "thin")], "deviceClass"),
            (&[("readIops", "100")], "ioLimits: true"),
        ] {
            let error = LvmParameters::of_class(&raw(pairs), &config).expect_err("refused").to_string();
            assert!(error.contains(field), "{pairs:?}: {error}");
        }
        let parsed = LvmParameters::of_class(&raw(&[("onDelete", "scrub")]), &config).expect("thick");
        let json = serde_json::to_value(&parsed).expect("JSON");
        assert_eq!(LvmParameters::from_json(&json).expect("our own"), parsed);
        assert_eq!(
            serde_json::to_string(&LvmParameters::default()).expect("JSON"),
            "{}",
            "each byte lies in the metadata of the volume group"
        );
    }

    #[test]
    fn static_volume_has_both_names() {
        let of = |pairs| raw(pairs).parse::<LvmParameters>().expect("known").static_volume().map(|both| both.is_some());
        assert!(of(&[("volumeGroup", "vg0"), ("logicalVolume", "data")]).expect("both"));
        assert!(!of(&[]).expect("none"));
        assert!(of(&[("volumeGroup", "vg0")]).is_err());
        assert!(of(&[("volumeGroup", "vg0"), ("logicalVolume", "../a")]).is_err());
        assert!(of(&[("volumeGroup", "vg0"), ("logicalVolume", "data"), ("readIops", "100")]).is_err(), "it has no record");
    }
}

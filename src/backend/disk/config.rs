//! What the operator configures, and what a StorageClass or the attributes of a static volume may say.

use std::path::{Path, PathBuf};

use glob::Pattern;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::backend::local::{self, Class, is_default};
use crate::os::disk::Disk;
use crate::volume::{BackendName, Bytes, Error, NodeId, OnDelete, RawParameters, Result};

/// Whole disks of a node, each of which is one volume.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct DiskConfig {
    /// The part of every volume id before the colon.
    pub name: BackendName,
    /// Which disks may be used, by kind; a StorageClass chooses one by `deviceClass`, the first is the default.
    pub classes: Vec<DiskClass>,
    /// How many volumes this node may have connected. Default: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volumes_per_node: Option<u64>,
    /// The node that has the disks. Default: the node that reads this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeId>,
}

/// Some of the disks. All that is said must be so of a disk.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct DiskClass {
    /// As a StorageClass names it.
    pub name: String,
    /// Patterns of their paths, one of which must match: /dev/disk/by-id/nvme-*. A path below /dev/disk is the same after each boot.
    pub devices: Vec<String>,
    /// Patterns of paths, none of which may match. Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exclude: Vec<String>,
    /// A pattern of the model, as `lsblk -o MODEL` shows it. Default: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// As `lsblk -o TRAN` shows it. Default: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transport: Option<Transport>,
    /// `true` means hard disks, `false` solid-state disks. Default: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rotational: Option<bool>,
    /// The smallest and the largest disk, as `10GiB` or a number of bytes. Default: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_size: Option<Bytes>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_size: Option<Bytes>,
    /// How a disk that was never the driver's is seen to be blank. Default `full`.
    #[serde(default)]
    pub proof: Proof,
}

/// How a disk comes to a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    Nvme,
    Sas,
    Sata,
    Usb,
    Virtio,
}

impl Transport {
    fn word(self) -> &'static str {
        match self {
            Transport::Nvme => "nvme",
            Transport::Sas => "sas",
            Transport::Sata => "sata",
            Transport::Usb => "usb",
            Transport::Virtio => "virtio",
        }
    }
}

/// What is read of a disk before it is used for the first time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Proof {
    /// All of it: hours, of a large hard disk.
    #[default]
    Full,
    /// The places of all known signatures, the first and the last 16 MiB, and 256 samples: the operator says that nothing of value, and no
    /// other tenant's data, is on the disks of this class.
    Samples,
}

impl DiskConfig {
    /// Checks what needs no I/O.
    ///
    /// # Errors
    /// `Invalid`, naming the field.
    pub fn validate(&self) -> Result<()> {
        local::check_classes(&self.name, &self.classes, self.volumes_per_node)?;
        self.classes.iter().try_for_each(DiskClass::validate)
    }

    /// The class that a StorageClass means.
    ///
    /// # Errors
    /// `Invalid` where there is none of this name.
    pub(super) fn class(&self, name: Option<&str>) -> Result<&DiskClass> {
        local::class(&self.name, &self.classes, name)
    }
}

impl Class for DiskClass {
    fn name(&self) -> &str {
        &self.name
    }
}

impl DiskClass {
    fn validate(&self) -> Result<()> {
        if self.devices.is_empty() {
            return Err(Error::invalid("classes.devices", format!("class {} needs at least one pattern", self.name)));
        }
        for (field, patterns) in [("classes.devices", &self.devices), ("classes.exclude", &self.exclude)] {
            for text in patterns {
                if !text.starts_with("/dev/") {
                    return Err(Error::invalid(field, format!("{text} is no path below /dev")));
                }
                pattern(field, text)?;
            }
        }
        self.model.iter().try_for_each(|text| pattern("classes.model", text).map(drop))?;
        match (self.min_size, self.max_size) {
            (Some(least), Some(most)) if least > most => {
                Err(Error::invalid("classes.minSize", format!("{least} is more than maxSize ({most})")))
            }
            _ => Ok(()),
        }
    }

    /// Whether a disk may be of this class, `paths` being all of its paths below /dev.
    pub(super) fn takes_path(&self, paths: &[PathBuf]) -> bool {
        let any = |patterns: &[String]| {
            patterns.iter().filter_map(|text| Pattern::new(text).ok()).any(|pattern| paths.iter().any(|path| is(&pattern, path)))
        };
        any(&self.devices) && !any(&self.exclude)
    }

    /// Whether it is.
    pub(super) fn takes(&self, disk: &Disk, paths: &[PathBuf]) -> bool {
        let model = disk.model.as_deref().unwrap_or_default();
        self.takes_path(paths)
            && self.model.as_ref().is_none_or(|text| Pattern::new(text).is_ok_and(|pattern| pattern.matches(model)))
            && self.transport.is_none_or(|transport| disk.transport == Some(transport.word()))
            && self.rotational.is_none_or(|rotational| disk.rotational == rotational)
            && self.min_size.is_none_or(|least| disk.size >= least.0)
            && self.max_size.is_none_or(|most| disk.size <= most.0)
    }
}

/// `*` does not stand for a slash.
fn is(pattern: &Pattern, path: &Path) -> bool {
    let options = glob::MatchOptions { require_literal_separator: true, ..glob::MatchOptions::default() };
    pattern.matches_path_with(path, options)
}

fn pattern(field: &'static str, text: &str) -> Result<Pattern> {
    Pattern::new(text).map_err(|error| Error::invalid(field, format!("{text:?} is no pattern: {error}")))
}

/// Parameters of a StorageClass, and attributes of a static volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct DiskParameters {
    /// The class of the backend from whose disks volumes are made. Default: the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_class: Option<String>,
    /// What DeleteVolume does with the data: `delete` (default: the disk is overwritten with zeroes, and may be used again), `scrub` (it is
    /// read again, too) or `retain` (it stays, and the disk is not used any more).
    #[serde(skip_serializing_if = "is_default")]
    pub on_delete: OnDelete,
    /// Of a static volume alone: the path of a disk or partition below /dev/disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<PathBuf>,
}

pub(super) fn check_on_delete(field: &'static str, on_delete: OnDelete) -> Result<()> {
    match on_delete {
        OnDelete::Archive => Err(Error::invalid(field, "there is no archive on a disk of its own; use delete, retain or scrub")),
        OnDelete::Delete | OnDelete::Retain | OnDelete::Scrub => Ok(()),
    }
}

impl DiskParameters {
    /// Of a StorageClass.
    ///
    /// # Errors
    /// `Invalid`, naming the parameter.
    pub(super) fn of_class(raw: &RawParameters, config: &DiskConfig) -> Result<DiskParameters> {
        let parameters: DiskParameters = raw.parse()?;
        if parameters.device.is_some() {
            return Err(Error::invalid(
                "parameters",
                "device is an attribute of static volumes; use deviceClass in a StorageClass",
            ));
        }
        config.class(parameters.device_class.as_deref())?;
        check_on_delete("parameters.onDelete", parameters.on_delete)?;
        Ok(parameters)
    }

    /// Of a static volume: its device.
    ///
    /// # Errors
    /// `Invalid` for a path that is another device's after the next boot, or leaves /dev/disk.
    pub(super) fn static_device(&self) -> Result<Option<&Path>> {
        let Some(path) = &self.device else { return Ok(None) };
        // Labels and UUIDs of file systems are what a tenant writes.
        let below = path.parent().and_then(Path::to_str);
        let named = path.file_name().is_some() && path.components().count() == 5;
        if named && matches!(below, Some("/dev/disk/by-id" | "/dev/disk/by-path" | "/dev/disk/by-partuuid")) {
            return Ok(Some(path));
        }
        let reason = format!(
            "{} is no path below /dev/disk/by-id, by-path or by-partuuid, such as /dev/disk/by-id/wwn-0x5000c500a",
            path.display()
        );
        Err(Error::invalid("device", reason))
    }

    /// From the backend's own part of a volume's parameters.
    pub(super) fn from_json(own: &serde_json::Value) -> Result<DiskParameters> {
        if own.is_null() {
            return Ok(DiskParameters::default());
        }
        DiskParameters::deserialize(own).map_err(|error| Error::invalid("parameters", error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(class: &str) -> Result<DiskConfig> {
        let yaml = format!("{{name: disk, classes: [{{name: a, {class}}}]}}");
        let config: DiskConfig = serde_yaml_ng::from_str(&yaml).map_err(|error| Error::invalid("config", error.to_string()))?;
        config.validate()?;
        Ok(config)
    }

    fn raw(pairs: &[(&str, &str)]) -> RawParameters {
        RawParameters::new(pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())))
    }

    #[test]
    fn disks_are_chosen_by_all_that_is_said() {
        let disk = Disk {
            name: "nvme0n1".to_owned(),
            size: 100 << 30,
            model: Some("FAST 1".to_owned()),
            transport: Some("nvme"),
            ..Disk::default()
        };
        let paths = ["/dev/nvme0n1", "/dev/disk/by-id/nvme-FAST_1_S1"].map(PathBuf::from);
        for (class, taken) in [
            ("devices: [/dev/nvme0n1]", true),
            ("devices: [/dev/sda, '/dev/disk/by-id/nvme-*']", true),
            ("devices: ['/dev/*']", true),
            ("devices: ['/dev/disk/by-path/*']", false),
            ("devices: ['/dev/*'], exclude: ['/dev/disk/by-id/*_S1']", false),
            ("devices: ['/dev/*'], exclude: ['/dev/disk/by-id/*_S2']", true),
            ("devices: ['/dev/disk*']", false),
            ("devices: ['/dev/*'], model: 'FAST*'", true),
            ("devices: ['/dev/*'], model: 'SLOW*'", false),
            ("devices: ['/dev/*'], transport: sata", false),
            ("devices: ['/dev/*'], rotational: false, transport: nvme", true),
            ("devices: ['/dev/*'], rotational: true", false),
            ("devices: ['/dev/*'], minSize: 100GiB, maxSize: 100GiB", true),
            ("devices: ['/dev/*'], minSize: 101GiB", false),
            ("devices: ['/dev/*'], maxSize: 99GiB", false),
        ] {
            assert_eq!(config(class).expect(class).class(None).expect("the first").takes(&disk, &paths), taken, "{class}");
        }
    }

    #[test]
    fn impossible_value_is_refused_by_name() {
        for (class, field) in [
            ("devices: []", "classes.devices"),
            ("devices: [sda]", "classes.devices"),
            ("devices: ['/dev/[a']", "classes.devices"),
            ("devices: [/dev/sda], exclude: [sdb]", "classes.exclude"),
            ("devices: [/dev/sda], model: '[a'", "classes.model"),
            ("devices: [/dev/sda], transport: ide", "ide"),
            ("devices: [/dev/sda], minSize: 2GiB, maxSize: 1GiB", "classes.minSize"),
            ("devices: [/dev/sda], proof: none", "none"),
            ("disks: [/dev/sda]", "disks"),
        ] {
            let error = config(class).expect_err(class).to_string();
            assert!(error.contains(field), "{class}: {error}");
        }
    }

    #[test]
    fn parameters_that_cannot_be_are_refused_by_name() {
        let config = config("devices: [/dev/sda]").expect("valid");
        for (pairs, field) in [
            (&[("deviceClass", "fast")][..], "deviceClass"),
            (&[("onDelete", "archive")], "onDelete"),
            (&[("device", "/dev/disk/by-id/a")], "static volumes"),
            (&[("size", "1")], "size"),
        ] {
            let error = DiskParameters::of_class(&raw(pairs), &config).expect_err("refused").to_string();
            assert!(error.contains(field), "{pairs:?}: {error}");
        }
        let parsed = DiskParameters::of_class(&raw(&[("onDelete", "scrub")]), &config).expect("known");
        assert_eq!(DiskParameters::from_json(&serde_json::to_value(&parsed).expect("JSON")).expect("our own"), parsed);
    }

    #[test]
    fn static_volume_has_a_path_that_lasts() {
        let of =
            |path| raw(&[("device", path)]).parse::<DiskParameters>().expect("known").static_device().map(|path| path.is_some());
        assert!(of("/dev/disk/by-id/wwn-0x5000c500a-part1").expect("it lasts"));
        for path in [
            "/dev/sda",
            "/dev/disk/by-label/data",
            "/dev/disk/by-uuid/1",
            "/dev/disk/by-id",
            "/dev/disk/by-id/../../sda",
            "/dev/disk/../sda/x",
            "disk",
            "",
        ] {
            assert!(of(path).is_err(), "{path}");
        }
    }
}

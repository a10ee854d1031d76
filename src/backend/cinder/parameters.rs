//! What a StorageClass, a VolumeAttributesClass and a VolumeSnapshotClass may say, as cinder-csi-plugin names it where that has it.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::volume::{Error, RawParameters, Result};

/// Of a StorageClass.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CinderParameters {
    /// The volume type, by its name. Default: the project's.
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// The zone of Cinder. Default: that of the volume's topology; without topology, Cinder's own default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub availability: Option<String>,
}

/// Of a VolumeAttributesClass.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Retype {
    /// The volume type, by its name.
    #[serde(rename = "type", default)]
    pub kind: Option<String>,
    /// `never` (default), or `on-demand`: the volume may be copied to another back end for its new type.
    #[serde(default)]
    pub migration_policy: Option<String>,
}

/// Of a VolumeSnapshotClass.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct SnapshotParameters {
    /// `snapshot` (default), or `backup` where the configuration allows it: saved by cinder-backup.
    #[serde(rename = "type", default)]
    pub kind: Option<String>,
    /// `true` and `false` are accepted: a volume in use is snapshotted either way.
    #[serde(default)]
    pub force_create: Option<String>,
    /// Of a backup: the zone of cinder-backup. Default: Cinder's choice.
    #[serde(default)]
    pub availability: Option<String>,
    /// Seconds. Accepted, and not needed: no call waits for a backup.
    #[serde(default)]
    pub backup_max_duration_seconds_per_gb: Option<String>,
}

/// How a snapshot is to be made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotSettings {
    pub is_backup: bool,
    pub availability: Option<String>,
}

/// How a volume is to be, or is: what is sent, and what Cinder describes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskSettings {
    pub kind: Option<String>,
    pub availability: Option<String>,
    pub may_migrate: bool,
}

impl DiskSettings {
    /// Of a volume that was described.
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

fn check_name(field: &str, name: Option<&String>) -> Result<()> {
    match name.filter(|name| name.trim().is_empty() || name.chars().count() > 255) {
        Some(name) => Err(refuse(field, format!("{name:?} has not 1 to 255 characters"))),
        None => Ok(()),
    }
}

impl CinderParameters {
    /// # Errors
    /// `Invalid`, naming the parameter.
    pub fn parse(raw: &RawParameters) -> Result<CinderParameters> {
        let parameters: CinderParameters = raw.clone().parse()?;
        check_name("type", parameters.kind.as_ref())?;
        check_name("availability", parameters.availability.as_ref())?;
        Ok(parameters)
    }

    /// As they were kept with the volume.
    ///
    /// # Errors
    /// `Invalid` where they were not made by `parse`.
    pub fn read(kept: &Value) -> Result<CinderParameters> {
        Ok(match kept {
            Value::Null => CinderParameters::default(),
            kept => serde_json::from_value(kept.clone()).map_err(|error| Error::invalid("parameters", error.to_string()))?,
        })
    }

    /// How a volume is to be made, with these mutable parameters over those of the class.
    pub fn settings(self, over: Retype) -> DiskSettings {
        DiskSettings { kind: over.kind.or(self.kind), availability: self.availability, may_migrate: false }
    }
}

impl Retype {
    /// # Errors
    /// `Invalid`, naming the parameter.
    pub fn parse(raw: &RawParameters) -> Result<Retype> {
        let retype: Retype = raw.clone().parse()?;
        check_name("type", retype.kind.as_ref())?;
        match retype.migration_policy.as_deref() {
            None | Some("never" | "on-demand") => Ok(retype),
            Some(other) => Err(refuse("migration-policy", format!("{other:?} is neither never nor on-demand"))),
        }
    }

    /// What a volume is to have instead of what it has, if it is something else.
    pub fn resolve(self, now: &DiskSettings) -> Option<DiskSettings> {
        let may_migrate = self.migration_policy.as_deref() == Some("on-demand");
        let kind = self.kind.filter(|kind| Some(kind) != now.kind.as_ref())?;
        Some(DiskSettings { kind: Some(kind), may_migrate, ..now.clone() })
    }
}

impl SnapshotParameters {
    /// `backups`: whether the configuration allows them.
    ///
    /// # Errors
    /// `Invalid`, naming the parameter.
    pub fn parse(raw: &RawParameters, backups: bool) -> Result<SnapshotSettings> {
        let parameters: SnapshotParameters = raw.clone().parse()?;
        let is_backup = match parameters.kind.as_deref() {
            None | Some("snapshot") => false,
            Some("backup") if backups => true,
            Some("backup") => {
                return Err(refuse("type", "backup needs `backups: true` in the configuration of this backend"));
            }
            Some(other) => return Err(refuse("type", format!("{other:?} is neither snapshot nor backup"))),
        };
        if let Some(other) = parameters.force_create.filter(|text| !["true", "false"].contains(&text.as_str())) {
            return Err(refuse("force-create", format!("{other:?} is neither true nor false")));
        }
        check_name("availability", parameters.availability.as_ref())?;
        if let Some(other) = parameters.backup_max_duration_seconds_per_gb.filter(|text| text.parse::<u64>().is_err()) {
            return Err(refuse("backup-max-duration-seconds-per-gb", format!("{other:?} is no number of seconds")));
        }
        match parameters.availability {
            Some(_) if !is_backup => Err(refuse("availability", "only a backup has a zone of its own; write type: backup")),
            availability => Ok(SnapshotSettings { is_backup, availability }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(pairs: &[(&str, &str)]) -> RawParameters {
        RawParameters::new(pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())))
    }

    #[test]
    fn type_of_the_attributes_class_is_over_that_of_the_storage_class() {
        let parameters = CinderParameters::parse(&raw(&[("type", "ssd"), ("availability", "az1")])).expect("fine");
        let kept = serde_json::to_value(&parameters).expect("JSON");
        assert_eq!(CinderParameters::read(&kept).expect("fine"), parameters);
        let now = parameters.clone().settings(Retype::default());
        assert_eq!((now.kind.as_deref(), now.availability.as_deref()), (Some("ssd"), Some("az1")));
        let fast = Retype::parse(&raw(&[("type", "fast")])).expect("fine");
        assert_eq!(parameters.settings(fast.clone()).kind.as_deref(), Some("fast"));
        assert_eq!(fast.resolve(&now).expect("another").kind.as_deref(), Some("fast"));
        assert_eq!(Retype::parse(&raw(&[("type", "ssd"), ("migration-policy", "on-demand")])).expect("fine").resolve(&now), None);
        assert_eq!(Retype::default().resolve(&now), None);
    }

    #[test]
    fn impossible_value_is_named() {
        for (pairs, words) in
            [(&[("type", "")][..], "type"), (&[("availability", " ")], "availability"), (&[("typ", "a")], "typ")]
        {
            let error = CinderParameters::parse(&raw(pairs)).expect_err(words).to_string();
            assert!(error.contains(words), "{error}");
        }
        Retype::parse(&raw(&[("migration-policy", "always")])).expect_err("no policy");
        Retype::parse(&raw(&[("availability", "az1")])).expect_err("it cannot change");
        for (pairs, backups, words) in [
            (&[("type", "backup")][..], false, "backups: true"),
            (&[("type", "image")], true, "neither snapshot nor backup"),
            (&[("force-create", "yes")], true, "force-create"),
            (&[("availability", "az1")], true, "type: backup"),
            (&[("type", "backup"), ("availability", "")], true, "availability"),
            (&[("backup-max-duration-seconds-per-gb", "long")], true, "backup-max-duration-seconds-per-gb"),
        ] {
            let error = SnapshotParameters::parse(&raw(pairs), backups).expect_err(words).to_string();
            assert!(error.contains(words), "{error}");
        }
        let plain = SnapshotParameters::parse(&raw(&[("type", "snapshot"), ("force-create", "true")]), false).expect("fine");
        assert_eq!(plain, SnapshotSettings::default());
        // As the VolumeSnapshotClass of cinder-csi-plugin has it.
        let backup =
            [("type", "backup"), ("force-create", "true"), ("backup-max-duration-seconds-per-gb", "20"), ("availability", "az1")];
        let backup = SnapshotParameters::parse(&raw(&backup), true).expect("fine");
        assert_eq!((backup.is_backup, backup.availability.as_deref()), (true, Some("az1")));
    }
}

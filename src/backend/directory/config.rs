//! What the operator configures, and what a StorageClass or the attributes of a static volume may say.

use std::path::{Component, Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::backend::directories::{CommonParameters, Consistency, Medium, check_on_delete, subdir};
use crate::backend::local::is_default;
use crate::volume::{BackendName, Bytes, Error, NodeId, OnDelete, RawParameters, Result};

/// One directory of a node, in which volumes are directories.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct DirectoryConfig {
    /// The part of every volume id before the colon.
    pub name: BackendName,
    /// The base directory, absolute: on a local file system, and used by nothing else. Its last component is made at the first start.
    pub path: PathBuf,
    /// How much may be provisioned. Default: what statfs says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<Bytes>,
    /// Whether capacities are enforced by project quotas (xfs or ext4, mounted with `prjquota`): `auto` where the file system limits
    /// projects, `required` refuses to make volumes where it does not, `none` never. On ext4 a limit does not stop root.
    #[serde(default)]
    pub quota: QuotaMode,
    /// The UUID of the file system on which the base directory must lie, as `findmnt --output UUID` prints it. Without it the driver
    /// records which one it saw first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filesystem: Option<String>,
    /// Directories, absolute, below which static volumes may lie (attribute `path`). Without any, there are no static volumes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub static_paths: Vec<PathBuf>,
    /// The node on whose disk the base directory lies. Default: the node that reads this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeId>,
}

/// Whether capacities are enforced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum QuotaMode {
    /// Where the file system limits projects.
    #[default]
    Auto,
    /// No volume is made where it does not.
    Required,
    /// Never.
    None,
}

impl DirectoryConfig {
    /// Checks what needs no I/O.
    ///
    /// # Errors
    /// `Invalid`, naming the field.
    pub fn validate(&self) -> Result<()> {
        check_path("path", &self.path)?;
        self.static_paths.iter().try_for_each(|path| check_path("staticPaths", path))?;
        if self.capacity.is_some_and(|capacity| capacity < Bytes::MIB) {
            return Err(Error::invalid("capacity", format!("backend {} needs at least {}", self.name, Bytes::MIB)));
        }
        let uuid = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
        match &self.filesystem {
            Some(text) if !uuid(text) => Err(Error::invalid("filesystem", format!("{text:?} is no UUID of a file system"))),
            _ => Ok(()),
        }
    }

    /// The configured directory that a static volume's path lies below, and the rest of the path.
    ///
    /// # Errors
    /// `Invalid` where it lies below none.
    pub(super) fn static_directory(&self, path: &str) -> Result<(&Path, PathBuf)> {
        let refuse = |reason: String| Error::invalid("path", format!("{path:?} {reason}"));
        for top in &self.static_paths {
            let Some(rest) = top.to_str().and_then(|top| path.strip_prefix(top.trim_end_matches('/'))?.strip_prefix('/')) else {
                continue;
            };
            if rest.is_empty() {
                break;
            }
            let rest = subdir::directory(rest).map_err(|error| refuse(error.to_string()))?;
            return Ok((top, rest));
        }
        let known: Vec<String> = self.static_paths.iter().map(|path| path.display().to_string()).collect();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        Err(refuse(format!("lies below no directory of staticPaths of backend {} (there are: {known})", self.name)))
    }
}

fn check_path(field: &'static str, path: &Path) -> Result<()> {
    let plain = path.is_absolute()
        && path.components().count() > 1
        && path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
    if plain && path.to_str().is_some_and(|text| !text.chars().any(char::is_control)) {
        return Ok(());
    }
    Err(Error::invalid(field, format!("{} must be absolute, without . and .., and not /", path.display())))
}

/// Parameters of a StorageClass, and attributes of a static volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct DirectoryParameters {
    /// Of a static volume alone: its directory, absolute, below one of the backend's `staticPaths`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// The volume's directory below the base, its template filled in. Default: the part of its id behind the colon.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sub_dir: Option<String>,
    /// What DeleteVolume does with the data: `delete` (default; an instant, the files are removed in the background), `retain`
    /// (it stays where it is) or `archive` (moved to the base's `.longshore/archive/`).
    pub on_delete: OnDelete,
    /// The mode of the volume's directory, octal. Default, and `0`: `0755`, for pods that set fsGroup or run as the owner; of a clone or
    /// restored snapshot, its source's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mount_permissions: Option<String>,
    /// The owner of the volume's directory, a number. Default: root; of a clone or restored snapshot, its source's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    /// Its group, as `uid`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gid: Option<String>,
    /// What a clone of a volume that is written meanwhile is: refused (`volume`, default) or consistent file by file (`file`).
    #[serde(skip_serializing_if = "Consistency::is_volume")]
    pub consistency: Consistency,
    /// Of an ephemeral inline volume: `disk` (default), or `memory`: a tmpfs of its size, which counts for the memory of the pods that write.
    #[serde(skip_serializing_if = "is_default")]
    pub medium: Medium,
}

impl DirectoryParameters {
    /// Of a StorageClass: its template filled in, all values checked.
    ///
    /// # Errors
    /// `Invalid`, naming the parameter.
    pub fn of_class(raw: &RawParameters) -> Result<DirectoryParameters> {
        let mut parameters: DirectoryParameters = raw.parse()?;
        if parameters.path.is_some() {
            return Err(Error::invalid("parameters.path", "is an attribute of static volumes; use subDir in a StorageClass"));
        }
        check_on_delete("parameters.onDelete", parameters.on_delete)?;
        if let Some(template) = &parameters.sub_dir {
            parameters.sub_dir = Some(subdir::fill(template, raw)?);
        }
        parameters.common().ownership()?;
        Ok(parameters)
    }

    /// From the `backend` member of a volume's parameters; `null` are the defaults.
    pub(super) fn from_json(value: &serde_json::Value) -> Result<DirectoryParameters> {
        if value.is_null() {
            return Ok(DirectoryParameters::default());
        }
        DirectoryParameters::deserialize(value).map_err(|error| Error::invalid("parameters", error.to_string()))
    }

    pub(super) fn common(&self) -> CommonParameters {
        CommonParameters {
            sub_dir: self.sub_dir.clone(),
            on_delete: self.on_delete,
            mount_permissions: self.mount_permissions.clone(),
            uid: self.uid.clone(),
            gid: self.gid.clone(),
            consistency: self.consistency,
            medium: self.medium,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(pairs: &[(&str, &str)]) -> RawParameters {
        RawParameters::new(pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())))
    }

    fn config(yaml: &str) -> Result<DirectoryConfig> {
        let config: DirectoryConfig =
            serde_yaml_ng::from_str(yaml).map_err(|error| Error::invalid("config", error.to_string()))?;
        config.validate()?;
        Ok(config)
    }

    #[test]
    fn impossible_value_is_refused_by_name() {
        for (yaml, field) in [
            ("name: d\npath: srv", "path"),
            ("name: d\npath: /", "path"),
            ("name: d\npath: /srv/../etc", "path"),
            ("name: d\npath: /srv\nstaticPaths: [/]", "staticPaths"),
            ("name: d\npath: /srv\ncapacity: 1KiB", "capacity"),
            ("name: d\npath: /srv\nfilesystem: /dev/sda1", "filesystem"),
        ] {
            match config(yaml) {
                Err(Error::Invalid { field: named, .. }) => assert_eq!(named, field, "{yaml}"),
                other => panic!("{yaml}: {other:?}"),
            }
        }
        let whole =
            "name: d\npath: /srv/d\nquota: required\nfilesystem: 1234-ABCD\nstaticPaths: [/mnt]\ncapacity: 1GiB\nnode: n1";
        assert_eq!(config(whole).expect("valid").quota, QuotaMode::Required);
        for (key, value) in [
            ("path", "/mnt/a"),
            ("subDir", "../x"),
            ("onDelete", "scrub"),
            ("mountPermissions", "rwx"),
            ("uid", "root"),
            ("gid", "4294967295"),
            ("onDelet", "delete"),
        ] {
            let error = DirectoryParameters::of_class(&raw(&[(key, value)])).expect_err(key).to_string();
            assert!(error.contains(key), "{key}: {error}");
        }
    }

    #[test]
    fn variables_of_the_template_are_filled_in() {
        let parameters = DirectoryParameters::of_class(&raw(&[
            ("subDir", "${pvc.metadata.namespace}/${pvc.metadata.name}"),
            ("mountPermissions", "0750"),
            ("csi.storage.k8s.io/pvc/name", "data"),
            ("csi.storage.k8s.io/pvc/namespace", "shop"),
        ]))
        .expect("understood");
        assert_eq!(parameters.sub_dir.as_deref(), Some("shop/data"));
        assert_eq!(parameters.common().ownership().expect("valid").mode, Some(0o750));
    }

    #[test]
    fn static_paths_lie_strictly_below_what_is_allowed() {
        let config = config("name: d\npath: /srv/d\nstaticPaths: [/mnt/disks, /opt/local-path-provisioner/]").expect("valid");
        let (top, rest) = config.static_directory("/opt/local-path-provisioner/pvc-1_shop_data").expect("allowed");
        assert_eq!((top, rest.as_path()), (Path::new("/opt/local-path-provisioner/"), Path::new("pvc-1_shop_data")));
        assert_eq!(config.static_directory("/mnt/disks/a/b").expect("allowed").1, Path::new("a/b"));
        for bad in [
            "",
            "/",
            "/etc",
            "/mnt/disks",
            "/mnt/disks/",
            "/mnt/disksx/a",
            "/mnt/disks/../etc",
            "/mnt/disks/a/..",
            "/mnt/disks//a",
            "mnt/disks/a",
            "/mnt/disks/.longshore/trash",
            "/mnt/disks/a\n",
        ] {
            assert!(matches!(config.static_directory(bad), Err(Error::Invalid { field: "path", .. })), "{bad:?}");
        }
    }
}

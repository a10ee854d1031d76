//! The base directory, as the controller has it.
//!
//! It is recorded twice which base it is: by a marker in it, and in the driver's state directory with the UUID of its file system. Where
//! they do not agree nothing is made and nothing is served: on a node whose disk is not mounted, the directory below the mount point would
//! take the data of all pods.

use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use serde_json::Value;

use crate::backend::directories::{Location, Silence, UNKNOWN_FILE_SYSTEM};
use crate::os::dir::OpenDir;
use crate::os::mountinfo::Mount;
use crate::os::mounts::Mounts;
use crate::os::quota::{self, Projects};
use crate::os::step::step;
use crate::os::{self, fs};
use crate::volume::{Bytes, Error, Result};

use super::config::{DirectoryConfig, DirectoryParameters, QuotaMode};

/// As mkfs makes the top of a file system: pods of another user set fsGroup.
pub(super) const DEFAULT_MODE: u32 = 0o755;
/// Of the base directory, where we make it: pods have their directories by bind mounts, and no other user of the node needs the way.
const BASE_MODE: u32 = 0o700;

/// A configured base directory.
#[derive(Debug)]
pub(super) struct BaseLocation {
    config: DirectoryConfig,
    /// It was logged whether capacities are enforced.
    reported: OnceLock<()>,
}

impl BaseLocation {
    pub fn new(config: DirectoryConfig) -> BaseLocation {
        BaseLocation { config, reported: OnceLock::new() }
    }

    /// Says once who is stopped at a volume's capacity.
    fn report_enforcement(&self, projects: Projects, fstype: &str) {
        if self.reported.set(()).is_err() {
            return;
        }
        let base = self.config.path.display();
        match (self.config.quota, projects, fstype) {
            (QuotaMode::None, ..) => tracing::info!(%base, "capacities are not enforced: quota is none"),
            (_, Projects::Limited, "xfs") => tracing::info!(%base, "capacities are enforced by project quotas"),
            (_, Projects::Limited, _) => {
                tracing::info!(%base, fstype, "capacities are enforced by project quotas, but not for processes of root");
            }
            (_, Projects::Counted | Projects::Off, _) => tracing::warn!(
                %base,
                fstype,
                "capacities are not enforced: mount the file system with prjquota (xfs; ext4 made with -O quota,project)"
            ),
        }
    }
}

impl Location for BaseLocation {
    fn noun(&self) -> &'static str {
        "base directory"
    }

    fn called(&self) -> String {
        self.config.path.display().to_string()
    }

    fn capacity(&self) -> Option<Bytes> {
        self.config.capacity
    }

    fn reach(&self) -> os::Result<OpenDir> {
        OpenDir::open(&self.config.path)
    }

    fn make_top(&self) -> os::Result<bool> {
        let path = &self.config.path;
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Ok(false) };
        step("make directory", &path.display(), || {
            let parent = OpenDir::open(parent)?;
            parent.ensure_directory(name, BASE_MODE)?;
            parent.sync()?;
            Ok(true)
        })
    }

    fn check_answers(&self, root: &OpenDir) -> Result<(), Silence> {
        let dead = |error: String| Silence::Dead(error);
        let now =
            std::fs::metadata(&self.config.path).map_err(|error| dead(format!("{}: {error}", self.config.path.display())))?;
        let open = root.stat_self().map_err(|error| dead(error.to_string()))?;
        if (now.dev(), now.ino()) == (open.st_dev, open.st_ino) {
            return Ok(());
        }
        Err(Silence::Stale(format!(
            "{} is another directory by now: something was mounted or unmounted there",
            root.shown().display()
        )))
    }

    fn remembers_failure(&self) -> bool {
        false
    }

    fn file_system(&self, root: &OpenDir) -> Result<Option<String>, String> {
        let failed = |error: os::Error| error.to_string();
        let mount = Mounts::now().and_then(|mounts| mounts.holder_of(root.as_fd())).map_err(failed)?;
        let uuid = fs::uuid_of(root.as_fd(), &mount).map_err(failed)?.unwrap_or_else(|| UNKNOWN_FILE_SYSTEM.to_owned());
        if let Some(wanted) = self.config.filesystem.as_ref().filter(|wanted| !wanted.eq_ignore_ascii_case(&uuid)) {
            return Err(format!(
                "it lies on file system {uuid} ({}), not on {wanted} as \"filesystem\" in the configuration says; mount that one there",
                mount.source.display()
            ));
        }
        if let Some((project, true)) = quota::project(root).map_err(failed)? {
            return Err(format!(
                "all that is made in it would have the project {project}, so that no volume could have a quota of its own; run \"chattr \
                 -P {}\"",
                self.config.path.display()
            ));
        }
        self.report_enforcement(quota::projects(root).map_err(failed)?, &mount.fstype);
        Ok(Some(uuid))
    }

    fn records(&self) -> &'static str {
        "directories"
    }

    fn missing(&self) -> &'static str {
        "most likely its disk is not mounted; mount it"
    }

    fn unreachable(&self) -> &'static str {
        "BaseDirectoryUnreachable"
    }

    fn denied(&self) -> &'static str {
        "run the driver as root, and mount the base directory writable into its container"
    }

    fn no_lock(&self) -> &'static str {
        "use a local file system"
    }

    fn quotas(&self, root: &OpenDir) -> Result<Option<OpenDir>, String> {
        if self.config.quota == QuotaMode::None {
            return Ok(None);
        }
        let failed = |error: os::Error| error.to_string();
        match (quota::projects(root).map_err(failed)?, self.config.quota) {
            (Projects::Limited, _) => root.try_clone().map(Some).map_err(failed),
            (_, QuotaMode::Required) => Err(format!(
                "the file system of {} does not limit projects; mount it with prjquota (xfs: not by remount; ext4: made with -O \
                 quota,project), or set \"quota: auto\"",
                self.config.path.display()
            )),
            _ => Ok(None),
        }
    }

    fn mounted_at(&self, root: &OpenDir, directory: &Path) -> Result<Option<PathBuf>> {
        let mounts = Mounts::now()?;
        let open = match root.directory(directory) {
            Ok(Some(open)) => open,
            Ok(None) => return Ok(None),
            // What lies over a link is not mounted by us; what an administrator has mounted on it hides what is to be deleted.
            Err(os::Error::Path { .. }) => {
                let place = os::path::of_open(root.as_fd(), root.shown())?.join(directory);
                return Ok((!mounts.at(&place)?.is_empty()).then_some(place));
            }
            Err(error) => return Err(error.into()),
        };
        let (holder, place) = mounts.place_of(open.as_fd())?;
        let bound = |mount: &Mount| mount.device == holder.device && mount.root == place;
        Ok(mounts.find(|fixed| fixed.device == holder.device, bound)?.map(|mount| mount.mount_point))
    }

    fn default_mode(&self) -> u32 {
        DEFAULT_MODE
    }

    fn no_freeze(&self) -> &'static str {
        "its file system cannot be frozen, as the copy lies on the same one"
    }

    fn allows(&self, parameters: &Value) -> Result<bool> {
        DirectoryParameters::from_json(parameters).map(|parameters| parameters.path.is_none())
    }

    fn with_chosen(&self, parameters: &Value) -> Result<Value> {
        let own = DirectoryParameters::from_json(parameters)?;
        serde_json::to_value(own).map_err(|error| Error::invalid("parameters", error.to_string()))
    }

    fn without_chosen(&self, parameters: &Value) -> Value {
        parameters.clone()
    }

    fn name_another(&self) -> &'static str {
        "name another backend in the StorageClass"
    }
}

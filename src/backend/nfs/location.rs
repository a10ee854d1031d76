//! One share, as the controller has it: mounted where nobody sees it.
//!
//! The lock on it is flock(2): on NFS 4 the server keeps it, on NFS 3 lockd does; with `nolock` it only holds on one machine. A server gives
//! it to another client once our lease has expired (RFC 8881, section 8.4.3), and does not tell us: so `owner` is read before each
//! operation, and who finds another name there stops.

use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use crate::backend::directories::subdir::OURS;
use crate::backend::directories::{Location, Silence};
use crate::os::dir::OpenDir;
use crate::os::single_flight::SingleFlight;
use crate::os::{self, nfs, private_mount};
use crate::volume::{Bytes, Error, Result};

use super::config::{NfsParameters, ShareConfig, requested_parameters};

/// A server that has not let us mount by then is down.
const MOUNT_DEADLINE: Duration = Duration::from_secs(20);
/// How long a server has to say that it lives.
const PATIENCE: Duration = Duration::from_secs(5);
/// Nothing may hang for ever; nothing in a share is to be run or opened as a device by us.
const DEFAULT_OPTIONS: [&str; 3] = ["soft", "timeo=100", "retrans=3"];
const OUR_OPTIONS: [&str; 4] = ["retry=0", "nosuid", "nodev", "noexec"];
/// csi-driver-nfs's.
const DEFAULT_MODE: u32 = 0o777;

/// A configured share.
#[derive(Debug)]
pub(super) struct ShareLocation {
    config: ShareConfig,
    access: Access,
    checks: SingleFlight<Silence>,
}

/// How its top directory is reached.
#[derive(Debug)]
pub(super) enum Access {
    /// By a mount of our own, made on this directory in a namespace of its own.
    Mount { at: PathBuf },
    /// A directory of this machine, for tests.
    #[cfg_attr(not(test), allow(dead_code, reason = "only tests have shares without a server"))]
    Directory(PathBuf),
}

impl ShareLocation {
    pub fn new(config: ShareConfig, access: Access) -> ShareLocation {
        ShareLocation { config, access, checks: SingleFlight::default() }
    }

    /// Whether its options say that it is not to be found at the usual port.
    fn is_elsewhere(&self) -> bool {
        self.config.mount_options.iter().any(|option| ["port=", "proto=", "udp"].iter().any(|other| option.starts_with(other)))
    }

    fn options(&self) -> Vec<String> {
        let configured = &self.config.mount_options;
        let names: Vec<&str> = configured.iter().map(|option| option.split('=').next().unwrap_or(option)).collect();
        let given = |option: &str| match option.split('=').next().unwrap_or(option) {
            "soft" => ["soft", "hard", "softerr"].iter().any(|name| names.contains(name)),
            name => names.contains(&name),
        };
        let ours = DEFAULT_OPTIONS.iter().filter(|option| !given(option)).chain(&OUR_OPTIONS).map(|option| (*option).to_owned());
        configured.iter().cloned().chain(ours).collect()
    }
}

impl Location for ShareLocation {
    fn noun(&self) -> &'static str {
        "share"
    }

    fn called(&self) -> String {
        self.config.called()
    }

    fn capacity(&self) -> Option<Bytes> {
        self.config.capacity
    }

    fn reach(&self) -> os::Result<OpenDir> {
        match &self.access {
            Access::Directory(path) => OpenDir::open(path),
            Access::Mount { at } => {
                let source = self.config.called();
                // Seconds, where mount.nfs would try for longer.
                if !self.is_elsewhere() && !nfs::connects(&self.config.server, None) {
                    let unanswered = io::Error::from(io::ErrorKind::HostUnreachable);
                    return Err(os::Error::io("connect to", &source, unanswered));
                }
                let mounted = private_mount::mount(&source, &self.options(), at, MOUNT_DEADLINE)?;
                Ok(OpenDir::new(mounted, source))
            }
        }
    }

    fn check_answers(&self, root: &OpenDir) -> Result<(), Silence> {
        match &self.access {
            Access::Mount { .. } => {
                self.checks.check(&self.config.server, || nfs::answers_open(root.as_fd(), PATIENCE).map_err(Silence::from))
            }
            Access::Directory(path) if !path.is_dir() => Err(Silence::Dead(format!("{} is away", path.display()))),
            Access::Directory(_) => Ok(()),
        }
    }

    fn remembers_failure(&self) -> bool {
        matches!(self.access, Access::Mount { .. })
    }

    fn file_system(&self, _root: &OpenDir) -> Result<Option<String>, String> {
        Ok(None)
    }

    fn records(&self) -> &'static str {
        "nfs-shares"
    }

    fn missing(&self) -> &'static str {
        "the server has another file system in this place; mount the right one there"
    }

    fn unreachable(&self) -> &'static str {
        "ShareUnreachable"
    }

    /// We are root; who denies us something is the server.
    fn denied(&self) -> &'static str {
        "the server does not let root of this machine do that: export the share to it with no_root_squash"
    }

    fn no_lock(&self) -> &'static str {
        "use nfsvers=4.2, or nolock where no other machine has a controller for it"
    }

    fn quotas(&self, root: &OpenDir) -> Result<Option<OpenDir>, String> {
        let Some(path) = &self.config.quota else { return Ok(None) };
        let open = |path: &Path| -> os::Result<(OpenDir, bool)> {
            let directory = OpenDir::open(path)?;
            let inode = |directory: &OpenDir| Ok(directory.existing(OURS)?.stat_self()?.st_ino);
            let same = inode(&directory)? == inode(root)?;
            Ok((directory, same))
        };
        match open(path) {
            Ok((directory, true)) => Ok(Some(directory)),
            Ok(_) => Err(format!("{} is not the directory that the server exports as this share", path.display())),
            Err(error) => Err(error.to_string()),
        }
    }

    /// What clients have mounted is not known.
    fn mounted_at(&self, _root: &OpenDir, _directory: &Path) -> Result<Option<PathBuf>> {
        Ok(None)
    }

    fn default_mode(&self) -> u32 {
        DEFAULT_MODE
    }

    fn no_freeze(&self) -> &'static str {
        "the file system of many clients cannot be frozen"
    }

    fn allows(&self, parameters: &Value) -> Result<bool> {
        Ok(own(parameters)?.allows(&self.config))
    }

    fn with_chosen(&self, parameters: &Value) -> Result<Value> {
        let chosen = own(parameters)?.on_share(&self.config);
        serde_json::to_value(chosen).map_err(|error| Error::invalid("parameters", error.to_string()))
    }

    fn without_chosen(&self, parameters: &Value) -> Value {
        requested_parameters(parameters)
    }

    fn name_another(&self) -> &'static str {
        "name another share in the StorageClass (parameters server and share)"
    }
}

fn own(parameters: &Value) -> Result<NfsParameters> {
    match parameters {
        Value::Null => NfsParameters::from_json(&serde_json::json!({})),
        given => NfsParameters::from_json(given),
    }
}

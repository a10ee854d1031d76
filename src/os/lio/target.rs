//! Targets of iSCSI: where they listen, and who is let in.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use rustix::fs::FileType;

use super::super::{Error, Result};

use super::fileio::disk_directory;
use super::{Lio, refused};

/// What a scrambled password is made of; longer than any that CHAP wants (RFC 3720, 8.2.1).
const SCRAMBLED: usize = 16;

/// An initiator that is let in.
#[derive(Debug)]
pub struct Initiator<'a> {
    pub name: &'a str,
    pub write_protect: bool,
    /// Where the target asks for none: by its name alone.
    pub chap: Option<Credentials<'a>>,
}

/// Of an initiator, and those by which the target proves itself to it.
#[derive(Clone, Copy)]
pub struct Credentials<'a> {
    pub user: &'a str,
    pub password: &'a str,
    pub mutual_user: &'a str,
    pub mutual_password: &'a str,
}

impl std::fmt::Debug for Credentials<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Credentials(hidden)")
    }
}

impl Lio {
    /// Makes a target with this disk as LUN 0, listening nowhere yet; lets nobody in.
    pub fn make_target(&self, target: &str, hba: u32, disk: &str, chap: bool) -> Result<()> {
        self.make_directory(Path::new("iscsi")).map_err(|error| refused(error, &self.path))?;
        self.make_directory(&Path::new("iscsi").join(target))?;
        let group = group(target);
        self.make_directory(&group)?;
        // The credentials in it are for root alone: the kernel's default is that everybody may read.
        self.close_to_others(&group)?;
        for (attribute, value) in [
            ("authentication", if chap { "1" } else { "0" }),
            ("generate_node_acls", "0"),
            ("demo_mode_discovery", "0"),
            ("demo_mode_write_protect", "1"),
            // A new initiator may not write until that is said.
            ("prod_mode_write_protect", "1"),
        ] {
            self.set(&group.join("attrib").join(attribute), value)?;
        }
        self.make_directory(&group.join("lun/lun_0"))?;
        self.link(&disk_directory(hba, disk), &group.join("lun/lun_0/disk"))
    }

    /// Listens on exactly these addresses, whether this machine has them now or not.
    pub fn listen(&self, target: &str, portals: &[SocketAddr]) -> Result<()> {
        let directory = group(target).join("np");
        let wanted: Vec<String> = portals.iter().map(SocketAddr::to_string).collect();
        for other in self.directories(&directory)?.iter().filter(|bound| !wanted.contains(bound)) {
            self.remove_directory(&directory.join(other))?;
        }
        wanted.iter().try_for_each(|portal| self.make_directory(&directory.join(portal)))?;
        self.set(&group(target).join("enable"), "1")
    }

    /// Where the target listens; none where it is not enabled.
    pub fn portals(&self, target: &str) -> Result<Vec<SocketAddr>> {
        if !self.is_on(&group(target).join("enable"))? {
            return Ok(Vec::new());
        }
        Ok(self.directories(&group(target).join("np"))?.iter().filter_map(|portal| portal.parse().ok()).collect())
    }

    /// The targets whose names begin so.
    pub fn targets(&self, prefix: &str) -> Result<Vec<String>> {
        let mut names = self.directories(Path::new("iscsi"))?;
        names.retain(|name| name.starts_with(prefix));
        Ok(names)
    }

    /// Lets an initiator in.
    pub fn admit(&self, target: &str, initiator: &Initiator<'_>) -> Result<()> {
        let acl = acl(target, initiator.name);
        self.make_directory(&acl)?;
        self.close_to_others(&acl)?;
        self.make_directory(&acl.join("lun_0"))?;
        self.link(&group(target).join("lun/lun_0"), &acl.join("lun_0/lun"))?;
        self.set(&acl.join("lun_0/write_protect"), if initiator.write_protect { "1" } else { "0" })?;
        // Last: without them nobody can log in, and anyone who does sees the LUN as he should.
        let Some(chap) = initiator.chap else { return Ok(()) };
        let values = [
            ("userid_mutual", chap.mutual_user),
            ("password_mutual", chap.mutual_password),
            ("userid", chap.user),
            ("password", chap.password),
        ];
        values.iter().try_for_each(|(attribute, value)| self.write(&acl.join("auth").join(attribute), value))
    }

    /// Whether an initiator is let in as configured, down to its view of the LUN.
    pub fn admits(&self, target: &str, name: &str, write_protect: bool) -> Result<bool> {
        let acl = acl(target, name);
        let linked = self.kind(&acl.join("lun_0/lun"))? == Some(FileType::Symlink);
        Ok(linked && self.is_on(&acl.join("lun_0/write_protect"))? == write_protect)
    }

    /// Who is let in.
    pub fn initiators(&self, target: &str) -> Result<Vec<String>> {
        self.directories(&group(target).join("acls"))
    }

    /// Shuts an initiator out: on return its sessions are ended, all that they had begun is done or dropped, and it cannot come
    /// back. Whether it had been let in.
    ///
    /// First its credentials are made invalid and its sessions ended, and only then is the LUN taken away: without a LUN, a session is
    /// shown an empty disk of the kernel's in its place, and reads zeroes from it.
    pub fn expel(&self, target: &str, name: &str) -> Result<bool> {
        let acl = acl(target, name);
        if self.kind(&acl)?.is_none() {
            return Ok(false);
        }
        self.write(&acl.join("auth/password"), &crate::os::random::hexadecimal(SCRAMBLED)?)?;
        // To change the depth of the queue ends all sessions (core_tpg_set_initiator_node_queue_depth).
        let depth = acl.join("cmdsn_depth");
        let now = self.read(&depth)?.and_then(|depth| depth.trim().parse::<u32>().ok()).unwrap_or(0);
        self.write(&depth, if now == 64 { "63" } else { "64" })?;
        for lun in self.directories(&acl)?.iter().filter(|name| name.starts_with("lun_")) {
            self.remove_linking(&acl.join(lun))?;
        }
        // Waits until the last command of the last session has ended.
        self.remove_directory(&acl)?;
        Ok(true)
    }

    /// Removes a target that lets nobody in.
    ///
    /// # Errors
    /// `Unexpected` where an initiator is let in.
    pub fn remove_target(&self, target: &str) -> Result<()> {
        let group = group(target);
        if self.kind(&group)?.is_some() {
            if let Some(initiator) = self.initiators(target)?.first() {
                let reason = format!("it lets {initiator} in");
                return Err(Error::Unexpected { object: self.shown(&group), reason });
            }
            self.set(&group.join("enable"), "0")?;
            for portal in self.directories(&group.join("np"))? {
                self.remove_directory(&group.join("np").join(portal))?;
            }
            for lun in self.directories(&group.join("lun"))? {
                self.remove_linking(&group.join("lun").join(lun))?;
            }
            self.remove_directory(&group)?;
        }
        self.remove_directory(&Path::new("iscsi").join(target))
    }
}

fn group(target: &str) -> PathBuf {
    Path::new("iscsi").join(target).join("tpgt_1")
}

fn acl(target: &str, initiator: &str) -> PathBuf {
    group(target).join("acls").join(initiator)
}

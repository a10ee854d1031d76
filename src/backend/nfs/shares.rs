//! The kernel's mounts of this node: one for each export and set of options, with the volumes that use it.
//!
//! `<state directory>/nfs/<backend>/<digest of export and options>/mount` is where it is mounted, `users/<volume id>.json` beside it says
//! who uses it, and as what. A user is noted before the share is mounted, and crossed out after it was unmounted, so that whatever
//! is interrupted is found by the volume's next call. Mounts do not outlive a boot, users may: then nothing is mounted where they are.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::backend::Directory;
use crate::backend::keyed_mutex::{KeyedGuard, KeyedMutex};
use crate::os::mountinfo::MountTable;
use crate::os::step::step;
use crate::os::{self, durable, nfs};
use crate::volume::digest::sha256_of;
use crate::volume::{Error, Result, VolumeId};

use super::export::Export;
use super::options::Options;

/// How long one volume waits for another that is at the same share.
const PATIENCE: Duration = Duration::from_secs(10);
const LONGEST: u64 = 64 << 10;
/// Hexadecimal digits.
const DIGEST: usize = 16;

/// As what a volume uses a share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct User {
    pub id: VolumeId,
    /// `server:/path`, as mountinfo shows the shared mount.
    pub export: String,
    #[serde(rename = "folder")]
    pub directory: PathBuf,
    /// `server:/path/directory`, as mountinfo shows a bind mount of it.
    pub source: String,
    /// Of its bind mounts.
    pub bind: Vec<String>,
}

/// All of one backend.
#[derive(Debug)]
pub struct Shares {
    directory: PathBuf,
    locks: KeyedMutex,
}

/// One of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    directory: PathBuf,
}

impl Shares {
    /// Nothing is made before it is needed.
    pub fn new(directory: PathBuf) -> Shares {
        Shares { directory, locks: KeyedMutex::default() }
    }

    /// The share that an export is mounted as with these options.
    pub fn of(&self, export: &Export, options: &Options) -> Share {
        let export = export.to_string();
        let digest = sha256_of(std::iter::once(&export).chain(options.share.expose()).map(String::as_str));
        Share { directory: self.directory.join(&digest[..DIGEST]) }
    }

    /// All that are known here.
    pub fn all(&self) -> Result<Vec<Share>> {
        let is_digest = |name: &std::ffi::OsString| name.len() == DIGEST && name.as_bytes().iter().all(u8::is_ascii_hexdigit);
        let names = names(&self.directory)?.into_iter().filter(is_digest);
        Ok(names.map(|name| Share { directory: self.directory.join(name) }).collect())
    }

    /// The share that a volume uses, and as what.
    pub fn used_by(&self, id: &VolumeId) -> Result<Option<(Share, User)>> {
        for share in self.all()? {
            if let Some(user) = share.user(id)? {
                return Ok(Some((share, user)));
            }
        }
        Ok(None)
    }

    /// Waits for the share to be free, but not for a server that hangs.
    ///
    /// # Errors
    /// `InProgress`, saying for how long another operation has held it.
    pub fn lock(&self, share: &Share) -> Result<KeyedGuard<'_>> {
        let object = share.directory.display().to_string();
        self.locks.lock(&object, "mount", PATIENCE).map_err(|holder| Error::InProgress {
            object,
            reason: format!("another operation has held its mount for {} s", holder.since.elapsed().as_secs()),
        })
    }
}

impl Share {
    /// Where it is mounted.
    pub fn mount(&self) -> PathBuf {
        self.directory.join("mount")
    }

    fn users(&self) -> PathBuf {
        self.directory.join("users")
    }

    /// What is made for it, in the order in which it is removed.
    pub fn directories(&self) -> [PathBuf; 3] {
        [self.mount(), self.users(), self.directory.clone()]
    }

    /// All users, and the files in which they are noted.
    ///
    /// # Errors
    /// Where one cannot be read: nobody is overlooked.
    pub fn noted(&self) -> Result<(Vec<User>, Vec<PathBuf>)> {
        let (directory, mut users, mut files) = (self.users(), Vec::new(), Vec::new());
        for name in names(&directory)? {
            let path = directory.join(&name);
            if is_user(&name)
                && let Some(content) = durable::read(&path, LONGEST)?
            {
                users.push(parse(&path, &content)?);
            }
            files.push(path);
        }
        Ok((users, files))
    }

    /// As what a volume uses it.
    pub fn user(&self, id: &VolumeId) -> Result<Option<User>> {
        let path = self.users().join(file_name(id));
        let Some(content) = durable::read(&path, LONGEST)? else { return Ok(None) };
        let user = parse(&path, &content)?;
        Ok((user.id == *id).then_some(user))
    }

    /// As what the volume is connected; `None` where the share is not mounted.
    pub fn directory(&self, table: &MountTable, user: User) -> Result<Option<Directory>> {
        let Some(mount) = nfs::at(table, &self.mount(), &user.export)? else { return Ok(None) };
        Ok(Some(Directory {
            mount: self.mount(),
            directory: user.directory,
            fstype: mount.fstype,
            source: user.source,
            device: mount.device,
            root: None,
            options: user.bind,
        }))
    }

    /// Notes a user; before the share is mounted.
    pub fn note(&self, user: &User) -> Result<()> {
        let content = serde_json::to_vec(user).map_err(|error| Error::failed("write", user.id.to_string(), error))?;
        let directory = self.users();
        step("note share's user", &user.id, || {
            let make = |recursive, directory: &Path| {
                let made = fs::DirBuilder::new().recursive(recursive).mode(0o700).create(directory);
                made.map_err(|error| os::Error::io("make directory", directory, error))
            };
            make(true, &directory)?;
            // A dead server's must not be looked at: not by `recursive`.
            match make(false, &self.mount()) {
                Err(error) if error.errno() != Some(libc::EEXIST) => Err(error),
                _ => durable::write(&directory, &file_name(&user.id), &content),
            }
        })?;
        Ok(())
    }

    /// Takes a user away, and with the last one the mount. Nothing to do is fine.
    ///
    /// # Errors
    /// Not final: the user is still noted then.
    pub fn release(&self, id: &VolumeId) -> Result<()> {
        let (users, name) = (self.users(), file_name(id));
        if !names(&users)?.iter().any(|other| other.to_str() != Some(&name) && is_user(other)) {
            return self.clear();
        }
        step("forget share's user", id, || durable::remove(&users, &name))?;
        Ok(())
    }

    /// Takes the mount away, with all who are noted, and what was written by half.
    pub fn clear(&self) -> Result<()> {
        self.unmount()?;
        let users = self.users();
        for name in names(&users)?.iter().filter_map(|noted| noted.to_str()) {
            step("forget share's user", &name, || durable::remove(&users, name))?;
        }
        // By rmdir, so that whatever else is there stays, and only where nothing is mounted.
        for directory in self.directories() {
            let remove = || fs::remove_dir(&directory).map_err(|error| os::Error::io("remove directory", &directory, error));
            match step("remove directory", &directory.display(), remove) {
                // A file that someone put there: all of the share's own is gone.
                Err(error) if error.errno() == Some(libc::ENOTEMPTY) => {
                    tracing::warn!(%error, "the directory of a share that was unmounted holds something else, and stays");
                    return Ok(());
                }
                Err(error) if !error.is_missing() => return Err(error.into()),
                _ => {}
            }
        }
        Ok(())
    }

    /// Whether nobody is noted.
    pub fn is_unused(&self) -> Result<bool> {
        Ok(!names(&self.users())?.iter().any(|noted| is_user(noted)))
    }

    /// Unmounts it, seen to be gone on return.
    pub fn unmount(&self) -> Result<()> {
        let mount = self.mount();
        if MountTable::read()?.at(&mount).is_empty() {
            return Ok(());
        }
        Ok(step("unmount share", &mount.display(), || nfs::unmount(&mount))?)
    }
}

fn parse(path: &Path, content: &[u8]) -> Result<User> {
    serde_json::from_slice(content).map_err(|error| Error::failed("read", path.display().to_string(), error))
}

fn file_name(id: &VolumeId) -> String {
    format!("{id}.json")
}

/// Half-written files are orphaned.
fn is_user(name: &std::ffi::OsStr) -> bool {
    Path::new(name).extension().is_some_and(|extension| extension == "json")
}

fn names(directory: &Path) -> Result<Vec<std::ffi::OsString>> {
    let list = match fs::read_dir(directory) {
        Ok(list) => list,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(os::Error::io("list", directory, error).into()),
    };
    let name = |entry: std::io::Result<fs::DirEntry>| entry.map(|entry| entry.file_name());
    Ok(list.map(name).collect::<std::io::Result<_>>().map_err(|error| os::Error::io("list", directory, error))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares() -> (tempfile::TempDir, Shares) {
        let directory = tempfile::tempdir().expect("a directory");
        let shares = Shares::new(directory.path().join("nfs"));
        (directory, shares)
    }

    fn share_of(shares: &Shares, options: &[&str]) -> Share {
        let export = Export::new("server", "/export").expect("sound");
        let share = options.iter().map(|&option| option.to_owned()).collect();
        shares.of(&export, &Options { share, bind: Vec::new() })
    }

    fn user(name: &str) -> User {
        let text = |text: &str| text.to_owned();
        let id = format!("nfs:{name}").parse().expect("an id");
        User {
            id,
            export: text("server:/export"),
            directory: name.into(),
            source: format!("server:/export/{name}"),
            bind: Vec::new(),
        }
    }

    #[test]
    fn the_last_user_takes_the_directories_away() {
        let (directory, shares) = shares();
        let share = share_of(&shares, &["hard"]);
        assert_ne!(share, share_of(&shares, &["soft"]), "other options, another mount");
        for name in ["a", "b"] {
            share.note(&user(name)).expect("noted");
            share.note(&user(name)).expect("noted again");
        }
        assert_eq!(shares.used_by(&user("b").id).expect("readable"), Some((share.clone(), user("b"))));
        assert_eq!(share.directory(&MountTable::default(), user("a")).expect("readable"), None, "it is not mounted");
        share.release(&user("a").id).expect("released");
        assert_eq!(shares.used_by(&user("a").id).expect("readable"), None);
        assert!(!share.is_unused().expect("readable"));
        // Half written when its writer was killed: orphaned.
        fs::write(share.users().join(".nfs:c.json.tmp"), "x").expect("written");
        share.release(&user("b").id).expect("released");
        assert!(shares.all().expect("readable").is_empty());
        share.release(&user("b").id).expect("a repeat");
        // What someone else put there is no share, and keeps none from being released.
        fs::write(directory.path().join("nfs/notes"), "x").expect("written");
        share.note(&user("b")).expect("noted");
        fs::write(share.mount().join("stray"), "x").expect("written");
        assert_eq!(shares.all().expect("readable"), std::slice::from_ref(&share));
        share.release(&user("b").id).expect("released");
        assert_eq!(shares.used_by(&user("b").id).expect("readable"), None);
        fs::remove_file(share.mount().join("stray")).expect("removed");
        share.release(&user("b").id).expect("cleared");
        fs::remove_file(directory.path().join("nfs/notes")).expect("removed");
        fs::remove_dir(directory.path().join("nfs")).expect("nothing is left in it");
    }

    #[test]
    fn one_at_a_time_is_at_a_share() {
        let (_directory, shares) = shares();
        let (one, other) = (share_of(&shares, &[]), share_of(&shares, &["soft"]));
        let lock = shares.lock(&one).expect("free");
        drop(shares.lock(&other).expect("another share is free"));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| shares.lock(&one).map(drop));
            drop(lock);
            waiting.join().expect("no panic").expect("the lock");
        });
    }
}

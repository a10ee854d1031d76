//! The node's side: a volume is a directory, to be bound.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use crate::backend::directories::{Medium, Ownership, subdir};
use crate::backend::{Connect, ConnectRequest, Directory, Source};
use crate::os::dir::OpenDir;
use crate::os::mountinfo::Mount;
use crate::os::mounts::{Fixed, Mounts};
use crate::os::{self, fs, mount, quota};
use crate::volume::{Bytes, Error, Outcome, Result, VolumeId};

use super::DirectoryBackend;
use super::config::DirectoryParameters;
use super::flags::check_flags;
use super::location::DEFAULT_MODE;

/// Of each bind mount. A pod's setuid program would be one of the node's, in a directory of the node.
const OPTIONS: [&str; 2] = ["nosuid", "nodev"];

impl DirectoryBackend {
    /// What is bound of a volume: the directory, seen to be there and in the right place.
    fn directory(&self, id: &VolumeId, parameters: &DirectoryParameters) -> Result<Directory> {
        let (top, directory) = match &parameters.path {
            Some(path) => {
                let (top, rest) = self.config.static_directory(path)?;
                (OpenDir::open(top)?, rest)
            }
            None => {
                let directory = parameters.common().directory(id.local());
                subdir::check(&directory.to_string_lossy())?;
                (self.base.verified_root()?, directory)
            }
        };
        let top = os::path::of_open(top.as_fd(), top.shown())?;
        describe(&top, &directory).map_err(|error| match error {
            error if error.is_missing() => Error::NotFound { kind: "directory", id: top.join(&directory).display().to_string() },
            error => error.into(),
        })
    }
}

/// What is mounted of a volume in memory: with the owner and mode of a volume's directory, and the volume's id as its source.
fn tmpfs(id: &VolumeId, capacity: Bytes, parameters: &DirectoryParameters) -> Result<Source> {
    let Ownership { mode, uid, gid } = parameters.common().ownership()?.of_new(DEFAULT_MODE);
    let mut options = OPTIONS.map(str::to_owned).to_vec();
    options.push(format!("size={}", capacity.0));
    options.extend(mode.map(|mode| format!("mode={mode:o}")));
    options.extend(uid.map(|uid| format!("uid={uid}")));
    options.extend(gid.map(|gid| format!("gid={gid}")));
    Ok(Source::Filesystem { fstype: "tmpfs".to_owned(), source: id.to_string(), options })
}

/// The directory as mountinfo shows a bind mount of it.
fn describe(top: &Path, directory: &Path) -> os::Result<Directory> {
    let open = mount::open_in(top, directory)?;
    let (mount, root) = Mounts::now()?.place_of(open.as_fd())?;
    Ok(Directory {
        mount: top.to_owned(),
        directory: directory.to_owned(),
        fstype: mount.fstype,
        source: mount.source.display().to_string(),
        device: mount.device,
        root: Some(root),
        options: OPTIONS.map(str::to_owned).to_vec(),
    })
}

impl Connect for DirectoryBackend {
    /// Nothing to do: `ops` binds it.
    fn connect(&self, request: &ConnectRequest<'_>) -> Result<Outcome<Source>> {
        check_flags(request.mount_flags)?;
        let parameters = DirectoryParameters::from_json(request.parameters)?;
        if parameters.medium == Medium::Memory {
            let capacity = self.base.in_memory(request.id.local())?.ok_or_else(|| Error::volume_not_found(request.id))?;
            return tmpfs(request.id, capacity, &parameters).map(Outcome::Unchanged);
        }
        self.directory(request.id, &parameters).map(Source::Directory).map(Outcome::Unchanged)
    }

    fn connected(&self, id: &VolumeId, hint: Option<&Source>) -> Result<Option<Source>> {
        match hint {
            Some(Source::Directory(known)) => match describe(&known.mount, &known.directory) {
                Ok(now) => Ok(Some(Source::Directory(now))),
                // Gone, or something is in its place: what it was is known to the caller.
                Err(_) => Ok(None),
            },
            // What is mounted at the volume's places with its id is its own; else there is nothing of it.
            Some(Source::Filesystem { .. }) => Ok(hint.cloned()),
            Some(Source::Device(_)) => Ok(None),
            None => match self.bound(id) {
                // As after a boot without its disk. What is mounted at the volume's places is nothing of it then, and stays.
                Err(Error::BackendUnavailable { .. }) => Ok(None),
                bound => bound,
            },
        }
    }

    /// Whatever became of the directory, a bind mount that the journal has is the volume's.
    fn is_same_device(&self, source: &Source) -> Result<bool> {
        Ok(matches!(source, Source::Directory(_) | Source::Filesystem { .. }))
    }

    fn disconnect(&self, _id: &VolumeId, _hint: Option<&Source>) -> Result<Outcome<()>> {
        Ok(Outcome::Unchanged(()))
    }

    fn refresh(&self, id: &VolumeId, source: &Source) -> Result<Bytes> {
        let Source::Directory(directory) = source else { return Ok(self.base.in_memory(id.local())?.unwrap_or_default()) };
        let open = mount::open_in(&directory.mount, &directory.directory)?;
        Ok(Bytes(fs::usage(open.as_fd())?.total))
    }

    fn reach(&self, source: &Source) -> Result<()> {
        match source {
            // A static volume's is the operator's.
            Source::Directory(directory) if self.is_in_base(directory) => self.base.verified_root().map(drop),
            _ => Ok(()),
        }
    }

    fn usage(&self, id: &VolumeId, open: BorrowedFd<'_>) -> Result<fs::Usage> {
        let whole = fs::usage(open)?;
        // A static volume has no record.
        let Some(project) = self.base.project_of(id.local())? else { return Ok(whole) };
        let quota = quota::get(open, project)?;
        if quota.limit == 0 {
            return Ok(whole);
        }
        let left = quota.limit.saturating_sub(quota.used);
        Ok(fs::Usage { total: quota.limit, used: quota.used, available: left.min(whole.available), inodes: whole.inodes })
    }
}

impl DirectoryBackend {
    fn is_in_base(&self, directory: &Directory) -> bool {
        self.config.path.canonicalize().is_ok_and(|base| base == directory.mount)
    }

    /// As what a volume that was made here is mounted somewhere on this node, whatever the journal says.
    fn bound(&self, id: &VolumeId) -> Result<Option<Source>> {
        if let Some(capacity) = self.base.in_memory(id.local())? {
            let source = tmpfs(id, capacity, &DirectoryParameters::default())?;
            let name = id.to_string();
            let may_be = |fixed: &Fixed| fixed.fstype == "tmpfs";
            let is = |mount: &Mount| mount.fstype == "tmpfs" && mount.source == Path::new(&name);
            return Ok(Mounts::now()?.find(may_be, is)?.map(|_| source));
        }
        let Some((root, directory)) = self.base.directory_of(id.local())? else { return Ok(None) };
        if self.location.mounted_at(&root, &directory)?.is_none() {
            return Ok(None);
        }
        let top = os::path::of_open(root.as_fd(), root.shown())?;
        Ok(Some(Source::Directory(describe(&top, &directory)?)))
    }
}

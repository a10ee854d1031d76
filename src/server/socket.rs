//! A Unix socket and its file: bound in place of a dead one, never of one that is in use, and removed only while it is ours.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, Mode};
use tokio::net::{UnixListener, UnixSocket, UnixStream};

use super::error::{Error, Result};

/// Connections that wait to be accepted.
const BACKLOG: u32 = 1024;
/// For how long a process that may still listen is given to answer.
const PATIENCE: Duration = Duration::from_secs(2);

/// A listening socket with its file.
pub(super) struct Socket {
    pub(super) listener: UnixListener,
    pub(super) file: SocketFile,
}

/// The file of a socket that we made: known by its device and inode, since the name may come to mean another.
pub(super) struct SocketFile {
    pub(super) path: PathBuf,
    pub(super) identity: (u64, u64),
}

impl Socket {
    /// The driver's own, in a directory that is made if need be.
    pub(super) async fn bind(path: &Path) -> Result<Self> {
        make_directory(directory_of(path))?;
        Socket::bind_in_place(path, "--endpoint").await
    }

    /// In a directory that is there. `option` is how another path is said.
    pub(super) async fn bind_in_place(path: &Path, option: &'static str) -> Result<Self> {
        let directory = directory_of(path);
        // Held until the socket listens: of two processes that start at once, the second sees the first one's.
        let _turn = lock(directory)?;
        remove_dead(path, option).await?;
        let io = |action| move |source| Error::Io { action, path: path.to_owned(), source };
        let socket = UnixSocket::new_stream().map_err(io("make a socket for"))?;
        // The file gets the mode of the socket's own inode (less the umask): it is never open to others, not for an instant.
        rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR).map_err(|errno| io("set the mode of")(errno.into()))?;
        socket.bind(path).map_err(io("bind"))?;
        let made = fs::symlink_metadata(path).map_err(io("stat"))?;
        let file = SocketFile { path: path.to_owned(), identity: (made.dev(), made.ino()) };
        match socket.listen(BACKLOG) {
            Ok(listener) => Ok(Socket { listener, file }),
            Err(source) => {
                file.remove_locked();
                Err(io("listen on")(source))
            }
        }
    }

    pub(super) fn split(self) -> (UnixListener, SocketFile) {
        (self.listener, self.file)
    }
}

impl SocketFile {
    /// Removes it, if it is still ours.
    pub(super) fn remove(&self) {
        match lock(directory_of(&self.path)) {
            Ok(_turn) => self.remove_locked(),
            Err(error) => tracing::warn!(%error, "the socket's file stays"),
        }
    }

    fn remove_locked(&self) {
        // Otherwise another process has put its own there, or someone has removed it.
        if self.is_ours()
            && let Err(error) = fs::remove_file(&self.path).or_else(missing_is_fine)
        {
            tracing::warn!(path = %self.path.display(), %error, "the socket's file stays");
        }
    }

    pub(super) fn is_ours(&self) -> bool {
        fs::symlink_metadata(&self.path).is_ok_and(|found| (found.dev(), found.ino()) == self.identity)
    }
}

fn missing_is_fine(error: io::Error) -> io::Result<()> {
    match error.kind() {
        io::ErrorKind::NotFound => Ok(()),
        _ => Err(error),
    }
}

/// An endpoint is absolute and has a file name, so it has a directory.
pub(super) fn directory_of(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new("/"))
}

fn make_directory(directory: &Path) -> Result<()> {
    let made = fs::DirBuilder::new().recursive(true).mode(0o750).create(directory);
    made.map_err(|source| Error::Io { action: "make directory", path: directory.to_owned(), source })
}

/// A lock of the directory itself, since the specification allows no further file beside the socket.
fn lock(directory: &Path) -> Result<fs::File> {
    let io = |action| move |source| Error::Io { action, path: directory.to_owned(), source };
    let opened = fs::File::open(directory).map_err(io("open directory"))?;
    rustix::fs::flock(&opened, FlockOperation::LockExclusive).map_err(|errno| io("lock directory")(errno.into()))?;
    Ok(opened)
}

/// Removes a socket's file on which nobody listens any more.
async fn remove_dead(path: &Path, option: &'static str) -> Result<()> {
    let io = |action| move |source| Error::Io { action, path: path.to_owned(), source };
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(io("stat")(error)),
        Ok(found) if !found.file_type().is_socket() => return Err(Error::NoSocket { path: path.to_owned(), option }),
        Ok(_) => {}
    }
    match tokio::time::timeout(PATIENCE, UnixStream::connect(path)).await {
        // The one answer that says that nobody listens. A full backlog or a missing right says that someone may.
        Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => {
            fs::remove_file(path).or_else(missing_is_fine).map_err(io("remove"))
        }
        Ok(Err(error)) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        _ => Err(Error::Taken { path: path.to_owned(), option }),
    }
}

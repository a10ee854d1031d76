//! The node's side: a volume is a directory of a share, which is mounted once for all of them.
//!
//! Nothing here waits for a server longer than some seconds, and only those wait who want something of that server.

use std::path::Path;
use std::time::Duration;

use crate::backend::directories::{Silence, subdir};
use crate::backend::{Connect, ConnectRequest, Directory, SharedConnection, Source};
use crate::os::mountinfo::MountTable;
use crate::os::step::step;
use crate::os::{self, mount, nfs};
use crate::volume::{Bytes, Error, Outcome, Result, VolumeId};

use super::export::Export;
use super::options::{self, Options};
use super::shares::{Share, User};
use super::{NfsBackend, NfsParameters, shared_connections};

/// How long a server has to say that it lives.
const PATIENCE: Duration = Duration::from_secs(3);

impl Connect for NfsBackend {
    fn connect(&self, request: &ConnectRequest<'_>) -> Result<Outcome<Source>> {
        let id = request.id;
        let parameters: NfsParameters = serde_json::from_value(request.parameters.clone())
            .map_err(|error| Error::invalid("volume_context", error.to_string()))?;
        let export = Export::new(&parameters.server, &parameters.share)?;
        let directory = subdir::directory(&parameters.directory(id.local()).to_string_lossy())?;
        let options = options::check(&self.option_rules(), request.mount_flags)?;
        let share = self.shares.of(&export, &options);
        if let Some((other, _)) = self.shares.used_by(id)?.filter(|(other, _)| *other != share) {
            // An earlier stage with other options.
            let _lock = self.shares.lock(&other)?;
            other.release(id)?;
        }
        let user = User {
            id: id.clone(),
            export: export.to_string(),
            source: export.source(&directory),
            directory,
            bind: options.bind.clone(),
        };
        let _lock = self.shares.lock(&share)?;
        let noted = share.user(id)?.as_ref() == Some(&user);
        if !noted {
            share.note(&user)?;
        }
        let mounted = self.mount(&share, &export, &options)?;
        let gone = || Error::failed("mount share", export.to_string(), "it is not mounted after it was");
        let directory = share.directory(&MountTable::read()?, user)?.ok_or_else(gone)?;
        self.look_into(&directory)?;
        let source = Source::Directory(directory);
        Ok(if noted && !mounted { Outcome::Unchanged(source) } else { Outcome::Changed(source) })
    }

    fn connected(&self, id: &VolumeId, _hint: Option<&Source>) -> Result<Option<Source>> {
        let Some((share, user)) = self.shares.used_by(id)? else { return Ok(None) };
        Ok(share.directory(&MountTable::read()?, user)?.map(Source::Directory))
    }

    /// Of an earlier mount of the share, too: whatever is at a place of the volume's and shows its directory is its own.
    fn is_same_device(&self, source: &Source) -> Result<bool> {
        Ok(matches!(source, Source::Directory(_)))
    }

    fn disconnect(&self, id: &VolumeId, _hint: Option<&Source>) -> Result<Outcome<()>> {
        let used = self.shares.used_by(id)?;
        // Also those that nobody uses: a call that was interrupted may have left one.
        for share in self.shares.all()? {
            if used.as_ref().is_some_and(|(used, _)| *used == share) {
                let _lock = self.shares.lock(&share)?;
                share.release(id)?;
                continue;
            }
            let release = || match share.is_unused()? {
                true => self.shares.lock(&share).and_then(|_lock| share.release(id)),
                false => Ok(()),
            };
            // It is not this volume's.
            if let Err(error) = release() {
                tracing::warn!(share = %share.mount().display(), %error, "a share that nobody uses could not be taken down");
            }
        }
        Ok(if used.is_some() { Outcome::Changed(()) } else { Outcome::Unchanged(()) })
    }

    /// Its server says how much there is, whenever it is asked.
    fn refresh(&self, _id: &VolumeId, source: &Source) -> Result<Bytes> {
        self.reach(source)?;
        let Source::Directory(directory) = source else { return Ok(Bytes(0)) };
        let usage = os::fs::usages(std::slice::from_ref(&directory.mount), PATIENCE)?.remove(&directory.mount);
        Ok(Bytes(usage.map_or(0, |usage| usage.total)))
    }

    fn shared_connections(&self) -> Result<Vec<SharedConnection>> {
        shared_connections::all(&self.shares)
    }

    fn release_connection(&self, connection: &SharedConnection) -> Result<()> {
        shared_connections::take_down(&self.shares, connection)
    }

    fn reach(&self, source: &Source) -> Result<()> {
        let Source::Directory(directory) = source else { return Ok(()) };
        self.answers(&directory.mount).map_err(|silence| self.error(&directory.source, silence))
    }
}

impl NfsBackend {
    /// Mounts the share, where it is not, or where it is stale. Returns whether it had to.
    fn mount(&self, share: &Share, export: &Export, options: &Options) -> Result<bool> {
        let (source, place) = (export.to_string(), share.mount());
        if nfs::at(&MountTable::read()?, &place, &source)?.is_some() {
            match self.answers(&place) {
                Ok(()) => return Ok(false),
                Err(Silence::Stale(reason)) => {
                    tracing::warn!(share = %source, reason, "the share is stale; mounted anew");
                    share.unmount()?;
                }
                Err(silence) => return Err(self.error(&source, silence)),
            }
        }
        let remedy = "see whether the server runs, and is reached from this node";
        // Seconds, where mount.nfs would try for longer.
        if options.is_tcp() && !nfs::connects(&export.server, options.port()) {
            return Err(self.down(&source, &format!("cannot connect to its TCP port; {remedy}")));
        }
        step("mount share", &source, || nfs::mount(&source, &place, &options.share)).map_err(|error| match error {
            os::Error::Deadline { .. } => self.down(&source, &format!("{error}; {remedy}")),
            error => error.into(),
        })?;
        self.checks.invalidate(&place.display().to_string());
        Ok(true)
    }

    /// Sees that the volume's directory is there, and really in the share.
    fn look_into(&self, directory: &Directory) -> Result<()> {
        match mount::open_in(&directory.mount, &directory.directory) {
            Ok(_) => Ok(()),
            Err(error) if error.is_missing() => Err(Error::NotFound { kind: "directory", id: directory.source.clone() }),
            Err(error) if error.errno() == Some(libc::ESTALE) => {
                Err(self.error(&directory.source, Silence::Stale(error.to_string())))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Whether the server answers for this mount. One question for each mount at a time.
    pub(super) fn answers(&self, place: &Path) -> Result<(), Silence> {
        self.checks.check(&place.display().to_string(), || nfs::answers(place, PATIENCE).map_err(Silence::from))
    }

    fn error(&self, source: &str, silence: Silence) -> Error {
        match silence {
            Silence::Dead(reason) => self.down(source, &reason),
            Silence::Stale(reason) => Error::Stale { object: source.to_owned(), reason },
        }
    }

    fn down(&self, source: &str, reason: &str) -> Error {
        Error::BackendUnavailable { backend: self.config.name.to_string(), reason: format!("{source}: {reason}") }
    }
}

//! What a process that ended left on a base is finished when the next one opens it: nobody else can be at it.

use std::sync::Arc;

use crate::os;
use crate::os::dir::{OpenDir, is_temporary};
use crate::volume::{Error, Result};

use super::base::Ready;
use super::index::IndexedSnapshot;
use super::record::{self, Phase};

impl Ready {
    /// Reads what there is, ends what was begun with volumes. What is damaged is left, and reported when it is asked for.
    pub fn recover(&self) -> Result<()> {
        let mut names = Vec::new();
        self.volumes.each_entry(|entry| {
            names.extend(entry.name.into_string());
            true
        })?;
        for name in names {
            match name.strip_suffix(".json") {
                Some(local) => self.recover_volume(local)?,
                // Not yet whole when it was written.
                None if is_temporary(&name) => {
                    self.go_on_without(&name, self.volumes.remove_file(&name).map(drop).map_err(Into::into))?;
                }
                None => self.leave(&self.volumes, &name),
            }
        }
        let mut drafts = Vec::new();
        self.drafts.each_entry(|entry| {
            drafts.push(entry.name);
            true
        })?;
        for name in drafts {
            let shown = name.to_string_lossy();
            self.go_on_without(&shown, self.throw_away(&self.drafts, &name, &format!("{shown}~{}", record::now())))?;
        }
        self.recover_snapshots()
    }

    fn recover_volume(&self, local: &str) -> Result<()> {
        match self.record(local) {
            Ok(Some(found)) => {
                let whole = found.phase == Phase::Whole;
                self.index.put_volume(local, &found.directory, found.capacity.0, whole);
                match found.phase {
                    Phase::Whole => Ok(()),
                    Phase::Making => self.go_on_without(local, self.discard(&found)),
                    Phase::Deleting { at } => self.go_on_without(local, self.finish_deletion(&found, at)),
                }
            }
            Ok(None) => Ok(()),
            Err(error @ Error::Unverified { .. }) => {
                tracing::warn!(base = self.called, volume = local, %error, "it cannot be used");
                self.index.put_volume(local, local.as_ref(), 0, true);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    fn recover_snapshots(&self) -> Result<()> {
        let mut names = Vec::new();
        self.snapshots.each_entry(|entry| {
            names.extend(entry.name.into_string());
            true
        })?;
        for local in names {
            let directory = match self.snapshots.directory(&local) {
                Ok(Some(directory)) => directory,
                Ok(None) => continue,
                Err(os::Error::Path { .. }) => {
                    self.leave(&self.snapshots, &local);
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            match self.read_snapshot(&directory) {
                Ok(Some(found)) => {
                    let source = found.source.local().to_owned();
                    self.index.put_snapshot(&local, IndexedSnapshot { source, bytes: found.taken.0, ready: found.ready });
                }
                // Interrupted before it was begun.
                Ok(None) => {
                    let as_what = format!("{local}~{}", record::now());
                    self.go_on_without(&local, self.throw_away(&self.snapshots, local.as_ref(), &as_what))?;
                }
                Err(error) => {
                    tracing::warn!(base = self.called, snapshot = local, %error, "it cannot be used");
                    self.index.put_snapshot(&local, IndexedSnapshot { source: String::new(), bytes: 0, ready: true });
                }
            }
        }
        Ok(())
    }

    /// An interrupted call that cannot be ended now is no reason to serve no other volume: a call for it tries it again, or the next start.
    fn go_on_without(&self, object: &str, ended: Result<()>) -> Result<()> {
        match ended {
            Err(error @ Error::BackendUnavailable { .. }) => Err(error),
            Err(error) => {
                tracing::error!(base = self.called, object, %error, "an interrupted call could not be ended; it is tried again later");
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    fn leave(&self, directory: &OpenDir, name: &str) {
        let path = directory.path_of(name);
        tracing::warn!(base = self.called, path = %path.display(), "the driver has made no such file; it is left as it is");
    }

    /// Begins again what continues in the background.
    pub fn go_on(self: &Arc<Self>) {
        self.sweeper.wake();
        for local in self.index.unready() {
            if let Err(error) = self.copy_snapshot(&local) {
                tracing::warn!(base = self.called, snapshot = local, %error, "its copy could not be begun again");
            }
        }
    }
}

//! Parameters that change during a volume's life.

use crate::backend::Modify;
use crate::os::step::step;
use crate::volume::{Bytes, Error, Outcome, RawParameters, Result, VolumeId};

use super::config::MutableParameters;
use super::files::{self, Access, IMAGE};
use super::layout::Kind;
use super::meta::VolumeMeta;
use super::{ImageBackend, Located, capacity, expand, scan};

impl Modify for ImageBackend {
    fn check(&self, raw: &RawParameters) -> Result<()> {
        raw.parse::<MutableParameters>().map(|_| ())
    }

    fn modify(&self, id: &VolumeId, raw: &RawParameters) -> Result<Outcome<()>> {
        let wanted: MutableParameters = raw.parse()?;
        let Located { pool, seen, .. } = self.locate::<VolumeMeta>(id.local())?.ok_or_else(|| Error::volume_not_found(id))?;
        let ready = pool.writable()?;
        let (mut meta, image) = seen.whole()?;
        let on_delete = wanted.on_delete.unwrap_or(meta.on_delete);
        let preallocate = wanted.preallocate.unwrap_or(meta.preallocate);
        if meta.preallocate && !preallocate {
            let reason = format!(
                "volume {id} is allocated already, and what is allocated can't be made sparse; leave it out, or say true"
            );
            return Err(Error::invalid("mutable_parameters.preallocate", reason));
        }
        if (on_delete, preallocate) == (meta.on_delete, meta.preallocate) {
            expand::sync_directory(&ready, id.local())?;
            return Ok(Outcome::Unchanged(()));
        }
        if preallocate && !meta.preallocate {
            capacity::check_free(&ready, Bytes(image.length.saturating_sub(image.allocated)))?;
            let file = ready.open_image(Kind::Volume, id.local(), Access::Write)?;
            let path = ready.place(Kind::Volume, id.local()).join(IMAGE);
            expand::allocate(&ready, &file, &path, Bytes(image.length), Bytes(image.length))?;
            // Before the metadata says so: btrfs and network file systems make each file durable by itself.
            step("sync", &path.display(), || files::sync(&file, &path)).map_err(|error| ready.failure(error))?;
        }
        (meta.on_delete, meta.preallocate) = (on_delete, preallocate);
        expand::rewrite(&ready, &meta)?;
        // Into the index.
        scan::volume_row(&ready, id.local());
        Ok(Outcome::Changed(()))
    }
}

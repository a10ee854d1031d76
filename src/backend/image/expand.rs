//! Volumes grow.

use std::fs::File;
use std::path::Path;

use crate::backend::Expand;
use crate::os::durable;
use crate::os::step::step;
use crate::volume::{Bytes, Error, Outcome, Result, VolumeId};

use super::files::{self, Access, IMAGE, META};
use super::layout::Kind;
use super::meta::{self, VolumeMeta};
use super::ready::Ready;
use super::{ImageBackend, Located, capacity, scan};

impl Expand for ImageBackend {
    /// The image grows first, then the capacity in the metadata: an image longer than its capacity is whole, a capacity longer
    /// than its image is damage.
    fn expand(&self, id: &VolumeId, wanted: Bytes) -> Result<Outcome<Bytes>> {
        let wanted = wanted.round_up(capacity::UNIT);
        let Located { pool, seen, .. } = self.locate::<VolumeMeta>(id.local())?.ok_or_else(|| Error::volume_not_found(id))?;
        let ready = pool.writable()?;
        let (mut meta, image) = seen.whole()?;
        if wanted <= meta.capacity {
            // Another call's work may not have become durable: it was killed, or failed.
            sync_directory(&ready, id.local())?;
            return Ok(Outcome::Unchanged(meta.capacity));
        }
        let growth = Bytes(wanted.0 - meta.capacity.0);
        let reservation = capacity::reserve(&ready, growth)?;
        if meta.preallocate {
            capacity::check_free(&ready, growth)?;
        }
        let length = Bytes(image.length.max(wanted.0));
        lengthen(&ready, id.local(), Bytes(image.length), length, meta.preallocate)?;
        meta.capacity = wanted;
        if let Err(error) = rewrite(&ready, &meta) {
            // It may be in place all the same, only not durable: count what the disk shows.
            if scan::examine::<VolumeMeta>(&ready, id.local()).meta.is_none_or(|meta| meta.capacity == wanted) {
                reservation.keep_volume(id.local(), wanted.0);
            }
            return Err(error);
        }
        reservation.keep_volume(id.local(), wanted.0);
        // Into the index.
        scan::volume_row(&ready, id.local());
        Ok(Outcome::Changed(wanted))
    }
}

/// Makes an image longer, durably.
fn lengthen(ready: &Ready, local: &str, from: Bytes, to: Bytes, preallocate: bool) -> Result<()> {
    let image = ready.open_image(Kind::Volume, local, Access::Write)?;
    let path = ready.place(Kind::Volume, local).join(IMAGE);
    if preallocate {
        allocate(ready, &image, &path, from, to)?;
    }
    step("set length", &path.display(), || {
        files::set_length(&image, &path, to.0)?;
        files::sync(&image, &path)
    })
    .map_err(|error| ready.failure(error))
}

/// Allocates up to `to` without changing the length; what a failure allocated beyond the end is freed again.
pub(super) fn allocate(ready: &Ready, image: &File, path: &Path, length: Bytes, to: Bytes) -> Result<()> {
    let Err(error) = step("allocate", &path.display(), || files::allocate(image, path, to.0)) else { return Ok(()) };
    let failure = ready.failure(error);
    match step("roll back", &path.display(), || files::set_length(image, path, length.0)) {
        Ok(()) => Err(failure.rolled_back()),
        Err(undo) => Err(failure.leaving(undo.to_string())),
    }
}

/// Replaces a volume's metadata, durably.
pub(super) fn rewrite(ready: &Ready, meta: &VolumeMeta) -> Result<()> {
    let directory = ready.place(Kind::Volume, meta.id.local());
    let text = meta::encode(meta, &directory.join(META))?;
    step("write metadata", &directory.display(), || durable::write(&directory, META, &text)).map_err(|error| ready.failure(error))
}

/// Makes durable what an earlier call has renamed in a volume's directory.
pub(super) fn sync_directory(ready: &Ready, local: &str) -> Result<()> {
    let directory = ready.place(Kind::Volume, local);
    step("sync directory", &directory.display(), || durable::sync_dir(&directory)).map_err(|error| ready.failure(error))
}

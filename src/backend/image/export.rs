//! What another backend needs that keeps its volumes as images here, and shows them otherwise than by loop devices.

use std::fs::File;
use std::path::{Path, PathBuf};

use crate::volume::{Bytes, Error, Result, VolumeId};

use super::files::{self, Access};
use super::layout::{ATTACHED_SPARE, Kind};
use super::lock::PoolLock;
use super::meta::VolumeMeta;
use super::ready::Ready;
use super::{ImageBackend, Located};

/// The directory of a pool in which `<volume>.json` says to whom another backend shows its image.
pub(in crate::backend) const EXPORTS: &str = "exports";

/// Beside the image: the room of that file while there is none, so that the volume can be exported again where the pool is full. It goes with
/// the volume.
pub(in crate::backend) fn export_room(id: &VolumeId, pool: &Path) -> PathBuf {
    pool.join(Kind::Volume.directory()).join(id.local()).join(ATTACHED_SPARE)
}

/// Whether an image may be shown by a loop device, or deleted: nobody else shows it.
pub(super) fn check_not_exported(ready: &Ready, id: &VolumeId) -> Result<()> {
    let record = Path::new(EXPORTS).join(format!("{}.json", id.local()));
    if files::look(ready.root(), &record).map_err(|error| ready.down(error.to_string()))?.is_none() {
        return Ok(());
    }
    Err(Error::InUse {
        object: format!("volume {id}"),
        by: format!("{} records that it is exported; detach it first", ready.path.join(record).display()),
    })
}

/// A whole volume's image, open for reading.
#[derive(Debug)]
pub(in crate::backend) struct Image {
    pub file: File,
    pub path: PathBuf,
    /// Device and inode.
    pub inode: (u64, u64),
    pub capacity: Bytes,
    /// No other volume has it, in no pool of any machine, nor will a later one of the same id.
    pub unique: String,
    /// The directory of its pool, from which this process provisions.
    pub pool: PathBuf,
}

impl ImageBackend {
    /// `None` where there is no such volume.
    ///
    /// # Errors
    /// `Unverified` where it is damaged, `BackendUnavailable` where its pool is away or not ours to change.
    pub(in crate::backend) fn image(&self, id: &VolumeId) -> Result<Option<Image>> {
        let Some(Located { pool, seen, .. }) = self.locate::<VolumeMeta>(id.local())? else { return Ok(None) };
        let ready = pool.writable()?;
        let (meta, _) = seen.whole()?;
        let path = ready.place(Kind::Volume, id.local()).join(files::IMAGE);
        let file = ready.open_image(Kind::Volume, id.local(), Access::Read)?;
        let inode = files::look_at(&file, &path)?.inode;
        let unique = meta.unique(&ready.id);
        Ok(Some(Image { file, path, inode, capacity: meta.capacity, unique, pool: ready.path.clone() }))
    }

    /// The directories of the pools that may have a volume, where this process can provision from them now.
    pub(in crate::backend) fn homes_of(&self, id: &VolumeId) -> impl Iterator<Item = Result<PathBuf>> {
        let homes = self.pools.iter().map(|pool| (pool, pool.writable().map(|ready| ready.path.clone())));
        homes.filter(|(pool, home)| home.is_ok() || !pool.surely_lacks(Kind::Volume, id.local())).map(|(_, home)| home)
    }

    /// The pools' names, and their directories where this process can provision from them now.
    pub(in crate::backend) fn homes(&self) -> impl Iterator<Item = (&str, Result<PathBuf>)> {
        self.pools.iter().map(|pool| (pool.config.name.as_str(), pool.writable().map(|ready| ready.path.clone())))
    }

    /// Keeps everybody from provisioning, for as long as what is answered is there.
    ///
    /// # Errors
    /// `InUse`, naming who does.
    pub(in crate::backend) fn keep_off(&self) -> Result<Vec<PoolLock>> {
        self.pools.iter().map(|pool| pool.keep_off()).collect()
    }

    /// Whether a copy of this volume in its pool is made in one instant: by sharing its blocks.
    pub(in crate::backend) fn shares(&self, id: &VolumeId) -> Result<bool> {
        let found = self.locate::<VolumeMeta>(id.local())?.ok_or_else(|| Error::volume_not_found(id))?;
        Ok(found.ready.shares_extents())
    }
}

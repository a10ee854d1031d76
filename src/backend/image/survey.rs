//! What `longshore inspect` shows of pools, images and their loop devices, by looking only; and the little that it repairs.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::backend::{
    BlockDevice, Connected, Inspect, Leftover, LeftoverKind, LockRecord, Place, Source, Stored, Survey, changed, words,
};
use crate::os;
use crate::os::block::Device;
use crate::os::loopdev::{self, Loop};
use crate::os::step::step;
use crate::volume::{Bytes, Error, Result, VolumeId};

use super::connect::{named, numbers, shows, source, status};
use super::files::{self, IMAGE, META, Seen};
use super::layout::{Kind, LOCK, RETAINED, TMP, TRASH};
use super::meta::{self, SnapshotMeta, VolumeMeta, from_nanos};
use super::pool::Pool;
use super::ready::Ready;
use super::scan::{About, Examined, examine};
use super::{Holder, ImageBackend, ImageConfig, Role, attach, lease};

/// By device and inode: the volume, and the image's identity.
type Images = HashMap<(u64, u64), (VolumeId, String)>;

/// For how long the file system of a pool is given to answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// The kernel keeps so many bytes of a loop device's label.
const LABEL: usize = 63;

impl ImageBackend {
    /// Opens the pools to look at them: nothing is made, remembered or locked. `holder` is whose leases are this node's.
    ///
    /// # Errors
    /// `InProgress` where the file system of a pool gives no answer; and as [`ImageBackend::open`].
    pub fn open_to_look(config: ImageConfig, holder: Option<Holder>) -> Result<ImageBackend> {
        config.validate()?;
        for pool in &config.pools {
            // A look of our own would hang for as long as a dead server is away.
            os::fs::usages(std::slice::from_ref(&pool.path), PATIENCE)?;
        }
        ImageBackend::open_remembering(config, Role { provision: false }, None, holder)
    }

    fn survey_pool(&self, pool: &Pool, images: &mut Images, survey: &mut Survey) -> Result<()> {
        let ready = pool.ready()?;
        ready.check_essential().map_err(|reason| ready.down(reason))?;
        let room = ready.room()?;
        let record = LockRecord::read(&ready.path.join(LOCK))?;
        let provisioner = record.clone().filter(|record| record.held).map(|record| record.holder);
        let is_provisioned = provisioner.is_some();
        survey.places.push(Place {
            name: ready.name.clone(),
            at: ready.path.display().to_string(),
            total: Bytes(room.total),
            free: Bytes(room.free),
            read_only: room.read_only,
            provisioner,
            recorded: record.filter(LockRecord::is_of_another_host),
        });
        for (local, found) in each::<VolumeMeta>(&ready)? {
            let id = VolumeId::from_parts(&self.name, &local)?;
            if let Some(image) = found.image {
                images.insert(image.inode, (id.clone(), named(&ready, &local, image.inode)));
            }
            survey.leftovers.extend(half::<VolumeMeta>(&ready, &local, found.image)?);
            let mut stored = stored(&ready, id, &found);
            if self.shared {
                self.survey_leases(&ready, &mut stored, &mut survey.leftovers)?;
            }
            survey.volumes.push(stored);
        }
        for (local, found) in each::<SnapshotMeta>(&ready)? {
            survey.leftovers.extend(half::<SnapshotMeta>(&ready, &local, found.image)?);
        }
        // What someone makes or deletes just now is no leftover.
        if !is_provisioned {
            for (parent, kind) in [(TMP, LeftoverKind::Draft), (TRASH, LeftoverKind::Trash)] {
                let parent = ready.path.join(parent);
                let names = files::names(&parent).map_err(|error| ready.down(error.to_string()))?;
                let passing = names.iter().map(|name| passing(&parent, name, kind));
                survey.leftovers.extend(passing.collect::<Result<Vec<_>>>()?);
            }
        }
        Ok(())
    }

    /// The nodes that have a volume of a shared pool; and this node's lease, which is left over where the journal has no stage.
    fn survey_leases(&self, ready: &Ready, stored: &mut Stored, leftovers: &mut Vec<Leftover>) -> Result<()> {
        let id = stored.id.clone();
        let left = |kind, path: PathBuf, what: &str| Leftover {
            kind,
            id: id.to_string(),
            commands: vec![words(&["rm", "--", &path.display().to_string()])],
            object: path,
            what: what.to_owned(),
            removable: false,
        };
        match attach::using(ready, &id) {
            Ok(nodes) => stored.attached = nodes.unwrap_or_default().into_iter().collect(),
            Err(Error::Unverified { device, reason }) => leftovers.push(left(LeftoverKind::LeaseDamaged, device.into(), &reason)),
            Err(error) => return Err(error),
        }
        let own = self.holder.as_ref().map(|holder| lease::own(ready, &id, holder)).transpose().unwrap_or_default();
        let what = "this node keeps others from the volume, and has no stage of it";
        leftovers.extend(own.into_iter().flatten().map(|path| left(LeftoverKind::Lease, path, what)));
        Ok(())
    }

    /// The volume of which a device shows, or once showed, the image; `None` where it has nothing to do with our pools. `pools` are their
    /// paths, and the numbers of the file systems of those that can be seen: in another mount namespace, as of another node of the same
    /// kernel, another file system has the same path.
    fn shown(&self, device: &Loop, file: &Path, images: &Images, pools: &[(PathBuf, Option<u64>)]) -> Option<Connected> {
        let labelled = device.label.parse::<VolumeId>().ok().filter(|id| *id.backend() == self.name);
        let lies_in = |(path, number): &(PathBuf, Option<u64>)| {
            file.starts_with(path) && number.is_none_or(|number| number == device.backing.0)
        };
        let (id, identity) = match images.get(&device.backing) {
            Some(known) => known.clone(),
            None if pools.iter().any(lies_in) => (labelled?, numbers(device.backing)),
            None => return None,
        };
        let label = id.to_string();
        let Source::Device(of) = source(device, identity) else { return None };
        Some(Connected {
            ours: device.label.as_bytes() == label.as_bytes().get(..LABEL).unwrap_or(label.as_bytes()),
            shows: file.display().to_string(),
            size: Device::open(&device.path, false).and_then(|open| open.size()).ok().map(Bytes),
            release: words(&["losetup", "--detach", &device.path.display().to_string()]),
            device: of,
            id,
        })
    }
}

impl Inspect for ImageBackend {
    fn survey(&self) -> Result<Survey> {
        let mut survey = Survey::default();
        let mut images = Images::new();
        for pool in &self.pools {
            if let Err(error) = self.survey_pool(pool, &mut images, &mut survey) {
                let what = format!("pool {} of backend {} ({})", pool.config.name, self.name, pool.config.path.display());
                survey.unseen.push((what, error.to_string()));
            }
        }
        survey.volumes.sort_by(|a, b| a.id.cmp(&b.id));
        let number = |pool: &Pool| pool.ready().ok().map(|ready| ready.inode.0);
        let place = |pool: &Arc<Pool>| Some((pool.config.path.canonicalize().ok()?, number(pool)));
        let pools: Vec<_> = self.pools.iter().filter_map(place).collect();
        let (devices, silent) = loopdev::list()?;
        survey.unseen.extend(silent.iter().map(|silent| {
            let reason = format!(
                "{}; the disk or server of its file may hang, or be gone: see /sys/block for which that is",
                silent.reason
            );
            (format!("loop device {}", silent.device.display()), reason)
        }));
        for device in devices {
            if let Some(file) = loopdev::file_of(&device.path)? {
                survey.devices.extend(self.shown(&device, &file, &images, &pools));
            }
        }
        Ok(survey)
    }

    fn release(&self, reported: &BlockDevice) -> Result<()> {
        match status(&reported.path)? {
            Some(device) if shows(reported, device.backing) => {
                step("detach loop device", &device.path.display(), || loopdev::detach(&device.path, device.backing))?;
                Ok(())
            }
            _ => Err(changed(reported.path.display())),
        }
    }

    fn remove(&self, leftover: &Leftover) -> Result<()> {
        let parents = |pool: &Pool| [TMP, TRASH].map(|parent| pool.config.path.join(parent));
        let of = |pool: &&Arc<Pool>| leftover.object.parent().is_some_and(|parent| parents(pool).iter().any(|one| one == parent));
        let pool = self.pools.iter().find(of).ok_or_else(|| changed(leftover.object.display()))?;
        let _lock = pool.keep_off()?;
        step("remove leftover", &leftover.object.display(), || files::remove_directory(&leftover.object))?;
        Ok(())
    }
}

/// All volumes or snapshots of a pool, but for those that were deleted while we looked.
fn each<M: About>(ready: &Ready) -> Result<Vec<(String, Examined<M>)>> {
    let mut names = files::names(&ready.path.join(M::KIND.directory())).map_err(|error| ready.down(error.to_string()))?;
    names.retain(|local| VolumeId::from_parts(&ready.backend, local).is_ok());
    names.sort_unstable();
    let mut found = Vec::with_capacity(names.len());
    for local in names {
        let examined = examine::<M>(ready, &local);
        if examined.damage.is_empty() || ready.has(M::KIND, &local)? {
            found.push((local, examined));
        }
    }
    Ok(found)
}

fn stored(ready: &Ready, id: VolumeId, found: &Examined<VolumeMeta>) -> Stored {
    Stored {
        at: ready.place(Kind::Volume, id.local()).join(IMAGE).display().to_string(),
        capacity: found.meta.as_ref().map(|meta| meta.capacity).or(found.image.map(|image| Bytes(image.length))),
        allocated: found.image.map(|image| Bytes(image.allocated)),
        created: found.meta.as_ref().map(|meta| from_nanos(meta.created)),
        attached: Vec::new(),
        health: super::health::assess(&found.damage),
        id,
    }
}

/// An image without metadata, or metadata without an image.
fn half<M: About>(ready: &Ready, local: &str, image: Option<Seen>) -> Result<Option<Leftover>> {
    let directory = ready.place(M::KIND, local);
    let known = files::look(ready.root(), &Path::new(M::KIND.directory()).join(local).join(META))?.is_some();
    let (kind, what) = match (image, known) {
        (Some(_), true) => return Ok(None),
        (Some(_), false) => (LeftoverKind::WithoutMetadata, format!("its {META} is gone; put it back, or move the data aside")),
        (None, true) => (LeftoverKind::WithoutData, format!("its {IMAGE} is gone; put it back, or give the volume up")),
        (None, false) => (LeftoverKind::WithoutData, "the directory holds neither data nor metadata".to_owned()),
    };
    let seconds = meta::to_nanos(SystemTime::now()) / 1_000_000_000;
    let aside = ready.path.join(RETAINED).join(format!("{local}.{seconds}"));
    let (from, to) = (directory.display().to_string(), aside.display().to_string());
    let command = words(&["mv", "--no-clobber", "--no-target-directory", "--", &from, &to]);
    let id = format!("{}:{local}", ready.backend);
    Ok(Some(Leftover { kind, id, object: directory, what, commands: vec![command], removable: false }))
}

/// Something in `tmp` or `trash`, which belongs to nobody.
fn passing(parent: &Path, name: &str, kind: LeftoverKind) -> Result<Leftover> {
    let object = parent.join(name);
    let inside = match files::names(&object) {
        Err(error) if error.is_missing() => Vec::new(),
        names => names?,
    };
    let removable = inside.iter().all(|name| files::is_known(name));
    let what = match (kind, removable) {
        (_, false) => "it holds what is not ours; look at it by hand".to_owned(),
        (LeftoverKind::Trash, _) => "its deletion was interrupted".to_owned(),
        _ => "its making was interrupted".to_owned(),
    };
    let path = |name: &String| object.join(name).display().to_string();
    let mut commands = vec![words(&["rm", "--force", "--"]), words(&["rmdir", "--", &object.display().to_string()])];
    match commands.first_mut() {
        Some(remove) if removable && !inside.is_empty() => remove.extend(inside.iter().map(path)),
        _ => drop(commands.remove(0)),
    }
    if !removable {
        commands = vec![words(&["ls", "-la", "--", &object.display().to_string()])];
    }
    Ok(Leftover { kind, id: name.to_owned(), object, what, commands, removable })
}

//! The node's side: loop devices over memory, and what a tmpfs needs to be mounted.
//!
//! What a device is we ask the kernel, never ourselves: a loop device is a volume's if its backing file has the volume's
//! device and inode. That holds also for a device left by an earlier process, whose memfd only the device still has.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use super::contents::{Contents, identity_text};
use super::store::StoredVolume;
use super::{Fake, Medium};
use crate::backend::{BlockDevice, Connect, ConnectRequest, Source};
use crate::os::block::Device;
use crate::os::loopdev::{self, Loop};
use crate::os::step::step;
use crate::os::{self, memfd};
use crate::volume::{Bytes, Error, Outcome, Result, VolumeId};

impl Connect for Fake {
    fn connect(&self, request: &ConnectRequest<'_>) -> Result<Outcome<Source>> {
        let medium = {
            let state = self.store.lock();
            let volume = state.volume(request.id)?;
            self.may_connect(request.id, volume)?;
            volume.medium
        };
        match medium {
            Medium::Block => self.connect_device(request.id, request.read_only),
            Medium::Filesystem => step("connect tmpfs", request.id, || {
                let mut state = self.store.lock();
                let volume = state.volume_mut(request.id)?;
                let source = tmpfs(request.id, volume.capacity);
                let before = std::mem::replace(&mut volume.connected, true);
                Ok(if before { Outcome::Unchanged(source) } else { Outcome::Changed(source) })
            }),
        }
    }

    fn connected(&self, id: &VolumeId, hint: Option<&Source>) -> Result<Option<Source>> {
        let known = {
            let state = self.store.lock();
            let volume = state.volume(id).ok();
            if let Some(tmpfs_of) = volume.filter(|volume| volume.medium == Medium::Filesystem) {
                return Ok(tmpfs_of.connected.then(|| tmpfs(id, tmpfs_of.capacity)));
            }
            volume.map(|volume| volume.contents.clone())
        };
        let device = match known {
            Some(Some(contents)) => self.devices_over(id, &contents, hint)?.into_iter().next(),
            // Nobody has looked at it since this process started: whatever the hint names is of another life.
            Some(None) => None,
            None => self.leftover(id, hint)?,
        };
        Ok(device.map(device_source))
    }

    fn is_same_device(&self, source: &Source) -> Result<bool> {
        match source {
            Source::Device(device) => Ok(bound_as(device)?.is_some()),
            Source::Filesystem { .. } => Ok(true),
            Source::Directory(_) => Ok(false),
        }
    }

    fn disconnect(&self, id: &VolumeId, hint: Option<&Source>) -> Result<Outcome<()>> {
        let known = self.store.lock().volume(id).ok().map(|volume| (volume.connected, volume.contents.clone()));
        let (mounted, contents) = known.unwrap_or_default();
        let mut devices = contents.map_or_else(|| Ok(Vec::new()), |contents| self.devices_over(id, &contents, hint))?;
        devices.extend(self.leftover(id, hint)?);
        for device in &devices {
            step("detach loop device", &device.path.display(), || loopdev::detach(&device.path, device.backing))?;
        }
        if mounted {
            step("disconnect tmpfs", id, || self.store.lock().volume_mut(id).map(|volume| volume.connected = false))?;
        }
        Ok(if mounted || !devices.is_empty() { Outcome::Changed(()) } else { Outcome::Unchanged(()) })
    }

    fn refresh(&self, id: &VolumeId, source: &Source) -> Result<Bytes> {
        let (capacity, contents) = {
            let state = self.store.lock();
            let volume = state.volume(id)?;
            (volume.capacity, volume.contents.clone())
        };
        // A tmpfs that is mounted has the volume's size: it is not grown meanwhile.
        let Source::Device(device) = source else { return Ok(capacity) };
        match bound_as(device)?.filter(|bound| contents.is_some_and(|contents| contents.identity == bound.backing)) {
            Some(bound) => {
                let size = step("refresh loop device", &bound.path.display(), || loopdev::refresh(&bound.path))?;
                Ok(Bytes(size))
            }
            None => Err(unproven(&device.path, id)),
        }
    }

    fn backing_file(&self, id: &VolumeId, device: &Device) -> Result<Option<File>> {
        let contents = self.store.lock().volume(id)?.contents.clone();
        let backing = loopdev::backing_of(device)?;
        let contents = contents.filter(|contents| backing == Some(contents.identity));
        let contents = contents.ok_or_else(|| unproven(device.path(), id))?;
        // What was written to the device may still be on its way to the memfd.
        device.flush()?;
        let file = contents.file.try_clone().map_err(|error| os::Error::io("clone descriptor of", id.to_string(), error))?;
        Ok(Some(file))
    }

    fn used(&self, id: &VolumeId) -> Result<Option<Bytes>> {
        let contents = match self.store.lock().volume(id) {
            Ok(volume) if volume.medium == Medium::Block => volume.contents.clone(),
            // Of a tmpfs its mount knows; of a volume of another life nobody.
            _ => return Ok(None),
        };
        let used = contents.map_or(Ok(0), |contents| memfd::used(&contents.file))?;
        Ok(Some(Bytes(used)))
    }

    fn limit(&self) -> Option<u64> {
        self.volumes_per_node
    }
}

impl Fake {
    /// A volume that is attached may only be connected where it is attached. One that is not may be connected here: where
    /// controller and node are one process, some callers leave the attaching out.
    fn may_connect(&self, id: &VolumeId, volume: &StoredVolume) -> Result<()> {
        match volume.attached.keys().next() {
            Some(other) if !volume.attached.contains_key(&self.here) => Err(Error::WrongNode {
                object: format!("volume {id}"),
                reason: format!("it is attached to node {other}, this is {}", self.here),
            }),
            _ => Ok(()),
        }
    }

    fn connect_device(&self, id: &VolumeId, read_only: bool) -> Result<Outcome<Source>> {
        let contents = self.contents_of(id)?;
        if let Some(bound) = contents.devices(id)?.into_iter().next() {
            if bound.read_only == read_only {
                return Ok(Outcome::Unchanged(device_source(bound)));
            }
            let how = if bound.read_only { "read-only" } else { "read-write" };
            let by = format!("it is connected {how} as {}; unstage it there first", bound.path.display());
            return Err(Error::InUse { object: format!("volume {id}"), by });
        }
        let bound = step("attach loop device", id, || {
            loopdev::attach(&contents.file, &id.to_string(), read_only).map_err(|error| match contents.devices(id) {
                Ok(left) if left.is_empty() => Error::from(error).rolled_back(),
                _ => Error::from(error),
            })
        })?;
        Ok(Outcome::Changed(device_source(bound)))
    }

    /// The contents of a `block` volume, made now if nobody has looked at them yet. The caller holds the volume's lock.
    pub(super) fn contents_of(&self, id: &VolumeId) -> Result<Arc<Contents>> {
        let capacity = {
            let state = self.store.lock();
            let volume = state.volume(id)?;
            if let Some(contents) = &volume.contents {
                return Ok(contents.clone());
            }
            volume.capacity
        };
        step("make memfd", id, || {
            let contents = Arc::new(Contents::new(&id.to_string(), capacity).map_err(Error::rolled_back)?);
            self.store.lock().volume_mut(id)?.contents = Some(contents.clone());
            Ok(contents)
        })
    }

    /// The devices that show these contents. A hint that the kernel confirms spares the walk over all devices.
    fn devices_over(&self, id: &VolumeId, contents: &Contents, hint: Option<&Source>) -> Result<Vec<Loop>> {
        if let Some(Source::Device(device)) = hint
            && let Some(bound) = bound_as(device)?.filter(|bound| bound.backing == contents.identity)
        {
            return Ok(vec![bound]);
        }
        contents.devices(id)
    }

    /// The device that the hint names, if it is still what it was then and no volume of this process is behind it.
    fn leftover(&self, id: &VolumeId, hint: Option<&Source>) -> Result<Option<Loop>> {
        let Some(Source::Device(device)) = hint else { return Ok(None) };
        let Some(bound) = bound_as(device)? else { return Ok(None) };
        let owner = self.store.lock().owner(bound.backing).cloned();
        if let Some(owner) = owner {
            if owner != *id {
                tracing::warn!(volume = %id, device = %device.path.display(), %owner, "the journal names a device of another volume");
            }
            return Ok(None);
        }
        Ok(Some(bound))
    }
}

/// The loop device at this path, if it is bound to the file that it was bound to then.
fn bound_as(device: &BlockDevice) -> Result<Option<Loop>> {
    let bound = match loopdev::status(&device.path) {
        // No device any more, or something that never was a loop device.
        Err(os::Error::Unexpected { .. }) => None,
        Err(error) if matches!(error.errno(), Some(libc::ENOENT | libc::ENOTDIR | libc::ENOTTY | libc::EINVAL)) => None,
        bound => bound?,
    };
    Ok(bound.filter(|bound| bound.number == device.number && identity_text(bound.backing) == device.identity))
}

fn device_source(bound: Loop) -> Source {
    Source::Device(BlockDevice { path: bound.path, number: bound.number, identity: identity_text(bound.backing) })
}

/// Mode 0755 as in a file system just made; a tmpfs would be writable for all.
fn tmpfs(id: &VolumeId, capacity: Bytes) -> Source {
    let options = vec![format!("size={}", capacity.0), "mode=0755".to_owned()];
    Source::Filesystem { fstype: "tmpfs".to_owned(), source: id.to_string(), options }
}

fn unproven(device: &Path, id: &VolumeId) -> Error {
    Error::Unverified {
        device: device.display().to_string(),
        reason: format!("it does not show volume {id}; it is left as it is"),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    use super::super::testing::{Bench, GIB, Still, fake, id, loops_work, member, node, snapshot_id, spec};
    use super::*;
    use crate::backend::{Attach, Expand, Provision, Snapshots, VolumeSpec};
    use crate::os::fs::{Contents as Probed, probe};
    use crate::volume::{AccessMode, ContentSource, MountFlags, Secrets};

    fn device(source: Source) -> BlockDevice {
        match source {
            Source::Device(device) => device,
            Source::Filesystem { .. } | Source::Directory(_) => panic!("not a device: {source:?}"),
        }
    }

    fn write(device: &BlockDevice, offset: u64, bytes: &[u8]) {
        let file = File::options().write(true).open(&device.path).expect("a writable device");
        file.write_all_at(bytes, offset).expect("room");
        file.sync_all().expect("memory does not fail");
    }

    fn read<const N: usize>(device: &BlockDevice, offset: u64) -> [u8; N] {
        let mut bytes = [0; N];
        File::open(&device.path).expect("a readable device").read_exact_at(&mut bytes, offset).expect("inside");
        bytes
    }

    #[test]
    fn a_volume_is_a_device_that_keeps_what_is_written() {
        if !loops_work() {
            return;
        }
        let bench = Bench::new();
        bench.create("a", GIB);
        assert_eq!(bench.fake.connected(&id("a"), None).expect("kernel"), None);
        let source = bench.connect("a").expect("free").into_inner();
        let first = device(source.clone());
        assert_eq!(Device::open(&first.path, false).expect("a device").size().expect("a size"), GIB.0);
        assert_eq!(bench.connect("a").expect("a repeat"), Outcome::Unchanged(source.clone()));
        assert_eq!(bench.fake.connected(&id("a"), None).expect("kernel"), Some(source.clone()));
        assert_eq!(bench.fake.connected(&id("a"), Some(&source)).expect("kernel"), Some(source.clone()));
        write(&first, 4096, b"kept");
        assert!(matches!(bench.fake.delete(&id("a")), Err(Error::InUse { .. })), "while it is connected");
        assert_eq!(bench.fake.disconnect(&id("a"), Some(&source)).expect("idle"), Outcome::Changed(()));
        assert!(bench.fake.contents_of(&id("a")).expect("made").devices(&id("a")).expect("kernel").is_empty());
        assert_eq!(bench.fake.disconnect(&id("a"), Some(&source)).expect("a repeat"), Outcome::Unchanged(()));
        let again = device(bench.connect("a").expect("free").into_inner());
        assert_eq!(&read(&again, 4096), b"kept");
        assert_eq!(again.identity, first.identity);
        bench.fake.disconnect(&id("a"), None).expect("found without a hint");
        bench.fake.delete(&id("a")).expect("no longer connected");
        assert!(matches!(bench.connect("a"), Err(Error::NotFound { .. })));
    }

    #[test]
    fn data_of_a_device_is_in_its_snapshots_and_restored_volumes() {
        if !loops_work() {
            return;
        }
        let bench = Bench::new();
        bench.create("a", GIB);
        let first = device(bench.connect("a").expect("free").into_inner());
        write(&first, 1 << 20, b"old");
        bench.fake.create_snapshot(&member("s", "a"), &Still::default()).expect("fits");
        write(&first, 1 << 20, b"new");
        let restore = VolumeSpec { source: Some(ContentSource::Snapshot(snapshot_id("s"))), ..spec("b", Bytes(2 * GIB.0)) };
        bench.fake.create(&restore, &Still::default()).expect("fits");
        let second = device(bench.connect("b").expect("free").into_inner());
        assert_eq!((&read(&first, 1 << 20), &read(&second, 1 << 20)), (b"new", b"old"));
        assert_ne!(first.identity, second.identity);
        assert_eq!(Device::open(&second.path, false).expect("a device").size().expect("a size"), 2 * GIB.0);
    }

    #[test]
    fn a_read_only_connection_takes_no_writes() {
        if !loops_work() {
            return;
        }
        let bench = Bench::new();
        bench.create("a", GIB);
        let source = bench.connect_as("a", true).expect("free").into_inner();
        assert!(Device::open(&device(source).path, false).expect("a device").read_only().expect("a flag"));
        assert!(matches!(bench.connect_as("a", false), Err(Error::InUse { .. })), "not turned under someone's feet");
    }

    #[test]
    fn growth_shows_on_the_device_once_it_is_refreshed() {
        if !loops_work() {
            return;
        }
        let bench = Bench::new();
        bench.create("a", GIB);
        bench.create("b", GIB);
        let source = bench.connect("a").expect("free").into_inner();
        let twice = Bytes(2 * GIB.0);
        bench.fake.expand(&id("a"), twice).expect("room");
        assert_eq!(bench.fake.refresh(&id("a"), &source).expect("its own"), twice);
        assert_eq!(Device::open(&device(source.clone()).path, false).expect("a device").size().expect("a size"), twice.0);
        assert!(matches!(bench.fake.refresh(&id("b"), &source), Err(Error::Unverified { .. })), "another's device");
    }

    #[test]
    fn backing_file_is_the_volumes_own_and_holds_its_data() {
        if !loops_work() {
            return;
        }
        let bench = Bench::new();
        bench.create("a", GIB);
        bench.create("b", GIB);
        assert_eq!(bench.fake.used(&id("a")).expect("known"), Some(Bytes(0)));
        let source = bench.connect("a").expect("free").into_inner();
        let open = Device::open(&device(source.clone()).path, false).expect("a device");
        let probed = || {
            let beneath = bench.fake.backing_file(&id("a"), &open).expect("its own");
            probe(&open, beneath.as_ref().into()).expect("a size")
        };
        assert_eq!(probed(), Probed::Blank);
        assert!(matches!(bench.fake.backing_file(&id("b"), &open), Err(Error::Unverified { .. })), "another's");
        let file = File::options().write(true).open(&device(source.clone()).path).expect("a writable device");
        // Not synced: it is in the device's cache only.
        file.write_all_at(b"x", GIB.0 / 2).expect("room");
        assert!(matches!(probed(), Probed::Unknown(_)));
        assert!(bench.fake.used(&id("a")).expect("known").expect("a block volume") >= Bytes(4096));
    }

    #[test]
    fn a_device_of_an_earlier_process_is_recognised_and_undone_by_its_hint() {
        if !loops_work() {
            return;
        }
        let earlier = Bench::new();
        earlier.create("a", GIB);
        let source = earlier.connect("a").expect("free").into_inner();
        let later = fake(|_| ());
        assert!(matches!(later.connected(&id("a"), None), Ok(None)));
        assert_eq!(later.connected(&id("a"), Some(&source)).expect("kernel"), Some(source.clone()));
        let backing = || loopdev::status(&device(source.clone()).path).expect("kernel").map(|bound| bound.backing);
        let its = backing();
        assert!(its.is_some());
        assert_eq!(later.disconnect(&id("a"), Some(&source)).expect("idle"), Outcome::Changed(()));
        assert_ne!(backing(), its, "free, or another's by now");
        assert_eq!(later.disconnect(&id("a"), Some(&source)).expect("a repeat"), Outcome::Unchanged(()));
        assert_eq!(earlier.fake.connected(&id("a"), Some(&source)).expect("kernel"), None);
    }

    #[test]
    fn a_wrong_hint_is_never_believed() {
        if !loops_work() {
            return;
        }
        let bench = Bench::new();
        bench.create("a", GIB);
        bench.create("b", GIB);
        let right = device(bench.connect("a").expect("free").into_inner());
        let other = bench.connect("b").expect("free").into_inner();
        let hints = [
            Source::Device(BlockDevice { identity: "memfd:1:0".to_owned(), ..right.clone() }),
            Source::Device(BlockDevice { number: (7, 4_000), ..right.clone() }),
            Source::Device(BlockDevice { path: "/dev/loop4000000".into(), ..right.clone() }),
            Source::Device(BlockDevice { path: "/dev/null".into(), ..right.clone() }),
            Source::Filesystem { fstype: "tmpfs".to_owned(), source: "a".to_owned(), options: Vec::new() },
        ];
        for hint in hints {
            assert_eq!(
                bench.fake.connected(&id("a"), Some(&hint)).expect("kernel"),
                Some(Source::Device(right.clone())),
                "{hint:?}"
            );
            assert_eq!(bench.fake.connected(&id("none"), Some(&hint)).expect("kernel"), None, "{hint:?}");
            assert_eq!(bench.fake.disconnect(&id("none"), Some(&hint)).expect("kernel"), Outcome::Unchanged(()), "{hint:?}");
        }
        for stranger in ["a", "none"] {
            assert_ne!(bench.fake.connected(&id(stranger), Some(&other)).expect("kernel").as_ref(), Some(&other));
        }
        bench.fake.disconnect(&id("a"), Some(&other)).expect("its own goes");
        assert_eq!(bench.fake.connected(&id("b"), None).expect("kernel"), Some(other), "the other stays");
    }

    #[test]
    fn an_attached_volume_is_connected_only_where_it_is_attached() {
        let bench = Bench::with(|config| {
            config.nodes.insert(node("there"));
        });
        bench.tmpfs("a", GIB);
        let attach = |to| bench.fake.attach(&id("a"), &node(to), AccessMode::SingleNodeWriter, false);
        attach("there").expect("free");
        assert!(matches!(bench.connect("a"), Err(Error::WrongNode { .. })));
        bench.fake.detach(&id("a"), None).expect("attached");
        attach("here").expect("free");
        bench.connect("a").expect("attached here");
    }

    #[test]
    fn a_tmpfs_is_described_and_nothing_is_done_to_the_kernel() {
        let bench = Bench::new();
        bench.tmpfs("a", GIB);
        let expected = Source::Filesystem {
            fstype: "tmpfs".to_owned(),
            source: id("a").to_string(),
            options: vec![format!("size={}", GIB.0), "mode=0755".to_owned()],
        };
        assert_eq!(bench.fake.connected(&id("a"), Some(&expected)).expect("known"), None);
        assert_eq!(bench.connect("a").expect("nothing can fail"), Outcome::Changed(expected.clone()));
        assert_eq!(bench.connect("a").expect("a repeat"), Outcome::Unchanged(expected.clone()));
        assert_eq!(bench.fake.connected(&id("a"), None).expect("known"), Some(expected.clone()));
        assert_eq!(bench.fake.refresh(&id("a"), &expected).expect("known"), GIB);
        assert_eq!(bench.fake.used(&id("a")).expect("its mount knows"), None);
        assert_eq!(bench.fake.disconnect(&id("a"), Some(&expected)).expect("known"), Outcome::Changed(()));
        assert_eq!(bench.fake.disconnect(&id("a"), None).expect("known"), Outcome::Unchanged(()));
        let (context, secrets) = (BTreeMap::new(), Secrets::default());
        let request = ConnectRequest {
            id: &id("none"),
            parameters: &serde_json::Value::Null,
            publish_context: &context,
            secrets: &secrets,
            mount_flags: &MountFlags::default(),
            read_only: false,
            earlier: None,
        };
        assert!(matches!(bench.fake.connect(&request), Err(Error::NotFound { .. })));
    }
}

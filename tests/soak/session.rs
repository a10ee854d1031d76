//! What a worker does with a volume that it owns, and to one that another owns.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{Seek, SeekFrom, Write};
use std::sync::MutexGuard;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use longshore::csi;
use tonic::{Code, Status};

use super::calls::Calls;
use super::common::{MIB, create, stage_request, text};
use super::model::{Content, Group, Op, PIECES, Piece, SNAPSHOTS, Slot, Snapshot, TARGETS, Volume};
use super::shared::{Known, Place};
use super::worker::{Answer, Manner, Worker};

/// No pool has room for it, in MiB.
const HUGE: i64 = 1 << 30;
/// Grown no further than by this, in bytes.
const GROWTH: i64 = 48 * MIB;

type Source = csi::VolumeContentSource;

fn of_snapshot(snapshot_id: String) -> Source {
    use csi::volume_content_source::{SnapshotSource, Type};
    Source { r#type: Some(Type::Snapshot(SnapshotSource { snapshot_id })) }
}

fn of_volume(volume_id: String) -> Source {
    use csi::volume_content_source::{Type, VolumeSource};
    Source { r#type: Some(Type::Volume(VolumeSource { volume_id })) }
}

impl<'w> Worker<'w> {
    /// One turn: with a volume of one's own, or against another's.
    pub fn turn(&mut self, volumes: usize) {
        let place = self.any(volumes);
        match place.try_own() {
            Some(mut slot) if self.random.chance(85) => self.own(place, &mut slot),
            own => {
                drop(own);
                self.misuse_of_another(place, volumes);
            }
        }
    }

    fn any(&mut self, volumes: usize) -> &'w Place {
        &self.shared.places[self.random.below(volumes as u64) as usize]
    }

    fn own(&mut self, place: &'w Place, slot: &mut Slot) {
        if slot.broken || self.rests(slot) {
            return;
        }
        self.settle(place, slot);
        if slot.pending.is_some() || slot.broken {
            return;
        }
        self.look(place, slot, "some time");
        for _ in 0..1 + self.random.below(6) {
            if slot.pending.is_some() || slot.broken || self.rests(slot) {
                return;
            }
            self.step(place, slot);
        }
    }

    fn rests(&self, slot: &Slot) -> bool {
        slot.rest.is_some_and(|rest| Instant::now() < rest.until && rest.incarnation == self.shared.incarnation())
    }

    /// Another volume, whose state is known and stays so while the guard is held.
    fn other(&mut self, not: &[usize]) -> Option<(&'w Place, MutexGuard<'w, Slot>)> {
        let place = &self.shared.places[self.random.below(super::VOLUMES as u64) as usize];
        if not.contains(&place.index) {
            return None;
        }
        let slot = place.try_own()?;
        (!slot.broken && slot.pending.is_none() && !self.rests(&slot)).then_some((place, slot))
    }

    fn step(&mut self, place: &'w Place, slot: &mut Slot) {
        if self.random.chance(12) {
            return self.misuse_of_own(place, slot);
        }
        if self.random.chance(8) {
            return self.read(place, slot);
        }
        // Often enough that there are not too many to be restored at the end.
        if self.random.chance(12) {
            return self.unsnapshot(place, slot);
        }
        let Some(volume) = &slot.volume else {
            return if self.random.chance(90) { self.create(place, slot) } else { self.carry(place, slot, Op::Delete) };
        };
        let free: Vec<usize> = (0..TARGETS).filter(|target| volume.targets[*target].is_none()).collect();
        let published: Vec<usize> = volume.published().collect();
        let choice = self.random.below(100);
        match choice {
            0..6 => return self.snapshot(place, slot),
            6..8 => return self.group(place, slot),
            8..13 => {
                let (now, least) = (volume.capacity, volume.request.capacity_range.unwrap_or_default().required_bytes);
                let capacity = (now + i64::try_from(1 + self.random.below(12)).expect("small") * MIB).min(least + GROWTH);
                return self.carry(place, slot, Op::Expand { capacity });
            }
            13..16 => {
                let on_delete = *self.random.pick(&["delete", "delete", "retain", "archive", "scrub"]);
                return self.carry(place, slot, Op::Modify { on_delete });
            }
            // The same again; mutable parameters would be set again, too.
            16..18 if volume.request.mutable_parameters.is_empty() => {
                let again = volume.request.clone();
                self.expect(place, Some(slot), "Create again", &[Code::Ok], async |calls| {
                    calls.controller().create_volume(calls.ask(again)).await
                });
                return;
            }
            _ => {}
        }
        if !volume.staged {
            let op = if choice < 75 { Op::Stage } else { Op::Delete };
            return self.carry(place, slot, op);
        }
        match choice {
            18..30 if published.is_empty() => self.carry(place, slot, Op::Unstage),
            18..35 if !published.is_empty() => {
                let target = *self.random.pick(&published);
                self.carry(place, slot, Op::Unpublish { target });
            }
            // This kernel does not let us grow a mounted ext4.
            35..40 if volume.fstype != Some("ext4") => self.carry(place, slot, Op::NodeExpand),
            // The same again.
            40..43 => {
                let (shared, asked) = (self.shared, slot.volume.clone());
                let asked = Slot { volume: asked, ..Slot::default() };
                self.expect(place, Some(slot), "Stage again", &[Code::Ok], async |calls| {
                    calls.perform(shared, place, &asked, &Op::Stage).await.map(tonic::Response::new)
                });
            }
            43..75 if !published.is_empty() => self.write(place, slot),
            75..85 if !published.is_empty() => self.compare(place, slot),
            _ if !free.is_empty() => {
                // A raw device is read-only at all its targets, or at none.
                let raw = published.first().filter(|_| volume.raw()).and_then(|target| volume.targets[*target]);
                let read_only = raw.unwrap_or_else(|| self.random.chance(20));
                let target = *self.random.pick(&free);
                self.carry(place, slot, Op::Publish { target, read_only });
            }
            _ => self.compare(place, slot),
        }
    }

    /// A new volume: empty, from a snapshot of anyone's, or from anyone's volume.
    fn create(&mut self, place: &'w Place, slot: &mut Slot) {
        let (other, how) = (self.other(&[place.index]), self.random.below(100));
        let from = match &other {
            _ if how < 50 => None,
            Some((owner, owned)) if how < 75 => self.a_snapshot(owner, owned),
            Some((owner, owned)) => owned.volume.as_ref().map(|volume| (of_volume(owner.volume_id()), volume.snapshot())),
            None => self.a_snapshot(place, slot),
        };
        let from = from.as_ref().map(|(source, snapshot)| (source.clone(), snapshot));
        let volume = Volume::plan(&mut self.random, &place.name(), from);
        self.carry(place, slot, Op::Create(Box::new(volume)));
    }

    fn a_snapshot(&mut self, place: &Place, slot: &Slot) -> Option<(Source, Snapshot)> {
        let own = slot
            .snapshots
            .iter()
            .enumerate()
            .filter_map(|(number, snapshot)| Some((place.snapshot_id(number), snapshot.clone()?)));
        let members = slot.group.iter().flat_map(|group| &group.members);
        let members = members.map(|(name, snapshot)| (place.member_id(name).to_string(), snapshot.clone()));
        let all: Vec<(String, Snapshot)> = own.chain(members).collect();
        let (id, snapshot) = if all.is_empty() { return None } else { self.random.pick(&all) };
        Some((of_snapshot(id.clone()), snapshot.clone()))
    }

    /// Half of them while a pod writes.
    fn snapshot(&mut self, place: &'w Place, slot: &mut Slot) {
        let Some(number) = (0..SNAPSHOTS).find(|number| slot.snapshots[*number].is_none()) else {
            return self.unsnapshot(place, slot);
        };
        let op = Op::Snapshot { number };
        let Some((raw, target)) = self.writable(slot).filter(|_| self.random.chance(50)) else {
            return self.carry(place, slot, op);
        };
        let path = self.shared.target(place, target);
        let key = self.random.below(u64::from(PIECES)) as u32;
        let piece = Piece::new(&mut self.random, raw);
        slot.writing.insert(key);
        let written = std::thread::scope(|scope| {
            let writer = scope.spawn(|| Content::write(raw, &path, key, piece));
            self.carry(place, slot, op);
            writer.join().expect("the writer ends")
        });
        self.note(place, &format!("write f{key} {piece:?} at target {target} meanwhile"), &format!("{written:?}"));
        if slot.pending.is_none() {
            slot.writing.clear();
        }
        self.wrote(place, slot, key, piece, written);
    }

    fn unsnapshot(&mut self, place: &Place, slot: &mut Slot) {
        if slot.group.is_some() && self.random.chance(50) {
            return self.carry(place, slot, Op::DeleteGroup);
        }
        let there = (0..SNAPSHOTS).find(|number| slot.snapshots[*number].is_some()).filter(|_| self.random.chance(80));
        let number = there.unwrap_or_else(|| self.random.below(SNAPSHOTS as u64) as usize);
        self.carry(place, slot, Op::DeleteSnapshot { number });
    }

    fn group(&mut self, place: &'w Place, slot: &mut Slot) {
        let Some(volume) = &slot.volume else { return };
        if slot.group.is_some() {
            return self.carry(place, slot, Op::DeleteGroup);
        }
        let mut members = BTreeMap::from([(place.name(), volume.snapshot())]);
        let mut held: Vec<(&Place, MutexGuard<'_, Slot>)> = Vec::new();
        for _ in 0..self.random.below(4) {
            let taken: Vec<usize> = held.iter().map(|(other, _)| other.index).chain([place.index]).collect();
            if let Some((other, owned)) = self.other(&taken)
                && let Some(volume) = &owned.volume
            {
                members.insert(other.name(), volume.snapshot());
                held.push((other, owned));
            }
        }
        self.carry(place, slot, Op::Group(Group { members }));
    }

    fn writable(&mut self, slot: &Slot) -> Option<(bool, usize)> {
        let volume = slot.volume.as_ref()?;
        let targets: Vec<usize> = volume.published().filter(|target| volume.targets[*target] == Some(false)).collect();
        if targets.is_empty() { None } else { Some((volume.raw(), *self.random.pick(&targets))) }
    }

    fn write(&mut self, place: &Place, slot: &mut Slot) {
        let Some((raw, target)) = self.writable(slot) else { return self.compare(place, slot) };
        let key = self.random.below(u64::from(PIECES)) as u32;
        let piece = Piece::new(&mut self.random, raw);
        let written = Content::write(raw, &self.shared.target(place, target), key, piece);
        self.note(place, &format!("write f{key} {piece:?} at target {target}"), &format!("{written:?}"));
        self.wrote(place, slot, key, piece, written);
    }

    fn wrote(&mut self, place: &Place, slot: &mut Slot, key: u32, piece: Piece, written: Result<(), String>) {
        if let Err(what) = written {
            self.violation(place, slot, &what);
        }
        if let Some(volume) = &mut slot.volume {
            volume.content.pieces.insert(key, piece);
            volume.content.unsure.remove(&key);
        }
    }

    /// All that is written must be at every target, and a read-only one takes no writes.
    pub fn compare(&mut self, place: &Place, slot: &mut Slot) {
        let Some(volume) = &slot.volume else { return };
        let mut wrong = Vec::new();
        for target in volume.published() {
            let path = self.shared.target(place, target);
            self.shared.counts.compared.fetch_add(1, Ordering::Relaxed);
            wrong.extend(volume.content.compare(volume.raw(), &path).err());
            if volume.targets[target] == Some(true) {
                let file = if volume.raw() { path.clone() } else { path.join("f0") };
                // The device's last byte; a device that takes no writes can be opened for writing.
                let written =
                    fs::OpenOptions::new().write(true).create(!volume.raw()).truncate(false).open(file).and_then(|mut file| {
                        file.seek(SeekFrom::End(-1))?;
                        file.write_all(&[0])?;
                        file.sync_all()
                    });
                if written.is_ok() {
                    wrong.push(format!("target {target} is read-only, and can be written"));
                }
            }
            if volume.raw() {
                let size = fs::File::open(&path).and_then(|mut device| device.seek(SeekFrom::End(0)));
                if size.as_ref().ok() != Some(&volume.device.unsigned_abs()) {
                    wrong.push(format!("the device at target {target} has {size:?} bytes, not {}", volume.device));
                }
            }
        }
        for what in wrong {
            self.violation(place, slot, &what);
        }
    }

    /// What a reading call must answer.
    fn read(&mut self, place: &Place, slot: &mut Slot) {
        let id = place.volume_id();
        let known = slot.volume.clone();
        let there = [if known.is_some() { Code::Ok } else { Code::NotFound }];
        let mut wrong = Vec::new();
        let request = csi::ControllerGetVolumeRequest { volume_id: id.clone() };
        let got = self.expect(place, Some(slot), "GetVolume", &there, async |calls| {
            calls.controller().controller_get_volume(calls.ask(request)).await
        });
        if let (Some(got), Some(volume)) = (got, &known) {
            let reported = got.volume.unwrap_or_default().capacity_bytes;
            let nodes = got.status.unwrap_or_default().published_node_ids.len();
            if reported != volume.capacity || nodes != usize::from(volume.staged) {
                wrong.push(format!("GetVolume tells {reported} bytes on {nodes} nodes"));
            }
        }
        let request = csi::NodeGetVolumeHealthRequest { volume_id: id.clone(), ..Default::default() };
        let health = self.expect(place, Some(slot), "NodeHealth", &there, async |calls| {
            calls.node().node_get_volume_health(calls.ask(request)).await
        });
        if let Some(problems) = health.and_then(|health| health.volume_health).filter(|health| !health.health_statuses.is_empty())
        {
            wrong.push(format!("{problems:?}"));
        }
        if let Some(volume) = &known {
            let request = csi::ValidateVolumeCapabilitiesRequest {
                volume_id: id.clone(),
                volume_context: volume.context.clone(),
                volume_capabilities: vec![volume.capability()],
                parameters: volume.request.parameters.clone(),
                ..Default::default()
            };
            let answer = self.expect(place, Some(slot), "Validate", &[Code::Ok], async |calls| {
                calls.controller().validate_volume_capabilities(calls.ask(request)).await
            });
            wrong.extend(answer.filter(|answer| answer.confirmed.is_none()).map(|answer| answer.message));
            if let Some(target) = volume.published().next() {
                let volume_path = text(&self.shared.target(place, target));
                let request = csi::NodeGetVolumeStatsRequest { volume_id: id.clone(), volume_path, ..Default::default() };
                let stats = self.expect(place, Some(slot), "Stats", &[Code::Ok], async |calls| {
                    calls.node().node_get_volume_stats(calls.ask(request)).await
                });
                let total = stats.and_then(|stats| stats.usage.first().map(|usage| usage.total));
                if total.is_some_and(|total| total > volume.device || (volume.raw() && total != volume.device)) {
                    wrong.push(format!("its stats tell {total:?} bytes of {}", volume.device));
                }
            }
        }
        self.read_snapshots(place, slot, &mut wrong);
        for what in wrong {
            self.violation(place, slot, &what);
        }
    }

    fn read_snapshots(&mut self, place: &Place, slot: &mut Slot, wrong: &mut Vec<String>) {
        let request = csi::ListSnapshotsRequest { source_volume_id: place.volume_id(), ..Default::default() };
        let listed = self.expect(place, Some(slot), "ListSnapshots", &[Code::Ok], async |calls| {
            calls.controller().list_snapshots(calls.ask(request)).await
        });
        if let Some(listed) = listed {
            let listed = listed.entries.into_iter().filter_map(|entry| entry.snapshot);
            let alone: BTreeSet<String> =
                listed.filter(|snapshot| snapshot.group_snapshot_id.is_empty()).map(|snapshot| snapshot.snapshot_id).collect();
            let there = (0..SNAPSHOTS).filter(|number| slot.snapshots[*number].is_some());
            let expected: BTreeSet<String> = there.map(|number| place.snapshot_id(number)).collect();
            if alone != expected {
                wrong.push(format!("the list of its snapshots has {alone:?}, not {expected:?}"));
            }
        }
        for number in 0..SNAPSHOTS {
            let snapshot = slot.snapshots[number].clone();
            if snapshot.is_none() && !self.random.chance(20) {
                continue;
            }
            let there = [if snapshot.is_some() { Code::Ok } else { Code::NotFound }];
            let request = csi::GetMetadataAllocatedRequest { snapshot_id: place.snapshot_id(number), ..Default::default() };
            let blocks = self.expect(place, Some(slot), "Allocated", &there, async |calls| {
                let mut stream = calls.metadata().get_metadata_allocated(calls.ask(request)).await?.into_inner();
                let mut blocks = Vec::new();
                while let Some(message) = stream.message().await? {
                    blocks.extend(
                        message.block_metadata.iter().map(|block| block.byte_offset..block.byte_offset + block.size_bytes),
                    );
                }
                Ok(tonic::Response::new(blocks))
            });
            let (Some(blocks), Some(snapshot)) = (blocks, snapshot) else { continue };
            if !blocks.is_sorted_by(|left, right| left.end <= right.start) {
                wrong.push(format!("snapshot {number}'s blocks overlap or are not in order: {blocks:?}"));
            }
            let sure = snapshot.content.pieces.keys().filter(|key| !snapshot.content.unsure.contains(*key));
            for key in sure.filter(|_| snapshot.fstype.is_none()) {
                let start = i64::from(*key) * MIB;
                if !blocks.iter().any(|block| block.contains(&start)) {
                    wrong.push(format!("snapshot {number} has data at {key} MiB, which is not reported: {blocks:?}"));
                }
            }
        }
    }

    /// A call with a known end, which leaves everything as it is.
    pub fn expect<T>(
        &mut self,
        place: &Place,
        slot: Option<&mut Slot>,
        what: &str,
        codes: &[Code],
        ask: impl AsyncFnOnce(&Calls) -> Result<tonic::Response<T>, Status>,
    ) -> Option<T> {
        // What is given up while it changes something would have to be settled.
        let manner = if slot.is_some() { Manner::Patient } else { Manner::Any };
        let answer = self.call(place, what, manner, async |calls| ask(calls).await.map(tonic::Response::into_inner));
        let mut over = true;
        let found = match &answer {
            Answer::Ok(_) if !codes.contains(&Code::Ok) => Some(format!("{what} worked, where {codes:?} ought to come")),
            Answer::Ok(_) => None,
            Answer::Refused(status, _) if codes.contains(&status.code()) => None,
            Answer::Refused(status, may_fail) => {
                over = status.code() == Code::Internal;
                let fault = matches!(status.code(), Code::Internal | Code::Unavailable | Code::ResourceExhausted) && *may_fail;
                (!fault && status.code() != Code::Aborted)
                    .then(|| format!("{what}: {:?}: {}; {codes:?} ought to come", status.code(), status.message()))
            }
            Answer::Cut { .. } => {
                over = false;
                None
            }
        };
        match (found, slot) {
            (Some(found), Some(slot)) => self.violation(place, slot, &found),
            (Some(found), None) => self.shared.violation(Some(place), &found),
            (None, Some(slot)) if over => self.look(place, slot, what),
            (None, _) => {}
        }
        match answer {
            Answer::Ok(done) => Some(done),
            _ => None,
        }
    }

    /// What is refused, or has no effect, by one's own volume's state.
    fn misuse_of_own(&mut self, place: &'w Place, slot: &mut Slot) {
        let shared = self.shared;
        let state = slot.volume.clone();
        let staged = state.as_ref().is_some_and(|volume| volume.staged);
        let published = state.as_ref().and_then(|volume| volume.published().next());
        let snapshot = (0..SNAPSHOTS).find(|number| slot.snapshots[*number].is_some());
        let perform = |op: Op, slot: Slot| {
            async move |calls: &Calls| calls.perform(shared, place, &slot, &op).await.map(tonic::Response::new)
        };
        // A volume as it would be asked about: its own, or a plain one.
        let asked = state.clone().unwrap_or_else(|| Volume::plan(&mut self.random, &place.name(), None));
        let with = |volume: Volume| Slot { volume: Some(volume), ..Slot::default() };
        match (self.random.below(11), state) {
            // After a stage that failed, or is not over, a CO unstages.
            (0, None) => {
                self.refused(place, slot, "Stage of none", &[Code::NotFound], perform(Op::Stage, with(asked)));
                self.carry(place, slot, Op::Unstage);
            }
            (1, None) => {
                let op = Op::Expand { capacity: asked.capacity };
                self.refused(place, slot, "Expand of none", &[Code::NotFound], perform(op, with(asked)));
            }
            (2, None) => {
                let op = Op::Modify { on_delete: "delete" };
                self.refused(place, slot, "Modify of none", &[Code::NotFound], perform(op, with(asked)));
            }
            (3, None) => {
                if let Some(number) = (0..SNAPSHOTS).find(|number| slot.snapshots[*number].is_none()) {
                    let op = Op::Snapshot { number };
                    self.refused(place, slot, "Snapshot of none", &[Code::NotFound], perform(op, Slot::default()));
                }
            }
            (4, None) => {
                let mut request = asked.request.clone();
                request.volume_content_source = Some(of_snapshot("image:never".to_owned()));
                self.refused(place, slot, "Create from nothing", &[Code::NotFound], async move |calls: &Calls| {
                    calls.controller().create_volume(calls.ask(request)).await
                });
            }
            (5, None) => {
                let mut request = create(&place.name(), 100, Some("xfs"), "image");
                request.capacity_range = Some(csi::CapacityRange { required_bytes: 100 * MIB, limit_bytes: 200 * MIB });
                self.refused(place, slot, "Create of a small xfs", &[Code::OutOfRange], async move |calls: &Calls| {
                    calls.controller().create_volume(calls.ask(request)).await
                });
            }
            (6, None) => {
                if let Some(number) = snapshot {
                    let size = slot.snapshots[number].as_ref().expect("it was found").size;
                    let mut request = create(&place.name(), 1, None, "image");
                    // A small requirement is rounded up to the size of the source; a limit is kept.
                    request.capacity_range = Some(csi::CapacityRange { required_bytes: MIB, limit_bytes: size - 1 });
                    request.volume_content_source = Some(of_snapshot(place.snapshot_id(number)));
                    let what = "Create smaller than its snapshot";
                    self.refused(place, slot, what, &[Code::OutOfRange], async move |calls: &Calls| {
                        calls.controller().create_volume(calls.ask(request)).await
                    });
                }
            }
            (0, Some(_)) if staged => {
                self.refused(place, slot, "Delete in use", &[Code::FailedPrecondition], perform(Op::Delete, with(asked)));
            }
            (1, Some(_)) if published.is_some() => {
                self.refused(place, slot, "Unstage in use", &[Code::FailedPrecondition], perform(Op::Unstage, with(asked)));
            }
            (2, Some(_)) if !staged => {
                let op = Op::Publish { target: 0, read_only: false };
                self.refused(place, slot, "Publish unstaged", &[Code::FailedPrecondition], perform(op, with(asked)));
            }
            (3, Some(volume)) if published.is_some() => {
                let target = published.unwrap_or(0);
                let op = Op::Publish { target, read_only: volume.targets[target] == Some(false) };
                let codes = [Code::AlreadyExists, Code::FailedPrecondition];
                self.refused(place, slot, "Publish otherwise", &codes, perform(op, with(asked)));
            }
            (4, Some(volume)) if staged => {
                let request = csi::NodeStageVolumeRequest {
                    volume_context: volume.context.clone(),
                    ..stage_request(place.volume_id(), shared.staging(place).with_file_name("elsewhere"), volume.capability())
                };
                self.refused(place, slot, "Stage elsewhere", &[Code::AlreadyExists], async move |calls: &Calls| {
                    calls.node().node_stage_volume(calls.ask(request)).await
                });
            }
            // Another file system than the one that is on it; a volume that never had one would get it.
            (4 | 5, Some(volume)) if volume.formatted && !volume.raw() => {
                let fstype = if volume.fstype == Some("ext4") { Some("btrfs") } else { Some("ext4") };
                let code = if staged { Code::AlreadyExists } else { Code::FailedPrecondition };
                let other = Volume { fstype, ..volume };
                self.refused(place, slot, "Stage as another file system", &[code], perform(Op::Stage, with(other)));
                if !staged {
                    self.carry(place, slot, Op::Unstage);
                }
            }
            (6, Some(volume)) => {
                let mut request = volume.request.clone();
                match self.random.below(2) {
                    0 => {
                        request.capacity_range = Some(csi::CapacityRange { required_bytes: MIB, limit_bytes: MIB });
                    }
                    _ => {
                        request.parameters.insert("fsck".to_owned(), "false".to_owned());
                    }
                }
                self.refused(place, slot, "Create otherwise", &[Code::AlreadyExists], async move |calls: &Calls| {
                    calls.controller().create_volume(calls.ask(request)).await
                });
            }
            (7, _) => {
                if let Some(number) = snapshot
                    && let Some((other, owned)) = self.other(&[place.index])
                {
                    let request = csi::CreateSnapshotRequest {
                        source_volume_id: other.volume_id(),
                        name: place.snapshot_name(number),
                        ..Default::default()
                    };
                    let what = "Snapshot with another's name";
                    self.refused(place, slot, what, &[Code::AlreadyExists], async move |calls: &Calls| {
                        calls.controller().create_snapshot(calls.ask(request)).await
                    });
                    drop(owned);
                }
            }
            (8, _) => {
                if let Some(member) = slot.group.as_ref().and_then(|group| group.members.keys().next()) {
                    let snapshot_id = place.member_id(member).to_string();
                    let request = csi::DeleteSnapshotRequest { snapshot_id, ..Default::default() };
                    self.refused(
                        place,
                        slot,
                        "DeleteSnapshot of a member",
                        &[Code::InvalidArgument],
                        async move |calls: &Calls| calls.controller().delete_snapshot(calls.ask(request)).await,
                    );
                }
            }
            (9, Some(_)) if !staged => {
                self.refused(place, slot, "Unstage unstaged", &[Code::Ok], perform(Op::Unstage, with(asked)));
            }
            (_, Some(volume)) => {
                if let Some(target) = (0..TARGETS).find(|target| volume.targets[*target].is_none()) {
                    let op = Op::Unpublish { target };
                    self.refused(place, slot, "Unpublish unpublished", &[Code::Ok], perform(op, with(asked)));
                }
            }
            _ => {}
        }
    }

    fn refused<T>(
        &mut self,
        place: &Place,
        slot: &mut Slot,
        what: &str,
        codes: &[Code],
        ask: impl AsyncFnOnce(&Calls) -> Result<tonic::Response<T>, Status>,
    ) {
        self.expect(place, Some(slot), what, codes, ask);
    }

    /// A call about a volume that may be another's, at any time. Whatever its state, this must not change it.
    fn misuse_of_another(&mut self, place: &'w Place, volumes: usize) {
        let volume_id = place.volume_id();
        let elsewhere = text(&self.shared.staging(place).with_file_name("elsewhere"));
        let before = place.known();
        let capability = Some(super::common::capability(None));
        match self.random.below(14) {
            0 => {
                let request = create(&place.name(), HUGE, None, "image");
                let codes = [Code::ResourceExhausted, Code::AlreadyExists];
                self.expect(place, None, "misuse: Create of 1 PiB", &codes, async move |calls| {
                    calls.controller().create_volume(calls.ask(request)).await
                });
            }
            1 => {
                let mut request = create(&place.name(), 8, None, "image");
                match self.random.below(6) {
                    0 => drop(request.parameters.insert("colour".to_owned(), "blue".to_owned())),
                    1 => drop(request.parameters.insert("pool".to_owned(), "none such".to_owned())),
                    2 => request.name = String::new(),
                    3 => request.volume_capabilities.clear(),
                    4 => request.capacity_range = Some(csi::CapacityRange { required_bytes: 2 * MIB, limit_bytes: MIB }),
                    _ => drop(request.mutable_parameters.insert("onDelete".to_owned(), "explode".to_owned())),
                }
                self.expect(place, None, "misuse: Create of nonsense", &[Code::InvalidArgument], async move |calls| {
                    calls.controller().create_volume(calls.ask(request)).await
                });
            }
            2 => {
                let request = csi::NodeUnstageVolumeRequest { volume_id, staging_target_path: elsewhere };
                self.expect(place, None, "misuse: Unstage elsewhere", &[Code::Ok], async move |calls| {
                    calls.node().node_unstage_volume(calls.ask(request)).await
                });
            }
            3 => {
                let request = csi::NodeUnpublishVolumeRequest { volume_id, target_path: elsewhere };
                self.expect(place, None, "misuse: Unpublish elsewhere", &[Code::Ok], async move |calls| {
                    calls.node().node_unpublish_volume(calls.ask(request)).await
                });
            }
            4 => {
                let request = csi::NodePublishVolumeRequest {
                    volume_id,
                    target_path: text(&self.shared.target(place, 0).with_file_name("elsewhere")),
                    staging_target_path: elsewhere,
                    volume_capability: capability,
                    ..Default::default()
                };
                self.expect(place, None, "misuse: Publish from elsewhere", &[Code::FailedPrecondition], async move |calls| {
                    calls.node().node_publish_volume(calls.ask(request)).await
                });
            }
            5 => {
                let request = csi::ControllerExpandVolumeRequest {
                    volume_id,
                    capacity_range: Some(csi::CapacityRange { required_bytes: 0, limit_bytes: 1 }),
                    ..Default::default()
                };
                let codes = [Code::OutOfRange, Code::NotFound];
                self.expect(place, None, "misuse: Expand to a byte", &codes, async move |calls| {
                    calls.controller().controller_expand_volume(calls.ask(request)).await
                });
            }
            6 => {
                let parameters = [("colour".to_owned(), "blue".to_owned())].into();
                let (source_volume_id, name) = (volume_id, place.snapshot_name(0));
                let request = csi::CreateSnapshotRequest { source_volume_id, name, parameters, ..Default::default() };
                self.expect(place, None, "misuse: Snapshot of nonsense", &[Code::InvalidArgument], async move |calls| {
                    calls.controller().create_snapshot(calls.ask(request)).await
                });
            }
            7 => {
                let mutable_parameters = [("onDelete".to_owned(), "explode".to_owned())].into();
                let request = csi::ControllerModifyVolumeRequest { volume_id, mutable_parameters, ..Default::default() };
                let codes = [Code::InvalidArgument, Code::NotFound];
                self.expect(place, None, "misuse: Modify to nonsense", &codes, async move |calls| {
                    calls.controller().controller_modify_volume(calls.ask(request)).await
                });
            }
            8 => {
                let request = csi::ControllerGetVolumeHealthRequest { volume_id, ..Default::default() };
                let codes = [Code::Ok, Code::NotFound];
                let reported = self.expect(place, None, "misuse: Health", &codes, async move |calls| {
                    calls.controller().controller_get_volume_health(calls.ask(request)).await
                });
                let health = reported.and_then(|reported| reported.volume_health).unwrap_or_default();
                if !health.health_statuses.is_empty() {
                    self.shared.violation(Some(place), &format!("it is not well: {health:?}"));
                }
            }
            9 => {
                let request = csi::ControllerGetVolumeRequest { volume_id };
                let answer = self.call(place, "misuse: GetVolume", Manner::Any, async |calls| {
                    calls.controller().controller_get_volume(calls.ask(request)).await
                });
                let wrong = match (before, answer) {
                    ((_, Known::Present), Answer::Refused(status, _)) => Some(format!("{status}")),
                    ((_, Known::Absent), Answer::Ok(found)) => Some(format!("{found:?}")),
                    _ => None,
                };
                if let Some(wrong) = wrong.filter(|_| place.known() == before) {
                    self.shared.violation(Some(place), &format!("it is {:?}, but GetVolume: {wrong}", before.1));
                }
            }
            10 => {
                for (id, code) in [("image:never", Code::NotFound), ("nonsense", Code::NotFound), ("", Code::InvalidArgument)] {
                    let request = csi::NodeStageVolumeRequest {
                        volume_id: id.to_owned(),
                        staging_target_path: elsewhere.clone(),
                        volume_capability: capability.clone(),
                        ..Default::default()
                    };
                    self.expect(place, None, "misuse: Stage of what is not", &[code], async move |calls| {
                        calls.node().node_stage_volume(calls.ask(request)).await
                    });
                }
            }
            11 => {
                let parameters = [("backend".to_owned(), "image".to_owned())].into();
                let request = csi::GetCapacityRequest { parameters, ..Default::default() };
                self.expect(place, None, "GetCapacity", &[Code::Ok], async move |calls| {
                    calls.controller().get_capacity(calls.ask(request)).await
                });
            }
            12 => {
                for (max_entries, token, code) in [(-1, "", Code::InvalidArgument), (3, "nonsense", Code::Aborted)] {
                    let request = csi::ListVolumesRequest { max_entries, starting_token: token.to_owned() };
                    self.expect(place, None, "misuse: List of nonsense", &[code], async move |calls| {
                        calls.controller().list_volumes(calls.ask(request)).await
                    });
                }
            }
            _ => self.list(place, volumes),
        }
    }

    /// All pages of a list: what surely exists all the time must be in it, what surely does not must not, and each but once.
    fn list(&mut self, place: &Place, volumes: usize) {
        let shared = self.shared;
        let before: Vec<(u64, Known)> = shared.places.iter().take(volumes).map(Place::known).collect();
        let max_entries = *self.random.pick(&[0, 7, 50]);
        let listed = self.call(place, "ListVolumes", Manner::Patient, async |calls| {
            let mut ids: Vec<String> = Vec::new();
            let mut starting_token = String::new();
            loop {
                let request = csi::ListVolumesRequest { max_entries, starting_token };
                let page = calls.controller().list_volumes(calls.ask(request)).await?.into_inner();
                shared.counts.operations.fetch_add(1, Ordering::Relaxed);
                ids.extend(page.entries.into_iter().filter_map(|entry| Some(entry.volume?.volume_id)));
                starting_token = page.next_token;
                if starting_token.is_empty() {
                    return Ok(ids);
                }
            }
        });
        let listed = match listed {
            Answer::Ok(listed) => listed,
            Answer::Refused(status, _) => return shared.violation(None, &format!("ListVolumes: {status}")),
            Answer::Cut { .. } => return,
        };
        if !listed.is_sorted_by(|left, right| left < right) {
            shared.violation(None, &format!("a list is not in order, or has something twice: {listed:?}"));
        }
        let listed: BTreeSet<String> = listed.into_iter().collect();
        for (place, before) in shared.places.iter().zip(before) {
            let there = match before.1 {
                Known::Unsure => continue,
                known => known == Known::Present,
            };
            if listed.contains(&place.volume_id()) != there && place.known() == before {
                shared.violation(Some(place), &format!("it is {:?}; the list says otherwise", before.1));
            }
        }
    }

    /// At the end: whatever is there is looked into; `spare` is a place for what is restored.
    pub fn verify(&mut self, place: &'w Place, spare: &'w Place) {
        let mut slot = place.slot.lock().expect("no worker panicked");
        while self.rests(&slot) {
            std::thread::park_timeout(Duration::from_millis(50));
        }
        self.settle(place, &mut slot);
        self.look(place, &mut slot, "all");
        if slot.broken {
            return;
        }
        self.show(place, &mut slot);
        let snapshots: Vec<(Source, Snapshot)> = (0..SNAPSHOTS)
            .filter_map(|number| Some((of_snapshot(place.snapshot_id(number)), slot.snapshots[number].clone()?)))
            .chain(
                slot.group
                    .iter()
                    .flat_map(|group| &group.members)
                    .map(|(member, snapshot)| (of_snapshot(place.member_id(member).to_string()), snapshot.clone())),
            )
            .collect();
        let mut restored = spare.slot.lock().expect("no worker panicked");
        for (source, snapshot) in snapshots {
            if restored.broken {
                return;
            }
            let volume = Volume::plan(&mut self.random, &spare.name(), Some((source, &snapshot)));
            self.carry(spare, &mut restored, Op::Create(Box::new(volume)));
            self.show(spare, &mut restored);
            self.clear(spare, &mut restored);
        }
    }

    /// Publishes a volume wherever it can be, and compares.
    fn show(&mut self, place: &'w Place, slot: &mut Slot) {
        let Some(volume) = &slot.volume else { return };
        if !volume.staged {
            self.carry(place, slot, Op::Stage);
        }
        if slot.volume.as_ref().is_some_and(|volume| volume.published().next().is_none()) {
            self.carry(place, slot, Op::Publish { target: 0, read_only: false });
        }
        self.compare(place, slot);
    }

    /// Takes everything down.
    pub fn tear_down(&mut self, place: &'w Place) {
        let mut slot = place.slot.lock().expect("no worker panicked");
        self.clear(place, &mut slot);
    }

    fn clear(&mut self, place: &'w Place, slot: &mut Slot) {
        if slot.broken {
            return;
        }
        for number in (0..SNAPSHOTS).filter(|number| slot.snapshots[*number].is_some()).collect::<Vec<_>>() {
            self.carry(place, slot, Op::DeleteSnapshot { number });
        }
        if slot.group.is_some() {
            self.carry(place, slot, Op::DeleteGroup);
        }
        let Some(volume) = slot.volume.clone() else { return };
        for target in volume.published() {
            self.carry(place, slot, Op::Unpublish { target });
        }
        if volume.staged {
            self.carry(place, slot, Op::Unstage);
        }
        self.carry(place, slot, Op::Delete);
    }
}

//! Descriptions in little memory: a list of all disks of a cluster is kept for the pages after the first, and may have 100,000.
//!
//! As structures, a disk takes some two KiB: its tags are a map of strings, most of which every other disk has, too. Packed, all
//! descriptions lie in one run of bytes, and a string that came before is its number. What is packed is unpacked as it was.

use std::collections::HashMap;
use std::marker::PhantomData;
use std::time::{Duration, SystemTime};

use crate::volume::Bytes;

use super::api::{
    Attachment, AttachmentState, CloudSnapshot, CloudSnapshotId, DeviceAddress, Disk, DiskId, DiskSource, DiskState,
    SnapshotState, Tags,
};

/// Strings with a number. The common ones are among the first; what each description has of its own is written where it occurs.
const MOST_WORDS: usize = 4096;

/// What can be packed.
pub(super) trait Pack: Sized {
    fn pack(&self, packer: &mut Packer);

    /// What `pack` wrote; `None` for anything else.
    fn unpack(reader: &mut Reader<'_>) -> Option<Self>;
}

/// Descriptions that are being packed.
#[derive(Debug, Default)]
pub(super) struct Packer {
    bytes: Vec<u8>,
    starts: Vec<usize>,
    words: Vec<Box<str>>,
    numbers: HashMap<Box<str>, u64>,
}

/// Packed descriptions, in an order of their own.
#[derive(Debug)]
pub(super) struct Packed<T> {
    bytes: Vec<u8>,
    /// Where each begins.
    starts: Vec<usize>,
    words: Vec<Box<str>>,
    of: PhantomData<fn() -> T>,
}

impl Packer {
    pub fn push(&mut self, item: &impl Pack) {
        self.starts.push(self.bytes.len());
        item.pack(self);
    }

    /// All of them in the order of `key`; of several with the same key the last one counts. Those without a key come first.
    pub fn sorted<T: Pack, K: Ord>(mut self, key: impl Fn(&T) -> Option<K>) -> Packed<T> {
        self.bytes.shrink_to_fit();
        let Packer { bytes, starts, words, .. } = self;
        let packed = Packed { bytes, starts: Vec::new(), words, of: PhantomData };
        let mut keyed: Vec<(Option<K>, usize)> =
            starts.into_iter().filter_map(|start| Some((key(&packed.at(start)?), start))).collect();
        keyed.sort();
        let mut starts: Vec<usize> = Vec::with_capacity(keyed.len());
        let mut keyed = keyed.into_iter().peekable();
        while let Some((key, start)) = keyed.next() {
            let is_repeated = key.is_some() && keyed.peek().is_some_and(|(next, _)| *next == key);
            if !is_repeated {
                starts.push(start);
            }
        }
        Packed { starts, ..packed }
    }

    /// Seven bits in each byte, the lowest first.
    fn number(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.bytes.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.bytes.push(number as u8);
    }

    fn text(&mut self, text: &str) {
        if let Some(number) = self.numbers.get(text) {
            return self.number(*number);
        }
        if self.words.len() < MOST_WORDS {
            self.words.push(text.into());
            let number = self.words.len() as u64;
            self.numbers.insert(text.into(), number);
            return self.number(number);
        }
        self.number(0);
        self.number(text.len() as u64);
        self.bytes.extend_from_slice(text.as_bytes());
    }

    fn flag(&mut self, flag: bool) {
        self.bytes.push(flag.into());
    }

    fn may_text(&mut self, text: Option<&str>) {
        self.flag(text.is_some());
        if let Some(text) = text {
            self.text(text);
        }
    }

    fn time(&mut self, time: Option<SystemTime>) {
        self.flag(time.is_some());
        if let Some(time) = time {
            let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            self.number(since.as_secs());
            self.number(since.subsec_nanos().into());
        }
    }

    fn tags(&mut self, tags: &Tags) {
        self.number(tags.len() as u64);
        for (key, value) in tags {
            self.text(key);
            self.text(value);
        }
    }
}

impl<T: Pack> Packed<T> {
    /// Those from this place on.
    pub fn iter_from(&self, place: usize) -> impl Iterator<Item = T> + '_ {
        self.starts.iter().skip(place).filter_map(|start| self.at(*start))
    }

    pub fn iter(&self) -> impl Iterator<Item = T> + '_ {
        self.iter_from(0)
    }

    /// How many `is_before` says yes to; those must be the first.
    pub fn count_before(&self, is_before: impl Fn(&T) -> bool) -> usize {
        self.starts.partition_point(|start| self.at(*start).is_some_and(|item| is_before(&item)))
    }

    fn at(&self, start: usize) -> Option<T> {
        let item = T::unpack(&mut Reader { bytes: self.bytes.get(start..)?, words: &self.words });
        debug_assert!(item.is_some(), "what was packed cannot be unpacked");
        item
    }
}

/// What is left of a description.
pub(super) struct Reader<'a> {
    bytes: &'a [u8],
    words: &'a [Box<str>],
}

impl Reader<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.bytes.split_first()?;
        self.bytes = rest;
        Some(*first)
    }

    fn number(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..u64::BITS).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(number);
            }
        }
        None
    }

    fn text(&mut self) -> Option<String> {
        let number = usize::try_from(self.number()?).ok()?;
        if let Some(index) = number.checked_sub(1) {
            return self.words.get(index).map(|word| word.to_string());
        }
        let length = usize::try_from(self.number()?).ok()?;
        let (text, rest) = self.bytes.split_at_checked(length)?;
        self.bytes = rest;
        String::from_utf8(text.to_vec()).ok()
    }

    fn flag(&mut self) -> Option<bool> {
        self.byte().map(|byte| byte != 0)
    }

    fn may_text(&mut self) -> Option<Option<String>> {
        if self.flag()? { self.text().map(Some) } else { Some(None) }
    }

    fn time(&mut self) -> Option<Option<SystemTime>> {
        if !self.flag()? {
            return Some(None);
        }
        let (seconds, nanos) = (self.number()?, u32::try_from(self.number()?).ok()?);
        SystemTime::UNIX_EPOCH.checked_add(Duration::new(seconds, nanos)).map(Some)
    }

    fn tags(&mut self) -> Option<Tags> {
        let count = self.number()?;
        (0..count).map(|_| Some((self.text()?, self.text()?))).collect()
    }
}

/// A state is packed as its place among all of its kind.
fn place<S: PartialEq>(all: &[S], state: &S) -> u64 {
    all.iter().position(|one| one == state).unwrap_or(all.len()) as u64
}

fn state<S: Copy>(all: &[S], reader: &mut Reader<'_>) -> Option<S> {
    all.get(usize::try_from(reader.number()?).ok()?).copied()
}

const DISK_STATES: [DiskState; 7] = [
    DiskState::Creating,
    DiskState::Available,
    DiskState::InUse,
    DiskState::Deleting,
    DiskState::Deleted,
    DiskState::Failed,
    DiskState::Unusable,
];
const ATTACHMENT_STATES: [AttachmentState; 5] = [
    AttachmentState::Attaching,
    AttachmentState::Attached,
    AttachmentState::Detaching,
    AttachmentState::Detached,
    AttachmentState::Busy,
];
const SNAPSHOT_STATES: [SnapshotState; 5] = [
    SnapshotState::Pending,
    SnapshotState::Completed,
    SnapshotState::Failed,
    SnapshotState::Unfinished,
    SnapshotState::FailedUnfinished,
];

impl Pack for Disk {
    fn pack(&self, packer: &mut Packer) {
        let Disk { id, name, state, capacity, zones, site, tags, attachments, source, settings, multi_attach, created } = self;
        packer.text(&id.0);
        packer.may_text(name.as_deref());
        packer.number(place(&DISK_STATES, state));
        packer.number(capacity.0);
        packer.number(zones.len() as u64);
        zones.iter().for_each(|zone| packer.text(zone));
        packer.may_text(site.as_deref());
        packer.tags(tags);
        packer.number(attachments.len() as u64);
        attachments.iter().for_each(|attachment| attachment.pack(packer));
        let (number, of) = match source {
            DiskSource::Empty => (0, ""),
            DiskSource::Snapshot(snapshot) => (1, snapshot.0.as_str()),
            DiskSource::Disk(disk) => (2, disk.0.as_str()),
        };
        packer.number(number);
        packer.text(of);
        packer.text(&settings.to_string());
        packer.flag(*multi_attach);
        packer.time(*created);
    }

    fn unpack(reader: &mut Reader<'_>) -> Option<Disk> {
        Some(Disk {
            id: DiskId(reader.text()?),
            name: reader.may_text()?,
            state: state(&DISK_STATES, reader)?,
            capacity: Bytes(reader.number()?),
            zones: {
                let count = reader.number()?;
                (0..count).map(|_| reader.text()).collect::<Option<_>>()?
            },
            site: reader.may_text()?,
            tags: reader.tags()?,
            attachments: {
                let count = reader.number()?;
                (0..count).map(|_| Attachment::unpack(reader)).collect::<Option<_>>()?
            },
            source: match (reader.number()?, reader.text()?) {
                (0, _) => DiskSource::Empty,
                (1, snapshot) => DiskSource::Snapshot(CloudSnapshotId(snapshot)),
                (2, disk) => DiskSource::Disk(DiskId(disk)),
                _ => return None,
            },
            settings: serde_json::from_str(&reader.text()?).ok()?,
            multi_attach: reader.flag()?,
            created: reader.time()?,
        })
    }
}

impl Pack for Attachment {
    fn pack(&self, packer: &mut Packer) {
        let Attachment { instance, device, state, since } = self;
        packer.text(instance.as_str());
        packer.flag(matches!(device, DeviceAddress::Slot(_)));
        packer.text(device.as_str());
        packer.number(place(&ATTACHMENT_STATES, state));
        packer.time(*since);
    }

    fn unpack(reader: &mut Reader<'_>) -> Option<Attachment> {
        Some(Attachment {
            instance: reader.text()?.parse().ok()?,
            device: match (reader.flag()?, reader.text()?) {
                (true, slot) => DeviceAddress::Slot(slot),
                (false, identity) => DeviceAddress::Identity(identity),
            },
            state: state(&ATTACHMENT_STATES, reader)?,
            since: reader.time()?,
        })
    }
}

impl Pack for CloudSnapshot {
    fn pack(&self, packer: &mut Packer) {
        let CloudSnapshot { id, name, disk, state, capacity, created, progress, tags } = self;
        packer.text(&id.0);
        packer.may_text(name.as_deref());
        packer.text(&disk.0);
        packer.number(place(&SNAPSHOT_STATES, state));
        packer.number(capacity.0);
        packer.time(Some(*created));
        packer.number((*progress).into());
        packer.tags(tags);
    }

    fn unpack(reader: &mut Reader<'_>) -> Option<CloudSnapshot> {
        Some(CloudSnapshot {
            id: CloudSnapshotId(reader.text()?),
            name: reader.may_text()?,
            disk: DiskId(reader.text()?),
            state: state(&SNAPSHOT_STATES, reader)?,
            capacity: Bytes(reader.number()?),
            created: reader.time()??,
            progress: u8::try_from(reader.number()?).ok()?,
            tags: reader.tags()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk(number: u64) -> Disk {
        let tags = [("longshore.dev/volume", format!("pvc-{number}")), ("team", "storage".to_owned())];
        let attachment = |state| Attachment {
            instance: format!("i-{number}").parse().expect("a node"),
            device: match number.is_multiple_of(2) {
                true => DeviceAddress::Slot("/dev/xvdba".to_owned()),
                false => DeviceAddress::Identity("serial".to_owned()),
            },
            state,
            since: Some(SystemTime::UNIX_EPOCH + Duration::new(1_700_000_000, 5)),
        };
        Disk {
            id: DiskId(format!("vol-{number}")),
            name: number.is_multiple_of(4).then(|| format!("longshore-{number}")),
            state: DISK_STATES[number as usize % DISK_STATES.len()],
            capacity: Bytes(number << 30),
            zones: ["zone-a", "zone-b"].into_iter().take(number as usize % 3).map(str::to_owned).collect(),
            site: number.is_multiple_of(2).then(|| "arn:outpost".to_owned()),
            tags: tags.into_iter().map(|(key, value)| (key.to_owned(), value)).collect(),
            attachments: ATTACHMENT_STATES.into_iter().take(number as usize % 6).map(attachment).collect(),
            source: match number % 3 {
                0 => DiskSource::Snapshot(CloudSnapshotId("snap-1".to_owned())),
                1 => DiskSource::Disk(DiskId("vol-1".to_owned())),
                _ => DiskSource::Empty,
            },
            settings: serde_json::json!({"kind": "gp3", "iops": 3000, "encrypted": true, "key": null}),
            multi_attach: number.is_multiple_of(5),
            created: number.is_multiple_of(7).then_some(SystemTime::UNIX_EPOCH),
        }
    }

    fn pack<T: Pack>(items: &[T]) -> Packer {
        let mut packer = Packer::default();
        items.iter().for_each(|item| packer.push(item));
        packer
    }

    #[test]
    fn disks_are_unpacked_as_packed_also_when_all_words_are_taken() {
        let disks: Vec<Disk> = (0..5000).map(disk).collect();
        let packed = pack(&disks).sorted(|disk: &Disk| Some(disk.capacity.0));
        assert_eq!(packed.words.len(), MOST_WORDS);
        assert_eq!(packed.iter().collect::<Vec<_>>(), disks);
    }

    #[test]
    fn snapshots_are_unpacked_as_packed() {
        let snapshots = SNAPSHOT_STATES.map(|state| CloudSnapshot {
            id: CloudSnapshotId("snap-1".to_owned()),
            name: Some("longshore-1".to_owned()),
            disk: DiskId("vol-1".to_owned()),
            state,
            capacity: Bytes(u64::MAX),
            created: SystemTime::UNIX_EPOCH + Duration::from_millis(1_700_000_000_123),
            progress: 99,
            tags: Tags::from([("a".to_owned(), String::new())]),
        });
        let packed = pack(&snapshots).sorted(|_: &CloudSnapshot| None::<()>);
        assert_eq!(packed.iter().collect::<Vec<_>>(), snapshots);
    }

    #[test]
    fn packed_disks_are_in_order_and_of_equals_the_last_remains() {
        let mut again = disk(2);
        again.capacity = Bytes::GIB;
        let packed = pack(&[disk(3), disk(2), disk(9), again.clone()]).sorted(|disk: &Disk| Some(disk.id.0.clone()));
        assert_eq!(packed.iter().collect::<Vec<_>>(), [again, disk(3), disk(9)]);
        assert_eq!(packed.count_before(|disk| disk.id.0.as_str() <= "vol-3"), 2);
        assert_eq!(packed.iter_from(2).collect::<Vec<_>>(), [disk(9)]);
    }

    /// 100,000 may be kept.
    #[test]
    fn packed_disk_takes_less_than_a_tenth_of_two_kib() {
        let packed = pack(&(0..20_000).map(disk).collect::<Vec<_>>()).sorted(|disk: &Disk| Some(disk.capacity.0));
        assert!(packed.bytes.len() / 20_000 < 200, "{} bytes", packed.bytes.len() / 20_000);
    }
}

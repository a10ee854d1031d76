//! Random calls against a model that is too simple to be wrong.

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::sample::select;

use super::testing::{Bench, Broken, Still, id, member, node, snapshot_id, spec};
use crate::backend::{Attach, Expand, Groups, Provision, Snapshots, VolumeSpec};
use crate::volume::{AccessMode, Bytes, ContentSource, Error, GroupId, Outcome, Result};

/// So small that it is often full.
const CAPACITY: u64 = 24;
const PER_NODE: u64 = 2;

#[derive(Clone, Debug)]
enum Call {
    Create { name: &'static str, size: u64, from: Option<From> },
    Delete { name: &'static str },
    Expand { name: &'static str, size: u64 },
    Snapshot { name: &'static str, source: &'static str, holds: bool },
    DeleteSnapshot { name: &'static str },
    Group { sources: Vec<&'static str>, holds: bool },
    DeleteGroup,
    Attach { name: &'static str, node: &'static str },
    Detach { name: &'static str, node: Option<&'static str> },
}

#[derive(Clone, Copy, Debug)]
enum From {
    Volume(&'static str),
    Snapshot(&'static str),
}

/// Sizes in MiB, by name; where each volume is attached.
#[derive(Debug, Default)]
struct Model {
    volumes: BTreeMap<&'static str, u64>,
    snapshots: BTreeMap<String, u64>,
    attached: BTreeMap<&'static str, &'static str>,
    group: Vec<String>,
}

const NAMES: [&str; 4] = ["a", "b", "c", "d"];
const NODES: [&str; 2] = ["here", "there"];

fn call() -> impl Strategy<Value = Call> {
    let name = || select(&NAMES[..]);
    let size = || 1..10u64;
    let from = prop_oneof![name().prop_map(From::Volume), name().prop_map(From::Snapshot)];
    prop_oneof![
        4 => (name(), size(), proptest::option::of(from)).prop_map(|(name, size, from)| Call::Create { name, size, from }),
        2 => name().prop_map(|name| Call::Delete { name }),
        1 => (name(), size()).prop_map(|(name, size)| Call::Expand { name, size }),
        2 => (name(), name(), prop::bool::weighted(0.8)).prop_map(|(name, source, holds)| Call::Snapshot { name, source, holds }),
        1 => name().prop_map(|name| Call::DeleteSnapshot { name }),
        1 => (proptest::sample::subsequence(&NAMES[..], 1..3), prop::bool::weighted(0.8))
            .prop_map(|(sources, holds)| Call::Group { sources, holds }),
        1 => Just(Call::DeleteGroup),
        2 => (name(), select(&NODES[..])).prop_map(|(name, node)| Call::Attach { name, node }),
        2 => (name(), proptest::option::of(select(&NODES[..]))).prop_map(|(name, node)| Call::Detach { name, node }),
    ]
}

impl Model {
    fn provisioned(&self) -> u64 {
        self.volumes.values().sum::<u64>() + self.snapshots.values().sum::<u64>()
    }

    fn room(&self, size: u64) -> bool {
        self.provisioned() + size <= CAPACITY
    }

    /// Makes the call on both, and compares whether it went through.
    fn make(&mut self, bench: &Bench, call: &Call) {
        let fake = bench.fake.as_ref();
        match *call {
            Call::Create { name, size, from } => {
                let source = from.map(|from| match from {
                    From::Volume(of) => ContentSource::Volume(id(of)),
                    From::Snapshot(of) => ContentSource::Snapshot(snapshot_id(of)),
                });
                let source_size = match from {
                    None => Some(0),
                    Some(From::Volume(of)) => self.volumes.get(of).copied(),
                    Some(From::Snapshot(of)) => self.snapshots.get(of).copied(),
                };
                let there = self.volumes.contains_key(name);
                let fits = source_size.is_some_and(|least| least <= size) && self.room(size);
                let made = fake.create(&VolumeSpec { source, ..spec(name, Bytes::mib(size)) }, &Still::default());
                assert_eq!(made.is_ok(), there || fits, "{made:?}");
                if made.is_ok() {
                    self.volumes.entry(name).or_insert(size);
                }
            }
            Call::Delete { name } => {
                let deleted = Provision::delete(fake, &id(name));
                match self.attached.get(name) {
                    Some(_) => assert!(matches!(deleted, Err(Error::InUse { .. })), "{deleted:?}"),
                    None => assert_changed(&deleted, self.volumes.remove(name).is_some()),
                }
            }
            Call::Expand { name, size } => {
                let grown = fake.expand(&id(name), Bytes::mib(size));
                let now = self.volumes.get(name).copied();
                let fits = now.is_some_and(|now| size <= now || self.room(size - now));
                assert_eq!(grown.is_ok(), fits, "{grown:?}");
                if let Ok(Outcome::Changed(_)) = grown {
                    self.volumes.insert(name, size);
                }
            }
            Call::Snapshot { name, source, holds } => {
                let there = self.snapshots.contains_key(name);
                let size = self.volumes.get(source).copied().filter(|size| holds && self.room(*size));
                let taken = match holds {
                    true => fake.create_snapshot(&member(name, source), &Still::default()),
                    false => fake.create_snapshot(&member(name, source), &Broken::Release),
                };
                assert_eq!(taken.is_ok(), there || size.is_some(), "{taken:?}");
                if let Some(size) = size.filter(|_| !there) {
                    self.snapshots.insert(name.to_owned(), size);
                }
            }
            Call::DeleteSnapshot { name } => {
                let deleted = fake.delete_snapshot(&snapshot_id(name));
                assert_changed(&deleted, self.snapshots.remove(name).is_some());
            }
            Call::Group { ref sources, holds } => self.make_group(bench, sources, holds),
            Call::DeleteGroup => {
                let members = std::mem::take(&mut self.group);
                assert_changed(&fake.delete_group(&group_id()), !members.is_empty());
                self.snapshots.retain(|name, _| !members.contains(name));
            }
            Call::Attach { name, node: to } => {
                let attached = fake.attach(&id(name), &node(to), AccessMode::SingleNodeWriter, false);
                let on_node = self.attached.values().filter(|on| **on == to).count() as u64;
                let may = match self.attached.get(name) {
                    Some(on) => *on == to,
                    None => self.volumes.contains_key(name) && on_node < PER_NODE,
                };
                assert_eq!(attached.is_ok(), may, "{attached:?}");
                if may {
                    self.attached.insert(name, to);
                }
            }
            Call::Detach { name, node: from } => {
                let there = self.attached.get(name).is_some_and(|on| from.is_none_or(|from| from == *on));
                assert_changed(&fake.detach(&id(name), from.map(node).as_ref()), there);
                if there {
                    self.attached.remove(name);
                }
            }
        }
    }

    fn make_group(&mut self, bench: &Bench, sources: &[&'static str], holds: bool) {
        let members: Vec<_> = sources.iter().map(|source| member(&format!("g-{source}"), source)).collect();
        let made = match holds {
            true => bench.fake.create_group(&group_id(), "g", &members, &Still::default()),
            false => bench.fake.create_group(&group_id(), "g", &members, &Broken::Hold),
        };
        if !self.group.is_empty() {
            made.expect("a repeat");
            return;
        }
        let sizes: Option<Vec<u64>> = sources.iter().map(|source| self.volumes.get(source).copied()).collect();
        let sizes = sizes.filter(|sizes| holds && self.room(sizes.iter().sum()));
        assert_eq!(made.is_ok(), sizes.is_some(), "{made:?}");
        for (member, size) in members.iter().zip(sizes.into_iter().flatten()) {
            self.snapshots.insert(member.name.clone(), size);
            self.group.push(member.name.clone());
        }
    }

    /// That the backend shows what the model has.
    fn compare(&self, bench: &Bench) {
        assert_eq!(bench.provisioned(), Bytes::mib(self.provisioned()));
        let volumes = bench.fake.list(None, usize::MAX).expect("in memory");
        let volumes: Vec<_> = volumes.iter().map(|volume| (volume.id.local(), volume.capacity)).collect();
        let wanted: Vec<_> = self.volumes.iter().map(|(name, size)| (*name, Bytes::mib(*size))).collect();
        assert_eq!(volumes, wanted);
        let snapshots = bench.fake.list_snapshots(None, None, usize::MAX).expect("in memory");
        let snapshots: Vec<_> = snapshots.iter().map(|snapshot| (snapshot.id.local(), snapshot.size)).collect();
        let wanted: Vec<_> = self.snapshots.iter().map(|(name, size)| (name.as_str(), Bytes::mib(*size))).collect();
        assert_eq!(snapshots, wanted);
        let by_source: usize =
            NAMES.map(|name| bench.fake.list_snapshots(Some(&id(name)), None, 99).expect("in memory").len()).iter().sum();
        assert_eq!(by_source, self.snapshots.len(), "each is listed under its source");
        let attached = bench.fake.attachments(&NAMES.map(id)).expect("in memory");
        let attached: BTreeMap<_, _> =
            attached.iter().flat_map(|(id, nodes)| nodes.iter().map(|node| (id.local(), node.as_str()))).collect();
        assert_eq!(attached, self.attached);
    }
}

fn group_id() -> GroupId {
    GroupId::derive(&super::testing::backend_name(), "g")
}

fn assert_changed(outcome: &Result<Outcome<()>>, changed: bool) {
    let wanted = if changed { Outcome::Changed(()) } else { Outcome::Unchanged(()) };
    assert!(matches!(outcome, Ok(outcome) if *outcome == wanted), "{outcome:?}, not {wanted:?}");
}

proptest! {
    #[test]
    fn whatever_is_called_the_promises_are_the_sum_of_what_is_there(calls in proptest::collection::vec(call(), 1..60)) {
        let bench = Bench::with(|config| {
            config.capacity = Bytes::mib(CAPACITY);
            config.volumes_per_node = Some(PER_NODE);
            config.nodes.insert(node("there"));
        });
        let mut model = Model::default();
        for call in &calls {
            model.make(&bench, call);
            model.compare(&bench);
        }
    }
}

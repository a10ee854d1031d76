//! Volumes are bound to nodes.

use std::collections::{BTreeMap, BTreeSet};

use super::store::{Attachment, StoredVolume};
use super::{ACCESS_MODES, Fake, Medium};
use crate::backend::{Attach, check_same_attachment};
use crate::os::step::step;
use crate::volume::{AccessMode, Error, NodeId, Outcome, Result, VolumeId};

/// The key in publish_context under which the node's own id comes back to it.
pub(super) const CONTEXT_KEY: &str = "longshore.dev/attached";

impl Attach for Fake {
    fn attach(
        &self,
        id: &VolumeId,
        node: &NodeId,
        mode: AccessMode,
        read_only: bool,
    ) -> Result<Outcome<BTreeMap<String, String>>> {
        let wanted = Attachment { mode, read_only };
        let context = BTreeMap::from([(CONTEXT_KEY.to_owned(), node.to_string())]);
        step("attach", id, || {
            let mut state = self.store.lock();
            let volume = state.volume(id)?;
            self.exists(node)?;
            if let Some(existing) = volume.attached.get(node) {
                let existing = (existing.mode, existing.read_only);
                return check_same_attachment(id, node, existing, (mode, read_only)).map(|()| Outcome::Unchanged(context));
            }
            may_join(id, volume, wanted)?;
            if let Some(limit) = self.volumes_per_node.filter(|limit| state.attached_to(node) >= *limit) {
                let reason = format!("{limit} volumes are attached to it, which is its limit; detach one first");
                return Err(Error::NodeFull { node: node.to_string(), reason });
            }
            state.attach(id, node, wanted)?;
            Ok(Outcome::Changed(context))
        })
    }

    fn detach(&self, id: &VolumeId, node: Option<&NodeId>) -> Result<Outcome<()>> {
        step("detach", id, || match self.store.lock().detach(id, node) {
            true => Ok(Outcome::Changed(())),
            false => Ok(Outcome::Unchanged(())),
        })
    }

    fn attachments(&self, ids: &[VolumeId]) -> Result<BTreeMap<VolumeId, BTreeSet<NodeId>>> {
        let state = self.store.lock();
        let known = ids.iter().filter_map(|id| state.volume(id).ok().map(|volume| (id, volume)));
        Ok(known.map(|(id, volume)| (id.clone(), volume.attached.keys().cloned().collect())).collect())
    }

    fn limit(&self, node: &NodeId) -> Result<Option<u64>> {
        self.exists(node)?;
        Ok(self.volumes_per_node)
    }
}

impl Fake {
    fn exists(&self, node: &NodeId) -> Result<()> {
        if self.nodes.contains(node) {
            return Ok(());
        }
        Err(Error::NotFound { kind: "node", id: node.to_string() })
    }
}

/// Whether a further node may have the volume: only readers share one.
fn may_join(id: &VolumeId, volume: &StoredVolume, wanted: Attachment) -> Result<()> {
    let unsupported = |reason: &str| {
        Err(Error::Unsupported { what: format!("access mode {:?} for volume {id}", wanted.mode), reason: reason.to_owned() })
    };
    if !ACCESS_MODES.contains(&wanted.mode) {
        return unsupported("only one node may write at a time");
    }
    if volume.medium == Medium::Filesystem && !wanted.mode.is_single_node() {
        return unsupported("with medium=filesystem each node would see a tmpfs of its own");
    }
    let shared = |mode: AccessMode| !mode.is_single_node();
    match volume.attached.iter().find(|(_, existing)| !(shared(existing.mode) && shared(wanted.mode))) {
        None => Ok(()),
        Some((other, _)) => Err(Error::InUse {
            object: format!("volume {id}"),
            by: format!("it is attached to node {other}; detach it there first"),
        }),
    }
}

#[cfg(test)]
mod tests {
    use AccessMode::{MultiNodeMultiWriter, MultiNodeReaderOnly, SingleNodeReaderOnly, SingleNodeWriter};

    use super::super::testing::{Bench, GIB, id, node};
    use super::*;
    use crate::backend::Provision;

    fn bench() -> Bench {
        Bench::with(|config| {
            config.nodes = BTreeSet::from([node("one"), node("two")]);
            config.volumes_per_node = Some(2);
        })
    }

    #[test]
    fn one_writer_has_one_node() {
        let bench = bench();
        bench.create("a", GIB);
        let attach = |to: &str| bench.fake.attach(&id("a"), &node(to), SingleNodeWriter, false);
        let context = BTreeMap::from([(CONTEXT_KEY.to_owned(), "one".to_owned())]);
        assert_eq!(attach("one").expect("free"), Outcome::Changed(context.clone()));
        assert_eq!(attach("one").expect("a repeat"), Outcome::Unchanged(context));
        let error = attach("two").expect_err("taken");
        assert!(matches!(&error, Error::InUse { by, .. } if by.contains("node one")), "{error}");
        assert!(matches!(bench.fake.delete(&id("a")), Err(Error::InUse { .. })));
        assert_eq!(bench.fake.detach(&id("a"), Some(&node("two"))).expect("not there"), Outcome::Unchanged(()));
        assert_eq!(bench.fake.detach(&id("a"), Some(&node("one"))).expect("there"), Outcome::Changed(()));
        assert_eq!(bench.fake.detach(&id("a"), Some(&node("one"))).expect("a repeat"), Outcome::Unchanged(()));
        attach("two").expect("free again");
        bench.fake.detach(&id("a"), None).expect("from all");
        bench.fake.delete(&id("a")).expect("no longer attached");
        assert_eq!(bench.fake.detach(&id("a"), None).expect("no such volume"), Outcome::Unchanged(()));
    }

    #[test]
    fn readers_share_and_writers_do_not_join_them() {
        let bench = bench();
        bench.create("a", GIB);
        let attach = |to: &str, mode| bench.fake.attach(&id("a"), &node(to), mode, true).map(|_| ());
        attach("one", MultiNodeReaderOnly).expect("free");
        attach("two", MultiNodeReaderOnly).expect("shared");
        assert!(matches!(attach("here", SingleNodeWriter), Err(Error::InUse { .. })));
        assert!(matches!(attach("here", MultiNodeMultiWriter), Err(Error::Unsupported { .. })));
        assert!(matches!(attach("one", SingleNodeReaderOnly), Err(Error::Conflict { .. })));
        let everywhere = bench.fake.attachments(&[id("a"), id("none")]).expect("in memory");
        assert_eq!(everywhere, BTreeMap::from([(id("a"), BTreeSet::from([node("one"), node("two")]))]));
        assert_eq!(bench.fake.detach(&id("a"), None).expect("all of them"), Outcome::Changed(()));
        bench.tmpfs("t", GIB);
        assert!(matches!(bench.fake.attach(&id("t"), &node("one"), MultiNodeReaderOnly, true), Err(Error::Unsupported { .. })));
    }

    #[test]
    fn the_same_node_is_not_attached_in_another_way() {
        let bench = bench();
        bench.create("a", GIB);
        bench.fake.attach(&id("a"), &node("one"), SingleNodeWriter, false).expect("free");
        for (mode, read_only) in [(SingleNodeWriter, true), (SingleNodeReaderOnly, false)] {
            assert!(matches!(bench.fake.attach(&id("a"), &node("one"), mode, read_only), Err(Error::Conflict { .. })));
        }
    }

    #[test]
    fn a_full_node_takes_no_more_and_an_unknown_one_none() {
        let bench = bench();
        for name in ["a", "b", "c"] {
            bench.create(name, GIB);
        }
        let attach = |name: &str, to: &str| bench.fake.attach(&id(name), &node(to), SingleNodeWriter, false).map(|_| ());
        attach("a", "one").expect("room");
        attach("b", "one").expect("room");
        assert!(matches!(attach("c", "one"), Err(Error::NodeFull { .. })));
        attach("b", "one").expect("a repeat needs no room");
        attach("c", "two").expect("another node has room");
        bench.fake.detach(&id("a"), None).expect("attached");
        bench.fake.detach(&id("c"), None).expect("attached");
        attach("c", "one").expect("room again");
        for error in [attach("a", "three").expect_err("no such node"), attach("none", "one").expect_err("no such volume")] {
            assert!(matches!(error, Error::NotFound { .. }), "{error}");
        }
        assert_eq!(Attach::limit(bench.fake.as_ref(), &node("here")).expect("always there"), Some(2));
        assert!(matches!(Attach::limit(bench.fake.as_ref(), &node("three")), Err(Error::NotFound { .. })));
    }
}

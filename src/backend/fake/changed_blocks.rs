//! Which blocks of a snapshot hold data, and which differ from an earlier one.

use std::ops::ControlFlow;
use std::sync::Arc;

use super::Fake;
use super::contents::Contents;
use crate::backend::ChangedBlocks;
use crate::os::copy;
use crate::volume::{Bytes, Error, Extent, Result, SnapshotId, VolumeId};

/// A page: memory has no smaller holes.
const BLOCK: u64 = 4096;

struct Side {
    source: VolumeId,
    size: Bytes,
    contents: Option<Arc<Contents>>,
}

impl ChangedBlocks for Fake {
    fn allocated(&self, snapshot: &SnapshotId, offset: u64, emit: &mut dyn FnMut(Extent) -> ControlFlow<()>) -> Result<()> {
        let side = self.side(snapshot)?;
        within(&side, offset)?;
        let Some(contents) = &side.contents else { return Ok(()) };
        let mut emit = |offset, length| emit(Extent { offset, length });
        Ok(copy::data_extents(&contents.file, offset, &mut emit)?)
    }

    fn delta(
        &self,
        base: &SnapshotId,
        target: &SnapshotId,
        offset: u64,
        emit: &mut dyn FnMut(Extent) -> ControlFlow<()>,
    ) -> Result<()> {
        let (earlier, later) = (self.side(base)?, self.side(target)?);
        if earlier.source != later.source {
            let reason = format!("{base} is of volume {}, {target} of {}", earlier.source, later.source);
            return Err(Error::invalid("base_snapshot_id", reason));
        }
        within(&later, offset)?;
        if earlier.contents.is_none() && later.contents.is_none() {
            return Ok(());
        }
        let (earlier, later) = (earlier.contents()?, later.contents()?);
        let mut emit = |offset, length| emit(Extent { offset, length });
        Ok(copy::differing_extents(&earlier.file, &later.file, offset, BLOCK, &mut emit)?)
    }
}

impl Fake {
    fn side(&self, id: &SnapshotId) -> Result<Side> {
        let state = self.store.lock();
        let stored = state.snapshot(id)?;
        Ok(Side { source: stored.source.clone(), size: stored.size, contents: stored.contents.clone() })
    }
}

impl Side {
    /// What it holds, as a file also where nobody has written.
    fn contents(self) -> Result<Arc<Contents>> {
        match self.contents {
            Some(contents) => Ok(contents),
            None => Contents::new("zeroes", self.size).map(Arc::new).map_err(Error::rolled_back),
        }
    }
}

fn within(side: &Side, offset: u64) -> Result<()> {
    if offset <= side.size.0 {
        return Ok(());
    }
    let reason = format!("{offset} is beyond the end, at {}", side.size.0);
    Err(Error::OutOfRange { field: "starting_offset", reason })
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Bench, GIB, Still, id, member, snapshot_id};
    use super::*;
    use crate::backend::{Expand, Snapshots};

    fn allocated(bench: &Bench, snapshot: &str, offset: u64) -> Vec<(u64, u64)> {
        let mut all = Vec::new();
        let mut emit = |extent: Extent| {
            all.push((extent.offset, extent.length));
            ControlFlow::Continue(())
        };
        bench.fake.allocated(&snapshot_id(snapshot), offset, &mut emit).expect("in memory");
        all
    }

    fn delta(bench: &Bench, base: &str, target: &str, offset: u64) -> Vec<(u64, u64)> {
        let mut all = Vec::new();
        let mut emit = |extent: Extent| {
            all.push((extent.offset, extent.length));
            ControlFlow::Continue(())
        };
        bench.fake.delta(&snapshot_id(base), &snapshot_id(target), offset, &mut emit).expect("in memory");
        all
    }

    /// Snapshots: empty; with blocks 1 and 100; with block 1 changed, 100 the same, and more behind the old end.
    fn history() -> Bench {
        let bench = Bench::new();
        bench.create("a", GIB);
        let snapshot = |name| bench.fake.create_snapshot(&member(name, "a"), &Still::default()).expect("fits");
        snapshot("empty");
        bench.write("a", BLOCK, b"one");
        bench.write("a", 100 * BLOCK, b"hundred");
        snapshot("first");
        bench.write("a", BLOCK, b"two");
        bench.fake.expand(&id("a"), Bytes(2 * GIB.0)).expect("room");
        bench.write("a", GIB.0, b"behind");
        snapshot("second");
        bench
    }

    #[test]
    fn written_blocks_are_allocated() {
        let bench = history();
        assert_eq!(allocated(&bench, "empty", 0), []);
        let first = allocated(&bench, "first", 0);
        assert!(first.iter().any(|(offset, length)| *offset <= BLOCK && offset + length >= 2 * BLOCK), "{first:?}");
        assert!(allocated(&bench, "first", 101 * BLOCK).iter().all(|(offset, _)| *offset >= 101 * BLOCK));
    }

    #[test]
    fn changed_blocks_are_reported_exactly() {
        let bench = history();
        assert_eq!(delta(&bench, "empty", "empty", 0), []);
        assert_eq!(delta(&bench, "empty", "first", 0), [(BLOCK, BLOCK), (100 * BLOCK, BLOCK)]);
        assert_eq!(delta(&bench, "first", "second", 0), [(BLOCK, BLOCK), (GIB.0, BLOCK)]);
        assert_eq!(delta(&bench, "first", "second", 2 * BLOCK), [(GIB.0, BLOCK)]);
        assert_eq!(delta(&bench, "first", "empty", 0), [(BLOCK, BLOCK), (100 * BLOCK, BLOCK)], "back to zeroes");
    }

    #[test]
    fn it_ends_when_it_is_asked_to() {
        let bench = history();
        let mut seen = 0;
        let mut emit = |_: Extent| {
            seen += 1;
            ControlFlow::Break(())
        };
        bench.fake.delta(&snapshot_id("empty"), &snapshot_id("first"), 0, &mut emit).expect("in memory");
        assert_eq!(seen, 1);
    }

    #[test]
    fn snapshots_of_different_volumes_are_not_compared() {
        let bench = history();
        bench.create("b", GIB);
        bench.fake.create_snapshot(&member("other", "b"), &Still::default()).expect("fits");
        let mut emit = |_: Extent| ControlFlow::Continue(());
        let other = bench.fake.delta(&snapshot_id("first"), &snapshot_id("other"), 0, &mut emit);
        assert!(matches!(other, Err(Error::Invalid { .. })));
        let beyond = bench.fake.allocated(&snapshot_id("first"), GIB.0 + 1, &mut emit);
        assert!(matches!(beyond, Err(Error::OutOfRange { .. })));
        assert!(matches!(bench.fake.allocated(&snapshot_id("none"), 0, &mut emit), Err(Error::NotFound { .. })));
    }
}

//! What backends that list the changed blocks of snapshots have in common.

use std::ops::ControlFlow;

use crate::volume::{Bytes, Extent};

/// The longest extent reported, in bytes: readers allocate by it.
const LONGEST: u64 = 16 << 20;

/// Joins neighbouring runs and cuts them at [`LONGEST`] and at both ends of what was asked for.
pub(super) struct Runs<'a> {
    start: u64,
    end: u64,
    pending: Option<Extent>,
    stopped: bool,
    emit: &'a mut dyn FnMut(Extent) -> ControlFlow<()>,
}

impl<'a> Runs<'a> {
    pub fn new(start: u64, size: Bytes, emit: &'a mut dyn FnMut(Extent) -> ControlFlow<()>) -> Self {
        Runs { start, end: size.0, pending: None, stopped: false, emit }
    }

    pub fn push(&mut self, offset: u64, length: u64) -> ControlFlow<()> {
        let end = offset.saturating_add(length).min(self.end);
        let mut at = offset.max(self.start);
        while at < end {
            let piece = match &mut self.pending {
                Some(run) if run.offset + run.length == at && run.length < LONGEST => {
                    let piece = (end - at).min(LONGEST - run.length);
                    run.length += piece;
                    piece
                }
                pending => {
                    let piece = (end - at).min(LONGEST);
                    if let Some(run) = pending.replace(Extent { offset: at, length: piece })
                        && (self.emit)(run).is_break()
                    {
                        self.stopped = true;
                        return ControlFlow::Break(());
                    }
                    piece
                }
            };
            at += piece;
        }
        ControlFlow::Continue(())
    }

    /// Tells the last run. Nobody is left to be stopped by the answer.
    pub fn finish(mut self) {
        if let Some(run) = self.pending.take().filter(|_| !self.stopped) {
            match (self.emit)(run) {
                ControlFlow::Break(()) | ControlFlow::Continue(()) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reported(start: u64, size: u64, runs: &[(u64, u64)], most: usize) -> Vec<(u64, u64)> {
        let mut reported = Vec::new();
        let mut emit = |extent: Extent| {
            reported.push((extent.offset, extent.length));
            if reported.len() < most { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        };
        let mut joined = Runs::new(start, Bytes(size), &mut emit);
        for (offset, length) in runs {
            if joined.push(*offset, *length).is_break() {
                break;
            }
        }
        joined.finish();
        reported
    }

    #[test]
    fn neighbours_are_joined_and_ends_are_cut() {
        assert_eq!(reported(0, 100, &[(0, 10), (10, 10), (30, 5)], 9), [(0, 20), (30, 5)]);
        assert_eq!(reported(5, 32, &[(0, 10), (30, 5)], 9), [(5, 5), (30, 2)]);
        assert_eq!(reported(50, 100, &[(0, 10), (30, 5)], 9), []);
        assert_eq!(reported(0, 100, &[(100, 4096)], 9), []);
    }

    #[test]
    fn no_run_is_longer_than_a_reader_can_take() {
        let all = reported(0, u64::MAX, &[(7, LONGEST), (7 + LONGEST, LONGEST + 1)], 9);
        assert_eq!(all, [(7, LONGEST), (7 + LONGEST, LONGEST), (7 + 2 * LONGEST, 1)]);
    }

    #[test]
    fn no_extent_is_emitted_after_a_break() {
        assert_eq!(reported(0, 100, &[(0, 1), (10, 1), (20, 1), (30, 1)], 2), [(0, 1), (10, 1)]);
    }
}

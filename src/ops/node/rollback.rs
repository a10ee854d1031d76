//! What a failed stage or publish leaves: its own steps undone in reverse.

use crate::volume::Result;

/// Undoes the latest first, continuing after an error; answers what could not be undone. The journal goes only when nothing
/// else is left: what it says must be true to the last.
pub(super) fn undo_in_reverse<U: Copy + PartialEq>(done: Vec<U>, journal: U, undo_one: impl Fn(U) -> Result<()>) -> Vec<String> {
    let mut left = Vec::new();
    for undo in done.into_iter().rev() {
        if undo == journal && !left.is_empty() {
            continue;
        }
        if let Err(failure) = undo_one(undo) {
            left.push(failure.to_string());
        }
    }
    left
}

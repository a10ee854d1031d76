//! The way through two trees at once, one being made like the other, directory by directory, deepest first.
//!
//! Only the last some directories of the way down are kept open; one that was closed is opened again by its names from the top, through no
//! link. So neither depth nor breadth takes descriptors or stack.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use super::attributes::Attributes;
use crate::os::Result;
use crate::os::dir::OpenDir;

/// So many directories of the way are kept open, in each tree.
const OPEN: usize = 64;

/// What is to be done next.
pub(super) enum Level {
    /// A directory of this name was found in `from` and is to be made in `to`.
    Enter { from: OpenDir, to: OpenDir, name: OsString },
    /// All below it is done.
    Leave { to: OpenDir, attributes: Attributes },
}

struct Frame {
    name: OsString,
    /// `None` while they are closed.
    open: Option<(OpenDir, OpenDir)>,
    attributes: Attributes,
    /// Directories in it that are still to be entered.
    below: Vec<OsString>,
}

pub(super) struct Walk<'a> {
    from: &'a OpenDir,
    to: &'a OpenDir,
    frames: Vec<Frame>,
    vanished: u64,
}

impl<'a> Walk<'a> {
    pub fn new(from: &'a OpenDir, to: &'a OpenDir, attributes: Attributes) -> Result<Walk<'a>> {
        let open = Some((from.try_clone()?, to.try_clone()?));
        let top = Frame { name: OsString::new(), open, attributes, below: Vec::new() };
        Ok(Walk { from, to, frames: vec![top], vanished: 0 })
    }

    /// Directories that were moved away while something in them was still to be entered.
    pub fn vanished(&self) -> u64 {
        self.vanished
    }

    /// The directory of the last `Enter` is there now.
    pub fn enter(&mut self, name: OsString, from: OpenDir, to: OpenDir, attributes: Attributes) {
        self.frames.push(Frame { name, open: Some((from, to)), attributes, below: Vec::new() });
        if let Some(far) = self.frames.len().checked_sub(OPEN + 1)
            && let Some(frame) = self.frames.get_mut(far)
        {
            frame.open = None;
        }
    }

    /// What is in the directory that was entered last.
    pub fn found(&mut self, below: Vec<OsString>) {
        if let Some(frame) = self.frames.last_mut() {
            frame.below = below;
        }
    }

    pub fn next(&mut self) -> Result<Option<Level>> {
        self.reopen()?;
        let Some(frame) = self.frames.last_mut() else { return Ok(None) };
        if let (Some((from, to)), Some(name)) = (&frame.open, frame.below.pop()) {
            return Ok(Some(Level::Enter { from: from.try_clone()?, to: to.try_clone()?, name }));
        }
        let Some(Frame { open: Some((_, to)), attributes, .. }) = self.frames.pop() else { return Ok(None) };
        Ok(Some(Level::Leave { to, attributes }))
    }

    /// Opens the last directories of the way again, if they were closed.
    fn reopen(&mut self) -> Result<()> {
        if self.frames.last().is_none_or(|frame| frame.open.is_some()) {
            return Ok(());
        }
        let first = self.frames.len().saturating_sub(OPEN);
        let path: PathBuf =
            self.frames.iter().take(first + 1).map(|frame| frame.name.as_os_str()).filter(|n| !n.is_empty()).collect();
        let mut from = self.from.directory(&path).unwrap_or_default();
        let mut to = self.to.existing(&path)?;
        for number in first..self.frames.len() {
            if number > first {
                let name: &OsStr = self.frames.get(number).map_or(OsStr::new(""), |frame| &frame.name);
                from = match &from {
                    Some(directory) => directory.directory(name).unwrap_or_default(),
                    None => None,
                };
                to = to.existing(name)?;
            }
            let Some(frame) = self.frames.get_mut(number) else { break };
            let source = match &from {
                Some(directory) if directory.stat_self().is_ok_and(|stat| stat.st_ino == frame.attributes.stat.st_ino) => {
                    directory.try_clone()?
                }
                _ => {
                    // Moved away, with all that was still to be looked at. What was copied of it stays.
                    self.vanished += frame.below.len() as u64;
                    frame.below.clear();
                    to.try_clone()?
                }
            };
            frame.open = Some((source, to.try_clone()?));
        }
        Ok(())
    }
}

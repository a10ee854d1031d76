//! Device events.

use std::path::Path;
use std::time::Duration;

use super::Result;

/// Waits until the device node is there, on kernel events rather than by polling; at most `deadline`.
///
/// # Errors
/// `Deadline`.
pub fn wait_for_node(path: &Path, deadline: Duration) -> Result<()> {
    unimplemented!()
}

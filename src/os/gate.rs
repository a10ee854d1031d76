//! Steps that a test watches and holds: compiled in only with the feature `faults`.
//!
//! The begin and the end of each step of a call are reported in the log, at level trace, with the number of the call's span.
//!
//! With `LONGSHORE_GATE=SOCKET` in the driver's environment each step whose name and object contain `LONGSHORE_GATE_AT`
//! (all, if that is not set) connects there, says what it is, and begins once the other end has closed the connection;
//! at once if nobody listens.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::OnceLock;

struct Gate {
    socket: String,
    at: String,
}

static GATE: OnceLock<Option<Gate>> = OnceLock::new();

/// Dropped when the step has ended.
pub(super) struct Within {
    operation: u64,
}

impl Drop for Within {
    fn drop(&mut self) {
        tracing::trace!(operation = self.operation, "step ends");
    }
}

/// To be called in the span of the call, outside of the step's own; out of a call there is nothing to watch.
pub(super) fn enter(name: &str, object: &dyn std::fmt::Display) -> Option<Within> {
    let operation = tracing::Span::current().id()?.into_u64();
    tracing::trace!(operation, "step begins");
    let gate = GATE.get_or_init(|| {
        let socket = std::env::var("LONGSHORE_GATE").ok()?;
        Some(Gate { socket, at: std::env::var("LONGSHORE_GATE_AT").unwrap_or_default() })
    });
    let text = format!("{name} {object}");
    if let Some(gate) = gate.as_ref().filter(|gate| text.contains(&gate.at))
        && let Ok(mut held) = UnixStream::connect(&gate.socket)
        && held.write_all(text.as_bytes()).and_then(|()| held.shutdown(std::net::Shutdown::Write)).is_ok()
    {
        // Nothing comes; an error says as well as an end that it may continue.
        held.read_to_end(&mut Vec::new()).ok();
    }
    Some(Within { operation })
}

//! What may not come back is waited for on a thread of its own, for so long and no longer.

use std::sync::mpsc;
use std::time::Duration;

/// Runs `work` on a thread of its own; `None` where it has not come to its end after `limit`, or where no thread can be had. It
/// then continues unseen, until it or the process ends.
pub fn within<T: Send + 'static>(limit: Duration, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (sender, receiver) = mpsc::sync_channel(1);
    let thread = std::thread::Builder::new().name("look".to_owned()).spawn(move || {
        // Nobody listens any more where it was too slow.
        sender.send(work()).ok();
    });
    thread.ok().and_then(|_| receiver.recv_timeout(limit).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn result_is_returned_before_the_deadline_and_a_hung_thread_left() {
        assert_eq!(within(Duration::from_secs(30), || 7), Some(7));
        let (_hold, held) = mpsc::channel::<()>();
        assert_eq!(within(Duration::from_millis(20), move || held.recv().is_ok()), None);
    }
}

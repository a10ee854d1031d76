//! The same work for many files, by a few threads: what a pool's opening waits for.

use std::thread;

/// So many threads read a pool when it is opened, each at least so many files: a thread costs as much as some of them.
const THREADS: usize = 4;
const FEW: usize = 256;

/// Does `work` for all, on several threads where there are many.
pub(super) fn map_each<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let threads = thread::available_parallelism().map_or(1, usize::from).min(THREADS);
    let share = items.len().div_ceil(threads).max(FEW);
    let work = &work;
    let of = |items: &[T]| items.iter().map(work).collect::<Vec<R>>();
    let mut shares = items.chunks(share);
    let own = shares.next().unwrap_or_default();
    thread::scope(|scope| {
        let others: Vec<_> = shares
            .map(|items| {
                let spawned = thread::Builder::new().name("load pool".to_owned()).spawn_scoped(scope, move || of(items));
                spawned.map_err(|_| items)
            })
            .collect();
        let mut done = of(own);
        for other in others {
            done.extend(match other.map(thread::ScopedJoinHandle::join) {
                Ok(Ok(part)) => part,
                Ok(Err(panic)) => std::panic::resume_unwind(panic),
                Err(items) => of(items),
            });
        }
        done
    })
}

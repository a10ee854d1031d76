//! Questions that a cloud takes one by one are asked at the same time.
//!
//! One thread looks for all calls ([`super::poller`]). If it waited for each answer before it asked for the next, a cloud that answers within
//! 80 ms would be asked twelve times a second, whatever it allows.

use std::panic::resume_unwind;
use std::thread;

use super::refusal::Answer;

/// What is found of each of these, in their order; the first refusal, where there is one, once all are answered. Each question passes the
/// bucket of its action as any other.
pub fn ask_each<T: Sync, R: Send>(items: &[T], ask: impl Fn(&T) -> Answer<Option<R>> + Sync) -> Answer<Vec<R>> {
    let [first, others @ ..] = items else { return Ok(Vec::new()) };
    thread::scope(|scope| {
        let begin = |item| {
            let ask = &ask;
            (item, thread::Builder::new().name("cloud look-up".to_owned()).spawn_scoped(scope, move || ask(item)))
        };
        let asked: Vec<_> = others.iter().map(begin).collect();
        let first = ask(first);
        let rest = asked.into_iter().map(|(item, asked)| match asked {
            Ok(asked) => asked.join().unwrap_or_else(|panic| resume_unwind(panic)),
            // There is no thread to be had.
            Err(_) => ask(item),
        });
        // All of them, before one that was refused is looked at.
        let all: Vec<_> = [first].into_iter().chain(rest).collect();
        all.into_iter().filter_map(Answer::transpose).collect()
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::super::refusal::{CloudErrorKind, refusal};
    use super::*;

    #[test]
    fn all_are_asked_at_once_and_found_in_their_order() {
        let all = Barrier::new(4);
        let found = ask_each(&[3, 1, 4, 1], |item| {
            all.wait();
            Ok((*item != 4).then_some(*item))
        });
        assert_eq!(found, Ok(vec![3, 1, 1]));
        assert_eq!(ask_each(&[], |item: &u8| Ok(Some(*item))), Ok(Vec::new()));
    }

    #[test]
    fn one_refusal_refuses_all() {
        let ask = |item: &u8| match item {
            2 => Err(refusal(CloudErrorKind::Throttled, "look", "code", "later".to_owned())),
            item => Ok(Some(*item)),
        };
        assert_eq!(ask_each(&[1, 2, 3], ask).expect_err("refused").because, CloudErrorKind::Throttled);
    }
}

//! One client: owns a volume for a while, does with it what a CO does, and knows what must come of it.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tonic::{Code, Status};

use super::calls::{Calls, Reply};
use super::common::connect;
use super::model::{Op, Random, Rest, Slot, Volume};
use super::shared::{Known, Place, Shared};

/// An operation that is not done after so long, with kills in between, never will be.
const PATIENCE: Duration = Duration::from_secs(90);
/// A call that was given up has begun by then, or never will.
const REST: Duration = Duration::from_secs(1);
pub enum Answer<T> {
    Ok(T),
    /// The driver's word, and whether its steps may have failed.
    Refused(Status, bool),
    /// The driver died, or the client gave up: nobody knows.
    Cut {
        given_up: bool,
    },
}

impl<T> Answer<T> {
    fn show(&self) -> String {
        match self {
            Answer::Ok(_) => "OK".to_owned(),
            Answer::Refused(status, _) => format!("{:?}: {}", status.code(), status.message()),
            Answer::Cut { given_up: true } => "given up".to_owned(),
            Answer::Cut { given_up: false } => "cut".to_owned(),
        }
    }
}

/// How a call is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    /// Some clients give up, far too early.
    Any,
    Patient,
}

pub struct Worker<'w> {
    pub shared: &'w Shared,
    pub number: usize,
    pub random: Random,
    channel: Option<(u64, tonic::transport::Channel)>,
}

impl<'w> Worker<'w> {
    pub fn new(shared: &'w Shared, number: usize) -> Worker<'w> {
        let mut random = Random(shared.seed.wrapping_mul(1000).wrapping_add(number as u64));
        random.next();
        Worker { shared, number, random, channel: None }
    }

    pub fn note(&self, place: &Place, what: &str, came: &str) {
        place.note(format!("{} w{:02} {what} -> {came}", self.shared.stamp(), self.number));
    }

    /// Asks once.
    pub fn call<T>(
        &mut self,
        place: &Place,
        what: &str,
        manner: Manner,
        ask: impl AsyncFnOnce(&Calls) -> Result<T, Status>,
    ) -> Answer<T> {
        let driver = self.shared.wait_up(0);
        let shared = self.shared;
        let _in_runtime = shared.runtime.enter();
        let channel = match &self.channel {
            Some((incarnation, channel)) if *incarnation == driver.incarnation => channel.clone(),
            _ => connect(shared.socket.clone()),
        };
        self.channel = Some((driver.incarnation, channel.clone()));
        let short = manner == Manner::Any && self.random.chance(6);
        let deadline = short.then(|| Duration::from_micros(200 + self.random.below(30_000)));
        let calls = Calls { channel, deadline, may_fail: driver.may_fail };
        let limit = deadline.unwrap_or(PATIENCE);
        shared.counts.operations.fetch_add(1, Ordering::Relaxed);
        let answer = shared.runtime.block_on(async { tokio::time::timeout(limit, ask(&calls)).await });
        let answer = match answer {
            Ok(Ok(done)) => Answer::Ok(done),
            Err(_) => Answer::Cut { given_up: true },
            Ok(Err(status)) if short && matches!(status.code(), Code::Cancelled | Code::DeadlineExceeded) => {
                Answer::Cut { given_up: true }
            }
            // Only what came over the connection has no cause of its own.
            Ok(Err(status)) if std::error::Error::source(&status).is_some() => {
                shared.wait_up(driver.incarnation);
                Answer::Cut { given_up: false }
            }
            Ok(Err(status)) => Answer::Refused(status, driver.may_fail),
        };
        let count = match &answer {
            Answer::Ok(_) => None,
            Answer::Refused(..) => Some(&shared.counts.refused),
            Answer::Cut { .. } => Some(&shared.counts.cut),
        };
        if let Some(count) = count {
            count.fetch_add(1, Ordering::Relaxed);
        }
        if !short && matches!(answer, Answer::Cut { given_up: true }) {
            shared.violation(Some(place), &format!("{what}: no answer after {PATIENCE:?}"));
        }
        self.note(place, what, &answer.show());
        answer
    }

    pub fn violation(&self, place: &Place, slot: &mut Slot, what: &str) {
        slot.broken = true;
        self.shared.violation(Some(place), what);
    }

    /// Compares what is known with what the kernel and the pools show.
    pub fn look(&self, place: &Place, slot: &mut Slot, when: &str) {
        let members: Vec<String> = match (&slot.group, &slot.pending) {
            (Some(group), _) | (None, Some(Op::Group(group))) => group.members.keys().cloned().collect(),
            _ => Vec::new(),
        };
        let (seen, expected) = (self.shared.seen(place, &members), self.shared.expected(slot));
        if seen != expected {
            let more: Vec<_> = seen.difference(&expected).collect();
            let missing: Vec<_> = expected.difference(&seen).collect();
            self.violation(place, slot, &format!("after {when}: left over {more:?}, missing {missing:?}"));
        }
    }

    /// Does `op`, whatever it takes. It may be left open where it can be.
    pub fn carry(&mut self, place: &Place, slot: &mut Slot, op: Op) {
        if slot.broken {
            return;
        }
        slot.pending = Some(op.clone());
        if matches!(op, Op::Create(_) | Op::Delete) {
            place.mark(Known::Unsure);
        }
        self.go_on(place, slot, op);
    }

    /// Ends what was left open: by the same call again, or by its inverse.
    pub fn settle(&mut self, place: &Place, slot: &mut Slot) {
        let Some(op) = slot.pending.clone() else { return };
        let way = op.inverse().filter(|_| self.random.chance(40)).unwrap_or(op);
        self.go_on(place, slot, way);
    }

    fn go_on(&mut self, place: &Place, slot: &mut Slot, mut way: Op) {
        let Some(op) = slot.pending.clone() else { return };
        let begun = Instant::now();
        let closing = self.shared.closing.load(Ordering::Relaxed);
        let mut given_up = false;
        loop {
            let came = self.ask(place, slot, &way);
            given_up |= matches!(came, Answer::Cut { given_up: true });
            if given_up {
                slot.rest = Some(Rest { until: Instant::now() + REST, incarnation: self.shared.incarnation() });
            }
            match came {
                Answer::Ok(reply) => {
                    self.done(place, slot, &way, &reply);
                    slot.pending = None;
                    self.look(place, slot, &way.show());
                    return;
                }
                Answer::Refused(status, may_fail) => match judge(&way, &status, may_fail) {
                    Verdict::Open => {}
                    Verdict::Over if std::mem::discriminant(&way) == std::mem::discriminant(&op) && op.may_fail() => {
                        self.look(place, slot, &format!("the final {:?} of {}", status.code(), op.show()));
                        slot.pending = None;
                        if matches!(op, Op::Create(_)) {
                            place.mark(Known::Absent);
                        }
                        return;
                    }
                    // To be repeated all the same: a removal, or a change that has no way back.
                    Verdict::Over => {}
                    Verdict::Unexpected => {
                        let what = format!("{} ought to work: {:?}: {}", way.show(), status.code(), status.message());
                        self.violation(place, slot, &what);
                        return;
                    }
                },
                Answer::Cut { .. } => {}
            }
            if begun.elapsed() > PATIENCE {
                self.violation(place, slot, &format!("{} does not come to an end", way.show()));
                return;
            }
            if op.can_wait() && !closing && self.random.chance(if given_up { 60 } else { 15 }) {
                return;
            }
            match op.inverse() {
                // A call that was given up may be yet to begin: then nothing else is asked for.
                Some(inverse) if !given_up && !closing && self.random.chance(20) => way = inverse,
                _ => back_off(&mut self.random),
            }
        }
    }

    /// Once; or twice at the same time; or together with its inverse.
    fn ask(&mut self, place: &Place, slot: &Slot, way: &Op) -> Answer<Reply> {
        let shared = self.shared;
        let twice = self.random.chance(8);
        let closing = shared.closing.load(Ordering::Relaxed);
        let raced = way.inverse().filter(|_| !closing && self.random.chance(4));
        if let Some(inverse) = raced {
            let what = format!("{} and {inverse:?} together", way.show());
            let together = self.call(place, &what, Manner::Patient, async |calls| {
                Ok(tokio::join!(calls.perform(shared, place, slot, way), calls.perform(shared, place, slot, &inverse)))
            });
            shared.counts.operations.fetch_add(1, Ordering::Relaxed);
            // Who came first is not known: it is still to be settled.
            return match together {
                Answer::Ok((first, second)) => {
                    let show = |result: &Result<Reply, Status>| match result {
                        Ok(_) => "OK".to_owned(),
                        Err(status) => format!("{:?}: {}", status.code(), status.message()),
                    };
                    self.note(place, "together", &format!("{} and {}", show(&first), show(&second)));
                    Answer::Cut { given_up: false }
                }
                _ => Answer::Cut { given_up: false },
            };
        }
        if !twice {
            return self.call(place, &way.show(), Manner::Any, async |calls| calls.perform(shared, place, slot, way).await);
        }
        let both = self.call(place, &format!("{}, twice", way.show()), Manner::Patient, async |calls| {
            let both = tokio::join!(calls.perform(shared, place, slot, way), calls.perform(shared, place, slot, way));
            Ok((both, calls.may_fail))
        });
        shared.counts.operations.fetch_add(1, Ordering::Relaxed);
        match both {
            Answer::Ok(((Ok(reply), Ok(_)), _)) => Answer::Ok(reply),
            Answer::Ok(((Ok(reply), Err(status)) | (Err(status), Ok(reply)), may_fail)) => {
                self.note(place, "one of the two", &format!("{:?}: {}", status.code(), status.message()));
                // What is wrong for one is wrong for both; else the other was first, and may not be over yet.
                match judge(way, &status, may_fail) {
                    Verdict::Unexpected if std::error::Error::source(&status).is_none() => Answer::Refused(status, may_fail),
                    Verdict::Open | Verdict::Over | Verdict::Unexpected => Answer::Ok(reply),
                }
            }
            Answer::Ok(((Err(_), Err(_)), _)) => Answer::Cut { given_up: false },
            Answer::Refused(status, may_fail) => Answer::Refused(status, may_fail),
            Answer::Cut { given_up } => Answer::Cut { given_up },
        }
    }

    /// What is true after `op` was answered with OK.
    fn done(&mut self, place: &Place, slot: &mut Slot, op: &Op, reply: &Reply) {
        match op {
            Op::Create(volume) => {
                let mut volume = (**volume).clone();
                volume.context.clone_from(&reply.context);
                let capacity = reply.size.unwrap_or(0);
                if capacity != volume.capacity {
                    self.violation(place, slot, &format!("made with {capacity} bytes, not {}", volume.capacity));
                }
                slot.volume = Some(volume);
                place.mark(Known::Present);
                // Of one that was made and deleted at the same time.
                self.kept(place, slot, None);
            }
            Op::Delete => {
                let before = slot.volume.take();
                self.kept(place, slot, before.as_ref());
                place.mark(Known::Absent);
            }
            Op::Snapshot { number } => {
                let mut snapshot = slot.volume.as_ref().map(Volume::snapshot);
                if let (Some(snapshot), Some(size)) = (&mut snapshot, reply.size) {
                    snapshot.size = size;
                    snapshot.content.unsure.append(&mut slot.writing);
                }
                slot.snapshots[*number] = snapshot;
            }
            Op::DeleteSnapshot { number } => slot.snapshots[*number] = None,
            Op::Group(group) => slot.group = Some(group.clone()),
            Op::DeleteGroup => slot.group = None,
            _ => {}
        }
        let Some(volume) = &mut slot.volume else { return };
        match op {
            Op::Stage => {
                (volume.staged, volume.formatted, volume.device) = (true, true, volume.capacity);
            }
            Op::Unstage => volume.staged = false,
            Op::Publish { target, read_only } => volume.targets[*target] = Some(*read_only),
            Op::Unpublish { target } => volume.targets[*target] = None,
            Op::Expand { .. } => volume.capacity = volume.capacity.max(reply.size.unwrap_or(0)),
            Op::NodeExpand => volume.device = volume.capacity,
            Op::Modify { on_delete } => volume.on_delete = on_delete,
            _ => {}
        }
        let asked = match op {
            Op::Expand { capacity } => Some(*capacity),
            Op::NodeExpand => Some(volume.capacity),
            _ => None,
        };
        if asked.is_some_and(|asked| reply.size.is_none_or(|size| size < asked)) {
            self.violation(place, slot, &format!("{} answers with {:?}", op.show(), reply.size));
        }
    }

    /// A deleted volume's data is where its parameters say; the operator then removes it.
    fn kept(&mut self, place: &Place, slot: &mut Slot, before: Option<&Volume>) {
        for (way, directory) in [("retain", "retained"), ("archive", "archive")] {
            let kept = self.shared.kept(place, directory);
            if let Some(volume) = before {
                let wanted = usize::from(volume.on_delete == way);
                if kept.len() != wanted {
                    self.violation(place, slot, &format!("deleted by {:?}, and {directory} holds {kept:?}", volume.on_delete));
                }
                let image = kept.first().map(|directory| std::fs::read(directory.join("image")));
                if let (Some(image), true) = (image, volume.raw())
                    && let Err(what) =
                        image.map_err(|error| error.to_string()).and_then(|image| volume.content.compare_device(image))
                {
                    self.violation(place, slot, &format!("what {directory} holds: {what}"));
                }
            }
            for directory in kept {
                std::fs::remove_dir_all(directory).expect("what was kept is removed");
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// It may still happen.
    Open,
    /// It is over, and was not done.
    Over,
    /// There is no reason for it.
    Unexpected,
}

/// What an error says of an operation that ought to work.
fn judge(op: &Op, status: &Status, may_fail: bool) -> Verdict {
    match status.code() {
        Code::Aborted => Verdict::Open,
        // Of a raw block volume that is published for writing, or several.
        Code::FailedPrecondition if op.copies_volume() && is_of_no_instant(status.message()) => Verdict::Over,
        _ if !may_fail => Verdict::Unexpected,
        Code::Unavailable => Verdict::Open,
        Code::ResourceExhausted if !matches!(op, Op::Create(_)) => Verdict::Open,
        Code::ResourceExhausted | Code::Internal => Verdict::Over,
        _ => Verdict::Unexpected,
    }
}

fn is_of_no_instant(message: &str) -> bool {
    ["no single instant", "no common instant", "written to while it was copied"].iter().any(|reason| message.contains(reason))
}

fn back_off(random: &mut Random) {
    std::thread::park_timeout(Duration::from_millis(1 + random.below(40)));
}

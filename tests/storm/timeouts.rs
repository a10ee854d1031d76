//! Clients give up at every step of every mutating call.
//!
//! The step is held at the gate while its client leaves. Anyone who repeats the call then, or calls its inverse, gets
//! who is at work, at which step and since when, and comes to no step of his own. Once the step continues, the repeated
//! call, or the inverse, is OK, and everything is as after a call that nobody disturbed.

use std::cell::Cell;
use std::fs;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use tonic::{Code, Status};

use crate::calls::{Call, Client, Left, Volume};
use crate::common::{Harness, MIB, Pool, isolated, mounts_at};
use crate::gate::{Gate, Held};

const CONTENT: &[u8] = b"what was written before must be there byte by byte";
/// Behind what any file system keeps at the start of its device.
const PLACE: u64 = 1 << 20;
const BACK_OFF: Duration = Duration::from_millis(1);

struct Story {
    harness: Harness,
    gate: Gate,
    client: Client,
    volume: Volume,
    written: Cell<bool>,
    cells: Cell<usize>,
}

/// From which state to which a call leads.
struct Between<'a> {
    before: &'a Left,
    after: &'a Left,
}

impl Story {
    fn new(backend: &'static str, fstype: Option<&'static str>) -> Story {
        let mut harness = Harness::new(Pool::Xfs);
        let socket = harness.path("gate");
        harness.set("LONGSHORE_GATE", &crate::common::text(&socket));
        let gate = harness.block_on(async { Gate::new(&socket) });
        harness.start();
        let (client, volume) = (Client::new(&harness), Volume::new(&harness, "story", backend, fstype));
        Story { harness, gate, client, volume, written: Cell::new(false), cells: Cell::new(0) }
    }

    async fn send(&self, call: Call) -> Result<(), Status> {
        self.client.call(&self.volume, call).await
    }

    fn ok(&self, call: Call) {
        self.harness.block_on(self.gate.pass(self.send(call))).unwrap_or_else(|status| panic!("{call:?}: {status}"));
    }

    /// As a CO does: until no answer says that another call is at work.
    fn until_ok(&self, call: Call, when: &str) {
        let answer = self.harness.block_on(self.gate.pass(async {
            loop {
                match self.send(call).await {
                    Err(status) if status.code() == Code::Aborted => tokio::time::sleep(BACK_OFF).await,
                    answer => break answer,
                }
            }
        }));
        answer.unwrap_or_else(|status| panic!("{call:?} {when}: {status}"));
    }

    /// Holds the call at its n-th step, and leaves; `None` where it has fewer and is done.
    fn leave_at(&self, call: Call, n: usize) -> Option<Held> {
        match self.harness.block_on(self.gate.hold(n, self.send(call))) {
            Ok(held) => Some(held),
            Err(answer) => {
                answer.unwrap_or_else(|status| panic!("{call:?}: {status}"));
                None
            }
        }
    }

    fn turned_away(&self, call: Call, held: &Held, when: &str) {
        let answer = self.harness.block_on(self.gate.without_steps(self.send(call)));
        let status = answer.expect_err(when);
        assert_eq!(status.code(), Code::Aborted, "{call:?} {when}: {status}");
        let reported = format!("has been at \"{}\" for ", held.step);
        assert!(status.message().contains(&reported), "{call:?} {when}: {status}");
    }

    fn expect(&self, expected: &Left, when: &str) {
        assert_eq!(&Left::now(&self.harness), expected, "{when}");
        self.content(when);
    }

    /// Writes where it is published for the first time, and reads that ever after.
    fn content(&self, when: &str) {
        let target = &self.volume.targets[0];
        if mounts_at(target) == 0 {
            return;
        }
        let (path, place) = if self.volume.fstype.is_some() { (target.join("file"), 0) } else { (target.clone(), PLACE) };
        if !self.written.replace(true) {
            let mut options = fs::OpenOptions::new();
            let file = options.create(self.volume.fstype.is_some()).truncate(false).write(true).open(&path).expect("a file");
            file.write_all_at(CONTENT, place).expect("written");
            file.sync_all().expect("synced");
        }
        let mut content = vec![0; CONTENT.len()];
        fs::File::open(&path).and_then(|file| file.read_exact_at(&mut content, place)).expect(when);
        assert_eq!(content, CONTENT, "{when}");
    }

    /// Every step of `call`, with `reset` each time that all is as before.
    fn row(&self, call: Call, inverse: Call, between: &Between<'_>, reset: &[Call]) {
        for n in 1.. {
            for repeated in [true, false] {
                let Some(held) = self.leave_at(call, n) else {
                    assert!(n > 1, "{call:?} has no step: nothing was tested");
                    self.expect(between.after, &format!("{call:?}, undisturbed"));
                    self.until_ok(inverse, "undisturbed");
                    return;
                };
                let when = format!("after {call:?} was left at step {n}, {:?}", held.step);
                self.turned_away(call, &held, &when);
                self.turned_away(inverse, &held, &when);
                drop(held);
                if repeated {
                    self.until_ok(call, &when);
                    self.expect(between.after, &when);
                }
                self.until_ok(inverse, &when);
                self.expect(between.before, &when);
                reset.iter().for_each(|call| self.ok(*call));
                self.cells.set(self.cells.get() + 1);
            }
        }
    }

    /// Every step of `call` and of its inverse; `call` is done afterwards.
    fn both(&self, call: Call, inverse: Call) {
        let before = Left::now(&self.harness);
        self.ok(call);
        let after = Left::now(&self.harness);
        self.ok(inverse);
        self.expect(&before, "undone");
        self.row(call, inverse, &Between { before: &before, after: &after }, &[]);
        self.ok(call);
        self.expect(&after, "done");
        self.row(inverse, call, &Between { before: &after, after: &before }, &[]);
    }

    /// Every step of a call without an inverse, which asks for something else each time; `shown` is whether that is so.
    fn steady(&self, call: impl Fn(i64) -> Call, prepare: impl Fn(i64), shown: impl Fn(i64) -> bool) {
        let left = Left::now(&self.harness);
        for n in 1.. {
            let (wanted, step) = (n, usize::try_from(n).expect("a small number"));
            prepare(wanted);
            let Some(held) = self.leave_at(call(wanted), step) else {
                assert!(n > 1, "{:?} has no step: nothing was tested", call(wanted));
                return;
            };
            let when = format!("after {:?} was left at step {n}, {:?}", call(wanted), held.step);
            self.turned_away(call(wanted), &held, &when);
            drop(held);
            self.until_ok(call(wanted), &when);
            self.expect(&left, &when);
            assert!(shown(wanted), "{when}: it is not so");
            self.cells.set(self.cells.get() + 1);
        }
    }

    fn end(mut self) -> usize {
        assert!(self.harness.stop(), "the driver ends with success");
        self.harness.assert_nothing_left();
        self.harness.assert_pool_empty();
        self.cells.get()
    }
}

/// A volume's life on the node, each call in every way; it is published then.
fn on_the_node(fstype: Option<&'static str>) -> Story {
    let story = Story::new("image", fstype);
    story.ok(Call::Create);
    let created = Left::now(&story.harness);
    story.ok(Call::Stage);
    let staged = Left::now(&story.harness);
    // The first stage makes the file system, all others find it.
    let fresh = [Call::Delete, Call::Create];
    [Call::Unstage].iter().chain(&fresh).for_each(|call| story.ok(*call));
    story.row(Call::Stage, Call::Unstage, &Between { before: &created, after: &staged }, &fresh);
    story.both(Call::Stage, Call::Unstage);
    story.ok(Call::Publish(0));
    story.content("published");
    story.both(Call::Publish(1), Call::Unpublish(1));
    story.both(Call::Unpublish(0), Call::Publish(0));
    [Call::Publish(0), Call::Unpublish(1)].into_iter().for_each(|call| story.ok(call));
    story
}

/// Takes down what there may be.
fn end(story: Story) -> usize {
    use Call::{Delete, DeleteCloned, DeleteGroup, DeleteRestored, DeleteSnapshot, Modify, Unpublish, Unstage};
    for call in [Unpublish(0), Unstage, DeleteCloned, DeleteRestored, DeleteGroup, DeleteSnapshot, Modify("delete"), Delete] {
        story.ok(call);
    }
    story.end()
}

/// What the controller does is the same for all file systems, but for the freeze.
fn xfs() -> usize {
    let story = on_the_node(Some("xfs"));
    story.both(Call::Snapshot, Call::DeleteSnapshot);
    story.both(Call::Group, Call::DeleteGroup);
    story.both(Call::Restore, Call::DeleteRestored);
    story.both(Call::Clone, Call::DeleteCloned);
    let image = story.harness.path("pool/images/volumes/story");
    let on_delete = |n: i64| if n % 2 == 1 { "scrub" } else { "delete" };
    let meta = || fs::read_to_string(image.join("meta.json")).expect("what the pool knows of the volume");
    story.steady(|n| Call::Modify(on_delete(n)), |_| {}, |n| meta().contains(on_delete(n)));
    let size = |n: i64| story.volume.mib + 16 * n;
    let length = || i64::try_from(fs::metadata(image.join("image")).expect("the image").len()).expect("a size");
    story.steady(|n| Call::Expand(size(n)), |_| {}, |n| length() == size(n) * MIB);
    // Online, which ext4 does only with a capability that is not had everywhere.
    let size = |n: i64| story.volume.mib + 256 * (n + 1);
    let total = || {
        let stat = rustix::fs::statvfs(&story.volume.targets[0]).expect("the file system");
        i64::try_from(stat.f_blocks * stat.f_frsize).expect("a size")
    };
    // What xfs keeps for itself does not count.
    story.steady(|n| Call::NodeExpand(size(n)), |n| story.ok(Call::Expand(size(n))), |n| total() > (size(n) - 128) * MIB);
    end(story)
}

fn ext4() -> usize {
    end(on_the_node(Some("ext4")))
}

fn raw_block() -> usize {
    let story = on_the_node(None);
    story.both(Call::Snapshot, Call::DeleteSnapshot);
    end(story)
}

fn create() -> usize {
    let story = Story::new("image", Some("ext4"));
    story.both(Call::Create, Call::Delete);
    story.ok(Call::Delete);
    story.end()
}

fn inline() -> usize {
    let story = Story::new("image", Some("ext4"));
    story.both(Call::Inline, Call::EndInline);
    story.ok(Call::EndInline);
    story.end()
}

fn attach() -> usize {
    let story = Story::new("fake", Some("ext4"));
    story.both(Call::Create, Call::Delete);
    story.both(Call::Attach, Call::Detach);
    story.ok(Call::Detach);
    story.ok(Call::Delete);
    story.end()
}

#[test]
fn a_client_gives_up_at_every_step() {
    isolated(|| {
        let cells = xfs() + ext4() + raw_block() + create() + inline() + attach();
        println!("FIGURE: client timeouts: {cells} cells");
    });
}

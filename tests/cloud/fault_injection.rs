//! Every mutating call, with its request lost, its answer lost, late, repeated or garbled, and with the driver killed at each step: in
//! the end there is what there would have been, once, and nothing else.

use std::sync::Arc;
use std::time::Duration;

use super::common::{is_left_out, is_short};
use super::driver::{Called, Driver, ZONE, is_final, tag};
use super::lifecycle::{clone_of, from_snapshot};
use super::proxy::{Cloud, INTERNAL_ERROR, Trouble, UNAVAILABLE};

/// Fast: each of some hundred cells is a life of its own.
const SPEED: u32 = 50;

const ELSEWHERE: &str = "us-east-1b";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Create,
    Restore,
    Clone,
    /// Through a snapshot: a volume is copied in its zone only.
    CloneElsewhere,
    Attach,
    Expand,
    Modify,
    Snapshot,
    DeleteSnapshot,
    Detach,
    Delete,
}

const CALLS: [Call; 11] = [
    Call::Create,
    Call::Restore,
    Call::Clone,
    Call::CloneElsewhere,
    Call::Attach,
    Call::Expand,
    Call::Modify,
    Call::Snapshot,
    Call::DeleteSnapshot,
    Call::Detach,
    Call::Delete,
];

impl Call {
    /// The request by which it changes something.
    fn action(self) -> &'static str {
        match self {
            Call::Create | Call::Restore | Call::CloneElsewhere => "CreateVolume",
            Call::Clone => "CopyVolumes",
            Call::Attach => "AttachVolume",
            Call::Expand | Call::Modify => "ModifyVolume",
            Call::Snapshot => "CreateSnapshot",
            Call::DeleteSnapshot => "DeleteSnapshot",
            Call::Detach => "DetachVolume",
            Call::Delete => "DeleteVolume",
        }
    }
}

/// A driver, and a volume of a name of its own for each cell.
struct Story {
    driver: Driver,
    instance: String,
    cell: u32,
}

impl Story {
    fn start() -> Option<Story> {
        let cloud = Cloud::start(SPEED)?;
        // What is tried here is not how often.
        cloud.manners().throttles = false;
        let instance = cloud.run_instances(1, "m5.large", ZONE).remove(0);
        let endpoint = format!("http://{}", cloud.address);
        let mut driver = Driver::new(&cloud, SPEED, &instance, &endpoint).with_faults();
        driver.harness.start();
        Some(Story { driver, instance, cell: 0 })
    }

    fn cloud(&self) -> &Arc<Cloud> {
        &self.driver.cloud
    }

    fn name(&self, what: &str) -> String {
        format!("{what}-{}", self.cell)
    }

    fn id(&self, what: &str) -> String {
        format!("ebs:{}", self.name(what))
    }

    /// Makes what `call` needs.
    fn prepare(&mut self, call: Call) {
        self.cell += 1;
        let (driver, name) = (&self.driver, self.name("story"));
        if call != Call::Create {
            driver.create(&name).expect("created");
        }
        if call == Call::Detach {
            driver.attach(&self.id("story"), &self.instance).expect("attached");
        }
        if [Call::Restore, Call::DeleteSnapshot].contains(&call) {
            driver.snapshot(&self.name("then"), &self.id("story")).expect("a snapshot");
        }
        self.cloud().clock.skip(Duration::from_secs(60));
    }

    fn perform(&self, call: Call) -> Called<()> {
        let (driver, id, then) = (&self.driver, self.id("story"), self.id("then"));
        match call {
            Call::Create => driver.create(&self.name("story")).map(drop),
            Call::Restore => driver.create_as(from_snapshot(&self.name("copy"), &then)).map(drop),
            Call::Clone => driver.create_as(clone_of(&self.name("copy"), &id)).map(drop),
            Call::CloneElsewhere => {
                let mut request = clone_of(&self.name("copy"), &id);
                let zones = request.accessibility_requirements.as_mut().expect("a zone");
                for zone in zones.requisite.iter_mut().chain(&mut zones.preferred) {
                    zone.segments.values_mut().for_each(|zone| *zone = ELSEWHERE.to_owned());
                }
                driver.create_as(request).map(drop)
            }
            Call::Attach => driver.attach(&id, &self.instance).map(drop),
            Call::Expand => driver.expand(&id, 20).map(drop),
            Call::Modify => driver.modify(&id, &[("iops", "4000"), ("throughput", "200")]),
            Call::Snapshot => driver.snapshot(&self.name("then"), &id).map(drop),
            Call::DeleteSnapshot => driver.delete_snapshot(&then),
            Call::Detach => driver.detach(&id, &self.instance),
            Call::Delete => driver.delete(&id),
        }
    }

    /// What moto has, without what is another in each cell.
    fn state(&self) -> Vec<String> {
        // Not the number alone, which may stand in a machine's name too.
        let plain =
            |text: String| ["story", "copy", "then"].into_iter().fold(text, |text, what| text.replace(&self.name(what), what));
        let volumes = self.driver.disks().into_iter().map(|disk| {
            let attached = disk.items("attachmentSet").iter().map(|at| at.get("instanceId")).collect::<Vec<_>>().join(",");
            let [size, kind, iops, throughput, status] =
                ["size", "volumeType", "iops", "throughput", "status"].map(|name| disk.get(name));
            let from = if disk.get("snapshotId").is_empty() { "" } else { "from a snapshot" };
            let name = tag(&disk, "longshore.dev/volume");
            format!("volume {name}: {size} {kind} {iops} {throughput} {status} {from} [{attached}]")
        });
        let snapshots = self.driver.snapshots().into_iter();
        let snapshots = snapshots
            // Its source has its disk recorded.
            .map(|item| {
                format!("snapshot {} of {}", tag(&item, "longshore.dev/snapshot"), named_by(&tag(&item, "longshore.dev/volume")))
            });
        let mut lines: Vec<_> = volumes.chain(snapshots).map(plain).collect();
        lines.sort();
        lines
    }

    /// Takes all of the cell away again.
    fn clear(&self, when: &str) {
        let must = |answer: Called<()>| answer.unwrap_or_else(|status| panic!("{status} {when}\n{}", self.driver.harness.log()));
        must(self.driver.detach(&self.id("story"), &self.instance));
        must(self.driver.delete_snapshot(&self.id("then")));
        must(self.driver.delete(&self.id("copy")));
        must(self.driver.delete(&self.id("story")));
        self.driver.assert_clean(when);
    }

    /// The state after the call where nothing goes wrong.
    fn undisturbed(&mut self, call: Call) -> Vec<String> {
        self.prepare(call);
        self.perform(call).unwrap_or_else(|status| panic!("{call:?}: {status}\n{}", self.driver.harness.log()));
        let state = self.state();
        self.clear(&format!("after an undisturbed {call:?}"));
        state
    }
}

/// The part of a volume's id that is derived from its name.
fn named_by(local: &str) -> String {
    format!("x:{local}").parse::<longshore::volume::VolumeId>().expect("an id").derived().to_owned()
}

/// Each mutating request of each call is in for `trouble`.
fn in_trouble(name: &str, trouble: &Trouble) {
    let Some(mut story) = Story::start() else { return };
    for (number, call) in CALLS.into_iter().enumerate() {
        let expected = story.undisturbed(call);
        // Once, so that the client's own attempt comes through; and so often that the call ends.
        for repeats in [1, 3] {
            if is_short() && (repeats == 1) != number.is_multiple_of(2) {
                continue;
            }
            let when = format!("{call:?} with {repeats} times {name}");
            story.prepare(call);
            story.cloud().order_after(call.action(), trouble.clone(), 0, repeats);
            story.perform(call).unwrap_or_else(|status| panic!("{when}: {status}\n{}", story.driver.harness.log()));
            let unspent = story.cloud().calm();
            assert!(!unspent || repeats > 1, "{when}: it did not come about");
            assert_eq!(story.state(), expected, "{when}\n{}", story.driver.harness.log());
            story.clear(&when);
        }
    }
}

macro_rules! troubles {
    ($($test:ident: $trouble:expr;)*) => { $(
        #[test]
        fn $test() {
            in_trouble(stringify!($test), &$trouble);
        }
    )* };
}

troubles! {
    requests_that_never_arrived: Trouble::CutBefore;
    answers_that_were_lost: Trouble::CutAfter;
    answers_that_were_interrupted: Trouble::CutWithin;
    errors_of_what_was_done: Trouble::FailAfter;
    errors_of_what_was_not_done: INTERNAL_ERROR;
    an_overloaded_cloud: UNAVAILABLE;
    throttled_requests: Trouble::Refuse { status: 503, code: "RequestLimitExceeded", message: "Request limit exceeded." };
    requests_that_arrived_twice: Trouble::Twice;
    answers_that_came_twice: Trouble::AnswerTwice;
    answers_of_a_proxy_in_between: Trouble::Garbage;
    answers_that_came_late: Trouble::Late(Duration::from_secs(90));
}

/// The driver is killed before each step of each call; then the call is made again, or undone.
#[test]
fn killed_before_every_step() {
    let Some(mut story) = Story::start() else { return };
    let (mut cells, mut kills) = (0, 0);
    for call in CALLS {
        let expected = story.undisturbed(call);
        for again in [true, false] {
            for step in (1..).filter(|step| !is_left_out(*step, again)) {
                let then = if again { "made again" } else { "undone" };
                let when = format!("{call:?}, killed at step {step} and {then}");
                story.prepare(call);
                story.driver.arm(&format!("crash@{step}"));
                story.driver.persistent = false;
                let mut answer = story.perform(call);
                // On a slow machine a look before the first step may have failed.
                for _ in 0..5 {
                    if story.driver.reached(step) || answer.as_ref().err().is_none_or(|status| is_final(status.code())) {
                        break;
                    }
                    answer = story.perform(call);
                }
                story.driver.persistent = true;
                if !story.driver.reached(step) {
                    story.driver.arm("");
                    assert!(step > 1, "{call:?} has no step");
                    if answer.is_err() {
                        story.perform(call).unwrap_or_else(|status| panic!("{when}: {status}"));
                    }
                    story.clear(&when);
                    break;
                }
                assert!(story.driver.harness.wait_end(), "{when}: it was not killed: {answer:?}");
                story.driver.arm("");
                story.driver.harness.start();
                (cells, kills) = (cells + 1, kills + 1);
                if again {
                    story.perform(call).unwrap_or_else(|status| panic!("{when}: {status}\n{}", story.driver.harness.log()));
                    assert_eq!(story.state(), expected, "{when}\n{}", story.driver.harness.log());
                }
                story.clear(&when);
            }
        }
        eprintln!("ec2 crash matrix: {call:?}: {cells} cells so far");
    }
    println!("FIGURE: ec2 crash matrix: {cells} cells, {kills} kills");
}

/// As above, but after the step's request was done and before its answer: what a kill before a step does not come to.
#[test]
fn killed_with_the_answer_on_its_way() {
    let Some(mut story) = Story::start() else { return };
    let mut cells = 0;
    for call in CALLS {
        let expected = story.undisturbed(call);
        for again in [true, false] {
            let when = format!("{call:?}, killed before its answer, {}", if again { "made again" } else { "undone" });
            story.prepare(call);
            story.cloud().order(call.action(), Trouble::Late(Duration::from_secs(120)));
            story.driver.persistent = false;
            let cloud = Arc::clone(story.cloud());
            let before = cloud.done(call.action());
            let pid = nix::unistd::Pid::from_raw(i32::try_from(story.driver.harness.pid()).expect("a pid"));
            let action = call.action();
            let killer = std::thread::spawn(move || {
                let begun = std::time::Instant::now();
                while cloud.done(action) <= before && begun.elapsed() < Duration::from_secs(20) {
                    std::thread::sleep(Duration::from_millis(5));
                }
                nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).expect("the driver lives");
            });
            let answer = story.perform(call);
            killer.join().expect("killed");
            story.driver.persistent = true;
            assert!(answer.is_err(), "{when}: {answer:?}");
            assert!(!story.cloud().calm(), "{when}: the request was not made");
            story.driver.harness.kill();
            story.driver.harness.start();
            if again {
                story.perform(call).unwrap_or_else(|status| panic!("{when}: {status}\n{}", story.driver.harness.log()));
                assert_eq!(story.state(), expected, "{when}\n{}", story.driver.harness.log());
            }
            story.clear(&when);
            cells += 1;
        }
    }
    println!("FIGURE: ec2 crash matrix within requests: {cells} cells, {cells} kills");
}

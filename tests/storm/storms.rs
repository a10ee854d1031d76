//! A storm of calls: short deadlines, duplicates, inverses out of order, exponential back-off.
//!
//! Whether two operations ever ran at once on one object is shown by the steps that the driver logs where they run, not
//! by its locks.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use tokio::task::JoinSet;
use tonic::{Code, Status};

use crate::calls::{Call, Client, Volume};
use crate::common::{Harness, Pool, isolated, mounts_at, text};
use crate::gate::Gate;

const CALLS_OF_EACH: usize = 120;
const CONTENT: &[u8] = b"here before the storm";
const PLACE: u64 = 1 << 20;

/// xorshift64: the same storm every time, as far as the clients go.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }

    fn of<T: Copy>(&mut self, from: &[T]) -> T {
        from[usize::try_from(self.below(from.len() as u64)).expect("an index")]
    }

    /// From 2 to 1000 ms, as often short as long.
    fn deadline(&mut self) -> Duration {
        Duration::from_micros((2000 << self.below(9)) + self.below(1000))
    }
}

/// What one client wants of a volume; each call is repeated a few times, and then the next comes in any case.
struct Habit {
    volume: Volume,
    calls: Vec<Call>,
    order: Order,
    random: Random,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    Kept,
    None,
}

#[derive(Default)]
struct Reported {
    ok: usize,
    cancelled: usize,
    busy: usize,
    refused: usize,
}

impl Reported {
    fn add(&mut self, call: Call, answer: &Result<(), Status>) {
        let count = match answer.as_ref().map_err(Status::code) {
            Ok(()) => &mut self.ok,
            Err(Code::Cancelled | Code::DeadlineExceeded) => &mut self.cancelled,
            Err(Code::Aborted) => &mut self.busy,
            // Not staged, still published, or deleted: calls came out of order.
            Err(Code::FailedPrecondition | Code::NotFound) => &mut self.refused,
            Err(_) => panic!("{call:?} in the storm: {answer:?}"),
        };
        *count += 1;
    }

    fn plus(self, other: Reported) -> Reported {
        Reported {
            ok: self.ok + other.ok,
            cancelled: self.cancelled + other.cancelled,
            busy: self.busy + other.busy,
            refused: self.refused + other.refused,
        }
    }

    fn calls(&self) -> usize {
        self.ok + self.cancelled + self.busy + self.refused
    }
}

async fn follow(mut client: Client, habit: Habit) -> Reported {
    let Habit { volume, calls, order, mut random } = habit;
    let mut reported = Reported::default();
    let mut wanted = calls.iter().copied().cycle();
    while reported.calls() < CALLS_OF_EACH {
        let call = if order == Order::Kept { wanted.next().expect("some calls") } else { random.of(&calls) };
        for back_off in 0..4 {
            let deadline = random.deadline();
            // Half say their deadline to the driver, half just leave.
            let left = random.below(2) == 0;
            client.deadline = (!left).then_some(deadline);
            let patience = if left { deadline } else { Duration::from_secs(30) };
            let answer = tokio::time::timeout(patience, client.call(&volume, call)).await;
            let answer = answer.unwrap_or_else(|_| Err(Status::cancelled("left")));
            reported.add(call, &answer);
            if answer.is_ok() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(8 << back_off)).await;
        }
    }
    reported
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Alone,
    Shared,
}

/// An operation as its steps in the log show it.
struct Operation {
    rpc: String,
    /// What it may have to itself, or shares.
    objects: Vec<(String, Way)>,
    /// Lines of the log.
    first: usize,
    /// `MAX` where it still works.
    last: usize,
    /// Steps that have begun and not ended.
    open: usize,
}

/// What the steps of an RPC are done with, by the specification of our locks.
fn objects(rpc: &str, id: &str, path: &str, volumes: &[Volume]) -> Vec<(String, Way)> {
    let name = id.strip_prefix("image:").unwrap_or(id);
    let volume = volumes.iter().find(|volume| name.starts_with(&volume.name)).expect("a volume of ours");
    let of = |way| (volume.name.clone(), way);
    match rpc {
        "NodePublishVolume" if volume.fstype.is_none() => vec![of(Way::Alone), (path.to_owned(), Way::Alone)],
        // One of a raw block volume that is not staged has nothing to have for itself.
        "NodePublishVolume" | "NodeUnpublishVolume" => vec![of(Way::Shared), (path.to_owned(), Way::Alone)],
        "CreateSnapshot" => vec![of(Way::Shared), (name.to_owned(), Way::Alone)],
        "DeleteSnapshot" => vec![(name.to_owned(), Way::Alone)],
        _ => vec![of(Way::Alone)],
    }
}

fn operations(log: &str, volumes: &[Volume]) -> Vec<Operation> {
    let field = |line: &str, name: &str| {
        let value = line.split_once(&format!(" {name}=\"")).or_else(|| line.split_once(&format!("{{{name}=\"")));
        value.and_then(|(_, rest)| rest.split_once('"')).map(|(value, _)| value.to_owned()).unwrap_or_default()
    };
    let mut operations: HashMap<String, Operation> = HashMap::new();
    for (number, line) in log.lines().enumerate() {
        let Some((step, operation)) = line.split_once(" operation=") else { continue };
        let begins = step.ends_with("step begins");
        let entry = operations.entry(operation.to_owned()).or_insert_with(|| {
            let [rpc, id, path] = ["rpc", "id", "path"].map(|name| field(line, name));
            Operation { objects: objects(&rpc, &id, &path, volumes), rpc, first: number, last: number, open: 0 }
        });
        // Steps lie one after the other, or in each other.
        entry.open = if begins { entry.open + 1 } else { entry.open - 1 };
        entry.last = number;
    }
    for operation in operations.values_mut().filter(|operation| operation.open > 0) {
        operation.last = usize::MAX;
    }
    operations.into_values().collect()
}

/// Pairs that ran at once and must not.
fn overlaps(operations: &[Operation]) -> Vec<String> {
    let mut by_object: BTreeMap<&str, Vec<(&Operation, Way)>> = BTreeMap::new();
    for operation in operations {
        for (object, way) in &operation.objects {
            by_object.entry(object).or_default().push((operation, *way));
        }
    }
    let mut found = Vec::new();
    for (object, mut users) in by_object {
        users.sort_by_key(|(operation, _)| operation.first);
        for (at, (first, way)) in users.iter().enumerate() {
            let meanwhile = users[at + 1..].iter().take_while(|(second, _)| second.first < first.last);
            let wrong = meanwhile.filter(|(_, other)| (*way, *other) != (Way::Shared, Way::Shared));
            let shown = |of: &Operation| format!("{} (lines {} to {} of the log)", of.rpc, of.first, of.last);
            found.extend(wrong.map(|(second, _)| format!("{object}: {} and {}", shown(first), shown(second))));
        }
    }
    found
}

/// As a CO that has lost its patience: until it is done.
async fn until_ok(client: &Client, volume: &Volume, call: Call) {
    for back_off in 0.. {
        match client.call(volume, call).await {
            Ok(()) => return,
            Err(status) if status.code() == Code::Aborted && back_off < 12 => {
                tokio::time::sleep(Duration::from_millis(1 << back_off)).await;
            }
            Err(status) => panic!("{call:?} of {} in the calm: {status}", volume.name),
        }
    }
}

fn content(volume: &Volume, write: bool) {
    let target = &volume.targets[0];
    let (path, place) = if volume.fstype.is_some() { (target.join("file"), 0) } else { (target.clone(), PLACE) };
    let mut options = fs::OpenOptions::new();
    let file = options.read(true).write(write).create(write && volume.fstype.is_some()).open(&path).expect("what was written");
    if write {
        file.write_all_at(CONTENT, place).expect("written");
        file.sync_all().expect("synced");
    }
    let mut content = vec![0; CONTENT.len()];
    file.read_exact_at(&mut content, place).expect("read");
    assert_eq!(content, CONTENT, "{}", volume.name);
}

#[test]
fn a_storm_leaves_everything_right() {
    use Call::{Create, Delete, DeleteSnapshot, Expand, Publish, Snapshot, Stage, Unpublish, Unstage};
    isolated(|| {
        let mut harness = Harness::new(Pool::Xfs);
        let socket = harness.path("gate");
        harness.set("LONGSHORE_GATE", &text(&socket));
        harness.set("LONGSHORE_LOG", "info,longshore::os::gate=trace");
        let gate = harness.block_on(async { Gate::new(&socket) });
        harness.start();
        let calm = Client::new(&harness);
        let kinds = [("ext", Some("ext4")), ("xfs", Some("xfs")), ("raw", None), ("new", Some("ext4"))];
        let volumes = kinds.map(|(name, fstype)| Volume::new(&harness, name, "image", fstype));
        for volume in &volumes[..3] {
            for call in [Create, Stage, Publish(0)] {
                harness.block_on(gate.pass(until_ok(&calm, volume, call)));
            }
            content(volume, true);
        }

        let node = [Stage, Publish(0), Publish(1), Unpublish(0), Unpublish(1), Unstage];
        let mut clients: Vec<(Client, Habit)> = Vec::new();
        for (number, volume) in volumes.iter().enumerate() {
            let more: &[Call] = match number {
                // It comes and goes, too.
                3 => &[Create, Create, Delete],
                _ => &[Create, Expand(volume.mib), Expand(volume.mib + 32), Snapshot, DeleteSnapshot],
            };
            let all = [&node, more].concat();
            for (order, calls) in [(Order::Kept, &node[..]), (Order::Kept, &node), (Order::None, &all)] {
                let random = Random(0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(clients.len() as u64 + 1));
                let habit = Habit { volume: volume.clone(), calls: calls.to_vec(), order, random };
                clients.push((Client::new(&harness), habit));
            }
        }
        let reported = harness.block_on(gate.pass_slowly(async {
            let clients: JoinSet<Reported> = clients.into_iter().map(|(client, habit)| follow(client, habit)).collect();
            clients.join_all().await.into_iter().fold(Reported::default(), Reported::plus)
        }));

        let operations = operations(&harness.log(), &volumes);
        let overlaps = overlaps(&operations);
        println!("{} OK, {} refused; {} operations came to a step", reported.ok, reported.refused, operations.len());
        println!(
            "FIGURE: storm: {} calls, {} cancelled, {} busy, {} overlaps",
            reported.calls(),
            reported.cancelled,
            reported.busy,
            overlaps.len()
        );
        assert!(overlaps.is_empty(), "{}", overlaps.join("\n"));
        assert!(reported.cancelled > 50 && reported.busy > 50 && operations.len() > 50, "that was no storm");

        // Calm: everything becomes what is asked for, once, with what was written before the storm.
        harness.block_on(gate.pass(async {
            for volume in &volumes {
                for call in [Create, Stage, Publish(0), Publish(1)] {
                    until_ok(&calm, volume, call).await;
                }
            }
        }));
        for (number, volume) in volumes.iter().enumerate() {
            let staged = usize::from(volume.fstype.is_some());
            assert_eq!(mounts_at(&volume.staging), staged, "{} is staged", volume.name);
            assert_eq!(volume.targets.each_ref().map(|target| mounts_at(target)), [1, 1], "{} is published", volume.name);
            if number < 3 {
                content(volume, false);
            }
        }
        assert_eq!(harness.loops().len(), volumes.len(), "a device for each");
        harness.block_on(gate.pass(async {
            for volume in &volumes {
                for call in [Unpublish(0), Unpublish(1), Unstage, DeleteSnapshot, Delete] {
                    until_ok(&calm, volume, call).await;
                }
            }
        }));
        assert!(harness.stop(), "the driver ends with success");
        harness.assert_nothing_left();
        harness.assert_pool_empty();
    });
}

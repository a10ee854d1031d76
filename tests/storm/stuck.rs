//! Volumes that are stuck hold up no other.

use std::time::{Duration, Instant};

use tonic::Code;

use crate::calls::{Call, Client, Volume};
use crate::common::{Harness, Pool, isolated};
use crate::gate::{Gate, Held};

/// More than any pool of threads or streams has by default (tokio: 512 threads; hyper: 200 streams of one connection).
const STUCK: usize = 600;
/// Of each kind that takes a loop device or a mount.
const FEW: usize = 8;

/// A free volume's life; the median of how long it took.
fn pace(harness: &Harness, client: &Client, volume: &Volume) -> Duration {
    use Call::{Create, Delete, Publish, Stage, Unpublish, Unstage};
    let mut times: Vec<Duration> = (0..15)
        .map(|_| {
            let started = Instant::now();
            for call in [Create, Stage, Publish(0), Unpublish(0), Unstage, Delete] {
                harness.block_on(client.call(volume, call)).unwrap_or_else(|status| panic!("{call:?}: {status}"));
            }
            started.elapsed()
        })
        .collect();
    times.sort();
    times[times.len() / 2]
}

#[test]
fn stuck_volumes_hold_up_no_other() {
    isolated(|| {
        let mut harness = Harness::new(Pool::Local);
        let socket = harness.path("gate");
        harness.set("LONGSHORE_GATE", &crate::common::text(&socket));
        // Only steps that name something stuck come to the gate.
        harness.set("LONGSHORE_GATE_AT", "stuck");
        let gate = harness.block_on(async { Gate::new(&socket) });
        harness.start();
        // One connection for all, as the provisioner has one.
        let client = Client::new(&harness);
        let free = Volume::new(&harness, "free", "image", Some("ext4"));
        let alone = pace(&harness, &client, &free);

        let shared = Volume::new(&harness, "shared", "image", Some("ext4"));
        for call in [Call::Create, Call::Stage] {
            harness.block_on(client.call(&shared, call)).expect("made");
        }
        let calls = (0..STUCK).map(|number| match number / FEW {
            0 => {
                let volume =
                    Volume { name: format!("s{number}"), staging: harness.staging(&format!("stuck-{number}")), ..free.clone() };
                harness.block_on(client.call(&volume, Call::Create)).expect("created");
                (volume, Call::Stage)
            }
            1 => {
                let target = harness.target(&format!("stuck-{number}"));
                (Volume { targets: [target.clone(), target], ..shared.clone() }, Call::Publish(0))
            }
            2 => (Volume { name: format!("stuck-{number}"), ..free.clone() }, Call::Create),
            _ => (Volume { name: format!("stuck-{number}"), backend: "fake", ..free.clone() }, Call::Create),
        });
        let calls: Vec<(Volume, Call)> = calls.collect();
        // Their callers wait all the time.
        let mut callers = Vec::new();
        let held: Vec<Held> = harness.block_on(async {
            let mut held = Vec::new();
            for (volume, call) in &calls {
                let (client, volume, call) = (client.clone(), volume.clone(), *call);
                callers.push(tokio::spawn(async move { client.call(&volume, call).await }));
                held.push(gate.held().await);
            }
            held
        });
        // A caller that repeats itself is refused at once, and takes nothing that others need.
        let repeats = Instant::now();
        for (volume, call) in &calls {
            let status = harness.block_on(client.call(volume, *call)).expect_err("it is stuck");
            assert_eq!(status.code(), Code::Aborted, "{status}");
        }
        println!("{STUCK} repeats of what is stuck took {:?}", repeats.elapsed());

        let beside = pace(&harness, &client, &free);
        let ratio = beside.as_secs_f64() / alone.as_secs_f64();
        println!("a volume's life: {alone:?} alone, {beside:?} beside {STUCK} stuck");
        println!("FIGURE: stuck volume: {STUCK} stuck, {ratio:.2} ratio");
        assert!(beside < alone * 3 + Duration::from_millis(50), "{alone:?} alone, {beside:?} beside {STUCK} stuck volumes");

        // What was stuck comes to its end when it can.
        drop((held, gate));
        for caller in callers {
            harness.block_on(caller).expect("no panic").expect("done at last");
        }
        for (volume, call) in calls {
            let down: &[Call] = match call {
                Call::Stage => &[Call::Unstage, Call::Delete],
                Call::Publish(_) => &[Call::Unpublish(0)],
                _ => &[Call::Delete],
            };
            for call in down {
                harness.block_on(client.call(&volume, *call)).unwrap_or_else(|status| panic!("{call:?}: {status}"));
            }
        }
        for call in [Call::Unstage, Call::Delete] {
            harness.block_on(client.call(&shared, call)).expect("taken down");
        }
        assert!(harness.stop());
        harness.assert_nothing_left();
        harness.assert_pool_empty();
    });
}

//! Two machines, two replicas of the controller, one disk: anyone who has it, whatever happened to the call, no matter who takes it over, and by
//! which replica. Disks of an emulated cloud come to no machine: what a node does ends here with the publish_context that it is given.
//!
//! In each cell, as moto sees it: the disk is never attached to two machines, a refusal with a final code attached nothing, an answer names
//! the very disk, there is one disk all the time, and none in the end.

use std::sync::Arc;

use longshore::csi;
use tonic::Code;

use super::driver::{Called, Driver, ZONE, is_final};
use super::proxy::{Cloud, Trouble};

const SPEED: u32 = 50;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Attach,
    Detach,
}

/// What happens while A has the disk, or is to have it, or to give it up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    Nothing,
    /// It was detached.
    Moved,
    /// The controller is killed before this step of the call.
    Killed(Call, u64),
    /// The cloud does it, and its answer is lost.
    AnswerLost(Call),
    /// The cloud does not hear of it.
    RequestLost(Call),
    /// The machine is stopped, and nobody has detached from it.
    PowerLost,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TakeOver {
    /// B, after a detach from A.
    InOrder,
    /// B, without.
    Without,
    /// A again.
    Again,
}

const TAKE_OVERS: [TakeOver; 3] = [TakeOver::InOrder, TakeOver::Without, TakeOver::Again];

struct Peers {
    cloud: Arc<Cloud>,
    /// Replicas of the controller: events happen to the first.
    replicas: [Driver; 2],
    a: String,
    b: String,
    cells: u64,
    kills: u64,
    refused: u64,
}

impl Peers {
    fn start() -> Option<Peers> {
        let cloud = Cloud::start(SPEED)?;
        // What is tried here is not how often.
        cloud.manners().throttles = false;
        let machines = cloud.run_instances(2, "m5.large", ZONE);
        let endpoint = format!("http://{}", cloud.address);
        // Node processes know by themselves what CO and cloud call their machines.
        for machine in &machines {
            let mut node = Driver::new(&cloud, SPEED, machine, &endpoint);
            node.harness.argue("--mode=node");
            node.harness.start();
            let asked = node.harness.block_on(node.harness.node().node_get_info(csi::NodeGetInfoRequest::default()));
            assert_eq!(asked.expect("an answer").into_inner().node_id, *machine);
        }
        let replicas = [0, 1].map(|number: usize| {
            let mut controller = Driver::new(&cloud, SPEED, &machines[number], &endpoint).with_faults();
            controller.harness.argue("--mode=controller");
            controller.harness.start();
            controller
        });
        let [a, b] = [0, 1].map(|number: usize| machines[number].clone());
        Some(Peers { cloud, replicas, a, b, cells: 0, kills: 0, refused: 0 })
    }

    fn id(&self) -> String {
        format!("ebs:cell-{}", self.cells)
    }

    /// The machines that moto has the one disk attached to.
    fn attached(&self, when: &str) -> Vec<String> {
        let disk = self.replicas[0].disk();
        let attached: Vec<String> =
            disk.items("attachmentSet").iter().map(|at| at.get("instanceId").to_owned()).filter(|id| !id.is_empty()).collect();
        assert!(attached.len() <= 1, "two machines have the disk {when}: {attached:?}");
        attached
    }

    /// An answer names the disk, and a final refusal attached nothing.
    fn attach(&mut self, by: usize, machine: &str, when: &str) -> Called<()> {
        let answer = self.replicas[by].attach(&self.id(), machine);
        let attached = self.attached(when);
        match answer {
            Ok(context) => {
                assert_eq!(attached, [machine], "it is attached {when}");
                assert_eq!(context["volume"], self.replicas[by].disk().get("volumeId"), "the disk's own id {when}");
                Ok(())
            }
            Err(status) => {
                assert!(!is_final(status.code()) || !attached.iter().any(|at| at == machine), "{status} is final {when}");
                Err(status)
            }
        }
    }

    fn perform(&mut self, call: Call) {
        let (id, a) = (self.id(), self.a.clone());
        self.replicas[0].persistent = false;
        // Whatever it answered: another process takes over.
        let _answer = match call {
            Call::Attach => self.replicas[0].attach(&id, &a).map(drop),
            Call::Detach => self.replicas[0].detach(&id, &a),
        };
        self.replicas[0].persistent = true;
    }

    /// `false` where there is no such step.
    fn happen(&mut self, event: Event) -> bool {
        let (id, a) = (self.id(), self.a.clone());
        if !matches!(event, Event::Killed(Call::Attach, _) | Event::AnswerLost(Call::Attach) | Event::RequestLost(Call::Attach)) {
            self.attach(0, &a, "at first").expect("attached");
        }
        let action = |call| if call == Call::Attach { "AttachVolume" } else { "DetachVolume" };
        match event {
            Event::Nothing => {}
            Event::Moved => self.replicas[0].detach(&id, &a).expect("detached"),
            Event::Killed(call, step) => {
                self.replicas[0].arm(&format!("crash@{step}"));
                self.perform(call);
                let reached = self.replicas[0].reached(step);
                if reached {
                    assert!(self.replicas[0].harness.wait_end(), "it was not killed");
                    self.kills += 1;
                }
                self.replicas[0].arm("");
                return reached;
            }
            Event::AnswerLost(call) => {
                self.cloud.order(action(call), Trouble::CutAfter);
                self.perform(call);
            }
            Event::RequestLost(call) => {
                self.cloud.order(action(call), Trouble::CutBefore);
                self.perform(call);
            }
            Event::PowerLost => drop(self.cloud.moto.must("StopInstances", &[("InstanceId.1", &a), ("Force", "true")])),
        }
        true
    }

    /// `false` where there is no such step.
    fn cell(&mut self, event: Event, take_over: TakeOver, by: usize) -> bool {
        self.cells += 1;
        let when = format!("({event:?}, {take_over:?}, by {})", if by == 0 { "the same replica" } else { "the other replica" });
        let (id, a, b) = (self.id(), self.a.clone(), self.b.clone());
        self.replicas[0].create(&format!("cell-{}", self.cells)).expect("created");
        let happened = self.happen(event);
        // A replica that was not killed continues, and knows what it knew, no matter who leads now.
        if by == 0 && self.replicas[0].harness.has_ended() {
            self.replicas[0].harness.start();
        }
        if happened && take_over == TakeOver::Without {
            self.replicas[by].persistent = false;
            let before = self.attached(&when);
            if let Err(status) = self.attach(by, &b, &when) {
                self.refused += 1;
                assert!(before.contains(&a) || !is_final(status.code()), "refused though nobody has it: {status} {when}");
                assert!(!is_final(status.code()) || status.code() == Code::FailedPrecondition, "{status} {when}");
            } else {
                assert!(!before.contains(&a), "node-a had it {when}");
            }
            self.replicas[by].persistent = true;
        }
        let machine = if take_over == TakeOver::Again && event != Event::PowerLost { &a } else { &b };
        if happened {
            if machine == &b {
                self.replicas[by].detach(&id, &a).unwrap_or_else(|status| panic!("it is not detached: {status} {when}"));
            }
            self.attach(by, machine, &when).unwrap_or_else(|status| panic!("{machine} cannot have it: {status} {when}"));
        }
        for machine in [&a, &b] {
            self.replicas[by].detach(&id, machine).unwrap_or_else(|status| panic!("it is not detached: {status} {when}"));
        }
        assert_eq!(self.attached(&when), [""; 0], "{when}");
        self.replicas[by].delete(&id).unwrap_or_else(|status| panic!("it is not deleted: {status} {when}"));
        self.replicas[by].assert_clean(&when);
        if event == Event::PowerLost {
            self.cloud.moto.must("StartInstances", &[("InstanceId.1", &a)]);
        }
        if self.replicas[0].harness.has_ended() {
            self.replicas[0].harness.start();
        }
        self.cells -= u64::from(!happened);
        happened
    }
}

#[test]
fn disk_of_one_machine_is_taken_over_by_another() {
    let Some(mut peers) = Peers::start() else { return };
    for (take_over, by) in TAKE_OVERS.into_iter().flat_map(|take_over| [0, 1].map(|by| (take_over, by))) {
        for event in [Event::Nothing, Event::Moved, Event::PowerLost] {
            peers.cell(event, take_over, by);
        }
        for call in [Call::Attach, Call::Detach] {
            for event in [Event::AnswerLost(call), Event::RequestLost(call)] {
                peers.cell(event, take_over, by);
            }
            let mut step = 1;
            while peers.cell(Event::Killed(call, step), take_over, by) {
                step += 1;
            }
        }
    }
    println!("FIGURE: peers ec2: {} cells, {} kills, {} takeovers refused", peers.cells, peers.kills, peers.refused);
}

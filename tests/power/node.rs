//! Clients of a node: what they have written to volumes before a power cut is read after it, whatever call was interrupted.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use longshore::csi;
use longshore::csi::controller_client::ControllerClient;
use longshore::csi::node_client::NodeClient;
use longshore::csi::volume_content_source::{SnapshotSource, Type};
use tokio::task::JoinSet;
use tonic::Status;
use tonic::transport::Channel;

use crate::common::{Harness, STARTING, capability, create, text};
use crate::disk::{Calls, Clock, pattern, volume_mounts};

const CLIENTS: usize = 2;

/// What a client does with its volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Create,
    Stage,
    Publish,
    /// A new file with these bytes, and its fsync.
    Write(u64),
    /// Of the volume as it is staged.
    Snapshot,
    Unpublish,
    Unstage,
}

const SCRIPT: [Step; 10] = [
    Step::Create,
    Step::Stage,
    Step::Publish,
    Step::Write(1),
    Step::Snapshot,
    Step::Write(2),
    Step::Unpublish,
    Step::Unstage,
    Step::Stage,
    Step::Unstage,
];

/// A volume and what is done with it.
#[derive(Clone)]
pub struct Client {
    name: String,
    controller: ControllerClient<Channel>,
    node: NodeClient<Channel>,
    staging: PathBuf,
    target: PathBuf,
    source: Option<Type>,
    calls: Calls,
}

impl Client {
    fn new(harness: &Harness, name: &str) -> Client {
        Client {
            name: name.to_owned(),
            controller: harness.controller(),
            node: harness.node(),
            staging: harness.staging(name),
            target: harness.target(name),
            source: None,
            calls: Calls::default(),
        }
    }

    fn id(&self) -> String {
        format!("image:{}", self.name)
    }

    async fn run(mut self, clock: Clock) -> Client {
        for step in SCRIPT {
            let begun = clock.now();
            self.perform(step).await.unwrap_or_else(|status| panic!("{}: {step:?}: {status:?}", self.name));
            self.calls.note(begun, clock.now());
        }
        self
    }

    async fn perform(&mut self, step: Step) -> Result<(), Status> {
        let (volume_id, staging, target) = (self.id(), text(&self.staging), text(&self.target));
        let volume_capability = Some(capability(Some("ext4")));
        match step {
            Step::Create => {
                let mut request = create(&self.name, 16, Some("ext4"), "image");
                let source = self.source.clone();
                request.volume_content_source = source.map(|source| csi::VolumeContentSource { r#type: Some(source) });
                let made = self.controller.create_volume(request).await?.into_inner();
                assert_eq!(made.volume.expect("a volume").volume_id, volume_id);
            }
            Step::Stage => {
                let request = csi::NodeStageVolumeRequest {
                    volume_id,
                    staging_target_path: staging,
                    volume_capability,
                    ..Default::default()
                };
                self.node.node_stage_volume(request).await?;
            }
            Step::Publish => {
                let request = csi::NodePublishVolumeRequest {
                    volume_id,
                    staging_target_path: staging,
                    target_path: target,
                    volume_capability,
                    ..Default::default()
                };
                self.node.node_publish_volume(request).await?;
            }
            Step::Write(content) => write(&self.target, content),
            Step::Snapshot => {
                let request =
                    csi::CreateSnapshotRequest { source_volume_id: volume_id, name: self.name.clone(), ..Default::default() };
                self.controller.create_snapshot(request).await?;
            }
            Step::Unpublish => {
                let request = csi::NodeUnpublishVolumeRequest { volume_id, target_path: target };
                self.node.node_unpublish_volume(request).await?;
            }
            Step::Unstage => {
                let request = csi::NodeUnstageVolumeRequest { volume_id, staging_target_path: staging };
                self.node.node_unstage_volume(request).await?;
            }
        }
        Ok(())
    }

    /// Repeats the last call before a power cut behind this flush, and reads what was written until then.
    async fn go_on(self, restored: Client, flush: usize) -> Result<(), String> {
        let [answered, begun] = self.calls.at(flush);
        let done = &SCRIPT[..answered];
        let Some(last) = SCRIPT[..begun].last() else { return Ok(()) };
        // After a reboot the kubelet stages again what is in use, before it publishes it.
        let steps: &[Step] = match last {
            Step::Create | Step::Unpublish | Step::Unstage => &[*last],
            Step::Stage | Step::Publish | Step::Write(_) | Step::Snapshot => &[],
        };
        self.clone().perform_all(steps).await?;
        self.clone().read_back(done).await?;
        if done.contains(&Step::Snapshot) {
            let before = done.iter().position(|step| *step == Step::Snapshot).unwrap_or_default();
            let source = Type::Snapshot(SnapshotSource { snapshot_id: self.id() });
            let mut restored = Client { source: Some(source), ..restored };
            restored.perform(Step::Create).await.map_err(|status| format!("{}: restore: {status:?}", restored.name))?;
            restored.read_back(&done[..before]).await?;
        }
        Ok(())
    }

    /// Stages and publishes the volume, compares its files with those that were written, and takes it down again.
    async fn read_back(mut self, done: &[Step]) -> Result<(), String> {
        self.perform_all(&[Step::Stage, Step::Publish]).await?;
        for step in done {
            let Step::Write(content) = *step else { continue };
            let path = file(&self.target, content);
            let _open = STARTING.read().expect("no panic while a program is started");
            let read = fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))?;
            if read != pattern(content) {
                return Err(format!("{}: it is not what was synced", path.display()));
            }
        }
        self.perform_all(&[Step::Unpublish, Step::Unstage]).await
    }

    async fn perform_all(&mut self, steps: &[Step]) -> Result<(), String> {
        for step in steps {
            let mut made = self.perform(*step).await;
            // Where something else has the device for a moment while e2fsck or mkfs wants it alone, it is for the CO to call again.
            let alone = ["check the file system of", "make a file system on"];
            let busy = |text: &str| alone.iter().any(|action| text.contains(action)) && text.contains("Device or resource busy");
            if made.as_ref().is_err_and(|status| busy(status.message())) {
                println!("{}: {step:?} is repeated: {made:?}", self.name);
                made = self.perform(*step).await;
            }
            made.map_err(|status| format!("{}: {step:?}: {status:?}", self.name))?;
        }
        Ok(())
    }
}

fn file(target: &Path, content: u64) -> PathBuf {
    target.join(content.to_string())
}

fn write(target: &Path, content: u64) {
    let _open = STARTING.read().expect("no panic while a program is started");
    let mut file = File::create_new(file(target, content)).expect("a file");
    file.write_all(&pattern(content)).and_then(|()| file.sync_all()).expect("written");
}

/// Runs all clients at once.
pub fn run_clients(harness: &Harness, clock: &Clock) -> Vec<Client> {
    let clients: Vec<Client> = (0..CLIENTS).map(|number| Client::new(harness, &format!("v-{number}"))).collect();
    harness.block_on(async {
        let clients: JoinSet<Client> = clients.into_iter().map(|client| client.run(clock.clone())).collect();
        clients.join_all().await
    })
}

/// What is wrong after a power cut behind this flush.
pub fn check(harness: &Harness, clients: &[Client], flush: usize) -> Vec<String> {
    let again = |client: &Client| {
        let calls = client.calls.clone();
        let restored = Client::new(harness, &format!("restored-{}", client.name));
        (Client { calls, ..Client::new(harness, &client.name) }, restored)
    };
    let clients: Vec<_> = clients.iter().map(again).collect();
    let mut wrong: Vec<String> = harness.block_on(async {
        let clients: JoinSet<Result<(), String>> =
            clients.into_iter().map(|(client, restored)| client.go_on(restored, flush)).collect();
        clients.join_all().await.into_iter().filter_map(Result::err).collect()
    });
    if wrong.is_empty() {
        let left = [volume_mounts(harness), harness.loops(), harness.journal()].concat();
        wrong.extend(left.into_iter().map(|left| format!("{left} is left on the node")));
    }
    wrong
}

/// How many calls these clients have made.
pub fn calls(clients: &[Client]) -> usize {
    clients.iter().map(|client| client.calls.len()).sum()
}

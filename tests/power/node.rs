//! Clients of a node: what they have written to volumes before a power cut is read after it, whatever call was interrupted.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use longshore::csi;
use longshore::csi::controller_client::ControllerClient;
use longshore::csi::node_client::NodeClient;
use longshore::csi::volume_content_source::{SnapshotSource, Type};
use tokio::task::JoinSet;
use tonic::Status;
use tonic::transport::Channel;

use crate::common::{Harness, capability, create, loop_files, nobody_starts, run, text};
use crate::disk::{Calls, Clock, Prepare, pattern, volume_mounts};

const CLIENTS: usize = 2;
/// Bytes of a whole disk: a volume, and what the driver has for itself.
const DISK: u64 = 68 << 20;

/// What a client does with its volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Create,
    Stage,
    Publish,
    /// A new file with these bytes, and its fsync.
    Write(u64),
    /// Of the volume as it is staged.
    Snapshot,
    Unpublish,
    Unstage,
    Delete,
}

/// A backend, and what clients do with its volumes.
pub struct Kind {
    pub backend: &'static str,
    fstype: &'static str,
    parameters: &'static [(&'static str, &'static str)],
    script: &'static [Step],
    pub prepare: Prepare,
    /// In how many moments power is cut at most.
    pub cuts: usize,
}

const LIFE: [Step; 10] = [
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

pub static IMAGE: Kind =
    Kind { backend: "image", fstype: "ext4", parameters: &[], script: &LIFE, prepare: |_| {}, cuts: usize::MAX };
pub static DIRECTORY: Kind = Kind { backend: "directory", fstype: "", prepare: configure_directory, cuts: 50, ..IMAGE };
/// Two volumes, one after the other, on the same disks.
pub static WHOLE_DISK: Kind = Kind {
    backend: "disk",
    parameters: &[("onDelete", "scrub")],
    script: &[
        Step::Create,
        Step::Stage,
        Step::Publish,
        Step::Write(1),
        Step::Unpublish,
        Step::Unstage,
        Step::Stage,
        Step::Unstage,
        Step::Delete,
        Step::Create,
        Step::Stage,
        Step::Publish,
        Step::Write(2),
        Step::Unpublish,
        Step::Unstage,
    ],
    prepare: attach_disks,
    cuts: 50,
    ..IMAGE
};

fn configure_directory(harness: &Harness) {
    let base = harness.path("pool/directory");
    if !base.exists() {
        fs::create_dir(&base).expect("a directory");
        fs::set_permissions(&base, PermissionsExt::from_mode(0o755)).expect("a mode");
        harness.configure(&format!("  - name: directory\n    type: directory\n    path: {}\n", base.display()));
    }
}

/// A disk for each client, of files in the pool; after each boot they are other devices.
fn attach_disks(harness: &Harness) {
    let devices: Vec<String> = disks(harness)
        .map(|path| {
            if !path.exists() {
                File::create(&path).and_then(|file| file.set_len(DISK)).expect("an image");
            }
            run("losetup", ["--partscan", "--find", "--show", &text(&path)])
        })
        .collect();
    let config = harness.path("config.yaml");
    let before = fs::read_to_string(&config).expect("the configuration");
    let others = before.split("  - name: disk\n").next().expect("the first part");
    fs::write(&config, others).expect("the configuration");
    let devices = devices.join(", ");
    harness.configure(&format!("  - name: disk\n    type: disk\n    classes: [{{name: all, devices: [{devices}]}}]\n"));
}

fn disks(harness: &Harness) -> impl Iterator<Item = PathBuf> {
    (0..CLIENTS).map(|number| harness.path(&format!("pool/disk{number}")))
}

/// A volume and what is done with it.
#[derive(Clone)]
pub struct Client {
    kind: &'static Kind,
    number: u64,
    name: String,
    controller: ControllerClient<Channel>,
    node: NodeClient<Channel>,
    staging: PathBuf,
    target: PathBuf,
    source: Option<Type>,
    /// As each CreateVolume has answered.
    volumes: Vec<csi::Volume>,
    snapshot: String,
    calls: Calls,
}

impl Client {
    fn new(harness: &Harness, kind: &'static Kind, number: u64, name: &str) -> Client {
        Client {
            kind,
            number,
            name: name.to_owned(),
            controller: harness.controller(),
            node: harness.node(),
            staging: harness.staging(name),
            target: harness.target(name),
            source: None,
            volumes: Vec::new(),
            snapshot: String::new(),
            calls: Calls::default(),
        }
    }

    async fn run(mut self, clock: Clock) -> Client {
        for &step in self.kind.script {
            let begun = clock.now();
            self.perform(step).await.unwrap_or_else(|status| panic!("{}: {step:?}: {status:?}", self.name));
            self.calls.note(begun, clock.now());
        }
        self
    }

    async fn perform(&mut self, step: Step) -> Result<(), Status> {
        let volume = self.volumes.last().cloned().unwrap_or_default();
        let (volume_id, volume_context) = (volume.volume_id, volume.volume_context);
        let (staging, target) = (text(&self.staging), text(&self.target));
        let volume_capability = Some(capability(Some(self.kind.fstype)));
        match step {
            Step::Create => {
                let mut request = create(&self.name, 16, Some(self.kind.fstype), self.kind.backend);
                request
                    .parameters
                    .extend(self.kind.parameters.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())));
                let source = self.source.clone();
                request.volume_content_source = source.map(|source| csi::VolumeContentSource { r#type: Some(source) });
                let made = self.controller.create_volume(request).await?.into_inner();
                self.volumes.push(made.volume.expect("a volume"));
            }
            Step::Stage => {
                let request = csi::NodeStageVolumeRequest {
                    volume_id,
                    staging_target_path: staging,
                    volume_capability,
                    volume_context,
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
                    volume_context,
                    ..Default::default()
                };
                self.node.node_publish_volume(request).await?;
            }
            Step::Write(content) => write(&self.target, content, self.pattern(content)),
            Step::Snapshot => {
                let request =
                    csi::CreateSnapshotRequest { source_volume_id: volume_id, name: self.name.clone(), ..Default::default() };
                let made = self.controller.create_snapshot(request).await?.into_inner();
                self.snapshot = made.snapshot.expect("a snapshot").snapshot_id;
            }
            Step::Unpublish => {
                let request = csi::NodeUnpublishVolumeRequest { volume_id, target_path: target };
                self.node.node_unpublish_volume(request).await?;
            }
            Step::Unstage => {
                let request = csi::NodeUnstageVolumeRequest { volume_id, staging_target_path: staging };
                self.node.node_unstage_volume(request).await?;
            }
            Step::Delete => {
                let request = csi::DeleteVolumeRequest { volume_id, ..Default::default() };
                self.controller.delete_volume(request).await?;
            }
        }
        Ok(())
    }

    /// The bytes of a file of this volume alone.
    fn pattern(&self, content: u64) -> Vec<u8> {
        pattern(100 * (self.number + 1) + content)
    }

    /// Repeats the last call before a power cut behind this flush, and reads what was written until then.
    async fn go_on(mut self, restored: Client, flush: usize) -> Result<(), String> {
        let [answered, begun] = self.calls.at(flush);
        let script = self.kind.script;
        let done = &script[..answered];
        let Some(last) = script[..begun].last() else { return Ok(()) };
        // After a reboot the kubelet stages again what is in use, before it publishes it.
        let steps: &[Step] = match last {
            Step::Create | Step::Unpublish | Step::Unstage | Step::Delete => &[*last],
            Step::Stage | Step::Publish | Step::Write(_) | Step::Snapshot => &[],
        };
        self.volumes.truncate(done.iter().filter(|step| **step == Step::Create).count());
        self.perform_all(steps).await?;
        if *last == Step::Delete {
            return Ok(());
        }
        // Of the volume that is there now.
        let begin = done.iter().rposition(|step| *step == Step::Delete).map_or(0, |deleted| deleted + 1);
        let done = &done[begin..];
        self.clone().read_back(done).await?;
        if done.contains(&Step::Snapshot) {
            let before = done.iter().position(|step| *step == Step::Snapshot).unwrap_or_default();
            let source = Type::Snapshot(SnapshotSource { snapshot_id: self.snapshot.clone() });
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
            let _open = nobody_starts();
            let read = fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))?;
            if read != self.pattern(content) {
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

fn write(target: &Path, content: u64, bytes: Vec<u8>) {
    let _open = nobody_starts();
    let mut file = File::create_new(file(target, content)).expect("a file");
    file.write_all(&bytes).and_then(|()| file.sync_all()).expect("written");
}

/// Runs all clients at once.
pub fn run_clients(harness: &Harness, clock: &Clock, kind: &'static Kind) -> Vec<Client> {
    let clients: Vec<Client> =
        (0..CLIENTS as u64).map(|number| Client::new(harness, kind, number, &format!("v-{number}"))).collect();
    harness.block_on(async {
        let clients: JoinSet<Client> = clients.into_iter().map(|client| client.run(clock.clone())).collect();
        clients.join_all().await
    })
}

/// What is wrong after a power cut behind this flush.
pub fn check(harness: &Harness, clients: &[Client], flush: usize) -> Vec<String> {
    let again = |client: &Client| {
        let Client { kind, number, ref name, .. } = *client;
        let (calls, volumes, snapshot) = (client.calls.clone(), client.volumes.clone(), client.snapshot.clone());
        let restored = Client::new(harness, kind, number, &format!("restored-{name}"));
        (Client { calls, volumes, snapshot, ..Client::new(harness, kind, number, name) }, restored)
    };
    let again: Vec<_> = clients.iter().map(again).collect();
    let mut wrong: Vec<String> = harness.block_on(async {
        let clients: JoinSet<Result<(), String>> =
            again.into_iter().map(|(client, restored)| client.go_on(restored, flush)).collect();
        clients.join_all().await.into_iter().filter_map(Result::err).collect()
    });
    if wrong.is_empty() {
        let left = [volume_mounts(harness), volume_loops(harness), harness.journal()].concat();
        wrong.extend(left.into_iter().map(|left| format!("{left} is left on the node")));
        wrong.extend(clients.iter().filter_map(|client| client.data_of_deleted(harness, flush)));
    }
    wrong
}

impl Client {
    /// Where what was written to a deleted volume still is.
    fn data_of_deleted(&self, harness: &Harness, flush: usize) -> Option<String> {
        let [_, begun] = self.calls.at(flush);
        let before = &self.kind.script[..begun];
        let deleted = &before[..before.iter().rposition(|step| *step == Step::Delete)?];
        let _open = nobody_starts();
        for path in disks(harness) {
            let disk = fs::read(&path).expect("the disk");
            for step in deleted {
                let Step::Write(content) = *step else { continue };
                let block = &self.pattern(content)[..4096];
                if disk.chunks(4096).any(|found| found == block) {
                    return Some(format!("{}: {} has what was written to it before it was deleted", self.name, path.display()));
                }
            }
        }
        None
    }
}

/// Loop devices of volumes.
fn volume_loops(harness: &Harness) -> Vec<String> {
    let (pool, disks) = (text(&harness.path("pool/")), disks(harness).map(|path| text(&path)).collect::<Vec<_>>());
    let of_volumes = |file: &String| file.starts_with(&pool) && !disks.contains(file);
    loop_files().into_iter().filter(|(_, file)| of_volumes(file)).map(|(device, _)| device).collect()
}

/// How many calls these clients have made.
pub fn calls(clients: &[Client]) -> usize {
    clients.iter().map(|client| client.calls.len()).sum()
}

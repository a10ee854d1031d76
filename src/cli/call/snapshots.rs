//! The Controller service: snapshots.

use clap::{Args, Subcommand};
use serde_json::json;

use crate::csi::{CreateSnapshotRequest, DeleteSnapshotRequest, GetSnapshotRequest, ListSnapshotsRequest, Snapshot};

use super::super::{Failure, table};
use super::client::Client;
use super::flags::{PageArgs, ParameterArgs, SecretArgs, TopologyArgs};
use super::{Answer, encode};

#[derive(Debug, Subcommand)]
pub enum Rpc {
    /// CreateSnapshot: keep a volume's content of this instant
    CreateSnapshot(Box<CreateArgs>),
    /// DeleteSnapshot: remove a snapshot
    DeleteSnapshot {
        snapshot_id: String,
        #[command(flatten)]
        secrets: SecretArgs,
    },
    /// ListSnapshots: what snapshots there are
    ListSnapshots(Box<ListArgs>),
    /// GetSnapshot: show one snapshot
    GetSnapshot {
        snapshot_id: String,
        #[command(flatten)]
        secrets: SecretArgs,
    },
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  longshore call create-snapshot image:a --name before-upgrade")]
pub struct CreateArgs {
    /// Of this volume
    volume_id: String,
    /// What you call it; the same name again finds the same snapshot
    #[arg(long)]
    name: String,
    #[command(flatten)]
    parameters: ParameterArgs,
    #[command(flatten)]
    topology: TopologyArgs,
    #[command(flatten)]
    secrets: SecretArgs,
}

#[derive(Debug, Args)]
pub struct ListArgs {
    /// Only those of this volume
    #[arg(long, value_name = "VOLUME_ID")]
    volume: Option<String>,
    /// Only this one
    #[arg(long, value_name = "SNAPSHOT_ID")]
    snapshot: Option<String>,
    #[command(flatten)]
    page: PageArgs,
    #[command(flatten)]
    secrets: SecretArgs,
}

impl Rpc {
    pub async fn run(self, client: &Client) -> Result<Answer, Failure> {
        match self {
            Rpc::CreateSnapshot(args) => create(client, *args).await,
            Rpc::DeleteSnapshot { snapshot_id, secrets } => delete(client, snapshot_id, &secrets).await,
            Rpc::ListSnapshots(args) => list(client, *args).await,
            Rpc::GetSnapshot { snapshot_id, secrets } => get(client, snapshot_id, &secrets).await,
        }
    }
}

async fn create(client: &Client, args: CreateArgs) -> Result<Answer, Failure> {
    let request = CreateSnapshotRequest {
        source_volume_id: args.volume_id,
        name: args.name,
        secrets: args.secrets.read()?,
        parameters: args.parameters.said()?,
        accessibility_requirements: args.topology.requirement()?,
    };
    let response = client.answer("create-snapshot", client.controller().create_snapshot(request)).await?;
    Ok(answer(&response.snapshot.unwrap_or_default()))
}

async fn delete(client: &Client, snapshot_id: String, secrets: &SecretArgs) -> Result<Answer, Failure> {
    let done = format!("{snapshot_id} is deleted");
    let request = DeleteSnapshotRequest { snapshot_id, secrets: secrets.read()? };
    client.answer("delete-snapshot", client.controller().delete_snapshot(request)).await?;
    Ok(Answer::done(done))
}

async fn list(client: &Client, args: ListArgs) -> Result<Answer, Failure> {
    let filter = ListSnapshotsRequest {
        max_entries: 0,
        starting_token: String::new(),
        source_volume_id: args.volume.unwrap_or_default(),
        snapshot_id: args.snapshot.unwrap_or_default(),
        secrets: args.secrets.read()?,
    };
    let get = async |max_entries, starting_token| {
        let request = ListSnapshotsRequest { max_entries, starting_token, ..filter.clone() };
        let response = client.answer("list-snapshots", client.controller().list_snapshots(request)).await?;
        let snapshots = response.entries.into_iter().map(|entry| entry.snapshot.unwrap_or_default()).collect();
        Ok((snapshots, response.next_token))
    };
    let (snapshots, next) = args.page.entries(get).await?;
    let text = match snapshots.as_slice() {
        [] => "no snapshots\n".to_owned(),
        snapshots => rows(snapshots),
    };
    let json = encode::list(&snapshots, |snapshot| json!({ "snapshot": encode::snapshot(snapshot) }));
    Ok(Answer { json: json!({ "entries": json, "next_token": next }), text: text + &super::more(&next) })
}

async fn get(client: &Client, snapshot_id: String, secrets: &SecretArgs) -> Result<Answer, Failure> {
    let request = GetSnapshotRequest { snapshot_id, secrets: secrets.read()? };
    let response = client.answer("get-snapshot", client.controller().get_snapshot(request)).await?;
    Ok(answer(&response.snapshot.unwrap_or_default()))
}

fn answer(snapshot: &Snapshot) -> Answer {
    let text = table::facts([
        ("snapshot id", snapshot.snapshot_id.clone()),
        ("of volume", snapshot.source_volume_id.clone()),
        ("size", table::size(snapshot.size_bytes)),
        ("created", table::time(snapshot.creation_time.as_ref())),
        ("ready", yes(snapshot.ready_to_use)),
        ("in group", snapshot.group_snapshot_id.clone()),
    ]);
    Answer { json: json!({ "snapshot": encode::snapshot(snapshot) }), text }
}

/// Snapshots, one per line.
pub fn rows(snapshots: &[Snapshot]) -> String {
    let row = |snapshot: &Snapshot| {
        vec![
            snapshot.snapshot_id.clone(),
            snapshot.source_volume_id.clone(),
            table::size(snapshot.size_bytes),
            table::time(snapshot.creation_time.as_ref()),
            yes(snapshot.ready_to_use),
            snapshot.group_snapshot_id.clone(),
        ]
    };
    table::rows(&["SNAPSHOT ID", "OF VOLUME", "SIZE", "CREATED", "READY", "GROUP"], snapshots.iter().map(row))
}

/// Yes or no.
pub fn yes(is: bool) -> String {
    if is { "yes" } else { "no" }.to_owned()
}

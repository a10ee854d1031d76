//! The GroupController service.

use clap::{Args, Subcommand};
use serde_json::json;

use crate::csi::group_controller_service_capability::Type as Capability;
use crate::csi::{
    CreateVolumeGroupSnapshotRequest, DeleteVolumeGroupSnapshotRequest, GetVolumeGroupSnapshotRequest,
    GroupControllerGetCapabilitiesRequest, VolumeGroupSnapshot,
};

use super::super::{Failure, table};
use super::client::Client;
use super::flags::{ParameterArgs, SecretArgs};
use super::{Answer, encode, snapshots};

#[derive(Debug, Subcommand)]
pub enum Rpc {
    /// GroupControllerGetCapabilities: what the group controller can do
    #[command(alias = "group-controller-get-capabilities")]
    GroupGetCapabilities,
    /// CreateVolumeGroupSnapshot: keep several volumes' content of one instant
    #[command(alias = "create-volume-group-snapshot")]
    CreateGroupSnapshot(Box<CreateArgs>),
    /// DeleteVolumeGroupSnapshot: remove a group with all its snapshots
    #[command(alias = "delete-volume-group-snapshot")]
    DeleteGroupSnapshot(MembersArgs),
    /// GetVolumeGroupSnapshot: show one group
    #[command(alias = "get-volume-group-snapshot")]
    GetGroupSnapshot(MembersArgs),
}

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  longshore call create-group-snapshot --name nightly image:data image:log")]
pub struct CreateArgs {
    /// Of these volumes
    #[arg(required = true)]
    volume_ids: Vec<String>,
    /// What you call it; the same name again finds the same group
    #[arg(long)]
    name: String,
    #[command(flatten)]
    parameters: ParameterArgs,
    #[command(flatten)]
    secrets: SecretArgs,
}

#[derive(Debug, Args)]
pub struct MembersArgs {
    group_snapshot_id: String,
    /// A snapshot that you take to be in the group, to have that checked; may be repeated
    #[arg(long, value_name = "SNAPSHOT_ID")]
    snapshot: Vec<String>,
    #[command(flatten)]
    secrets: SecretArgs,
}

impl Rpc {
    pub async fn run(self, client: &Client) -> Result<Answer, Failure> {
        match self {
            Rpc::GroupGetCapabilities => capabilities(client).await,
            Rpc::CreateGroupSnapshot(args) => create(client, *args).await,
            Rpc::DeleteGroupSnapshot(args) => delete(client, args).await,
            Rpc::GetGroupSnapshot(args) => get(client, args).await,
        }
    }
}

async fn capabilities(client: &Client) -> Result<Answer, Failure> {
    let request = GroupControllerGetCapabilitiesRequest {};
    let call = "group-get-capabilities";
    let response = client.answer(call, client.group_controller().group_controller_get_capabilities(request)).await?;
    let names = response.capabilities.iter().filter_map(|capability| capability.r#type.as_ref());
    Ok(super::capabilities_answer(names.map(|Capability::Rpc(rpc)| rpc.r#type().as_str_name())))
}

async fn create(client: &Client, args: CreateArgs) -> Result<Answer, Failure> {
    let request = CreateVolumeGroupSnapshotRequest {
        name: args.name,
        source_volume_ids: args.volume_ids,
        secrets: args.secrets.read()?,
        parameters: args.parameters.said()?,
    };
    let call = "create-group-snapshot";
    let response = client.answer(call, client.group_controller().create_volume_group_snapshot(request)).await?;
    Ok(answer(&response.group_snapshot.unwrap_or_default()))
}

async fn delete(client: &Client, args: MembersArgs) -> Result<Answer, Failure> {
    let done = format!("{} is deleted with its snapshots", args.group_snapshot_id);
    let request = DeleteVolumeGroupSnapshotRequest {
        group_snapshot_id: args.group_snapshot_id,
        snapshot_ids: args.snapshot,
        secrets: args.secrets.read()?,
    };
    let call = "delete-group-snapshot";
    client.answer(call, client.group_controller().delete_volume_group_snapshot(request)).await?;
    Ok(Answer::done(done))
}

async fn get(client: &Client, args: MembersArgs) -> Result<Answer, Failure> {
    let request = GetVolumeGroupSnapshotRequest {
        group_snapshot_id: args.group_snapshot_id,
        snapshot_ids: args.snapshot,
        secrets: args.secrets.read()?,
    };
    let call = "get-group-snapshot";
    let response = client.answer(call, client.group_controller().get_volume_group_snapshot(request)).await?;
    Ok(answer(&response.group_snapshot.unwrap_or_default()))
}

fn answer(group: &VolumeGroupSnapshot) -> Answer {
    let facts = table::facts([
        ("group snapshot id", group.group_snapshot_id.clone()),
        ("created", table::time(group.creation_time.as_ref())),
        ("ready", snapshots::yes(group.ready_to_use)),
    ]);
    let text = format!("{facts}\n{}", snapshots::rows(&group.snapshots));
    Answer { json: json!({ "group_snapshot": encode::group(group) }), text }
}

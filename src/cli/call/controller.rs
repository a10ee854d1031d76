//! The Controller service: volumes. Its snapshot RPCs are in `snapshots`.

use clap::{ArgGroup, Args, Subcommand};
use serde_json::json;

use crate::csi::controller_service_capability::Type as Capability;
use crate::csi::volume_content_source::{SnapshotSource, Type as Source, VolumeSource};
use crate::csi::{
    ControllerExpandVolumeRequest, ControllerGetCapabilitiesRequest, ControllerGetVolumeHealthRequest,
    ControllerGetVolumeRequest, ControllerListVolumeHealthRequest, ControllerModifyVolumeRequest, ControllerPublishVolumeRequest,
    ControllerUnpublishVolumeRequest, CreateVolumeRequest, DeleteVolumeRequest, GetCapacityRequest, ListVolumesRequest,
    ValidateVolumeCapabilitiesRequest, Volume, VolumeContentSource, VolumeHealth, list_volumes_response,
};

use super::super::{Failure, table};
use super::client::Client;
use super::flags::{ContextArgs, MutableArgs, PageArgs, ParameterArgs, SecretArgs, SizeArgs, TopologyArgs, UseArgs};
use super::{Answer, encode};

#[derive(Debug, Subcommand)]
pub enum Rpc {
    /// CreateVolume: make a volume, empty or from a snapshot or another volume
    CreateVolume(Box<CreateArgs>),
    /// DeleteVolume: remove a volume
    DeleteVolume {
        volume_id: String,
        #[command(flatten)]
        secrets: SecretArgs,
    },
    /// ControllerPublishVolume: attach a volume to a node
    ControllerPublishVolume(Box<AttachArgs>),
    /// ControllerUnpublishVolume: detach a volume
    ControllerUnpublishVolume {
        volume_id: String,
        /// From this node [default: from all]
        #[arg(long)]
        node: Option<String>,
        #[command(flatten)]
        secrets: SecretArgs,
    },
    /// ValidateVolumeCapabilities: ask whether a volume can be used in some way
    ValidateVolumeCapabilities(Box<ValidateArgs>),
    /// ListVolumes: what volumes there are
    ListVolumes(PageArgs),
    /// ControllerGetVolume: show one volume
    #[command(alias = "controller-get-volume")]
    GetVolume { volume_id: String },
    /// GetCapacity: how much room there is
    GetCapacity(Box<CapacityArgs>),
    /// ControllerExpandVolume: make a volume larger; node-expand-volume then grows what is on it
    #[command(alias = "controller-expand-volume")]
    ExpandVolume(Box<ExpandArgs>),
    /// ControllerModifyVolume: change parameters of a volume
    #[command(alias = "controller-modify-volume")]
    ModifyVolume {
        volume_id: String,
        #[command(flatten)]
        mutable: MutableArgs,
        #[command(flatten)]
        secrets: SecretArgs,
    },
    /// ControllerGetVolumeHealth: what the controller knows to be wrong with a volume
    #[command(alias = "controller-get-volume-health")]
    GetVolumeHealth {
        volume_id: String,
        #[command(flatten)]
        secrets: SecretArgs,
    },
    /// ControllerListVolumeHealth: the volumes with which something is wrong
    #[command(alias = "controller-list-volume-health")]
    ListVolumeHealth {
        #[command(flatten)]
        page: PageArgs,
        #[command(flatten)]
        secrets: SecretArgs,
    },
    /// ControllerGetCapabilities: what the controller can do
    ControllerGetCapabilities,
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  longshore call create-volume --name a --size 1GiB\n  \
                        longshore call create-volume --name b --size 10GiB --fs xfs --parameter pool=scratch\n  \
                        longshore call create-volume --name c --from-snapshot image:s --size 20GiB")]
pub struct CreateArgs {
    /// What you call it; the same name again finds the same volume
    #[arg(long)]
    name: String,
    #[command(flatten)]
    size: SizeArgs,
    /// With the content of this snapshot
    #[arg(long, value_name = "SNAPSHOT_ID", conflicts_with = "from_volume")]
    from_snapshot: Option<String>,
    /// With the content of this volume
    #[arg(long, value_name = "VOLUME_ID")]
    from_volume: Option<String>,
    #[command(flatten)]
    parameters: ParameterArgs,
    #[command(flatten)]
    mutable: MutableArgs,
    #[command(flatten)]
    topology: TopologyArgs,
    #[command(flatten)]
    secrets: SecretArgs,
    #[command(flatten)]
    usage: UseArgs,
}

#[derive(Debug, Args)]
pub struct AttachArgs {
    volume_id: String,
    /// To this node, as node-info names it
    #[arg(long)]
    node: String,
    /// Nobody there may write
    #[arg(long)]
    read_only: bool,
    #[command(flatten)]
    context: ContextArgs,
    #[command(flatten)]
    secrets: SecretArgs,
    #[command(flatten)]
    usage: UseArgs,
}

#[derive(Debug, Args)]
pub struct ValidateArgs {
    volume_id: String,
    #[command(flatten)]
    context: ContextArgs,
    #[command(flatten)]
    parameters: ParameterArgs,
    #[command(flatten)]
    mutable: MutableArgs,
    #[command(flatten)]
    secrets: SecretArgs,
    #[command(flatten)]
    usage: UseArgs,
}

#[derive(Debug, Args)]
pub struct CapacityArgs {
    #[command(flatten)]
    parameters: ParameterArgs,
    #[command(flatten)]
    topology: TopologyArgs,
    #[command(flatten)]
    usage: UseArgs,
}

#[derive(Debug, Args)]
#[command(group = ArgGroup::new("how large").args(["size", "limit"]).required(true).multiple(true))]
pub struct ExpandArgs {
    volume_id: String,
    #[command(flatten)]
    size: SizeArgs,
    #[command(flatten)]
    secrets: SecretArgs,
    #[command(flatten)]
    usage: UseArgs,
}

impl Rpc {
    pub async fn run(self, client: &Client) -> Result<Answer, Failure> {
        match self {
            Rpc::CreateVolume(args) => create(client, *args).await,
            Rpc::DeleteVolume { volume_id, secrets } => delete(client, volume_id, &secrets).await,
            Rpc::ControllerPublishVolume(args) => attach(client, *args).await,
            Rpc::ControllerUnpublishVolume { volume_id, node, secrets } => detach(client, volume_id, node, &secrets).await,
            Rpc::ValidateVolumeCapabilities(args) => validate(client, *args).await,
            Rpc::ListVolumes(page) => list(client, &page).await,
            Rpc::GetVolume { volume_id } => get(client, volume_id).await,
            Rpc::GetCapacity(args) => capacity(client, &args).await,
            Rpc::ExpandVolume(args) => expand(client, *args).await,
            Rpc::ModifyVolume { volume_id, mutable, secrets } => modify(client, volume_id, &mutable, &secrets).await,
            Rpc::GetVolumeHealth { volume_id, secrets } => health(client, volume_id, &secrets).await,
            Rpc::ListVolumeHealth { page, secrets } => list_health(client, &page, &secrets).await,
            Rpc::ControllerGetCapabilities => capabilities(client).await,
        }
    }
}

async fn create(client: &Client, args: CreateArgs) -> Result<Answer, Failure> {
    let source = match (args.from_snapshot, args.from_volume) {
        (Some(snapshot_id), _) => Some(Source::Snapshot(SnapshotSource { snapshot_id })),
        (None, Some(volume_id)) => Some(Source::Volume(VolumeSource { volume_id })),
        (None, None) => None,
    };
    let request = CreateVolumeRequest {
        name: args.name,
        capacity_range: args.size.range(),
        volume_capabilities: vec![args.usage.capability()],
        parameters: args.parameters.said()?,
        secrets: args.secrets.read()?,
        volume_content_source: source.map(|source| VolumeContentSource { r#type: Some(source) }),
        accessibility_requirements: args.topology.requirement()?,
        mutable_parameters: args.mutable.said()?,
    };
    let response = client.answer("create-volume", client.controller().create_volume(request)).await?;
    let volume = response.volume.unwrap_or_default();
    Ok(Answer { json: json!({ "volume": encode::volume(&volume) }), text: facts(&volume, &[]) })
}

async fn delete(client: &Client, volume_id: String, secrets: &SecretArgs) -> Result<Answer, Failure> {
    let done = format!("{volume_id} is deleted");
    let request = DeleteVolumeRequest { volume_id, secrets: secrets.read()? };
    client.answer("delete-volume", client.controller().delete_volume(request)).await?;
    Ok(Answer::done(done))
}

async fn attach(client: &Client, args: AttachArgs) -> Result<Answer, Failure> {
    let request = ControllerPublishVolumeRequest {
        volume_context: args.context.find(client, &args.volume_id).await?,
        volume_id: args.volume_id,
        node_id: args.node,
        volume_capability: Some(args.usage.capability()),
        readonly: args.read_only,
        secrets: args.secrets.read()?,
    };
    let done = format!("{} is attached to {}", request.volume_id, request.node_id);
    let call = "controller-publish-volume";
    let response = client.answer(call, client.controller().controller_publish_volume(request)).await?;
    let context = table::map(&response.publish_context);
    let text = if context.is_empty() { format!("{done}\n") } else { format!("{done}\npublish context: {context}\n") };
    Ok(Answer { json: json!({ "publish_context": response.publish_context }), text })
}

async fn detach(client: &Client, volume_id: String, node: Option<String>, secrets: &SecretArgs) -> Result<Answer, Failure> {
    let done = format!("{volume_id} is detached from {}", node.as_deref().unwrap_or("all nodes"));
    let request = ControllerUnpublishVolumeRequest { volume_id, node_id: node.unwrap_or_default(), secrets: secrets.read()? };
    let call = "controller-unpublish-volume";
    client.answer(call, client.controller().controller_unpublish_volume(request)).await?;
    Ok(Answer::done(done))
}

async fn validate(client: &Client, args: ValidateArgs) -> Result<Answer, Failure> {
    let request = ValidateVolumeCapabilitiesRequest {
        volume_id: args.volume_id,
        volume_context: args.context.said()?,
        volume_capabilities: vec![args.usage.capability()],
        parameters: args.parameters.said()?,
        secrets: args.secrets.read()?,
        mutable_parameters: args.mutable.said()?,
    };
    let call = "validate-volume-capabilities";
    let response = client.answer(call, client.controller().validate_volume_capabilities(request)).await?;
    let text = match &response.confirmed {
        Some(_) => "confirmed\n".to_owned(),
        None => format!("not confirmed: {}\n", response.message),
    };
    let confirmed = response.confirmed.map(|confirmed| {
        json!({
            "volume_context": confirmed.volume_context,
            "volume_capabilities": encode::list(&confirmed.volume_capabilities, encode::capability),
            "parameters": confirmed.parameters,
            "mutable_parameters": confirmed.mutable_parameters,
        })
    });
    Ok(Answer { json: json!({ "confirmed": confirmed, "message": response.message }), text })
}

async fn list(client: &Client, page: &PageArgs) -> Result<Answer, Failure> {
    let get = async |max_entries, starting_token| {
        let request = ListVolumesRequest { max_entries, starting_token };
        let response = client.answer("list-volumes", client.controller().list_volumes(request)).await?;
        Ok((response.entries, response.next_token))
    };
    let (entries, next) = page.entries(get).await?;
    let published = |entry: &list_volumes_response::Entry| {
        entry.status.as_ref().map(|status| status.published_node_ids.clone()).unwrap_or_default()
    };
    let row = |entry: &list_volumes_response::Entry| {
        let volume = entry.volume.clone().unwrap_or_default();
        vec![volume.volume_id.clone(), table::size(volume.capacity_bytes), source(&volume), published(entry).join(", ")]
    };
    let text = match entries.as_slice() {
        [] => "no volumes\n".to_owned(),
        entries => table::rows(&["VOLUME ID", "CAPACITY", "FROM", "PUBLISHED ON"], entries.iter().map(row)),
    };
    let json = encode::list(
        &entries,
        |entry| json!({ "volume": entry.volume.as_ref().map(encode::volume), "status": { "published_node_ids": published(entry) } }),
    );
    Ok(Answer { json: json!({ "entries": json, "next_token": next }), text: text + &super::more(&next) })
}

async fn get(client: &Client, volume_id: String) -> Result<Answer, Failure> {
    let request = ControllerGetVolumeRequest { volume_id };
    let response = client.answer("get-volume", client.controller().controller_get_volume(request)).await?;
    let volume = response.volume.unwrap_or_default();
    let published = response.status.map(|status| status.published_node_ids).unwrap_or_default();
    let text = facts(&volume, &published);
    Ok(Answer { json: json!({ "volume": encode::volume(&volume), "status": { "published_node_ids": published } }), text })
}

async fn capacity(client: &Client, args: &CapacityArgs) -> Result<Answer, Failure> {
    let request = GetCapacityRequest {
        volume_capabilities: args.usage.capability_if_said().into_iter().collect(),
        parameters: args.parameters.said()?,
        accessible_topology: args.topology.place()?,
    };
    let response = client.answer("get-capacity", client.controller().get_capacity(request)).await?;
    let text = table::facts([
        ("available", table::size(response.available_capacity)),
        ("largest volume", response.maximum_volume_size.map(table::size).unwrap_or_default()),
        ("smallest volume", response.minimum_volume_size.map(table::size).unwrap_or_default()),
    ]);
    let json = json!({
        "available_capacity": response.available_capacity,
        "maximum_volume_size": response.maximum_volume_size,
        "minimum_volume_size": response.minimum_volume_size,
    });
    Ok(Answer { json, text })
}

async fn expand(client: &Client, args: ExpandArgs) -> Result<Answer, Failure> {
    let request = ControllerExpandVolumeRequest {
        volume_id: args.volume_id,
        capacity_range: args.size.range(),
        secrets: args.secrets.read()?,
        volume_capability: args.usage.capability_if_said(),
    };
    let volume_id = request.volume_id.clone();
    let response = client.answer("expand-volume", client.controller().controller_expand_volume(request)).await?;
    let then = if response.node_expansion_required { "; where it is in use, node-expand-volume makes it seen" } else { "" };
    let text = format!("{volume_id} has {}{then}\n", table::size(response.capacity_bytes));
    let json = json!({
        "capacity_bytes": response.capacity_bytes,
        "node_expansion_required": response.node_expansion_required,
    });
    Ok(Answer { json, text })
}

async fn modify(client: &Client, volume_id: String, mutable: &MutableArgs, secrets: &SecretArgs) -> Result<Answer, Failure> {
    let done = format!("{volume_id} is modified");
    let request = ControllerModifyVolumeRequest { volume_id, secrets: secrets.read()?, mutable_parameters: mutable.said()? };
    client.answer("modify-volume", client.controller().controller_modify_volume(request)).await?;
    Ok(Answer::done(done))
}

async fn health(client: &Client, volume_id: String, secrets: &SecretArgs) -> Result<Answer, Failure> {
    let request = ControllerGetVolumeHealthRequest { volume_id, secrets: secrets.read()? };
    let call = "get-volume-health";
    let response = client.answer(call, client.controller().controller_get_volume_health(request)).await?;
    Ok(health_answer(&response.volume_health.unwrap_or_default()))
}

async fn list_health(client: &Client, page: &PageArgs, secrets: &SecretArgs) -> Result<Answer, Failure> {
    let secrets = secrets.read()?;
    let get = async |max_entries, starting_token| {
        let request = ControllerListVolumeHealthRequest { max_entries, starting_token, secrets: secrets.clone() };
        let call = "list-volume-health";
        let response = client.answer(call, client.controller().controller_list_volume_health(request)).await?;
        Ok((response.entries, response.next_token))
    };
    let (entries, next) = page.entries(get).await?;
    let text = match entries.as_slice() {
        [] => "nothing is known to be wrong with any volume\n".to_owned(),
        entries => health_table(entries),
    };
    let json = json!({ "entries": encode::list(&entries, encode::health), "next_token": next });
    Ok(Answer { json, text: text + &super::more(&next) })
}

async fn capabilities(client: &Client) -> Result<Answer, Failure> {
    let request = ControllerGetCapabilitiesRequest {};
    let call = "controller-get-capabilities";
    let response = client.answer(call, client.controller().controller_get_capabilities(request)).await?;
    let names = response.capabilities.iter().filter_map(|capability| capability.r#type.as_ref());
    Ok(super::capabilities_answer(names.map(|Capability::Rpc(rpc)| rpc.r#type().as_str_name())))
}

/// A volume's health, as both services tell it.
pub fn health_answer(health: &VolumeHealth) -> Answer {
    let text = match health.health_statuses.as_slice() {
        [] => format!("nothing is known to be wrong with {}\n", health.volume_id),
        _ => health_table(std::slice::from_ref(health)),
    };
    Answer { json: json!({ "volume_health": encode::health(health) }), text }
}

fn health_table(volumes: &[VolumeHealth]) -> String {
    let row = |volume: &VolumeHealth| {
        let id = volume.volume_id.clone();
        let rows = volume.health_statuses.iter().map(move |entry| {
            vec![id.clone(), entry.status().as_str_name().to_owned(), entry.reason.clone(), entry.message.clone()]
        });
        rows.collect::<Vec<_>>()
    };
    table::rows(&["VOLUME ID", "STATUS", "REASON", "MESSAGE"], volumes.iter().flat_map(row))
}

fn facts(volume: &Volume, published: &[String]) -> String {
    let topology: Vec<String> = volume.accessible_topology.iter().map(|topology| table::map(&topology.segments)).collect();
    table::facts([
        ("volume id", volume.volume_id.clone()),
        ("capacity", table::size(volume.capacity_bytes)),
        ("from", source(volume)),
        ("reachable from", topology.join("; ")),
        ("context", table::map(&volume.volume_context)),
        ("published on", published.join(", ")),
    ])
}

fn source(volume: &Volume) -> String {
    match volume.content_source.as_ref().and_then(|source| source.r#type.as_ref()) {
        Some(Source::Snapshot(snapshot)) => format!("snapshot {}", snapshot.snapshot_id),
        Some(Source::Volume(volume)) => format!("volume {}", volume.volume_id),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use crate::csi::volume_health::VolumeHealthEntry;

    use super::*;

    #[test]
    fn a_volume_is_shown_with_what_is_known_of_it() {
        let volume = Volume { volume_id: "image:a".to_owned(), capacity_bytes: 1 << 30, ..Volume::default() };
        assert_eq!(facts(&volume, &[]), "volume id   image:a\ncapacity    1 GiB\n");
        assert!(facts(&volume, &["worker-1".to_owned()]).ends_with("published on   worker-1\n"));
    }

    #[test]
    fn health_is_reported_in_words_or_in_a_table() {
        let mut health = VolumeHealth { volume_id: "image:a".to_owned(), health_statuses: vec![] };
        assert!(health_answer(&health).text.starts_with("nothing is known to be wrong"));
        let entry = VolumeHealthEntry { status: 3, reason: "ImageMissing".to_owned(), message: "gone".to_owned() };
        health.health_statuses.push(entry);
        let answer = health_answer(&health);
        assert!(answer.text.contains("image:a     DATA_LOSS   ImageMissing   gone"), "{}", answer.text);
        assert_eq!(answer.json["volume_health"]["health_statuses"][0]["status"], "DATA_LOSS");
    }
}

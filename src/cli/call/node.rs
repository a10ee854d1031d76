//! The Node service.

use clap::{Args, Subcommand};
use serde_json::json;

use crate::csi::node_service_capability::Type as Capability;
use crate::csi::volume_usage::Unit;
use crate::csi::{
    NodeExpandVolumeRequest, NodeGetCapabilitiesRequest, NodeGetInfoRequest, NodeGetStorageHealthRequest,
    NodeGetVolumeHealthRequest, NodeGetVolumeStatsRequest, NodePublishVolumeRequest, NodeStageVolumeRequest,
    NodeUnpublishVolumeRequest, NodeUnstageVolumeRequest, VolumeUsage,
};

use super::super::{Failure, table};
use super::client::Client;
use super::flags::{ContextArgs, PublishContextArgs, SecretArgs, SizeArgs, UseArgs};
use super::{Answer, controller, encode};

#[derive(Debug, Subcommand)]
pub enum Rpc {
    /// NodeStageVolume: bring a volume to this node, once for all who use it here
    #[command(alias = "node-stage-volume")]
    StageVolume(Box<StageArgs>),
    /// NodeUnstageVolume: take a volume from this node
    #[command(alias = "node-unstage-volume")]
    UnstageVolume {
        volume_id: String,
        /// The directory it is staged at
        #[arg(long, value_name = "PATH")]
        staging: String,
    },
    /// NodePublishVolume: show a volume where someone uses it
    #[command(alias = "node-publish-volume")]
    PublishVolume(Box<PublishArgs>),
    /// NodeUnpublishVolume: undo publish-volume
    #[command(alias = "node-unpublish-volume")]
    UnpublishVolume {
        volume_id: String,
        /// Where it is published
        #[arg(long, value_name = "PATH")]
        target: String,
    },
    /// NodeGetVolumeStats: how full a volume is
    #[command(aliases = ["node-get-volume-stats", "node-volume-stats"])]
    VolumeStats {
        volume_id: String,
        #[command(flatten)]
        place: PlaceArgs,
    },
    /// NodeGetVolumeHealth: what this node knows to be wrong with a volume
    NodeGetVolumeHealth {
        volume_id: String,
        /// Where it is published
        #[arg(long, alias = "target")]
        path: Option<String>,
        /// The directory it is staged at
        #[arg(long, value_name = "PATH")]
        staging: Option<String>,
    },
    /// NodeGetStorageHealth: what this node knows to be wrong with the storage
    #[command(alias = "node-get-storage-health")]
    StorageHealth {
        #[command(flatten)]
        secrets: SecretArgs,
    },
    /// NodeExpandVolume: after expand-volume, make the larger size seen where it is in use
    NodeExpandVolume(Box<ExpandArgs>),
    /// NodeGetCapabilities: what the node can do
    NodeGetCapabilities,
    /// NodeGetInfo: the node's name, place and limit
    #[command(alias = "node-get-info")]
    NodeInfo,
}

#[derive(Debug, Args)]
#[command(after_help = "The staging directory must exist. Example:\n  \
                        longshore call stage-volume image:a --fs xfs --staging /var/lib/kubelet/a/staging")]
pub struct StageArgs {
    volume_id: String,
    /// The directory to stage it at; it must exist
    #[arg(long, value_name = "PATH")]
    staging: String,
    #[command(flatten)]
    context: ContextArgs,
    #[command(flatten)]
    publish_context: PublishContextArgs,
    #[command(flatten)]
    secrets: SecretArgs,
    #[command(flatten)]
    usage: UseArgs,
}

#[derive(Debug, Args)]
#[command(after_help = "The target's parent directory must exist, the target is made. Examples (K=/var/lib/kubelet/a):\n  \
                        longshore call publish-volume image:a --fs xfs --staging $K/staging --target $K/mount\n  \
                        longshore call publish-volume csi-scratch --target $K/scratch \\\n      \
                        --context csi.storage.k8s.io/ephemeral=true --context size=1GiB")]
pub struct PublishArgs {
    volume_id: String,
    /// Where to show it; made by the driver below a directory that exists
    #[arg(long, value_name = "PATH")]
    target: String,
    /// The directory it is staged at
    #[arg(long, value_name = "PATH")]
    staging: Option<String>,
    /// Nobody may write there
    #[arg(long)]
    read_only: bool,
    #[command(flatten)]
    context: ContextArgs,
    #[command(flatten)]
    publish_context: PublishContextArgs,
    #[command(flatten)]
    secrets: SecretArgs,
    #[command(flatten)]
    usage: UseArgs,
}

#[derive(Debug, Args)]
pub struct ExpandArgs {
    volume_id: String,
    #[command(flatten)]
    place: PlaceArgs,
    #[command(flatten)]
    size: SizeArgs,
    #[command(flatten)]
    secrets: SecretArgs,
    #[command(flatten)]
    usage: UseArgs,
}

#[derive(Debug, Args)]
pub struct PlaceArgs {
    /// Where it is published or staged
    #[arg(long, alias = "target")]
    path: String,
    /// The directory it is staged at
    #[arg(long, value_name = "PATH")]
    staging: Option<String>,
}

impl Rpc {
    pub async fn run(self, client: &Client) -> Result<Answer, Failure> {
        match self {
            Rpc::StageVolume(args) => stage(client, *args).await,
            Rpc::UnstageVolume { volume_id, staging } => unstage(client, volume_id, staging).await,
            Rpc::PublishVolume(args) => publish(client, *args).await,
            Rpc::UnpublishVolume { volume_id, target } => unpublish(client, volume_id, target).await,
            Rpc::VolumeStats { volume_id, place } => stats(client, volume_id, place).await,
            Rpc::NodeGetVolumeHealth { volume_id, path, staging } => {
                let request = NodeGetVolumeHealthRequest {
                    volume_id,
                    volume_publish_path: path.unwrap_or_default(),
                    staging_target_path: staging.unwrap_or_default(),
                };
                let call = "node-get-volume-health";
                let response = client.answer(call, client.node().node_get_volume_health(request)).await?;
                Ok(controller::health_answer(&response.volume_health.unwrap_or_default()))
            }
            Rpc::StorageHealth { secrets } => storage_health(client, &secrets).await,
            Rpc::NodeExpandVolume(args) => expand(client, *args).await,
            Rpc::NodeGetCapabilities => capabilities(client).await,
            Rpc::NodeInfo => info(client).await,
        }
    }
}

async fn stage(client: &Client, args: StageArgs) -> Result<Answer, Failure> {
    let done = format!("{} is staged at {}", args.volume_id, args.staging);
    let request = NodeStageVolumeRequest {
        volume_context: args.context.find(client, &args.volume_id).await?,
        volume_id: args.volume_id,
        publish_context: args.publish_context.said()?,
        staging_target_path: args.staging,
        volume_capability: Some(args.usage.capability()),
        secrets: args.secrets.read()?,
    };
    client.answer("stage-volume", client.node().node_stage_volume(request)).await?;
    Ok(Answer::done(done))
}

async fn unstage(client: &Client, volume_id: String, staging: String) -> Result<Answer, Failure> {
    let done = format!("{volume_id} is no longer staged at {staging}");
    let request = NodeUnstageVolumeRequest { volume_id, staging_target_path: staging };
    client.answer("unstage-volume", client.node().node_unstage_volume(request)).await?;
    Ok(Answer::done(done))
}

async fn publish(client: &Client, args: PublishArgs) -> Result<Answer, Failure> {
    let done = format!("{} is published at {}", args.volume_id, args.target);
    let request = NodePublishVolumeRequest {
        volume_context: args.context.find(client, &args.volume_id).await?,
        volume_id: args.volume_id,
        publish_context: args.publish_context.said()?,
        staging_target_path: args.staging.unwrap_or_default(),
        target_path: args.target,
        volume_capability: Some(args.usage.capability()),
        readonly: args.read_only,
        secrets: args.secrets.read()?,
    };
    client.answer("publish-volume", client.node().node_publish_volume(request)).await?;
    Ok(Answer::done(done))
}

async fn unpublish(client: &Client, volume_id: String, target: String) -> Result<Answer, Failure> {
    let done = format!("{volume_id} is no longer published at {target}");
    let request = NodeUnpublishVolumeRequest { volume_id, target_path: target };
    client.answer("unpublish-volume", client.node().node_unpublish_volume(request)).await?;
    Ok(Answer::done(done))
}

async fn stats(client: &Client, volume_id: String, place: PlaceArgs) -> Result<Answer, Failure> {
    let request =
        NodeGetVolumeStatsRequest { volume_id, volume_path: place.path, staging_target_path: place.staging.unwrap_or_default() };
    let response = client.answer("volume-stats", client.node().node_get_volume_stats(request)).await?;
    let json = encode::list(&response.usage, |usage| {
        json!({
            "available": usage.available,
            "total": usage.total,
            "used": usage.used,
            "unit": usage.unit().as_str_name(),
        })
    });
    let text = table::rows(&["UNIT", "TOTAL", "USED", "AVAILABLE"], response.usage.iter().map(usage_row));
    Ok(Answer { json: json!({ "usage": json }), text })
}

fn usage_row(usage: &VolumeUsage) -> Vec<String> {
    let figure = |figure: i64| if usage.unit() == Unit::Bytes { table::size(figure) } else { figure.to_string() };
    let unit = usage.unit().as_str_name().to_lowercase();
    vec![unit, figure(usage.total), figure(usage.used), figure(usage.available)]
}

async fn storage_health(client: &Client, secrets: &SecretArgs) -> Result<Answer, Failure> {
    let request = NodeGetStorageHealthRequest { secrets: secrets.read()? };
    let response = client.answer("storage-health", client.node().node_get_storage_health(request)).await?;
    let text = match response.backend_health.as_slice() {
        [] => "nothing is known to be wrong with the storage\n".to_owned(),
        problems => {
            let rows = problems
                .iter()
                .map(|problem| vec![problem.status().as_str_name().to_owned(), problem.reason.clone(), problem.message.clone()]);
            table::rows(&["STATUS", "REASON", "MESSAGE"], rows)
        }
    };
    let json = encode::list(&response.backend_health, |problem| {
        json!({
            "status": problem.status().as_str_name(),
            "reason": problem.reason,
            "message": problem.message,
            "volume_capability": problem.volume_capability.as_ref().map(encode::capability),
        })
    });
    Ok(Answer { json: json!({ "backend_health": json }), text })
}

async fn expand(client: &Client, args: ExpandArgs) -> Result<Answer, Failure> {
    let request = NodeExpandVolumeRequest {
        volume_id: args.volume_id,
        volume_path: args.place.path,
        capacity_range: args.size.range(),
        staging_target_path: args.place.staging.unwrap_or_default(),
        volume_capability: args.usage.capability_if_said(),
        secrets: args.secrets.read()?,
    };
    let volume_id = request.volume_id.clone();
    let response = client.answer("node-expand-volume", client.node().node_expand_volume(request)).await?;
    let text = format!("{volume_id} has {} on this node\n", table::size(response.capacity_bytes));
    Ok(Answer { json: json!({ "capacity_bytes": response.capacity_bytes }), text })
}

async fn capabilities(client: &Client) -> Result<Answer, Failure> {
    let request = NodeGetCapabilitiesRequest {};
    let response = client.answer("node-get-capabilities", client.node().node_get_capabilities(request)).await?;
    let names = response.capabilities.iter().filter_map(|capability| capability.r#type.as_ref());
    Ok(super::capabilities_answer(names.map(|Capability::Rpc(rpc)| rpc.r#type().as_str_name())))
}

async fn info(client: &Client) -> Result<Answer, Failure> {
    let info = client.answer("node-info", client.node().node_get_info(NodeGetInfoRequest {})).await?;
    let limit = match info.max_volumes_per_node {
        0 => "no limit".to_owned(),
        limit => limit.to_string(),
    };
    let place = info.accessible_topology.as_ref();
    let text = table::facts([
        ("node id", info.node_id.clone()),
        ("most volumes", limit),
        ("place", place.map(|place| table::map(&place.segments)).unwrap_or_default()),
    ]);
    let json = json!({
        "node_id": info.node_id,
        "max_volumes_per_node": info.max_volumes_per_node,
        "accessible_topology": place.map(encode::topology),
    });
    Ok(Answer { json, text })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_units_and_inodes_are_counted() {
        let bytes = VolumeUsage { available: 1 << 30, total: 2 << 30, used: 1 << 30, unit: Unit::Bytes.into() };
        assert_eq!(usage_row(&bytes), ["bytes", "2 GiB", "1 GiB", "1 GiB"]);
        let inodes = VolumeUsage { available: 1024, total: 2048, used: 1024, unit: Unit::Inodes.into() };
        assert_eq!(usage_row(&inodes), ["inodes", "2048", "1024", "1024"]);
    }
}

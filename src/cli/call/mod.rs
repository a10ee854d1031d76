//! `longshore call`: a CSI client for people, one file per CSI service.
//!
//! Each RPC is a subcommand: its flags become the request, its answer becomes an [`Answer`] in two forms. Messages are
//! turned into JSON by hand, so that no secret is ever among what is printed: answers have none, and requests are not shown.

use clap::{Args, Subcommand};

use crate::config::Endpoint;

use super::progress::Progress;
use super::{Failure, print, variable};

mod answer;
mod client;
mod controller;
mod encode;
mod flags;
mod group_controller;
mod identity;
mod node;
mod snapshot_metadata;
mod snapshots;

pub(super) use client::Client;

use answer::{Answer, capabilities_answer, more};

const EXAMPLES: &str = "\
Examples, a volume's life (K=/var/lib/kubelet/a, with the directory $K/staging):
  longshore call create-volume --name a --size 1GiB --fs xfs
  longshore call stage-volume image:a --fs xfs --staging $K/staging
  longshore call publish-volume image:a --fs xfs --staging $K/staging --target $K/mount
  longshore call create-snapshot image:a --name before
  longshore call expand-volume image:a --size 2GiB
  longshore call node-expand-volume image:a --path $K/mount
  longshore call create-volume --name b --size 2GiB --fs xfs --from-snapshot image:before
  longshore call unpublish-volume image:a --target $K/mount
  longshore call unstage-volume image:a --staging $K/staging
  longshore call delete-volume image:a

Exit codes: 0 done, 1 failed for good, 2 wrong usage, 3 endpoint not reached,
4 failed but may still be running; of probe: not ready.";

/// The arguments of `call`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, subcommand_value_name = "RPC", subcommand_help_heading = "RPCs", disable_help_subcommand = true)]
pub struct CallArgs {
    /// The driver's Unix socket [env: CSI_ENDPOINT] [default: unix:///run/longshore/csi.sock]
    #[arg(long, global = true, value_name = "SOCKET", help_heading = "How to call")]
    endpoint: Option<Endpoint>,
    /// How long to wait for an answer; what is running then continues
    #[arg(long, global = true, value_name = "DURATION", default_value = "60s", help_heading = "How to call")]
    timeout: humantime::Duration,
    /// One JSON document with the field names of csi.proto, sizes in bytes
    #[arg(long, global = true, help_heading = "How to call")]
    json: bool,
    #[command(subcommand)]
    rpc: Rpc,
}

#[derive(Debug, Subcommand)]
enum Rpc {
    #[command(flatten)]
    Identity(identity::Rpc),
    #[command(flatten)]
    Controller(controller::Rpc),
    #[command(flatten)]
    Snapshots(snapshots::Rpc),
    #[command(flatten)]
    GroupController(group_controller::Rpc),
    #[command(flatten)]
    SnapshotMetadata(snapshot_metadata::Rpc),
    #[command(flatten)]
    Node(node::Rpc),
}

/// Calls, and prints the answer.
pub fn run(args: CallArgs) -> Result<(), Failure> {
    let endpoint = endpoint(args.endpoint)?;
    let answer = runtime()?.block_on(async {
        let client = Client::connect(&endpoint, *args.timeout, Progress::new(!args.json)).await?;
        match args.rpc {
            Rpc::Identity(rpc) => rpc.run(&client).await,
            Rpc::Controller(rpc) => rpc.run(&client).await,
            Rpc::Snapshots(rpc) => rpc.run(&client).await,
            Rpc::GroupController(rpc) => rpc.run(&client).await,
            Rpc::SnapshotMetadata(rpc) => rpc.run(&client).await,
            Rpc::Node(rpc) => rpc.run(&client).await,
        }
    })?;
    if args.json { print(&format!("{:#}\n", answer.json)) } else { print(&answer.text) }
}

/// The driver's socket: that of the flag, of the environment, or the default.
pub(super) fn endpoint(said: Option<Endpoint>) -> Result<Endpoint, Failure> {
    let said = said.map_or_else(|| Endpoint::from_environment(variable), |endpoint| Ok(Some(endpoint)))?;
    Ok(said.unwrap_or_default())
}

pub(super) fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    let built = tokio::runtime::Builder::new_current_thread().enable_all().build();
    built.map_err(|error| Failure::Serve { step: "start the client", source: error.into() })
}

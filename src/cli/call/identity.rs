//! The Identity service.

use clap::Subcommand;
use serde_json::{Value, json};

use crate::csi::plugin_capability::Type;
use crate::csi::{GetPluginCapabilitiesRequest, GetPluginInfoRequest, PluginCapability, ProbeRequest};

use super::super::{Failure, table};
use super::client::Client;
use super::{Answer, encode};

#[derive(Debug, Subcommand)]
pub enum Rpc {
    /// GetPluginInfo: the driver's name and version
    GetPluginInfo,
    /// GetPluginCapabilities: which services it offers
    GetPluginCapabilities,
    /// Probe: whether it takes calls and at least one of its backends can be used
    Probe,
}

impl Rpc {
    pub async fn run(self, client: &Client) -> Result<Answer, Failure> {
        match self {
            Rpc::GetPluginInfo => info(client).await,
            Rpc::GetPluginCapabilities => capabilities(client).await,
            Rpc::Probe => probe(client).await,
        }
    }
}

async fn info(client: &Client) -> Result<Answer, Failure> {
    let info = client.answer("get-plugin-info", client.identity().get_plugin_info(GetPluginInfoRequest {})).await?;
    let text = table::facts([
        ("name", info.name.clone()),
        ("version", info.vendor_version.clone()),
        ("manifest", table::map(&info.manifest)),
    ]);
    Ok(Answer { json: json!({ "name": info.name, "vendor_version": info.vendor_version, "manifest": info.manifest }), text })
}

async fn capabilities(client: &Client) -> Result<Answer, Failure> {
    let call = "get-plugin-capabilities";
    let response = client.answer(call, client.identity().get_plugin_capabilities(GetPluginCapabilitiesRequest {})).await?;
    let lines = response.capabilities.iter().map(|capability| match name(capability) {
        ("volume_expansion", name) => format!("volume expansion {name}\n"),
        (_, name) => format!("{name}\n"),
    });
    let text = lines.collect();
    let json = encode::list(&response.capabilities, |capability| match name(capability) {
        ("", _) => Value::Null,
        (kind, name) => json!({ kind: { "type": name } }),
    });
    Ok(Answer { json: json!({ "capabilities": json }), text })
}

/// The capability's kind and its name.
fn name(capability: &PluginCapability) -> (&'static str, &'static str) {
    match &capability.r#type {
        Some(Type::Service(service)) => ("service", service.r#type().as_str_name()),
        Some(Type::VolumeExpansion(expansion)) => ("volume_expansion", expansion.r#type().as_str_name()),
        None => ("", "UNKNOWN"),
    }
}

async fn probe(client: &Client) -> Result<Answer, Failure> {
    let response = client.answer("probe", client.identity().probe(ProbeRequest {})).await?;
    // An absent value means ready (CSI spec, Probe).
    if response.ready == Some(false) {
        return Err(Failure::NotReady);
    }
    Ok(Answer { json: json!({ "ready": response.ready }), text: "ready\n".to_owned() })
}

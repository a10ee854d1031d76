//! `longshore pre-stop`: the hook before the end of a node's driver. While the node is drained, the driver is needed until the node has let
//! go of its volumes: else nobody unmounts them, and Kubernetes detaches them by force, six minutes later.
//!
//! Asks for one object, the Node, which says both whether it is drained and which volumes it has. VolumeAttachments would say no more, and
//! may hold passwords in clear (docs/security.md).

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use serde::Deserialize;
use tracing_subscriber::fmt::writer::BoxMakeWriter;

use crate::backend::catalog::Catalog;
use crate::config::{Config, LogFormat};
use crate::os::socket::{Listener, listener};

use super::api::{Api, Body};
use super::args::PreStopArgs;
use super::{Failure, serve};

/// Between two looks.
const PAUSE: Duration = Duration::from_secs(1);
/// For one answer.
const ANSWER: Duration = Duration::from_secs(5);
/// To learn which process's log is ours.
const CONNECT: Duration = Duration::from_secs(1);
/// What drains a node says so by one of these: `kubectl cordon`, Karpenter (its name until 1.0, and since), the cluster-autoscaler.
const DRAINED: [&str; 4] =
    ["node.kubernetes.io/unschedulable", "karpenter.sh/disruption", "karpenter.sh/disrupted", "ToBeDeletedByClusterAutoscaler"];

/// What of a Node matters here.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct NodeObject {
    spec: Spec,
    status: Status,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Spec {
    unschedulable: bool,
    taints: Vec<Taint>,
}

#[derive(Debug, Deserialize)]
struct Taint {
    key: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Status {
    /// By the kubelet: what is mounted, or about to be.
    volumes_in_use: Vec<String>,
    /// By the attach-detach controller; taken out once nothing uses it, right before it is detached.
    volumes_attached: Vec<Attached>,
}

#[derive(Debug, Deserialize)]
struct Attached {
    name: String,
}

impl NodeObject {
    fn is_drained(&self) -> bool {
        self.spec.unschedulable || self.spec.taints.iter().any(|taint| DRAINED.contains(&taint.key.as_str()))
    }

    /// The handles of the driver's volumes that the node uses or has attached.
    fn volumes(&self, driver: &str) -> BTreeSet<String> {
        let prefix = format!("kubernetes.io/csi/{driver}^");
        let attached = self.status.volumes_attached.iter().map(|attached| &attached.name);
        attached.chain(&self.status.volumes_in_use).filter_map(|name| name.strip_prefix(&prefix).map(str::to_owned)).collect()
    }
}

/// What one question came to.
enum Answer {
    Node(NodeObject),
    /// There is no such node any more.
    Gone,
    /// An answer that does not change by asking again.
    Refused(String),
    /// None, this time.
    Away(String),
}

/// Ends when the node is not drained, or has none of the driver's volumes any more.
pub fn run(args: &PreStopArgs, catalog: &Catalog) -> Result<(), Failure> {
    let begun = Instant::now();
    let config = serve::configure(catalog, args.place.layer(), args.place.config.as_deref())?;
    start_log(&config);
    let result = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| format!("start the runtime: {error}"))
        .and_then(|runtime| runtime.block_on(wait(&config, args, begun)));
    result.map_err(|reason| {
        tracing::warn!("pre-stop: {reason}");
        Failure::PreStop(reason)
    })
}

async fn wait(config: &Config, args: &PreStopArgs, begun: Instant) -> Result<(), String> {
    let api = Api::new(&args.service_account)?;
    let path = format!("/api/v1/nodes/{}", config.node_id);
    let limit = args.timeout.0;
    let mut said = String::new();
    loop {
        let left = limit.saturating_sub(begun.elapsed());
        let within = left.min(ANSWER);
        let answer = tokio::time::timeout(within, ask(&api, &path)).await;
        let waits_for = match answer.unwrap_or_else(|_| Answer::Away(format!("{}: no answer within {within:?}", api.url(&path))))
        {
            Answer::Refused(reason) => return Err(reason),
            Answer::Gone => {
                tracing::info!(
                    "pre-stop: there is no node {} any more, which could have volumes; the driver ends",
                    config.node_id
                );
                return Ok(());
            }
            Answer::Away(reason) => reason,
            Answer::Node(node) if !node.is_drained() => {
                tracing::info!("pre-stop: node {} is not drained; the driver ends, volumes in use stay mounted", config.node_id);
                return Ok(());
            }
            Answer::Node(node) => {
                let volumes = node.volumes(config.driver_name.as_str());
                if volumes.is_empty() {
                    tracing::info!("pre-stop: node {} is drained and has no volumes; the driver ends", config.node_id);
                    return Ok(());
                }
                let names = volumes.into_iter().collect::<Vec<_>>().join(", ");
                format!("node {} is drained, and still has {names}", config.node_id)
            }
        };
        if begun.elapsed() + PAUSE >= limit {
            return Err(format!(
                "{waits_for}; the time is over after {limit:?}, and the driver ends: raise node.preStop.timeoutSeconds, or see which pods stay"
            ));
        }
        if waits_for != said {
            tracing::info!("pre-stop: {waits_for}; waiting, {:?} at most", limit.saturating_sub(begun.elapsed()));
            said = waits_for;
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Lines go to the driver's own log, which is the container's: nobody keeps what a hook writes.
fn start_log(config: &Config) {
    let driver = match listener(config.endpoint.path(), CONNECT) {
        Ok(Listener::Living(pid)) => pid,
        _ => None,
    };
    let log = driver.and_then(|pid| OpenOptions::new().append(true).open(format!("/proc/{pid}/fd/2")).ok());
    let writer = log.map_or_else(|| BoxMakeWriter::new(io::stderr), |file| BoxMakeWriter::new(Mutex::new(file)));
    let lines = tracing_subscriber::fmt().with_writer(writer).with_ansi(false);
    match config.log.format {
        LogFormat::Text => lines.init(),
        LogFormat::Json => lines.json().init(),
    }
}

async fn ask(api: &Api, path: &str) -> Answer {
    let url = api.url(path);
    match api.call(path, Body::None).await {
        Ok((200, body)) => {
            serde_json::from_slice(&body).map_or_else(|error| Answer::Away(format!("{url}: {error}")), Answer::Node)
        }
        Ok((404, _)) => Answer::Gone,
        Ok((status @ (401 | 403), _)) => Answer::Refused(format!(
            "{url}: {status}; the node's service account needs the right to get nodes: node.preStop.enabled"
        )),
        Ok((status, _)) => Answer::Away(format!("{url}: {status}")),
        Err(reason) => Answer::Away(reason),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(text: &str) -> NodeObject {
        serde_json::from_str(text).expect("a Node")
    }

    #[test]
    fn a_node_is_drained_by_what_drains_nodes() {
        assert!(!node(r#"{"spec": {}}"#).is_drained());
        assert!(!node(r#"{"spec": {"taints": [{"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"}]}}"#).is_drained());
        assert!(node(r#"{"spec": {"unschedulable": true}}"#).is_drained());
        for key in DRAINED {
            assert!(
                node(&format!(r#"{{"spec": {{"taints": [{{"key": "{key}", "effect": "NoSchedule"}}]}}}}"#)).is_drained(),
                "{key}"
            );
        }
    }

    #[test]
    fn only_volumes_of_this_driver_count_used_or_attached() {
        let node = node(
            r#"{"status": {"volumesInUse": ["kubernetes.io/csi/a.b^x:1", "kubernetes.io/csi/other^x:2"],
                "volumesAttached": [{"name": "kubernetes.io/csi/a.b^x:1", "devicePath": ""}, {"name": "kubernetes.io/csi/a.b^x:3"}]}}"#,
        );
        assert_eq!(node.volumes("a.b"), ["x:1", "x:3"].map(str::to_owned).into());
    }
}

//! How much there is, for metrics: looked up when it is asked for, from what is known in memory or costs the same however much
//! there is.
//!
//! A backend may hang with its storage. So at most one look at it runs at a time, and who asks waits for it only so long; what
//! is not seen in time is absent.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::backend::leadership::Leadership;
use crate::backend::registry::Registry;
use crate::backend::{Backend, PoolUsage, Usage};
use crate::metrics::{BackendSeen, PoolSeen, ProcessSeen, Seen};
use crate::os::{loopdev, own};

use super::Node;

/// Backends answer in less than a millisecond, if at all.
const PATIENCE: Duration = Duration::from_millis(500);

/// Looks at all backends and at the node.
pub struct Gauges {
    backends: Vec<Arc<Looked>>,
    leadership: Leadership,
    node: Option<Arc<Node>>,
}

/// A backend, and the look at it that runs now; those who ask meanwhile wait for this one.
struct Looked {
    backend: Arc<dyn Backend>,
    running: Mutex<Option<Answer>>,
}

type Answer = watch::Receiver<Option<Usage>>;

impl Gauges {
    pub fn new(registry: &Registry, node: Option<Arc<Node>>) -> Gauges {
        let looked = |backend: &Arc<dyn Backend>| Arc::new(Looked { backend: backend.clone(), running: Mutex::new(None) });
        Gauges { backends: registry.iter().map(looked).collect(), leadership: registry.leadership().clone(), node }
    }

    /// What there is now.
    pub async fn seen(&self) -> Seen {
        let deadline = Instant::now() + PATIENCE;
        // All are asked before the first is waited for.
        let asked: Vec<(&Arc<Looked>, Answer)> = self.backends.iter().map(|looked| (looked, looked.join())).collect();
        let mut backends = Vec::with_capacity(asked.len());
        for (looked, mut answer) in asked {
            let usage = match tokio::time::timeout_at(deadline, answer.wait_for(Option::is_some)).await {
                Ok(Ok(usage)) => usage.clone(),
                // In time there was none, or the look panicked.
                Err(_) | Ok(Err(_)) => None,
            };
            backends.push(seen(looked.backend.name().as_str(), usage));
        }
        let counts = self.node.as_ref().map(|node| node.counts());
        Seen {
            backends,
            stages: counts.map(|counts| counts.stages),
            publishes: counts.map(|counts| counts.publishes),
            loop_devices: self.node.as_ref().and_then(|_| loopdev::in_use().ok()),
            registered: None,
            standby: self.leadership.is_contended().then(|| self.leadership.standby().is_some()),
            process: ProcessSeen { cpu: own::cpu(), resident: own::resident().ok(), open_files: own::open_files().ok() },
        }
    }
}

impl Looked {
    /// The look that runs, or a new one.
    fn join(self: &Arc<Self>) -> Answer {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(answer) = &*running {
            return answer.clone();
        }
        let (tell, answer) = watch::channel(None);
        *running = Some(answer.clone());
        let looked = self.clone();
        // Not one of the counted tasks: what hangs here holds nothing, so nobody need wait for it at the end.
        tokio::task::spawn_blocking(move || {
            let cleared = Cleared(&looked);
            let usage = looked.backend.usage();
            drop(cleared);
            tell.send_replace(Some(usage));
        });
        answer
    }
}

/// Lets the next look start, also after a panic.
struct Cleared<'a>(&'a Looked);

impl Drop for Cleared<'_> {
    fn drop(&mut self) {
        *self.0.running.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

fn seen(name: &str, usage: Option<Usage>) -> BackendSeen {
    let Some(usage) = usage else { return BackendSeen { name: name.to_owned(), ..BackendSeen::default() } };
    let pool = |(name, usage): &(String, Option<PoolUsage>)| {
        let usage = (*usage)?;
        Some(PoolSeen {
            name: name.clone(),
            total: Some(usage.total.0),
            used: usage.used.map(|bytes| bytes.0),
            metadata_used: usage.metadata.map(|part| f64::from(part) / 10_000.0),
            provisionable: Some(usage.provisionable.0),
            provisioned: usage.provisioned.map(|provisioned| provisioned.provisioned.0),
            volumes: usage.provisioned.map(|provisioned| provisioned.volumes),
            snapshots: usage.provisioned.map(|provisioned| provisioned.snapshots),
        })
    };
    BackendSeen {
        name: name.to_owned(),
        up: usage.pools.iter().all(|(_, usage)| usage.is_some()),
        attachments: usage.attachments,
        pools: usage.pools.iter().filter_map(pool).collect(),
    }
}

//! Which instance this node is, and where: also while the instance metadata service does not answer.
//!
//! What the service said is kept in the state directory. It is believed later only where something local proves that this is the same
//! machine: the hypervisor's own word (the asset tag of a Nitro instance is its id), or the kernel's id of this boot. The root disk of
//! an instance may be copied into an image, and the state directory with it. The zone of an instance never changes; its type may with
//! each start.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::os::single::Single;
use crate::os::{durable, lock};
use crate::volume::{BackendName, NodeId, Result};

use super::metadata::{DEADLINE, Instance, Metadata, is_instance};

const RECORD: &str = "ec2-instance.json";
const LONGEST_RECORD: u64 = 4096;
/// More than the service has, since a look-up of its name is not interrupted.
const PATIENCE: Duration = Duration::from_secs(DEADLINE.as_secs() + 1);
const REMEDY: &str = "say which instance this is (--node-id i-0123456789abcdef0) and where (zone, in the backend's configuration), or \
                      make the instance metadata service reachable; it is asked again with each call";

/// What is kept in the state directory.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    instance: Instance,
    /// The kernel's id of the boot in which the service said so.
    boot: String,
}

/// Where the kernel shows which machine this is.
#[derive(Clone, Debug)]
struct Evidence {
    dmi: PathBuf,
    boot: PathBuf,
}

/// What the hypervisor says of this machine: the id of the instance, and its type where it says that.
#[derive(Debug)]
struct Tagged {
    id: NodeId,
    kind: String,
}

impl Evidence {
    fn tagged(&self) -> Option<Tagged> {
        let read = |name: &str| Some(fs::read_to_string(self.dmi.join(name)).ok()?.trim().to_owned());
        let id = read("board_asset_tag").filter(|id| is_instance(id))?.parse().ok()?;
        // `m5.large`; before Nitro it is the hypervisor's name.
        Some(Tagged { id, kind: read("product_name").filter(|kind| kind.contains('.')).unwrap_or_default() })
    }

    fn boot(&self) -> Option<String> {
        let boot = fs::read_to_string(&self.boot).ok()?;
        Some(boot.trim().to_owned()).filter(|boot| !boot.is_empty())
    }
}

/// This instance, as far as it is known. The backends of one driver share it.
#[derive(Debug)]
pub struct Identity {
    metadata: Metadata,
    /// By the operator.
    said: Option<NodeId>,
    state: PathBuf,
    evidence: Evidence,
    /// Once the service has said it in this process.
    verified: Mutex<Option<Instance>>,
    asking: Single<Result<Instance, String>>,
}

impl Identity {
    /// `said` counts if it is an instance's id. Asks nothing yet.
    pub fn new(backend: &BackendName, said: &NodeId, state: &Path) -> Identity {
        let evidence =
            Evidence { dmi: PathBuf::from("/sys/class/dmi/id"), boot: PathBuf::from("/proc/sys/kernel/random/boot_id") };
        Identity::with(Metadata::new(backend), said, state, evidence)
    }

    fn with(metadata: Metadata, said: &NodeId, state: &Path, evidence: Evidence) -> Identity {
        Identity {
            metadata,
            said: Some(said).filter(|said| is_instance(said.as_str())).cloned(),
            state: state.to_owned(),
            evidence,
            verified: Mutex::default(),
            asking: Single::new("ask metadata"),
        }
    }

    pub(super) fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// The instance's id, which is the node's.
    ///
    /// # Errors
    /// `BackendUnavailable` while it is not known.
    pub fn node_id(&self) -> Result<NodeId> {
        if let Some(said) = &self.said {
            return Ok(said.clone());
        }
        self.instance().map(|instance| instance.id).or_else(|error| match self.evidence.tagged() {
            Some(tagged) => Ok(tagged.id),
            None => Err(error),
        })
    }

    /// The instance. The service is asked until it has answered once in this process.
    ///
    /// # Errors
    /// `BackendUnavailable` while neither the service nor a believable record says it.
    pub fn instance(&self) -> Result<Instance> {
        if let Some(instance) = &*lock(&self.verified) {
            return Ok(instance.clone());
        }
        let metadata = self.metadata.clone();
        let asked = self.asking.run(PATIENCE, move || metadata.instance());
        let asked = asked.unwrap_or_else(|none| Err(none.reason("asking the instance metadata service")));
        match asked {
            Ok(instance) => self.verify(instance),
            Err(reason) => self.recorded(&reason),
        }
    }

    /// Takes over what the service said.
    fn verify(&self, instance: Instance) -> Result<Instance> {
        if let Some(other) = self.said.as_ref().filter(|said| **said != instance.id) {
            let reason = format!(
                "--node-id says that this is {other}, and the instance metadata service that it is {}; say the right one, or none",
                instance.id
            );
            return Err(self.metadata.down(&reason));
        }
        let mut verified = lock(&self.verified);
        let record = Record { instance: instance.clone(), boot: self.evidence.boot().unwrap_or_default() };
        if self.read().as_ref() != Some(&record) {
            self.write(&record);
        }
        *verified = Some(instance.clone());
        Ok(instance)
    }

    /// The instance that an earlier process recorded, where that was on this very machine.
    fn recorded(&self, reason: &str) -> Result<Instance> {
        let unknown = |why: &str| self.metadata.down(&format!("{reason}, and {why}; {REMEDY}"));
        let path = self.state.join(RECORD);
        let Some(Record { instance, boot }) = self.read() else {
            return Err(unknown(&format!("{} has no earlier answer of it", path.display())));
        };
        let same_boot = self.evidence.boot().is_some_and(|now| now == boot);
        let tagged = self.evidence.tagged();
        let proven = match &tagged {
            Some(tagged) => tagged.id == instance.id,
            None => same_boot,
        };
        if !proven || self.said.as_ref().is_some_and(|said| *said != instance.id) {
            let why = format!(
                "the earlier answer in {} is of instance {}, which this is not proven to be (another boot, or a copied disk)",
                path.display(),
                instance.id
            );
            return Err(unknown(&why));
        }
        let kind = if same_boot { instance.kind } else { tagged.map(|tagged| tagged.kind).unwrap_or_default() };
        Ok(Instance { kind, ..instance })
    }

    fn read(&self) -> Option<Record> {
        let path = self.state.join(RECORD);
        let bytes = durable::read(&path, LONGEST_RECORD).map_err(|error| error.to_string()).transpose()?;
        let record = bytes.and_then(|bytes| serde_json::from_slice(&bytes).map_err(|error| error.to_string()));
        record.map_err(|error| tracing::warn!(path = %path.display(), error, "which instance this is cannot be read")).ok()
    }

    /// Without it only a later start without the service fails.
    fn write(&self, record: &Record) {
        let text = serde_json::to_vec(record).map_err(|error| error.to_string());
        let written = text.and_then(|text| durable::write(&self.state, RECORD, &text).map_err(|error| error.to_string()));
        if let Err(error) = written {
            tracing::warn!(path = %self.state.join(RECORD).display(), error, "which instance this is cannot be recorded");
        }
    }
}

/// This instance with what the operator says of it in a backend's configuration.
#[derive(Clone, Debug)]
pub struct Place {
    pub identity: Arc<Identity>,
    pub zone: Option<String>,
    pub kind: Option<String>,
}

impl Place {
    /// # Errors
    /// As [`Identity::instance`].
    pub fn zone(&self) -> Result<String> {
        match &self.zone {
            Some(zone) => Ok(zone.clone()),
            None => self.identity.instance().map(|instance| instance.zone),
        }
    }

    /// The ARN of the Outpost that it is on. Where the operator says the zone, it is on none.
    ///
    /// # Errors
    /// As [`Identity::instance`].
    pub fn outpost(&self) -> Result<Option<String>> {
        match &self.zone {
            Some(_) => Ok(None),
            None => self.identity.instance().map(|instance| instance.outpost),
        }
    }

    /// The type; empty where it is not known.
    pub fn kind(&self) -> String {
        let asked = || self.identity.instance().map(|instance| instance.kind);
        self.kind.clone().map_or_else(asked, Ok).unwrap_or_else(|error| {
            tracing::warn!(%error, "the type of this instance is not known; its limit of volumes is what most instances have");
            String::new()
        })
    }
}

#[cfg(test)]
#[path = "identity_tests.rs"]
mod tests;

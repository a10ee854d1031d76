//! Which machine of its cloud this node is, and where: also while the cloud's metadata service does not answer.
//!
//! What the service said is kept in the state directory. It is believed later only where the kernel's id of the boot, or what the hypervisor
//! gives each machine for an identity, proves that this is the same machine: a boot disk may be copied into an image.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::backend::configuration::NodeIdentity;
use crate::os::single::Single;
use crate::os::{durable, lock};
use crate::volume::{BackendName, Error, NodeId, Result};

const LONGEST_RECORD: u64 = 4096;
/// For all that the service is asked.
const PATIENCE: Duration = Duration::from_secs(6);

/// A cloud's metadata service, as far as it says which machine this is.
pub trait DescribesMachine: fmt::Debug + Send + Sync + 'static {
    /// The file in the state directory: `gce-instance.json`.
    const RECORD: &'static str;
    /// What to do while nothing says which machine this is.
    const REMEDY: &'static str;
    /// Where the kernel shows what the hypervisor gives each machine for an identity.
    const SERIAL: &'static str;

    /// Whether this is the id of a machine of the cloud.
    fn is_id(id: &str) -> bool;

    /// Whether the hypervisor gives this to one machine only.
    fn is_own_serial(serial: &str) -> bool;

    /// Asks all of it, one after the other; blocks.
    ///
    /// # Errors
    /// Why it is not known, for people.
    fn ask(&self) -> Result<Described, String>;
}

/// A machine, as the metadata service describes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Described {
    pub id: NodeId,
    pub zone: String,
    /// Such as `n2-standard-4`; empty where it is not known.
    #[serde(default)]
    pub machine_type: String,
}

/// What is kept in the state directory.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    instance: Described,
    /// By the kernel and the hypervisor, when the server said so.
    boot: String,
    serial: String,
}

/// This instance, as far as it is known. The backends of one driver share it.
#[derive(Debug)]
pub struct Identity<M> {
    backend: BackendName,
    metadata: Arc<M>,
    /// By the operator.
    configured: Option<NodeId>,
    state: PathBuf,
    /// Where the kernel shows the id of the boot and the hypervisor's serial number.
    evidence: [PathBuf; 2],
    /// Once the server has said it in this process.
    verified: Mutex<Option<Described>>,
    asking: Single<Result<Described, String>>,
}

impl<M: DescribesMachine> Identity<M> {
    /// `configured` counts if it is the id of a machine. Asks nothing yet.
    pub fn new(backend: &BackendName, metadata: M, configured: &NodeId, state: &Path) -> Identity<M> {
        let evidence = ["/proc/sys/kernel/random/boot_id", M::SERIAL].map(PathBuf::from);
        Identity::with(backend, metadata, configured, state, evidence)
    }

    /// With other files than the kernel's for the id of the boot and the hypervisor's identity.
    pub fn with(backend: &BackendName, metadata: M, configured: &NodeId, state: &Path, evidence: [PathBuf; 2]) -> Identity<M> {
        Identity {
            backend: backend.clone(),
            metadata: Arc::new(metadata),
            configured: Some(configured).filter(|id| M::is_id(id.as_str())).cloned(),
            state: state.to_owned(),
            evidence,
            verified: Mutex::default(),
            asking: Single::new("ask metadata"),
        }
    }

    /// The instance's id, which is the node's.
    ///
    /// # Errors
    /// `BackendUnavailable` while it is not known.
    pub fn node_id(&self) -> Result<NodeId> {
        match &self.configured {
            Some(configured) => Ok(configured.clone()),
            None => self.instance().map(|instance| instance.id),
        }
    }

    /// The instance. The server is asked until it has answered once in this process.
    ///
    /// # Errors
    /// `BackendUnavailable` while neither the server nor a believable record says it.
    pub fn instance(&self) -> Result<Described> {
        if let Some(instance) = &*lock(&self.verified) {
            return Ok(instance.clone());
        }
        let metadata = Arc::clone(&self.metadata);
        let asked = self.asking.run(PATIENCE, move || metadata.ask());
        match asked.unwrap_or_else(|none| Err(none.reason("asking the metadata service"))) {
            Ok(instance) => self.verify(instance),
            Err(reason) => self.recorded(&reason),
        }
    }

    /// Takes over what the server said.
    fn verify(&self, instance: Described) -> Result<Described> {
        if let Some(other) = self.configured.as_ref().filter(|configured| **configured != instance.id) {
            let reason = format!(
                "--node-id says that this is {other}, and the metadata service that it is {}; say the right one, or none",
                instance.id
            );
            return Err(self.unknown(&reason));
        }
        let [boot, serial] = self.seen();
        let record = Record { instance: instance.clone(), boot, serial };
        if self.read().as_ref() != Some(&record) {
            self.write(&record);
        }
        *lock(&self.verified) = Some(instance.clone());
        Ok(instance)
    }

    /// The instance that an earlier process recorded, where that was on this very machine.
    fn recorded(&self, reason: &str) -> Result<Described> {
        let path = self.state.join(M::RECORD);
        let Some(record) = self.read() else {
            return Err(self.unknown(&format!("{reason}, and {} has no earlier answer of it; {}", path.display(), M::REMEDY)));
        };
        let [boot, serial] = self.seen();
        let is_same_boot = !boot.is_empty() && boot == record.boot;
        let is_same_machine = is_same_boot || (M::is_own_serial(&serial) && serial == record.serial);
        if !is_same_machine || self.configured.as_ref().is_some_and(|configured| *configured != record.instance.id) {
            return Err(self.unknown(&format!(
                "{reason}, and the earlier answer in {} is of {}, which this is not proven to be; {}",
                path.display(),
                record.instance.id,
                M::REMEDY
            )));
        }
        // Each start may be with another machine type.
        let machine_type = if is_same_boot { record.instance.machine_type } else { String::new() };
        Ok(Described { machine_type, ..record.instance })
    }

    fn seen(&self) -> [String; 2] {
        self.evidence.each_ref().map(|path| fs::read_to_string(path).unwrap_or_default().trim().to_owned())
    }

    fn unknown(&self, reason: &str) -> Error {
        Error::BackendUnavailable { backend: self.backend.to_string(), reason: reason.to_owned() }
    }

    fn read(&self) -> Option<Record> {
        let path = self.state.join(M::RECORD);
        let bytes = durable::read(&path, LONGEST_RECORD).map_err(|error| error.to_string()).transpose()?;
        let record = bytes.and_then(|bytes| serde_json::from_slice(&bytes).map_err(|error| error.to_string()));
        record.map_err(|error| tracing::warn!(path = %path.display(), error, "which instance this is cannot be read")).ok()
    }

    /// Without it only a later start without the server fails.
    fn write(&self, record: &Record) {
        let text = serde_json::to_vec(record).map_err(|error| error.to_string());
        let written = text.and_then(|text| durable::write(&self.state, M::RECORD, &text).map_err(|error| error.to_string()));
        if let Err(error) = written {
            tracing::warn!(path = %self.state.join(M::RECORD).display(), error, "which instance this is cannot be recorded");
        }
    }
}

impl<M: DescribesMachine> NodeIdentity for Identity<M> {
    fn node_id(&self) -> Result<NodeId> {
        Identity::node_id(self)
    }
}

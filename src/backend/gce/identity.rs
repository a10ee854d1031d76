//! Which instance of Compute Engine this node is, and where.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::backend::cloud::http::Lost;
use crate::backend::cloud::identity::{self, Described, DescribesMachine};
use crate::volume::{BackendName, NodeId, Result};

use super::metadata::{MACHINE_TYPE, Metadata, NAME, PROJECT, ZONE};
use super::names::{InstanceName, last};

/// For one answer.
const ANSWER: Duration = Duration::from_secs(2);

/// This instance, as far as it is known.
pub type Identity = identity::Identity<Metadata>;

/// `configured` counts if it is an instance's id. Asks nothing yet.
pub fn of_this_machine(backend: &BackendName, configured: &NodeId, state: &Path) -> Identity {
    Identity::new(backend, Metadata::new(ANSWER), configured, state)
}

impl DescribesMachine for Metadata {
    const RECORD: &'static str = "gce-instance.json";
    const REMEDY: &'static str = "say which instance this is (--node-id projects/P/zones/Z/instances/N) and where (zone, in the backend's \
                                  configuration), or make the metadata server reachable; it is asked again with each call";
    const SERIAL: &'static str = "/sys/class/dmi/id/product_serial";

    fn is_id(id: &str) -> bool {
        InstanceName::parse(id).is_some()
    }

    fn is_own_serial(serial: &str) -> bool {
        serial.starts_with("GoogleCloud-")
    }

    fn ask(&self) -> Result<Described, String> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|error| error.to_string())?;
        let get = |what: &'static str| {
            let answer = runtime.block_on(self.get(what)).map_err(|lost| match lost {
                Lost::NoCredentials(reason) | Lost::Credentials(reason) | Lost::Unsent(_, reason) | Lost::Sent(_, reason) => {
                    reason
                }
            })?;
            answer.filter(|text| !text.is_empty()).ok_or_else(|| format!("the metadata server does not know {what}"))
        };
        let name = InstanceName { project: get(PROJECT)?, zone: last(&get(ZONE)?).to_owned(), name: get(NAME)? };
        let id = name.node().filter(|id| InstanceName::parse(id.as_str()).is_some());
        let id = id.ok_or_else(|| "the metadata server returned no name of an instance".to_owned())?;
        let machine_type = last(&get(MACHINE_TYPE).unwrap_or_default()).to_owned();
        Ok(Described { id, zone: name.zone, machine_type })
    }
}

/// This instance with what the operator says of it in a backend's configuration.
#[derive(Clone, Debug)]
pub struct Site {
    pub identity: Arc<Identity>,
    pub zone: Option<String>,
    pub machine_type: Option<String>,
}

impl Site {
    /// # Errors
    /// As [`Identity::instance`].
    pub fn zone(&self) -> Result<String> {
        match &self.zone {
            Some(zone) => Ok(zone.clone()),
            None => self.identity.instance().map(|instance| instance.zone),
        }
    }

    /// Empty where it is not known.
    pub fn machine_type(&self) -> String {
        let asked = || self.identity.instance().map(|instance| instance.machine_type);
        self.machine_type.clone().map_or_else(asked, Ok).unwrap_or_else(|error| {
            tracing::warn!(%error, "the machine type of this instance is not known; its limit of volumes is the least");
            String::new()
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::metadata::tests::server;
    use super::*;

    fn google(request: &str, _: bool) -> (u16, String) {
        let path = request.split(' ').nth(1).unwrap_or_default();
        let answers = [
            (PROJECT, "p-1"),
            (NAME, "node-1"),
            (ZONE, "projects/1/zones/europe-west3-a"),
            (MACHINE_TYPE, "projects/1/machineTypes/n2-standard-4"),
        ];
        let found = answers.iter().find(|(what, _)| path.ends_with(what));
        found.map_or((404, String::new()), |(_, text)| (200, (*text).to_owned()))
    }

    #[test]
    fn earlier_answer_is_believed_on_the_same_machine_only() {
        const NODE: &str = "projects/p-1/zones/europe-west3-a/instances/node-1";
        let scratch = tempfile::tempdir().expect("a directory");
        let evidence = ["boot", "serial"].map(|file| scratch.path().join(file));
        let show = |boot: &str, serial: &str| {
            fs::write(&evidence[0], boot).expect("a file");
            fs::write(&evidence[1], serial).expect("a file");
        };
        let identity = |host: &str, node: &str| {
            let (backend, node) = ("pd".parse().expect("a name"), node.parse().expect("a node"));
            Identity::with(&backend, Metadata::at(host, ANSWER), &node, scratch.path(), evidence.clone())
        };
        let (up, down) = (server(google), "127.0.0.1:1");
        show("boot-1", "GoogleCloud-1");
        assert!(identity(down, "worker").instance().expect_err("nothing is known").to_string().contains("no earlier answer"));
        let described = identity(&up, "worker").instance().expect("an instance");
        assert_eq!((described.id.as_str(), described.machine_type.as_str()), (NODE, "n2-standard-4"));
        assert_eq!(identity(down, "worker").instance().expect("recorded"), described);
        show("boot-2", "GoogleCloud-1");
        assert_eq!(identity(down, "worker").instance().expect("recorded").machine_type, "", "another start");
        show("boot-2", "GoogleCloud-2");
        assert!(identity(down, "worker").instance().expect_err("a copied disk").to_string().contains("not proven"));
        // The operator's word.
        assert_eq!(identity(down, NODE).node_id().expect("configured").as_str(), NODE);
        let other = "projects/p-1/zones/europe-west3-a/instances/node-2";
        assert!(identity(&up, other).instance().expect_err("another").to_string().contains("say the right one"));
    }
}

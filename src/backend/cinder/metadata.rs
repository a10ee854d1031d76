//! Which server of Nova this node is, and where: from the config drive, or the metadata service (Nova user guide, "Metadata").

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;

use crate::backend::cloud::http::{Lost, Sender, json_request};
use crate::backend::cloud::identity::{self, Described, DescribesMachine};
use crate::volume::Result;

/// The metadata service.
const ENDPOINT: &str = "http://169.254.169.254";
/// Of both.
const DOCUMENT: &str = "openstack/latest/meta_data.json";
/// For one answer.
const ANSWER: Duration = Duration::from_secs(3);

/// This server, as far as it is known.
pub type Identity = identity::Identity<Metadata>;

/// Who says which server this is.
#[derive(Debug)]
pub struct Metadata {
    drive: Option<PathBuf>,
    endpoint: String,
    sender: Sender,
}

/// What the document has of it.
#[derive(Deserialize)]
struct Document {
    uuid: String,
    availability_zone: String,
}

impl Metadata {
    /// The drive's mount point, else the service.
    pub fn new(drive: Option<PathBuf>, endpoint: Option<&str>) -> Metadata {
        let endpoint = endpoint.unwrap_or(ENDPOINT).trim_end_matches('/').to_owned();
        Metadata { drive, endpoint, sender: Sender::direct(ANSWER) }
    }

    fn text(&self) -> Result<String, String> {
        if let Some(drive) = &self.drive {
            let path = drive.join(DOCUMENT);
            return std::fs::read_to_string(&path).map_err(|error| format!("read {}: {error}", path.display()));
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|error| error.to_string())?;
        let url = format!("{}/{DOCUMENT}", self.endpoint);
        let reply = runtime.block_on(async { self.sender.send(&self.endpoint, json_request("GET", &url, &[], "")?).await });
        match reply {
            Ok(reply) if reply.status == 200 => Ok(reply.body),
            Ok(reply) => Err(format!("the metadata service at {} answers with status {}", self.endpoint, reply.status)),
            Err(Lost::NoCredentials(reason) | Lost::Credentials(reason) | Lost::Unsent(_, reason) | Lost::Sent(_, reason)) => {
                Err(format!("the metadata service does not answer: {reason}"))
            }
        }
    }
}

impl DescribesMachine for Metadata {
    const RECORD: &'static str = "cinder-server.json";
    const REMEDY: &'static str = "say which server this is (--node-id with its UUID) and where (zone, in the backend's configuration), or make the \
                                  metadata service or a mounted config drive (configDrive) reachable; it is asked again with each call";
    const SERIAL: &'static str = "/sys/class/dmi/id/product_uuid";

    fn is_id(id: &str) -> bool {
        is_uuid(id)
    }

    /// libvirt shows a guest the server's UUID.
    fn is_own_serial(serial: &str) -> bool {
        is_uuid(&serial.to_ascii_lowercase())
    }

    fn ask(&self) -> Result<Described, String> {
        let text = self.text()?;
        let document: Document = serde_json::from_str(&text).map_err(|error| format!("{DOCUMENT} cannot be read: {error}"))?;
        let id = Some(document.uuid.as_str()).filter(|id| is_uuid(id)).and_then(|id| id.parse().ok());
        let id = id.ok_or_else(|| format!("{DOCUMENT} has no UUID of a server"))?;
        Ok(Described { id, zone: document.availability_zone, machine_type: String::new() })
    }
}

/// As OpenStack writes it: `0b3c0a54-0e0e-4d0b-8a4a-1f0c7a3a7a2b`.
pub fn is_uuid(text: &str) -> bool {
    let lengths = text.split('-').map(str::len);
    lengths.eq([8, 4, 4, 4, 12])
        && text.bytes().all(|byte| byte == b'-' || byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

/// This server with what the operator says of it in a backend's configuration.
#[derive(Clone, Debug)]
pub struct Site {
    pub identity: Arc<Identity>,
    pub zone: Option<String>,
}

impl Site {
    /// The zone of Nova.
    ///
    /// # Errors
    /// As [`identity::Identity::instance`].
    pub fn zone(&self) -> Result<String> {
        match &self.zone {
            Some(zone) => Ok(zone.clone()),
            None => self.identity.instance().map(|server| server.zone),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVER: &str = "0b3c0a54-0e0e-4d0b-8a4a-1f0c7a3a7a2b";

    #[test]
    fn server_is_what_the_config_drive_says() {
        let directory = tempfile::tempdir().expect("a directory");
        let drive = Metadata::new(Some(directory.path().to_owned()), None);
        assert!(drive.ask().expect_err("nothing is there").contains("read "));
        let put = |text: &str| {
            let path = directory.path().join(DOCUMENT);
            std::fs::create_dir_all(path.parent().expect("a directory")).expect("a directory");
            std::fs::write(path, text).expect("a file");
        };
        put(&format!(r#"{{"uuid": "{SERVER}", "availability_zone": "az1", "hostname": "n1"}}"#));
        let described = drive.ask().expect("a server");
        assert_eq!((described.id.as_str(), described.zone.as_str()), (SERVER, "az1"));
        for text in ["", "{}", r#"{"uuid": "../x", "availability_zone": "az1"}"#] {
            put(text);
            drive.ask().expect_err(text);
        }
        let down = Metadata::new(None, Some("http://127.0.0.1:1"));
        assert!(down.ask().expect_err("nobody").contains("does not answer"));
    }

    #[test]
    fn only_a_uuid_is_the_id_of_a_server() {
        assert!(is_uuid(SERVER));
        for text in
            ["", "node-1", "0b3c0a54-0e0e-4d0b-8a4a-1f0c7a3a7a2", "0B3C0A54-0E0E-4D0B-8A4A-1F0C7A3A7A2B", "../../volumes/1"]
        {
            assert!(!is_uuid(text), "{text}");
        }
    }
}

//! Which types of backends there are: one row for each, [`Catalog::built_in`].
//!
//! From a row come the backend's `type` in the configuration file, how its part of the file is read, validated and described by the JSON
//! schema, what `longshore doctor` checks for it, and how it is opened. Programs with backends of their own add rows ([`Catalog::with`]).

use std::any::Any;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::metrics::{CloudRequests, Metrics};
use crate::volume::{BackendName, NodeId, Result};

#[cfg(feature = "ec2")]
use super::ec2::Ec2Config;
use super::fake::FakeConfig;
use super::image::ImageConfig;
use super::iscsi::IscsiConfig;
use super::nfs::NfsConfig;
use super::{Backend, NodeCheck, StoragePath, ToolUse};

mod config;
mod read;

pub use config::BackendConfig;

impl Catalog {
    /// The backends of Longshore itself; a new one has its row here.
    pub fn built_in() -> Catalog {
        Catalog {
            rows: vec![
                Row::of::<ImageConfig>(),
                Row::of::<NfsConfig>(),
                Row::of::<IscsiConfig>(),
                #[cfg(feature = "ec2")]
                Row::of::<Ec2Config>(),
                Row::of::<FakeConfig>(),
            ],
        }
    }
}

/// The configuration of one type of backend, as the file has it, and what is to be known of such a backend before it is opened.
pub trait Configuration:
    Clone + fmt::Debug + PartialEq + Serialize + DeserializeOwned + JsonSchema + Send + Sync + 'static
{
    /// `type` in the configuration file.
    const KIND: &'static str;
    /// A line for `longshore serve --help`: where its volumes lie.
    const SUMMARY: &'static str;
    /// The programs that a node runs for this backend alone.
    const TOOLS: &'static [ToolUse] = &[];
    /// What `longshore doctor` checks of a node for this backend alone.
    const NODE_CHECKS: &'static [NodeCheck] = &[];

    /// The part of every volume id before the colon.
    fn name(&self) -> &BackendName;

    /// Checks what needs no I/O.
    ///
    /// # Errors
    /// `Invalid`, naming the field.
    fn validate(&self) -> Result<()>;

    /// Waits for no storage: what is away is tried again by the calls that need it.
    ///
    /// # Errors
    /// What waiting will not repair.
    fn open(self, context: &OpenContext<'_>) -> Result<Arc<dyn Backend>>;

    /// Fills in what the file leaves to the node on which it is read.
    fn set_node_default(&mut self, _node: &NodeId) {}

    /// Whether it keeps the id of this node with its storage, so that it must not be opened under a provisional one.
    fn keeps_node_id(&self) -> bool {
        false
    }

    /// The directories of this machine in which it keeps volumes: no two backends share one, and `longshore doctor` checks them.
    fn storage_paths(&self) -> Vec<StoragePath> {
        Vec::new()
    }

    /// Where the storage has a name of its own for the node: who knows it. Asks nothing yet.
    fn node_identity(&self, _node: &NodeId, _state_dir: &Path) -> Option<Arc<dyn NodeIdentity>> {
        None
    }
}

/// Knows by which id a storage (a cloud) calls this node. The backends of one driver share it.
pub trait NodeIdentity: Any + Send + Sync {
    /// # Errors
    /// `BackendUnavailable` while it is not known.
    fn node_id(&self) -> Result<NodeId>;
}

/// What a process opens a backend for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// To serve calls: those of a controller, those of a node, or both.
    Serve { controller: bool, node: bool },
    /// For `longshore inspect`: only looks; nothing is made, ended or locked.
    Inspect,
    /// For `longshore inspect --backend`: as `Inspect`, but the storage itself is asked for all that it has ([`Backend::compare`]).
    Compare,
}

impl Purpose {
    /// Whether volumes are made and deleted.
    pub fn provisions(self) -> bool {
        matches!(self, Purpose::Serve { controller: true, .. })
    }

    /// Whether this process may change something.
    pub fn serves(self) -> bool {
        matches!(self, Purpose::Serve { .. })
    }
}

/// With what a backend is opened.
pub struct OpenContext<'a> {
    pub purpose: Purpose,
    /// The node of this process.
    pub node_id: &'a NodeId,
    /// A directory that outlives this process. Each backend uses one of its own below it.
    pub state_dir: &'a Path,
    /// Where something is served.
    pub metrics: Option<&'a Metrics>,
    /// Of the first backend whose storage has a name of its own for this node.
    pub identity: Option<Arc<dyn NodeIdentity>>,
}

impl OpenContext<'_> {
    /// Counts the requests to a cloud.
    pub fn cloud_requests(&self, backend: &BackendName) -> CloudRequests {
        self.metrics.map(|metrics| metrics.cloud(backend.as_str())).unwrap_or_default()
    }

    /// The node's identity, if it is one of this type.
    pub fn identity<T: NodeIdentity>(&self) -> Option<Arc<T>> {
        let identity: Arc<dyn Any + Send + Sync> = self.identity.clone()?;
        identity.downcast().ok()
    }
}

/// One type of backend.
#[derive(Clone, Copy)]
pub struct Row {
    /// `type` in the configuration file.
    pub kind: &'static str,
    /// Where its volumes lie.
    pub summary: &'static str,
    pub tools: &'static [ToolUse],
    pub node_checks: &'static [NodeCheck],
    /// Of its entry in the configuration file.
    pub schema: fn(&mut SchemaGenerator) -> Schema,
    /// Reads the entry at this place of the list `backends` of a file's text.
    read: fn(&str, usize) -> Result<BackendConfig, serde_yaml_ng::Error>,
}

impl Row {
    pub fn of<C: Configuration>() -> Row {
        Row {
            kind: C::KIND,
            summary: C::SUMMARY,
            tools: C::TOOLS,
            node_checks: C::NODE_CHECKS,
            schema: |generator| {
                let mut schema = C::json_schema(generator);
                schema.ensure_object()["properties"]["type"] = true.into();
                schema
            },
            read: read::entry::<C>,
        }
    }
}

/// The types of backends that a program has.
#[derive(Clone)]
pub struct Catalog {
    rows: Vec<Row>,
}

impl Catalog {
    /// With one more.
    ///
    /// # Panics
    /// Where there is one of this type.
    #[must_use]
    pub fn with<C: Configuration>(mut self) -> Catalog {
        assert!(self.row(C::KIND).is_none(), "two backends are of type {}", C::KIND);
        self.rows.push(Row::of::<C>());
        self
    }

    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    pub fn row(&self, kind: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.kind == kind)
    }

    /// The backends of a configuration file; `None` where it names none.
    ///
    /// # Errors
    /// Those of YAML, with field and line.
    pub fn read(&self, file: &str) -> Result<Option<Vec<BackendConfig>>, serde_yaml_ng::Error> {
        let Some(rows) = read::rows(file, self)? else { return Ok(None) };
        rows.iter().enumerate().map(|(index, row)| (row.read)(file, index)).collect::<Result<_, _>>().map(Some)
    }

    /// Of one entry of the list `backends`.
    pub fn schema(&self, generator: &mut SchemaGenerator) -> Schema {
        let kinds: Vec<&str> = self.rows.iter().map(|row| row.kind).collect();
        let mut fields = |row: &Row| {
            serde_json::json!({
                "if": {"properties": {"type": {"const": row.kind}}, "required": ["type"]},
                "then": (row.schema)(generator),
            })
        };
        let types: Vec<serde_json::Value> = self.rows.iter().map(&mut fields).collect();
        schemars::json_schema!({
            "type": "object",
            "required": ["name", "type"],
            "properties": {"type": {"enum": kinds, "description": "Where the volumes lie."}},
            "allOf": types,
        })
    }
}

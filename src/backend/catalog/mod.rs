//! Which types of backends there are: one row for each, [`Catalog::built_in`].
//!
//! From a row come the backend's `type` in the configuration file, how its part of the file is read, validated and described by the JSON
//! schema, what `longshore doctor` checks for it, and how it is opened. Programs with backends of their own add rows ([`Catalog::with`]).

use schemars::{Schema, SchemaGenerator};

use crate::volume::Result;

#[cfg(feature = "azure")]
use super::azure::AzureConfig;
#[cfg(feature = "cinder")]
use super::cinder::CinderConfig;
use super::directory::DirectoryConfig;
use super::disk::DiskConfig;
#[cfg(feature = "ec2")]
use super::ec2::Ec2Config;
use super::fake::FakeConfig;
#[cfg(feature = "gce")]
use super::gce::GceConfig;
use super::image::ImageConfig;
use super::iscsi::IscsiConfig;
use super::lvm::LvmConfig;
use super::nfs::NfsConfig;
use super::{NodeCheck, ToolUse};

mod config;
mod read;

pub use super::configuration::{Configuration, NodeIdentity, OpenContext, Purpose};
pub use config::BackendConfig;

impl Catalog {
    /// The backends of Longshore itself; a new one has its row here.
    pub fn built_in() -> Catalog {
        Catalog {
            rows: vec![
                Row::of::<ImageConfig>(),
                Row::of::<DirectoryConfig>(),
                Row::of::<LvmConfig>(),
                Row::of::<DiskConfig>(),
                Row::of::<NfsConfig>(),
                Row::of::<IscsiConfig>(),
                #[cfg(feature = "ec2")]
                Row::of::<Ec2Config>(),
                #[cfg(feature = "gce")]
                Row::of::<GceConfig>(),
                #[cfg(feature = "azure")]
                Row::of::<AzureConfig>(),
                #[cfg(feature = "cinder")]
                Row::of::<CinderConfig>(),
                Row::of::<FakeConfig>(),
            ],
        }
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
    /// Paths below the backend, of the settings that a reload applies.
    pub reloadable: &'static [&'static str],
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
            reloadable: C::RELOADABLE,
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

    fn kinds(&self) -> Vec<&'static str> {
        self.rows.iter().map(|row| row.kind).collect()
    }

    /// The backends of a configuration file; `None` where it names none.
    ///
    /// # Errors
    /// Those of YAML, with field and line.
    pub fn read(&self, file: &str) -> Result<Option<Vec<BackendConfig>>, serde_yaml_ng::Error> {
        let Some(kinds) = read::kinds(file, &self.kinds())? else { return Ok(None) };
        let rows = kinds.iter().filter_map(|kind| self.row(kind));
        rows.enumerate().map(|(index, row)| (row.read)(file, index)).collect::<Result<_, _>>().map(Some)
    }

    /// Of one entry of the list `backends`.
    pub fn schema(&self, generator: &mut SchemaGenerator) -> Schema {
        let kinds = self.kinds();
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

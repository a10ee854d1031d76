//! What the operator configures.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::backend::image::{ImageConfig, PoolConfig};
use crate::volume::{BackendName, Error, NodeId, Result};

use super::allowed::AllowedPortals;

/// One backend of LUNs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct IscsiConfig {
    /// The part of every volume id before the colon.
    pub name: BackendName,
    /// Where image files lie, on the target server. Without any, only what others export can be used.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pools: Vec<PoolConfig>,
    /// Where the target server listens, as `192.0.2.1:3260`, one for each path to it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub portals: Vec<String>,
    /// The networks and addresses at which nodes may log in: `192.0.2.0/24`, `2001:db8::/64`, `192.0.2.1:3260`. What a volume names
    /// beside them is refused, what a target names or redirects to is not used. Default: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allowed_portals: Vec<String>,
    /// `true`: nodes and target server prove themselves to each other by passwords made for each attachment (CHAP). `false`: a
    /// node is let in by its name alone. Default `true`.
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    pub chap: bool,
    /// How many volumes a node may have attached. Default: as many as there are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volumes_per_node: Option<u64>,
    /// The nodes that may have volumes attached. Default: whichever asks.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub nodes: BTreeSet<NodeId>,
}

fn yes() -> bool {
    true
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
fn is_yes(value: &bool) -> bool {
    *value
}

impl IscsiConfig {
    /// Checks what needs no storage.
    ///
    /// # Errors
    /// `Invalid`, naming the field.
    pub fn validate(&self) -> Result<()> {
        if self.volumes_per_node == Some(0) {
            return Err(Error::invalid("volumesPerNode", "0 would let no node have a volume; leave it out for no limit"));
        }
        let portals = self.portals()?;
        let allowed = self.allowed()?;
        if let Some(portal) = portals.iter().find(|portal| !allowed.permits(**portal)) {
            return Err(Error::invalid(
                "portals",
                format!("{portal} is not among allowedPortals, and no node could log in there"),
            ));
        }
        if self.pools.is_empty() {
            let needless = [
                ("portals", portals.is_empty()),
                ("chap", self.chap),
                ("volumesPerNode", self.volumes_per_node.is_none()),
                ("nodes", self.nodes.is_empty()),
            ];
            return match needless.iter().find(|(_, default)| !default) {
                Some((field, _)) => Err(Error::invalid(field, "it is the target server's, which has pools; name its pools too")),
                None => Ok(()),
            };
        }
        if portals.is_empty() {
            return Err(Error::invalid(
                "portals",
                "none is given; name at least one address of the target server, as 192.0.2.1:3260",
            ));
        }
        self.images().validate()
    }

    /// Where the target server listens.
    ///
    /// # Errors
    /// `Invalid` for what nodes could not connect to.
    pub fn portals(&self) -> Result<Vec<SocketAddr>> {
        let mut portals = Vec::new();
        for text in &self.portals {
            let refuse = |reason: &str| Err(Error::invalid("portals", format!("{text:?} {reason}")));
            let Ok(portal) = text.parse::<SocketAddr>() else {
                return refuse("is no address and port, as 192.0.2.1:3260 or [2001:db8::1]:3260; a name will not do");
            };
            if portal.ip().is_unspecified() || portal.ip().is_multicast() || portal.port() == 0 {
                return refuse("is nothing that a node could connect to; name an address of the target server");
            }
            if portals.contains(&portal) {
                return refuse("is there twice");
            }
            portals.push(portal);
        }
        Ok(portals)
    }

    /// Where nodes may log in.
    ///
    /// # Errors
    /// `Invalid` for what is no network.
    pub(super) fn allowed(&self) -> Result<AllowedPortals> {
        AllowedPortals::parse(&self.allowed_portals).map_err(|reason| Error::invalid("allowedPortals", reason))
    }

    /// The part that is image files: reachable from everywhere, by the network.
    pub fn images(&self) -> ImageConfig {
        ImageConfig { name: self.name.clone(), pools: self.pools.clone(), node: None, shared: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(yaml: &str) -> String {
        let config: IscsiConfig = serde_yaml_ng::from_str(yaml).expect("fields");
        config.validate().expect_err(yaml).to_string()
    }

    #[test]
    fn impossible_value_is_refused_by_its_field() {
        let pools = "name: san\npools: [{name: a, path: /srv/a}]\n";
        for (rest, field) in [
            ("", "portals"),
            ("portals: [san.example.com:3260]", "portals"),
            ("portals: [192.0.2.1]", "portals"),
            ("portals: ['0.0.0.0:3260']", "portals"),
            ("portals: ['192.0.2.1:0']", "portals"),
            ("portals: ['192.0.2.1:3260', '192.0.2.1:3260']", "portals"),
            ("portals: ['192.0.2.1:3260']\nvolumesPerNode: 0", "volumesPerNode"),
            ("portals: ['192.0.2.1:3260']\nallowedPortals: [san.example.com]", "allowedPortals"),
            ("portals: ['192.0.2.1:3260']\nallowedPortals: [198.51.100.0/24]", "portals"),
        ] {
            let error = refused(&format!("{pools}{rest}"));
            assert!(error.starts_with(field), "{rest}: {error}");
        }
        assert!(refused("name: san\npools: [{name: a, path: a}]\nportals: ['192.0.2.1:3260']").starts_with("pools.path"));
        for (rest, field) in [("portals: ['192.0.2.1:3260']", "portals"), ("chap: false", "chap"), ("nodes: [a]", "nodes")] {
            assert!(refused(&format!("name: san\n{rest}")).starts_with(field), "{rest}");
        }
    }

    #[test]
    fn a_node_needs_only_a_name_and_a_target_server_little_more() {
        let yaml = "name: san\npools: [{name: a, path: /srv/a}]\nportals: ['192.0.2.1:3260', '[2001:db8::1]:3260']";
        for yaml in ["name: san", "name: san\nallowedPortals: [192.0.2.0/24]", yaml] {
            let config: IscsiConfig = serde_yaml_ng::from_str(yaml).expect("fields");
            config.validate().expect(yaml);
            assert!(config.chap);
        }
    }
}

//! The gRPC face: one file per CSI service. Each handler decodes, runs an operation, encodes.
//!
//! What lives here:
//! - `decode/`: requests become types that need no further check. All INVALID_ARGUMENTs of missing or malformed fields are born
//!   there, each naming its field;
//! - `encode`: what the operations answer becomes messages;
//! - [`status`]: the one place that chooses a code, by an exhaustive match over [`Error`];
//! - `capabilities`: what is advertised, derived from what the backends offer;
//! - `observe`: a span and one line per call; `redact`: how messages may be printed;
//! - [`readiness`]: what Probe answers.
//!
//! Invariants: nothing here does I/O or decides policy, and nothing above or below knows tonic's `Status`. Every
//! operation runs in a task that outlives its caller ([`crate::ops::task`]).

use crate::csi;

mod capabilities;
mod controller;
mod decode;
mod encode;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod group_controller;
mod identity;
mod method;
mod node;
mod observe;
pub mod readiness;
mod redact;
mod services;
mod snapshot_metadata;
pub mod status;
mod text;

pub use method::Rpc;
pub use services::{Parts, Services};

use text::cut;

impl Services {
    pub fn identity(&self) -> csi::identity_server::IdentityServer<identity::Identity> {
        csi::identity_server::IdentityServer::new(identity::Identity { services: self.clone() })
    }

    pub fn controller(&self) -> Option<csi::controller_server::ControllerServer<controller::ControllerService>> {
        let controller = self.inner.parts.controller.clone()?;
        let service = controller::ControllerService { services: self.clone(), controller };
        Some(csi::controller_server::ControllerServer::new(service))
    }

    pub fn group_controller(
        &self,
    ) -> Option<csi::group_controller_server::GroupControllerServer<group_controller::GroupControllerService>> {
        let controller = self.inner.parts.controller.clone()?;
        let service = group_controller::GroupControllerService { services: self.clone(), controller };
        Some(csi::group_controller_server::GroupControllerServer::new(service))
    }

    pub fn snapshot_metadata(
        &self,
    ) -> Option<csi::snapshot_metadata_server::SnapshotMetadataServer<snapshot_metadata::SnapshotMetadataService>> {
        let controller = self.inner.parts.controller.clone()?;
        let service = snapshot_metadata::SnapshotMetadataService { services: self.clone(), controller };
        Some(csi::snapshot_metadata_server::SnapshotMetadataServer::new(service))
    }

    pub fn node(&self) -> Option<csi::node_server::NodeServer<node::NodeService>> {
        let node = self.inner.parts.node.clone()?;
        Some(csi::node_server::NodeServer::new(node::NodeService { services: self.clone(), node }))
    }
}

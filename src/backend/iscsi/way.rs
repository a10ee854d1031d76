//! How a node gets to a volume: from what the storage side answered, or from the attributes of a static volume.

use crate::backend::ConnectRequest;
use crate::os::iscsi::admin::{Credentials, Interface};
use crate::os::iscsi::{Portal, check_name};
use crate::volume::digest::sha256_of;
use crate::volume::{Error, Result};

use super::attachment::{Attachment, Chap};
use super::parameters::{IscsiParameters, check_secret};
use super::{IscsiBackend, initiator_name};

/// How the names of our sessions' interfaces begin: by them a session is known to be ours.
const PREFIX: &str = "longshore-";

/// All that a login needs.
#[derive(Debug)]
pub struct LoginParameters {
    pub target: String,
    pub lun: u16,
    pub portals: Vec<Portal>,
    /// Whether the target is asked for further portals.
    pub discovery: Discovery,
    pub interface: Interface,
    pub credentials: Option<Credentials>,
    /// As the storage side answered; `None` where it did not.
    pub wwid: Option<String>,
    /// [`Attachment::attachment`]
    pub attachment: Option<String>,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Discovery {
    /// All portals are known.
    No,
    /// There may be more; if the target does not tell, the one that is known serves.
    ForMore,
    /// It must answer, by CHAP.
    Authenticated(Credentials),
}

impl Discovery {
    pub fn credentials(&self) -> Option<&Credentials> {
        match self {
            Discovery::Authenticated(credentials) => Some(credentials),
            Discovery::No | Discovery::ForMore => None,
        }
    }
}

impl IscsiBackend {
    /// # Errors
    /// `Invalid`, naming what is missing; `WrongNode` for what was meant for another node.
    pub(super) fn way(&self, request: &ConnectRequest<'_>) -> Result<LoginParameters> {
        match Attachment::from_context(request.publish_context)? {
            Some(attachment) => self.way_of_attachment(request, attachment),
            None => self.way_by_hand(request),
        }
    }

    fn way_of_attachment(&self, request: &ConnectRequest<'_>, reported: Attachment) -> Result<LoginParameters> {
        let invalid = |reason: String| Error::invalid("publish_context", reason);
        if reported.initiator != initiator_name(&self.node) {
            let reason = format!("it was attached to {}, and this is {}", reported.initiator, initiator_name(&self.node));
            return Err(Error::WrongNode { object: format!("volume {}", request.id), reason });
        }
        check_name(&reported.target).map_err(|reason| invalid(format!("target: {reason}")))?;
        let portals = reported.portals.iter().map(|portal| portal.parse()).collect::<Result<Vec<Portal>, String>>();
        let portals = portals.map_err(|reason| invalid(format!("portals: {reason}")))?;
        if portals.is_empty() {
            return Err(invalid("portals is empty".to_owned()));
        }
        let credentials = reported.chap.map(|Chap { user, password, mutual }| Credentials { user, password, mutual });
        for value in credentials.iter().flat_map(Credentials::values) {
            check_secret(value).map_err(|reason| invalid(format!("one of the CHAP values {reason}")))?;
        }
        Ok(LoginParameters {
            interface: self.interface(Some(&reported.initiator), None),
            target: reported.target,
            lun: reported.lun,
            portals,
            discovery: Discovery::No,
            credentials,
            wwid: Some(reported.wwid),
            attachment: reported.attachment,
        })
    }

    fn way_by_hand(&self, request: &ConnectRequest<'_>) -> Result<LoginParameters> {
        let parameters: IscsiParameters = serde_json::from_value(request.parameters.clone()).map_err(|_| {
            let reason = format!("it does not say where volume {} is; ControllerPublishVolume comes before", request.id);
            Error::invalid("publish_context", reason)
        })?;
        let discovery = match parameters.discovery_credentials(request.secrets)? {
            Some(credentials) => Discovery::Authenticated(credentials),
            None if parameters.portals.0.is_empty() => Discovery::ForMore,
            None => Discovery::No,
        };
        let credentials = parameters.session_credentials(request.secrets)?;
        let interface = self.interface(parameters.initiator_name.get(), parameters.interface());
        let mut portals = vec![parameters.target_portal];
        for portal in parameters.portals.0 {
            if !portals.contains(&portal) {
                portals.push(portal);
            }
        }
        let target = parameters.iqn.get().unwrap_or_default().to_owned();
        Ok(LoginParameters {
            target,
            lun: parameters.lun.0,
            portals,
            discovery,
            interface,
            credentials,
            wwid: None,
            attachment: None,
        })
    }

    /// An interface of our own for each initiator's name, since iscsiadm tells sessions apart by it; and of this driver's, since another
    /// on the machine has sessions of its own.
    fn interface(&self, initiator: Option<&str>, like: Option<&str>) -> Interface {
        let who = &sha256_of([initiator.unwrap_or_default(), like.unwrap_or_default()])[..8];
        Interface {
            name: format!("{}{who}", self.own_sessions()),
            initiator: initiator.map(str::to_owned),
            like: like.map(str::to_owned),
        }
    }

    /// How the names of this backend's interfaces begin.
    pub(super) fn own_sessions(&self) -> String {
        format!("{PREFIX}{}-", &sha256_of([&*self.state.to_string_lossy(), self.config.name.as_str()])[..8])
    }
}

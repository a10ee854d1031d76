//! What the target server tells a node of a volume that was attached to it (publish_context), and what both of them call the node.

use std::collections::BTreeMap;
use std::fmt;

use crate::volume::digest::sha256;
use crate::volume::{Error, NodeId, Result};

/// How the names of our initiators and targets begin (RFC 3720, 3.2.6.3.1).
pub const AUTHORITY: &str = "iqn.2026-11.dev.longshore";

/// How the part of a name begins that a text could not be itself.
const DIGESTED: &str = "h-";
/// Of such a part, in bytes: a name has at most 223 (RFC 3720, 3.2.6.1).
const LONGEST: usize = 120;

/// What a node calls itself to a target server of ours: by this name alone it is let in, so that nothing need be looked up. By
/// its own id, where that may stand in a name, else by a digest of it.
pub fn initiator_name(node: &NodeId) -> String {
    format!("{AUTHORITY}:node:{}", name_part(node.as_str()))
}

/// The end of a name: small letters, digits, dots and hyphens as they are (RFC 3722), anything else by its digest. No two texts share one.
pub(super) fn name_part(text: &str) -> String {
    let plain = text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'.' | b'-'));
    if plain && text.len() <= LONGEST && !text.starts_with(DIGESTED) {
        return text.to_owned();
    }
    format!("{DIGESTED}{}", &sha256(text.as_bytes())[..40])
}

/// A volume as its node finds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attachment {
    /// `192.0.2.1:3260`; at least one.
    pub portals: Vec<String>,
    /// The target's name.
    pub target: String,
    pub lun: u16,
    /// The unit's NAA identifier, as `/sys/block/sdX/device/wwid` shows it (`naa.6001405...`).
    pub wwid: String,
    /// As whom the node logs in.
    pub initiator: String,
    pub chap: Option<Chap>,
    /// Nobody has written anything to it since it was made, as the storage saw when it was attached.
    pub blank: bool,
    /// What tells it from an earlier attachment of the volume to this node, between which another may have written.
    pub attachment: Option<String>,
}

/// The key of [`Attachment::attachment`].
const ATTACHMENT: &str = "attachment";

/// What publish_context says of [`Attachment::attachment`].
pub(super) fn attachment_in(context: &BTreeMap<String, String>) -> Option<&str> {
    context.get(ATTACHMENT).map(String::as_str)
}

/// The key of [`Attachment::blank`].
const BLANK: &str = "blank";

/// What publish_context says of [`Attachment::blank`].
pub(super) fn is_blank(context: &BTreeMap<String, String>) -> bool {
    context.get(BLANK).is_some_and(|text| text == "true")
}

/// Credentials of a session. Mutual ones are those by which the target proves itself.
#[derive(Clone, PartialEq, Eq)]
pub struct Chap {
    pub user: String,
    pub password: String,
    pub mutual: Option<(String, String)>,
}

impl fmt::Debug for Chap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Chap").field("user", &self.user).field("mutual", &self.mutual.is_some()).finish_non_exhaustive()
    }
}

impl Attachment {
    /// As publish_context carries it.
    pub fn to_context(&self) -> BTreeMap<String, String> {
        let mut context = BTreeMap::from([
            ("portals".to_owned(), self.portals.join(",")),
            ("target".to_owned(), self.target.clone()),
            ("lun".to_owned(), self.lun.to_string()),
            ("wwid".to_owned(), self.wwid.clone()),
            ("initiator".to_owned(), self.initiator.clone()),
        ]);
        if self.blank {
            context.insert(BLANK.to_owned(), "true".to_owned());
        }
        context.extend(self.attachment.iter().map(|one| (ATTACHMENT.to_owned(), one.clone())));
        if let Some(chap) = &self.chap {
            let mut add = |key: &str, value: &str| context.insert(key.to_owned(), value.to_owned());
            add("chapUser", &chap.user);
            add("chapPassword", &chap.password);
            if let Some((user, password)) = &chap.mutual {
                add("mutualUser", user);
                add("mutualPassword", password);
            }
        }
        context
    }

    /// From publish_context; `None` where it is not one of ours, as for a static volume.
    ///
    /// # Errors
    /// `Invalid`, naming the key, never a value.
    pub fn from_context(context: &BTreeMap<String, String>) -> Result<Option<Attachment>> {
        if !context.contains_key("target") {
            return Ok(None);
        }
        let get = |key: &'static str| {
            context.get(key).cloned().ok_or_else(|| Error::invalid("publish_context", format!("{key} is missing")))
        };
        let lun = get("lun")?.parse().map_err(|_| Error::invalid("publish_context", "lun is no number"))?;
        let chap = match context.get("chapUser") {
            None => None,
            Some(user) => {
                let mutual = match context.get("mutualUser") {
                    Some(user) => Some((user.clone(), get("mutualPassword")?)),
                    None => None,
                };
                Some(Chap { user: user.clone(), password: get("chapPassword")?, mutual })
            }
        };
        let portals = get("portals")?.split(',').filter(|portal| !portal.is_empty()).map(str::to_owned).collect();
        let (target, wwid, initiator) = (get("target")?, get("wwid")?, get("initiator")?);
        Ok(Some(Attachment {
            portals,
            target,
            lun,
            wwid,
            initiator,
            chap,
            blank: is_blank(context),
            attachment: attachment_in(context).map(str::to_owned),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attachment(chap: Option<Chap>) -> Attachment {
        Attachment {
            portals: vec!["192.0.2.1:3260".to_owned(), "[2001:db8::1]:3260".to_owned()],
            target: format!("{AUTHORITY}:san:a"),
            lun: 0,
            wwid: "naa.6001405abcdef".to_owned(),
            initiator: initiator_name(&"node-1".parse().expect("an id")),
            blank: chap.is_some(),
            attachment: chap.is_some().then(|| "0123".to_owned()),
            chap,
        }
    }

    #[test]
    fn publish_context_of_the_controller_is_read_by_the_node() {
        let mutual = Some(("them".to_owned(), "secret 2".to_owned()));
        for chap in [None, Some(Chap { user: "us".to_owned(), password: "secret 1".to_owned(), mutual })] {
            let reported = attachment(chap);
            assert!(!format!("{reported:?}").contains("secret"));
            assert_eq!(Attachment::from_context(&reported.to_context()).expect("ours"), Some(reported));
        }
        assert_eq!(Attachment::from_context(&BTreeMap::new()).expect("none"), None);
    }

    #[test]
    fn two_nodes_never_have_one_name() {
        let name = |id: &str| initiator_name(&id.parse().expect("an id"));
        assert_eq!(name("node-1"), format!("{AUTHORITY}:node:node-1"));
        assert_ne!(name("Node-1"), name("node-1"));
        let digested = name("Node-1");
        let impostor = digested.rsplit(':').next().expect("a part");
        assert_ne!(name(impostor), digested);
    }
}

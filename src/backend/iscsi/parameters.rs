//! A static volume: the attributes that csi-driver-iscsi takes, and the secrets of Kubernetes' iSCSI plugin.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::os::iscsi::admin::Credentials;
use crate::os::iscsi::{Portal, check_name};
use crate::volume::parameters::text_bool;
use crate::volume::{Error, RawParameters, Result, Secrets};

/// The largest number of a unit by flat addressing (SAM-4, 4.6.8).
const LARGEST_LUN: u16 = 0x3fff;
/// Of a CHAP name or secret (RFC 3720, 11.1.4: a text value of 255 bytes).
const LONGEST_SECRET: usize = 255;
/// Of an interface's name (open-iscsi, ISCSI_MAX_IFACE_LEN).
const LONGEST_INTERFACE: usize = 64;

/// Attributes of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct IscsiParameters {
    /// Where the target listens: `192.0.2.1:3260`; the port may be left out.
    #[serde(with = "as_text")]
    pub target_portal: Portal,
    /// Further portals of the target, each another path to it: `["192.0.2.2:3260"]` or `192.0.2.2,192.0.2.3`. Without any, the target
    /// is asked for them.
    #[serde(default, with = "as_text", skip_serializing_if = "Portals::is_empty")]
    pub portals: Portals,
    /// The target's name.
    #[serde(with = "as_text")]
    pub iqn: Name,
    /// The unit's number.
    #[serde(with = "as_text")]
    pub lun: Lun,
    /// A name of an interface of the node's open-iscsi (`/etc/iscsi/ifaces`) whose settings are used. Default `default`: TCP.
    #[serde(default = "plain")]
    pub iscsi_interface: String,
    /// `true`: the portals are asked of the target, by CHAP, with `discovery.sendtargets.auth.*` of the node-stage secret.
    #[serde(default, rename = "discoveryCHAPAuth", with = "text_bool")]
    pub discovery_chap: bool,
    /// `true`: sessions are made by CHAP, with `node.session.auth.*` of the node-stage secret.
    #[serde(default, rename = "sessionCHAPAuth", with = "text_bool")]
    pub session_chap: bool,
    /// What the node calls itself. Default: the machine's own name.
    #[serde(default, with = "as_text", skip_serializing_if = "Name::is_none")]
    pub initiator_name: Name,
}

fn plain() -> String {
    "default".to_owned()
}

impl IscsiParameters {
    /// Whether such a volume is meant.
    pub fn accepts_static(attributes: &RawParameters) -> bool {
        attributes.get("targetPortal").is_some() && attributes.get("iqn").is_some()
    }

    /// # Errors
    /// `Invalid`, naming the attribute.
    pub fn parse(attributes: &RawParameters) -> Result<IscsiParameters> {
        let mut attributes = attributes.clone();
        // csi-driver-iscsi takes credentials in clear from here; then they lie in the PersistentVolume, which anyone may read.
        let secret = attributes.take("secret").is_some_and(|secret| !matches!(secret.trim(), "" | "{}" | "null"));
        if secret {
            let reason = "credentials do not belong into a volume's attributes; put them into a secret, and name that as \
                          nodeStageSecretRef";
            return Err(Error::invalid("volume_context.secret", reason));
        }
        let parameters: IscsiParameters =
            attributes.parse().map_err(|error| Error::invalid("volume_context", reason_of(&error)))?;
        parameters.check()?;
        Ok(parameters)
    }

    fn check(&self) -> Result<()> {
        if self.iqn.is_none() {
            return Err(Error::invalid("volume_context.iqn", "it is empty; give the target's name"));
        }
        let interface = &self.iscsi_interface;
        let legal = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_' | b':');
        if interface.len() > LONGEST_INTERFACE || interface.starts_with('.') || !interface.bytes().all(legal) {
            return Err(Error::invalid("volume_context.iscsiInterface", format!("{interface:?} is no interface's name")));
        }
        Ok(())
    }

    /// The operator's interface to be like; `None` for plain TCP.
    pub fn interface(&self) -> Option<&str> {
        Some(self.iscsi_interface.as_str()).filter(|name| !matches!(*name, "" | "default" | "tcp"))
    }

    /// For sessions.
    ///
    /// # Errors
    /// `Invalid`, naming the secret's key that is missing or cannot be.
    pub fn session_credentials(&self, secrets: &Secrets) -> Result<Option<Credentials>> {
        self.session_chap.then(|| credentials(secrets, &["node.session.auth"])).transpose()
    }

    /// For discovery.
    ///
    /// # Errors
    /// As `session_credentials`.
    pub fn discovery_credentials(&self, secrets: &Secrets) -> Result<Option<Credentials>> {
        // The second is what csi-driver-iscsi reads.
        let prefixes = ["discovery.sendtargets.auth", "node.sendtargets.auth"];
        self.discovery_chap.then(|| credentials(secrets, &prefixes)).transpose()
    }
}

fn reason_of(error: &Error) -> String {
    match error {
        Error::Invalid { reason, .. } => reason.clone(),
        other => other.to_string(),
    }
}

fn credentials(secrets: &Secrets, prefixes: &[&str]) -> Result<Credentials> {
    let first = prefixes.first().copied().unwrap_or_default();
    let prefix = prefixes.iter().find(|prefix| secrets.get(&format!("{prefix}.username")).is_some()).unwrap_or(&first);
    let optional = |name: &str| {
        let key = format!("{prefix}.{name}");
        match secrets.get(&key).filter(|value| !value.is_empty()) {
            Some(value) => check_secret(value)
                .map(|()| Some(value.to_owned()))
                .map_err(|reason| Error::invalid("secrets", format!("the node-stage secret's {key} {reason}"))),
            None => Ok(None),
        }
    };
    let required = |name: &str| {
        optional(name)?.ok_or_else(|| {
            Error::invalid("secrets", format!("CHAP is asked for: the node-stage secret must have {prefix}.{name}"))
        })
    };
    let mutual = match (optional("username_in")?, optional("password_in")?) {
        (None, None) => None,
        _ => Some((required("username_in")?, required("password_in")?)),
    };
    Ok(Credentials { user: required("username")?, password: required("password")?, mutual })
}

/// What open-iscsi's records can carry.
///
/// # Errors
/// Why not; never the value.
pub fn check_secret(value: &str) -> Result<(), String> {
    if value.len() > LONGEST_SECRET {
        return Err(format!("has more than {LONGEST_SECRET} bytes"));
    }
    if value.contains(|letter: char| letter.is_control()) || value.trim() != value {
        return Err("has a line break or another control character, or a space at an end".to_owned());
    }
    Ok(())
}

/// A target's or an initiator's name, or none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Name(Option<String>);

impl Name {
    pub fn is_none(&self) -> bool {
        self.0.is_none()
    }

    pub fn get(&self) -> Option<&str> {
        self.0.as_deref()
    }
}

impl FromStr for Name {
    type Err = String;

    fn from_str(text: &str) -> Result<Name, String> {
        if text.is_empty() {
            return Ok(Name(None));
        }
        check_name(text).map(|()| Name(Some(text.to_owned())))
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.as_deref().unwrap_or_default())
    }
}

/// A unit's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lun(pub u16);

impl FromStr for Lun {
    type Err = String;

    fn from_str(text: &str) -> Result<Lun, String> {
        let plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let lun = text.parse().ok().filter(|lun| plain && *lun <= LARGEST_LUN);
        lun.map(Lun).ok_or_else(|| format!("lun {text:?} is no number from 0 to {LARGEST_LUN}"))
    }
}

impl fmt::Display for Lun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Several portals.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Portals(pub Vec<Portal>);

impl Portals {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromStr for Portals {
    type Err = String;

    fn from_str(text: &str) -> Result<Portals, String> {
        // `[2001:db8::1]:3260,...` begins like a JSON array, and is none.
        let names: Vec<String> = match serde_json::from_str(text) {
            Ok(names) => names,
            Err(_) if text.contains('"') => return Err(format!("{text:?} is no JSON array of portals")),
            Err(_) => text.split(',').map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()).collect(),
        };
        names.iter().map(|name| name.parse()).collect::<Result<_, _>>().map(Portals)
    }
}

impl fmt::Display for Portals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&names.join(","))
    }
}

/// Attributes are texts, on the way to the node too.
mod as_text {
    use super::{Deserialize, Deserializer, Serializer};

    pub fn serialize<T: ToString, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&value.to_string())
    }

    pub fn deserialize<'de, T: std::str::FromStr<Err = String>, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(pairs: &[(&str, &str)]) -> RawParameters {
        let least = [("targetPortal", "192.0.2.1"), ("iqn", "iqn.2001-04.com.example:disk"), ("lun", "1")];
        let all = least.iter().filter(|(key, _)| !pairs.iter().any(|(other, _)| other == key)).chain(pairs);
        RawParameters::new(all.map(|(key, value)| ((*key).to_owned(), (*value).to_owned())))
    }

    fn secrets(pairs: &[(&str, &str)]) -> Secrets {
        Secrets::new(pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())))
    }

    #[test]
    fn attributes_of_csi_driver_iscsi_are_accepted() {
        let parameters = IscsiParameters::parse(&raw(&[
            ("portals", r#"["192.0.2.2:3261","[2001:db8::1]"]"#),
            ("iscsiInterface", "default"),
            ("discoveryCHAPAuth", "true"),
            ("sessionCHAPAuth", "false"),
            ("initiatorName", "iqn.2001-04.com.example:me"),
            ("secret", "{}"),
        ]))
        .expect("all are known");
        assert_eq!(parameters.portals.to_string(), "192.0.2.2:3261,[2001:db8::1]:3260");
        assert_eq!((parameters.discovery_chap, parameters.session_chap, parameters.interface()), (true, false, None));
        let json = serde_json::to_value(&parameters).expect("JSON");
        assert_eq!(serde_json::from_value::<IscsiParameters>(json).expect("the same"), parameters);
        let least = IscsiParameters::parse(&raw(&[])).expect("the least");
        assert_eq!(
            serde_json::from_value::<IscsiParameters>(serde_json::to_value(&least).expect("JSON")).expect("the same"),
            least
        );
    }

    #[test]
    fn portals_are_a_list_in_either_form() {
        for text in ["192.0.2.2,192.0.2.3:3260", " 192.0.2.2 , 192.0.2.3 ", r#"["192.0.2.2", "192.0.2.3"]"#] {
            let portals: Portals = text.parse().expect(text);
            assert_eq!(portals.to_string(), "192.0.2.2:3260,192.0.2.3:3260");
        }
        for text in ["", "[]", ","] {
            assert_eq!(text.parse(), Ok(Portals::default()), "{text:?}");
        }
        for text in [r#"["a""#, "a b", r#"["a",1]"#, "[::1"] {
            assert!(text.parse::<Portals>().is_err(), "{text:?}");
        }
        assert_eq!("[2001:db8::1]:3260,[2001:db8::2]".parse::<Portals>().map(|portals| portals.0.len()), Ok(2));
    }

    #[test]
    fn impossible_value_is_named() {
        for (key, value) in [
            ("targetPortal", "san:port"),
            ("iqn", "disk"),
            ("iqn", ""),
            ("lun", "x"),
            ("lun", "16384"),
            ("lun", "+1"),
            ("portals", "a b"),
            ("iscsiInterface", "../x"),
            ("sessionCHAPAuth", "yes"),
            ("initiatorName", "me"),
            ("Lun", "1"),
        ] {
            let error = IscsiParameters::parse(&raw(&[(key, value)])).expect_err(key);
            assert!(matches!(error, Error::Invalid { .. }), "{key}: {error}");
        }
        let error =
            IscsiParameters::parse(&raw(&[("secret", r#"{"node.session.auth.password":"hush"}"#)])).expect_err("in clear");
        assert!(error.to_string().contains("nodeStageSecretRef") && !error.to_string().contains("hush"), "{error}");
    }

    #[test]
    fn a_missing_secret_is_named_by_its_key() {
        let parameters =
            IscsiParameters::parse(&raw(&[("sessionCHAPAuth", "true"), ("discoveryCHAPAuth", "true")])).expect("fine");
        let all = [
            ("node.session.auth.username", "u"),
            ("node.session.auth.password", "hush"),
            ("node.session.auth.username_in", "v"),
            ("node.session.auth.password_in", "hush hush"),
        ];
        let whole = parameters.session_credentials(&secrets(&all)).expect("whole").expect("asked for");
        assert_eq!(whole.mutual, Some(("v".to_owned(), "hush hush".to_owned())));
        assert_eq!(parameters.session_credentials(&secrets(&all[..2])).expect("one way").expect("asked for").mutual, None);
        for missing in 0..all.len() {
            let rest: Vec<_> = all.iter().enumerate().filter(|(at, _)| *at != missing).map(|(_, pair)| *pair).collect();
            let error = parameters.session_credentials(&secrets(&rest)).expect_err("not whole").to_string();
            assert!(error.contains(all[missing].0) && !error.contains("hush"), "{error}");
        }
        let error =
            parameters.session_credentials(&secrets(&[all[0], ("node.session.auth.password", "a\nb")])).expect_err("two lines");
        assert!(error.to_string().contains("node.session.auth.password "), "{error}");
        let error = parameters.discovery_credentials(&secrets(&all)).expect_err("none").to_string();
        assert!(error.contains("discovery.sendtargets.auth.username"), "{error}");
        let other = [("node.sendtargets.auth.username", "u"), ("node.sendtargets.auth.password", "p")];
        assert!(parameters.discovery_credentials(&secrets(&other)).expect("csi-driver-iscsi's").is_some());
    }
}

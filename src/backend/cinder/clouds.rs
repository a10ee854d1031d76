//! clouds.yaml, the file by which all clients of OpenStack know their clouds (openstacksdk, "Configuring OpenStack SDK Applications"), and
//! secure.yaml beside it, which has the secrets where they are not in the first.
//!
//! What is not read here is left to other programs. No value of `auth` gets into an error, a log or `Debug`.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::backend::cloud::http::may_hear_secrets;

/// Where the file is, and which of its entries is meant.
#[derive(Clone, Debug)]
pub struct CloudsFile {
    pub path: PathBuf,
    pub cloud: String,
}

/// An entry.
#[derive(Clone, Default, Deserialize)]
pub struct CloudEntry {
    #[serde(default)]
    auth_type: Option<String>,
    #[serde(default)]
    auth: Auth,
    /// Without it the catalog must have one region.
    #[serde(default)]
    pub region_name: Option<String>,
    /// `public` (default), `internal` or `admin`.
    #[serde(default)]
    pub interface: Option<String>,
    /// A file with the authorities that sign the servers' certificates.
    #[serde(default)]
    pub cacert: Option<PathBuf>,
    #[serde(default)]
    verify: Option<bool>,
    /// In place of the catalog's.
    #[serde(default, alias = "volume_endpoint_override", alias = "volumev3_endpoint_override")]
    pub block_storage_endpoint_override: Option<String>,
    #[serde(default)]
    pub compute_endpoint_override: Option<String>,
}

#[derive(Clone, Default, Deserialize)]
struct Auth {
    #[serde(default)]
    auth_url: String,
    #[serde(default)]
    application_credential_id: Option<String>,
    #[serde(default)]
    application_credential_name: Option<String>,
    #[serde(default)]
    application_credential_secret: Option<String>,
    #[serde(default)]
    username: Option<String>,
    #[serde(default)]
    user_id: Option<String>,
    #[serde(default)]
    password: Option<String>,
    #[serde(default)]
    project_id: Option<String>,
    #[serde(default)]
    project_name: Option<String>,
    #[serde(default)]
    user_domain_id: Option<String>,
    #[serde(default)]
    user_domain_name: Option<String>,
    #[serde(default)]
    project_domain_id: Option<String>,
    #[serde(default)]
    project_domain_name: Option<String>,
}

impl fmt::Debug for CloudEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CloudEntry").field("region_name", &self.region_name).finish_non_exhaustive()
    }
}

impl CloudsFile {
    /// Reads the entry.
    ///
    /// # Errors
    /// Why it cannot be used, with what to do; for people.
    pub fn read(&self) -> Result<CloudEntry, String> {
        let mut value = self.entry(&self.path)?.ok_or_else(|| {
            format!(
                "{} has no entry clouds.{}; say which is meant (cloud, in the backend's configuration)",
                self.path.display(),
                self.cloud
            )
        })?;
        let secure = self.path.with_file_name("secure.yaml");
        if secure.exists()
            && let Some(more) = self.entry(&secure)?
        {
            merge(&mut value, more);
        }
        let entry: CloudEntry =
            serde_json::from_value(value).map_err(|_| self.wrong("a field has not the form that it should"))?;
        entry.check().map_err(|why| self.wrong(&why))?;
        Ok(entry)
    }

    /// What a file says of the cloud. What is wrong with a file is not repeated: it has secrets.
    fn entry(&self, path: &Path) -> Result<Option<Value>, String> {
        let text = std::fs::read_to_string(path).map_err(|error| format!("read {}: {error}", path.display()))?;
        let mut all: Value = serde_yaml_ng::from_str(&text).map_err(|error| {
            let place = error.location().map(|place| format!(" (line {})", place.line())).unwrap_or_default();
            format!("{} is no YAML{place}", path.display())
        })?;
        Ok(all.get_mut("clouds").and_then(|clouds| clouds.get_mut(&self.cloud)).map(Value::take))
    }

    fn wrong(&self, why: &str) -> String {
        format!("clouds.{} of {}: {why}", self.cloud, self.path.display())
    }
}

fn merge(value: &mut Value, more: Value) {
    match (value, more) {
        (Value::Object(value), Value::Object(more)) => {
            for (key, more) in more {
                merge(value.entry(key).or_insert(Value::Null), more);
            }
        }
        (value, more) => *value = more,
    }
}

impl CloudEntry {
    fn check(&self) -> Result<(), String> {
        let of = |what: &str, url: &str| match may_hear_secrets(url) {
            true => Ok(()),
            false => Err(format!("{what}: {url:?}: write https://…, since secrets are sent there (http:// only to 127.0.0.1)")),
        };
        of("auth.auth_url", &self.auth.auth_url)?;
        for (what, url) in [
            ("block_storage_endpoint_override", &self.block_storage_endpoint_override),
            ("compute_endpoint_override", &self.compute_endpoint_override),
        ] {
            url.as_ref().map_or(Ok(()), |url| of(what, url))?;
        }
        if self.verify == Some(false) {
            return Err("verify: false is not offered; name the authority of the certificates in cacert".to_owned());
        }
        self.credentials().map(drop)
    }

    /// Where Keystone v3 answers, without a slash at its end.
    pub fn keystone(&self) -> String {
        let url = self.auth.auth_url.trim_end_matches('/');
        if url.ends_with("/v3") { url.to_owned() } else { format!("{url}/v3") }
    }

    /// The body of the request for a token (Identity API v3, "Password authentication with scoped authorization" and "Authenticating with an
    /// Application Credential").
    ///
    /// # Errors
    /// What is missing.
    pub fn credentials(&self) -> Result<Value, String> {
        let auth = &self.auth;
        let is_application = match self.auth_type.as_deref() {
            Some("v3applicationcredential") => true,
            Some("password" | "v3password") => false,
            None => auth.application_credential_id.is_some() || auth.application_credential_name.is_some(),
            Some(other) => {
                return Err(format!("auth_type {other:?} is not offered; there are v3applicationcredential and password"));
            }
        };
        let need = |value: &Option<String>, field: &str| value.clone().ok_or_else(|| format!("auth.{field} is missing"));
        let user = || {
            named(
                "auth.username or auth.user_id",
                &auth.user_id,
                &auth.username,
                domain(&auth.user_domain_id, &auth.user_domain_name),
            )
        };
        if is_application {
            let mut credential = match &auth.application_credential_id {
                Some(id) => Map::from_iter([("id".to_owned(), json!(id))]),
                None => Map::from_iter([
                    ("name".to_owned(), json!(need(&auth.application_credential_name, "application_credential_id")?)),
                    ("user".to_owned(), user()?.into()),
                ]),
            };
            credential
                .insert("secret".to_owned(), need(&auth.application_credential_secret, "application_credential_secret")?.into());
            return Ok(
                json!({"auth": {"identity": {"methods": ["application_credential"], "application_credential": credential}}}),
            );
        }
        let mut user = user()?;
        user.insert("password".to_owned(), need(&auth.password, "password")?.into());
        let domain = domain(&auth.project_domain_id, &auth.project_domain_name);
        let project = named("auth.project_id or auth.project_name", &auth.project_id, &auth.project_name, domain)?;
        let identity = json!({"methods": ["password"], "password": {"user": user}});
        Ok(json!({"auth": {"identity": identity, "scope": {"project": project}}}))
    }
}

/// By its id, or by its name and its domain.
fn named(what: &str, id: &Option<String>, name: &Option<String>, domain: Value) -> Result<Map<String, Value>, String> {
    match (id, name) {
        (Some(id), _) => Ok(Map::from_iter([("id".to_owned(), json!(id))])),
        (None, Some(name)) => Ok(Map::from_iter([("name".to_owned(), json!(name)), ("domain".to_owned(), domain)])),
        (None, None) => Err(format!("{what} is missing")),
    }
}

/// `Default`, as in other clients, where nothing is said.
fn domain(id: &Option<String>, name: &Option<String>) -> Value {
    match (id, name) {
        (Some(id), _) => json!({"id": id}),
        (None, Some(name)) => json!({"name": name}),
        (None, None) => json!({"id": "default"}),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(files: &[(&str, &str)]) -> Result<CloudEntry, String> {
        let directory = tempfile::tempdir().expect("a directory");
        for (name, text) in files {
            std::fs::write(directory.path().join(name), text).expect("a file");
        }
        CloudsFile { path: directory.path().join("clouds.yaml"), cloud: "prod".to_owned() }.read()
    }

    fn entry(fields: &str) -> Result<CloudEntry, String> {
        read(&[("clouds.yaml", &format!("clouds: {{prod: {{{fields}}}, other: {{}}}}"))])
    }

    #[test]
    fn credentials_are_those_of_keystones_api() {
        let application = entry(
            "auth: {auth_url: 'https://k:5000/', application_credential_id: i, application_credential_secret: s}, region_name: R, profile: x",
        );
        let application = application.expect("an entry");
        assert_eq!((application.keystone().as_str(), application.region_name.as_deref()), ("https://k:5000/v3", Some("R")));
        let identity = json!({"methods": ["application_credential"], "application_credential": {"id": "i", "secret": "s"}});
        assert_eq!(application.credentials().expect("whole"), json!({"auth": {"identity": identity}}));
        let password = entry(
            "auth_type: password, auth: {auth_url: 'https://k/v3', username: u, password: s, project_name: p, user_domain_name: d}",
        );
        let password = password.expect("an entry");
        assert_eq!(password.keystone(), "https://k/v3");
        let user = json!({"name": "u", "domain": {"name": "d"}, "password": "s"});
        let expected = json!({"auth": {"identity": {"methods": ["password"], "password": {"user": user}},
            "scope": {"project": {"name": "p", "domain": {"id": "default"}}}}});
        assert_eq!(password.credentials().expect("whole"), expected);
    }

    #[test]
    fn secrets_may_be_in_a_file_of_their_own() {
        let clouds = "clouds: {prod: {auth: {auth_url: 'https://k', application_credential_id: i}}}";
        let secure = "clouds: {prod: {auth: {application_credential_secret: s}}}";
        let entry = read(&[("clouds.yaml", clouds), ("secure.yaml", secure)]).expect("an entry");
        assert_eq!(entry.credentials().expect("whole")["auth"]["identity"]["application_credential"]["secret"], "s");
        assert!(!format!("{entry:?}").contains("\"s\""));
    }

    #[test]
    fn unusable_entry_is_named_without_its_secrets() {
        const FINE: &str = "application_credential_id: i, application_credential_secret: hidden";
        for (fields, words) in [
            (format!("auth: {{auth_url: 'http://k:5000', {FINE}}}"), "write https://"),
            (format!("auth: {{auth_url: 'https://k', {FINE}}}, verify: false"), "cacert"),
            (
                format!("auth: {{auth_url: 'https://k', {FINE}}}, compute_endpoint_override: 'http://n'"),
                "compute_endpoint_override",
            ),
            (format!("auth: {{auth_url: 'https://k', {FINE}}}, auth_type: v3oidcpassword"), "not offered"),
            (
                "auth: {auth_url: 'https://k', application_credential_id: i}".to_owned(),
                "application_credential_secret is missing",
            ),
            ("auth: {auth_url: 'https://k', username: u, password: hidden}".to_owned(), "project_name is missing"),
            ("auth: {auth_url: 'https://k', password: [hidden]}".to_owned(), "has not the form"),
        ] {
            let error = entry(&fields).expect_err(words);
            assert!(error.contains(words) && !error.contains("hidden"), "{error}");
        }
        assert!(read(&[("clouds.yaml", "clouds: {other: {}}")]).expect_err("another").contains("clouds.prod"));
        let broken = read(&[("clouds.yaml", "clouds: {prod: {auth: {password: hidden")]).expect_err("no YAML");
        assert!(broken.contains("is no YAML") && !broken.contains("hidden"), "{broken}");
        assert!(read(&[]).expect_err("no file").contains("read "));
    }
}

//! Flags, environment and file become one validated [`Config`].
//!
//! Pure: what is read comes in by argument. Each source is a [`Layer`]; the first that says something wins, in the order
//! flag, environment, file, default. Every value is of a type that can't be wrong, so that what a file says wrongly is
//! reported with its line.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value, json};

use crate::backend::image::{ImageConfig, PoolConfig};
use crate::volume::{self, Bytes, NodeId, suggest};

mod backends;
mod changes;
mod value;

pub use crate::backend::catalog::{BackendConfig, Catalog};
pub use changes::{Change, RELOADABLE};
pub use value::{
    DEFAULT_DRIVER_NAME, DEFAULT_ENDPOINT, DirectoryPath, DriverName, Endpoint, Grace, HttpEndpoint, LogFormat, LogLevel,
    MetricsEndpoint, Mode, OtlpEndpoint,
};

const DEFAULT_STATE_DIR: &str = "/var/lib/longshore";
const DEFAULT_KUBELET_DIR: &str = "/var/lib/kubelet";
const DEFAULT_INLINE_MAX_SIZE: Bytes = Bytes(16 << 30);
const DEFAULT_INLINE_PARAMETERS: [&str; 2] = ["size", "fsType"];

/// A configuration that can't be used. Each names where it was said.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file isn't what it should be; the reason holds the field and the line.
    #[error("{}: {reason}", path.display())]
    File { path: PathBuf, reason: String },
    #[error("environment variable {variable}: {reason}")]
    Environment { variable: &'static str, reason: String },
    /// A default can't be used here.
    #[error("{field}: {reason}")]
    Default { field: &'static str, reason: String },
    /// What is said does not go together, or not with this program.
    #[error("{field}: {reason}")]
    Contradiction { field: &'static str, reason: &'static str },
}

/// What one source says. A file is one as it stands.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Layer {
    /// Which services the process offers. Default `all`.
    pub mode: Option<Mode>,
    /// The driver's socket. Default `unix:///run/longshore/csi.sock`.
    pub endpoint: Option<Endpoint>,
    /// The name under which the CO knows the driver. Default `longshore.csi.dev`.
    pub driver_name: Option<DriverName>,
    /// The name of this node. Default: the host name.
    #[serde(deserialize_with = "value::optional_text")]
    pub node_id: Option<NodeId>,
    /// Where the node's journal and the default pool lie; must survive a reboot. Default `/var/lib/longshore`.
    pub state_dir: Option<DirectoryPath>,
    /// Staging and target paths must lie below it. Default `/var/lib/kubelet`.
    pub kubelet_dir: Option<DirectoryPath>,
    /// How and what is logged.
    pub log: LogLayer,
    /// How long running calls may continue after SIGTERM, at most `1h`. Default `30s`.
    pub grace: Option<Grace>,
    /// How large an ephemeral inline volume may be. Default `16GiB`.
    pub inline_max_size: Option<Bytes>,
    /// What the attributes of an ephemeral inline volume may set. Default `[size, fsType]`.
    pub allow_inline_parameters: Option<Vec<String>>,
    /// Where health and metrics are served, as `127.0.0.1:9809` or `:9809`. Default: nowhere.
    pub http_endpoint: Option<HttpEndpoint>,
    /// Where metrics are served instead, or `off`.
    pub metrics_endpoint: Option<MetricsEndpoint>,
    /// A collector of traces, as `http://127.0.0.1:4317`. Default: none.
    pub otlp_endpoint: Option<OtlpEndpoint>,
    /// Whether `otlp_endpoint` may be another machine, which traces reach unencrypted. Default `false`.
    pub otlp_insecure: Option<bool>,
    /// Whether the driver registers itself with the kubelet. Default `false`.
    pub kubelet_registration: Option<bool>,
    /// The driver's socket as the kubelet sees it. Default: `endpoint`.
    pub kubelet_endpoint: Option<Endpoint>,
    /// Read by itself: what an entry may hold, its type decides ([`Catalog::read`]).
    #[serde(deserialize_with = "skipped")]
    #[schemars(skip)]
    pub backends: Option<Vec<BackendConfig>>,
}

fn skipped<'de, D: Deserializer<'de>, T>(deserializer: D) -> Result<Option<T>, D::Error> {
    IgnoredAny::deserialize(deserializer).map(|_| None)
}

/// The part of a [`Layer`] about the log.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LogLayer {
    /// Default `text`.
    pub format: Option<LogFormat>,
    /// `off`, `error`, `warn`, `info`, `debug` or `trace`, or pairs such as `info,longshore::os=debug`. Default `info`.
    pub level: Option<LogLevel>,
}

impl Endpoint {
    /// What CSI_ENDPOINT says; an empty variable says nothing.
    pub fn from_environment(variable: impl Fn(&str) -> Option<String>) -> Result<Option<Self>, ConfigError> {
        read(&variable, "CSI_ENDPOINT")
    }
}

impl Layer {
    /// LONGSHORE_MODE, CSI_ENDPOINT, KUBE_NODE_NAME, LONGSHORE_LOG; an empty variable says nothing.
    pub fn from_environment(variable: impl Fn(&str) -> Option<String>) -> Result<Self, ConfigError> {
        Ok(Layer {
            mode: read(&variable, "LONGSHORE_MODE")?,
            endpoint: read(&variable, "CSI_ENDPOINT")?,
            node_id: read(&variable, "KUBE_NODE_NAME")?,
            log: LogLayer { format: None, level: read(&variable, "LONGSHORE_LOG")? },
            ..Layer::default()
        })
    }

    /// A configuration file's text; `path` is only for messages. An empty file says nothing.
    pub fn from_yaml(path: &Path, text: &str, catalog: &Catalog) -> Result<Self, ConfigError> {
        let wrong = |error: serde_yaml_ng::Error| ConfigError::File {
            path: path.to_owned(),
            reason: suggest::with_nearest(error.to_string()),
        };
        let Some(mut layer) = serde_yaml_ng::from_str::<Option<Layer>>(text).map_err(wrong)? else {
            return Ok(Layer::default());
        };
        layer.backends = catalog.read(text).map_err(wrong)?;
        match layer.backends.as_deref().map(backends::check) {
            Some(Err(reason)) => Err(ConfigError::File { path: path.to_owned(), reason: format!("backends: {reason}") }),
            _ => Ok(layer),
        }
    }

    /// What this says, else what `below` says.
    #[must_use]
    fn over(self, below: Layer) -> Layer {
        Layer {
            mode: self.mode.or(below.mode),
            endpoint: self.endpoint.or(below.endpoint),
            driver_name: self.driver_name.or(below.driver_name),
            node_id: self.node_id.or(below.node_id),
            state_dir: self.state_dir.or(below.state_dir),
            kubelet_dir: self.kubelet_dir.or(below.kubelet_dir),
            log: LogLayer { format: self.log.format.or(below.log.format), level: self.log.level.or(below.log.level) },
            grace: self.grace.or(below.grace),
            inline_max_size: self.inline_max_size.or(below.inline_max_size),
            allow_inline_parameters: self.allow_inline_parameters.or(below.allow_inline_parameters),
            http_endpoint: self.http_endpoint.or(below.http_endpoint),
            metrics_endpoint: self.metrics_endpoint.or(below.metrics_endpoint),
            otlp_endpoint: self.otlp_endpoint.or(below.otlp_endpoint),
            otlp_insecure: self.otlp_insecure.or(below.otlp_insecure),
            kubelet_registration: self.kubelet_registration.or(below.kubelet_registration),
            kubelet_endpoint: self.kubelet_endpoint.or(below.kubelet_endpoint),
            backends: self.backends.or(below.backends),
        }
    }
}

fn default_inline_parameters() -> Vec<String> {
    DEFAULT_INLINE_PARAMETERS.map(str::to_owned).to_vec()
}

fn read<T: FromStr>(variable: &impl Fn(&str) -> Option<String>, name: &'static str) -> Result<Option<T>, ConfigError>
where
    T::Err: fmt::Display,
{
    let said = variable(name).filter(|text| !text.is_empty()).map(|text| text.parse());
    said.transpose().map_err(|error: T::Err| ConfigError::Environment { variable: name, reason: error.to_string() })
}

/// The JSON schema of the configuration file.
pub fn schema(catalog: &Catalog) -> Schema {
    let mut generator = SchemaGenerator::default();
    let backend = catalog.schema(&mut generator);
    let mut schema = generator.root_schema_for::<Layer>();
    schema.insert("title".to_owned(), "Longshore configuration file".into());
    schema.insert("description".to_owned(), "Printed by `longshore config-schema`.".into());
    let definitions = schema.ensure_object().entry("$defs").or_insert_with(|| Value::Object(Map::new()));
    definitions["Backend"] = backend.to_value();
    schema.ensure_object()["properties"]["backends"] = json!({
        "type": ["array", "null"],
        "description": "Of different names; the first is for volumes that name none. Default: one pool in `stateDir`.",
        "minItems": 1,
        "items": {"$ref": "#/$defs/Backend"},
    });
    schema
}

/// How a driver runs. `serve --check` prints it as YAML, which is again a configuration file.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Config {
    pub mode: Mode,
    pub endpoint: Endpoint,
    pub driver_name: DriverName,
    pub node_id: NodeId,
    /// The node's journal and the default pool lie here.
    pub state_dir: DirectoryPath,
    /// Staging and target paths must lie below it.
    pub kubelet_dir: DirectoryPath,
    pub log: Log,
    pub grace: Grace,
    /// How large an ephemeral inline volume may be, in bytes.
    pub inline_max_size: Bytes,
    /// What the attributes of an ephemeral inline volume may set: anyone who may create pods chooses them.
    pub allow_inline_parameters: Vec<String>,
    /// Where health is served, if at all, and metrics.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub http_endpoint: Option<HttpEndpoint>,
    /// Where metrics are served instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metrics_endpoint: Option<MetricsEndpoint>,
    /// Where traces go, if anywhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub otlp_endpoint: Option<OtlpEndpoint>,
    /// Whether they may leave this machine in clear.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub otlp_insecure: bool,
    /// Whether the driver registers itself with the kubelet.
    pub kubelet_registration: bool,
    /// Where the kubelet finds `endpoint`, if it sees it elsewhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kubelet_endpoint: Option<Endpoint>,
    /// At least one, of different names; the first is for volumes that name none.
    pub backends: Vec<BackendConfig>,
}

/// How and what is logged.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Log {
    pub format: LogFormat,
    pub level: LogLevel,
}

impl Config {
    /// The first of `layers` that says something wins. `host_name` is the node id if none of them names one.
    pub fn resolve(layers: impl IntoIterator<Item = Layer>, host_name: &str) -> Result<Self, ConfigError> {
        let said = layers.into_iter().reduce(Layer::over).unwrap_or_default();
        let node_id = said.node_id.map_or_else(|| host_name.parse(), Ok).map_err(|error: volume::Error| {
            ConfigError::Default { field: "nodeId", reason: format!("the host name does not do ({error}); give --node-id") }
        })?;
        let state_dir = said.state_dir.unwrap_or_else(|| DirectoryPath::fixed(DEFAULT_STATE_DIR));
        let backends = said.backends.map_or_else(|| default_backends(&state_dir, &node_id), Ok)?;
        let backends = backends.into_iter().map(|backend| backend.with_node_default(&node_id)).collect();
        let mode = said.mode.unwrap_or_default();
        let kubelet_registration = said.kubelet_registration.unwrap_or_default();
        if kubelet_registration && !mode.node() {
            let reason = "a controller has nothing to register; leave it out, or use the mode node or all";
            return Err(ConfigError::Contradiction { field: "kubeletRegistration", reason });
        }
        if said.kubelet_endpoint.is_some() && !kubelet_registration {
            let reason = "it has no effect while kubeletRegistration is off";
            return Err(ConfigError::Contradiction { field: "kubeletEndpoint", reason });
        }
        let otlp_insecure = said.otlp_insecure.unwrap_or_default();
        if said.otlp_endpoint.as_ref().is_some_and(|endpoint| !endpoint.is_loopback()) && !otlp_insecure {
            let reason = "traces name volumes, claims and paths, and would cross the network in clear; send them to a collector at \
                          127.0.0.1, or allow it by --otlp-insecure (otlpInsecure: true)";
            return Err(ConfigError::Contradiction { field: "otlpEndpoint", reason });
        }
        if said.otlp_endpoint.is_some() && !cfg!(feature = "otlp") {
            let reason = "this program was built without it; leave it out, or build with `--features otlp`";
            return Err(ConfigError::Contradiction { field: "otlpEndpoint", reason });
        }
        Ok(Config {
            mode,
            endpoint: said.endpoint.unwrap_or_default(),
            driver_name: said.driver_name.unwrap_or_default(),
            node_id,
            state_dir,
            kubelet_dir: said.kubelet_dir.unwrap_or_else(|| DirectoryPath::fixed(DEFAULT_KUBELET_DIR)),
            log: Log { format: said.log.format.unwrap_or_default(), level: said.log.level.unwrap_or_default() },
            grace: said.grace.unwrap_or_default(),
            inline_max_size: said.inline_max_size.unwrap_or(DEFAULT_INLINE_MAX_SIZE),
            allow_inline_parameters: said.allow_inline_parameters.unwrap_or_else(default_inline_parameters),
            http_endpoint: said.http_endpoint,
            metrics_endpoint: said.metrics_endpoint,
            otlp_endpoint: said.otlp_endpoint,
            otlp_insecure,
            kubelet_registration,
            kubelet_endpoint: said.kubelet_endpoint,
            backends,
        })
    }

    /// As a configuration file.
    pub fn to_yaml(&self) -> Result<String, serde_yaml_ng::Error> {
        serde_yaml_ng::to_string(self)
    }
}

/// One pool on this node's disk, which no other node reaches.
fn default_backends(state_dir: &DirectoryPath, node_id: &NodeId) -> Result<Vec<BackendConfig>, ConfigError> {
    let name =
        "image".parse().map_err(|error: volume::Error| ConfigError::Default { field: "backends", reason: error.to_string() })?;
    let pool = PoolConfig { name: "default".to_owned(), path: state_dir.path().join("pool"), overcommit: 1.0, capacity: None };
    let image = ImageConfig { name, pools: vec![pool], node: Some(node_id.clone()), shared: false };
    Ok(vec![BackendConfig::new(image)])
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const FULL: &str = "\
mode: node
endpoint: /run/file.sock
driverName: file.example.org
nodeId: from-file
stateDir: /srv/state
kubeletDir: /srv/kubelet
log: {format: json, level: debug}
grace: 2m
inlineMaxSize: 2GiB
allowInlineParameters: [size, pool]
httpEndpoint: 127.0.0.1:9809
metricsEndpoint: 10.0.0.1:9808
kubeletRegistration: true
kubeletEndpoint: /srv/kubelet/plugins/file/csi.sock
backends:
- name: local
  type: image
  pools:
  - {name: fast, path: /srv/fast, capacity: 100GiB, overcommit: 2}
- {type: fake, name: memory}
";

    fn file(yaml: &str) -> Result<Layer, ConfigError> {
        Layer::from_yaml(Path::new("longshore.yaml"), yaml, &Catalog::built_in())
    }

    fn environment(pairs: &[(&str, &str)]) -> Result<Layer, ConfigError> {
        Layer::from_environment(|name| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned()))
    }

    fn message(result: Result<Layer, ConfigError>) -> String {
        result.expect_err("it is wrong").to_string()
    }

    #[test]
    fn without_anything_there_is_one_pool_under_the_state_directory() {
        let config = Config::resolve([], "worker-1").expect("the defaults are valid");
        assert_eq!(config.endpoint.to_string(), DEFAULT_ENDPOINT);
        assert_eq!((config.mode, config.node_id.as_str(), config.grace), (Mode::All, "worker-1", Grace(Duration::from_secs(30))));
        assert_eq!(config.inline_max_size, Bytes(16 << 30));
        assert_eq!(config.allow_inline_parameters, ["size", "fsType"]);
        let [backend] = config.backends.as_slice() else { panic!("one backend") };
        let image: &ImageConfig = backend.get().expect("it is of image files");
        assert_eq!((image.name.as_str(), image.pools[0].name.as_str()), ("image", "default"));
        assert_eq!(image.pools[0].path, Path::new("/var/lib/longshore/pool"));
        assert_eq!(image.node.as_ref().map(NodeId::as_str), Some("worker-1"), "no other node reaches it");
    }

    #[test]
    fn flags_go_before_the_environment_and_that_before_the_file() {
        let flags = Layer { endpoint: Some("/run/flag.sock".parse().expect("valid")), ..Layer::default() };
        let variables =
            [("LONGSHORE_MODE", "all"), ("CSI_ENDPOINT", "/run/env.sock"), ("KUBE_NODE_NAME", "from-env"), ("LONGSHORE_LOG", "")];
        let layers = [flags, environment(&variables).expect("valid"), file(FULL).expect("valid")];
        let config = Config::resolve(layers, "host").expect("valid");
        assert_eq!(config.endpoint.path(), Path::new("/run/flag.sock"));
        assert_eq!(config.node_id.as_str(), "from-env");
        assert_eq!(config.log.level.as_str(), "debug", "an empty variable says nothing");
        assert_eq!((config.mode, config.state_dir.path()), (Mode::All, Path::new("/srv/state")));
        assert_eq!((config.backends.len(), config.inline_max_size), (2, Bytes(2 << 30)));
        assert_eq!(config.allow_inline_parameters, ["size", "pool"]);
    }

    #[test]
    fn printed_configuration_is_read_as_the_same() {
        for layers in [vec![], vec![file(FULL).expect("valid")]] {
            let config = Config::resolve(layers, "host").expect("valid");
            let yaml = config.to_yaml().expect("serializes");
            assert_eq!(Config::resolve([file(&yaml).expect(&yaml)], "another").expect("valid"), config, "{yaml}");
        }
    }

    #[test]
    fn an_empty_file_says_nothing() {
        for text in ["", "# nothing\n", "---\n"] {
            assert_eq!(file(text).expect(text), Layer::default());
        }
    }

    #[test]
    fn a_wrong_file_is_reported_with_file_field_and_line() {
        for (yaml, words) in [
            ("mode: al\n", &["mode", "al", "controller", "line 1"][..]),
            ("grace: 30s\nendpont: /run/a\n", &["endpont", "endpoint", "line 2"]),
            ("endpoint: tcp://0.0.0.0:9000\n", &["endpoint", "only Unix sockets", "line 1"]),
            ("driverName: -a-\n", &["driverName", "no driver name", "line 1"]),
            ("stateDir: lib\n", &["stateDir", "absolute", "line 1"]),
            ("grace: [1]\n", &["grace", "invalid type", "line 1"]),
            ("mode: all\nnodeId: a b\n", &["nodeId", "no node id", "line 2"]),
            ("httpEndpoint: localhost:9809\n", &["httpEndpoint", "127.0.0.1:9809", "line 1"]),
            ("metricsEndpoint: 0\n", &["metricsEndpoint", "off", "line 1"]),
            ("otlpEndpoint: https://a:4317\n", &["otlpEndpoint", "http://127.0.0.1:4317", "line 1"]),
            ("mode: all\ninlineMaxSize: much\n", &["inlineMaxSize", "much", "10GiB", "line 2"]),
            ("grace: 2h\n", &["grace", "at most 1h", "line 1"]),
            ("log:\n  level: loud\n", &["log.level", "loud", "line 2"]),
            ("mode: all\nmode: node\n", &["duplicate field", "mode"]),
            ("backends: []\n", &["backends", "none is given"]),
            ("backends: {name: a}\n", &["backends", "invalid type"]),
            ("backends:\n- name: a\n", &["backends[0]", "missing field `type`", "line 2"]),
            ("backends:\n- name: a\n  type: ntfs\n", &["backends[0]", "ntfs", "image", "line 3"]),
            (
                "backends:\n- name: a\n  type: image\n  pools:\n  - {name: p, path: /srv}\n  pols: 3\n",
                &["pols", "pools", "line 6"],
            ),
            ("backends:\n- type: image\n  name: a\n  pools:\n  - name: p\n    path: /srv\n    size: 3\n", &["size", "line 7"]),
            ("backends:\n- {name: A, type: fake}\n", &["backends[0]", "backend name", "line 2"]),
            ("backends:\n- {name: a, type: fake}\n- {name: a, type: fake}\n", &["backends", "two are called a"]),
            ("backends:\n- {name: a, type: image, pools: []}\n", &["backends", "a: pools"]),
            (
                "backends:\n- {name: a, type: image, pools: [{name: p, path: /srv}]}\n\
                 - {name: b, type: image, pools: [{name: p, path: /srv/x}]}\n",
                &["backends", "b: pool /srv/x shares its directory with one of a"],
            ),
            ("mode: all\n}\n", &["line 2"]),
        ] {
            let message = message(file(yaml));
            for word in ["longshore.yaml: "].iter().chain(words) {
                assert!(message.contains(word), "{yaml}\n -> {message}\n lacks {word}");
            }
        }
    }

    /// At every level of the file, whatever stands before `type`.
    #[test]
    fn unknown_word_of_a_file_is_refused_with_its_line_and_the_nearest_known_one() {
        for (yaml, place, right) in [
            ("grace: 30s\nmode: nodes\n", "line 2", "node"),
            ("grace: 30s\ndriverNam: a.b\n", "line 2", "driverName"),
            ("grace: 30s\nkubletDir: /srv\n", "line 2", "kubeletDir"),
            ("log:\n  levle: info\n", "line 2", "level"),
            ("log:\n  format: jsn\n", "line 2", "json"),
            ("grace: 30s\nbackend:\n- {name: a, type: fake}\n", "line 2", "backends"),
            ("backends:\n- name: a\n  type: imag\n", "line 3", "image"),
            ("backends:\n- name: a\n  typ: image\n", "backends[0]: missing field `type` at line 2", ""),
            ("backends:\n- name: a\n  type: image\n  pols: []\n", "line 4", "pools"),
            ("backends:\n- name: a\n  pols: []\n  type: image\n", "line 3", "pools"),
            ("backends:\n- name: a\n  type: image\n  pools:\n  - name: p\n    pth: /srv\n", "line 6", "path"),
            ("backends:\n- name: a\n  pools:\n  - name: p\n    pth: /srv\n  type: image\n", "line 5", "path"),
            ("backends:\n- {name: f, type: fake}\n- name: a\n  type: fake\n  volumePerNode: 2\n", "line 5", "volumesPerNode"),
            ("backends:\n- name: a\n  type: nfs\n  share: []\n", "line 4", "shares"),
            ("backends:\n- name: a\n  type: nfs\n  shares:\n  - sever: a\n", "line 5", "server"),
            ("backends:\n- name: a\n  type: iscsi\n  portal: []\n", "line 4", "portals"),
            #[cfg(feature = "ec2")]
            ("backends:\n- name: a\n  type: ec2\n  clustr: a\n", "line 4", "cluster"),
            #[cfg(feature = "ec2")]
            ("backends:\n- {name: a, type: ec2, limits: {AttachVolum: {burst: 9, refill: 1}}}\n", "limits", "AttachVolume"),
            #[cfg(feature = "ec2")]
            ("backends:\n- name: a\n  type: ec2\n  limits:\n    AttachVolume: {brust: 1, refill: 1}\n", "line 5", "burst"),
        ] {
            let message = message(file(yaml));
            assert!(message.contains(place), "{yaml}\n -> {message}\n lacks {place}");
            let question = format!("did you mean `{right}`?");
            assert!(right.is_empty() || message.ends_with(&question), "{yaml}\n -> {message}\n lacks {question}");
        }
    }

    #[test]
    fn types_of_backends_are_those_of_the_catalog() {
        let kinds: Vec<_> = Catalog::built_in().rows().iter().map(|row| row.kind).collect();
        let message = message(file("backends:\n- {name: a, type: tape}\n"));
        assert!(message.contains(&format!("expected one of `{}`", kinds.join("`, `"))), "{message}");
        assert!(file("backends:\n- {name: a, type: fake, type: fake}\n").is_err(), "one type each");
    }

    #[test]
    fn contradicting_settings_are_refused() {
        for (yaml, words) in [
            ("mode: controller\nkubeletRegistration: true\n", ["kubeletRegistration", "mode"]),
            ("kubeletEndpoint: /run/a.sock\n", ["kubeletEndpoint", "off"]),
            ("otlpEndpoint: http://collector:4317\n", ["otlpEndpoint", "--otlp-insecure"]),
            ("otlpEndpoint: http://[fd00::1]:4317\notlpInsecure: false\n", ["otlpEndpoint", "--otlp-insecure"]),
        ] {
            let error = Config::resolve([file(yaml).expect("by itself it is right")], "host").expect_err(yaml).to_string();
            assert!(words.iter().all(|word| error.contains(word)), "{error}");
        }
        for yaml in ["otlpEndpoint: http://127.0.0.1:4317\n", "otlpEndpoint: http://collector:4317\notlpInsecure: true\n"] {
            let traced = Config::resolve([file(yaml).expect("right")], "host");
            match cfg!(feature = "otlp") {
                true => assert!(traced.is_ok(), "{yaml}"),
                false => {
                    let error = traced.expect_err("it cannot").to_string();
                    assert!(error.contains("otlpEndpoint") && error.contains("--features otlp"), "{error}");
                }
            }
        }
    }

    #[test]
    fn a_wrong_variable_is_named() {
        for (name, value) in [
            ("LONGSHORE_MODE", "both"),
            ("CSI_ENDPOINT", "relative.sock"),
            ("KUBE_NODE_NAME", "two words"),
            ("LONGSHORE_LOG", "loud"),
        ] {
            let message = message(environment(&[(name, value)]));
            assert!(message.contains(name) && message.contains(value), "{message}");
        }
    }
}

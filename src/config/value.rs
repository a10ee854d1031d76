//! Single values: what can't be read can't be said.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::{Component, Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Where a CSI socket lies if nobody says so.
pub const DEFAULT_ENDPOINT: &str = "unix:///run/longshore/csi.sock";
/// The name under which a CO knows the driver if nobody says so.
pub const DEFAULT_DRIVER_NAME: &str = "longshore.csi.dev";

/// What this process serves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Every service, for a single node.
    #[default]
    All,
    /// Identity, Controller, GroupController, SnapshotMetadata.
    Controller,
    /// Identity and Node.
    Node,
}

impl FromStr for Mode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        clap::ValueEnum::from_str(text, false).map_err(|_| format!("{text:?} is no mode: all, controller or node"))
    }
}

impl Mode {
    /// Whether volumes come and go here.
    pub fn controller(self) -> bool {
        matches!(self, Mode::All | Mode::Controller)
    }

    /// Whether volumes are mounted here.
    pub fn node(self) -> bool {
        matches!(self, Mode::All | Mode::Node)
    }
}

/// How log lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// A value written as text. Read by a visitor of our own, because what `try_from` refuses has no line.
struct Text<T>(T);

impl<'de, T: FromStr<Err: fmt::Display>> Deserialize<'de> for Text<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Parsed<T>(PhantomData<T>);

        impl<T: FromStr<Err: fmt::Display>> Visitor<'_> for Parsed<T> {
            type Value = Text<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Text<T>, E> {
                text.parse().map(Text).map_err(E::custom)
            }
        }

        deserializer.deserialize_str(Parsed(PhantomData))
    }
}

/// For a value whose own `Deserialize` is no [`Text`].
pub(super) fn optional_text<'de, D: Deserializer<'de>, T: FromStr<Err: fmt::Display>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    Ok(Option::<Text<T>>::deserialize(deserializer)?.map(|text| text.0))
}

macro_rules! as_text {
    ($type:ident) => {
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                Text::deserialize(deserializer).map(|text| text.0)
            }
        }

        impl JsonSchema for $type {
            fn schema_name() -> Cow<'static, str> {
                stringify!($type).into()
            }

            fn inline_schema() -> bool {
                true
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!({"type": "string", "minLength": 1})
            }
        }

        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }
    };
}

/// A Unix socket, written `unix:///run/csi.sock` or `/run/csi.sock`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint(PathBuf);

impl Endpoint {
    /// Where the socket lies; absolute.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Default for Endpoint {
    fn default() -> Self {
        Endpoint(DEFAULT_ENDPOINT.trim_start_matches("unix://").into())
    }
}

impl FromStr for Endpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // sockaddr_un holds 108 bytes, the last of them 0.
        const LONGEST: usize = 107;
        let path = text.strip_prefix("unix://").or_else(|| text.strip_prefix("unix:")).unwrap_or(text);
        if !plain(Path::new(path)) {
            return Err(format!("{text:?} is no endpoint: write {DEFAULT_ENDPOINT} (only Unix sockets are served)"));
        }
        if path.len() > LONGEST {
            return Err(format!("{path} has {} bytes; Linux allows {LONGEST} for a socket's path", path.len()));
        }
        Ok(Endpoint(path.into()))
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unix://{}", self.0.display())
    }
}

as_text!(Endpoint);

/// The driver's name: a domain name of at most 63 characters (CSI spec, GetPluginInfoResponse; RFC 1035, section 2.3.1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverName(String);

impl DriverName {
    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for DriverName {
    fn default() -> Self {
        DriverName(DEFAULT_DRIVER_NAME.to_owned())
    }
}

impl FromStr for DriverName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let edge = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
        let label = |label: &str| {
            edge(label.bytes().next())
                && edge(label.bytes().last())
                && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
        };
        if text.len() > 63 || !text.split('.').all(label) {
            return Err(format!(
                "{text:?} is no driver name: a domain name such as {DEFAULT_DRIVER_NAME}, of at most 63 letters, digits, - and ."
            ));
        }
        Ok(DriverName(text.to_owned()))
    }
}

impl fmt::Display for DriverName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

as_text!(DriverName);

/// A directory: an absolute path without `.` and `..`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectoryPath(PathBuf);

impl DirectoryPath {
    /// One of our defaults.
    pub(super) fn fixed(path: &'static str) -> Self {
        DirectoryPath(path.into())
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl FromStr for DirectoryPath {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let path = Path::new(text);
        if !plain(path) {
            return Err(format!("{text:?} is no directory that can be used: it must be absolute, not /, and without . and .."));
        }
        Ok(DirectoryPath(path.components().collect()))
    }
}

impl fmt::Display for DirectoryPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.display().fmt(f)
    }
}

as_text!(DirectoryPath);

/// Absolute, deeper than `/`, without `.` and `..`.
fn plain(path: &Path) -> bool {
    // `components` swallows a single dot, so look at the text.
    path.is_absolute()
        && path.components().count() > 1
        && path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)))
        && !path.as_os_str().as_encoded_bytes().split(|byte| *byte == b'/').any(|part| part == b".")
        && !path.as_os_str().as_encoded_bytes().contains(&0)
}

/// What is logged: a level, or `target=level` pairs, separated by commas: `info,longshore::os=debug`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLevel(String);

impl LogLevel {
    /// In the syntax of tracing's `EnvFilter`.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for LogLevel {
    fn default() -> Self {
        LogLevel("info".to_owned())
    }
}

impl FromStr for LogLevel {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
        // EnvFilter takes a level that it doesn't know for a target, and logs nothing.
        let directive = |part: &str| {
            let (target, level) = part.split_once('=').map_or(("longshore", part), |(target, level)| (target, level));
            let target_known =
                !target.is_empty() && target.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b':'));
            target_known && LEVELS.contains(&level)
        };
        if !text.split(',').all(directive) {
            return Err(format!(
                "{text:?} is no log level: one of {}, or pairs such as info,longshore::os=debug",
                LEVELS.join(", ")
            ));
        }
        Ok(LogLevel(text.to_owned()))
    }
}

impl fmt::Display for LogLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

as_text!(LogLevel);

/// Where HTTP is served: `127.0.0.1:9809`, `[::]:9809`, or `:9809` for all addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HttpEndpoint(pub SocketAddr);

impl FromStr for HttpEndpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = match text.strip_prefix(':') {
            Some(port) => port.parse().map(|port| SocketAddr::from((Ipv6Addr::UNSPECIFIED, port))).ok(),
            None => text.parse().ok(),
        };
        parsed.map(HttpEndpoint).ok_or_else(|| {
            format!("{text:?} is no address with a port: write 127.0.0.1:9809, [::1]:9809, or :9809 for all addresses")
        })
    }
}

impl fmt::Display for HttpEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

as_text!(HttpEndpoint);

/// Where metrics are served: an address of their own as for [`HttpEndpoint`], or `off`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricsEndpoint {
    At(HttpEndpoint),
    Off,
}

impl FromStr for MetricsEndpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "off" => Ok(MetricsEndpoint::Off),
            _ => text.parse().map(MetricsEndpoint::At).map_err(|reason| format!("{reason}; off serves none")),
        }
    }
}

impl fmt::Display for MetricsEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MetricsEndpoint::At(endpoint) => endpoint.fmt(f),
            MetricsEndpoint::Off => f.write_str("off"),
        }
    }
}

as_text!(MetricsEndpoint);

/// A collector of traces: `http://127.0.0.1:4317`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtlpEndpoint(String);

impl OtlpEndpoint {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether what is sent there stays on this machine. A name that is not `localhost` is anybody's.
    pub fn is_loopback(&self) -> bool {
        let host = self.0.trim_start_matches("http://").rsplit_once(':').map_or("", |(host, _)| host);
        let address = host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        host == "localhost" || address.is_ok_and(|address| address.is_loopback())
    }
}

impl FromStr for OtlpEndpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let place = text.strip_prefix("http://").map(|place| place.trim_end_matches('/'));
        let parts = place.and_then(|place| place.rsplit_once(':'));
        let plain = |host: &str| {
            !host.is_empty()
                && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b':' | b'[' | b']'))
        };
        match parts {
            Some((host, port)) if plain(host) && port.parse::<u16>().is_ok() => Ok(OtlpEndpoint(format!("http://{host}:{port}"))),
            _ => Err(format!("{text:?} is no collector: write http://127.0.0.1:4317 (OTLP over gRPC, in clear)")),
        }
    }
}

impl fmt::Display for OtlpEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

as_text!(OtlpEndpoint);

/// How long calls that run may continue after SIGTERM: `30s`, `2m`, at most an hour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grace(pub Duration);

impl Default for Grace {
    fn default() -> Self {
        Grace(Duration::from_secs(30))
    }
}

impl FromStr for Grace {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = humantime::parse_duration(text).ok().filter(|grace| *grace <= Duration::from_secs(3600));
        parsed.map(Grace).ok_or_else(|| format!("{text:?} is no grace period: write 30s or 2m, at most 1h"))
    }
}

impl fmt::Display for Grace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        humantime::format_duration(self.0).fmt(f)
    }
}

as_text!(Grace);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_read_in_three_forms_and_print_in_one() {
        for text in ["unix:///run/a.sock", "unix:/run/a.sock", "/run/a.sock"] {
            assert_eq!(text.parse::<Endpoint>().expect(text).to_string(), "unix:///run/a.sock");
        }
        for text in ["", "unix://", "unix:///", "run/a.sock", "http://a", "/run/../a.sock", "/run/./a.sock"] {
            assert!(text.parse::<Endpoint>().is_err(), "{text:?}");
        }
        assert!(format!("/{}", "a".repeat(106)).parse::<Endpoint>().is_ok());
        assert!(format!("/{}", "a".repeat(107)).parse::<Endpoint>().is_err());
        assert_eq!(Endpoint::default(), DEFAULT_ENDPOINT.parse().expect("valid"));
    }

    #[test]
    fn driver_names_are_domain_names() {
        let longest = format!("{}.{}", "a".repeat(31), "b".repeat(31));
        for name in [DEFAULT_DRIVER_NAME, "a", "A-1.b", &longest] {
            assert!(name.parse::<DriverName>().is_ok(), "{name}");
        }
        for name in ["", ".", "a.", "a..b", "-a", "a-", "a_b", "a/b", "ä", &format!("{longest}c")] {
            assert!(name.parse::<DriverName>().is_err(), "{name}");
        }
    }

    #[test]
    fn http_endpoints_are_addresses_with_a_port() {
        for (text, read) in [
            (":9809", "[::]:9809"),
            ("[::]:9809", "[::]:9809"),
            ("[::1]:0", "[::1]:0"),
            ("0.0.0.0:80", "0.0.0.0:80"),
            ("127.0.0.1:65535", "127.0.0.1:65535"),
        ] {
            assert_eq!(text.parse::<HttpEndpoint>().expect(text).to_string(), read);
        }
        for text in ["", ":", "9809", "localhost:9809", "127.0.0.1", ":65536", ":-1", ": 80", "::1:80x", "http://127.0.0.1:80"] {
            let error = text.parse::<HttpEndpoint>().expect_err(text);
            assert!(error.contains("write 127.0.0.1:9809"), "{error}");
        }
    }

    #[test]
    fn metrics_have_an_address_of_their_own_or_none() {
        for (text, read) in [(":9808", "[::]:9808"), ("127.0.0.1:80", "127.0.0.1:80"), ("off", "off")] {
            assert_eq!(text.parse::<MetricsEndpoint>().expect(text).to_string(), read);
        }
        for text in ["", "Off", "9808"] {
            let error = text.parse::<MetricsEndpoint>().expect_err(text);
            assert!(error.contains("write 127.0.0.1:9809") && error.contains("off"), "{error}");
        }
    }

    #[test]
    fn collectors_are_plain_http_addresses() {
        for text in ["http://127.0.0.1:4317", "http://[::1]:4317", "http://collector.monitoring.svc:4317/"] {
            assert_eq!(text.parse::<OtlpEndpoint>().expect(text).as_str(), text.trim_end_matches('/'));
        }
        for text in
            ["", "127.0.0.1:4317", "https://a:4317", "http://a", "http://:4317", "http://a:b", "http://u:p@a:1", "http://a:1/v1"]
        {
            assert!(text.parse::<OtlpEndpoint>().is_err(), "{text}");
        }
        for (text, here) in [
            ("http://127.0.0.1:4317", true),
            ("http://127.1.2.3:1", true),
            ("http://[::1]:4317", true),
            ("http://localhost:4317", true),
            ("http://localhost.example:4317", false),
            ("http://127.0.0.1.example:4317", false),
            ("http://[::]:4317", false),
            ("http://192.0.2.1:4317", false),
        ] {
            assert_eq!(text.parse::<OtlpEndpoint>().expect(text).is_loopback(), here, "{text}");
        }
    }

    #[test]
    fn levels_that_would_silence_the_log_are_refused() {
        for level in ["info", "off", "info,longshore::os=debug"] {
            assert!(level.parse::<LogLevel>().is_ok(), "{level}");
        }
        for level in ["", "loud", "INFO ", "info,", "longshore=loud", "=info", "a[b]=info"] {
            assert!(level.parse::<LogLevel>().is_err(), "{level}");
        }
    }
}

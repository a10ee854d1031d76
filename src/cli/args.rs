//! The arguments of the program, and of `serve`.

use std::path::PathBuf;

#[cfg(feature = "cloud")]
use clap::ValueEnum;
use clap::{Args, CommandFactory, Parser, Subcommand};
use clap_complete::Shell;

use crate::backend::catalog::Catalog;
use crate::config::{
    DirectoryPath, DriverName, Endpoint, Grace, HttpEndpoint, Layer, LogFormat, LogLayer, LogLevel, MetricsEndpoint, Mode,
    OtlpEndpoint,
};
use crate::volume::{Bytes, NodeId};

use super::call::CallArgs;

const EXIT_CODES: &str = "\
Exit codes:
  0  it is done
  1  it failed, and that is final
  2  wrong usage or configuration; nothing was tried
  3  the endpoint cannot be reached
  4  it failed, but may still be running: repeat the same call
     (CANCELLED, DEADLINE_EXCEEDED, UNAVAILABLE, ABORTED; of `call probe`: not ready)

Examples:
  longshore serve
  longshore call create-volume --name a --size 1GiB
  longshore call list-volumes
  longshore completions bash > /etc/bash_completion.d/longshore";

/// A Container Storage Interface (CSI) driver: one binary, many backends.
#[derive(Debug, Parser)]
#[command(name = "longshore", version, after_help = EXIT_CODES, max_term_width = 120)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the driver
    Serve(Box<ServeArgs>),
    /// Call a CSI driver over its socket, this one or any other
    Call(Box<CallArgs>),
    /// Show this node's volumes with their stacks, orphaned resources, and what repairs it; with or without a driver
    Inspect(Box<InspectArgs>),
    /// Check a node or a configuration before trouble: tools, kernel, directories, pools, sockets
    Doctor(Box<DoctorArgs>),
    /// Show the level of a running driver's log, or change it until the driver ends
    #[command(
        after_help = "Examples:\n  longshore log-level\n  longshore log-level debug\n  longshore log-level info,longshore::os=debug"
    )]
    LogLevel(LogLevelArgs),
    /// Have a running driver read its configuration file again and apply what changed, or nothing where a setting needs a restart
    Reload(ReloadArgs),
    /// Before the end of a node's driver, in its pod: while the node is drained, wait until it has none of the driver's volumes
    #[cfg(feature = "cloud")]
    PreStop(Box<PreStopArgs>),
    /// Print the JSON schema of the configuration file
    #[command(after_help = "Example:\n  longshore config-schema > longshore.schema.json")]
    ConfigSchema,
    /// Where volumes are local to nodes: pass what one csi-resizer asks for on to the drivers of the volumes' nodes
    #[cfg(feature = "cloud")]
    Relay(Box<RelayArgs>),
    /// Print a completion script for a shell
    #[command(after_help = "Examples:\n  longshore completions bash > /etc/bash_completion.d/longshore\n  \
                            longshore completions zsh > /usr/local/share/zsh/site-functions/_longshore\n  \
                            longshore completions fish > ~/.config/fish/completions/longshore.fish")]
    Completions {
        #[arg(value_parser = clap::builder::EnumValueParser::<Shell>::new())]
        shell: Shell,
    },
    /// Write the manual pages, one for each command
    #[command(after_help = "Examples:\n  longshore man-pages /usr/local/share/man/man1")]
    ManPages {
        /// An existing directory
        directory: PathBuf,
    },
}

const SERVE_EXAMPLES: &str = "\
A flag goes before the environment, that before the file, that before the default.
Without --config there is one backend, `image`, with one pool in the directory `pool` of the state directory.

Examples:
  longshore serve
  longshore serve --mode controller --config /etc/longshore.yaml
  longshore serve --config /etc/longshore.yaml --check

A configuration file:
  backends:              # the first is the default; the parameter `backend` names another
    - name: local        # the part of every volume id before the colon
      type: image
      pools:
        - name: default
          path: /var/lib/longshore/pool
    - name: memory
      type: fake
It may also hold mode, endpoint, driverName, nodeId, stateDir, kubeletDir, grace, inlineMaxSize, allowInlineParameters, httpEndpoint,
metricsEndpoint, otlpEndpoint, otlpInsecure, kubeletRegistration, kubeletEndpoint, and log with format and level.
`longshore config-schema` prints what each field may be.

Types of backends:";

/// The command line, of a program with these backends.
pub fn command(catalog: &Catalog) -> clap::Command {
    let kinds = catalog.rows().iter().map(|row| format!("\n  {:<9} {}", row.kind, row.summary));
    let help = SERVE_EXAMPLES.to_owned() + &kinds.collect::<String>();
    Cli::command().mut_subcommand("serve", |serve| serve.after_help(help))
}

/// The flags of `serve`.
#[derive(Debug, Default, Args)]
pub struct ServeArgs {
    /// Which services to offer [env: LONGSHORE_MODE] [default: all]
    #[arg(long, value_enum)]
    pub mode: Option<Mode>,
    #[command(flatten)]
    pub place: PlaceArgs,
    /// How log lines look, on standard error [default: text]
    #[arg(long, value_enum)]
    pub log_format: Option<LogFormat>,
    /// off, error, warn, info, debug or trace, or pairs such as info,longshore::os=debug [env: LONGSHORE_LOG] [default: info]
    #[arg(long, value_name = "LEVEL")]
    pub log_level: Option<LogLevel>,
    /// How long running calls may continue after SIGTERM; a second signal ends them at once [default: 30s]
    #[arg(long, value_name = "DURATION")]
    pub grace: Option<Grace>,
    /// How large an ephemeral inline volume may be [default: 16GiB]
    #[arg(long, value_name = "SIZE")]
    pub inline_max_size: Option<Bytes>,
    /// Serve /healthz, /readyz and /metrics there, such as :9809 or 127.0.0.1:9809; in clear, to anyone who reaches it
    #[arg(long, value_name = "ADDR:PORT")]
    pub http_endpoint: Option<HttpEndpoint>,
    /// Serve /metrics there, and not at --http-endpoint; `off`: nowhere
    #[arg(long, value_name = "ADDR:PORT|off")]
    pub metrics_endpoint: Option<MetricsEndpoint>,
    /// Send traces there by OTLP over gRPC, such as http://127.0.0.1:4317; only if built with the feature `otlp`
    #[arg(long, value_name = "URL")]
    pub otlp_endpoint: Option<OtlpEndpoint>,

    /// Send traces in clear to another machine, too; they name volumes, claims and paths
    #[arg(long)]
    pub otlp_insecure: bool,
    /// Register with the kubelet, without node-driver-registrar: plugins_registry/<driver name>-reg.sock in its directory
    #[arg(long)]
    pub kubelet_registration: bool,
    /// The driver's socket as the kubelet sees it [default: the path of --endpoint]
    #[arg(long, value_name = "SOCKET")]
    pub kubelet_endpoint: Option<Endpoint>,
    /// Print the validated configuration, which is again a configuration file, and end
    #[arg(long)]
    pub check: bool,
}

impl ServeArgs {
    /// As the topmost source of the configuration.
    pub fn layer(&self) -> Layer {
        Layer {
            mode: self.mode,
            log: LogLayer { format: self.log_format, level: self.log_level.clone() },
            grace: self.grace,
            inline_max_size: self.inline_max_size,
            http_endpoint: self.http_endpoint,
            metrics_endpoint: self.metrics_endpoint,
            otlp_endpoint: self.otlp_endpoint.clone(),
            otlp_insecure: self.otlp_insecure.then_some(true),
            kubelet_registration: self.kubelet_registration.then_some(true),
            kubelet_endpoint: self.kubelet_endpoint.clone(),
            ..self.place.layer()
        }
    }
}

const INSPECT_EXAMPLES: &str = "\
Reads the configuration that `serve` reads. Changes nothing, and hinders no driver that runs, unless --fix is given.

Exit codes:
  0  all is well
  1  a resource is orphaned, or is not as it should be
  2  wrong usage or configuration; or no volume is called so
  3  something could not be looked at
  4  --fix was refused, since a driver runs; nothing was done

Examples:
  longshore inspect
  longshore inspect pvc-3f1c --config /etc/longshore.yaml
  longshore inspect --json | jq '.findings[] | .commands[]'
  longshore inspect --fix
  longshore inspect --backend ebs --handles handles --snapshot-handles snapshot-handles    (docs/ec2.md: how these are made)";

/// The flags of `inspect`.
#[derive(Debug, Args)]
#[command(after_help = INSPECT_EXAMPLES)]
pub struct InspectArgs {
    /// Only this volume: its id, or a part of it that no other has
    pub volume: Option<String>,
    /// For programs: docs/inspect.md has each field
    #[arg(long)]
    pub json: bool,
    /// Repair what can be repaired without touching anybody else's and without losing data; shows the plan and asks
    #[arg(long)]
    pub fix: bool,
    /// With --fix: do not ask
    #[arg(long, requires = "fix")]
    pub yes: bool,
    /// Compare what this backend, a cloud's, holds of this cluster with the handles that are in use; changes nothing
    #[arg(long, value_name = "NAME", requires = "handles", conflicts_with_all = ["fix", "volume"])]
    pub backend: Option<String>,
    /// With --backend: the handles of all PersistentVolumes, one in each line; - is standard input
    #[arg(long, value_name = "FILE", requires = "backend")]
    pub handles: Option<PathBuf>,
    /// With --backend: those of all VolumeSnapshotContents and VolumeGroupSnapshotContents; without it snapshots are not compared
    #[arg(long, value_name = "FILE", requires = "backend")]
    pub snapshot_handles: Option<PathBuf>,
    /// With --backend and both lists: delete this one volume, if no handle names it and no node has it
    #[arg(long, value_name = "VOLUME", requires_all = ["backend", "snapshot_handles"])]
    pub delete: Option<String>,
    #[command(flatten)]
    pub place: PlaceArgs,
}

const DOCTOR_EXAMPLES: &str = "\
Reads the configuration that `serve` reads. Leaves nothing behind; each check has a deadline. Fit for an init container.

Exit codes:
  0  all is well, or there are warnings only
  1  an error: the driver would fail, at its start or at the first pod
  2  wrong usage or configuration

Examples:
  longshore doctor
  longshore doctor --mode node --config /etc/longshore.yaml
  longshore doctor --json | jq '.checks[] | select(.level != \"ok\")'";

/// The flags of `doctor`.
#[derive(Debug, Args)]
#[command(after_help = DOCTOR_EXAMPLES)]
pub struct DoctorArgs {
    /// What the driver is to serve [env: LONGSHORE_MODE] [default: all]
    #[arg(long, value_enum)]
    pub mode: Option<Mode>,
    /// Exit with 0 where nothing but storage is at fault (full, away): the driver starts without it, and must, to unmount volumes
    #[arg(long)]
    pub before_start: bool,
    /// For programs: docs/doctor.md has each field
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub place: PlaceArgs,
}

/// The flags of `log-level`.
#[derive(Debug, Args)]
pub struct LogLevelArgs {
    /// off, error, warn, info, debug or trace, or pairs such as info,longshore::os=debug; without it nothing is changed
    pub level: Option<LogLevel>,
    /// The driver's Unix socket [env: CSI_ENDPOINT] [default: unix:///run/longshore/csi.sock]
    #[arg(long, value_name = "SOCKET")]
    pub endpoint: Option<Endpoint>,
}

const RELOAD_EXAMPLES: &str = "\
The driver reads the file that it was started with and checks it as at a start; its flags and environment still go before the file.
docs/configuration.md has the settings that can be applied. If any other changed, nothing is applied.

Exit codes:
  0  applied (with --check: it could be), or nothing has changed
  1  a setting needs a restart of the driver; nothing was applied
  2  the file is not valid, or the driver has none; nothing was applied
  3  the endpoint cannot be reached

Examples:
  longshore reload --check
  longshore reload";

/// The flags of `reload`.
#[derive(Debug, Args)]
#[command(after_help = RELOAD_EXAMPLES)]
pub struct ReloadArgs {
    /// Only show what has changed and what it needs; nothing is applied
    #[arg(long)]
    pub check: bool,
    /// The driver's Unix socket [env: CSI_ENDPOINT] [default: unix:///run/longshore/csi.sock]
    #[arg(long, value_name = "SOCKET")]
    pub endpoint: Option<Endpoint>,
}

#[cfg(feature = "cloud")]
const PRE_STOP_EXAMPLES: &str = "\
Reads the configuration that `serve` reads, and the Node from the API server. Says in the driver's log what it waits for.

Exit codes:
  0  the node is not drained, or has none of the driver's volumes any more
  1  the time is over, or the API server refuses to answer
  2  wrong usage or configuration

Examples:
  longshore pre-stop --config /etc/longshore/longshore.yaml --timeout 2m";

/// The flags of `pre-stop`.
#[cfg(feature = "cloud")]
#[derive(Debug, Args)]
#[command(after_help = PRE_STOP_EXAMPLES)]
pub struct PreStopArgs {
    /// How long at most
    #[arg(long, value_name = "DURATION", default_value = "1m")]
    pub timeout: Grace,
    /// Where the pod has its token (`token`) and the API server's certificate (`ca.crt`)
    #[arg(long, value_name = "DIRECTORY", default_value = "/var/run/secrets/kubernetes.io/serviceaccount")]
    pub service_account: PathBuf,
    #[command(flatten)]
    pub place: PlaceArgs,
}

#[cfg(feature = "cloud")]
const RELAY_EXAMPLES: &str = "\
Reads the configuration that `serve` reads. Speaks to the API server with the token of its pod; sidecars/external-resizer.md says how.

Exit codes:
  0  ended by SIGTERM or SIGINT
  1  the socket cannot be served
  2  wrong usage or configuration
  3  there is no API server to speak to: this is no pod, or it has no token

Examples:
  longshore relay --mode controller --endpoint unix:///csi/csi.sock
  longshore relay --mode node";

/// Which half of the relay.
#[cfg(feature = "cloud")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RelayMode {
    /// Beside csi-resizer, whose driver it is: writes what is asked for on the PersistentVolume
    Controller,
    /// Beside the driver of a node: has it do what is asked for its volumes
    Node,
}

/// Flags of `relay`.
#[cfg(feature = "cloud")]
#[derive(Debug, Args)]
#[command(after_help = RELAY_EXAMPLES)]
pub struct RelayArgs {
    /// Which half of the relay
    #[arg(long, value_enum)]
    pub mode: RelayMode,
    /// With --mode controller: how long a node is waited for; less than csi-resizer's --timeout
    #[arg(long, value_name = "DURATION", default_value = "55s")]
    pub timeout: humantime::Duration,
    /// Where the pod has its token (`token`) and the API server's certificate (`ca.crt`)
    #[arg(long, value_name = "DIRECTORY", default_value = "/var/run/secrets/kubernetes.io/serviceaccount")]
    pub service_account: PathBuf,
    #[command(flatten)]
    pub place: PlaceArgs,
}

/// Where a driver is: for the driver itself, and for the commands beside it.
#[derive(Debug, Default, Args)]
pub struct PlaceArgs {
    /// The driver's Unix socket [env: CSI_ENDPOINT] [default: unix:///run/longshore/csi.sock]
    #[arg(long, value_name = "SOCKET")]
    pub endpoint: Option<Endpoint>,
    /// The name under which the CO knows this driver [default: longshore.csi.dev]
    #[arg(long, value_name = "NAME")]
    pub driver_name: Option<DriverName>,
    /// The name of this node [env: KUBE_NODE_NAME] [default: the host name]
    #[arg(long, value_name = "NAME")]
    pub node_id: Option<NodeId>,
    /// Where the node's journal and the default pool lie; must survive a reboot [default: /var/lib/longshore]
    #[arg(long, value_name = "DIRECTORY")]
    pub state_dir: Option<DirectoryPath>,
    /// The kubelet's directory, below which staging and target paths must lie [default: /var/lib/kubelet]
    #[arg(long, value_name = "DIRECTORY")]
    pub kubelet_dir: Option<DirectoryPath>,
    /// The driver's configuration file, in YAML [env: LONGSHORE_CONFIG]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

impl PlaceArgs {
    /// As the topmost source of the configuration.
    pub fn layer(&self) -> Layer {
        Layer {
            endpoint: self.endpoint.clone(),
            driver_name: self.driver_name.clone(),
            node_id: self.node_id.clone(),
            state_dir: self.state_dir.clone(),
            kubelet_dir: self.kubelet_dir.clone(),
            ..Layer::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        command(&Catalog::built_in()).debug_assert();
    }

    #[test]
    fn every_flag_of_serve_becomes_part_of_the_configuration() {
        let words = "longshore serve --mode node --endpoint /run/a --driver-name a.b --node-id n --state-dir /s \
                     --kubelet-dir /k --log-format json --log-level debug --grace 1m --inline-max-size 1GiB --kubelet-registration \
                     --kubelet-endpoint /k/a --http-endpoint :80 --metrics-endpoint :81 --otlp-endpoint http://c:1 --otlp-insecure";
        let Command::Serve(args) = Cli::try_parse_from(words.split_whitespace()).expect("valid").command else {
            panic!("it is serve");
        };
        let layer = args.layer();
        let said = (layer.mode, layer.log.format, layer.grace.map(|grace| grace.0.as_secs()), layer.kubelet_registration);
        assert_eq!(said, (Some(Mode::Node), Some(LogFormat::Json), Some(60), Some(true)));
        assert_eq!((layer.inline_max_size, layer.otlp_insecure), (Some(Bytes::GIB), Some(true)));
        let texts = [
            layer.endpoint.map(|value| value.to_string()),
            layer.driver_name.map(|value| value.to_string()),
            layer.node_id.map(|value| value.to_string()),
            layer.state_dir.map(|value| value.to_string()),
            layer.kubelet_dir.map(|value| value.to_string()),
            layer.log.level.map(|value| value.to_string()),
            layer.kubelet_endpoint.map(|value| value.to_string()),
            layer.http_endpoint.map(|value| value.to_string()),
            layer.metrics_endpoint.map(|value| value.to_string()),
            layer.otlp_endpoint.map(|value| value.to_string()),
        ];
        let expected = ["unix:///run/a", "a.b", "n", "/s", "/k", "debug", "unix:///k/a", "[::]:80", "[::]:81", "http://c:1"];
        assert_eq!(texts.map(Option::unwrap_or_default), expected);
    }
}

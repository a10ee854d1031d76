//! `longshore serve`: builds what the configuration names, and runs it until a signal.

#[cfg(not(feature = "otlp"))]
use std::convert::Infallible;
use std::error::Error;
use std::fs::{self, DirBuilder};
use std::io::{self, IsTerminal};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::thread::ScopedJoinHandle;
use std::time::Duration;

use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer as _, reload};

use crate::backend::Backend;
use crate::backend::catalog::{BackendConfig, Catalog, NodeIdentity, OpenContext, Purpose};
use crate::backend::registry::Registry;
use crate::config::{Config, Layer, LogFormat, LogLevel, MetricsEndpoint};
use crate::metrics::Metrics;
use crate::ops::doctor;
use crate::ops::lock::Locks;
use crate::ops::node::NodeSettings;
use crate::ops::node::lone::StateDirLock;
use crate::ops::task::Tasks;
use crate::ops::{Controller, Node};
use crate::os::{lock, memory};
use crate::rpc::{Parts, Services};
use crate::server::{self, registration};
use crate::volume;

use super::args::ServeArgs;
use super::reloader::{Reloader, inline_limits};
#[cfg(feature = "otlp")]
use super::traces::{self, Traces};
use super::{Failure, in_pod, print, variable};

/// Handlers only decode, wait and encode.
const WORKERS: usize = 2;
/// Each running operation has a thread; a stuck one must not be waited for by others.
const MOST_OPERATIONS: usize = 2048;
/// How long the start waits for the recovery of what was interrupted. Most of it takes milliseconds; what hangs continues meanwhile.
/// Longer than recovery waits for a program of an earlier process (3 s), so that the next call gets that reason.
const RECOVERY_PATIENCE: Duration = Duration::from_secs(4);
/// Bytes. Nothing here recurses deeply; the memory is only taken as far as it is used.
const STACK: usize = 1 << 20;
/// How long a thread waits for the next operation. Idle ones are woken in turns (the kernel's futex queue): with a few calls each second
/// none of a burst's threads would ever wait for tokio's 10 s.
const KEPT: Duration = Duration::from_secs(1);

/// Serves until SIGTERM or SIGINT.
pub fn run(args: &ServeArgs, catalog: &Catalog) -> Result<(), Failure> {
    let config = configure(catalog, args.layer(), args.place.config.as_deref())?;
    if args.check {
        return print(&config.to_yaml().map_err(failed("print the configuration"))?);
    }
    memory::limit_malloc_arenas();
    let runtime = runtime()?;
    // Dropped before the runtime by which it sends.
    let (log, traces) = start_log(&config, &runtime)?;
    let (lost, mut loss) = oneshot::channel();
    let Built { services, registry, node, alone } = build(config.clone(), lost)?;
    let (flags, file, catalog) = (args.layer(), config_file(args.place.config.as_deref()), catalog.clone());
    let reloader = Reloader {
        file: file.clone(),
        read: Box::new(move || configure(&catalog, flags.clone(), file.as_deref()).map_err(|error| error.to_string())),
        in_force: Mutex::new(config.clone()),
        registry,
        node,
        log: log.clone(),
    };
    let reload = server::Reload::new(move |check| reloader.run(check));
    let settings = server_settings(&config, server::Admin { log, reload })?;
    let served = runtime.block_on(async {
        let signals = Signals::listen().map_err(failed("listen for signals"))?;
        let (mut end, mut signalled) = (None, pin!(signals.first()));
        let shutdown = async {
            tokio::select! {
                () = &mut signalled => {}
                Ok(reason) = &mut loss => {
                    tracing::error!(%reason, "this process is not the one that provisions any more");
                    end = Some(reason);
                }
            }
        };
        server::serve(settings, services, shutdown).await.map_err(failed("serve"))?;
        end.map_or(Ok(()), |reason| Err(failed("provision")(reason)))
    });
    drop(traces);
    // An operation that has outlasted the grace ends with the process, which does not wait for it (the storage may hang), and until then no
    // other process may have the state directory.
    runtime.shutdown_background();
    std::mem::forget(alone);
    served
}

fn server_settings(config: &Config, admin: server::Admin) -> Result<server::Settings, Failure> {
    let registration = config.kubelet_registration.then(|| registration::Settings {
        kubelet_dir: config.kubelet_dir.path().to_owned(),
        driver_name: config.driver_name.as_str().to_owned(),
        endpoint: config.kubelet_endpoint.as_ref().unwrap_or(&config.endpoint).path().to_owned(),
    });
    let endpoint = config.endpoint.to_string().parse().map_err(failed("use the endpoint"))?;
    let metrics = match config.metrics_endpoint {
        None => server::Metrics::WithHealth,
        Some(MetricsEndpoint::At(address)) => server::Metrics::At(address.0),
        Some(MetricsEndpoint::Off) => server::Metrics::Nowhere,
    };
    let http = config.http_endpoint.map(|http| http.0);
    Ok(server::Settings { endpoint, registration, http, metrics, admin, grace: config.grace.0 })
}

pub(super) fn failed<E: Into<Box<dyn Error + Send + Sync>>>(step: &'static str) -> impl Fn(E) -> Failure {
    move |error| Failure::Serve { step, source: error.into() }
}

/// The configuration, of which the flags are the topmost layer and the file, that of a flag or of the environment, the lowest.
pub fn configure(catalog: &Catalog, flags: Layer, file: Option<&Path>) -> Result<Config, Failure> {
    let mut layers = vec![flags, Layer::from_environment(variable)?];
    if let Some(path) = config_file(file) {
        let text = fs::read_to_string(&path).map_err(|source| Failure::Unreadable { path: path.clone(), source })?;
        layers.push(Layer::from_yaml(&path, &text, catalog)?);
    }
    let names = nix::sys::utsname::uname().map_err(failed("learn the host name"))?;
    Ok(Config::resolve(layers, &names.nodename().to_string_lossy())?)
}

/// That of a flag, else of the environment.
fn config_file(flag: Option<&Path>) -> Option<PathBuf> {
    let of_environment = || variable("LONGSHORE_CONFIG").filter(|path| !path.is_empty()).map(PathBuf::from);
    flag.map(Path::to_owned).or_else(of_environment)
}

/// Lines to standard error, of a level that can be changed; spans to a collector, if there is one, until what is answered is dropped.
pub(super) fn start_log(config: &Config, runtime: &Runtime) -> Result<(server::Log, Option<Traces>), Failure> {
    let step = "start the log";
    let filter = EnvFilter::try_new(config.log.level.as_str()).map_err(failed(step))?;
    let (filter, handle) = reload::Layer::new(filter);
    let lines = tracing_subscriber::fmt::layer().with_writer(io::stderr);
    let lines = match config.log.format {
        LogFormat::Text => lines.with_ansi(io::stderr().is_terminal()).boxed(),
        LogFormat::Json => lines.json().boxed(),
    };
    let subscriber = tracing_subscriber::registry().with(lines.with_filter(filter));
    let traces = match traces(config, runtime).map_err(failed("start the export of traces"))? {
        #[cfg(feature = "otlp")]
        Some(traces) => subscriber.with(traces.layer()).try_init().map(|()| Some(traces)),
        _ => subscriber.try_init().map(|()| None),
    };
    let level = Mutex::new(config.log.level.clone());
    let log = server::Log::new(move |wanted| {
        let mut level = lock(&level);
        if let Some(wanted) = wanted {
            let wanted: LogLevel = wanted.parse()?;
            let filter = EnvFilter::try_new(wanted.as_str()).map_err(|error| error.to_string())?;
            handle.reload(filter).map_err(|error| error.to_string())?;
            *level = wanted;
        }
        Ok(level.to_string())
    });
    Ok((log, traces.map_err(failed(step))?))
}

#[cfg(feature = "otlp")]
fn traces(config: &Config, runtime: &Runtime) -> Result<Option<Traces>, traces::ExporterBuildError> {
    config.otlp_endpoint.as_ref().map(|endpoint| Traces::start(endpoint, config, runtime)).transpose()
}

/// The configuration has refused it already.
#[cfg(not(feature = "otlp"))]
fn traces(_config: &Config, _runtime: &Runtime) -> Result<Option<Traces>, Infallible> {
    Ok(None)
}

/// There is none.
#[cfg(not(feature = "otlp"))]
type Traces = Infallible;

fn runtime() -> Result<Runtime, Failure> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .max_blocking_threads(MOST_OPERATIONS)
        .thread_stack_size(STACK)
        .thread_keep_alive(KEPT)
        .thread_name("longshore")
        .enable_all()
        .build()
        .map_err(failed("start the runtime"))
}

/// A driver that can be served.
struct Built {
    services: Services,
    registry: Registry,
    node: Option<Arc<Node>>,
    /// The node is ours alone until it is dropped.
    alone: Option<StateDirLock>,
}

/// Opens the backends and the node's journal, and finishes what an earlier process left.
fn build(config: Config, lost: oneshot::Sender<volume::Error>) -> Result<Built, Failure> {
    make_directory(config.state_dir.path(), 0o700)?;
    if config.mode.node() {
        let reach = doctor::reaches_pods(config.kubelet_dir.path(), in_pod());
        if reach.level == doctor::Level::Error {
            return Err(Failure::Usage(format!("{}; {}", reach.found, reach.remedy.unwrap_or_default())));
        }
        // The kubelet makes it with this mode; where there is none, there is nobody else to make it.
        make_directory(config.kubelet_dir.path(), 0o750)?;
    }
    let alone = config
        .mode
        .node()
        .then(|| StateDirLock::take(config.state_dir.path()))
        .transpose()
        .map_err(failed("use the state directory"))?;
    let metrics = Metrics::new(config.driver_name.as_str(), env!("CARGO_PKG_VERSION"));
    let (config, identity) = name_node(config)?;
    let config = &config;
    let registry = open_all(config, &metrics, identity).and_then(Registry::new).map_err(failed("open the backends"))?;
    // The receiver is gone where the process ends anyway.
    let lost = move |reason| drop(lost.send(reason));
    registry.leadership().contend(lost).map_err(failed("open the backends"))?;
    let locks = Locks::default();
    let node = match config.mode.node() {
        true => Some(open_node(config, &registry, &locks).map_err(failed("open the node"))?),
        false => None,
    };
    let controller = config.mode.controller().then(|| Arc::new(Controller::new(registry.clone(), locks.clone(), node.clone())));
    let services = Services::new(Parts {
        name: config.driver_name.as_str().to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        registry: registry.clone(),
        controller,
        node: node.clone(),
        tasks: Tasks::counted(metrics.steps()),
        locks,
        metrics,
    });
    Ok(Built { services, registry, node, alone })
}

fn make_directory(path: &Path, mode: u32) -> Result<(), Failure> {
    DirBuilder::new()
        .recursive(true)
        .mode(mode)
        .create(path)
        .map_err(|source| Failure::Directory { path: path.to_owned(), source })
}

/// At the same time: one whose storage hangs makes the start wait once.
fn open_all(
    config: &Config,
    metrics: &Metrics,
    identity: Option<Arc<dyn NodeIdentity>>,
) -> volume::Result<Vec<Arc<dyn Backend>>> {
    let context = OpenContext {
        purpose: Purpose::Serve { controller: config.mode.controller(), node: config.mode.node() },
        node_id: &config.node_id,
        state_dir: config.state_dir.path(),
        metrics: Some(metrics),
        identity,
    };
    std::thread::scope(|scope| {
        let opening: Vec<_> = config.backends.iter().map(|backend| scope.spawn(|| backend.open(&context))).collect();
        let ended = |opening: ScopedJoinHandle<'_, volume::Result<Arc<dyn Backend>>>| {
            opening.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        opening.into_iter().map(ended).collect()
    })
}

/// In a cloud the node is called as the cloud calls it, whatever Kubernetes calls it. Where that cannot be known yet, the driver serves
/// what needs no name of the node, and NodeGetInfo is UNAVAILABLE until it is.
fn name_node(mut config: Config) -> Result<(Config, Option<Arc<dyn NodeIdentity>>), Failure> {
    let mut identities =
        config.backends.iter().filter_map(|backend| backend.node_identity(&config.node_id, config.state_dir.path()));
    let Some(identity) = identities.next().filter(|_| config.mode.node()) else { return Ok((config, None)) };
    match identity.node_id() {
        Ok(id) => config.node_id = id,
        Err(error) if config.backends.iter().any(BackendConfig::keeps_node_id) => {
            return Err(failed("learn which instance this is")(error));
        }
        Err(error) => tracing::warn!(%error, "which instance this is is not known yet; the node is not registered until it is"),
    }
    Ok((config, Some(identity)))
}

fn open_node(config: &Config, registry: &Registry, locks: &Locks) -> volume::Result<Arc<Node>> {
    let settings = NodeSettings {
        node_id: config.node_id.clone(),
        kubelet_dir: config.kubelet_dir.path().to_owned(),
        state_dir: config.state_dir.path().to_owned(),
        inline_limits: inline_limits(config),
    };
    Node::open(settings, registry.clone(), locks.clone(), RECOVERY_PATIENCE)
}

/// SIGTERM and SIGINT.
pub(super) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    pub(super) fn listen() -> io::Result<Self> {
        Ok(Signals { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }

    /// Waits for the first. The second ends the process at once: what runs is then taken up by the next start.
    pub(super) async fn first(mut self) {
        self.next().await;
        tokio::spawn(async move {
            self.next().await;
            tracing::warn!("a second signal: ending at once");
            std::process::exit(1);
        });
    }
}

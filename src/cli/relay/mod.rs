//! `longshore relay`: how one csi-resizer reaches the drivers of all nodes, where volumes are local to nodes.
//!
//! csi-resizer has no mode for drivers on nodes: it asks one driver about every claim that grows. Here that driver is the relay
//! (`--mode controller`), which knows no storage. It writes each call as an annotation of the PersistentVolume, with a label that names the
//! node. On that node a second relay (`--mode node`) watches for this label, calls the node's own driver, and writes the answer beside it.
//! So no node listens on a port, each node sees requests for its own volumes only, and what comes back is the driver's own: code, message
//! and response.
//!
//! Calls are repeated by csi-resizer and idempotent. So nothing here is remembered: a request that outlives its relay is carried out and
//! nobody reads the answer; of two requests the later one replaces the earlier.

use super::api::Api;
use super::args::{RelayArgs, RelayMode};
use super::{Failure, call, serve};
use crate::backend::catalog::Catalog;
use crate::server;

mod controller;
mod message;
mod node;

/// Relays until SIGTERM or SIGINT.
pub fn run(args: &RelayArgs, catalog: &Catalog) -> Result<(), Failure> {
    let config = serve::configure(catalog, args.place.layer(), args.place.config.as_deref())?;
    let runtime = call::runtime()?;
    let (_log, _traces) = serve::start_log(&config, &runtime)?;
    let api = Api::new(&args.service_account).map_err(Failure::Api)?;
    let endpoint = &config.endpoint;
    runtime.block_on(async {
        let signals = serve::Signals::listen().map_err(serve::failed("listen for signals"))?;
        match args.mode {
            RelayMode::Controller => {
                let endpoint = endpoint.to_string().parse().map_err(serve::failed("use the endpoint"))?;
                let relay = controller::Relay::new(api, config.driver_name.as_str(), *args.timeout);
                let served = server::serve_controller(&endpoint, relay.clone(), relay, signals.first());
                served.await.map_err(serve::failed("serve"))
            }
            RelayMode::Node => {
                let relay = node::Relay::new(api, config.driver_name.as_str(), config.node_id.as_str(), endpoint);
                // What runs is begun again by the next relay: its request is still there.
                tokio::select! {
                    () = relay.run() => {}
                    () = signals.first() => {}
                }
                Ok(())
            }
        }
    })
}

//! A proxy before an emulated cloud.

use std::net::SocketAddr;

use super::emulated::{Passed, Server};
use super::wire::{self, Request};

/// Before the cloud at `cloud`: what `refuse` answers does not come to it, and `after` is called before each of its own answers.
pub fn before(
    cloud: SocketAddr,
    refuse: impl Fn(&Request) -> Option<Passed> + Send + Sync + 'static,
    after: impl Fn() + Send + Sync + 'static,
) -> Server {
    known_as(cloud, move |own| (cloud.to_string(), own.to_string()), refuse, after)
}

/// The same, where clients know it by another address than its own: `names` is what the cloud calls itself, and what they are to hear instead, by the
/// address of the proxy.
pub fn known_as(
    cloud: SocketAddr,
    names: impl Fn(SocketAddr) -> (String, String) + Send + Sync + 'static,
    refuse: impl Fn(&Request) -> Option<Passed> + Send + Sync + 'static,
    after: impl Fn() + Send + Sync + 'static,
) -> Server {
    Server::start(move |request, address| {
        if let Some(refused) = refuse(request) {
            return Some(refused);
        }
        let (inner, outer) = names(address);
        let request = Request { body: request.body.replace(&outer, &inner), ..request.clone() };
        let answered = wire::exchange(cloud, &request);
        after();
        // Addresses of the cloud, too, are then asked through here.
        answered.map(|(status, headers, body)| Passed {
            status,
            headers: headers.into_iter().map(|(name, value)| (name, value.replace(&inner, &outer))).collect(),
            body: body.replace(&inner, &outer),
        })
    })
}

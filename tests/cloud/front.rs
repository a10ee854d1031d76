//! A proxy before an emulated cloud.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};

use super::emulated::{Answer, Server};
use super::wire::{self, Request};

/// What a cloud answered, or a proxy for it. Names of headers are in lower case.
pub struct Passed {
    pub status: u16,
    pub headers: BTreeMap<String, String>,
    pub body: String,
}

impl Answer for Passed {
    fn send(self, to: &mut TcpStream) -> std::io::Result<()> {
        let passed = self.headers.iter().filter(|(name, _)| !["content-length", "connection"].contains(&name.as_str()));
        let headers: String = passed.map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let head = format!("HTTP/1.1 {} Said\r\n{headers}content-length: {}\r\n\r\n", self.status, self.body.len());
        to.write_all((head + &self.body).as_bytes())
    }
}

/// Before the cloud at `cloud`: what `refuse` answers does not come to it, and `after` is called before each of its own answers.
pub fn before(
    cloud: SocketAddr,
    refuse: impl Fn(&Request) -> Option<Passed> + Send + Sync + 'static,
    after: impl Fn() + Send + Sync + 'static,
) -> Server {
    Server::start(move |request, address| {
        if let Some(refused) = refuse(request) {
            return Some(refused);
        }
        let (inner, outer) = (cloud.to_string(), address.to_string());
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

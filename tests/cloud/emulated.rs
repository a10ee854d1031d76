//! What the emulators that run in the test's own process have in common: they serve HTTP, do some things later, and have some go wrong.

use std::collections::BTreeMap;
use std::io::{BufReader, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::wire::{self, Request};

/// An answer as it is sent. Names of headers are in lower case.
pub struct Passed {
    pub status: u16,
    pub headers: BTreeMap<String, String>,
    pub body: String,
}

impl Passed {
    fn send(self, to: &mut TcpStream) -> std::io::Result<()> {
        let passed = self.headers.iter().filter(|(name, _)| !["content-length", "connection"].contains(&name.as_str()));
        let headers: String = passed.map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let head = format!("HTTP/1.1 {} Said\r\n{headers}content-length: {}\r\n\r\n", self.status, self.body.len());
        to.write_all((head + &self.body).as_bytes())
    }
}

/// Status, headers and body.
pub struct Reply(pub u16, pub Vec<(&'static str, String)>, pub Value);

impl Reply {
    /// With when to come again, in seconds.
    pub fn retry_after(mut self, seconds: Option<u64>) -> Reply {
        self.1.extend(seconds.map(|seconds| ("retry-after", seconds.to_string())));
        self
    }
}

impl From<Reply> for Passed {
    fn from(Reply(status, headers, body): Reply) -> Passed {
        let headers = headers.into_iter().map(|(name, value)| (name.to_owned(), value));
        let kind = ("content-type".to_owned(), "application/json".to_owned());
        Passed {
            status,
            headers: headers.chain([kind]).collect(),
            body: if body.is_null() { String::new() } else { body.to_string() },
        }
    }
}

/// Where servers listen: also for other network namespaces, if that is said.
fn address() -> IpAddr {
    let said = std::env::var("LONGSHORE_EMULATOR").ok();
    said.map_or(Ipv4Addr::LOCALHOST.into(), |address| address.parse().expect("LONGSHORE_EMULATOR is an address"))
}

/// A server on a port of its own, until it is dropped.
pub struct Server {
    pub address: SocketAddr,
    ended: Arc<AtomicBool>,
}

impl Server {
    /// `answer` is given the server's address; where it has none the connection is cut.
    pub fn start<R: Into<Passed>>(answer: impl Fn(&Request, SocketAddr) -> Option<R> + Send + Sync + 'static) -> Server {
        Server::at(SocketAddr::new(address(), 0), answer)
    }

    /// At this address.
    pub fn at<R: Into<Passed>>(
        at: SocketAddr,
        answer: impl Fn(&Request, SocketAddr) -> Option<R> + Send + Sync + 'static,
    ) -> Server {
        let listener = TcpListener::bind(at).expect("a port");
        let address = listener.local_addr().expect("an address");
        let server = Server { address, ended: Arc::default() };
        let (answer, ended) = (Arc::new(answer), server.ended.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if ended.load(Ordering::Relaxed) {
                    return;
                }
                let answer = answer.clone();
                std::thread::spawn(move || serve(stream, |request| answer(request, address)));
            }
        });
        server
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        // Its listener waits for one more.
        TcpStream::connect(self.address).ok();
    }
}

fn serve<R: Into<Passed>>(mut stream: TcpStream, answer: impl Fn(&Request) -> Option<R>) {
    let mut reader = BufReader::new(stream.try_clone().expect("a connection"));
    let Ok(peer) = stream.peer_addr() else { return };
    while let Some(mut request) = Request::read(&mut reader) {
        request.headers.entry(wire::PEER.to_owned()).or_insert_with(|| peer.ip().to_string());
        let Some(reply) = answer(&request) else {
            stream.shutdown(Shutdown::Both).ok();
            return;
        };
        if reply.into().send(&mut stream).is_err() {
            return;
        }
    }
}

type Effect<S> = Box<dyn FnOnce(&mut S) + Send>;

/// What is done to a state later.
pub struct Later<S>(Vec<(Instant, Effect<S>)>);

impl<S> Default for Later<S> {
    fn default() -> Self {
        Later(Vec::new())
    }
}

impl<S> Later<S> {
    pub fn push(&mut self, delay: Duration, effect: impl FnOnce(&mut S) + Send + 'static) {
        self.0.push((Instant::now() + delay, Box::new(effect)));
    }

    /// All of it ends now.
    pub fn hurry(&mut self) {
        let now = Instant::now();
        self.0.iter_mut().for_each(|(end, _)| *end = now);
    }

    /// Something whose time has come.
    pub fn due(&mut self) -> Option<Effect<S>> {
        let now = Instant::now();
        let place = self.0.iter().position(|(end, _)| *end <= now)?;
        Some(self.0.remove(place).1)
    }
}

/// What goes wrong with the next requests, by their names, and how often.
pub struct Troubles<T>(Vec<(&'static str, T, u32)>);

impl<T> Default for Troubles<T> {
    fn default() -> Self {
        Troubles(Vec::new())
    }
}

impl<T: Clone> Troubles<T> {
    pub fn push(&mut self, request: &'static str, trouble: T, times: u32) {
        self.0.push((request, trouble, times));
    }

    pub fn clear(&mut self) {
        self.0.clear();
    }

    pub fn take(&mut self, request: &str) -> Option<T> {
        let place = self.0.iter().position(|(of, _, _)| *of == request)?;
        let trouble = self.0[place].1.clone();
        self.0[place].2 -= 1;
        if self.0[place].2 == 0 {
            self.0.remove(place);
        }
        Some(trouble)
    }
}

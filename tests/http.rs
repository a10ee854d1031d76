//! Health over HTTP, asked of the driver as the kubelet asks.

mod common;

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::sched::{CloneFlags, unshare};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::net::TcpSocket;

use common::http::ask;
use common::{Harness, Pool, isolated};

fn started() -> Harness {
    let mut harness = Harness::new(Pool::Local);
    harness.with_http();
    harness.start();
    harness
}

/// Connects from this address, and says nothing. None if it was not let in.
async fn silent(from: Ipv4Addr, to: SocketAddr) -> Option<tokio::net::TcpStream> {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.bind((from, 0).into()).expect("an address of the loopback interface");
    socket.connect(to).await.ok()
}

/// `/healthz` answers each time, in the time that the kubelet gives it (`timeoutSeconds` of the shipped YAML).
fn assert_alive(harness: &Harness) {
    for _ in 0..20 {
        let begin = Instant::now();
        assert_eq!(harness.get("/healthz").0, 200);
        assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
    }
}

#[test]
fn health_and_readiness() {
    isolated(|| {
        let mut harness = started();
        assert_eq!(harness.get("/healthz"), (200, "ok\n".to_owned()));
        assert_eq!(harness.get("/readyz"), (200, "[+] calls: ok\n[+] backends: ok\n".to_owned()));
        let (status, pages) = harness.get("/");
        assert!(status == 404 && pages.contains("/healthz") && pages.contains("/readyz"), "{pages}");
        let (head, body) = ask(harness.http(), "HEAD /healthz HTTP/1.1\r\nHost: a\r\n\r\n");
        assert!(head.starts_with("HTTP/1.1 200 ") && body.is_empty(), "{head}\n{body}");
        let (head, _) = ask(harness.http(), "POST /readyz HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n");
        assert!(head.starts_with("HTTP/1.1 405 "), "{head}");
        assert!(harness.stop());
    });
}

#[test]
fn a_pool_that_is_away_is_reported_and_its_coming_back_too() {
    isolated(|| {
        let mut harness = started();
        let (pool, away) = (harness.path("pool/images"), harness.path("pool/away"));
        fs::rename(&pool, &away).expect("moved away");
        // A good probe holds for a second.
        let until = Instant::now() + Duration::from_secs(20);
        let body = loop {
            let (status, body) = harness.get("/readyz");
            if status == 503 {
                break body;
            }
            assert!(Instant::now() < until, "{body}");
        };
        assert!(body.contains("[+] calls: ok\n"), "{body}");
        assert!(body.contains("[-] backends: ") && body.contains(&pool.display().to_string()), "{body}");
        assert_eq!(harness.get("/healthz").0, 200, "that is no reason to kill the driver");
        fs::rename(&away, &pool).expect("moved back");
        assert_eq!(harness.get("/readyz").0, 200);
        assert!(harness.stop());
    });
}

#[test]
fn a_port_in_use_is_reported_at_the_start() {
    isolated(|| {
        let mut harness = Harness::new(Pool::Local);
        let other = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = other.local_addr().expect("its address");
        harness.configure(&format!("httpEndpoint: {address}"));
        assert!(!harness.try_start());
        assert!(harness.wait_end());
        let log = harness.log();
        assert!(log.contains(&format!("{address}: a living process listens there")) && log.contains("--http-endpoint"), "{log}");
        assert!(!harness.path("csi.sock").exists());
    });
}

#[test]
fn all_addresses_are_one_word() {
    isolated(|| {
        let mut harness = Harness::new(Pool::Local);
        harness.configure("httpEndpoint: ':0'");
        harness.start();
        let port = harness.http().port();
        assert_eq!(common::http::get(([127, 0, 0, 1], port).into(), "/healthz").0, 200);
        assert!(harness.stop());
    });
}

#[test]
fn client_that_misbehaves_delays_no_other() {
    isolated(|| {
        let mut harness = started();
        let address = harness.http();
        let silent: Vec<TcpStream> = (0..200).map(|_| TcpStream::connect(address).expect("connected")).collect();
        let (head, _) = ask(address, "no HTTP at all\r\n\r\n");
        assert!(head.starts_with("HTTP/1.1 400 "), "{head}");
        // It is refused, or the connection is closed while it is still being sent.
        let mut endless = TcpStream::connect(address).expect("connected");
        endless.set_read_timeout(Some(Duration::from_secs(20))).expect("a deadline");
        endless.write_all(b"GET / HTTP/1.1\r\nX: ").and_then(|()| endless.write_all(&[b'x'; 64 << 10])).ok();
        let mut answer = Vec::new();
        endless.read_to_end(&mut answer).ok();
        assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 431 "), "{}", String::from_utf8_lossy(&answer));
        assert_eq!(harness.get("/healthz").0, 200);
        drop(silent);
        assert!(harness.stop(), "they keep nobody from ending");
    });
}

#[test]
fn silent_connections_keep_no_probe_out() {
    isolated(|| {
        // Ours are as many as theirs.
        let most = getrlimit(Resource::Nofile).maximum;
        setrlimit(Resource::Nofile, Rlimit { current: most, maximum: most }).expect("room for connections");
        let mut harness = started();
        let address = harness.http();
        let one_peer: Vec<_> = harness.block_on(async {
            let mut open = Vec::new();
            for _ in 0..1200 {
                open.push(silent(Ipv4Addr::LOCALHOST, address).await.expect("let in"));
            }
            open
        });
        assert_alive(&harness);
        let many_peers: Vec<_> = harness.block_on(async {
            let mut open = Vec::new();
            for at in 0..600u32 {
                open.push(silent(Ipv4Addr::from_bits(0x7f00_0100 + at), address).await.expect("let in"));
            }
            open
        });
        assert_alive(&harness);
        // And while another comes again and again.
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let flood = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let mut open = std::collections::VecDeque::new();
                while !stopped.load(Ordering::Relaxed) {
                    open.push_back(silent(Ipv4Addr::new(127, 0, 9, 9), address).await.expect("let in"));
                    if open.len() > 500 {
                        open.pop_front();
                    }
                }
            });
        });
        assert_alive(&harness);
        stop.store(true, Ordering::Relaxed);
        flood.join().expect("it was let in each time");
        drop((one_peer, many_peers));
        assert!(harness.stop(), "they keep nobody from ending");
    });
}

#[test]
fn client_that_sends_nothing_is_dropped_after_two_seconds() {
    isolated(|| {
        let mut harness = started();
        for said in ["", "GET /healthz HTTP/1.1\r\nHost: a\r\n"] {
            let begin = Instant::now();
            let mut stream = TcpStream::connect(harness.http()).expect("connected");
            stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a deadline");
            stream.write_all(said.as_bytes()).expect("sent");
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).ok();
            let took = begin.elapsed();
            assert!(took > Duration::from_secs(1) && took < Duration::from_secs(4), "{said:?}: {took:?}");
        }
        assert!(harness.stop());
    });
}

#[test]
fn metrics_have_a_port_of_their_own_or_none() {
    isolated(|| {
        let mut harness = Harness::new(Pool::Local);
        harness.configure("httpEndpoint: 127.0.0.1:0\nmetricsEndpoint: 127.0.0.1:0");
        harness.start();
        // Its port is the one logged last.
        assert_eq!(harness.get("/metrics").0, 200);
        for page in ["/healthz", "/readyz"] {
            let (status, pages) = harness.get(page);
            assert!(status == 404 && !pages.contains(page), "{pages}");
        }
        assert!(harness.stop());

        let mut harness = Harness::new(Pool::Local);
        harness.configure("httpEndpoint: 127.0.0.1:0\nmetricsEndpoint: off");
        harness.start();
        let (status, pages) = harness.get("/metrics");
        assert!(status == 404 && pages.contains("/healthz") && !pages.contains("/metrics"), "{pages}");
        assert_eq!(harness.get("/healthz").0, 200);
        assert!(harness.stop());

        let mut harness = Harness::new(Pool::Local);
        let other = TcpListener::bind("127.0.0.1:0").expect("a port");
        harness.configure(&format!("metricsEndpoint: {}", other.local_addr().expect("its address")));
        assert!(!harness.try_start() && harness.wait_end());
        assert!(harness.log().contains("use another --metrics-endpoint"), "{}", harness.log());
    });
}

#[test]
fn causes_are_reported_on_the_machine_itself_only() {
    isolated(|| {
        // A network of our own, for an address that is not the loopback's.
        unshare(CloneFlags::CLONE_NEWNET).expect("a network of our own");
        common::run("ip", ["link", "set", "lo", "up"]);
        common::run("ip", ["address", "add", "198.51.100.1/32", "dev", "lo"]);
        let mut harness = Harness::new(Pool::Local);
        harness.configure("httpEndpoint: ':0'");
        harness.start();
        let (pool, away) = (harness.path("pool"), harness.path("pool.away"));
        fs::rename(&pool, &away).expect("moved away");
        let ready = |address: [u8; 4]| common::http::get((address, harness.http().port()).into(), "/readyz");
        let (status, near) = ready([127, 0, 0, 1]);
        assert!(status == 503 && near.contains(&pool.display().to_string()), "{near}");
        let (status, far) = ready([198, 51, 100, 1]);
        assert!(status == 503 && far.contains("[+] calls: ok") && far.contains("[-] backends: failed"), "{far}");
        assert!(!far.contains('/'), "{far}");
        fs::rename(&away, &pool).expect("moved back");
        assert!(harness.stop());
    });
}

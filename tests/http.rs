//! Health over HTTP, asked of the driver as the kubelet asks.

mod common;

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use common::http::ask;
use common::{Harness, Pool, isolated};

fn started() -> Harness {
    let mut harness = Harness::new(Pool::Local);
    harness.with_http();
    harness.start();
    harness
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
fn a_pool_that_is_away_is_told_and_its_coming_back_too() {
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
fn a_port_in_use_is_told_at_the_start() {
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
fn who_misbehaves_holds_up_nobody() {
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

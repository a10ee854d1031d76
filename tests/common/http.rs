//! What the driver answers over HTTP, asked in the plainest way.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use super::Harness;

impl Harness {
    /// Has the next driver serve HTTP at a port that the kernel chooses.
    pub fn with_http(&self) {
        self.configure("httpEndpoint: 127.0.0.1:0");
    }

    /// Where the driver that runs serves HTTP, by its log.
    pub fn http(&self) -> SocketAddr {
        let log = self.log();
        let line = log.lines().rfind(|line| line.contains("serving HTTP")).expect("HTTP is served");
        // In text `address=1.2.3.4:5`, in JSON `"address":"1.2.3.4:5"`.
        let mut words = line.split(|letter: char| !(letter.is_ascii_digit() || matches!(letter, '.' | ':' | '[' | ']')));
        words.rfind(|word| word.len() > 8).and_then(|address| address.parse().ok()).expect("an address")
    }

    /// The status and the body.
    pub fn get(&self, path: &str) -> (u16, String) {
        get(self.http(), path)
    }
}

/// One request on a connection of its own.
pub fn get(address: SocketAddr, path: &str) -> (u16, String) {
    let (head, body) = ask(address, &format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n"));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    (status.unwrap_or_else(|| panic!("no status in {head:?}")), body)
}

/// Sends this, and reads to the end: the head and the body of the answer.
pub fn ask(address: SocketAddr, request: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a deadline");
    stream.write_all(request.as_bytes()).expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {answer:?}"));
    (head.to_owned(), body.to_owned())
}

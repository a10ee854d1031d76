//! HTTP/1.1 in its plainest form, of which a test has every byte in its hands: it must be able to cut a connection anywhere.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// The header by which a server knows who asks, also behind others.
pub const PEER: &str = "x-forwarded-for";

/// A request as it came.
#[derive(Clone, Debug, Default)]
pub struct Request {
    pub method: String,
    /// With its query.
    pub path: String,
    /// Names in lower case.
    pub headers: BTreeMap<String, String>,
    pub body: String,
}

/// The parameters of an action: `VolumeId.1` = `vol-...`.
pub type Parameters = BTreeMap<String, String>;

impl Request {
    /// The next request of a connection; `None` at its end.
    pub fn read(stream: &mut BufReader<TcpStream>) -> Option<Request> {
        let first = line(stream)?;
        let mut words = first.split(' ');
        let (method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
        let (headers, body) = rest(stream)?;
        Some(Request { method, path, headers, body })
    }

    /// Of a query request, in its body or its path.
    pub fn parameters(&self) -> Parameters {
        let query = self.path.split_once('?').map_or("", |(_, query)| query);
        let text = if self.body.is_empty() { query } else { &self.body };
        text.split('&').filter_map(|pair| pair.split_once('=')).map(|(key, value)| (decoded(key), decoded(value))).collect()
    }

    /// By whose key it is signed, and for which region and service: `AKIA.../20260101/us-east-1/ec2/aws4_request`.
    pub fn credential(&self) -> Option<&str> {
        self.headers.get("authorization")?.split("Credential=").nth(1)?.split(',').next()
    }
}

fn line(stream: &mut BufReader<TcpStream>) -> Option<String> {
    let mut line = String::new();
    let read = stream.read_line(&mut line).ok()?;
    (read > 0).then(|| line.trim_end().to_owned())
}

/// Headers and body.
fn rest(stream: &mut BufReader<TcpStream>) -> Option<(BTreeMap<String, String>, String)> {
    let mut headers = BTreeMap::new();
    loop {
        let line = line(stream)?;
        let Some((name, value)) = line.split_once(':') else { break };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    let mut body = Vec::new();
    match headers.get("content-length").and_then(|length| length.parse().ok()) {
        Some(length) => {
            body.resize(length, 0);
            stream.read_exact(&mut body).ok()?;
        }
        None if headers.contains_key("server") => drop(stream.read_to_end(&mut body).ok()?),
        None => {}
    }
    Some((headers, String::from_utf8_lossy(&body).into_owned()))
}

/// Sends one request on a connection of its own: status and body.
pub fn send(to: SocketAddr, request: &Request) -> Option<(u16, String)> {
    exchange(to, request).map(|(status, _, body)| (status, body))
}

/// The same with the headers of the answer, whose names are in lower case.
pub fn exchange(to: SocketAddr, request: &Request) -> Option<(u16, BTreeMap<String, String>, String)> {
    let mut stream = TcpStream::connect(to).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(60))).ok()?;
    let mut text = format!("{} {} HTTP/1.1\r\n", request.method, request.path);
    for (name, value) in &request.headers {
        if !["host", "content-length", "connection"].contains(&name.as_str()) {
            text += &format!("{name}: {value}\r\n");
        }
    }
    let length = request.body.len();
    text += &format!("host: {to}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{}", request.body);
    stream.write_all(text.as_bytes()).ok()?;
    let mut stream = BufReader::new(stream);
    let status = line(&mut stream)?.split(' ').nth(1)?.parse().ok()?;
    let (headers, body) = rest(&mut stream)?;
    Some((status, headers, body))
}

/// An answer that leaves the connection open.
pub fn answer(stream: &mut TcpStream, status: u16, kind: &str, body: &str) -> std::io::Result<()> {
    let length = body.len();
    write!(
        stream,
        "HTTP/1.1 {status} Status\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\nserver: AmazonEC2\r\n\r\n{body}"
    )
}

/// The parameters as a form.
pub fn form(parameters: &Parameters) -> String {
    parameters.iter().map(|(key, value)| format!("{}={}", encoded(key), encoded(value))).collect::<Vec<_>>().join("&")
}

/// moto takes a space for one only as `+`.
fn encoded(text: &str) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => encoded.push(char::from(byte)),
            b' ' => encoded.push('+'),
            _ => encoded += &format!("%{byte:02X}"),
        }
    }
    encoded
}

fn decoded(text: &str) -> String {
    let mut decoded = Vec::new();
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        match byte {
            b'+' => decoded.push(b' '),
            b'%' => {
                let digits: String = bytes.by_ref().take(2).map(char::from).collect();
                decoded.push(u8::from_str_radix(&digits, 16).expect("two hexadecimal digits"));
            }
            _ => decoded.push(byte),
        }
    }
    String::from_utf8(decoded).expect("UTF-8")
}

/// `VolumeId.1`, `VolumeId.2` ... in their order.
pub fn list(parameters: &Parameters, prefix: &str) -> Vec<String> {
    (1..).map_while(|number| parameters.get(&format!("{prefix}.{number}")).cloned()).collect()
}

/// `Filter.1.Name` with `Filter.1.Value.1` ...
pub fn filters(parameters: &Parameters) -> Vec<(String, Vec<String>)> {
    let name = |number| parameters.get(&format!("Filter.{number}.Name")).cloned();
    (1..).map_while(|number| Some((name(number)?, list(parameters, &format!("Filter.{number}.Value"))))).collect()
}

/// Tags below `prefix`: `TagSpecification.1.Tag` or `Tag`.
pub fn tags(parameters: &Parameters, prefix: &str) -> Vec<(String, String)> {
    let of = |number, what| parameters.get(&format!("{prefix}.{number}.{what}")).cloned();
    (1..).map_while(|number| Some((of(number, "Key")?, of(number, "Value").unwrap_or_default()))).collect()
}

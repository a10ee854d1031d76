//! Azure against a small server: what a request to a machine makes of the one before it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::backend::cloud::retry::Patience;
use crate::metrics::CloudRequests;

/// Faster than time.
const SPEED: u32 = 30;
const NODE: &str = "g/vm";

/// What the server answers for one machine: its changes are accepted, and the status of none of them can be read.
#[derive(Default)]
struct Machine {
    is_updating: AtomicBool,
    has_ended: AtomicBool,
}

impl Machine {
    fn reply(&self, head: &str) -> (&'static str, Value) {
        match head {
            _ if head.contains("/oauth2/token") => ("200 OK", json!({"access_token": "token", "expires_in": "86400"})),
            _ if head.starts_with("POST") => ("202 Accepted", Value::Null),
            _ if head.contains("/operations/") && self.has_ended.load(Ordering::SeqCst) => {
                ("200 OK", json!({"status": "Succeeded"}))
            }
            _ if head.contains("/operations/") => {
                ("403 Forbidden", json!({"error": {"code": "AuthorizationFailed", "message": "m"}}))
            }
            _ => {
                let state = if self.is_updating.load(Ordering::SeqCst) { "Updating" } else { "Succeeded" };
                ("200 OK", json!({"properties": {"provisioningState": state}}))
            }
        }
    }
}

/// Answers one request.
fn answer(stream: TcpStream, machine: &Machine, url: &str) {
    let mut reader = BufReader::new(&stream);
    let mut lines = reader.by_ref().lines().map_while(Result::ok).take_while(|line| !line.is_empty());
    let Some(head) = lines.next() else { return };
    let length = lines.filter_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok()).last();
    reader.take(length.unwrap_or_default()).read_to_end(&mut Vec::new()).expect("a body");
    let (status, body) = machine.reply(&head);
    let body = body.to_string();
    let headers = format!("azure-asyncoperation: {url}/operations/1\r\nconnection: close\r\ncontent-length: {}", body.len());
    // Who asked may be gone.
    let _ = (&stream).write_all(format!("HTTP/1.1 {status}\r\n{headers}\r\n\r\n{body}").as_bytes());
}

fn cloud(machine: &Arc<Machine>) -> AzureCloud {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let settings = api::Settings {
        endpoint: url.clone(),
        metadata_endpoint: Some(url.clone()),
        credentials: api::Credentials::Machine { client_id: None },
        patience: Patience::default(),
    };
    let machine = Arc::clone(machine);
    std::thread::spawn(move || listener.incoming().for_each(|stream| answer(stream.expect("a connection"), &machine, &url)));
    let clock = Clock::fast(SPEED, Duration::ZERO);
    let api = Azure::new(settings, clock, CloudRequests::default()).expect("a client");
    let place = Place { subscription: "s".to_owned(), group: "g".to_owned(), location: "westeurope".to_owned() };
    AzureCloud::new(api, place, clock)
}

fn detach(cloud: &AzureCloud) -> Answer<Option<OperationId>> {
    let node = NODE.parse().expect("a node");
    cloud.detach_disks(&node, &[DiskId("longshore-1".to_owned())]).map(|accepted| accepted.operation)
}

#[test]
fn machine_whose_last_change_cannot_be_read_is_changed_once_it_is_not_updating() {
    let machine = Arc::new(Machine::default());
    let cloud = cloud(&machine);
    machine.is_updating.store(true, Ordering::SeqCst);
    detach(&cloud).expect("nothing is before it").expect("an operation");
    assert_eq!(detach(&cloud).expect_err("it still runs").because, CloudErrorKind::TooSoon);
    machine.is_updating.store(false, Ordering::SeqCst);
    detach(&cloud).expect("it has ended");
}

#[test]
fn operation_that_has_ended_is_not_remembered() {
    let machine = Arc::new(Machine::default());
    let cloud = cloud(&machine);
    let operation = detach(&cloud).expect("accepted").expect("an operation");
    assert_eq!(cloud.changing().len(), 1);
    machine.has_ended.store(true, Ordering::SeqCst);
    cloud.operations(&WhichOperations::Ids(vec![operation])).expect("answered");
    assert!(cloud.changing().is_empty());
}

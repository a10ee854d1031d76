//! Azure's own Python client (azure-mgmt-compute, azure-mgmt-resource) makes each request of the driver again, and reads each response of the
//! emulator: `vendor.py`.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};

use serde_json::{Value, json};

use super::super::common;
use super::super::emulated::Reply;
use super::super::tenant::Emulated;
use super::super::wire::Request;
use super::emulator::{Azure, Trouble};
use super::{GROUP, LOCATION, SUBSCRIPTION, TOKEN};

/// A request, and what it was answered; null where the connection was cut.
pub fn exchange(request: &Request, reply: Option<&Reply>) -> Value {
    let response = reply.map(|Reply(status, headers, body)| {
        let headers: serde_json::Map<String, Value> =
            headers.iter().map(|(name, value)| ((*name).to_owned(), value.as_str().into())).collect();
        json!({"status": status, "headers": headers, "body": body})
    });
    let body: Value = serde_json::from_str(&request.body).unwrap_or_default();
    json!({"method": request.method, "path": request.path, "body": body, "response": response})
}

/// One for all tests of this program. Its standard input ends with the program.
struct Client {
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    _process: Child,
}

/// How many requests were compared, and what is wrong with them or their responses; `Err` says why there is no such client here.
pub fn compare(exchanges: &[Value]) -> Result<(u64, Vec<String>), String> {
    static CLIENT: OnceLock<Result<Mutex<Client>, String>> = OnceLock::new();
    let mut client = CLIENT.get_or_init(start).as_ref().map_err(String::clone)?.lock().unwrap_or_else(PoisonError::into_inner);
    writeln!(client.input, "{}", Value::from(exchanges)).expect("the client reads");
    let mut line = String::new();
    client.output.read_line(&mut line).expect("the client answers");
    let answer: (u64, Vec<String>) = serde_json::from_str(&line).unwrap_or_else(|error| panic!("vendor.py: {error}: {line:?}"));
    Ok(answer)
}

fn python() -> Result<PathBuf, String> {
    common::tools::python("azure", Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cloud/azure/requirements.txt")))
}

fn start() -> Result<Mutex<Client>, String> {
    let python = python()?;
    let _starting = common::starting();
    let mut process = Command::new(python)
        .args(["-c", include_str!("vendor.py")])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| format!("python: {error}"))?;
    let input = process.stdin.take().expect("a pipe");
    let output = BufReader::new(process.stdout.take().expect("a pipe"));
    Ok(Mutex::new(Client { input, output, _process: process }))
}

/// Each request of each test is compared where the emulator ends; here it is seen that the comparison finds something.
#[test]
fn azure_own_client_finds_what_is_wrong() {
    let path = format!(
        "/subscriptions/{SUBSCRIPTION}/resourceGroups/{GROUP}/providers/Microsoft.Compute/disks/d?api-version=2024-03-02"
    );
    let disk = json!({"location": LOCATION, "properties": {"diskSizeGB": 1, "creationData": {"createOption": "Empty"}}});
    let (mut field, mut value) = (disk.clone(), disk.clone());
    field["properties"]["diskSizeGb"] = 1.into();
    value["properties"]["creationData"]["createOption"] = "None".into();
    let put = |path: &str, body: &Value, status: u16, answer: Value| json!({"method": "PUT", "path": path, "body": body, "response": {"status": status, "headers": {}, "body": answer}});
    let wrong = |exchange: Value| match compare(&[exchange]) {
        Ok((compared, wrong)) => Some((compared, wrong.join("\n"))),
        Err(why) => {
            common::skipped(&why);
            None
        }
    };
    let Some(right) = wrong(put(&path, &disk, 202, disk.clone())) else { return };
    assert_eq!(right, (1, String::new()));
    for (exchange, expected) in [
        (put(&path, &field, 202, Value::Null), "diskSizeGb: Disk has no such field"),
        (put(&path, &value, 202, Value::Null), "'None' is no DiskCreateOption"),
        (put(&path.replace("2024", "2023"), &disk, 202, Value::Null), "its query is"),
        (put(&path, &disk, 203, Value::Null), "status 203 is none of the client's"),
        (put(&path, &disk, 409, json!({"message": "no code"})), "reads no code of error"),
        (put(&path, &disk, 202, field.clone()), "-> 202.properties.diskSizeGb: Disk has no such field"),
        (put(&path.replace("/disks/d", "/disks/d/e"), &disk, 202, Value::Null), "has no such request"),
    ] {
        let (_, wrong) = wrong(exchange).expect("it is there");
        assert!(wrong.contains(expected), "{wrong}");
    }
}

/// The emulator's operations are such as the client follows them to their end.
#[test]
fn azure_own_client_manages_disks_of_the_emulator() {
    let python = match python() {
        Ok(python) => python,
        Err(why) => return common::skipped(&why),
    };
    let azure = Azure::start();
    azure.state().page = 2;
    let (url, token) = (format!("http://{}", azure.address), format!("{TOKEN}-{}", azure.state().token));
    let starting = common::starting();
    let mut client = Command::new(python)
        .args(["-c", include_str!("vendor_life.py"), &url, &token, SUBSCRIPTION, GROUP, LOCATION])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python");
    drop(starting);
    let mut line = String::new();
    BufReader::new(client.stdout.take().expect("a pipe")).read_line(&mut line).expect("it is read");
    if line == "now\n" {
        azure.trouble("disks.put", Trouble::Fail("AllocationFailed"), 1);
    }
    // It waits for its input's end.
    drop(client.stdin.take());
    assert!(client.wait().expect("it ends").success(), "see what it says above");
    azure.assert_empty("at the end");
}

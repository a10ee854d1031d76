//! A stand-in for Azure Resource Manager, for the metadata service of a machine, and for Microsoft Entra.
//!
//! What it does, and by which source:
//! - Each request names the API version of its resource type, and a body has only fields of the service's description (azure-rest-api-specs,
//!   Microsoft.Compute: DiskRP 2024-03-02, ComputeRP 2024-07-01; Microsoft.Resources: tags 2021-04-01, subscriptions 2022-12-01).
//! - A PUT of a name that exists changes that resource, and takes all of its tags away (Disks - Create Or Update); what cannot change is refused
//!   with PropertyChangeNotAllowed.
//! - What changes something is accepted with 202, `Azure-AsyncOperation` or only `Location`, and `Retry-After`; it ends later, and may fail then
//!   ("Track asynchronous Azure operations"). An operation that failed is answered with 200; one that was cancelled has no code.
//! - Names have no case, and answers have another case than requests (cloud-provider-azure, `GetResourceGroup…` in upper case).
//! - A machine lists what is to be attached, at once; what is, its instance view says (azuredisk-csi-driver issue 780). While it changes it refuses
//!   other changes (409), and `toBeDetached` is still there.
//! - A disk says whose it is (`managedBy`) a while after the machine is gone; a machine of a scale set that was deleted is 400 InvalidParameter
//!   (cloud-provider-azure).
//! - At most so many data disks by size (409 OperationNotAllowed), one for a LUN; a disk is its machine's (ConflictingUserInput).
//! - A disk that is attached is not deleted; one for several machines does not grow while it is attached, and none grows across 4 TiB then
//!   ("Expand virtual hard disks", limitations).
//! - Snapshots are copied in the background: `completionPercent` ("Create an incremental snapshot").
//! - Lists come in pages, `nextLink`. Errors: `{"error": {"code", "message"}}`; throttling is 429 with `Retry-After`.
//! - A token of a managed identity, of a secret or of a federated token (Entra: "client credentials flow"; metadata service: header `Metadata`).
//!
//! Every request, and every response, is compared with Azure's own Python client of these versions when the emulator ends (`vendor`).
//!
//! Roles are not in it: which rights a request needs is compared with the document (`lifecycle.rs`). What the real service answers to a
//! detachment of what is not attached, and to a LUN that is taken, is not documented: here it is 400.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::super::emulated::{Later, Reply, Server, Troubles};
use super::super::wire::Request;
use super::vendor;
use super::{FEDERATED, GROUP, LOCATION, SECRET, SUBSCRIPTION, TOKEN};

const GIB_4096: u64 = 4096;

/// What becomes of requests of one kind.
#[derive(Clone, Debug)]
pub enum Trouble {
    /// It is not done, and the connection is cut.
    Before,
    /// It is done, and the connection is cut.
    After,
    /// It is not done, and refused.
    Refuse { status: u16, code: &'static str, message: &'static str, retry_after: Option<u64> },
    /// It is accepted, and takes so long.
    Late(Duration),
    /// It is accepted, and its operation fails with this code; without one it is cancelled.
    Fail(&'static str),
    /// It is answered with 200, and an error.
    FailAtOnce(&'static str),
}

#[derive(Default)]
pub struct State {
    /// By their names in lower case.
    pub disks: BTreeMap<String, Value>,
    pub snapshots: BTreeMap<String, Value>,
    /// By their paths below the subscription, in lower case.
    pub machines: BTreeMap<String, Value>,
    /// `None` while it runs; then its error, or null.
    operations: BTreeMap<String, Option<Value>>,
    later: Later<State>,
    troubles: Troubles<Trouble>,
    pub counts: BTreeMap<&'static str, u64>,
    /// The rights that requests have needed.
    pub rights: BTreeSet<String>,
    pub violations: Vec<String>,
    /// What is accepted takes so long.
    pub delay: Duration,
    /// The copy of a snapshot takes so long, behind its operation.
    pub copy: Duration,
    /// How many disks a machine takes; `None` by its size.
    pub room: Option<usize>,
    pub page: usize,
    /// How tokens were asked for.
    pub grants: Vec<String>,
    /// Which of the tokens are good.
    pub token: u64,
    pub zones: Vec<&'static str>,
    /// What the metadata service of `n1` still says of its data disks; `None` where it says what the machine lists.
    pub outdated: Option<Value>,
    made: u64,
    /// All requests to the service, with their responses: for [`super::vendor`].
    exchanges: Vec<Value>,
}

pub struct Azure {
    pub address: SocketAddr,
    state: Arc<Mutex<State>>,
    _server: Server,
}

fn refuse(status: u16, code: &str, message: impl Into<String>) -> Reply {
    Reply(status, vec![("x-ms-request-id", "request-1".to_owned())], json!({"error": {"code": code, "message": message.into()}}))
}

fn ok(body: Value) -> Reply {
    Reply(200, vec![("x-ms-ratelimit-remaining-subscription-reads", "11999".to_owned())], body)
}

fn missing(kind: &str, name: &str) -> Reply {
    let message = format!("The Resource 'Microsoft.Compute/{kind}/{name}' under resource group '{GROUP}' was not found.");
    refuse(404, "ResourceNotFound", message)
}

/// What a request is, as the driver calls it; the API version that it names; and the right that it needs ("Azure permissions for Compute").
fn name_of(method: &str, path: &str) -> (&'static str, &'static str, &'static str) {
    const DISKS: &str = "2024-03-02";
    const MACHINES: &str = "2024-07-01";
    let is = |part: &str| path.contains(part);
    let single = path.split('/').next_back().is_some_and(|last| last != "disks" && last != "snapshots");
    match method {
        "PATCH" if is("/microsoft.resources/tags/default") => ("tags.update", "2021-04-01", "Microsoft.Resources/tags/write"),
        "GET" if is("/diskoperations/") => ("operations.get", DISKS, "Microsoft.Compute/locations/diskOperations/read"),
        "GET" if is("/operations/") => ("operations.get", MACHINES, "Microsoft.Compute/locations/operations/read"),
        "POST" if is("/virtualmachinescalesets/") && path.ends_with("/attachdetachdatadisks") => (
            "virtualMachines.attachDetachDataDisks",
            MACHINES,
            "Microsoft.Compute/virtualMachineScaleSets/virtualMachines/attachDetachDataDisks/action",
        ),
        "POST" if path.ends_with("/attachdetachdatadisks") => {
            ("virtualMachines.attachDetachDataDisks", MACHINES, "Microsoft.Compute/virtualMachines/attachDetachDataDisks/action")
        }
        "GET" if is("/virtualmachinescalesets/") => {
            ("virtualMachines.get", MACHINES, "Microsoft.Compute/virtualMachineScaleSets/virtualMachines/read")
        }
        "GET" if is("/virtualmachines/") => ("virtualMachines.get", MACHINES, "Microsoft.Compute/virtualMachines/read"),
        "GET" if is("/snapshots") && single => ("snapshots.get", DISKS, "Microsoft.Compute/snapshots/read"),
        "GET" if is("/snapshots") => ("snapshots.list", DISKS, "Microsoft.Compute/snapshots/read"),
        "PUT" if is("/snapshots/") => ("snapshots.put", DISKS, "Microsoft.Compute/snapshots/write"),
        "DELETE" if is("/snapshots/") => ("snapshots.delete", DISKS, "Microsoft.Compute/snapshots/delete"),
        "GET" if is("/disks") && single => ("disks.get", DISKS, "Microsoft.Compute/disks/read"),
        "GET" if is("/disks") => ("disks.list", DISKS, "Microsoft.Compute/disks/read"),
        "PUT" if is("/disks/") => ("disks.put", DISKS, "Microsoft.Compute/disks/write"),
        "PATCH" if is("/disks/") => ("disks.update", DISKS, "Microsoft.Compute/disks/write"),
        "DELETE" if is("/disks/") => ("disks.delete", DISKS, "Microsoft.Compute/disks/delete"),
        "GET" if path.ends_with("/locations") => {
            ("locations.list", "2022-12-01", "Microsoft.Resources/subscriptions/locations/read")
        }
        _ => ("unknown", "", ""),
    }
}

/// The path of a machine, of `n1` or of `set/3`.
fn machine_path(name: &str) -> String {
    let group = GROUP.to_ascii_lowercase();
    match name.split_once('/') {
        Some((set, number)) => {
            format!("resourcegroups/{group}/providers/microsoft.compute/virtualmachinescalesets/{set}/virtualmachines/{number}")
        }
        None => format!("resourcegroups/{group}/providers/microsoft.compute/virtualmachines/{name}"),
    }
}

/// As the service answers: in another case.
fn shouted(path: &str) -> String {
    format!("/subscriptions/{SUBSCRIPTION}/{}", path.replace(&GROUP.to_ascii_lowercase(), &GROUP.to_ascii_uppercase()))
        .replace("virtualmachinescalesets", "virtualMachineScaleSets")
        .replace("virtualmachines", "virtualMachines")
        .replace("resourcegroups", "resourceGroups")
}

impl Azure {
    /// With two machines, `n1` and `n2`, in zone 1.
    pub fn start() -> Azure {
        let state = State {
            delay: Duration::from_millis(50),
            copy: Duration::from_millis(100),
            page: 1000,
            zones: vec!["1", "2", "3"],
            ..State::default()
        };
        let state = Arc::new(Mutex::new(state));
        let served = state.clone();
        let server = Server::start(move |request, address| answer(request, &served, address));
        let azure = Azure { address: server.address, state, _server: server };
        ["n1", "n2"].iter().for_each(|name| azure.add_machine(name, "Standard_D4s_v5", Some("1")));
        azure
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.lock().expect("no panic");
        state.pump();
        state
    }

    pub fn add_machine(&self, name: &str, size: &str, zone: Option<&str>) {
        let machine = json!({"location": LOCATION, "zones": zone.map(|zone| vec![zone]), "properties": {
            "provisioningState": "Succeeded", "hardwareProfile": {"vmSize": size}, "storageProfile": {"dataDisks": []},
            "instanceView": {"statuses": [{"code": "ProvisioningState/succeeded"}, {"code": "PowerState/running"}], "disks": []}}});
        self.state().machines.insert(machine_path(name), machine);
    }

    /// A machine, to be changed.
    pub fn machine<T>(&self, name: &str, change: impl FnOnce(&mut Value) -> T) -> T {
        change(self.state().machines.get_mut(&machine_path(name)).expect("a machine"))
    }

    pub fn remove_machine(&self, name: &str) {
        self.state().machines.remove(&machine_path(name));
    }

    /// The LUNs of a machine, with what they are to have.
    pub fn luns(&self, name: &str) -> Vec<(u64, String)> {
        self.machine(name, |machine| {
            let disks = machine["properties"]["storageProfile"]["dataDisks"].as_array().expect("a list").clone();
            disks
                .iter()
                .map(|disk| (disk["lun"].as_u64().expect("a LUN"), disk["name"].as_str().expect("a name").to_owned()))
                .collect()
        })
    }

    /// From now on the metadata service says what it says now.
    pub fn let_host_lag(&self) {
        let mut state = self.state();
        state.outdated = Some(state.reported_by_host("n1"));
    }

    /// A person detaches a disk from `n1`, and nobody tells the driver.
    pub fn detach_by_hand(&self, name: &str) {
        let mut state = self.state();
        let disks =
            &mut state.machines.get_mut(&machine_path("n1")).expect("a machine")["properties"]["storageProfile"]["dataDisks"];
        disks.as_array_mut().expect("a list").retain(|listed| listed["name"] != name);
        state.release(name, &shouted(&machine_path("n1")));
    }

    /// So many requests of this kind go wrong.
    pub fn trouble(&self, request: &'static str, trouble: Trouble, times: u32) {
        self.state().troubles.push(request, trouble, times);
    }

    pub fn forget_troubles(&self) {
        self.state().troubles.clear();
    }

    pub fn count(&self, request: &str) -> u64 {
        self.state().counts.get(request).copied().unwrap_or_default()
    }

    /// What counts requests, for another thread.
    pub fn counter(&self) -> Counter {
        Counter(self.state.clone())
    }

    /// The one disk there is.
    pub fn disk(&self) -> Value {
        let state = self.state();
        assert_eq!(state.disks.len(), 1, "{:#?}", state.disks);
        state.disks.values().next().expect("one").clone()
    }

    /// No operation runs.
    pub fn wait_until_idle(&self) {
        let begun = Instant::now();
        while self.state().operations.values().any(Option::is_none) {
            assert!(begun.elapsed() < Duration::from_secs(30), "operations end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

pub struct Counter(Arc<Mutex<State>>);

impl Counter {
    pub fn count(&self, request: &str) -> u64 {
        self.0.lock().expect("no panic").counts.get(request).copied().unwrap_or_default()
    }
}

/// `None` where the connection is cut.
fn answer(request: &Request, state: &Mutex<State>, address: SocketAddr) -> Option<Reply> {
    let path = request.path.split('?').next().unwrap_or_default().trim_start_matches('/').to_ascii_lowercase();
    let mut state = state.lock().expect("no panic");
    state.pump();
    if path.starts_with("metadata/") || path.ends_with("/oauth2/v2.0/token") {
        return Some(state.identity(&path, request));
    }
    let reply = serve(&mut state, &path, request, address);
    state.exchanges.push(vendor::exchange(request, reply.as_ref()));
    reply
}

fn serve(state: &mut State, path: &str, request: &Request, address: SocketAddr) -> Option<Reply> {
    let (name, version, right) = name_of(&request.method, path);
    let trouble = state.troubles.take(name);
    match &trouble {
        Some(Trouble::Before) => None,
        Some(Trouble::Refuse { status, code, message, retry_after }) => {
            *state.counts.entry(name).or_default() += 1;
            Some(refuse(*status, code, *message).retry_after(*retry_after))
        }
        Some(Trouble::FailAtOnce(code)) => {
            Some(Reply(200, Vec::new(), json!({"error": {"code": code, "message": "words of the answer"}})))
        }
        _ => {
            let reply = state.perform(name, version, right, path, request, address, trouble.clone());
            if matches!(trouble, Some(Trouble::After)) { None } else { Some(reply) }
        }
    }
}

/// Azure's own client sends the same requests, and reads these responses.
impl Drop for Azure {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        let exchanges = std::mem::take(&mut self.state.lock().expect("no panic").exchanges);
        match vendor::compare(&exchanges) {
            Ok((_, wrong)) => assert_eq!(wrong, Vec::<String>::new(), "by Azure's own client"),
            Err(why) => eprintln!("not compared with Azure's own client: {why}"),
        }
    }
}

impl State {
    /// All that was accepted ends now.
    pub fn hurry(&mut self) {
        self.later.hurry();
    }

    /// What was accepted, and has ended by now.
    fn pump(&mut self) {
        while let Some(effect) = self.later.due() {
            effect(self);
        }
    }

    fn bad(&mut self, what: String) -> Reply {
        self.violations.push(what.clone());
        refuse(400, "InvalidParameter", what)
    }

    fn now() -> String {
        humantime::format_rfc3339_micros(std::time::SystemTime::now()).to_string().replace('Z', "+00:00")
    }

    /// The data disks of a machine in the words of its metadata service: numbers are text ("Instance Metadata Service", storage profile).
    fn reported_by_host(&self, name: &str) -> Value {
        let listed = &self.machines[&machine_path(name)]["properties"]["storageProfile"]["dataDisks"];
        let reported = listed.as_array().expect("a list").iter().map(|listed| {
            let size = &self.disks[listed["name"].as_str().expect("a name")]["properties"]["diskSizeGB"];
            json!({"lun": listed["lun"].to_string(), "name": listed["name"], "diskSizeGB": size.to_string(),
                "managedDisk": listed["managedDisk"]})
        });
        reported.collect()
    }

    /// Entra, and the metadata service.
    fn identity(&mut self, path: &str, request: &Request) -> Reply {
        let parameters = request.parameters();
        let get = |key: &str| parameters.get(key).cloned().unwrap_or_default();
        let token = |state: &State| format!("{TOKEN}-{}", state.token);
        if path.starts_with("metadata/") {
            if request.headers.get("metadata").map(String::as_str) != Some("true") || get("api-version").is_empty() {
                return self.bad("metadata: without its header, or its version".to_owned());
            }
            if path == "metadata/identity/oauth2/token" {
                self.grants.push(format!("machine {}", get("client_id")));
                if get("client_id") == "unknown" {
                    return Reply(
                        400,
                        Vec::new(),
                        json!({"error": "invalid_request", "error_description": "Identity not found"}),
                    );
                }
                let body = json!({"access_token": token(self), "expires_in": "3599", "resource": get("resource")});
                return Reply(200, Vec::new(), body);
            }
            let name = request.headers.get("x-machine").map_or("n1", String::as_str);
            let id = shouted(&machine_path(name));
            let disks = self.outdated.clone().unwrap_or_else(|| self.reported_by_host(name));
            let compute = json!({"resourceId": id, "location": LOCATION, "zone": "1", "vmSize": "Standard_D4s_v5",
                "storageProfile": {"dataDisks": disks}});
            return Reply(200, Vec::new(), json!({"compute": compute}));
        }
        let proof = match (get("client_secret").as_str(), get("client_assertion").as_str()) {
            (SECRET, "") => "secret",
            ("", FEDERATED) if get("client_assertion_type") == "urn:ietf:params:oauth:client-assertion-type:jwt-bearer" => {
                "federated"
            }
            _ => return Reply(401, Vec::new(), json!({"error": "invalid_client", "error_description": SECRET})),
        };
        if get("grant_type") != "client_credentials" || !get("scope").ends_with("/.default") || !path.starts_with("tenant-1/") {
            return self.bad(format!("token: {}", request.path));
        }
        self.grants.push(format!("{proof} {}", get("client_id")));
        Reply(200, Vec::new(), json!({"token_type": "Bearer", "access_token": token(self), "expires_in": 3599}))
    }

    #[allow(clippy::too_many_arguments, reason = "a request has so many parts")]
    fn perform(
        &mut self,
        name: &'static str,
        version: &str,
        right: &str,
        path: &str,
        request: &Request,
        address: SocketAddr,
        trouble: Option<Trouble>,
    ) -> Reply {
        if request.headers.get("authorization") != Some(&format!("Bearer {TOKEN}-{}", self.token)) {
            return refuse(401, "ExpiredAuthenticationToken", "The access token has expired.");
        }
        *self.counts.entry(name).or_default() += 1;
        let query = Request { body: String::new(), ..request.clone() }.parameters();
        let prefix = format!("subscriptions/{SUBSCRIPTION}/");
        let Some(rest) = path.strip_prefix(&prefix).map(str::to_owned).filter(|_| name != "unknown") else {
            return self.bad(format!("{} {}: no request of the service", request.method, request.path));
        };
        if query.get("api-version").map(String::as_str) != Some(version) {
            return self.bad(format!("{} {}: not of version {version}", request.method, request.path));
        }
        self.rights.insert(right.to_owned());
        let body: Value = serde_json::from_str(&request.body).unwrap_or_default();
        let has_body = ["PUT", "PATCH", "POST"].contains(&request.method.as_str());
        if has_body != body.is_object() {
            return self.bad(format!("{} {}: its body", request.method, request.path));
        }
        let last = rest.rsplit('/').next().unwrap_or_default().to_owned();
        match name {
            "operations.get" => self.operation(&last, path),
            "locations.list" => {
                let zones: Vec<Value> = self.zones.iter().map(|zone| json!({"logicalZone": zone, "physicalZone": "x"})).collect();
                ok(json!({"value": [{"name": "eastus"}, {"name": LOCATION, "availabilityZoneMappings": zones}]}))
            }
            "disks.get" => self.disks.get(&last).cloned().map_or_else(|| missing("disks", &last), ok),
            "snapshots.get" => self.snapshots.get(&last).cloned().map_or_else(|| missing("snapshots", &last), ok),
            "disks.list" => self.list(&self.disks.values().cloned().collect::<Vec<_>>(), request, address),
            "snapshots.list" => self.list(&self.snapshots.values().cloned().collect::<Vec<_>>(), request, address),
            "virtualMachines.get" => self.machine(&rest, &query),
            "disks.put" => self.put_disk(&last, &body, address, trouble),
            "snapshots.put" => self.put_snapshot(&last, &body, address, trouble),
            "disks.update" => self.update_disk(&last, &body, address, trouble),
            "tags.update" => self.merge_tags(&rest, &body),
            "disks.delete" => self.delete_disk(&last, address, trouble),
            "snapshots.delete" => self.delete_snapshot(&last, address, trouble),
            _ => self.attach_or_detach(&rest, &body, address, trouble),
        }
    }

    fn list(&self, all: &[Value], request: &Request, address: SocketAddr) -> Reply {
        let skip = request.path.split("$skipToken=").nth(1).and_then(|skip| skip.parse::<usize>().ok()).unwrap_or_default();
        let page: Vec<&Value> = all.iter().skip(skip).take(self.page).collect();
        let mut answer = json!({"value": page});
        if skip + self.page < all.len() {
            let path = request.path.split("&$skipToken").next().unwrap_or_default();
            answer["nextLink"] = format!("http://{address}{path}&$skipToken={}", skip + self.page).into();
        }
        ok(answer)
    }

    fn machine(&mut self, path: &str, query: &BTreeMap<String, String>) -> Reply {
        if query.get("$expand").map(String::as_str) != Some("instanceView") {
            return self.bad("a machine without its instance view".to_owned());
        }
        if let Some(machine) = self.machines.get(path) {
            return ok(machine.clone());
        }
        match path.contains("/virtualmachinescalesets/") {
            true => refuse(
                400,
                "InvalidParameter",
                "The provided instanceId is not an active Virtual Machine Scale Set VM instanceId, and not valid.",
            ),
            false => missing("virtualMachines", path.rsplit('/').next().unwrap_or_default()),
        }
    }

    /// Accepts, and ends in so much time: well, or with an error.
    fn accept(
        &mut self,
        address: SocketAddr,
        trouble: Option<Trouble>,
        kind: &str,
        body: Value,
        well: impl FnOnce(&mut State) + Send + 'static,
        ill: impl FnOnce(&mut State) + Send + 'static,
    ) -> Reply {
        self.made += 1;
        let id = format!("op-{}", self.made);
        self.operations.insert(id.clone(), None);
        let delay = if let Some(Trouble::Late(delay)) = trouble { delay } else { self.delay };
        let (of, code) = (id.clone(), if let Some(Trouble::Fail(code)) = trouble { Some(code) } else { None });
        let effect = move |state: &mut State| {
            match code {
                None => well(state),
                Some(_) => ill(state),
            }
            let error = match code {
                None => Value::Null,
                Some("") => json!({"status": "Canceled"}),
                Some(code) => json!({"status": "Failed", "error": {"code": code, "message": "words of the operation"}}),
            };
            state.operations.insert(of, Some(error));
        };
        self.later.push(delay, effect);
        let url = format!(
            "http://{address}/subscriptions/{SUBSCRIPTION}/providers/Microsoft.Compute/locations/{LOCATION}/{kind}/{id}?p=1&api-version={}",
            if kind == "operations" { "2024-07-01" } else { "2024-03-02" }
        );
        // Of machines every other one has only `Location`.
        let mut headers = vec![("location", format!("{url}&monitor=true")), ("retry-after", "1".to_owned())];
        if kind != "operations" || self.made.is_multiple_of(2) {
            headers.push(("azure-asyncoperation", url));
        } else {
            headers[0].1 = url.replace(&id, &format!("{id}-result"));
        }
        Reply(202, headers, body)
    }

    fn operation(&mut self, id: &str, path: &str) -> Reply {
        let is_result = id.ends_with("-result");
        let id = id.trim_end_matches("-result");
        match (self.operations.get(id), is_result) {
            (None, _) => refuse(404, "NotFound", format!("{path}: no such operation")),
            (Some(None), true) => Reply(202, vec![("retry-after", "1".to_owned())], Value::Null),
            (Some(None), false) => ok(json!({"name": id, "status": "InProgress"})),
            // Also what failed, with 200 (azuredisk-csi-driver PR 1356).
            (Some(Some(Value::Null)), true) => ok(Value::Null),
            (Some(Some(Value::Null)), false) => ok(json!({"name": id, "status": "Succeeded"})),
            (Some(Some(error)), _) => ok(error.clone()),
        }
    }

    fn check_fields(&mut self, what: &str, value: &Value, fields: &[&str]) -> Result<(), Reply> {
        let unknown: Vec<String> = value
            .as_object()
            .into_iter()
            .flatten()
            .map(|(key, _)| key.clone())
            .filter(|key| !fields.contains(&key.as_str()))
            .collect();
        match unknown.is_empty() && value.is_object() {
            true => Ok(()),
            false => Err(self.bad(format!("{what}: {unknown:?} in {value}"))),
        }
    }

    fn check_tags(&mut self, tags: &Value) -> Result<(), Reply> {
        let all: Vec<(String, String)> = tags
            .as_object()
            .into_iter()
            .flatten()
            .map(|(key, value)| (key.clone(), value.as_str().unwrap_or("?").to_owned()))
            .collect();
        let fits = |(key, value): &(String, String)| {
            key.len() <= 512 && value.chars().count() <= 256 && !key.contains(['<', '>', '%', '&', '\\', '?', '/'])
        };
        match all.len() <= 50 && all.iter().all(fits) {
            true => Ok(()),
            false => Err(self.bad(format!("tags: {tags}"))),
        }
    }

    fn put_disk(&mut self, name: &str, body: &Value, address: SocketAddr, trouble: Option<Trouble>) -> Reply {
        match self.checked_disk(name, body) {
            Ok(None) => {}
            Ok(Some(reply)) | Err(reply) => return reply,
        }
        if let Some(there) = self.disks.get_mut(name) {
            if there["properties"]["creationData"] != body["properties"]["creationData"] || there["sku"] != body["sku"] {
                return refuse(409, "PropertyChangeNotAllowed", "Changing property 'creationData' is not allowed.");
            }
            there["tags"] = body["tags"].clone();
            return ok(there.clone());
        }
        let mut disk = body.clone();
        disk["name"] = name.to_ascii_uppercase().into();
        disk["id"] =
            shouted(&format!("resourcegroups/{}/providers/Microsoft.Compute/disks/{name}", GROUP.to_ascii_lowercase())).into();
        disk["properties"]["provisioningState"] = "Creating".into();
        // The service shows that of the size, too.
        if body["sku"]["name"].as_str().is_some_and(|sku| sku.starts_with("Premium_")) && body["properties"]["tier"].is_null() {
            disk["properties"]["tier"] = if body["properties"]["diskSizeGB"].as_u64() > Some(512) { "P30" } else { "P3" }.into();
        }
        self.disks.insert(name.to_owned(), disk.clone());
        disk["properties"]["provisioningState"] = "Updating".into();
        let (made, failed) = (name.to_owned(), name.to_owned());
        let is_cold =
            ["Standard_LRS", "StandardSSD_LRS", "Premium_LRS"].contains(&body["sku"]["name"].as_str().unwrap_or_default());
        self.accept(
            address,
            trouble,
            "DiskOperations",
            disk,
            move |state| {
                let Some(disk) = state.disks.get_mut(&made) else { return };
                disk["properties"]["provisioningState"] = "Succeeded".into();
                disk["properties"]["diskState"] = "Unattached".into();
                disk["properties"]["timeCreated"] = State::now().into();
                if is_cold || disk["properties"]["diskIOPSReadWrite"].is_null() {
                    disk["properties"]["diskIOPSReadWrite"] = 500.into();
                    disk["properties"]["diskMBpsReadWrite"] = 60.into();
                }
            },
            move |state| drop(state.disks.remove(&failed)),
        )
    }

    fn checked_disk(&mut self, name: &str, body: &Value) -> Result<Option<Reply>, Reply> {
        self.check_fields("disk", body, &["location", "zones", "sku", "tags", "properties"])?;
        self.check_tags(&body["tags"])?;
        let properties = &body["properties"];
        let fields = [
            "creationData",
            "diskSizeGB",
            "networkAccessPolicy",
            "publicNetworkAccess",
            "diskAccessId",
            "diskIOPSReadWrite",
            "diskMBpsReadWrite",
            "maxShares",
            "encryption",
            "tier",
            "burstingEnabled",
        ];
        self.check_fields("disk's properties", properties, &fields)?;
        self.check_fields(
            "creation",
            &properties["creationData"],
            &["createOption", "sourceResourceId", "logicalSectorSize", "performancePlus"],
        )?;
        let sku = body["sku"]["name"].as_str().unwrap_or_default();
        let is_fast = ["PremiumV2_LRS", "UltraSSD_LRS"].contains(&sku);
        let is_zrs = sku.ends_with("_ZRS");
        let zones = body["zones"].as_array().map_or(0, Vec::len);
        let valid = body["location"] == LOCATION
            && (1..=80).contains(&name.len())
            && ["Standard_LRS", "StandardSSD_LRS", "StandardSSD_ZRS", "Premium_LRS", "Premium_ZRS", "PremiumV2_LRS", "UltraSSD_LRS"].contains(&sku)
            // A disk kept in all zones names none ("Redundancy options for managed disks").
            && (zones == 0 || (zones == 1 && !is_zrs && body["zones"][0].as_str().is_some_and(|zone| self.zones.contains(&zone))))
            && (is_fast || (properties["diskIOPSReadWrite"].is_null() && properties["creationData"]["logicalSectorSize"].is_null()))
            && properties["diskSizeGB"].as_u64().is_some_and(|size| (1..=65536).contains(&size))
            && (properties["creationData"]["performancePlus"].is_null() || properties["diskSizeGB"].as_u64() > Some(512))
            && properties["diskAccessId"].is_null() != (properties["networkAccessPolicy"] == "AllowPrivate")
            && performs(sku, properties["diskSizeGB"].as_u64(), properties);
        if !valid {
            return Err(self.bad(format!("disk {name}: {body}")));
        }
        let source = properties["creationData"]["sourceResourceId"].as_str().unwrap_or_default().to_ascii_lowercase();
        let of = source.rsplit('/').next().unwrap_or_default();
        let found = match properties["creationData"]["createOption"].as_str() {
            Some("Empty") if source.is_empty() => return Ok(None),
            Some("Copy") if source.contains("/snapshots/") => self.snapshots.get(of),
            // Those whose rates are chosen are not copied directly ("Deploy a Premium SSD v2").
            Some("Copy") if source.contains("/disks/") && !is_fast => self.disks.get(of),
            _ => return Err(self.bad(format!("disk {name}: {body}"))),
        };
        let Some(found) = found else { return Ok(Some(missing("snapshots", of))) };
        let of_size = found["properties"]["diskSizeGB"].as_u64();
        if properties["diskSizeGB"].as_u64() < of_size {
            return Ok(Some(refuse(400, "InvalidParameter", "diskSizeGB is smaller than that of the source")));
        }
        if found["properties"]["completionPercent"].as_f64().is_some_and(|percent| percent < 100.0) && is_fast {
            return Ok(Some(refuse(409, "OperationNotAllowed", "The snapshot's copy in the background has not ended.")));
        }
        Ok(None)
    }

    fn put_snapshot(&mut self, name: &str, body: &Value, address: SocketAddr, trouble: Option<Trouble>) -> Reply {
        let checked = self
            .check_fields("snapshot", body, &["location", "sku", "tags", "properties"])
            .and_then(|()| self.check_tags(&body["tags"]))
            .and_then(|()| {
                let fields = ["creationData", "incremental", "networkAccessPolicy", "publicNetworkAccess"];
                self.check_fields("snapshot's properties", &body["properties"], &fields)
            });
        if let Err(reply) = checked {
            return reply;
        }
        let source = body["properties"]["creationData"]["sourceResourceId"].as_str().unwrap_or_default().to_owned();
        let of = source.to_ascii_lowercase().rsplit('/').next().unwrap_or_default().to_owned();
        if body["properties"]["incremental"] != true || body["location"] != LOCATION {
            return self.bad(format!("snapshot {name}: {body}"));
        }
        let Some(disk) = self.disks.get(&of) else { return missing("disks", &of) };
        let size = disk["properties"]["diskSizeGB"].clone();
        if let Some(there) = self.snapshots.get_mut(name) {
            if there["properties"]["creationData"] != body["properties"]["creationData"] {
                return refuse(409, "PropertyChangeNotAllowed", "Changing property 'creationData' is not allowed.");
            }
            there["tags"] = body["tags"].clone();
            return ok(there.clone());
        }
        let mut snapshot = body.clone();
        snapshot["name"] = name.into();
        snapshot["properties"]["diskSizeGB"] = size;
        snapshot["properties"]["provisioningState"] = "Creating".into();
        snapshot["properties"]["timeCreated"] = State::now().into();
        self.snapshots.insert(name.to_owned(), snapshot.clone());
        let (made, failed, copy) = (name.to_owned(), name.to_owned(), self.copy);
        self.accept(
            address,
            trouble,
            "DiskOperations",
            snapshot,
            move |state| {
                let Some(snapshot) = state.snapshots.get_mut(&made) else { return };
                snapshot["properties"]["provisioningState"] = "Succeeded".into();
                snapshot["properties"]["completionPercent"] = 12.5.into();
                state.later.push(copy, move |state| {
                    if let Some(snapshot) = state.snapshots.get_mut(&made) {
                        snapshot["properties"]["completionPercent"] = 100.into();
                    }
                });
            },
            move |state| drop(state.snapshots.remove(&failed)),
        )
    }

    fn update_disk(&mut self, name: &str, body: &Value, address: SocketAddr, trouble: Option<Trouble>) -> Reply {
        // All tags would be replaced.
        let mut checked = self.check_fields("update", body, &["sku", "properties"]);
        if body.get("properties").is_some() && checked.is_ok() {
            checked = self.check_fields(
                "update's properties",
                &body["properties"],
                &["diskSizeGB", "diskIOPSReadWrite", "diskMBpsReadWrite", "tier", "burstingEnabled"],
            );
        }
        if let Err(reply) = checked {
            return reply;
        }
        let Some(disk) = self.disks.get(name).cloned() else { return missing("disks", name) };
        let is_attached = disk["managedBy"].is_string();
        let (old, new) = (disk["properties"]["diskSizeGB"].as_u64().expect("a size"), body["properties"]["diskSizeGB"].as_u64());
        let sku = disk["sku"]["name"].as_str().unwrap_or_default().to_owned();
        let is_fast = ["PremiumV2_LRS", "UltraSSD_LRS"].contains(&sku.as_str());
        if new.is_some_and(|new| new < old) {
            return self.bad(format!("disk {name} is to become smaller"));
        }
        if new.is_some() && is_attached && disk["properties"]["maxShares"].as_u64().unwrap_or(1) > 1 {
            return refuse(409, "OperationNotAllowed", "A shared disk that is attached cannot be resized.");
        }
        if new.is_some_and(|new| old < GIB_4096 && new >= GIB_4096) && is_attached && !is_fast {
            return refuse(
                409,
                "OperationNotAllowed",
                "Expanding beyond 4 TiB needs the VM to be deallocated while the disk is attached.",
            );
        }
        let kind = body["sku"]["name"].as_str().unwrap_or(&sku);
        if !performs(kind, new.or(Some(old)), &body["properties"]) {
            return self.bad(format!("performance of disk {name} of {kind}: {body}"));
        }
        // "Enable on-demand bursting", limitations.
        if body["properties"]["burstingEnabled"] == true && is_attached {
            return refuse(409, "OperationNotAllowed", "On-demand bursting can only be enabled while the disk is not attached.");
        }
        if !is_fast && (body["properties"]["diskIOPSReadWrite"].is_u64() || body["properties"]["diskMBpsReadWrite"].is_u64()) {
            return self.bad(format!("rates of disk {name} of {sku}"));
        }
        let (name, body) = (name.to_owned(), body.clone());
        self.accept(
            address,
            trouble,
            "DiskOperations",
            disk,
            move |state| {
                let Some(disk) = state.disks.get_mut(&name) else { return };
                for (key, value) in body["properties"].as_object().into_iter().flatten() {
                    disk["properties"][key] = value.clone();
                }
                if body["sku"].is_object() {
                    disk["sku"] = body["sku"].clone();
                }
            },
            |_| (),
        )
    }

    fn merge_tags(&mut self, path: &str, body: &Value) -> Reply {
        let tags = body["properties"]["tags"].clone();
        if body["operation"] != "Merge" || !tags.is_object() {
            return self.bad(format!("tags: {body}"));
        }
        let name = path.split("/disks/").nth(1).and_then(|rest| rest.split('/').next()).unwrap_or_default().to_owned();
        let Some(disk) = self.disks.get_mut(&name) else { return missing("disks", &name) };
        for (key, value) in tags.as_object().expect("a map") {
            disk["tags"][key] = value.clone();
        }
        let all = disk["tags"].clone();
        if let Err(reply) = self.check_tags(&all) {
            return reply;
        }
        ok(json!({"properties": {"tags": all}}))
    }

    fn delete_disk(&mut self, name: &str, address: SocketAddr, trouble: Option<Trouble>) -> Reply {
        let Some(disk) = self.disks.get_mut(name) else { return Reply(204, Vec::new(), Value::Null) };
        if let Some(by) = disk["managedBy"].as_str() {
            return refuse(409, "OperationNotAllowed", format!("Disk {name} is attached to VM {by}."));
        }
        disk["properties"]["provisioningState"] = "Deleting".into();
        let (gone, stays) = (name.to_owned(), name.to_owned());
        self.accept(
            address,
            trouble,
            "DiskOperations",
            Value::Null,
            move |state| drop(state.disks.remove(&gone)),
            move |state| state.set_state(&stays, "Succeeded"),
        )
    }

    fn set_state(&mut self, disk: &str, to: &str) {
        if let Some(disk) = self.disks.get_mut(disk) {
            disk["properties"]["provisioningState"] = to.into();
        }
    }

    fn release(&mut self, disk: &str, machine: &str) {
        if let Some(disk) = self.disks.get_mut(disk) {
            hold(disk, machine, false);
        }
    }

    fn delete_snapshot(&mut self, name: &str, address: SocketAddr, trouble: Option<Trouble>) -> Reply {
        if !self.snapshots.contains_key(name) {
            return Reply(204, Vec::new(), Value::Null);
        }
        let gone = name.to_owned();
        self.accept(address, trouble, "DiskOperations", Value::Null, move |state| drop(state.snapshots.remove(&gone)), |_| ())
    }

    fn attach_or_detach(&mut self, path: &str, body: &Value, address: SocketAddr, trouble: Option<Trouble>) -> Reply {
        let path = path.trim_end_matches("/attachdetachdatadisks").to_owned();
        if let Err(reply) = self.check_fields("attachDetach", body, &["dataDisksToAttach", "dataDisksToDetach"]) {
            return reply;
        }
        let list = |key: &str| body[key].as_array().cloned().unwrap_or_default();
        let (attach, detach) = (list("dataDisksToAttach"), list("dataDisksToDetach"));
        for one in &attach {
            let is_whole = one["lun"].as_u64().is_some_and(|lun| lun < 64)
                && ["None", "ReadOnly"].contains(&one["caching"].as_str().unwrap_or("?"));
            if let Err(reply) = self.check_fields("attach", one, &["diskId", "lun", "caching"]) {
                return reply;
            }
            if !is_whole {
                return self.bad(format!("attach {one}"));
            }
        }
        for one in &detach {
            if let Err(reply) = self.check_fields("detach", one, &["diskId"]) {
                return reply;
            }
        }
        let name_in = |one: &Value| {
            one["diskId"].as_str().unwrap_or_default().to_ascii_lowercase().rsplit('/').next().unwrap_or_default().to_owned()
        };
        let Some(machine) = self.machines.get(&path).cloned() else {
            return missing("virtualMachines", path.rsplit('/').next().unwrap_or_default());
        };
        let state = machine["properties"]["provisioningState"].as_str().unwrap_or_default();
        if state == "Updating" {
            return refuse(409, "ConflictingConcurrentWriteNotAllowed", "The VM is being changed by another request; retry.");
        }
        if state == "Deleting" || machine["properties"]["instanceView"]["statuses"].to_string().contains("Hibernated") {
            return refuse(409, "OperationNotAllowed", "The operation is not allowed in the state of the VM.");
        }
        let id = shouted(&path);
        let mut listed = machine["properties"]["storageProfile"]["dataDisks"].as_array().cloned().unwrap_or_default();
        for one in &attach {
            let name = name_in(one);
            let Some(disk) = self.disks.get(&name) else { return missing("disks", &name) };
            let properties = &disk["properties"];
            if !["Unattached", "Attached", "Reserved"].contains(&properties["diskState"].as_str().unwrap_or_default()) {
                return refuse(409, "Conflict", format!("Disk {name} is not in a state in which this can be."));
            }
            let most = properties["maxShares"].as_u64().unwrap_or(1) as usize;
            let holders = holders(disk);
            if holders.contains(&id) || holders.len() >= most {
                return refuse(
                    409,
                    "ConflictingUserInput",
                    format!("Disk '{name}' cannot be attached as the disk is already owned by VM '{holders:?}'."),
                );
            }
            let zone = &disk["zones"];
            if zone.is_array() && *zone != machine["zones"] {
                return self.bad(format!("disk {name} of zones {zone} on a machine of {}", machine["zones"]));
            }
            let too_large = properties["diskSizeGB"].as_u64().is_some_and(|size| size >= GIB_4096);
            let is_fast = ["PremiumV2_LRS", "UltraSSD_LRS"].contains(&disk["sku"]["name"].as_str().unwrap_or_default());
            if one["caching"] != "None" && (too_large || is_fast || most > 1) {
                return self.bad(format!("disk {name} cannot be cached"));
            }
            listed.retain(|listed| listed["name"] != name.as_str());
            if listed.iter().any(|listed| listed["lun"] == one["lun"]) {
                return refuse(400, "InvalidParameter", format!("A disk on LUN {} already exists.", one["lun"]));
            }
            let managed = json!({"id": shouted(&format!("resourcegroups/{}/providers/Microsoft.Compute/disks/{}", GROUP.to_ascii_lowercase(), name.to_ascii_uppercase()))});
            listed.push(json!({"lun": one["lun"], "name": name, "caching": one["caching"], "managedDisk": managed, "toBeDetached": false}));
        }
        let room = self.room.unwrap_or_else(|| match machine["properties"]["hardwareProfile"]["vmSize"].as_str() {
            Some("Standard_D4s_v5") => 8,
            Some("Standard_D2s_v5") => 4,
            _ => 2,
        });
        if !attach.is_empty() && listed.len() > room {
            let message = format!("The maximum number of data disks allowed to be attached to a VM of this size is {room}.");
            return refuse(409, "OperationNotAllowed", message);
        }
        for one in &detach {
            let name = name_in(one);
            let Some(listed) = listed.iter_mut().find(|listed| listed["name"] == name.as_str()) else {
                return refuse(400, "InvalidParameter", format!("Disk {name} is not attached to the VM."));
            };
            listed["toBeDetached"] = true.into();
        }
        let (come, go): (Vec<String>, Vec<String>) = (attach.iter().map(name_in).collect(), detach.iter().map(name_in).collect());
        come.iter().for_each(|name| hold(self.disks.get_mut(name).expect("a disk"), &id, true));
        let properties = &mut self.machines.get_mut(&path).expect("a machine")["properties"];
        properties["storageProfile"]["dataDisks"] = listed.into();
        properties["provisioningState"] = "Updating".into();
        let (path_ill, come_ill, id_ill) = (path.clone(), come.clone(), id.clone());
        self.accept(
            address,
            trouble,
            "operations",
            Value::Null,
            move |state| {
                for name in &come {
                    if let Some(disk) = state.disks.get_mut(name) {
                        disk["properties"]["diskState"] = "Attached".into();
                        disk["properties"]["LastOwnershipUpdateTime"] = State::now().into();
                    }
                }
                go.iter().for_each(|name| state.release(name, &id));
                let Some(machine) = state.machines.get_mut(&path) else { return };
                let properties = &mut machine["properties"];
                properties["provisioningState"] = "Succeeded".into();
                let listed = properties["storageProfile"]["dataDisks"].as_array_mut().expect("a list");
                listed.retain(|listed| !go.iter().any(|name| listed["name"] == name.as_str()));
                let seen = listed
                    .iter()
                    .map(|listed| json!({"name": listed["name"], "statuses": [{"code": "ProvisioningState/succeeded"}]}));
                let seen: Vec<Value> = seen.collect();
                properties["instanceView"]["disks"] = seen.into();
            },
            // What it was to be stays listed (azuredisk-csi-driver issue 780), and belongs to no machine; what was to be detached still says so.
            move |state| {
                come_ill.iter().for_each(|name| state.release(name, &id_ill));
                let Some(machine) = state.machines.get_mut(&path_ill) else { return };
                machine["properties"]["provisioningState"] = "Failed".into();
            },
        )
    }
}

/// Whether a disk of this type and size, in GiB, can have the tier and the bursting that it is to have ("Performance tiers for managed disks",
/// "Enable on-demand bursting").
fn performs(sku: &str, gib: Option<u64>, properties: &Value) -> bool {
    let is_premium = ["Premium_LRS", "Premium_ZRS"].contains(&sku);
    let tier = properties["tier"].as_str().map(|tier| tier.trim_start_matches('P').parse::<u64>().unwrap_or_default());
    // Of the sizes that the tests have.
    let own = if gib < Some(1025) { 1 } else { 40 };
    tier.is_none_or(|tier| is_premium && (own..=50).contains(&tier))
        && (properties["burstingEnabled"] != true || (is_premium && gib > Some(512)))
}

fn holders(disk: &Value) -> Vec<String> {
    let extended = disk["managedByExtended"].as_array().cloned().unwrap_or_default();
    let mut all: Vec<String> = extended.iter().filter_map(Value::as_str).map(str::to_owned).collect();
    all.extend(disk["managedBy"].as_str().map(str::to_owned).filter(|_| extended.is_empty()));
    all
}

/// A disk becomes a machine's, or is it no longer.
fn hold(disk: &mut Value, id: &str, takes: bool) {
    let mut all = holders(disk);
    all.retain(|holder| holder != id);
    if takes {
        all.push(id.to_owned());
    }
    disk["managedBy"] = all.first().cloned().into();
    if disk["properties"]["maxShares"].as_u64().unwrap_or(1) > 1 {
        disk["managedByExtended"] = all.clone().into();
    }
    if all.is_empty() {
        disk["properties"]["diskState"] = "Unattached".into();
    }
}

//! A stand-in for OpenStack, for all that real services are too slow or too friendly for: Keystone and Nova always, and Cinder, unless a real one is
//! behind it (`real.rs`), which its requests are passed on to then.
//!
//! What it does, and by which source:
//! - Keystone gives a token for an application credential or a password, with an end and a catalog (Identity API v3, "Authentication and token
//!   management"). One that it did not give, or that has ended, is refused with 401 by each service.
//! - A request is checked as Cinder's schemas have it (cinder/api/schemas/volumes.py, snapshots.py: `additionalProperties: False`; keys of metadata
//!   by the pattern of cinder/api/validation/parameter_types.py; filters by etc/cinder/resource_filters.json) and must name the microversion.
//! - What makes, deletes, extends and retypes is accepted with 202, and ends later, or in an error with a message about it
//!   (cinder/volume/manager.py, cinder/message/message_field.py). Names are not unique, and there is no token: each request makes another.
//! - In which status what is refused: `delete`, `_extend`, `retype` and `begin_detaching` of cinder/volume/api.py.
//! - A backup of a snapshot makes that `backing-up` meanwhile (cinder/backup/api.py, `create`), and a volume that is made of a backup has the metadata
//!   of the volume that was backed up in the end, and none of its own (cinder/backup/driver.py, `_restore_vol_meta`).
//! - Quotas are refused with 413 (cinder/exception.py, `QuotaError`).
//! - Lists come in pages with a link (cinder/api/common.py, `get_items_links`), attachments that come only in the list of attachments
//!   (cinder/api/v3/attachments.py).
//! - Nova attaches and detaches in the background (nova/compute/api.py, `attach_volume`, `detach_volume`; statuses and texts of
//!   nova/api/openstack/compute/volume_attachments.py and nova/exception.py). A detachment removes what is attached when it ends.
//!
//! A second project, a second cluster's volumes and policies of roles are not in it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::super::emulated::{Later, Reply, Server, Troubles};
use super::super::wire::{self, Request};
use super::{PASSWORD, SECRET, TOKEN, node};

pub const PROJECT: &str = "0123456789abcdef0123456789abcdef";
const ZONES: [&str; 2] = ["ceph-a", "ceph-b"];
/// Of a volume, in a request that makes one.
const VOLUME_FIELDS: [&str; 9] =
    ["name", "description", "size", "volume_type", "metadata", "availability_zone", "snapshot_id", "source_volid", "backup_id"];
const SNAPSHOT_FIELDS: [&str; 4] = ["name", "volume_id", "force", "metadata"];
/// What lists may be filtered by, and how they are paged.
const QUERIES: [&str; 6] = ["metadata", "name", "limit", "marker", "volume_id", "resource_uuid"];
const BACKUP_FIELDS: [&str; 6] = ["name", "volume_id", "snapshot_id", "force", "metadata", "availability_zone"];
const BACKUP_QUERIES: [&str; 3] = ["name", "limit", "marker"];

/// What becomes of requests of one kind.
#[derive(Clone, Debug)]
pub enum Trouble {
    /// It is not done, and the connection is cut.
    Before,
    /// It is done, and the connection is cut.
    After,
    /// The connection is cut, and it is done so much later: it was on its way.
    Overtaken(Duration),
    /// It is not done, and refused.
    Refuse { status: u16, message: &'static str, retry_after: Option<u64> },
    /// It is refused, since another has just asked for the same deletion, which has ended when the answer arrives.
    Rival,
    /// It is accepted, and takes so long.
    Late(Duration),
    /// It is accepted, and fails; with Cinder's message.
    Fail(&'static str),
}

#[derive(Default)]
pub struct State {
    pub volumes: BTreeMap<String, Value>,
    pub snapshots: BTreeMap<String, Value>,
    pub backups: BTreeMap<String, Value>,
    pub attachments: BTreeMap<String, Value>,
    /// By their ids.
    pub servers: BTreeMap<String, Value>,
    messages: Vec<Value>,
    later: Later<State>,
    troubles: Troubles<Trouble>,
    tokens: BTreeMap<String, Instant>,
    pub counts: BTreeMap<&'static str, u64>,
    pub violations: Vec<String>,
    /// What is accepted takes so long.
    pub delay: Duration,
    pub token_life: Duration,
    /// How many volumes there may be.
    pub quota: usize,
    /// How many a server takes.
    pub room: usize,
    pub page: usize,
    /// By backup: its volume's metadata.
    backed_up: BTreeMap<String, Value>,
    made: u64,
}

pub struct OpenStack {
    pub address: SocketAddr,
    state: Arc<Mutex<State>>,
    /// A real Cinder.
    real: Option<SocketAddr>,
    _server: Server,
}

fn refuse(status: u16, message: impl Into<String>) -> Reply {
    let kind = match status {
        404 => "itemNotFound",
        409 => "conflictingRequest",
        413 => "overLimit",
        _ => "badRequest",
    };
    Reply(
        status,
        vec![("x-openstack-request-id", "req-1".to_owned())],
        json!({kind: {"code": status, "message": message.into()}}),
    )
}

fn ok(status: u16, body: Value) -> Reply {
    Reply(status, Vec::new(), body)
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_default()
}

/// What a request is, as the driver calls it.
fn name_of(method: &str, parts: &[&str], body: &Value) -> &'static str {
    match (method, parts) {
        ("POST", ["volumes"]) => "create volume",
        ("GET", ["volumes", "detail"]) => "list volumes",
        ("GET", ["volumes", _]) => "show volume",
        ("DELETE", ["volumes", _]) => "delete volume",
        ("POST", ["volumes", _, "metadata"]) => "set metadata",
        ("POST", ["volumes", _, "action"]) if body.get("os-extend").is_some() => "extend volume",
        ("POST", ["volumes", _, "action"]) if body.get("os-retype").is_some() => "retype volume",
        ("POST", ["snapshots"]) => "create snapshot",
        ("GET", ["snapshots", "detail"]) => "list snapshots",
        ("GET", ["snapshots", _]) => "show snapshot",
        ("DELETE", ["snapshots", _]) => "delete snapshot",
        ("PUT", ["volumes", _, "metadata"]) => "replace metadata",
        ("POST", ["backups"]) => "create backup",
        ("GET", ["backups", "detail"]) => "list backups",
        ("GET", ["backups", _]) => "show backup",
        ("DELETE", ["backups", _]) => "delete backup",
        ("GET", ["attachments", "detail"]) => "list attachments",
        ("DELETE", ["attachments", _]) => "delete attachment",
        ("GET", ["messages"]) => "list messages",
        ("GET", ["types"]) => "list types",
        ("GET", ["os-availability-zone"]) => "list zones",
        ("GET", ["servers", _]) => "show server",
        ("POST", ["servers", _, "os-volume_attachments"]) => "attach volume",
        ("DELETE", ["servers", _, "os-volume_attachments", _]) => "detach volume",
        ("POST", ["auth", "tokens"]) => "token",
        _ => "unknown",
    }
}

impl OpenStack {
    /// With two servers, `n1` and `n2`, in zone `az-a`, which uses `ceph-a`.
    pub fn start(real: Option<SocketAddr>) -> OpenStack {
        let state = State {
            delay: Duration::from_millis(50),
            token_life: Duration::from_secs(3600),
            quota: 1000,
            room: 26,
            page: 1000,
            ..State::default()
        };
        let state = Arc::new(Mutex::new(state));
        let served = state.clone();
        let server = Server::start(move |request, address| answer(request, &served, address, real));
        let cloud = OpenStack { address: server.address, state, real, _server: server };
        ["n1", "n2"].iter().for_each(|name| cloud.add_server(name, "az-a"));
        cloud
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.lock().expect("no panic");
        state.pump();
        state
    }

    pub fn add_server(&self, name: &str, zone: &str) {
        let server = json!({"status": "ACTIVE", "OS-EXT-AZ:availability_zone": zone, "OS-EXT-STS:task_state": null,
            "os-extended-volumes:volumes_attached": [], "flavor": {"original_name": "m1.small"}});
        self.state().servers.insert(node(name), server);
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

    /// The one volume there is.
    pub fn volume(&self) -> Value {
        let state = self.state();
        assert_eq!(state.volumes.len(), 1, "{:#?}", state.volumes);
        state.volumes.values().next().expect("one").clone()
    }

    /// Each token has ended.
    pub fn end_tokens(&self) {
        self.state().tokens.clear();
    }
}

/// `None` where the connection is cut.
fn answer(request: &Request, state: &Mutex<State>, address: SocketAddr, real: Option<SocketAddr>) -> Option<Reply> {
    let body: Value = serde_json::from_str(&request.body).unwrap_or_default();
    let path = request.path.split('?').next().unwrap_or_default().trim_start_matches('/').to_owned();
    let (service, rest) = path.split_once('/').unwrap_or((&path, ""));
    let rest = ["v3/auth", "v2.1/", "v3/"].iter().find_map(|prefix| {
        let rest = rest.strip_prefix(prefix)?;
        Some(if *prefix == "v3/auth" { format!("auth{rest}") } else { rest.to_owned() })
    });
    let rest = rest.unwrap_or_default();
    let rest = rest.strip_prefix(&format!("{PROJECT}/")).unwrap_or(&rest).to_owned();
    let parts: Vec<&str> = rest.split('/').collect();
    let name = name_of(&request.method, &parts, &body);
    let mut state = state.lock().expect("no panic");
    let trouble = state.troubles.take(name);
    match &trouble {
        Some(Trouble::Before) => None,
        Some(Trouble::Overtaken(delay)) => {
            let (service, rest, request) = (service.to_owned(), rest.clone(), request.clone());
            state.later.push(*delay, move |state| {
                let parts: Vec<&str> = rest.split('/').collect();
                state.perform(&service, name, &parts, &request, &body, address, None, None);
            });
            None
        }
        Some(Trouble::Rival) => {
            state.perform(service, name, &parts, request, &body, address, None, real);
            let reply = state.perform(service, name, &parts, request, &body, address, None, real);
            state.volumes.retain(|_, volume| volume["status"] != "deleting");
            state.snapshots.retain(|_, snapshot| snapshot["status"] != "deleting");
            Some(reply)
        }
        Some(Trouble::Refuse { status, message, retry_after }) => Some(refuse(*status, *message).retry_after(*retry_after)),
        _ => {
            let reply = state.perform(service, name, &parts, request, &body, address, trouble.clone(), real);
            if matches!(trouble, Some(Trouble::After)) { None } else { Some(reply) }
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

    fn new_id(&mut self) -> String {
        self.made += 1;
        let digits = longshore::volume::digest::sha256_of([self.made.to_string().as_str(), &format!("{:?}", Instant::now())]);
        format!("{}-{}-4{}-8{}-{}", &digits[..8], &digits[8..12], &digits[12..15], &digits[15..18], &digits[18..30])
    }

    fn wrong(&mut self, what: String) {
        self.violations.push(what);
    }

    fn now() -> String {
        let now = humantime::format_rfc3339_micros(std::time::SystemTime::now()).to_string();
        now.trim_end_matches('Z').to_owned()
    }

    /// Ends in so much time: well, or in an error.
    fn end(
        &mut self,
        trouble: Option<&Trouble>,
        well: impl FnOnce(&mut State) + Send + 'static,
        ill: impl FnOnce(&mut State, &str) + Send + 'static,
    ) {
        let delay = if let Some(Trouble::Late(delay)) = trouble { *delay } else { self.delay };
        match trouble {
            Some(Trouble::Fail(message)) => {
                let message = *message;
                self.later.push(delay, move |state| ill(state, message));
            }
            _ => self.later.push(delay, well),
        }
    }

    fn complain(&mut self, of: &str, message: &str) {
        let id = self.new_id();
        self.messages.push(json!({"id": id, "resource_uuid": of, "resource_type": "VOLUME", "event_id": "VOLUME_VOLUME_001_003",
            "user_message": message, "message_level": "ERROR", "created_at": State::now()}));
    }

    #[allow(clippy::too_many_arguments, reason = "a request in its parts")]
    fn perform(
        &mut self,
        service: &str,
        name: &'static str,
        parts: &[&str],
        request: &Request,
        body: &Value,
        address: SocketAddr,
        trouble: Option<Trouble>,
        real: Option<SocketAddr>,
    ) -> Reply {
        self.pump();
        *self.counts.entry(name).or_default() += 1;
        match service {
            "identity" => return self.token(body, address),
            "openstack" => {
                let name = request.headers.get("x-machine").map_or("n1", String::as_str);
                return ok(200, json!({"uuid": node(name), "availability_zone": "az-a", "hostname": name}));
            }
            _ => {}
        }
        let token = request.headers.get("x-auth-token").cloned().unwrap_or_default();
        if self.tokens.get(&token).is_none_or(|end| *end < Instant::now()) {
            return Reply(
                401,
                Vec::new(),
                json!({"error": {"code": 401, "title": "Unauthorized", "message": "The request you have made requires authentication."}}),
            );
        }
        let version = request.headers.get("openstack-api-version").map(String::as_str).unwrap_or_default();
        let versions: &[&str] = match service {
            "volume" if name.contains("backup") => &["volume 3.51"],
            "volume" if name == "delete attachment" => &["volume 3.71"],
            "volume" => &["volume 3.42", "volume 3.51"],
            _ => &["compute 2.60"],
        };
        if !versions.contains(&version) {
            self.wrong(format!("{name}: microversion {version:?}"));
        }
        let query = Request { body: String::new(), ..request.clone() }.parameters();
        let queries: &[&str] = if name.contains("backup") { &BACKUP_QUERIES } else { &QUERIES };
        for key in query.keys().filter(|key| !queries.contains(&key.as_str())) {
            self.wrong(format!("{name}: Invalid filters {key} are found in query options."));
        }
        if name == "unknown" {
            self.wrong(format!("{} {}", request.method, request.path));
            return refuse(404, "The resource could not be found.");
        }
        match (service, real) {
            ("volume", Some(real)) => pass_on(real, request),
            ("compute", Some(real)) => self.nova_before(real, name, parts, body),
            ("volume", None) => self.cinder(name, parts, &query, body, trouble.as_ref()),
            _ => self.nova(name, parts, body, trouble.as_ref()),
        }
    }

    fn token(&mut self, body: &Value, address: SocketAddr) -> Reply {
        let identity = &body["auth"]["identity"];
        let is_known = match text(&identity["methods"], "0") {
            _ if identity["methods"] == json!(["application_credential"]) => {
                identity["application_credential"] == json!({"id": "app", "secret": SECRET})
            }
            _ => {
                identity["password"]["user"] == json!({"name": "driver", "domain": {"name": "Default"}, "password": PASSWORD})
                    && body["auth"]["scope"] == json!({"project": {"id": PROJECT}})
            }
        };
        if !is_known {
            return Reply(
                401,
                Vec::new(),
                json!({"error": {"code": 401, "title": "Unauthorized", "message": "The request you have made requires authentication."}}),
            );
        }
        self.made += 1;
        let token = format!("{TOKEN}-{}", self.made);
        self.tokens.insert(token.clone(), Instant::now() + self.token_life);
        let end = humantime::format_rfc3339_micros(std::time::SystemTime::now() + self.token_life).to_string();
        let endpoint = |path: &str| json!([{"interface": "public", "region": "RegionOne", "region_id": "RegionOne", "url": format!("http://{address}/{path}")}]);
        let catalog = json!([
            {"type": "identity", "name": "keystone", "endpoints": endpoint("identity")},
            {"type": "volumev3", "name": "cinder", "endpoints": endpoint(&format!("volume/v3/{PROJECT}"))},
            {"type": "compute", "name": "nova", "endpoints": endpoint("compute/v2.1")},
        ]);
        Reply(
            201,
            vec![("x-subject-token", token)],
            json!({"token": {"expires_at": end, "catalog": catalog, "project": {"id": PROJECT}}}),
        )
    }

    /// Checks an object of a request.
    fn check(&mut self, name: &str, object: &Value, fields: &[&str]) {
        for field in
            object.as_object().into_iter().flatten().map(|(field, _)| field).filter(|field| !fields.contains(&field.as_str()))
        {
            self.violations.push(format!("{name}: Additional properties are not allowed ({field})"));
        }
        for (key, value) in object["metadata"].as_object().into_iter().flatten() {
            let fits = key.chars().all(|letter| letter.is_ascii_alphanumeric() || "-_:. ".contains(letter));
            if !fits || key.len() > 255 || value.as_str().is_none_or(|value| value.chars().count() > 255) {
                self.violations.push(format!("{name}: metadata {key}: {value}"));
            }
        }
    }

    fn cinder(
        &mut self,
        name: &'static str,
        parts: &[&str],
        query: &BTreeMap<String, String>,
        body: &Value,
        trouble: Option<&Trouble>,
    ) -> Reply {
        let missing = |kind: &str, id: &str| refuse(404, format!("{kind} {id} could not be found."));
        let id = parts.get(1).copied().unwrap_or_default().to_owned();
        match name {
            "create volume" => self.create_volume(body, trouble),
            "create snapshot" => self.create_snapshot(body, trouble),
            "list volumes" => list("volumes", &self.volumes, query, self.page),
            "list snapshots" => list("snapshots", &self.snapshots, query, self.page),
            "show volume" => match self.volumes.get(&id) {
                Some(volume) => ok(200, json!({"volume": volume})),
                None => missing("Volume", &id),
            },
            "show snapshot" => match self.snapshots.get(&id) {
                Some(snapshot) => ok(200, json!({"snapshot": snapshot})),
                None => missing("Snapshot", &id),
            },
            "create backup" => self.create_backup(body, trouble),
            "list backups" => list("backups", &self.backups, query, self.page),
            "show backup" => match self.backups.get(&id) {
                Some(backup) => ok(200, json!({"backup": backup})),
                None => missing("Backup", &id),
            },
            "delete backup" => {
                let Some(backup) = self.backups.get_mut(&id) else { return missing("Backup", &id) };
                if !["available", "error"].contains(&text(backup, "status")) {
                    return refuse(400, "Invalid backup: Backup status must be available or error");
                }
                backup["status"] = json!("deleting");
                let (well, ill) = (id.clone(), id.clone());
                self.end(
                    trouble,
                    move |state| drop(state.backups.remove(&well)),
                    move |state, message| {
                        let backup = state.backups.get_mut(&ill).expect("it is there");
                        (backup["status"], backup["fail_reason"]) = (json!("error"), json!(message));
                    },
                );
                ok(202, Value::Null)
            }
            "list attachments" => {
                let of = |one: &&Value| query.get("volume_id").is_none_or(|volume| one["volume_id"] == **volume);
                let found: Vec<&Value> = self.attachments.values().filter(of).collect();
                ok(200, json!({"attachments": found}))
            }
            // cinder/volume/api.py, `attachment_deletion_allowed` (CVE-2023-2088).
            "delete attachment" => {
                let Some(left) = self.attachments.get(parts[1]).cloned() else {
                    return refuse(
                        404,
                        format!("Volume attachment could not be found with filter: attachment_id = {}.", parts[1]),
                    );
                };
                let (server, id) = (text(&left, "instance"), text(&left, "volume_id"));
                let held = self.servers.get(server).and_then(|server| server["os-extended-volumes:volumes_attached"].as_array());
                if held.is_some_and(|held| held.iter().any(|one| one["id"] == *id)) {
                    return refuse(409, "Detach volume from instance using the Compute API");
                }
                self.detach(server, id);
                ok(200, json!({"attachments": []}))
            }
            "list messages" => {
                let found: Vec<&Value> =
                    self.messages.iter().filter(|one| one["resource_uuid"] == query["resource_uuid"]).collect();
                ok(200, json!({"messages": found}))
            }
            "list types" => {
                let kind = |name: &str, specs: Value| json!({"id": name, "name": name, "extra_specs": specs});
                let shared = kind("shared", json!({"multiattach": "<is> True"}));
                ok(200, json!({"volume_types": [kind("ssd", json!({})), kind("fast", json!({})), shared]}))
            }
            "list zones" => {
                let zones: Vec<Value> =
                    ZONES.iter().map(|zone| json!({"zoneName": zone, "zoneState": {"available": true}})).collect();
                ok(200, json!({"availabilityZoneInfo": zones}))
            }
            "delete snapshot" => {
                let Some(snapshot) = self.snapshots.get_mut(&id) else { return missing("Snapshot", &id) };
                if !["available", "error"].contains(&text(snapshot, "status")) {
                    return refuse(400, "Invalid snapshot: Snapshot status must be one of available or error.");
                }
                snapshot["status"] = json!("deleting");
                let (well, ill) = (id.clone(), id.clone());
                // A back end that refuses it makes it available again (cinder/volume/manager.py, `SnapshotIsBusy`).
                self.end(
                    trouble,
                    move |state| drop(state.snapshots.remove(&well)),
                    move |state, message| {
                        state.complain(&ill, message);
                        state.snapshots.get_mut(&ill).expect("it is there")["status"] = json!("available");
                    },
                );
                ok(202, Value::Null)
            }
            _ => self.change_volume(name, &id, body, trouble),
        }
    }

    fn change_volume(&mut self, name: &'static str, id: &str, body: &Value, trouble: Option<&Trouble>) -> Reply {
        let has_snapshots = self.snapshots.values().any(|snapshot| snapshot["volume_id"] == *id);
        let Some(volume) = self.volumes.get_mut(id) else { return refuse(404, format!("Volume {id} could not be found.")) };
        let status = text(volume, "status").to_owned();
        let (well, ill, before) = (id.to_owned(), id.to_owned(), status.clone());
        match name {
            "set metadata" => {
                let more = body["metadata"].as_object().cloned().unwrap_or_default();
                volume["metadata"].as_object_mut().expect("a map").extend(more);
                let now = volume["metadata"].clone();
                self.check(name, body, &["metadata"]);
                ok(200, json!({"metadata": now}))
            }
            "replace metadata" => {
                volume["metadata"] = body["metadata"].clone();
                self.check(name, body, &["metadata"]);
                ok(200, body.clone())
            }
            "delete volume" => {
                if !["available", "error", "error_restoring", "error_extending", "error_managing"].contains(&status.as_str())
                    || has_snapshots
                {
                    return refuse(
                        400,
                        "Invalid volume: Volume status must be available or error or error_restoring or error_extending or error_managing and must \
                         not be migrating, attached, belong to a group, have snapshots, awaiting a transfer, or be disassociated from snapshots \
                         after volume transfer.",
                    );
                }
                volume["status"] = json!("deleting");
                self.end(
                    trouble,
                    move |state| drop(state.volumes.remove(&well)),
                    move |state, message| {
                        state.complain(&ill, message);
                        state.volumes.get_mut(&ill).expect("it is there")["status"] = json!("error_deleting");
                    },
                );
                ok(202, Value::Null)
            }
            "extend volume" => {
                let size = body["os-extend"]["new_size"].as_u64().unwrap_or_default();
                if size <= volume["size"].as_u64().expect("a size") {
                    return refuse(400, "Invalid input received: New size for extend must be greater than current size.");
                }
                if !["available", "in-use"].contains(&status.as_str()) {
                    return refuse(
                        400,
                        format!("Invalid volume: Volume {id} status must be 'available' to extend, currently {status}."),
                    );
                }
                volume["status"] = json!("extending");
                self.end(
                    trouble,
                    move |state| {
                        let volume = state.volumes.get_mut(&well).expect("it is there");
                        (volume["size"], volume["status"]) = (json!(size), json!(before));
                    },
                    move |state, message| {
                        state.complain(&ill, message);
                        state.volumes.get_mut(&ill).expect("it is there")["status"] = json!("error_extending");
                    },
                );
                ok(202, Value::Null)
            }
            "retype volume" => {
                let kind = text(&body["os-retype"], "new_type").to_owned();
                if !["ssd", "fast", "shared"].contains(&kind.as_str()) {
                    return refuse(400, format!("Invalid input received: Invalid volume_type passed: {kind}."));
                }
                if !["available", "in-use"].contains(&status.as_str()) || volume["volume_type"] == *kind {
                    return refuse(
                        400,
                        "Invalid volume: Retype needs volume to be in available or in-use state, not be part of an active migration or a consistency \
                         group, requested type has to be different that the one from the volume, and for in-use volumes front-end qos specs cannot \
                         change.",
                    );
                }
                volume["status"] = json!("retyping");
                let again = status;
                self.end(
                    trouble,
                    move |state| {
                        let volume = state.volumes.get_mut(&well).expect("it is there");
                        (volume["volume_type"], volume["status"]) = (json!(kind), json!(before));
                    },
                    move |state, message| {
                        state.complain(&ill, message);
                        state.volumes.get_mut(&ill).expect("it is there")["status"] = json!(again);
                    },
                );
                ok(202, Value::Null)
            }
            _ => refuse(404, "The resource could not be found."),
        }
    }

    fn create_volume(&mut self, body: &Value, trouble: Option<&Trouble>) -> Reply {
        let asked = &body["volume"];
        self.check("create volume", asked, &VOLUME_FIELDS);
        if self.volumes.len() >= self.quota {
            let message =
                format!("VolumeLimitExceeded: Maximum number of volumes allowed ({}) exceeded for quota 'volumes'.", self.quota);
            return refuse(413, message).retry_after(Some(0));
        }
        let size = asked["size"].as_u64().unwrap_or_default();
        let mut kind = asked["volume_type"].as_str().unwrap_or("ssd").to_owned();
        if !["ssd", "fast", "shared"].contains(&kind.as_str()) {
            return refuse(404, format!("Volume type with name {kind} could not be found."));
        }
        let zone = asked["availability_zone"].as_str().unwrap_or(ZONES[0]);
        if !ZONES.contains(&zone) {
            return refuse(400, format!("Invalid input received: Availability zone '{zone}' is invalid."));
        }
        let source = match (asked["snapshot_id"].as_str(), asked["source_volid"].as_str()) {
            (Some(snapshot), _) => match self.snapshots.get(snapshot) {
                Some(snapshot) if snapshot["status"] == "available" => Some(snapshot.clone()),
                Some(_) => return refuse(400, "Invalid snapshot: Originating snapshot status must be one of 'available' values"),
                None => return refuse(404, format!("Snapshot {snapshot} could not be found.")),
            },
            _ if asked["backup_id"].is_string() => match self.backups.get_mut(text(asked, "backup_id")) {
                Some(backup) if backup["status"] == "available" => {
                    backup["status"] = json!("restoring");
                    Some(backup.clone())
                }
                Some(_) => {
                    return refuse(400, "Invalid input received: Originating backup status must be one of 'available' values");
                }
                None => return refuse(404, format!("Backup {} could not be found.", text(asked, "backup_id"))),
            },
            (None, Some(volume)) => match self.volumes.get(volume) {
                Some(volume) if ["available", "in-use"].contains(&text(volume, "status")) => {
                    kind = asked["volume_type"].as_str().unwrap_or(text(volume, "volume_type")).to_owned();
                    Some(volume.clone())
                }
                Some(_) => return refuse(400, "Invalid volume: Unable to create volume from volume that is not available"),
                None => return refuse(404, format!("Volume {volume} could not be found.")),
            },
            (None, None) => None,
        };
        if size == 0 || source.as_ref().is_some_and(|source| source["size"].as_u64().expect("a size") > size) {
            return refuse(400, "Invalid input received: Volume size must be greater than or equal to the size of its source.");
        }
        let id = self.new_id();
        let volume = json!({
            "id": id, "name": asked["name"], "status": "creating", "size": size, "availability_zone": zone, "volume_type": kind,
            "metadata": asked["metadata"], "attachments": [], "snapshot_id": asked["snapshot_id"], "source_volid": asked["source_volid"],
            "multiattach": kind == "shared", "bootable": "false", "created_at": State::now(), "description": asked["description"],
        });
        let backup = asked["backup_id"].as_str().map(str::to_owned);
        self.volumes.insert(id.clone(), volume.clone());
        let (ill, of) = (id.clone(), backup.clone());
        self.end(
            trouble,
            move |state| {
                let Some(volume) = state.volumes.get_mut(&id) else { return };
                volume["status"] = json!("available");
                if let Some(backup) = backup {
                    volume["metadata"] = state.backed_up[&backup].clone();
                    volume["metadata"]["src_backup_id"] = json!(backup);
                    state.backups.get_mut(&backup).expect("it is there")["status"] = json!("available");
                }
            },
            move |state, message| {
                // About the backup, if it is one that is restored (cinder/backup/manager.py, `restore_backup`).
                state.complain(of.as_ref().unwrap_or(&ill), message);
                let volume = state.volumes.get_mut(&ill).expect("it is there");
                volume["status"] = json!(if of.is_some() { "error_restoring" } else { "error" });
                if let Some(backup) = of {
                    volume["metadata"] = state.backed_up[&backup].clone();
                    state.backups.get_mut(&backup).expect("it is there")["status"] = json!("available");
                }
            },
        );
        ok(202, json!({"volume": volume}))
    }

    fn create_snapshot(&mut self, body: &Value, trouble: Option<&Trouble>) -> Reply {
        let asked = &body["snapshot"];
        self.check("create snapshot", asked, &SNAPSHOT_FIELDS);
        let of = text(asked, "volume_id");
        let Some(volume) = self.volumes.get(of) else { return refuse(404, format!("Volume {of} could not be found.")) };
        if !["available", "in-use"].contains(&text(volume, "status")) {
            return refuse(
                400,
                format!("Invalid volume: Volume {of} status must be available, but current status is: {}.", volume["status"]),
            );
        }
        let (size, id) = (volume["size"].clone(), self.new_id());
        let snapshot = json!({"id": id, "name": asked["name"], "status": "creating", "size": size, "volume_id": of,
            "metadata": asked["metadata"], "created_at": State::now()});
        self.snapshots.insert(id.clone(), snapshot.clone());
        let ill = id.clone();
        self.end(
            trouble,
            move |state| state.snapshots.get_mut(&id).expect("it is there")["status"] = json!("available"),
            move |state, message| {
                state.complain(&ill, message);
                state.snapshots.get_mut(&ill).expect("it is there")["status"] = json!("error");
            },
        );
        ok(202, json!({"snapshot": snapshot}))
    }

    fn create_backup(&mut self, body: &Value, trouble: Option<&Trouble>) -> Reply {
        let asked = &body["backup"];
        self.check("create backup", asked, &BACKUP_FIELDS);
        let (snapshot, volume) = (text(asked, "snapshot_id").to_owned(), text(asked, "volume_id"));
        let Some(of) = self.volumes.get(volume) else { return refuse(404, format!("Volume {volume} could not be found.")) };
        let Some(made_of) = self.snapshots.get_mut(&snapshot) else {
            return refuse(404, format!("Snapshot {snapshot} could not be found."));
        };
        let status = text(made_of, "status").to_owned();
        if status != "available" || made_of["volume_id"] != *volume {
            let reason = format!("Snapshot to be backed up must be available, but the current status is \"{status}\".");
            return refuse(400, format!("Invalid snapshot: {reason}"));
        }
        made_of["status"] = json!("backing-up");
        let (size, metadata, instant) = (of["size"].clone(), of["metadata"].clone(), made_of["created_at"].clone());
        let id = self.new_id();
        let backup = json!({"id": id, "name": asked["name"], "status": "creating", "size": size, "volume_id": volume,
            "snapshot_id": snapshot, "metadata": asked["metadata"], "fail_reason": null, "created_at": State::now(),
            "data_timestamp": instant, "availability_zone": asked["availability_zone"]});
        self.backups.insert(id.clone(), backup);
        self.backed_up.insert(id.clone(), metadata);
        let (well, ill) = ((id.clone(), snapshot.clone()), (id.clone(), snapshot));
        let whole = |state: &mut State, snapshot: &str| {
            state.snapshots.get_mut(snapshot).expect("it is there")["status"] = json!("available");
        };
        self.end(
            trouble,
            move |state| {
                whole(state, &well.1);
                state.backups.get_mut(&well.0).expect("it is there")["status"] = json!("available");
            },
            move |state, message| {
                whole(state, &ill.1);
                let backup = state.backups.get_mut(&ill.0).expect("it is there");
                (backup["status"], backup["fail_reason"]) = (json!("error"), json!(message));
                state.complain(&ill.0, message);
            },
        );
        ok(202, json!({"backup": {"id": id, "name": asked["name"], "links": []}}))
    }

    fn nova(&mut self, name: &'static str, parts: &[&str], body: &Value, trouble: Option<&Trouble>) -> Reply {
        let server_id = parts[1].to_owned();
        let Some(server) = self.servers.get(&server_id) else {
            return refuse(404, format!("Instance {server_id} could not be found."));
        };
        if name == "show server" {
            return ok(200, json!({"server": server}));
        }
        let task = text(server, "OS-EXT-STS:task_state").to_owned();
        let mut held = server["os-extended-volumes:volumes_attached"].as_array().expect("a list").clone();
        let id = parts.get(3).copied().unwrap_or_else(|| text(&body["volumeAttachment"], "volumeId")).to_owned();
        let verb = if name == "attach volume" { "attach_volume" } else { "detach_volume" };
        let room = self.room;
        let Some(volume) = self.volumes.get_mut(&id) else { return refuse(404, format!("Volume {id} could not be found.")) };
        let status = text(volume, "status").to_owned();
        let multi = volume["multiattach"] == true;
        let is_held = held.iter().any(|one| one["id"] == *id);
        if name == "detach volume" && !is_held {
            return refuse(404, format!("Instance {server_id} is not attached to volume {id}"));
        }
        if !task.is_empty() || text(server, "status") == "SUSPENDED" {
            return refuse(409, format!("Cannot '{verb}' instance {server_id} while it is in task_state {task}"));
        }
        if name == "detach volume" {
            if status != "in-use" {
                return refuse(
                    400,
                    format!("Invalid volume: Unable to detach volume. Volume status must be 'in-use', currently {status}"),
                );
            }
            volume["status"] = json!("detaching");
            let ill = id.clone();
            self.end(
                trouble,
                move |state| state.detach(&server_id, &id),
                move |state, _| {
                    state.volumes.get_mut(&ill).expect("it is there")["status"] = json!("in-use");
                },
            );
            return ok(202, Value::Null);
        }
        if is_held {
            return refuse(400, format!("Invalid volume: Volume {id} is already attached to instance {server_id}"));
        }
        if status != "available" && !(multi && status == "in-use") {
            return refuse(400, format!("Invalid volume: volume '{id}' status must be 'available'. Currently in '{status}'"));
        }
        if held.len() >= room {
            return refuse(
                403,
                format!("The maximum allowed number of disk devices ({room}) to attach to a single instance has been exceeded."),
            );
        }
        if status == "available" {
            volume["status"] = json!("reserved");
        }
        held.push(json!({"id": id}));
        self.servers.get_mut(&server_id).expect("it is there")["os-extended-volumes:volumes_attached"] = json!(held);
        let attachment = self.new_id();
        let listed = json!({"id": attachment, "status": "reserved", "instance": server_id, "volume_id": id, "attached_at": ""});
        self.attachments.insert(attachment.clone(), listed);
        let (well, ill) = ((server_id.clone(), id.clone()), (server_id.clone(), id.clone()));
        self.end(
            trouble,
            move |state| {
                let (server_id, id) = well;
                let now = State::now();
                let listed = state.attachments.get_mut(&attachment).expect("it is there");
                (listed["status"], listed["attached_at"]) = (json!("attached"), json!(now));
                let volume = state.volumes.get_mut(&id).expect("it is there");
                volume["status"] = json!("in-use");
                let shown = json!({"server_id": server_id, "attachment_id": attachment, "attached_at": now, "host_name": null, "volume_id": id});
                volume["attachments"].as_array_mut().expect("a list").push(shown);
            },
            move |state, _| state.detach(&ill.0, &ill.1),
        );
        ok(200, json!({"volumeAttachment": {"id": id, "serverId": server_id, "volumeId": id, "device": "/dev/vdb"}}))
    }

    /// Whatever is attached there when it ends, however late that is.
    fn detach(&mut self, server: &str, id: &str) {
        self.attachments.retain(|_, one| one["instance"] != *server || one["volume_id"] != *id);
        let list =
            |value: &mut Value, keep: &dyn Fn(&Value) -> bool| value.as_array_mut().expect("a list").retain(|one| keep(one));
        if let Some(server) = self.servers.get_mut(server) {
            list(&mut server["os-extended-volumes:volumes_attached"], &|one| one["id"] != *id);
        }
        let Some(volume) = self.volumes.get_mut(id) else { return };
        list(&mut volume["attachments"], &|one| one["server_id"] != *server);
        let is_free = volume["attachments"].as_array().expect("a list").is_empty();
        volume["status"] = json!(if is_free { "available" } else { "in-use" });
    }

    /// Nova, as far as a real Cinder sees it: it makes an attachment for a server, completes it, and deletes it.
    fn nova_before(&mut self, real: SocketAddr, name: &'static str, parts: &[&str], body: &Value) -> Reply {
        let server_id = parts[1].to_owned();
        let Some(server) = self.servers.get_mut(&server_id) else {
            return refuse(404, format!("Instance {server_id} could not be found."));
        };
        if name == "show server" {
            return ok(200, json!({"server": server}));
        }
        let held = server["os-extended-volumes:volumes_attached"].as_array_mut().expect("a list");
        if name == "detach volume" {
            let id = parts[3];
            let Some(place) = held.iter().position(|one| one["id"] == *id) else {
                return refuse(404, format!("Instance {server_id} is not attached to volume {id}"));
            };
            let Reply(status, _, answer) =
                ask(real, "POST", &format!("volumes/{id}/action"), &json!({"os-begin_detaching": null}));
            if status != 202 {
                return refuse(400, text(&answer["badRequest"], "message"));
            }
            let attachment = held.remove(place)["attachment"].as_str().expect("ours").to_owned();
            ask(real, "DELETE", &format!("attachments/{attachment}"), &Value::Null);
            return ok(202, Value::Null);
        }
        let id = text(&body["volumeAttachment"], "volumeId");
        let wanted = json!({"attachment": {"volume_uuid": id, "instance_uuid": server_id, "connector": {"host": "compute-1", "multipath": false,
            "initiator": "iqn.2026-11.dev.longshore:compute-1", "mountpoint": "/dev/vdb", "ip": "127.0.0.1", "platform": "x86_64", "os_type": "linux"}}});
        let Reply(status, headers, answer) = ask(real, "POST", "attachments", &wanted);
        if status != 200 {
            return Reply(status, headers, answer);
        }
        let attachment = text(&answer["attachment"], "id").to_owned();
        ask(real, "POST", &format!("attachments/{attachment}/action"), &json!({"os-complete": null}));
        held.push(json!({"id": id, "attachment": attachment}));
        ok(200, json!({"volumeAttachment": {"id": id, "serverId": server_id, "volumeId": id, "device": "/dev/vdb"}}))
    }
}

/// The page of a list that is asked for.
fn list(kind: &str, all: &BTreeMap<String, Value>, query: &BTreeMap<String, String>, page: usize) -> Reply {
    let wanted: Value = query.get("metadata").and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    let has_all = |one: &&Value| wanted.as_object().into_iter().flatten().all(|(key, value)| one["metadata"][key] == *value);
    let is_named = |one: &&Value| query.get("name").is_none_or(|name| one["name"] == **name);
    let mut found: Vec<&Value> = all.values().filter(has_all).filter(is_named).collect();
    let from = match query.get("marker") {
        None => 0,
        Some(marker) => match found.iter().position(|one| one["id"] == **marker) {
            Some(place) => place + 1,
            None => return refuse(404, format!("Volume {marker} could not be found.")),
        },
    };
    let limit = query.get("limit").and_then(|limit| limit.parse().ok()).unwrap_or(usize::MAX).min(page);
    let more = found.len() > from + limit;
    found = found.into_iter().skip(from).take(limit).collect();
    let mut answer = json!({kind: found});
    if more {
        let last = text(found.last().expect("a page"), "id").to_owned();
        answer[format!("{kind}_links")] =
            json!([{"rel": "next", "href": format!("http://cinder.internal:8776/v3/{kind}?limit={limit}&marker={last}")}]);
    }
    ok(200, answer)
}

/// A request to a real Cinder: without Keystone its tokens are the user and the project.
fn pass_on(real: SocketAddr, request: &Request) -> Reply {
    let mut request = request.clone();
    request.path = request.path.trim_start_matches("/volume").to_owned();
    request.headers.insert("x-auth-token".to_owned(), format!("driver:{PROJECT}"));
    let (status, body) = wire::send(real, &request).expect("Cinder answers");
    Reply(status, Vec::new(), serde_json::from_str(&body).unwrap_or_default())
}

fn ask(real: SocketAddr, method: &str, path: &str, body: &Value) -> Reply {
    let headers = [("content-type", "application/json"), ("openstack-api-version", "volume 3.44")];
    pass_on(
        real,
        &Request {
            method: method.to_owned(),
            path: format!("/volume/v3/{PROJECT}/{path}"),
            headers: headers.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
            body: if body.is_null() { String::new() } else { body.to_string() },
        },
    )
}

/// What a real Cinder has of a kind, in all pages.
pub fn all_of(cloud: &OpenStack, kind: &str) -> Vec<Value> {
    let real = cloud.real.expect("a real Cinder");
    let mut all: Vec<Value> = Vec::new();
    loop {
        let marker = all.last().map(|last| format!("?marker={}", text(last, "id"))).unwrap_or_default();
        let Reply(status, _, answer) = ask(real, "GET", &format!("{kind}/detail{marker}"), &Value::Null);
        assert_eq!(status, 200, "{answer}");
        let page = answer[kind].as_array().expect("a list");
        if page.is_empty() {
            return all;
        }
        all.extend(page.iter().cloned());
    }
}

//! Sessions are made and ended by iscsiadm, which asks iscsid. Its answers are its exit statuses (iscsiadm(8)); what came of it shows
//! in sysfs.
//!
//! iscsiadm takes what a login needs from its database below /etc/iscsi, where passwords lie in clear and stay. So each run of it
//! has a database of its own, in memory that only it sees ([`process::Private`]), with just the records for this one login. iscsid gets
//! the record by its socket and keeps it; after a restart it takes it from the kernel. Thus no password is on a disk, in an
//! argument or in an environment.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::super::process::{self, Output, Private, Run, Tool};
use super::super::{Error, Result, multipath, udev};
use super::{Portal, Session, daemon};

const ISCSIADM: Tool = Tool { name: "iscsiadm", package: "open-iscsi" };
/// Where the database may be: Debian's, and upstream's since 2.0-874.
const DATABASES: [&str; 2] = ["/etc/iscsi", "/var/lib/iscsi"];
/// Its lock lies below; a run that hangs elsewhere must not hold up ours.
const LOCKS: &str = "/run/lock";
/// The operator's defaults, and his interfaces.
const CONFIGURATION: &str = "/etc/iscsi/iscsid.conf";
const INTERFACES: &str = "/etc/iscsi/ifaces";

/// For one answer of a target while logging in.
const LOGIN_TIMEOUT: Duration = Duration::from_secs(8);
/// How often iscsid tries again before it says that a login failed; it waits some seconds between.
const LOGIN_RETRIES: u32 = 1;
/// Longer than a login can take.
pub const LONGEST_LOGIN: Duration = Duration::from_secs(30);
const LONGEST_LOGOUT: Duration = Duration::from_secs(30);
/// For the kernel to take down what the session had.
const LONGEST_END: Duration = Duration::from_secs(5);

/// By which interface and under which name a session is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Of the session, shown in sysfs; at most 64 letters, digits and dashes.
    pub name: String,
    /// Instead of the machine's own name.
    pub initiator: Option<String>,
    /// One of the operator's interfaces, whose settings are used; `None` for plain TCP.
    pub like: Option<String>,
}

/// CHAP.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    pub user: String,
    pub password: String,
    /// By which the target proves itself.
    pub mutual: Option<(String, String)>,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").finish_non_exhaustive()
    }
}

impl Credentials {
    /// Users and passwords, to be checked.
    pub fn values(&self) -> impl Iterator<Item = &str> {
        let mutual = self.mutual.iter().flat_map(|(user, password)| [user.as_str(), password.as_str()]);
        [self.user.as_str(), self.password.as_str()].into_iter().chain(mutual)
    }
}

/// What came of a login or of a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer<T> {
    Done(T),
    /// The target refuses the initiator's name, or its credentials.
    Refused,
    /// No session came of it, in words.
    Failed(String),
}

/// Whether iscsid can be asked: its socket is in our network namespace.
pub fn runs() -> bool {
    multipath::socket_listens(&[daemon::SOCKET])
}

/// Logs in to a target through one portal, without looking for its units. A session that is there already is `Done`.
///
/// # Errors
/// `Deadline`, after which the login may still come; `Unexpected` where there is no iscsid, or no such interface.
pub fn login(interface: &Interface, target: &str, portal: &Portal, credentials: Option<&Credentials>) -> Result<Answer<()>> {
    let binding = binding(interface)?;
    let mut record = defaults()?;
    record.extend(binding.clone());
    let mut set = |key: &str, value: &str| record.insert(key.to_owned(), value.to_owned());
    set("node.name", target);
    set("node.tpgt", "-1");
    set("node.startup", "manual");
    set("node.conn[0].address", portal.host());
    set("node.conn[0].port", &portal.port().to_string());
    set("node.conn[0].startup", "manual");
    set("node.conn[0].timeo.login_timeout", &LOGIN_TIMEOUT.as_secs().to_string());
    set("node.session.initial_login_retry_max", &LOGIN_RETRIES.to_string());
    set("node.session.nr_sessions", "1");
    // Other units of the target are none of ours.
    set("node.session.scan", "manual");
    authenticate(&mut record, "node.session.auth", credentials);
    // Where a record lies whose portal group is not known (idbm.c, idbm_for_each_iface).
    let place = format!("nodes/{target}/{},{}", portal.host(), portal.port());
    let files = database(interface, &binding, &[(place, record)])?;
    let arguments = ["-m", "node", "-T", target, "-p", &portal.to_string(), "-I", &interface.name, "--login"];
    let output = iscsiadm(&arguments, files, LONGEST_LOGIN)?;
    match output.status {
        // 15: there is such a session.
        Ok(0 | 15) => Ok(Answer::Done(())),
        other => failed(other),
    }
}

/// Which portals have which targets, as the target's own discovery says (SendTargets).
///
/// # Errors
/// As `login`.
pub fn discover(
    interface: &Interface,
    portal: &Portal,
    credentials: Option<&Credentials>,
) -> Result<Answer<Vec<(Portal, String)>>> {
    let mut record: BTreeMap<String, String> = BTreeMap::new();
    let mut set = |key: &str, value: &str| record.insert(format!("discovery.{key}"), value.to_owned());
    set("startup", "manual");
    set("type", "sendtargets");
    set("sendtargets.address", portal.host());
    set("sendtargets.port", &portal.port().to_string());
    set("sendtargets.timeo.login_timeout", &LOGIN_TIMEOUT.as_secs().to_string());
    set("sendtargets.reopen_max", &LOGIN_RETRIES.to_string());
    authenticate(&mut record, "discovery.sendtargets.auth", credentials);
    let place = format!("send_targets/{},{}/st_config", portal.host(), portal.port());
    let files = database(interface, &binding(interface)?, &[(place, record)])?;
    let portal = portal.to_string();
    let arguments = ["-m", "discoverydb", "-t", "sendtargets", "-p", &portal, "-I", &interface.name, "--discover"];
    let output = iscsiadm(&arguments, files, LONGEST_LOGIN)?;
    match output.status {
        Ok(0) => Ok(Answer::Done(output.stdout.lines().filter_map(found).collect())),
        // It has none for us.
        Ok(21) => Ok(Answer::Done(Vec::new())),
        other => failed(other),
    }
}

/// Ends a session, seen to be gone on return.
///
/// # Errors
/// `Tool` where it is still there.
pub fn logout(session: &Session) -> Result<()> {
    let interface = Interface { name: session.interface.clone(), initiator: Some(session.initiator.clone()), like: None };
    let files = database(&interface, &binding(&interface)?, &[])?;
    let output = iscsiadm(&["-m", "session", "-r", &session.id.to_string(), "--logout"], files, LONGEST_LOGOUT)?;
    let gone = udev::wait_until(Instant::now().checked_add(LONGEST_END), || {
        Ok(!super::sessions()?.iter().any(|there| there.id == session.id))
    })?;
    if gone { Ok(()) } else { Err(logout_failure(session, &output)) }
}

fn logout_failure(session: &Session, output: &Output) -> Error {
    if let Err(error) = failed::<()>(output.status) {
        return error;
    }
    let object = format!("logout of session {} with {}", session.id, session.target);
    let status = output.failure(&[]).unwrap_or_default();
    Error::Tool { tool: ISCSIADM.name, object, status, output: meaning(output.status).to_owned() }
}

fn iscsiadm(arguments: &[&str], files: Private, deadline: Duration) -> Result<Output> {
    let run = Run {
        tool: ISCSIADM,
        arguments: arguments.iter().map(|argument| (*argument).to_owned()).collect(),
        keep: Vec::new(),
        stdin: Vec::new(),
        deadline,
    };
    process::run_private(run, files)
}

/// The exit statuses of a failure (open-iscsi's iscsi_err.h).
fn failed<T>(status: std::result::Result<i32, i32>) -> Result<Answer<T>> {
    match status {
        Ok(24) => Ok(Answer::Refused),
        Ok(18 | 20) => Err(Error::Unexpected {
            object: "iscsid".to_owned(),
            reason: "it does not run; start it (`systemctl enable --now iscsid`), or let it run in this pod".to_owned(),
        }),
        Ok(code) => Ok(Answer::Failed(format!("iscsiadm's exit status {code}, {}", meaning(status)))),
        Err(signal) => Ok(Answer::Failed(format!("iscsiadm was killed by signal {signal}"))),
    }
}

fn meaning(status: std::result::Result<i32, i32>) -> &'static str {
    match status {
        Ok(0) => "success",
        Ok(2) => "no such session",
        Ok(4) => "the connection failed",
        Ok(5) => "the login failed",
        Ok(6) => "its database could not be read",
        Ok(7) => "an argument is not valid",
        Ok(8) => "no login within the time",
        Ok(10) => "the logout failed",
        Ok(11) => "no answer within the time",
        Ok(12) => "the transport's driver is not there (`modprobe iscsi_tcp`), or iscsid is of another version than iscsiadm",
        Ok(13) => "not permitted",
        Ok(15) => "there is such a session",
        Ok(19) => "the target refuses the login for good",
        Ok(21) => "nothing was found",
        Ok(22) => "sysfs has no such session",
        Ok(28) => "the session is in use",
        Ok(29) => "try again",
        _ => "an error",
    }
}

/// `192.0.2.1:3260,1 iqn.2001-04.com.example:disk`
fn found(line: &str) -> Option<(Portal, String)> {
    let (place, target) = line.trim().split_once(' ')?;
    let (portal, _group) = place.rsplit_once(',')?;
    Some((portal.parse().ok()?, target.to_owned()))
}

fn authenticate(record: &mut BTreeMap<String, String>, prefix: &str, credentials: Option<&Credentials>) {
    let mut set = |key: &str, value: &str| record.insert(format!("{prefix}.{key}"), value.to_owned());
    let Some(credentials) = credentials else {
        set("authmethod", "None");
        return;
    };
    set("authmethod", "CHAP");
    set("username", &credentials.user);
    set("password", &credentials.password);
    if let Some((user, password)) = &credentials.mutual {
        set("username_in", user);
        set("password_in", password);
    }
}

/// What the operator wants of every session (time-outs, queues), without credentials of his.
fn defaults() -> Result<BTreeMap<String, String>> {
    let all = settings(Path::new(CONFIGURATION))?.unwrap_or_default();
    Ok(all.into_iter().filter(|(key, _)| key.starts_with("node.") && !key.contains(".auth.")).collect())
}

fn binding(interface: &Interface) -> Result<BTreeMap<String, String>> {
    let mut binding = BTreeMap::from([("iface.transport_name".to_owned(), "tcp".to_owned())]);
    if let Some(like) = &interface.like {
        let theirs = settings(&Path::new(INTERFACES).join(like))?;
        let theirs = match (theirs, like.as_str()) {
            (Some(theirs), _) => theirs,
            // iscsiadm has this one built in.
            (None, "iser") => BTreeMap::from([("iface.transport_name".to_owned(), "iser".to_owned())]),
            (None, _) => {
                return Err(Error::Unexpected {
                    object: format!("iSCSI interface {like:?}"),
                    reason: format!("there is none in {INTERFACES}; make it (`iscsiadm -m iface -o new -I {like}`)"),
                });
            }
        };
        binding.extend(theirs.into_iter().filter(|(key, _)| key.starts_with("iface.")));
    }
    if let Some(initiator) = &interface.initiator {
        binding.insert("iface.initiatorname".to_owned(), initiator.clone());
    }
    binding.insert("iface.iscsi_ifacename".to_owned(), interface.name.clone());
    Ok(binding)
}

/// `key = value` lines; `None` where there is no such file.
fn settings(path: &Path) -> Result<Option<BTreeMap<String, String>>> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text.lines().filter_map(setting).collect())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::io("read", path, error)),
    }
}

fn setting(line: &str) -> Option<(String, String)> {
    let line = line.trim();
    let (key, value) = line.split_once('=').filter(|_| !line.starts_with('#'))?;
    let (key, value) = (key.trim(), value.trim());
    (!value.is_empty() && value != "<empty>").then(|| (key.to_owned(), value.to_owned()))
}

/// A database with one interface and these records, in memory.
fn database(
    interface: &Interface,
    binding: &BTreeMap<String, String>,
    records: &[(String, BTreeMap<String, String>)],
) -> Result<Private> {
    // iscsiadm is that which iscsid's files have: the two exchange C structures (open-iscsi, mgmt_ipc.h), which differ from version to
    // version, and 2.1.8 takes what 2.1.11 sends for a login without a transport.
    let mut files = match daemon::elsewhere()? {
        Some(pid) => Private::of_process(pid)?,
        None => Private::default(),
    };
    let mut there = false;
    for directory in DATABASES.map(Path::new) {
        if !files.has_directory(directory) {
            continue;
        }
        there = true;
        files.cover(directory)?;
        files.add(directory, &PathBuf::from("ifaces").join(&interface.name), &text(binding)?)?;
        for (place, record) in records {
            files.add(directory, Path::new(place), &text(record)?)?;
        }
    }
    if !there {
        return Err(Error::ToolMissing { tool: ISCSIADM.name, package: ISCSIADM.package });
    }
    if files.has_directory(Path::new(LOCKS)) {
        files.cover(Path::new(LOCKS))?;
    }
    Ok(files)
}

/// As iscsiadm reads it: a line for each.
///
/// # Errors
/// `Unexpected`, naming the key, where a value would become more than one.
fn text(record: &BTreeMap<String, String>) -> Result<Vec<u8>> {
    let mut text = String::new();
    for (key, value) in record {
        if value.contains(|letter: char| letter.is_control()) {
            let reason = "it holds a control character".to_owned();
            return Err(Error::Unexpected { object: format!("the value of {key}"), reason });
        }
        text.push_str(&format!("{key} = {value}\n"));
    }
    Ok(text.into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_a_configuration_are_read() {
        let text =
            "# node.x = 1\nnode.session.timeo.replacement_timeout = 120\n\niface.hwaddress = <empty>\n node.a=b = c \nnonsense\n";
        let settings: Vec<_> = text.lines().filter_map(setting).collect();
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        assert_eq!(settings, [pair("node.session.timeo.replacement_timeout", "120"), pair("node.a", "b = c")]);
    }

    #[test]
    fn discovery_output_is_read() {
        let portal = |text: &str| text.parse::<Portal>().expect("a portal");
        assert_eq!(found("127.0.0.1:3260,1 iqn.x"), Some((portal("127.0.0.1"), "iqn.x".to_owned())));
        assert_eq!(found("[2001:db8::1]:3260,4294967295 iqn.x"), Some((portal("[2001:db8::1]"), "iqn.x".to_owned())));
        assert_eq!(found("iscsiadm: something went wrong"), None);
    }

    #[test]
    fn a_value_never_becomes_two() {
        let record = |value: &str| BTreeMap::from([("node.session.auth.password".to_owned(), value.to_owned())]);
        assert_eq!(text(&record("a b")).expect("one line"), b"node.session.auth.password = a b\n");
        let error = text(&record("secret\nnode.startup = automatic")).expect_err("two lines").to_string();
        assert!(error.contains("node.session.auth.password") && !error.contains("secret"), "{error}");
    }

    #[test]
    fn logout_without_iscsid_says_what_to_start() {
        let session = Session {
            id: 7,
            target: "iqn.x".to_owned(),
            portal: None,
            peer: None,
            initiator: String::new(),
            interface: "i".to_owned(),
            state: "LOGGED_IN".to_owned(),
            directory: PathBuf::new(),
        };
        let failure = |code| {
            let output = Output { status: Ok(code), stdout: String::new(), stderr: String::new() };
            logout_failure(&session, &output).to_string()
        };
        assert!(failure(20).contains("systemctl enable --now iscsid"), "{}", failure(20));
        assert!(failure(10).contains("session 7 with iqn.x") && failure(10).contains("the logout failed"), "{}", failure(10));
    }

    #[test]
    fn credentials_are_not_shown() {
        let credentials = Credentials { user: "u".to_owned(), password: "secret".to_owned(), mutual: None };
        assert!(!format!("{credentials:?}").contains("secret"));
    }
}

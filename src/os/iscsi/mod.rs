//! iSCSI sessions of this machine, as sysfs shows them (drivers/scsi/scsi_transport_iscsi.c); what makes and ends them is in
//! [`admin`], which process that asks in [`daemon`].

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpStream, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use super::scsi::Unit;
use super::{Error, Result};

pub mod admin;
mod daemon;

const SESSIONS: &str = "/sys/class/iscsi_session";
/// IANA's.
const PORT: u16 = 3260;
/// RFC 1035: no host name is longer.
const LONGEST_HOST: usize = 253;

/// Where a target listens: `192.0.2.1:3260`, `[2001:db8::1]:3260`, `san.example.org:3260`. The port may be left out.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Portal {
    host: String,
    port: u16,
}

impl Portal {
    /// Without brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its address; `None` where its name has several, of which a login takes any, or none. It may wait for the resolver.
    pub fn only_address(&self) -> Option<SocketAddr> {
        let addresses: BTreeSet<SocketAddr> = (self.host.as_str(), self.port).to_socket_addrs().ok()?.collect();
        addresses.first().copied().filter(|_| addresses.len() == 1)
    }

    /// Whether a server listens there: a TCP connection is made, and closed again.
    ///
    /// # Errors
    /// What the resolver or the kernel says, of the last address that was tried.
    pub fn listens(&self, patience: Duration) -> io::Result<()> {
        let mut outcome = Err(io::Error::new(io::ErrorKind::NotFound, "the name has no address"));
        for address in (self.host.as_str(), self.port).to_socket_addrs()? {
            outcome = TcpStream::connect_timeout(&address, patience).map(drop);
            if outcome.is_ok() {
                break;
            }
        }
        outcome
    }
}

impl fmt::Display for Portal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

impl FromStr for Portal {
    type Err = String;

    fn from_str(text: &str) -> Result<Portal, String> {
        let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((host, "")) => (host, None),
            Some((host, rest)) => {
                (host, Some(rest.strip_prefix(':').ok_or_else(|| format!("{text:?} has more behind its address"))?))
            }
            None => match text.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (text, None),
            },
        };
        let port = match port {
            None => PORT,
            Some(port) if port.bytes().all(|byte| byte.is_ascii_digit()) => {
                port.parse().ok().filter(|port| *port > 0).ok_or_else(|| format!("{text:?} has no port from 1 to 65535"))?
            }
            Some(_) => return Err(format!("{text:?} is no portal; write 192.0.2.1:3260, [2001:db8::1]:3260 or a name")),
        };
        let name = |host: &str| {
            let legal = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
            !host.is_empty() && host.len() <= LONGEST_HOST && !host.starts_with(['-', '.']) && host.bytes().all(legal)
        };
        let right = if text.starts_with('[') { host.parse::<Ipv6Addr>().is_ok() } else { name(host) };
        if !right {
            return Err(format!("{host:?} is neither an address nor a host's name"));
        }
        Ok(Portal { host: host.to_owned(), port })
    }
}

/// A session of this machine with a target, through one portal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    /// As `iscsiadm -m session -r` takes it.
    pub id: u32,
    pub target: String,
    /// As it was given at the login; `None` while the session has no connection.
    pub portal: Option<Portal>,
    /// Where it is connected to: elsewhere, if the target redirected the login.
    pub peer: Option<SocketAddr>,
    /// What this machine calls itself there.
    pub initiator: String,
    /// The name of iscsiadm's interface by which the session was made.
    pub interface: String,
    /// `LOGGED_IN`, `FAILED` while it is tried again, `FREE`.
    pub state: String,
    /// In sysfs: what lies below it goes with it.
    directory: PathBuf,
}

impl Session {
    /// Whether commands go through.
    pub fn is_up(&self) -> bool {
        self.state == "LOGGED_IN"
    }

    /// The units that this machine has of it.
    pub fn units(&self) -> Result<Vec<Unit>> {
        super::scsi::units_below(&self.directory)
    }

    /// The unit of this number, if the machine has it.
    pub fn unit(&self, lun: u16) -> Result<Option<Unit>> {
        Ok(self.units()?.into_iter().find(|unit| unit.lun == u64::from(lun) || unit.lun == address_of(lun)))
    }

    /// Asks the target for this unit and no other; returns when the kernel has its answer.
    ///
    /// # Errors
    /// `Io`. A unit that the target does not have is no error: it is just not there afterwards.
    pub fn scan(&self, lun: u16) -> Result<()> {
        let number = super::scsi::attribute(&self.directory.join(format!("iscsi_session/session{}", self.id)), "target_id")?;
        let host = self.directory.parent().and_then(Path::file_name).unwrap_or_default();
        let path = Path::new("/sys/class/scsi_host").join(host).join("scan");
        let order = format!("- {} {}", number.unwrap_or_default(), address_of(lun));
        std::fs::write(&path, order).map_err(|error| Error::io("scan", &path, error))
    }
}

/// As the kernel numbers a unit: from 256 on by flat addressing (SAM-4, 4.6.8).
fn address_of(lun: u16) -> u64 {
    if lun < 256 { lun.into() } else { 0x4000 | u64::from(lun) }
}

/// How a target numbers a unit.
pub fn number_of(unit: &Unit) -> u16 {
    u16::try_from(unit.lun & 0x3fff).unwrap_or_default()
}

/// All sessions. One that goes while it is looked at is left out.
pub fn sessions() -> Result<Vec<Session>> {
    sessions_in(Path::new(SESSIONS))
}

fn sessions_in(class: &Path) -> Result<Vec<Session>> {
    let entries = match std::fs::read_dir(class) {
        // The module is not loaded: nobody has logged in.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(|error| Error::io("list", class, error))?,
    };
    let mut sessions = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|error| Error::io("list", class, error))?;
        sessions.extend(session(&entry.path())?);
    }
    sessions.sort_by_key(|session| session.id);
    Ok(sessions)
}

fn session(path: &Path) -> Result<Option<Session>> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let Some(id) = name.strip_prefix("session").and_then(|id| id.parse().ok()) else { return Ok(None) };
    let Ok(directory) = path.join("device").canonicalize() else { return Ok(None) };
    let get = |name: &str| super::scsi::attribute(path, name);
    let (Some(target), Some(state)) = (get("targetname")?, get("state")?) else { return Ok(None) };
    Ok(Some(Session {
        id,
        target,
        portal: portal_of(&directory)?,
        peer: peer_of(&directory)?,
        initiator: get("initiatorname")?.unwrap_or_default(),
        interface: get("ifacename")?.unwrap_or_default(),
        state,
        directory,
    }))
}

fn peer_of(directory: &Path) -> Result<Option<SocketAddr>> {
    let found = of_connection(directory, "address", "port")?;
    Ok(found.and_then(|(host, port)| Some((host.parse::<IpAddr>().ok()?, port).into())))
}

fn portal_of(directory: &Path) -> Result<Option<Portal>> {
    Ok(of_connection(directory, "persistent_address", "persistent_port")?.map(|(host, port)| Portal { host, port }))
}

/// These two of the session's connection, if it has one.
fn of_connection(directory: &Path, host: &str, port: &str) -> Result<Option<(String, u16)>> {
    for connection in super::scsi::children(directory)?.iter().filter(|name| name.starts_with("connection")) {
        let directory = directory.join(connection).join("iscsi_connection").join(connection);
        let get = |name: &str| super::scsi::attribute(&directory, name);
        if let (Some(host), Some(Ok(port))) = (get(host)?, get(port)?.map(|port| port.parse())) {
            return Ok(Some((host, port)));
        }
    }
    Ok(None)
}

/// Whether a name is one of a target or initiator (RFC 3720, 3.2.6): `iqn.` with a date and an authority, `eui.` with 16, `naa.` with
/// 16 or 32 hexadecimal digits.
///
/// # Errors
/// Why not.
pub fn check_name(name: &str) -> Result<(), String> {
    const LONGEST: usize = 223;
    if name.len() > LONGEST {
        return Err(format!("an iSCSI name has at most {LONGEST} bytes"));
    }
    let digits =
        |text: &str, lengths: &[usize]| lengths.contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let right = match name.split_once('.') {
        Some(("iqn", rest)) => {
            let dated = rest.split_once('.').is_some_and(|(date, authority)| {
                let date = date.split_once('-').is_some_and(|(year, month)| {
                    year.len() == 4 && month.len() == 2 && (year.to_owned() + month).bytes().all(|byte| byte.is_ascii_digit())
                });
                date && !authority.is_empty()
            });
            // Others (upper case) are normalised before they are compared; these are what all agree on.
            dated && rest.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b':' | b'_'))
        }
        Some(("eui", rest)) => digits(rest, &[16]),
        Some(("naa", rest)) => digits(rest, &[16, 32]),
        _ => false,
    };
    if right { Ok(()) } else { Err(format!("{name:?} is no iSCSI name; write iqn.2001-04.com.example:disk, eui. or naa.")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn portals_are_read_and_written() {
        for (text, shown) in [
            ("192.0.2.1", "192.0.2.1:3260"),
            ("192.0.2.1:860", "192.0.2.1:860"),
            ("[2001:db8::1]", "[2001:db8::1]:3260"),
            ("[2001:db8::1]:1", "[2001:db8::1]:1"),
            ("san-1.example.org", "san-1.example.org:3260"),
        ] {
            let portal: Portal = text.parse().expect(text);
            assert_eq!(portal.to_string(), shown);
            assert_eq!(shown.parse(), Ok(portal));
        }
        for text in [
            "",
            ":3260",
            "a:",
            "a:0",
            "a:65536",
            "a:+1",
            "2001:db8::1",
            "[a]:1",
            "[::1",
            "[::1]1",
            "a b",
            "-p",
            "a/b",
            "a,b",
            "../x",
        ] {
            assert!(text.parse::<Portal>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn names_are_checked() {
        for name in
            ["iqn.2001-04.com.example:storage.disk_2", "iqn.2026-11.dev.x", "eui.02004567A425678D", "naa.52004567BA64678D"]
        {
            assert_eq!(check_name(name), Ok(()), "{name}");
        }
        for name in
            ["", "iqn", "iqn.", "iqn.2001-4.com.x", "iqn.2001-04.", "iqn.2001-04.a/b", "iqn.2001-04.a b", "eui.1", "naa.xyz"]
        {
            assert!(check_name(name).is_err(), "{name:?}");
        }
        assert!(check_name(&format!("iqn.2001-04.com.x:{}", "x".repeat(223))).is_err());
    }

    #[test]
    fn sessions_are_read_from_sysfs() {
        let root = tempfile::tempdir().expect("a directory");
        let device = root.path().join("devices/host3/session7");
        let class = device.join("iscsi_session/session7");
        let connection = device.join("connection7:0/iscsi_connection/connection7:0");
        let unit = device.join("target3:0:0/3:0:0:16684");
        for directory in [&class, &connection, &unit, &root.path().join("class")] {
            std::fs::create_dir_all(directory).expect("a directory");
        }
        let write = |path: PathBuf, text: &str| std::fs::write(path, format!("{text}\n")).expect("a file");
        for (name, text) in
            [("targetname", "iqn.x"), ("state", "LOGGED_IN"), ("initiatorname", "iqn.me"), ("ifacename", "longshore-1")]
        {
            write(class.join(name), text);
        }
        write(connection.join("persistent_address"), "2001:db8::1");
        write(connection.join("persistent_port"), "3260");
        write(connection.join("address"), "192.0.2.9");
        write(connection.join("port"), "860");
        std::os::unix::fs::symlink(&device, class.join("device")).expect("a link");
        std::os::unix::fs::symlink(&class, root.path().join("class/session7")).expect("a link");
        let sessions = sessions_in(&root.path().join("class")).expect("a session");
        let [session] = sessions.as_slice() else { panic!("{sessions:?}") };
        assert!(session.is_up());
        assert_eq!((session.id, &*session.target, &*session.interface), (7, "iqn.x", "longshore-1"));
        assert_eq!(session.portal.as_ref().map(ToString::to_string).as_deref(), Some("[2001:db8::1]:3260"));
        assert_eq!(session.peer, Some(([192, 0, 2, 9], 860).into()), "where the target sent it");
        assert_eq!(session.unit(300).expect("reads").map(|unit| unit.lun), Some(0x4000 | 300));
        assert_eq!(session.unit(1).expect("reads"), None);
        assert_eq!(sessions_in(Path::new("/no/such/class")).expect("none"), []);
    }
}

//! Which process is iscsid. Anyone in the node's network may call itself so, or listen at its socket while iscsid does not run: passwords
//! are given to, and programs are taken from, only who could do the same without us.

use std::path::Path;

use super::super::{Error, Result, holders};

/// Of its socket, as proc_net(5) shows an abstract name.
pub const SOCKET: &str = "@ISCSIADM_ABSTRACT_NAMESPACE";
/// `/proc/PID/comm`.
const NAME: &str = "iscsid";
/// __SO_ACCEPTCON (linux/net.h). Accepted connections have their listener's name, but not this flag.
const LISTENS: u32 = 1 << 16;
/// SOCK_STREAM, as proc_net(5) shows it.
const STREAM: &str = "0001";
/// linux/capability.h
const SYS_ADMIN: u32 = 21;

/// A process that has the socket open.
struct Listener {
    pid: u32,
    name: String,
    is_trusted: bool,
}

/// iscsid, where it has other files than we have: on the node, and we in a container. Where systemd starts it for its first client,
/// process 1 has its files.
///
/// # Errors
/// `Unexpected`, naming who listens at its socket and cannot be iscsid.
pub fn elsewhere() -> Result<Option<u32>> {
    let files = |pid: u32| std::fs::read_link(format!("/proc/{pid}/ns/mnt")).ok();
    let Some(daemon) = choose(&listeners(SOCKET))? else { return Ok(None) };
    let other = files(daemon).zip(files(std::process::id())).is_some_and(|(there, here)| there != here);
    Ok(other.then_some(daemon))
}

/// `None` where nobody listens whom we can see, or neither iscsid nor process 1.
fn choose(listeners: &[Listener]) -> Result<Option<u32>> {
    let trusted = || listeners.iter().filter(|listener| listener.is_trusted);
    if let Some(other) = listeners.first().filter(|_| trusted().next().is_none()) {
        return Err(Error::Unexpected {
            object: "iscsid".to_owned(),
            reason: format!(
                "{} listens at its socket, but is not root with CAP_SYS_ADMIN, without which the kernel makes no sessions; it was asked \
                 nothing. End it, and start iscsid (`systemctl enable --now iscsid`)",
                holders::process(other.pid)
            ),
        });
    }
    let daemon = trusted().find(|listener| listener.name == NAME).or_else(|| trusted().find(|listener| listener.pid == 1));
    Ok(daemon.map(|listener| listener.pid))
}

/// The processes that listen at this socket of our network namespace, as far as we see them.
fn listeners(socket: &str) -> Vec<Listener> {
    let table = std::fs::read_to_string("/proc/net/unix").unwrap_or_default();
    // Several: a file may have the name, which anyone can make.
    let open: Vec<String> = table.lines().filter_map(|line| Some(format!("socket:[{}]", listening(line, socket)?))).collect();
    if open.is_empty() {
        return Vec::new();
    }
    let has_it = |pid: &u32| {
        let files = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        let links = files.filter_map(|file| std::fs::read_link(file.path()).ok());
        links.into_iter().any(|link| open.iter().any(|open| link == Path::new(open)))
    };
    holders::processes().into_iter().filter(has_it).map(listener).collect()
}

/// The inode of a line of /proc/net/unix, if this is its socket and it listens.
fn listening<'a>(line: &'a str, socket: &str) -> Option<&'a str> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let [_, _, _, flags, kind, _, inode, name] = fields.as_slice() else { return None };
    let listens = u32::from_str_radix(flags, 16).is_ok_and(|flags| flags & LISTENS != 0);
    (*name == socket && listens && *kind == STREAM).then_some(*inode)
}

fn listener(pid: u32) -> Listener {
    let read = |file: &str| std::fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
    let users = |pid: u32| std::fs::read_link(format!("/proc/{pid}/ns/user")).ok();
    let same_users = users(pid).is_some_and(|namespace| Some(namespace) == users(std::process::id()));
    Listener { pid, name: read("comm").trim().to_owned(), is_trusted: same_users && is_administrator(&read("status")) }
}

/// Whether a process is root and may do what root may, by /proc/PID/status: the kernel takes sessions from no other
/// (iscsi_if_recv_msg in scsi_transport_iscsi.c), so iscsid is.
fn is_administrator(status: &str) -> bool {
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
    let is_root = field("Uid:").is_some_and(|ids| ids.split_whitespace().all(|id| id == "0"));
    let effective = field("CapEff:").and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default();
    is_root && effective & (1 << SYS_ADMIN) != 0
}

#[cfg(test)]
mod tests {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

    use super::*;

    fn choice(listeners: &[(u32, &str, bool)]) -> Result<Option<u32>> {
        let listeners = listeners.iter().map(|(pid, name, is_trusted)| Listener {
            pid: *pid,
            name: (*name).to_owned(),
            is_trusted: *is_trusted,
        });
        choose(&listeners.collect::<Vec<_>>())
    }

    #[test]
    fn iscsid_of_a_pod_without_rights_is_refused_and_named() {
        assert_eq!(choice(&[]).expect("nobody"), None);
        assert_eq!(choice(&[(1, "systemd", true), (70, "iscsid", true)]).expect("both of systemd's"), Some(70));
        assert_eq!(choice(&[(1, "systemd", true)]).expect("not started yet"), Some(1));
        assert_eq!(choice(&[(60, "iscsid", false), (70, "iscsid", true)]).expect("the real one"), Some(70));
        assert_eq!(choice(&[(70, "another", true)]).expect("no iscsid"), None);
        let error = choice(&[(std::process::id(), "iscsid", false)]).expect_err("refused").to_string();
        assert!(error.contains(&format!("process {} (", std::process::id())), "{error}");
    }

    #[test]
    fn only_root_with_the_right_to_make_sessions_is_trusted() {
        let status = |uid: &str, mask: &str| format!("Name:\tiscsid\nUid:\t{uid}\nGid:\t0\t0\t0\t0\nCapEff:\t{mask}\n");
        assert!(is_administrator(&status("0\t0\t0\t0", "000001ffffffffff")));
        // What a container's root has by default.
        assert!(!is_administrator(&status("0\t0\t0\t0", "00000000a80425fb")));
        assert!(!is_administrator(&status("1000\t0\t0\t0", "000001ffffffffff")));
        assert!(!is_administrator(""));
    }

    #[test]
    fn listener_is_found_by_its_socket_and_not_by_a_connection_to_it() {
        let name = format!("longshore-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).expect("a name");
        let socket = UnixListener::bind_addr(&address).expect("bound");
        let client = UnixStream::connect_addr(&address).expect("connected");
        let (accepted, _) = socket.accept().expect("accepted");
        let pids = || listeners(&format!("@{name}")).into_iter().map(|listener| listener.pid).collect::<Vec<_>>();
        assert!(pids().contains(&std::process::id()));
        drop(socket);
        assert!(!pids().contains(&std::process::id()), "only {accepted:?} of {client:?} has the name now");
    }
}

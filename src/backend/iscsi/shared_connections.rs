//! What `longshore inspect` shows of this node's sessions, and ends.

use std::collections::BTreeSet;

use crate::backend::{BlockDevice, Connect, SharedConnection, changed, words};
use crate::os::iscsi::{self, Session};
use crate::os::multipath::Map;
use crate::volume::{Result, VolumeId};

use super::IscsiBackend;
use super::connections::{Connections, Entry};

/// The sessions with one target, by one interface, and who has them.
struct Linked {
    target: String,
    interface: String,
    sessions: Vec<Session>,
    entries: Vec<Entry>,
}

impl IscsiBackend {
    pub(super) fn all_links(&self) -> Result<Vec<SharedConnection>> {
        self.linked()?.iter().map(|linked| linked.describe(&self.connections)).collect()
    }

    pub(super) fn take_down(&self, connection: &SharedConnection) -> Result<()> {
        for linked in self.linked()? {
            if linked.describe(&self.connections)? != *connection {
                continue;
            }
            for entry in &linked.entries {
                self.disconnect(&entry.id, None)?;
            }
            for session in linked.sessions.iter().filter(|_| linked.entries.is_empty()) {
                self.end_unknown(session)?;
            }
            let same = |one: &Linked| (&one.target, &one.interface) == (&linked.target, &linked.interface);
            return if self.linked()?.iter().any(same) { Err(changed(&connection.object)) } else { Ok(()) };
        }
        Err(changed(&connection.object))
    }

    /// An entry is written before the first login, and removed after the last logout: a session that is there before and after the
    /// entries are read has its own among them.
    fn linked(&self) -> Result<Vec<Linked>> {
        let before = self.all_sessions()?;
        let entries = self.connections.read_again()?;
        let mut sessions = self.all_sessions()?;
        sessions.retain(|session| before.iter().any(|earlier| earlier.id == session.id));
        let of_sessions = sessions.iter().map(|session| (&session.target, &session.interface));
        let of_entries = entries.iter().map(|entry| (&entry.target, &entry.interface));
        let all: BTreeSet<_> = of_sessions.chain(of_entries).collect();
        let linked = |(target, interface): (&String, &String)| Linked {
            target: target.clone(),
            interface: interface.clone(),
            sessions: sessions.iter().filter(|one| (&one.target, &one.interface) == (target, interface)).cloned().collect(),
            entries: entries.iter().filter(|one| (&one.target, &one.interface) == (target, interface)).cloned().collect(),
        };
        Ok(all.into_iter().map(linked).collect())
    }

    /// Ends a session that no entry knows, with what it has, unless that is in use.
    fn end_unknown(&self, session: &Session) -> Result<()> {
        let units = session.units()?;
        if !units.is_empty() && !session.is_up() {
            return Err(self.down(&format!(
                "session {} with {} is lost, so that the users of its LUNs are unknown; log out of it if it is not used",
                session.id, session.target
            )));
        }
        for unit in units {
            let id = VolumeId::from_parts(&self.config.name, "unknown")?;
            self.release(&Entry::new(&id, &session.target, iscsi::number_of(&unit), &session.interface))?;
        }
        self.end_strays()
    }
}

impl Linked {
    fn describe(&self, connections: &Connections) -> Result<SharedConnection> {
        let mut states = Vec::new();
        let (mut release, mut devices) = (Vec::new(), Vec::new());
        for session in &self.sessions {
            let portal = session.portal.as_ref().map(|portal| format!(" at {portal}")).unwrap_or_default();
            states.push(format!("session {}{portal} {}", session.id, session.state));
            for unit in session.units()? {
                let Some(disk) = unit.disk()? else { continue };
                let identity = format!("LUN {} of {}", iscsi::number_of(&unit), self.target);
                let device = |path, number| BlockDevice { path, number, identity: identity.clone() };
                devices.push(device(disk.path(), disk.number));
                if let Some(map) = Map::on(&disk)? {
                    release.push(words(&["multipath", "-f", &map.name]));
                    devices.push(device(map.path, map.number));
                }
            }
        }
        release.dedup();
        // iscsiadm ends no session whose interface it does not know; ours are in no database.
        let interface = |order: &str| words(&["iscsiadm", "--mode", "iface", "--interface", &self.interface, "--op", order]);
        if !self.sessions.is_empty() {
            release.push(interface("new"));
            release.extend(self.sessions.iter().map(logout));
            release.push(interface("delete"));
        }
        let forget = |entry: &Entry| words(&["rm", "--force", "--", &connections.path(&entry.id).display().to_string()]);
        release.extend(self.entries.iter().map(forget));
        let state = if states.is_empty() { "no session".to_owned() } else { states.join(", ") };
        Ok(SharedConnection {
            object: self.target.clone(),
            state,
            up: !self.sessions.is_empty() && self.sessions.iter().all(Session::is_up),
            users: self.entries.iter().map(|entry| entry.id.clone()).collect(),
            devices,
            release,
        })
    }
}

fn logout(session: &Session) -> Vec<String> {
    words(&["iscsiadm", "--mode", "session", "--sid", &session.id.to_string(), "--logout"])
}

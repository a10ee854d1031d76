//! Logging in: which portals there are, which of them answer, and what it means if none does.

use std::net::SocketAddr;
use std::time::Duration;

use crate::os;
use crate::os::iscsi::admin::{self, Answer};
use crate::os::iscsi::{Portal, Session};
use crate::os::step::step;
use crate::os::{deadline, multipath, own};
use crate::volume::{Error, Result};

use super::IscsiBackend;
use super::connections::{Entry, Login};
use super::way::{Discovery, LoginParameters};

/// How long a portal may take to take a connection; all are tried at once.
const LISTENING: Duration = Duration::from_secs(3);
/// The same, with its name's resolution.
const RESOLVING: Duration = Duration::from_secs(8);

/// A portal by which there is no session, and why.
struct Failure {
    portal: Portal,
    kind: Kind,
    reason: String,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Nobody answers there.
    Silent,
    /// A server listens there, and refuses us.
    Refused,
    /// A server listens there, but no session came of it.
    Failed,
}

impl IscsiBackend {
    /// Logs in to every portal that answers and that has no session yet; says whether there was one. At least one session is there
    /// afterwards.
    ///
    /// # Errors
    /// `Denied`, `NotFound` for a target that the portals do not have (for us), `BackendUnavailable`.
    pub(super) fn log_in(&self, way: &LoginParameters, entry: &mut Entry) -> Result<bool> {
        // Before anything is sent there, discovery included.
        for portal in &way.portals {
            let denied = |reason| Error::Denied { object: format!("target {}", way.target), reason };
            self.allowed().check(portal).map_err(denied)?;
        }
        let portals = self.portals(way)?;
        entry.portals = way.portals.iter().map(ToString::to_string).collect();
        let sessions = self.sessions(entry)?;
        let session_at = |portal: &Portal| sessions.iter().find(|session| session.portal.as_ref() == Some(portal));
        let one_path = portals.len() > 1 && !multipath::runs();
        entry.one_path = one_path.then(|| {
            "multipathd does not run on this node: start it (`systemctl enable --now multipathd`), and stage the volume again"
                .to_owned()
        });
        let mut sessionless: Vec<Portal> = portals.iter().filter(|portal| session_at(portal).is_none()).cloned().collect();
        let mut failures = silent(&mut sessionless);
        let (mut up, mut changed) = (false, false);
        for portal in portals {
            if one_path && up {
                break;
            }
            let outcome = match session_at(&portal) {
                Some(session) if session.is_up() => Ok(()),
                Some(Session { state, .. }) => {
                    Err((Kind::Failed, format!("its session is {state}; it is tried again by itself")))
                }
                None if !sessionless.contains(&portal) => continue,
                None => {
                    changed = true;
                    self.log_in_at(way, entry, &portal)?
                }
            };
            match outcome {
                Ok(()) => {
                    up = true;
                    if !entry.portals.contains(&portal.to_string()) {
                        entry.portals.push(portal.to_string());
                    }
                }
                Err((kind, reason)) => failures.push(Failure { portal, kind, reason }),
            }
        }
        if !up {
            return Err(self.no_session(way, &failures));
        }
        for Failure { portal, reason, .. } in &failures {
            tracing::warn!(volume = %entry.id, target = way.target, %portal, reason, "a path is missing; the next stage tries it again");
        }
        Ok(changed)
    }

    fn log_in_at(&self, way: &LoginParameters, entry: &mut Entry, portal: &Portal) -> Result<Result<(), (Kind, String)>> {
        let answer = step("log in", &format_args!("{} at {portal}", way.target), || -> Result<Answer<()>> {
            let until = own::since_boot() + admin::LONGEST_LOGIN;
            entry.login = Some(Login { portal: portal.to_string(), until: until.as_secs() + 1 });
            self.connections.keep(entry)?;
            match admin::login(&way.interface, &way.target, portal, way.credentials.as_ref()) {
                // It may still come.
                Err(error @ os::Error::Deadline { .. }) => Ok(Answer::Failed(error.to_string())),
                answer => {
                    entry.login = None;
                    Ok(answer?)
                }
            }
        })?;
        Ok(match answer {
            Answer::Done(()) => Ok(()),
            Answer::Refused => Err((Kind::Refused, "it refuses us".to_owned())),
            Answer::Failed(reason) => Err((Kind::Failed, reason)),
        })
    }

    /// All portals, those of the volume's own first.
    fn portals(&self, way: &LoginParameters) -> Result<Vec<Portal>> {
        let mut portals = way.portals.clone();
        if way.discovery == Discovery::No {
            return Ok(portals);
        }
        let mut refused = false;
        let mut reasons = Vec::new();
        let mut answering = way.portals.clone();
        reasons.extend(silent(&mut answering).into_iter().map(|failure| format!("{}: {}", failure.portal, failure.reason)));
        for portal in &answering {
            let answer = match discover(way, portal) {
                // It is only asked whether there are more.
                Err(error) if way.discovery == Discovery::ForMore => Answer::Failed(error.to_string()),
                answer => answer?,
            };
            match answer {
                Answer::Done(found) => {
                    let found = found.into_iter().filter(|(_, target)| *target == way.target).map(|(portal, _)| portal);
                    for portal in further(&way.portals, found.collect()) {
                        match self.allowed().check(&portal) {
                            Ok(()) => portals.push(portal),
                            Err(reason) => {
                                tracing::warn!(target = way.target, reason, "a portal that the target names is not used")
                            }
                        }
                    }
                    portals.dedup();
                    return Ok(portals);
                }
                Answer::Refused => {
                    refused = true;
                    reasons.push(format!("{portal}: it refuses us"));
                }
                Answer::Failed(reason) => reasons.push(format!("{portal}: {reason}")),
            }
        }
        let reasons = reasons.join("; ");
        match way.discovery {
            Discovery::Authenticated(_) if refused => Err(Error::Denied {
                object: format!("discovery of target {}", way.target),
                reason: format!("{reasons}; check discovery.sendtargets.auth.username and .password in the node-stage secret"),
            }),
            Discovery::Authenticated(_) => Err(self.down(&format!("its targets cannot be asked for: {reasons}"))),
            Discovery::No | Discovery::ForMore => {
                tracing::debug!(target = way.target, reasons, "no further portals are known");
                Ok(portals)
            }
        }
    }

    /// What it means that there is no session.
    fn no_session(&self, way: &LoginParameters, failures: &[Failure]) -> Error {
        let all = |kind: Option<Kind>| {
            let of_kind = failures.iter().filter(|failure| kind.is_none_or(|kind| failure.kind == kind));
            of_kind.map(|failure| format!("{}: {}", failure.portal, failure.reason)).collect::<Vec<_>>().join("; ")
        };
        let as_whom = way.interface.initiator.as_deref().unwrap_or("the machine's own name");
        if failures.iter().any(|failure| failure.kind == Kind::Refused) {
            let chap = match way.credentials {
                Some(_) => "check the CHAP user and password, and",
                None => "it was tried without CHAP (sessionCHAPAuth);",
            };
            let reason = format!("{}; {chap} whether the target lets in {as_whom}", all(Some(Kind::Refused)));
            return Error::Denied { object: format!("target {}", way.target), reason };
        }
        for failure in failures.iter().filter(|failure| failure.kind == Kind::Failed) {
            // iSCSI says of a target that is not there no more than that the login failed; discovery tells.
            if let Ok(Answer::Done(found)) = discover(way, &failure.portal)
                && !found.iter().any(|(_, target)| *target == way.target)
            {
                return Error::NotFound {
                    kind: "target",
                    id: format!("{} at {} (for initiator {as_whom})", way.target, failure.portal),
                };
            }
        }
        self.down(&format!("no portal of target {} takes us: {}", way.target, all(None)))
    }
}

fn discover(way: &LoginParameters, portal: &Portal) -> Result<Answer<Vec<(Portal, String)>>, os::Error> {
    step("discover", portal, || admin::discover(&way.interface, portal, way.discovery.credentials()))
}

/// Those that are none of the known ones, which may be given by name: the target names itself by address.
fn further(known: &[Portal], mut found: Vec<Portal>) -> Vec<Portal> {
    let address = |portal: &Portal| {
        let portal = portal.clone();
        deadline::within(RESOLVING, move || portal.only_address()).flatten()
    };
    found.retain(|portal| !known.contains(portal));
    if !found.is_empty() {
        let known: Vec<SocketAddr> = known.iter().filter_map(address).collect();
        found.retain(|portal| address(portal).is_none_or(|address| !known.contains(&address)));
    }
    found
}

/// Takes those out of which nobody listens.
fn silent(portals: &mut Vec<Portal>) -> Vec<Failure> {
    let try_one = |portal: &Portal| {
        let portal = portal.clone();
        deadline::within(RESOLVING, move || portal.listens(LISTENING).map_err(|error| error.to_string()))
            .unwrap_or_else(|| Err("no answer within the time".to_owned()))
    };
    let outcomes: Vec<Result<(), String>> = std::thread::scope(|scope| {
        let threads: Vec<_> = portals.iter().map(|portal| scope.spawn(move || try_one(portal))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err("it could not be tried".to_owned()))).collect()
    });
    let mut failures = Vec::new();
    let mut outcomes = outcomes.into_iter();
    portals.retain(|portal| match outcomes.next() {
        Some(Err(reason)) => {
            failures.push(Failure { portal: portal.clone(), kind: Kind::Silent, reason });
            false
        }
        _ => true,
    });
    failures
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn portal_given_by_a_name_is_not_found_again_by_its_address() {
        let portals = |texts: &[&str]| -> Vec<Portal> { texts.iter().map(|text| text.parse().expect("a portal")).collect() };
        // A name for the resolver, which it knows by itself.
        let known = portals(&["127.1", "192.0.2.1"]);
        let found = portals(&["127.0.0.1", "127.0.0.1:860", "192.0.2.1", "192.0.2.2"]);
        assert_eq!(further(&known, found), portals(&["127.0.0.1:860", "192.0.2.2"]));
    }
}

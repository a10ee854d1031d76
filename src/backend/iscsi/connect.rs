//! The node's side: sessions, the units that come with them, and the one device that they become.
//!
//! - A session is ours if its interface's name begins as ours do ([`IscsiBackend::own_sessions`]); no other is touched.
//! - A unit is found by its session's target and its number, its disk by the unit, and what it is by its WWID; never by a name.
//! - It is one device: the map that multipathd makes of its paths, or the disk of the only path.
//! - What may be there is written down before the first login ([`super::connections`]).

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::backend::keyed_mutex::{Holder, KeyedGuard};
use crate::backend::{BlockDevice, Connect, ConnectRequest, SharedConnection, Source, detached_meanwhile};
use crate::os::block::Device;
use crate::os::iscsi::{self, Session};
use crate::os::multipath::{self, Map};
use crate::os::scsi::{Disk, Unit};
use crate::os::step::step;
use crate::os::udev;
use crate::volume::{Bytes, Error, Outcome, Result, VolumeId};

use super::IscsiBackend;
use super::attachment::{attachment_in, is_blank};
use super::connections::Entry;
use super::way::LoginParameters;

/// How long an operation waits for the lock; then the CO retries.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long a disk, its identity and its node in /dev may take to appear.
const DISK: Duration = Duration::from_secs(10);
/// How long udevd may take for what it does with a new disk.
const UDEV: Duration = Duration::from_secs(5);
/// How long multipathd may take to make a map of several paths.
const MAP: Duration = Duration::from_secs(15);

/// A path to a volume: a session and the unit in it.
#[derive(Clone, Debug)]
pub(super) struct Path {
    pub session: Session,
    pub unit: Unit,
}

impl Connect for IscsiBackend {
    fn connect(&self, request: &ConnectRequest<'_>) -> Result<Outcome<Source>> {
        let way = self.way(request)?;
        if !iscsi::admin::runs() {
            return Err(self.down(
                "iscsid does not run on this node; start it (`systemctl enable --now iscsid`), or let it run in this pod, which needs \
                 the host's network",
            ));
        }
        let mut entry = Entry::new(request.id, &way.target, way.lun, &way.interface.name);
        match self.connections.get(request.id) {
            Some(earlier) if earlier.same_paths(&entry) && earlier.is_by(way.attachment.as_deref()) => entry = earlier,
            // It was to be connected otherwise, or was detached meanwhile: what is cached may be older than what another node has written, and
            // its session has the passwords of then.
            Some(earlier) => self.release(&earlier)?,
            None => {}
        }
        entry.attachment = way.attachment.clone().or(entry.attachment);
        // Whose unit it is, is settled before anything is done to it.
        step("remember session", request.id, || self.connections.keep(&entry))?;
        let was_whole = entry.wwid.is_some();
        match self.make(&way, &mut entry) {
            Ok(made) => Ok(made),
            // A pod may use it.
            Err(error) if was_whole => Err(error),
            Err(error) => Err(self.roll_back(&entry, error)),
        }
    }

    fn connected(&self, id: &VolumeId, hint: Option<&Source>) -> Result<Option<Source>> {
        let Some(entry) = self.connections.get(id).or_else(|| self.entry_of(id, hint)) else { return Ok(None) };
        if let Some(Source::Device(device)) = hint
            && entry.wwid.as_deref().is_some_and(|wwid| device.identity == identity(&entry, wwid))
            && is_same_device(device)?
        {
            return Ok(hint.cloned());
        }
        let paths = self.paths(&entry)?;
        for path in &paths {
            let (Some(wwid), Some(disk)) = (path.unit.wwid()?, path.unit.disk()?) else { continue };
            if entry.wwid.as_ref().is_some_and(|known| *known != wwid) {
                continue;
            }
            let map = Map::on(&disk)?;
            return Ok(Some(source(&entry, &wwid, map.as_ref(), &disk)));
        }
        Ok(None)
    }

    fn is_same_device(&self, source: &Source) -> Result<bool> {
        match source {
            Source::Device(device) => is_same_device(device),
            Source::Filesystem { .. } | Source::Directory(_) => Ok(false),
        }
    }

    fn check_attachment(&self, id: &VolumeId, publish_context: &BTreeMap<String, String>) -> Result<()> {
        match self.connections.get(id).filter(|entry| !entry.is_by(attachment_in(publish_context))) {
            None => Ok(()),
            Some(_) => Err(detached_meanwhile(id)),
        }
    }

    fn disconnect(&self, id: &VolumeId, hint: Option<&Source>) -> Result<Outcome<()>> {
        let Some(entry) = self.connections.get(id).or_else(|| self.entry_of(id, hint)) else { return Ok(Outcome::Unchanged(())) };
        self.release(&entry)?;
        self.connections.forget(id)?;
        Ok(Outcome::Changed(()))
    }

    fn recover(&self) {
        if let Err(error) = self.end_strays() {
            tracing::error!(backend = %self.config.name, %error, "sessions that an earlier process left could not be ended");
        }
    }

    fn shared_connections(&self) -> Result<Vec<SharedConnection>> {
        self.all_links()
    }

    fn release_connection(&self, connection: &SharedConnection) -> Result<()> {
        self.take_down(connection)
    }

    fn refresh(&self, id: &VolumeId, source: &Source) -> Result<Bytes> {
        let Source::Device(device) = source else { return Err(Error::volume_not_found(id)) };
        let entry = self
            .connections
            .get(id)
            .or_else(|| self.entry_of(id, Some(source)))
            .filter(|_| is_same_device(device).unwrap_or(false));
        let entry = entry.ok_or_else(|| Error::Unverified {
            device: device.path.display().to_string(),
            reason: format!("it does not show volume {id}; nothing was done to it. Unstage the volume and stage it again"),
        })?;
        let paths = self.paths(&entry)?;
        let up: Vec<&Path> = paths.iter().filter(|path| path.session.is_up()).collect();
        if up.is_empty() {
            return Err(self.down(&format!("no path to volume {id} is up; it grows when one is again")));
        }
        for path in &up {
            step("rescan", &path.unit.address(), || path.unit.rescan())?;
        }
        if let Some(disk) = up.first().map(|path| path.unit.disk()).transpose()?.flatten()
            && let Some(map) = Map::on(&disk)?.filter(|map| map.number == device.number)
            && map.size()? != multipath::size_of_disk(&disk)?
        {
            step("resize map", &map.name, || map.resize())?;
        }
        Ok(Bytes(Device::open(&device.path, false)?.size()?))
    }

    /// A disk over the network that nobody has written to need not be read from end to end.
    fn known_blank(&self, _id: &VolumeId, publish_context: &BTreeMap<String, String>) -> bool {
        is_blank(publish_context)
    }

    fn limit(&self) -> Option<u64> {
        self.config.volumes_per_node
    }
}

impl IscsiBackend {
    /// Logs in and waits for the device. What fails is rolled back by the caller.
    fn make(&self, way: &LoginParameters, entry: &mut Entry) -> Result<Outcome<Source>> {
        // Held for the login alone: what one unit of a target waits for does not hold up its others.
        let mut changed = {
            let _lock = self.lock_target(&way.target, "log in")?;
            self.log_in(way, entry)?
        };
        let sessions: Vec<Session> = self.sessions(entry)?.into_iter().filter(Session::is_up).collect();
        if sessions.is_empty() {
            return Err(self.down(&format!("the session with {} was lost again", way.target)));
        }
        for session in &sessions {
            self.refuse_redirect(entry, session)?;
        }
        for session in &sessions {
            match session.unit(way.lun)? {
                // What lies behind the number may be another than at the last time.
                Some(unit) => step("rescan", &unit.address(), || unit.rescan())?,
                None => {
                    changed = true;
                    step("scan", &format_args!("LUN {} of {}", way.lun, way.target), || session.scan(way.lun))?;
                }
            }
        }
        let paths = without_lost(self.paths(entry)?)?;
        if paths.is_empty() {
            return Err(self.no_unit(way, entry, &sessions)?);
        }
        let (disks, wwid) = self.disks(way, &paths)?;
        entry.wwid = Some(wwid.clone());
        // Before multipathd is asked to make one device of what another volume uses.
        self.connections.ensure_only(entry)?;
        let map = self.map(entry, &disks, &wwid)?;
        let disk = match (&map, disks.split_first()) {
            (_, None) => return Err(self.down("all paths were lost again")),
            (None, Some((disk, more))) if !more.is_empty() => {
                self.keep_one_path(entry, disk)?;
                disk
            }
            (_, Some((disk, _))) => disk,
        };
        step("remember session", &entry.id, || self.connections.keep(entry))?;
        let source = source(entry, &wwid, map.as_ref(), disk);
        Ok(if changed { Outcome::Changed(source) } else { Outcome::Unchanged(source) })
    }

    /// A target may redirect a login, and iscsid follows by itself: only the session shows where to. Nothing was read by it yet.
    fn refuse_redirect(&self, entry: &Entry, session: &Session) -> Result<()> {
        let Err(refusal) = self.allowed().check_peer(session.peer) else { return Ok(()) };
        let Some(reason) = refusal else {
            return Err(self.down(&format!("the session with {} has lost its connection", session.target)));
        };
        self.log_out_if_unused(session, Some(entry))?;
        Err(Error::Denied { object: format!("target {}", session.target), reason })
    }

    /// The target answered for every session, and has no such unit; or a session was lost meanwhile.
    fn no_unit(&self, way: &LoginParameters, entry: &Entry, asked: &[Session]) -> Result<Error> {
        let now = self.sessions(entry)?;
        let all_up = asked.iter().all(|asked| now.iter().any(|session| session.id == asked.id && session.is_up()));
        if !all_up {
            return Ok(self.down(&format!("the session with {} was lost while its LUN {} was asked for", way.target, way.lun)));
        }
        let as_whom = asked.first().map(|session| session.initiator.clone()).unwrap_or_default();
        let id = format!("{} of target {} (for initiator {as_whom})", way.lun, way.target);
        Ok(Error::NotFound { kind: "LUN", id })
    }

    /// The disks of all paths, which must be one and the same by identity.
    fn disks(&self, way: &LoginParameters, paths: &[Path]) -> Result<(Vec<Disk>, String)> {
        let mut disks: Vec<Disk> = Vec::new();
        let there = udev::wait_until(Instant::now().checked_add(DISK), || {
            disks.clear();
            for path in paths {
                if let Some(disk) = path.unit.disk()?
                    && Device::open_if_there(&disk.path(), disk.number)?.is_some()
                {
                    disks.push(disk);
                }
            }
            Ok(disks.len() == paths.len())
        })?;
        let object = || format!("LUN {} of target {}", way.lun, way.target);
        for path in paths {
            if !path.unit.is_disk()? {
                return Err(Error::Unsupported { what: object(), reason: "it is no disk".to_owned() });
            }
        }
        if !there {
            return Err(Error::InProgress { object: object(), reason: "its disk has not appeared in /dev".to_owned() });
        }
        let mut wwids = Vec::new();
        for path in paths {
            wwids.push(path.unit.wwid()?.ok_or_else(|| Error::Unverified {
                device: object(),
                reason: "it does not say who it is (VPD page 0x83); without that no path to it can be trusted".to_owned(),
            })?);
        }
        let known = way.wwid.as_ref().or(wwids.first()).cloned().unwrap_or_default();
        match wwids.iter().find(|wwid| **wwid != known) {
            Some(other) => Err(Error::Unverified {
                device: object(),
                reason: format!("it is {other} where {known} was to be; it is another disk, and left alone"),
            }),
            None => Ok((disks, known)),
        }
    }

    /// The map over all paths, if multipathd wants one.
    fn map(&self, entry: &Entry, disks: &[Disk], wwid: &str) -> Result<Option<Map>> {
        let whole = || -> Result<Option<Map>, crate::os::Error> {
            let mut maps = disks.iter().map(Map::on).collect::<Result<Vec<_>, _>>()?.into_iter();
            let Some(Some(first)) = maps.next() else { return Ok(None) };
            Ok(maps.all(|map| map.as_ref() == Some(&first)).then_some(first).filter(|map| map.path.exists()))
        };
        let mut map = whole()?;
        if map.is_none() && multipath::runs() {
            // Before, multipathd does not know whose path it is.
            udev::wait_until(Instant::now().checked_add(UDEV), || Ok(disks.iter().all(|disk| udev::is_done_with(disk.number))))?;
            for disk in disks {
                if let Err(error) = step("offer path", &disk.name, || multipath::offer(disk)) {
                    tracing::warn!(volume = %entry.id, disk = disk.name, %error, "multipathd does not take it");
                }
            }
            // What multipathd does with a single path it has done by now.
            let patience = if disks.len() > 1 { MAP } else { Duration::ZERO };
            udev::wait_until(Instant::now().checked_add(patience), || {
                map = whole()?;
                Ok(map.is_some())
            })?;
        }
        if let Some(map) = &map
            && let Some(other) = self.other_of(entry, map, disks)?
        {
            return Err(Error::InUse {
                object: format!("volume {}", entry.id),
                by: format!("multipathd treats it as a path of volume {other}; give each disk of the target a WWID of its own"),
            });
        }
        match map {
            Some(map) if !map.shows(wwid)? => Err(Error::Unverified {
                device: map.path.display().to_string(),
                reason: format!("the map {} has other paths than those to {wwid}", map.name),
            }),
            map => Ok(map),
        }
    }

    /// Another volume that has a path in this map of our disks: multipathd makes one of all disks with one WWID.
    pub(super) fn other_of(&self, entry: &Entry, map: &Map, ours: &[Disk]) -> Result<Option<VolumeId>> {
        let mut disks = map.disks()?;
        disks.retain(|name| !ours.iter().any(|disk| disk.name == *name));
        if disks.is_empty() {
            return Ok(None);
        }
        for other in self.connections.all().into_iter().filter(|other| other.id != entry.id) {
            for path in self.paths(&other)? {
                if path.unit.disk()?.is_some_and(|disk| disks.contains(&disk.name)) {
                    return Ok(Some(other.id));
                }
            }
        }
        Ok(None)
    }

    /// Two disks that are one are an accident waiting: all but one go.
    fn keep_one_path(&self, entry: &mut Entry, disk: &Disk) -> Result<()> {
        let reason = "multipathd makes no map of its paths: let it (`find_multipaths yes` in /etc/multipath.conf), and stage the \
                      volume again";
        tracing::warn!(volume = %entry.id, target = entry.target, "only one of its paths is used: {reason}");
        entry.one_path = Some(reason.to_owned());
        for path in self.paths(entry)? {
            if path.unit.disk()?.as_ref() != Some(disk) {
                self.let_go(entry, &path)?;
            }
        }
        Ok(())
    }

    /// All sessions of this backend on this node.
    pub(super) fn all_sessions(&self) -> Result<Vec<Session>> {
        let own = self.own_sessions();
        let mut sessions = iscsi::sessions()?;
        sessions.retain(|session| session.interface.starts_with(&own));
        Ok(sessions)
    }

    /// Our sessions with the entry's target.
    pub(super) fn sessions(&self, entry: &Entry) -> Result<Vec<Session>> {
        let mut sessions = iscsi::sessions()?;
        sessions.retain(|session| session.target == entry.target && session.interface == entry.interface);
        Ok(sessions)
    }

    /// The paths of an entry's unit.
    pub(super) fn paths(&self, entry: &Entry) -> Result<Vec<Path>> {
        let mut paths = Vec::new();
        for session in self.sessions(entry)? {
            if let Some(unit) = session.unit(entry.lun)? {
                paths.push(Path { session, unit });
            }
        }
        Ok(paths)
    }

    /// What the journal remembers, where our own record was lost. By whom the session was made is not in it: the first of ours with
    /// such a unit.
    fn entry_of(&self, id: &VolumeId, hint: Option<&Source>) -> Option<Entry> {
        let Some(Source::Device(device)) = hint else { return None };
        let (wwid, target, lun) = parse_identity(&device.identity)?;
        let sessions = self.all_sessions().ok()?;
        let session = sessions.iter().find(|session| session.target == target)?;
        let mut entry = Entry::new(id, target, lun, &session.interface);
        entry.wwid = Some(wwid.to_owned());
        Some(entry)
    }

    /// Two volumes may share the sessions with a target.
    ///
    /// # Errors
    /// `Busy`, saying what runs.
    pub(super) fn lock_target(&self, target: &str, operation: &'static str) -> Result<KeyedGuard<'_>> {
        self.locks.lock(target, operation, PATIENCE).map_err(|Holder { operation, since }| Error::Busy {
            object: format!("target {target}"),
            operation,
            step: "another volume's session".to_owned(),
            since: since.elapsed(),
        })
    }

    pub(super) fn down(&self, reason: &str) -> Error {
        Error::BackendUnavailable { backend: self.config.name.to_string(), reason: reason.to_owned() }
    }
}

/// The paths without those that are lost and lie in one map with another that is up: their disks cannot be opened, and the map does
/// without them. A lost disk outside of the map stays: something may still use it, and a second disk beside it would be another cache.
fn without_lost(paths: Vec<Path>) -> Result<Vec<Path>> {
    let mut seen = Vec::new();
    for path in &paths {
        seen.push((path.session.is_up(), path.unit.disk()?.map(|disk| Map::on(&disk)).transpose()?.flatten()));
    }
    let needed = needed(&seen);
    Ok(paths.into_iter().zip(needed).filter_map(|(path, needed)| needed.then_some(path)).collect())
}

/// Of paths that are up or not, each in a map or in none.
fn needed<M: PartialEq>(paths: &[(bool, Option<M>)]) -> Vec<bool> {
    let is_up = |map: &M| paths.iter().any(|(up, other)| *up && other.as_ref() == Some(map));
    paths.iter().map(|(up, map)| *up || !map.as_ref().is_some_and(is_up)).collect()
}

/// What makes a device this volume's: the disk's identity in the world, and where it was found.
fn identity(entry: &Entry, wwid: &str) -> String {
    format!("{wwid} LUN {} of {}", entry.lun, entry.target)
}

fn parse_identity(identity: &str) -> Option<(&str, &str, u16)> {
    let (rest, target) = identity.rsplit_once(" of ")?;
    let (wwid, lun) = rest.rsplit_once(" LUN ")?;
    Some((wwid, target, lun.parse().ok()?))
}

fn source(entry: &Entry, wwid: &str, map: Option<&Map>, disk: &Disk) -> Source {
    let (path, number) = map.map_or_else(|| (disk.path(), disk.number), |map| (map.path.clone(), map.number));
    Source::Device(BlockDevice { path, number, identity: identity(entry, wwid) })
}

/// Whether a device is, by its name and number, what it was.
fn is_same_device(device: &BlockDevice) -> Result<bool> {
    let Some((wwid, _, _)) = parse_identity(&device.identity) else { return Ok(false) };
    let Some(name) = device.path.file_name().and_then(|name| name.to_str()) else { return Ok(false) };
    if let Some(map) = Map::of(name)? {
        return Ok(map.number == device.number && map.shows(wwid)?);
    }
    let Some(unit) = Unit::of(name) else { return Ok(false) };
    let disk = unit.disk()?.is_some_and(|disk| disk.name == name && disk.number == device.number);
    Ok(disk && unit.wwid()?.as_deref() == Some(wwid))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_path_is_done_without_only_where_its_map_has_another() {
        let (map, other) = (Some("dm-1"), Some("dm-2"));
        assert_eq!(needed(&[(true, map), (false, map)]), [true, false]);
        assert_eq!(needed(&[(true, map), (false, other), (false, None)]), [true, true, true]);
        assert_eq!(needed(&[(true, None::<&str>), (false, None)]), [true, true], "its disk may be in use");
        assert_eq!(needed(&[(false, map), (false, map)]), [true, true]);
    }

    #[test]
    fn an_identity_says_where_it_is() {
        let entry = Entry::new(&"san:a".parse().expect("an id"), "iqn.2001-04.com.example:x", 5, "i");
        for wwid in ["naa.6001405abc", "t10.LIO-ORG LUN of x"] {
            let text = identity(&entry, wwid);
            assert_eq!(parse_identity(&text), Some((wwid, "iqn.2001-04.com.example:x", 5)), "{text}");
        }
        assert_eq!(parse_identity("7:1234"), None);
    }
}

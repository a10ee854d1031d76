//! Letting go: the map, the units, and each session that has no unit left.

use std::time::{Duration, Instant};

use crate::os;
use crate::os::block::Device;
use crate::os::dm;
use crate::os::iscsi::{self, Session, admin};
use crate::os::multipath::{self, Map};
use crate::os::own;
use crate::os::scsi::Disk;
use crate::os::step::step;
use crate::os::udev;
use crate::volume::error::chain;
use crate::volume::{Error, Result};

use super::IscsiBackend;
use super::connect::Path;
use super::connections::Entry;

/// multipathd may make a map once more that was just removed.
const REMOVALS: usize = 3;
/// How long a login that was interrupted is waited for; then the CO asks again.
const PATIENCE: Duration = Duration::from_secs(5);

impl IscsiBackend {
    /// Takes an entry's unit from this node, and logs out of what then has no unit and is no other volume's. Seen to be done on return.
    ///
    /// # Errors
    /// `InUse`, naming what uses it; `BackendUnavailable` where a lost session must be given up first.
    pub(super) fn release(&self, entry: &Entry) -> Result<()> {
        self.await_late_login(entry)?;
        let paths = self.paths(entry)?;
        let mut disks = Vec::new();
        for path in &paths {
            disks.extend(path.unit.disk()?);
        }
        self.leave_others_map(entry, &disks)?;
        self.not_held(entry, &disks)?;
        let up = paths.iter().any(|path| path.session.is_up());
        for _ in 0..REMOVALS {
            let Some(map) = map_of(&disks)? else { break };
            remove_map(entry, &map, up)?;
        }
        for path in &paths {
            // What cannot be opened yet, nobody has written.
            if path.session.is_up()
                && let Some(disk) = path.unit.disk()?
                && let Some(device) = Device::open_if_there(&disk.path(), disk.number)?
            {
                write_out(entry, &disk.name, || device.flush());
            }
            self.let_go(entry, path)?;
        }
        for session in self.sessions(entry)? {
            self.log_out_if_unused(&session, Some(entry))?;
        }
        Ok(())
    }

    /// Takes an entry's disks out of a map that is another volume's, too.
    fn leave_others_map(&self, entry: &Entry, disks: &[Disk]) -> Result<()> {
        for disk in disks {
            if let Some(map) = Map::on(disk)?
                && self.other_of(entry, &map, disks)?.is_some()
            {
                step("withdraw path", &disk.name, || multipath::withdraw(disk))?;
            }
        }
        Ok(())
    }

    /// Takes one path away.
    pub(super) fn let_go(&self, entry: &Entry, path: &Path) -> Result<()> {
        let Path { session, unit } = path;
        // With a session that is lost its last unit goes, too, and nothing of that waits for the target.
        if session.is_up() || session.units()?.len() > 1 {
            if !session.is_up() && unit.state()? == "blocked" {
                return Err(self.down(&format!(
                    "the session with {} is lost, and other units of it are in use; they are given up when its time \
                     (replacement_timeout) is over",
                    session.target
                )));
            }
            step("remove unit", &unit.address(), || unit.remove()).map_err(|error| {
                let busy = error.errno() == Some(libc::EBUSY);
                let error = Error::from(error);
                if busy {
                    error.leaving(format!("something uses {}: `lsblk` and `fuser -v` show what", unit.address()))
                } else {
                    error
                }
            })?;
        }
        self.log_out_if_unused(session, Some(entry))
    }

    /// Logs out of a session that has no unit left, or is lost with its last one, unless another volume has one there, or is about to: its
    /// entry is written before its login. `of` is the volume that lets go of it, if one does.
    pub(super) fn log_out_if_unused(&self, session: &Session, of: Option<&Entry>) -> Result<()> {
        let _lock = self.lock_target(&session.target, "log out")?;
        let units = session.units()?.len();
        let lost = !session.is_up() && units <= 1;
        let same = |entry: &Entry| entry.target == session.target && entry.interface == session.interface;
        let is_others = self.connections.all().iter().any(|entry| same(entry) && of.is_none_or(|of| entry.id != of.id));
        if (lost || units == 0) && !is_others && iscsi::sessions()?.iter().any(|there| there.id == session.id) {
            step("log out", &format_args!("{} with {}", session.id, session.target), || admin::logout(session))?;
        }
        Ok(())
    }

    /// Undoes a connect that failed, if it was the first: what was connected before may be in use.
    pub(super) fn roll_back(&self, entry: &Entry, error: Error) -> Error {
        match self.release(entry).and_then(|()| self.connections.forget(&entry.id)) {
            Ok(()) => error.rolled_back(),
            Err(left) => {
                tracing::warn!(volume = %entry.id, error = %left, "what a failed connect left could not be taken back");
                error.leaving(left.to_string())
            }
        }
    }

    /// Ends sessions of ours that nobody remembers and that have no unit.
    pub(super) fn end_strays(&self) -> Result<()> {
        for session in self.all_sessions()? {
            if self.connections.all().iter().any(|entry| entry.target == session.target && entry.interface == session.interface) {
                continue;
            }
            let units: Vec<String> = session.units()?.iter().map(|unit| unit.address()).collect();
            if units.is_empty() {
                tracing::warn!(session = session.id, target = session.target, "a session that an earlier process left is ended");
                self.log_out_if_unused(&session, None)?;
            } else {
                let (session, units) = (format!("{} with {}", session.id, session.target), units.join(" "));
                tracing::error!(
                    session,
                    units,
                    "a session of this driver belongs to no known volume; log out of it if it is not used"
                );
            }
        }
        Ok(())
    }

    /// A login that was interrupted may still come: iscsid continues with it.
    ///
    /// # Errors
    /// `InProgress` where it is neither there nor over.
    fn await_late_login(&self, entry: &Entry) -> Result<()> {
        let Some(login) = &entry.login else { return Ok(()) };
        let left = login.left(own::since_boot());
        let come = udev::wait_until(Instant::now().checked_add(left.min(PATIENCE)), || {
            Ok(iscsi::sessions()?.into_iter().any(|session| {
                let same = session.target == entry.target && session.interface == entry.interface;
                same && session.portal.is_some_and(|portal| portal.to_string() == login.portal)
            }))
        })?;
        if come || left <= PATIENCE {
            return Ok(());
        }
        let reason = format!("a login at {} was interrupted, and may still come for {} s", login.portal, left.as_secs());
        Err(Error::InProgress { object: format!("target {}", entry.target), reason })
    }

    /// # Errors
    /// `InUse` where something else than its own map lies on the disks, or anything on that.
    fn not_held(&self, entry: &Entry, disks: &[Disk]) -> Result<()> {
        let mut holders = Vec::new();
        for disk in disks {
            for holder in dm::holders(disk.number)? {
                match Map::of(&holder)? {
                    Some(map) => holders.extend(dm::holders(map.number)?),
                    None => holders.push(holder),
                }
            }
        }
        holders.dedup();
        if holders.is_empty() {
            return Ok(());
        }
        let by = format!("{} lies on its device; take that down first (`lsblk` shows it)", holders.join(", "));
        Err(Error::InUse { object: format!("volume {}", entry.id), by })
    }
}

fn map_of(disks: &[Disk]) -> Result<Option<Map>> {
    for disk in disks {
        if let Some(map) = Map::on(disk)? {
            return Ok(Some(map));
        }
    }
    Ok(None)
}

/// Flushes a disk that nothing uses any more. What it refuses to take is lost whatever we answer; it is logged, so that the volume does
/// not stay on this node for ever.
fn write_out(entry: &Entry, name: &str, flush: impl FnOnce() -> os::Result<()>) {
    if let Err(error) = step("flush", &name, flush) {
        let (wwid, target) = (entry.wwid.as_deref().unwrap_or_default(), &*entry.target);
        tracing::error!(
            volume = %entry.id, disk = name, wwid, target, lun = entry.lun, error = %chain(&error),
            "the disk does not take what is in its cache; writes that were not synced may be lost. It is disconnected all the same: \
             check it on its target, and see `dmesg`"
        );
    }
}

fn remove_map(entry: &Entry, map: &Map, up: bool) -> Result<()> {
    if up {
        write_out(entry, &map.name, || Device::open(&map.path, false)?.flush());
    } else if multipath::runs() {
        // What waits for a path would wait for ever.
        step("stop waiting", &map.name, || map.stop_waiting())?;
    }
    step("remove map", &map.name, || dm::remove(&map.name)).map(drop).map_err(|error| {
        let busy = error.errno() == Some(libc::EBUSY);
        let error = Error::from(error);
        if busy { error.leaving(format!("a process has {} open: `fuser -v` shows which", map.path.display())) } else { error }
    })
}

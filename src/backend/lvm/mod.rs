//! Logical volumes of a node's volume groups, thick or in thin pools.
//!
//! - The volume group's own metadata is the truth: a volume is a logical volume with our tags ([`tags`]), made and tagged by one command of
//!   LVM. Nothing of a volume is kept beside it, so that another process, or the administrator, sees the same.
//! - What has not our tags, or another name than they say, is never changed.
//! - Existence is LVM's word: a missing device node, or a report that fails, is never "deleted".
//! - Nobody sees another's old data: a thick volume is zeroed before it is whole, also what it grows by ([`grow`]); a thin pool that does not
//!   zero its chunks is refused.
//! - What writes zeroes has the device exclusively, and looks once more at what it is after it has it.
//! - A device is known by its device-mapper UUID, which is made of those of its volume group and logical volume.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::os::lvm::{Lv, Pv, Report, VolumeGroup};
use crate::os::step::step;
use crate::os::{dm, lock};
use crate::volume::{AccessMode, BackendName, Error, IoLimits, Outcome, RawParameters, Result, Topology, VolumeId};

use super::configuration::{Configuration, Purpose};
use super::local::topology_of;
use super::{Backend, ChangedBlocks, Connect, Expand, Inspect, Modify, PoolUsage, Provision, ReportHealth, Snapshots, Usage};
use autoextend::Extender;
use config::{DeviceClass, Place};
use holding::Holding;
use tags::Object;

mod autoextend;
mod capacity;
mod changed;
pub mod config;
mod connect;
mod grow;
mod health;
mod holding;
mod inspect;
mod modify;
mod provision;
mod row;
mod snapshots;
mod tags;

pub use config::{Autoextend, Layout, LvmConfig, LvmParameters, Wipe};

/// A backend of volume groups of this node.
#[derive(Debug)]
pub struct LvmBackend {
    config: LvmConfig,
    /// By name: several classes may share one.
    groups: BTreeMap<String, VolumeGroup>,
    topology: Option<Topology>,
    purpose: Purpose,
    /// Volumes that this process connected.
    connected: Mutex<BTreeMap<VolumeId, Content>>,
    /// Thin volumes that this process made just now and left active.
    made: Mutex<BTreeMap<VolumeId, Made>>,
    /// Of which `find_for_create` saw nothing, and when: `create` need not look again.
    absent: Mutex<BTreeMap<VolumeId, Instant>>,
    /// Of volumes that this process made, connected or changed.
    io_limits: Mutex<BTreeMap<VolumeId, IoLimits>>,
    /// By volume group.
    recent: Mutex<BTreeMap<String, Recent>>,
    /// For metrics, by class and volume group: as the last report that was needed had it.
    usage: Mutex<BTreeMap<Place, PoolUsage>>,
    holding: Holding,
    /// What this process has begun to make.
    tried: Mutex<BTreeSet<VolumeId>>,
    _extender: Option<Extender>,
}

/// What was known of a volume's content when it was connected.
#[derive(Clone, Debug)]
enum Content {
    Unknown,
    /// Thin, and nothing of it has a place in its pool: it reads as zeroes.
    Unmapped,
    Blank(Box<Blank>),
}

/// For how long a thin volume that was just made is found by its device alone.
const NEW: Duration = Duration::from_secs(60);

/// The device of a thin volume as this process made it. Whether it is that still, and still blank, the kernel says.
#[derive(Clone, Debug)]
struct Made {
    at: Instant,
    /// Its name for the device-mapper.
    mapping: String,
    uuid: String,
}

/// A logical volume that holds zeroes and was never written to, as a tag of it says.
#[derive(Clone, Debug)]
struct Blank {
    group: VolumeGroup,
    path: String,
    uuid: String,
}

/// How old a report may be by which a volume is made. Many are made at once, and each report takes as long as making one.
const RECENT: Duration = Duration::from_secs(5);

/// A report, and which thin volumes this process has made since. Any other change of the volume group by this process makes it invalid; of
/// another program's nothing is known for as long as [`RECENT`]. It decides nothing that cannot be decided again: that there is no room is
/// seen in a new one, and that a name is taken by LVM.
#[derive(Clone, Debug)]
struct Recent {
    report: Arc<Report>,
    at: Instant,
    /// [`VolumeGroup::changes`].
    changes: u64,
    /// Thin pools and sizes.
    made: Vec<(String, u64)>,
}

impl Recent {
    fn is_valid(&self, group: &VolumeGroup) -> bool {
        self.at.elapsed() < RECENT && self.changes == group.changes()
    }
}

/// A logical volume of ours, where it was found.
struct Found<'a> {
    group: &'a VolumeGroup,
    report: Arc<Report>,
    lv: Lv,
}

impl Found<'_> {
    /// `vg/lv`, as LVM's commands take it.
    fn path(&self) -> String {
        path(self.group, &self.lv.name)
    }

    /// # Errors
    /// Where it is open.
    fn deactivate(&self) -> Result<()> {
        let (held, at) = (self.group.lock("lvchange")?, self.path());
        Ok(step("deactivate logical volume", &at, || self.group.change(&held, "lvchange", &["--activate", "n", &at]))?)
    }
}

fn path(group: &VolumeGroup, name: &str) -> String {
    format!("{}/{name}", group.name)
}

impl LvmBackend {
    /// Nothing is run yet. `state` is the driver's own directory.
    ///
    /// # Errors
    /// `Invalid`, naming the field of the configuration.
    pub fn open(config: LvmConfig, purpose: Purpose, state: &Path) -> Result<LvmBackend> {
        config.validate()?;
        let config = LvmConfig { classes: config.with_one_group_each(), ..config };
        let backups = state.join("lvm");
        let group = |class: &DeviceClass| {
            let name = &class.volume_group;
            let checksums = config.classes.iter().any(|class| class.volume_group == *name && class.raid_integrity);
            let group = VolumeGroup::new(name, &class.devices, &backups).with_mismatches(checksums);
            (name.clone(), group.with_targets(config.targets(name)))
        };
        let groups = config.classes.iter().map(group).collect();
        let extender = purpose.provisions().then(|| Extender::start(&config.classes, &groups)).flatten();
        let topology = topology_of(config.node.as_ref());
        let holding = Holding::new(state.join("lvm-groups"), config.name.as_str());
        Ok(LvmBackend {
            config,
            groups,
            topology,
            purpose,
            connected: Mutex::default(),
            made: Mutex::default(),
            absent: Mutex::default(),
            io_limits: Mutex::default(),
            recent: Mutex::default(),
            usage: Mutex::default(),
            holding,
            tried: Mutex::default(),
            _extender: extender,
        })
    }

    /// # Errors
    /// `BackendUnavailable` where LVM does not report it.
    fn report(&self, group: &VolumeGroup) -> Result<Arc<Report>> {
        let (at, changes) = (Instant::now(), group.changes());
        let report = group.report().map_err(|error| self.away(group, &error))?;
        self.remember_usage(group, &report);
        if self.purpose.provisions() {
            let own = format!("{}:", self.config.name);
            let is_own =
                |lv: &Lv| Object::of(lv).or_else(|| Object::renamed(lv)).is_some_and(|object| object.id.starts_with(&own));
            if let Err(error) = self.holding.note(&group.name, &report.uuid, report.lvs.values().any(is_own)) {
                tracing::warn!(volume_group = group.name, %error, "whether it holds volumes could not be recorded");
            }
        }
        let mut recent = lock(&self.recent);
        if !recent.get(&group.name).is_some_and(|recent| recent.is_valid(group) && !recent.made.is_empty()) {
            recent.insert(group.name.clone(), Recent { report: Arc::clone(&report), at, changes, made: Vec::new() });
        }
        Ok(report)
    }

    /// The report on which a call begins, which holds no lock yet. LVM does not use a physical volume that is back, if the metadata of the
    /// volume group was written while it was missing: it is taken back before. It is the same by its UUID, nothing could write to what lies
    /// on it alone, and RAID knows by itself what its disk has missed.
    fn report_at_start(&self, group: &VolumeGroup) -> Result<Arc<Report>> {
        let report = self.report(group)?;
        let can_return = |report: &Report, pv: &Pv| pv.is_back() && !waits_for_others(report, pv);
        let is_back = |report: &Report| report.pvs.iter().any(|pv| can_return(report, pv));
        if !self.purpose.serves() || !is_back(&report) {
            return Ok(report);
        }
        let held = group.lock("vgextend")?;
        let report = self.report(group)?;
        for pv in report.pvs.iter().filter(|pv| can_return(&report, pv)) {
            let restore = || group.change(&held, "vgextend", &["--restoremissing", &group.name, &pv.name]);
            if let Err(error) = step("restore physical volume", &pv.name, restore) {
                // What needs it says so; all else does not.
                tracing::warn!(volume_group = group.name, physical_volume = pv.name, %error, "it is back and cannot be used again");
                return Ok(report);
            }
            tracing::info!(
                volume_group = group.name,
                physical_volume = pv.name,
                uuid = pv.uuid,
                "it was missing and is used again"
            );
        }
        self.report(group)
    }

    fn away(&self, group: &VolumeGroup, error: &dyn std::fmt::Display) -> Error {
        let reason =
            format!("volume group {}: {error}; see `vgs {}` on the node, and the devices of its class", group.name, group.name);
        self.unavailable(reason)
    }

    fn unavailable(&self, reason: String) -> Error {
        Error::BackendUnavailable { backend: self.config.name.to_string(), reason }
    }

    fn group(&self, class: &DeviceClass) -> Result<&VolumeGroup> {
        self.groups
            .get(&class.volume_group)
            .ok_or_else(|| Error::invalid("classes", format!("{} is of no class", class.volume_group)))
    }

    /// The logical volume of a volume or snapshot, whole or not.
    ///
    /// # Errors
    /// `BackendUnavailable` where it was not found, but not all volume groups could be asked.
    fn locate(&self, object: &Object) -> Result<Option<Found<'_>>> {
        self.search(|report| named_in(report, object).cloned())
    }

    /// That no logical volume has the tags of a volume or snapshot, but another name. It holds data of which nobody said that it may be
    /// lost: the name says as much as the tags, and is what an administrator changes to keep it.
    ///
    /// # Errors
    /// `Unverified` where one has; `BackendUnavailable` as of [`LvmBackend::locate`].
    fn check_not_renamed(&self, operation: &str, object: &Object) -> Result<()> {
        match self.search(|report| renamed_in(report, object).cloned())? {
            Some(found) => Err(renamed(operation, object, &found.group.name, &found.lv.name)),
            None => Ok(()),
        }
    }

    /// That what is in none of the volume groups is deleted: the answer of a repeated deletion.
    ///
    /// # Errors
    /// As of [`LvmBackend::check_not_renamed`]; `BackendUnavailable` where a volume group that held volumes was not looked into.
    fn check_deleted(&self, object: &Object) -> Result<Outcome<()>> {
        self.check_not_renamed("delete", object)?;
        let Some((group, file)) = self.holding.unseen()? else { return Ok(Outcome::Unchanged(())) };
        let reason = format!(
            "volume group {group} held volumes of this backend and is of no class now, or another volume group has its name: whether {} \
             lies there is not known. Configure it again, or, if its volumes are gone for good, remove the file {}",
            object.called(),
            file.display()
        );
        Err(self.unavailable(reason))
    }

    fn remember_io_limits(&self, id: &VolumeId, limits: IoLimits) {
        if self.config.io_limits {
            lock(&self.io_limits).insert(id.clone(), limits);
        }
    }

    fn recent(&self, group: &VolumeGroup) -> Option<Recent> {
        lock(&self.recent).get(&group.name).filter(|recent| recent.is_valid(group)).cloned()
    }

    /// The first logical volume that `look` finds.
    fn search(&self, look: impl Fn(&Report) -> Option<Lv>) -> Result<Option<Found<'_>>> {
        let mut away = None;
        for group in self.groups.values() {
            match self.report_at_start(group) {
                Ok(report) => {
                    if let Some(lv) = look(&report) {
                        return Ok(Some(Found { group, report, lv }));
                    }
                }
                Err(error) => away = Some(error),
            }
        }
        away.map_or(Ok(None), Err)
    }

    /// Those that are whole.
    fn whole(&self, object: &Object) -> Result<Option<Found<'_>>> {
        Ok(self.locate(object)?.filter(|found| !found.lv.has_tag(tags::DRAFT)))
    }

    /// All of one kind that are whole, with ids after `after`, in the order of their ids.
    fn all(&self, kind: tags::Kind) -> Result<Vec<(String, Lv)>> {
        let mut found = Vec::new();
        for group in self.groups.values() {
            let report = self.report_at_start(group)?;
            let own = format!("{}:", self.config.name);
            let ours =
                report.lvs.values().filter(|lv| !lv.has_tag(tags::DRAFT)).filter_map(|lv| Some((Object::of(lv)?, lv.clone())));
            let ours = ours.filter(|(object, _)| object.kind == kind && object.id.starts_with(&own));
            found.extend(ours.map(|(object, lv)| (object.id, lv)));
        }
        found.sort_by(|a, b| a.0.cmp(&b.0));
        Ok(found)
    }
}

/// Whether a RAID has parts on a physical volume that is back, and on one that is still away: that one may have the data which this one
/// has missed, and LVM would activate the RAID without it.
fn waits_for_others(report: &Report, back: &Pv) -> bool {
    let here = format!("{}:", back.name);
    report.lvs.values().filter(|lv| lv.is("raid")).any(|raid| {
        let image = format!("{}_rimage_", raid.name);
        let parts = || report.lvs.values().filter(|part| part.name.starts_with(&image)).flat_map(|part| &part.ranges);
        parts().any(|range| range.starts_with(&here)) && parts().any(|range| !range.starts_with('/'))
    })
}

fn named_in<'a>(report: &'a Report, object: &Object) -> Option<&'a Lv> {
    report.lvs.get(&object.name).filter(|lv| Object::of(lv).as_ref() == Some(object))
}

fn renamed_in<'a>(report: &'a Report, object: &Object) -> Option<&'a Lv> {
    report.lvs.values().find(|lv| Object::renamed(lv).as_ref() == Some(object))
}

fn renamed(operation: &str, object: &Object, group: &str, name: &str) -> Error {
    let reason = format!(
        "logical volume {group}/{name} has its tags, but another name: it was renamed by hand; rename it back with \
         `lvrename {group} {name} {}`, or delete it with `lvremove {group}/{name}`",
        object.name
    );
    Error::Unverified { device: format!("{operation} {}", object.called()), reason }
}

/// The device-mapper UUID of an active logical volume (lib/activate/dev_manager.c of LVM2: "LVM-", then both UUIDs without hyphens).
fn dm_uuid(report: &Report, lv: &Lv) -> String {
    format!("{}{}", dm_prefix(report), lv.uuid.replace('-', ""))
}

/// How the device-mapper UUIDs of all logical volumes of a volume group begin.
fn dm_prefix(report: &Report) -> String {
    format!("LVM-{}", report.uuid.replace('-', ""))
}

/// As the device-mapper calls it when it is active.
fn mapping_of(lv: &Lv) -> &str {
    lv.dm_path.rsplit('/').next().unwrap_or_default()
}

/// The device of an active logical volume, seen to be its own.
///
/// # Errors
/// `Unverified` where a device of its name is another's.
fn mapped(report: &Report, lv: &Lv) -> Result<Option<dm::Mapped>> {
    let Some(device) = dm::find(mapping_of(lv))?.filter(|device| device.live) else { return Ok(None) };
    if device.uuid == dm_uuid(report, lv) {
        return Ok(Some(device));
    }
    let reason = format!("it has the UUID {}, not that of logical volume {} ({})", device.uuid, lv.name, dm_uuid(report, lv));
    Err(Error::Unverified { device: lv.dm_path.clone(), reason })
}

impl Backend for LvmBackend {
    fn name(&self) -> &BackendName {
        &self.config.name
    }

    fn kind(&self) -> &'static str {
        LvmConfig::KIND
    }

    fn probe(&self) -> Result<()> {
        self.groups.values().try_for_each(|group| self.report(group).map(drop))
    }

    fn is_usable_in_part(&self) -> bool {
        self.groups.values().any(|group| self.report(group).is_ok())
    }

    fn access_modes(&self) -> &[AccessMode] {
        &AccessMode::SINGLE_NODE
    }

    fn parameters(&self, raw: &RawParameters) -> Result<serde_json::Value> {
        let parameters = LvmParameters::of_class(raw, &self.config)?;
        serde_json::to_value(parameters).map_err(|error| Error::invalid("parameters", error.to_string()))
    }

    fn accepts_static(&self, attributes: &RawParameters) -> bool {
        attributes.get("logicalVolume").is_some()
    }

    fn parse_static_attributes(&self, raw: &RawParameters) -> Result<serde_json::Value> {
        let parameters: LvmParameters = raw.parse()?;
        if let Some((group, _)) = parameters.static_volume()?
            && !self.groups.contains_key(group)
        {
            let known: Vec<&str> = self.groups.keys().map(String::as_str).collect();
            let reason = format!("{group} is of no class of backend {}; there are {}", self.config.name, known.join(", "));
            return Err(Error::invalid("volumeGroup", reason));
        }
        serde_json::to_value(parameters).map_err(|error| Error::invalid("volume_context", error.to_string()))
    }

    fn topology(&self) -> Result<Option<Topology>> {
        Ok(self.topology.clone())
    }

    fn usage(&self) -> Usage {
        Usage { pools: self.usage_of_classes(), attachments: None }
    }

    fn provision(&self) -> Option<&dyn Provision> {
        self.purpose.provisions().then_some(self)
    }
    fn expand(&self) -> Option<&dyn Expand> {
        self.purpose.provisions().then_some(self)
    }
    fn modify(&self) -> Option<&dyn Modify> {
        self.purpose.provisions().then_some(self)
    }
    /// Of thin volumes alone.
    fn snapshots(&self) -> Option<&dyn Snapshots> {
        let thin = self.config.classes.iter().any(|class| class.thin_pool.is_some());
        (self.purpose.provisions() && thin).then_some(self)
    }
    fn changed_blocks(&self) -> Option<&dyn ChangedBlocks> {
        self.snapshots().is_some().then_some(self)
    }
    fn health(&self) -> Option<&dyn ReportHealth> {
        Some(self)
    }
    fn inspect(&self) -> Option<&dyn Inspect> {
        Some(self)
    }
    fn connect(&self) -> &dyn Connect {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disk_that_is_back_waits_for_one_that_may_have_what_a_raid_on_it_has_missed() {
        let pv =
            |name: &str| Pv { name: name.to_owned(), uuid: name.to_owned(), size: 0, free: 0, missing: true, allocatable: true };
        let lv = |name: &str, layout: &str, ranges: &[&str]| Lv {
            layout: vec![layout.to_owned()],
            ranges: ranges.iter().map(|range| (*range).to_owned()).collect(),
            ..Lv::named(name, Vec::new())
        };
        let raid = |other: &str| {
            Report::of([
                lv("a", "raid", &["a_rimage_0:0-9", "a_rimage_1:0-9"]),
                lv("a_rimage_0", "linear", &["/dev/sda:1-9"]),
                lv("a_rimage_1", "linear", &[other]),
                lv("b", "linear", &["/dev/sdb:10-20"]),
            ])
        };
        assert!(waits_for_others(&raid("[unknown]:1-9"), &pv("/dev/sda")));
        assert!(!waits_for_others(&raid("/dev/sdc:1-9"), &pv("/dev/sda")), "all of it is here");
        assert!(!waits_for_others(&raid("[unknown]:1-9"), &pv("/dev/sdb")), "no part of the RAID is on it");
    }
}

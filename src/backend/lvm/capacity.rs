//! How much room there is.

use std::cmp::Reverse;
use std::path::{Path, PathBuf};

use crate::backend::{CapacityAnswer, CapacityQuery, PoolUsage, Provisioned};
use crate::os::lvm::{Report, VolumeGroup, in_percent};
use crate::os::{dm, lock};
use crate::volume::{Bytes, ContentSource, Error, Result};

use super::LvmBackend;
use super::config::{DeviceClass, Layout, LvmParameters};
use super::tags::{Kind, Object};

/// A thin pool that is fuller than this, in hundredths of a percent, gets no further volume: at 100 % of its metadata it must be repaired
/// offline (lvmthin(7)).
pub(super) const FULL: u32 = 9500;

/// Why nothing can be made or grown: LVM refuses that as long as a physical volume is missing.
fn missing(report: &Report, devices: &[PathBuf]) -> Option<String> {
    if let Some(reason) = not_configured(report, devices) {
        return Some(reason);
    }
    let away: Vec<&str> = report.pvs.iter().filter(|pv| pv.missing).map(|pv| pv.uuid.as_str()).collect();
    (report.missing > 0).then(|| {
        format!(
            "{} of its physical volumes is missing ({}), and LVM makes and grows nothing until it is back; `pvs` shows them",
            report.missing,
            away.join(", ")
        )
    })
}

/// What to do about a physical volume that is on this machine, as udev says, but none of the configured devices, so that LVM misses it. Each
/// change of the volume group's metadata would mark it as missing for all that use it.
pub(super) fn not_configured(report: &Report, devices: &[PathBuf]) -> Option<String> {
    let link = |uuid: &str| Path::new("/dev/disk/by-id").join(format!("lvm-pv-uuid-{uuid}"));
    // One that is configured, and fails to read, is missing, too.
    let is_other = |path: &Path| {
        path.canonicalize()
            .is_ok_and(|path| !devices.iter().any(|device| device.canonicalize().is_ok_and(|device| device == path)))
    };
    let pv = report.pvs.iter().find(|pv| pv.missing && !pv.is_back() && is_other(&link(&pv.uuid)))?;
    let at = link(&pv.uuid);
    Some(format!(
        "its physical volume {} is here, but none of the configured devices: add it to `devices` of the class",
        at.display()
    ))
}

/// The largest thick volume of this class that fits, in bytes: a multiple of the extent.
pub(super) fn thick_room(class: &DeviceClass, report: &Report) -> u64 {
    if report.missing > 0 {
        return 0;
    }
    let usable = report.pvs.iter().filter(|pv| pv.allocatable);
    let mut free: Vec<u64> = usable.map(|pv| pv.free / report.extent).collect();
    free.sort_unstable_by(|a, b| b.cmp(a));
    let stripes = class.stripes();
    // Of each leg of a RAID, one extent is metadata.
    let (legs, data, metadata) = match class.layout {
        Layout::Linear => {
            let all: u64 = free.iter().sum();
            return all.saturating_sub(class.spare.0.div_ceil(report.extent)) * report.extent;
        }
        Layout::Striped => (stripes, stripes, 0),
        Layout::Raid1 => (2, 1, 1),
        Layout::Raid5 => (stripes + 1, stripes, 1),
        Layout::Raid6 => (stripes + 2, stripes, 1),
        Layout::Raid10 => (stripes * 2, stripes, 1),
    };
    let leg = usize::try_from(legs - 1).ok().and_then(|last| free.get(last)).copied().unwrap_or(0);
    let spare = class.spare.0.div_ceil(report.extent).div_ceil(legs);
    let checksums = if class.raid_integrity { checksums(leg * report.extent).div_ceil(report.extent) } else { 0 };
    leg.saturating_sub(metadata + checksums).saturating_sub(spare) * data * report.extent
}

/// The largest volume of a class that fits. Why there is no room is said by health and by CreateVolume.
fn room(class: &DeviceClass, report: &Report) -> u64 {
    match &class.thin_pool {
        Some(pool) => thin_room(class, pool, report).ok().and_then(std::result::Result::ok).unwrap_or(0),
        None => thick_room(class, report),
    }
}

/// What two volume groups of a class have together; of the parts of their metadata the larger.
fn sum(one: PoolUsage, other: PoolUsage) -> PoolUsage {
    let both = |one: Option<Bytes>, other: Option<Bytes>| one.zip(other).map(|(one, other)| Bytes(one.0 + other.0));
    PoolUsage {
        total: Bytes(one.total.0 + other.total.0),
        used: both(one.used, other.used),
        metadata: one.metadata.max(other.metadata),
        provisionable: Bytes(one.provisionable.0 + other.provisionable.0),
        provisioned: one.provisioned.zip(other.provisioned).map(|(one, other)| Provisioned {
            provisioned: Bytes(one.provisioned.0 + other.provisioned.0),
            volumes: one.volumes + other.volumes,
            snapshots: one.snapshots + other.snapshots,
        }),
    }
}

/// Checks that a thick volume of this class can be made, or can grow by, so many bytes.
///
/// # Errors
/// `NoCapacity`.
pub(super) fn check_thick(class: &DeviceClass, report: &Report, size: Bytes) -> Result<()> {
    let room = thick_room(class, report);
    if size.0 <= room {
        return Ok(());
    }
    let laid_out = || format!("{size} is asked for, {} can be laid out as {}", Bytes(room), class.layout.segment_type());
    let reason = missing(report, &class.devices).unwrap_or_else(laid_out);
    Err(Error::NoCapacity { place: format!("volume group {}", class.volume_group), reason })
}

/// How many bytes more may be provisioned in a thin pool; the inner error is why none. It counts all volumes in the pool, also of others.
///
/// # Errors
/// Why the pool cannot be used at all.
pub(super) fn thin_room(class: &DeviceClass, pool: &str, report: &Report) -> Result<Result<u64, String>, String> {
    let Some(lv) = report.lvs.get(pool).filter(|lv| lv.is("pool")) else {
        return Err(format!(
            "there is none of this name; make it with `lvcreate --type thin-pool -n {pool} {}`",
            class.volume_group
        ));
    };
    if !lv.zeroes {
        let reason = "it does not zero new chunks, so that volumes would show deleted data of others; run `lvchange --zero y`";
        return Err(format!("{reason} {}/{pool}", class.volume_group));
    }
    if let Some(reason) = missing(report, &class.devices) {
        return Ok(Err(reason));
    }
    for (of, percent) in [("data", lv.data), ("metadata", lv.metadata)] {
        if percent.is_some_and(|percent| percent >= FULL) {
            return Ok(Err(format!("{} of its {of} is used; extend it with `lvextend`, or delete volumes", in_percent(percent))));
        }
    }
    let provisioned: u64 = report.lvs.values().filter(|one| one.pool.as_deref() == Some(pool)).map(|one| one.size).sum();
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss,
        reason = "a factor that people chose"
    )]
    let allowed = (lv.size as f64 * class.overcommit) as u64;
    let left = allowed.saturating_sub(provisioned);
    Ok(Ok(left - left % report.extent))
}

/// The bytes that lvcreate takes of each disk for the checksums of an image (LVM2, lib/metadata/integrity_manip.c): 4 MiB for each begun 500
/// MiB, and for the journal 4 MiB of up to 512 MiB, 8 of up to 1 GiB, 32 of up to 4 GiB, else 64.
pub(super) fn checksums(image: u64) -> u64 {
    const MIB: u64 = 1 << 20;
    let journal = match image / MIB {
        0..=512 => 4,
        513..=1024 => 8,
        1025..=4096 => 32,
        _ => 64,
    };
    (image / (500 * MIB) + 1) * 4 * MIB + journal * MIB
}

/// The arguments of lvcreate for volumes of a class.
pub(super) fn class_arguments(class: &DeviceClass) -> Vec<String> {
    let mut arguments = layout_arguments(class);
    if class.raid_integrity {
        arguments.extend(["--raidintegrity", "y"].map(str::to_owned));
    }
    arguments.extend(class.lvcreate_options.iter().cloned());
    arguments
}

/// Those for its layout.
pub(super) fn layout_arguments(class: &DeviceClass) -> Vec<String> {
    let mut arguments = vec!["--type".to_owned(), class.layout.segment_type().to_owned()];
    match class.layout {
        Layout::Linear => {}
        Layout::Raid1 => arguments.extend(["--mirrors", "1"].map(str::to_owned)),
        _ => arguments.extend(["--stripes".to_owned(), class.stripes().to_string()]),
    }
    arguments
}

impl LvmBackend {
    pub(super) fn answer_capacity(&self, query: &CapacityQuery) -> Result<CapacityAnswer> {
        let parameters = LvmParameters::from_json(&query.parameters)?;
        let mut answer: Option<CapacityAnswer> = None;
        let mut away = None;
        for class in self.config.members(parameters.device_class.as_deref())? {
            let report = match self.report_at_start(self.group(class)?) {
                Ok(report) => report,
                Err(error) => {
                    away = Some(error);
                    continue;
                }
            };
            let room = Bytes(room(class, &report));
            let minimum = Bytes(query.least.0.max(report.extent).next_multiple_of(report.extent));
            answer = Some(answer.map_or(CapacityAnswer { available: room, maximum: room, minimum }, |other| CapacityAnswer {
                available: Bytes(other.available.0 + room.0),
                maximum: other.maximum.max(room),
                minimum: other.minimum.min(minimum),
            }));
        }
        answer.map_or_else(|| Err(away.unwrap_or_else(|| Error::invalid("classes", "there is none"))), Ok)
    }

    /// The volume groups of a class in which a volume may be made, first that in which the largest would fit; one that cannot be asked has no
    /// room. A copy lies where its source does.
    pub(super) fn candidates<'a>(
        &self,
        members: Vec<&'a DeviceClass>,
        source: Option<&ContentSource>,
    ) -> Result<Vec<&'a DeviceClass>> {
        if members.len() < 2 {
            return Ok(members);
        }
        if let Some(source) = source {
            let origin = match source {
                ContentSource::Snapshot(id) => Object::snapshot(id),
                ContentSource::Volume(id) => Object::volume(id),
            };
            let found = self.locate(&origin)?;
            let same = |class: &&DeviceClass| found.as_ref().is_some_and(|found| found.group.name == class.volume_group);
            let place = members.iter().position(same).unwrap_or(0);
            return Ok(members.into_iter().skip(place).take(1).collect());
        }
        let room_of =
            |class: &DeviceClass| self.group(class).and_then(|group| self.report(group)).map_or(0, |report| room(class, &report));
        let mut by_room: Vec<(u64, &DeviceClass)> = members.into_iter().map(|class| (room_of(class), class)).collect();
        by_room.sort_by_key(|(room, _)| Reverse(*room));
        Ok(by_room.into_iter().map(|(_, class)| class).collect())
    }

    /// What is known of each class, in all its volume groups together.
    pub(super) fn usage_of_classes(&self) -> Vec<(String, Option<PoolUsage>)> {
        let known = lock(&self.usage).clone();
        let mut classes: Vec<(String, Option<PoolUsage>)> = Vec::new();
        for class in &self.config.classes {
            let usage = known.get(&class.place()).map(|usage| self.with_thin_pool_now(class, *usage));
            match classes.iter_mut().find(|(name, _)| *name == class.name) {
                Some((_, all)) => *all = all.zip(usage).map(|(all, usage)| sum(all, usage)),
                None => classes.push((class.name.clone(), usage)),
            }
        }
        classes
    }

    /// A thin pool fills up while nobody asks for a report: the kernel says how full it is, in no time.
    fn with_thin_pool_now(&self, class: &DeviceClass, known: PoolUsage) -> PoolUsage {
        let mapping =
            class.thin_pool.as_ref().zip(self.groups.get(&class.volume_group)).map(|(pool, group)| group.pool_mapping(pool));
        match mapping.map(|mapping| dm::thin_pool(&mapping)) {
            Some(Ok(Some(pool))) => {
                PoolUsage { used: Some(part(known.total, pool.data)), metadata: Some(pool.metadata), ..known }
            }
            // It is not active, or has failed: what LVM said last of it.
            _ => known,
        }
    }

    /// For metrics.
    pub(super) fn remember_usage(&self, group: &VolumeGroup, report: &Report) {
        for class in self.config.classes.iter().filter(|class| class.volume_group == group.name) {
            let ours: Vec<(Kind, u64)> = report
                .lvs
                .values()
                .filter(|lv| lv.pool == class.thin_pool)
                .filter_map(|lv| Some((Object::of(lv)?.kind, lv.size)))
                .collect();
            let count = |kind| ours.iter().filter(|(one, _)| *one == kind).count() as u64;
            let pool = class.thin_pool.as_ref().and_then(|pool| report.lvs.get(pool));
            let usage = PoolUsage {
                total: Bytes(pool.map_or(report.size, |pool| pool.size)),
                used: match pool {
                    Some(pool) => pool.data.map(|data| part(Bytes(pool.size), data)),
                    None => Some(Bytes(report.size.saturating_sub(report.free))),
                },
                metadata: pool.and_then(|pool| pool.metadata),
                provisionable: Bytes(room(class, report)),
                provisioned: Some(Provisioned {
                    provisioned: Bytes(ours.iter().map(|(_, size)| size).sum()),
                    volumes: count(Kind::Volume),
                    snapshots: count(Kind::Snapshot),
                }),
            };
            lock(&self.usage).insert(class.place(), usage);
        }
    }
}

/// So many hundredths of a percent of it.
fn part(all: Bytes, hundredths: u32) -> Bytes {
    Bytes(all.0 / 10_000 * u64::from(hundredths))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::backend::Backend;
    use crate::backend::configuration::Purpose;
    use crate::os::lvm::{Lv, Pv};

    use super::*;

    const EXTENT: u64 = 4 << 20;

    fn report(free: &[u64]) -> Report {
        let pv = |(number, free): (usize, &u64)| Pv {
            name: format!("/dev/sd{number}"),
            uuid: number.to_string(),
            size: 100 * EXTENT,
            free: free * EXTENT,
            missing: false,
            allocatable: true,
        };
        Report { pvs: free.iter().enumerate().map(pv).collect(), extent: EXTENT, ..Report::of([]) }
    }

    fn class(rest: &str) -> DeviceClass {
        serde_yaml_ng::from_str(&format!("{{name: a, volumeGroup: v, devices: [/dev/sda]{rest}}}")).expect("valid")
    }

    #[test]
    fn room_of_a_layout_is_that_of_its_smallest_leg() {
        let rooms = |rest: &str, free: &[u64]| thick_room(&class(rest), &report(free)) / EXTENT;
        assert_eq!(rooms("", &[10, 30]), 40);
        assert_eq!(rooms(", spare: 6MiB", &[10, 30]), 38);
        assert_eq!(rooms(", layout: striped", &[10, 30, 20]), 40);
        assert_eq!(rooms(", layout: raid1", &[10, 30, 20]), 19);
        assert_eq!(rooms(", layout: raid1", &[30]), 0, "not on one disk");
        assert_eq!(rooms(", layout: raid5", &[10, 30, 20]), 18);
        assert_eq!(rooms(", layout: raid6", &[9, 9, 9, 9, 9]), 24);
        assert_eq!(rooms(", layout: raid10", &[9, 9, 9, 10]), 16);
        assert_eq!(rooms(", layout: raid1, raidIntegrity: true", &[10, 30, 20]), 17, "two extents of checksums");
        assert_eq!(checksums(5000 << 20), (44 + 64) << 20);
    }

    #[test]
    fn volume_group_that_misses_a_disk_has_no_room() {
        let mut report = Report { missing: 1, ..report(&[10, 30]) };
        report.pvs[1].missing = true;
        assert_eq!(thick_room(&class(""), &report), 0, "LVM makes nothing in it, also not on the other disk");
        let error = check_thick(&class(""), &report, Bytes(EXTENT)).expect_err("no room");
        assert!(matches!(&error, Error::NoCapacity { reason, .. } if reason.contains("missing (1)")), "{error}");
        let pool = Lv { size: 100 * EXTENT, layout: vec!["pool".to_owned()], zeroes: true, ..Lv::named("pool0", Vec::new()) };
        report.lvs.insert(pool.name.clone(), pool);
        assert!(thin_room(&class(", thinPool: pool0"), "pool0", &report).expect("a pool").is_err());
        report.missing = 0;
        assert_eq!(thin_room(&class(", thinPool: pool0"), "pool0", &report), Ok(Ok(100 * EXTENT)));
    }

    #[test]
    fn usage_of_a_thin_pool_has_its_metadata() {
        let config = "{name: lvm, classes: [{name: thick, volumeGroup: longshore-none, devices: [/dev/sda]}, \
                      {name: thin, volumeGroup: longshore-none, devices: [/dev/sda], thinPool: pool0}]}";
        let config = serde_yaml_ng::from_str(config).expect("valid");
        let backend = LvmBackend::open(config, Purpose::Inspect, Path::new("/nowhere")).expect("opens without I/O");
        assert!(backend.usage().pools.iter().all(|(_, usage)| usage.is_none()), "nothing was reported yet");
        let of_pool = |data, metadata| {
            let pool =
                Lv { size: 100 * EXTENT, layout: vec!["pool".to_owned()], data, metadata, ..Lv::named("pool0", Vec::new()) };
            backend.remember_usage(&backend.groups["longshore-none"], &Report::of([pool]));
            let usage = backend.usage().pools;
            usage.into_iter().map(|(name, usage)| (name, usage.expect("reported").metadata)).collect::<Vec<_>>()
        };
        let expected = |thin| [("thick".to_owned(), None), ("thin".to_owned(), thin)];
        assert_eq!(of_pool(Some(220), Some(9550)), expected(Some(9550)));
        assert_eq!(of_pool(None, None), expected(None), "of a pool that is not active nothing is known");
    }
}

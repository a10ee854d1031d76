//! A thin pool that fills up is extended, if its class says so.
//!
//! A thread asks the kernel every ten seconds, as dmeventd(8) does, in whose place it is: the driver's commands have no pool monitored. What is
//! done is decided on a report of LVM that was made under the lock of changes, so that two processes do not extend a pool twice.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use crate::os::lvm::{Report, VolumeGroup, in_percent};
use crate::os::step::step;
use crate::os::{dm, lock};
use crate::volume::{Bytes, Result};

use super::config::{Autoextend, DeviceClass};

const EVERY: Duration = Duration::from_secs(10);

/// Extends thin pools until it is dropped.
#[derive(Debug)]
pub(super) struct Extender {
    over: Arc<(Mutex<bool>, Condvar)>,
}

impl Drop for Extender {
    fn drop(&mut self) {
        *lock(&self.over.0) = true;
        self.over.1.notify_all();
    }
}

/// A thin pool to be extended.
#[derive(Debug)]
struct Pool {
    group: VolumeGroup,
    name: String,
    how: Autoextend,
}

impl Extender {
    /// `None` where no class says so.
    pub fn start(classes: &[DeviceClass], groups: &BTreeMap<String, VolumeGroup>) -> Option<Extender> {
        let pool = |class: &DeviceClass| {
            let group = groups.get(&class.volume_group)?.clone();
            Some(Pool { group, name: class.thin_pool.clone()?, how: class.autoextend? })
        };
        let pools: Vec<Pool> = classes.iter().filter_map(pool).collect();
        if pools.is_empty() {
            return None;
        }
        let over = Arc::new((Mutex::new(false), Condvar::new()));
        let until = Arc::clone(&over);
        let work = move || {
            // What was said last of each, so that it is not said again every ten seconds.
            let mut said = vec![String::new(); pools.len()];
            loop {
                for (pool, said) in pools.iter().zip(&mut said) {
                    let now = pool.extend().map_or_else(|error| error.to_string(), Option::unwrap_or_default);
                    if now != *said && !now.is_empty() {
                        tracing::warn!(thin_pool = pool.path(), reason = now, "not extended");
                    }
                    *said = now;
                }
                let waited = until.1.wait_timeout_while(lock(&until.0), EVERY, |over| !*over);
                if *waited.unwrap_or_else(PoisonError::into_inner).0 {
                    break;
                }
            }
        };
        if let Err(error) = std::thread::Builder::new().name("lvm autoextend".to_owned()).spawn(work) {
            tracing::error!(%error, "no thin pool is extended: no thread could be started");
        }
        Some(Extender { over })
    }
}

impl Pool {
    fn path(&self) -> String {
        format!("{}/{}", self.group.name, self.name)
    }

    /// Extends what is too full. Says why something is not: one that cannot be does not keep the other from it.
    fn extend(&self) -> Result<Option<String>> {
        let threshold = u32::from(self.how.threshold) * 100;
        match dm::thin_pool(&self.group.pool_mapping(&self.name))? {
            Some(pool) if pool.data.max(pool.metadata) >= threshold => {}
            // A pool that is not active does not fill up.
            _ => return Ok(None),
        }
        let held = self.group.lock("lvextend")?;
        let report = self.group.report()?;
        let mut room = free(&report);
        let mut not_extended = Vec::new();
        for need in self.needs(&report) {
            let more = need.more.min(room);
            if more == 0 {
                not_extended.push(format!(
                    "{} of its {} is used, and volume group {} has no free extents; add a physical volume with vgextend (and to `devices` \
                     of its class), or delete volumes",
                    in_percent(Some(need.percent)),
                    need.of,
                    self.group.name
                ));
                continue;
            }
            let (size, path) = (format!("+{more}b"), self.path());
            if let Err(error) =
                step("extend thin pool", &path, || self.group.change(&held, "lvextend", &[need.option, &size, &path]))
            {
                not_extended.push(format!("{} of its {} is used: {error}", in_percent(Some(need.percent)), need.of));
                continue;
            }
            room -= more;
            tracing::info!(
                thin_pool = path,
                of = need.of,
                used = in_percent(Some(need.percent)),
                size = %need.size,
                more = %Bytes(more),
                "extended"
            );
        }
        Ok((!not_extended.is_empty()).then(|| not_extended.join("; ")))
    }

    /// The metadata first: a pool without it must be repaired offline.
    fn needs(&self, report: &Report) -> Vec<Need> {
        let Some(pool) = report.lvs.get(&self.name).filter(|lv| lv.is("pool")) else { return Vec::new() };
        let metadata = report.lvs.get(&format!("{}_tmeta", self.name));
        let need = |of, option, percent: Option<u32>, size: u64| {
            let percent = percent.filter(|percent| *percent >= u32::from(self.how.threshold) * 100)?;
            let more = (size / 100 * u64::from(self.how.percent)).max(1).next_multiple_of(report.extent);
            Some(Need { of, option, percent, size: Bytes(size), more })
        };
        let of_metadata = metadata.and_then(|lv| need("metadata", "--poolmetadatasize", pool.metadata, lv.size));
        of_metadata.into_iter().chain(need("data", "--size", pool.data, pool.size)).collect()
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Need {
    of: &'static str,
    /// Of lvextend.
    option: &'static str,
    /// Hundredths.
    percent: u32,
    size: Bytes,
    /// Bytes, a multiple of the extent.
    more: u64,
}

/// Bytes that an extension can take.
fn free(report: &Report) -> u64 {
    report.pvs.iter().filter(|pv| pv.allocatable && !pv.missing).map(|pv| pv.free - pv.free % report.extent).sum()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::os::lvm::Lv;

    use super::*;

    const EXTENT: u64 = 4 << 20;

    fn lv(name: &str, size: u64, layout: &str, data: Option<u32>, metadata: Option<u32>) -> Lv {
        Lv { size, layout: vec![layout.to_owned()], data, metadata, ..Lv::named(name, Vec::new()) }
    }

    #[test]
    fn pool_is_extended_from_its_threshold_on_and_its_metadata_before_its_data() {
        let pool = Pool {
            group: VolumeGroup::new("vg0", &[], Path::new("/nowhere")),
            name: "pool0".to_owned(),
            how: Autoextend { threshold: 70, percent: 20 },
        };
        let needs = |data, metadata| {
            let lvs = [lv("pool0", 100 * EXTENT, "pool", data, metadata), lv("pool0_tmeta", EXTENT, "linear", None, None)];
            let report = Report::of(lvs);
            pool.needs(&report).into_iter().map(|need| (need.of, need.more / EXTENT)).collect::<Vec<_>>()
        };
        assert_eq!(needs(Some(6999), Some(6999)), []);
        assert_eq!(needs(Some(7000), Some(10)), [("data", 20)]);
        assert_eq!(needs(Some(10), Some(7000)), [("metadata", 1)], "at least an extent");
        assert_eq!(needs(Some(9999), Some(9999)), [("metadata", 1), ("data", 20)]);
        assert_eq!(needs(None, None), [], "of a pool that is not active nothing is known");
    }
}

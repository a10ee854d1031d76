//! Volumes grow. What a thick volume grows by is zeroed before it is the volume's: in a logical volume of its own, whose extents it then gets.

use crate::backend::Expand;
use crate::os::lvm::{Freed, Lv, Report};
use crate::os::step::step;
use crate::volume::{Bytes, Error, Outcome, Result, VolumeId};

use super::config::LvmParameters;
use super::provision::check_same;
use super::tags::{self, DRAFT, Object, VolumeRecord};
use super::{Found, LvmBackend, capacity, named_in};

impl Expand for LvmBackend {
    fn expand(&self, id: &VolumeId, capacity: Bytes) -> Result<Outcome<Bytes>> {
        let existing = || self.whole(&Object::volume(id))?.ok_or_else(|| Error::volume_not_found(id));
        let mut found = existing()?;
        // What it grows by lies in the same volume group.
        if named_in(&found.report, &Object::growth(id)).is_some() {
            self.remove_growth(id)?;
            found = existing()?;
        }
        let extents = capacity.0.div_ceil(found.report.extent);
        let more = extents.saturating_sub(found.lv.size / found.report.extent);
        if more == 0 {
            return Ok(Outcome::Unchanged(Bytes(found.lv.size)));
        }
        let record: VolumeRecord = tags::decode(&found.lv)?;
        let parameters = LvmParameters::from_json(&record.parameters["backend"])?;
        let class = self.config.class_in(parameters.device_class.as_deref(), &found.group.name)?;
        match &found.lv.pool {
            Some(pool) => {
                let held = found.group.lock("lvextend")?;
                let report = self.report(found.group)?;
                self.check_pool(&report, class, pool, Bytes(more * found.report.extent))?;
                let extents = extents.to_string();
                step("grow logical volume", id, || {
                    found.group.change(&held, "lvextend", &["--extents", &extents, &found.path()])
                })?;
            }
            None => self.grow_thick(&found, class, id, more)?,
        }
        let now = self.whole(&Object::volume(id))?.ok_or_else(|| Error::volume_not_found(id))?;
        Ok(Outcome::Changed(Bytes(now.lv.size)))
    }
}

impl LvmBackend {
    /// `more` are extents.
    fn grow_thick(&self, found: &Found<'_>, class: &super::DeviceClass, id: &VolumeId, more: u64) -> Result<()> {
        let growth = Object::growth(id);
        // LVM takes the extents for further checksums from those that it may use; the rest is free again.
        let checksums = if found.lv.is("raid") && class.raid_integrity {
            let (size, stripes) = (found.lv.size, class.stripes());
            let image = |size: u64| capacity::checksums(size / stripes).div_ceil(found.report.extent);
            (image(size + more * found.report.extent) - image(size)) * stripes
        } else {
            0
        };
        {
            let held = found.group.lock("lvcreate")?;
            let report = self.report(found.group)?;
            capacity::check_thick(class, &report, Bytes(more * report.extent))?;
            let extents = (more + checksums).to_string();
            let mut arguments = vec!["--extents", &extents, "--activate", "y", "--wipesignatures", "n", "--zero", "n"];
            let layout = capacity::layout_arguments(class);
            arguments.extend(layout.iter().map(String::as_str));
            arguments.push(&found.group.name);
            self.lvcreate(found.group, &held, &growth, growth.tags(), &[DRAFT], &arguments)?;
        }
        let zeroed =
            self.locate(&growth)?.ok_or_else(|| Error::failed("grow volume", id.to_string(), "its new extents are gone"))?;
        self.zero(&zeroed, id)?;
        let zeroes = ranges(&zeroed.report, &zeroed.lv);
        // Nothing else of this process gets the extents between the two; another's command would find them allocated by itself.
        let held = found.group.lock("lvextend")?;
        let now = self.report(found.group)?;
        check_same(&now, &zeroed)?;
        if ranges(&now, &zeroed.lv) != zeroes {
            // By pvmove: what has not been zeroed there holds an earlier volume's data. The next call removes it.
            let reason = format!("{} was moved to other extents while it was zeroed; repeat the call", zeroed.path());
            return Err(Error::InProgress { object: format!("grow volume {id}"), reason });
        }
        step("free zeroed extents", id, || found.group.remove(&held, Freed::Left, &zeroed.path(), &zeroed.lv.uuid))?;
        let (extents, path) = ((found.lv.size / found.report.extent + more).to_string(), found.path());
        let mut arguments = vec!["--extents", extents.as_str(), path.as_str()];
        arguments.extend(zeroes.iter().map(String::as_str));
        Ok(step("grow logical volume", id, || found.group.change(&held, "lvextend", &arguments))?)
    }

    /// What an interrupted growth left.
    pub(super) fn remove_growth(&self, id: &VolumeId) -> Result<()> {
        match self.locate(&Object::growth(id))? {
            Some(found) => self.remove(&found, Freed::Discarded),
            None => Ok(()),
        }
    }
}

/// The extents of a logical volume on physical volumes: its own, or those of its images (RAID).
fn ranges(report: &Report, lv: &Lv) -> Vec<String> {
    let image = format!("{}_rimage_", lv.name);
    let parts = report.lvs.values().filter(|part| part.name == lv.name || part.name.starts_with(&image));
    parts.flat_map(|part| &part.ranges).filter(|range| range.starts_with('/')).cloned().collect()
}

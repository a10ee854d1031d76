//! What may change in a volume's life: what becomes of its data at its end.

use crate::backend::Modify;
use crate::backend::local::mutable_on_delete;
use crate::os::step::step;
use crate::volume::{Error, OnDelete, Outcome, RawParameters, Result, VolumeId};

use super::LvmBackend;
use super::config::check_on_delete;
use super::tags::{self, Object, VolumeRecord};

pub(super) fn parse(raw: &RawParameters, thin: bool) -> Result<OnDelete> {
    let on_delete = mutable_on_delete(raw)?;
    check_on_delete("mutable_parameters.onDelete", on_delete, thin)?;
    Ok(on_delete)
}

impl Modify for LvmBackend {
    fn check(&self, raw: &RawParameters) -> Result<()> {
        parse(raw, false).map(drop)
    }

    fn modify(&self, id: &VolumeId, raw: &RawParameters) -> Result<Outcome<()>> {
        let found = self.whole(&Object::volume(id))?.ok_or_else(|| Error::volume_not_found(id))?;
        let wanted = parse(raw, found.lv.pool.is_some())?;
        let mut record: VolumeRecord = tags::decode(&found.lv)?;
        if record.on_delete()? == wanted {
            return Ok(Outcome::Unchanged(()));
        }
        let before = tags::encode(&record)?;
        record.on_delete = Some(wanted);
        let after = tags::encode(&record)?;
        let (path, mut arguments) = (found.path(), Vec::new());
        for tag in before.iter().filter(|tag| !after.contains(tag)) {
            arguments.extend(["--deltag", tag]);
        }
        for tag in after.iter().filter(|tag| !before.contains(tag)) {
            arguments.extend(["--addtag", tag]);
        }
        arguments.push(&path);
        let held = found.group.lock("lvchange")?;
        step("record parameters", id, || found.group.change(&held, "lvchange", &arguments))?;
        Ok(Outcome::Changed(()))
    }
}

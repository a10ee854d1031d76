//! What may change in a volume's life: what becomes of its data at its end.

use crate::backend::Modify;
use crate::backend::local::mutable_on_delete;
use crate::volume::{Error, OnDelete, Outcome, RawParameters, Result, VolumeId};

use super::DiskBackend;
use super::config::check_on_delete;
use super::record::{Record, State};

pub(super) fn parse(raw: &RawParameters) -> Result<OnDelete> {
    let on_delete = mutable_on_delete(raw)?;
    check_on_delete("mutable_parameters.onDelete", on_delete)?;
    Ok(on_delete)
}

impl Modify for DiskBackend {
    fn check(&self, raw: &RawParameters) -> Result<()> {
        parse(raw).map(drop)
    }

    fn modify(&self, id: &VolumeId, raw: &RawParameters) -> Result<Outcome<()>> {
        let wanted = parse(raw)?;
        let looked = self.scan()?;
        let (found, _) = self.find_volume(&looked, id)?.ok_or_else(|| Error::volume_not_found(id))?;
        let mut held = self.hold_for(found, id)?;
        let volume = held.record.as_ref().and_then(Record::volume).cloned();
        let mut volume = volume.ok_or_else(|| Error::volume_not_found(id))?;
        if volume.on_delete()? == wanted {
            return Ok(Outcome::Unchanged(()));
        }
        volume.on_delete = Some(wanted);
        held.set("record parameters", id, State::Volume(volume))?;
        Ok(Outcome::Changed(()))
    }
}

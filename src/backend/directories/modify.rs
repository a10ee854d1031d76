//! What may change in a volume's life: what becomes of its data at its end.

use crate::backend::Modify;
use crate::backend::local::mutable_on_delete;
use crate::volume::{Error, OnDelete, Outcome, RawParameters, Result, VolumeId};

use super::{Controller, check_on_delete};

fn parse(raw: &RawParameters) -> Result<OnDelete> {
    let on_delete = mutable_on_delete(raw)?;
    check_on_delete("mutable_parameters.onDelete", on_delete)?;
    Ok(on_delete)
}

impl Modify for Controller {
    fn check(&self, raw: &RawParameters) -> Result<()> {
        parse(raw).map(drop)
    }

    fn modify(&self, id: &VolumeId, raw: &RawParameters) -> Result<Outcome<()>> {
        let wanted = parse(raw)?;
        let (ready, mut record) = self.locate_whole(id.local())?.ok_or_else(|| Error::volume_not_found(id))?;
        if record.on_delete()? == wanted {
            return Ok(Outcome::Unchanged(()));
        }
        record.on_delete = Some(wanted);
        ready.write_record(&record)?;
        Ok(Outcome::Changed(()))
    }
}

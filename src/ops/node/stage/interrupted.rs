//! The end of a format or growth that was interrupted, without mounting.

use crate::backend::Source;
use crate::volume::{Encryption, Error, Result};

use super::apply::StageRun;
use super::plan::filesystem::{self, Prepare};
use super::plan::luks::{self as plan, Unlock};

impl StageRun<'_> {
    /// Ends what was interrupted while it wrote on the device, without mounting and without a secret: afterwards the device holds
    /// a whole file system, or a LUKS header that tells what there is behind it, or nothing. What the medium does not say to be
    /// interrupted is left as it is, whatever the journal says.
    pub fn finish_interrupted(&mut self) -> Result<()> {
        match self.connect() {
            Err(error @ Error::Invalid { .. }) => self.connected_still(error)?,
            connected => connected?,
        }
        let Some(Source::Device(device)) = self.entry.source.clone() else { return Ok(()) };
        let opened = self.open_alone(&device)?;
        if self.order.parameters.node.encryption != Encryption::None {
            let locked = self.look_below(&device, &opened)?;
            if locked.interrupted && plan::unlock(false, &locked)?.contains(&Unlock::Wipe) {
                self.wipe_header(&opened)?;
            }
            return Ok(());
        }
        self.device = Some(opened);
        let found = self.look(None, &device)?;
        if found.interrupted.is_some() || found.growing {
            let steps = filesystem::prepare(None, self.entry.read_only, false, &found)?;
            for prepare in steps.into_iter().filter(|step| !matches!(step, Prepare::Mount(_) | Prepare::GrowUnmounted(_))) {
                self.prepare(prepare, &device)?;
            }
        }
        self.device = None;
        Ok(())
    }

    /// Takes what is connected as it is: an unstage has no publish_context, by which some backends connect.
    fn connected_still(&mut self, error: Error) -> Result<()> {
        let found = self.order.backend.connect().connected(&self.entry.id, self.entry.source.as_ref())?;
        match (&self.entry.source, found) {
            (Some(Source::Device(then)), Some(Source::Device(now))) if then.lasting_identity() == now.lasting_identity() => {
                self.entry.source = Some(Source::Device(now));
                Ok(())
            }
            _ => Err(error),
        }
    }
}

//! The end of a format or growth that was interrupted, without mounting.

use crate::backend::Source;
use crate::volume::{Encryption, Result};

use super::apply::StageRun;
use super::plan::filesystem::{self, Prepare};
use super::plan::luks::{self as plan, Unlock};

impl StageRun<'_> {
    /// Ends what was interrupted while it wrote on the device, without mounting and without a secret: afterwards the device holds
    /// a whole file system, or a LUKS header that tells what there is behind it, or nothing. What the medium does not say to be
    /// interrupted is left as it is, whatever the journal says.
    pub fn finish_interrupted(&mut self) -> Result<()> {
        self.connect()?;
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
}

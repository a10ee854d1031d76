//! The encryption of a stage: the device is formatted with LUKS2 if it is proven blank, and opened.

use crate::backend::{BlockDevice, Source};
use crate::os::block::Device;
use crate::os::fs::Contents;
use crate::os::fs::mark::Purpose;
use crate::os::luks;
use crate::os::luks::State;
use crate::os::step::step;
use crate::volume::{Encryption, Error, Result};

use super::super::device_use::close_mapping;
use super::super::errors::unexpected;
use super::super::mapping;
use super::super::sources::Sources;
use super::apply::{Luks, StageRun, StageUndo};
use super::plan::luks::{self as plan, LuksObservation, Mapping, Unlock};
use super::plan::proof::Holds;

impl StageRun<'_> {
    /// What is to be mounted or shown: what was connected, or the mapping that shows it in clear.
    pub(super) fn unlocked(&mut self) -> Result<Source> {
        let source = self.entry.source.clone().ok_or_else(|| unexpected(&self.entry.staging, "nothing was connected"))?;
        match (&source, self.order.parameters.node.encryption) {
            (_, Encryption::None) => Ok(source),
            (Source::Device(device), Encryption::Luks2) => {
                let mapping = self.unlock(device)?;
                self.entry.mapping = Some(mapping.clone());
                Ok(Source::Device(mapping))
            }
            (Source::Filesystem { .. } | Source::Directory(_), Encryption::Luks2) => Err(Error::Unsupported {
                what: format!("encryption of volume {}", self.entry.id),
                reason: "its backend has no devices that could be encrypted".to_owned(),
            }),
        }
    }

    pub(super) fn unlock(&mut self, device: &BlockDevice) -> Result<BlockDevice> {
        let id = self.entry.id.clone();
        let passphrase =
            self.order.secrets.get(Encryption::SECRET).filter(|passphrase| !passphrase.is_empty()).ok_or_else(|| {
                let reason = format!("volume {id} is encrypted: the node-stage secret must have {}", Encryption::SECRET);
                Error::invalid("secrets", reason)
            })?;
        let below = self.open_alone(device)?;
        let locked = self.look_below(device, &below)?;
        self.prove(device, &self.holds_below(&locked))?;
        let steps = plan::unlock(self.entry.read_only, &locked)?;
        self.done.push(StageUndo::Mapping);
        let (object, name) = (device.path.display(), mapping::name_of(self.node, &id));
        self.about_to_write()?;
        for unlock in steps {
            match unlock {
                Unlock::Close => close_mapping(self.node, &id)?,
                Unlock::RecordFormat => self.record_format(&below, Purpose::Luks)?,
                Unlock::Wipe => step("wipe", &object, || luks::wipe(&below))?,
                Unlock::Format => {
                    let mark = self.mark.as_ref().ok_or_else(|| unexpected(&device.path, "its format is not recorded"))?;
                    step("encrypt", &object, || luks::format(&below, passphrase, &mark.uuid))?;
                    self.clear_mark(&below)?;
                }
                Unlock::Open => {
                    let discard = self.order.parameters.node.discard;
                    step("open mapping", &name, || luks::open(&below, &name, passphrase, self.entry.read_only, discard))?
                        .ok_or_else(|| Error::Denied {
                            object: format!("volume {id}"),
                            reason: format!("the passphrase in the secret {} does not open it", Encryption::SECRET),
                        })?;
                }
                Unlock::Grow => step("grow mapping", &name, || luks::grow(&name))?,
            }
        }
        let header = luks::header(&below)?.ok_or_else(|| unexpected(&device.path, "its LUKS header is gone"))?;
        self.luks = Some(Luks { below, state: header.state });
        let mapping = Sources::observe(self.node, &id, Some(&self.entry))?.mapping_on_connected();
        mapping.ok_or_else(|| unexpected(&device.path, format!("its mapping {name} is not there after it was opened")))
    }

    /// What of the device says whose it is. What is behind the header needs no further proof.
    fn holds_below(&self, locked: &LuksObservation) -> Holds {
        match (&self.mark, &locked.header, &locked.contents) {
            (Some(mark), _, _) => Holds::Uuid(mark.uuid.clone()),
            (None, Some(header), _) => Holds::Uuid(header.uuid.clone()),
            (None, None, Contents::Blank) => Holds::Nothing,
            (None, None, _) => Holds::Else,
        }
    }

    pub(super) fn look_below(&mut self, device: &BlockDevice, below: &Device) -> Result<LuksObservation> {
        let header = luks::header(below)?;
        let contents = match &header {
            // Of no interest behind a header that was used: what looks like a mark there is ciphertext.
            Some(header) if header.state != State::New => Contents::Other("LUKS".to_owned()),
            _ => self.probe(below)?,
        };
        let interrupted = self.mark.as_ref().is_some_and(|mark| mark.purpose == Purpose::Luks);
        let sources = Sources::observe(self.node, &self.entry.id, Some(&self.entry))?;
        let mapping = match (&sources.mapping, sources.mapping_on_connected()) {
            (None, _) => Mapping::None,
            (Some(_), Some(_)) => Mapping::Whole,
            (Some(_), None) => Mapping::Stale,
        };
        Ok(LuksObservation {
            volume: self.entry.id.clone(),
            device: device.path.display().to_string(),
            contents,
            header,
            interrupted,
            device_read_only: below.read_only()?,
            mapping,
        })
    }

    /// Says in the LUKS header, if there is one, what is behind it.
    pub(super) fn mark(&mut self, state: State) -> Result<()> {
        let Some(luks) = self.luks.as_mut().filter(|luks| luks.state != state) else { return Ok(()) };
        step("mark", &luks.below.path().display(), || luks::mark(&luks.below, state))?;
        luks.state = state;
        Ok(())
    }

    /// Takes away an interrupted luksFormat, so that the device is blank as before.
    pub(super) fn wipe_header(&mut self, device: &Device) -> Result<()> {
        step("wipe", &device.path().display(), || luks::wipe(device))?;
        self.clear_mark(device)
    }
}

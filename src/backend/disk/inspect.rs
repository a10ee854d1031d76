//! What `longshore inspect` shows of disks: each with what it is used for, or why it is not.

use crate::backend::{BlockDevice, Inspect, Leftover, LeftoverKind, Place, Stored, Survey, words};
use crate::volume::{Bytes, Error, Result};

use super::DiskBackend;
use super::health::of_volume;
use super::look::Seen;
use super::record::State;

impl Inspect for DiskBackend {
    fn survey(&self) -> Result<Survey> {
        let mut survey = Survey::default();
        for looked in self.scan()? {
            let (at, capacity) = (looked.path.display().to_string(), Bytes(looked.capacity()));
            let free = self.config.classes.iter().any(|class| looked.is_free(class));
            let mut place = Place {
                name: looked.disk.name.clone(),
                at: at.clone(),
                total: capacity,
                free: if free { capacity } else { Bytes(0) },
                read_only: looked.disk.read_only,
                provisioner: None,
                recorded: None,
            };
            if let Some(why) = &looked.refused {
                place.name += &format!(" (not used: {why})");
                survey.places.push(place);
                continue;
            }
            let ours = match &looked.seen {
                Seen::Ours(ours) => ours,
                Seen::Unclaimed => {
                    place.name += " (not used yet)";
                    survey.places.push(place);
                    continue;
                }
                Seen::Unfit(why) | Seen::Others(why) => {
                    place.name += &format!(" (not used: {why})");
                    survey.places.push(place);
                    continue;
                }
                Seen::Unknown(why) => {
                    survey.unseen.push((format!("disk {at}"), why.clone()));
                    continue;
                }
            };
            place.name += match &ours.record.state {
                State::Claiming | State::Free => " (free)",
                State::Volume(_) => " (volume)",
                State::Wiping { .. } => " (being wiped)",
                State::Retained { .. } => " (retained)",
            };
            survey.places.push(place);
            match &ours.record.state {
                State::Claiming | State::Free => {}
                State::Volume(_) => {
                    let Some(volume) = self.volume(&ours.record)? else { continue };
                    survey.volumes.push(Stored {
                        id: volume.id,
                        at,
                        capacity: Some(capacity),
                        allocated: Some(capacity),
                        created: None,
                        attached: Vec::new(),
                        health: of_volume(&looked, ours),
                    });
                }
                State::Wiping { volume, done } => survey.leftovers.push(Leftover {
                    kind: LeftoverKind::Trash,
                    id: volume.id.to_string(),
                    object: looked.path.clone(),
                    what: format!(
                        "it is overwritten with zeroes, up to {} of {capacity} so far, or was interrupted",
                        Bytes(*done)
                    ),
                    commands: Vec::new(),
                    removable: false,
                }),
                State::Retained { volume } => survey.leftovers.push(Leftover {
                    kind: LeftoverKind::Trash,
                    id: volume.id.to_string(),
                    object: looked.path.clone(),
                    what: format!("the volume {} was deleted, and its data is kept in the second partition", volume.name),
                    commands: vec![words(&["wipefs", "--all", &at]), words(&["blkdiscard", "--zeroout", &at])],
                    removable: false,
                }),
            }
        }
        survey.volumes.sort_by(|a, b| a.id.cmp(&b.id));
        Ok(survey)
    }

    /// The kernel shows the partitions of all disks: none is taken for a device that was left connected.
    fn release(&self, device: &BlockDevice) -> Result<()> {
        let reason = "a partition is always shown by the kernel".to_owned();
        Err(Error::Unsupported { what: format!("taking {} away", device.path.display()), reason })
    }
}

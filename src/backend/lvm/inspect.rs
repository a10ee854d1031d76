//! What `longshore inspect` shows of volume groups and logical volumes, by LVM's report; and the little that it repairs.

use crate::backend::{BlockDevice, Connected, Inspect, Leftover, LeftoverKind, Place, Stored, Survey, changed, words};
use crate::os::step::step;
use crate::volume::{Bytes, Result, VolumeId};

use super::tags::{self, Kind, Object};
use super::{LvmBackend, dm_uuid, mapped, path};

impl Inspect for LvmBackend {
    fn survey(&self) -> Result<Survey> {
        let mut survey = Survey::default();
        for group in self.groups.values() {
            let report = match self.report(group) {
                Ok(report) => report,
                Err(error) => {
                    survey.unseen.push((format!("volume group {}", group.name), error.to_string()));
                    continue;
                }
            };
            let devices: Vec<&str> = report.pvs.iter().map(|pv| pv.name.as_str()).collect();
            survey.places.push(Place {
                name: group.name.clone(),
                at: devices.join(" "),
                total: Bytes(report.size),
                free: Bytes(report.free),
                read_only: report.missing > 0,
                provisioner: None,
                recorded: None,
            });
            for lv in report.lvs.values() {
                let Some(object) = Object::of(lv) else { continue };
                let Ok(id) = object.id.parse::<VolumeId>() else { continue };
                if id.backend() != &self.config.name {
                    continue;
                }
                let at = path(group, &lv.name);
                if lv.has_tag(tags::DRAFT) || object.kind == Kind::Growth {
                    survey.leftovers.push(Leftover {
                        kind: LeftoverKind::Draft,
                        id: object.id.clone(),
                        object: lv.dm_path.clone().into(),
                        what: "its making, growth or deletion was interrupted, or runs".to_owned(),
                        commands: vec![words(&["lvremove", "--yes", &at])],
                        removable: false,
                    });
                    continue;
                }
                if object.kind != Kind::Volume {
                    continue;
                }
                if let Some(device) = mapped(&report, lv)? {
                    survey.devices.push(Connected {
                        device: BlockDevice { path: device.path, number: device.number, identity: dm_uuid(&report, lv) },
                        id: id.clone(),
                        ours: true,
                        shows: at.clone(),
                        size: Some(Bytes(lv.size)),
                        release: words(&["lvchange", "--activate", "n", &at]),
                    });
                }
                let part = |part: u32| Bytes(lv.size / 10_000 * u64::from(part));
                survey.volumes.push(Stored {
                    id,
                    at,
                    capacity: Some(Bytes(lv.size)),
                    allocated: lv.pool.as_ref().map_or(Some(Bytes(lv.size)), |_| lv.data.map(part)),
                    created: None,
                    attached: Vec::new(),
                    health: Vec::new(),
                });
            }
        }
        survey.volumes.sort_by(|a, b| a.id.cmp(&b.id));
        Ok(survey)
    }

    fn release(&self, device: &BlockDevice) -> Result<()> {
        let found = self.search(|report| report.lvs.values().find(|lv| dm_uuid(report, lv) == device.identity).cloned())?;
        let found = found.ok_or_else(|| changed(device.path.display()))?;
        let held = found.group.lock("lvchange")?;
        let at = found.path();
        Ok(step("deactivate logical volume", &at, || found.group.change(&held, "lvchange", &["--activate", "n", &at]))?)
    }
}

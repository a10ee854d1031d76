//! What `longshore inspect` shows of volume groups and logical volumes, by LVM's report; and the little that it repairs.

use crate::backend::{BlockDevice, Connected, Inspect, Leftover, LeftoverKind, Place, Stored, Survey, changed, words};
use crate::os::dm::Mapped;
use crate::os::lvm::{Lv, Report, VolumeGroup};
use crate::volume::{Bytes, Result, VolumeId};

use super::connect::is_unmapped;
use super::health::of_lv;
use super::tags::{self, Kind, Object};
use super::{LvmBackend, dm_uuid, mapped, mapping_of, path};

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
                if let Some(object) = Object::renamed(lv).filter(|object| self.own_id(object).is_some()) {
                    survey.leftovers.push(renamed(group, &report, lv, &object));
                }
                let Some(object) = Object::of(lv) else { continue };
                let Some(id) = self.own_id(&object) else { continue };
                let at = path(group, &lv.name);
                if lv.has_tag(tags::DRAFT) || object.kind == Kind::Growth {
                    survey.leftovers.push(Leftover {
                        kind: LeftoverKind::Draft,
                        id: object.id.clone(),
                        object: lv.dm_path.clone().into(),
                        what: "its making, growth or deletion was interrupted, or runs".to_owned(),
                        // Only while it is a draft: the driver may complete it meanwhile.
                        commands: vec![words(&["lvremove", "--yes", "--select", &format!("lv_tags={}", tags::DRAFT), &at])],
                        removable: false,
                    });
                    continue;
                }
                if object.kind != Kind::Volume {
                    continue;
                }
                // A new thin volume is active before it is staged, and holds nothing.
                let is_new = |device: &Mapped| !device.open && lv.is("thin") && is_unmapped(mapping_of(lv), device);
                if let Some(device) = mapped(&report, lv)?.filter(|device| !is_new(device)) {
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
                    health: of_lv(lv),
                });
            }
        }
        survey.volumes.sort_by(|a, b| a.id.cmp(&b.id));
        Ok(survey)
    }

    fn release(&self, device: &BlockDevice) -> Result<()> {
        let found = self.search(|report| report.lvs.values().find(|lv| dm_uuid(report, lv) == device.identity).cloned())?;
        found.ok_or_else(|| changed(device.path.display()))?.deactivate()
    }
}

impl LvmBackend {
    /// The id of what was made by a backend of this name: others may have the same volume group.
    fn own_id(&self, object: &Object) -> Option<VolumeId> {
        object.id.parse::<VolumeId>().ok().filter(|id| id.backend() == &self.config.name)
    }
}

fn renamed(group: &VolumeGroup, report: &Report, lv: &Lv, object: &Object) -> Leftover {
    let (at, vg) = (path(group, &lv.name), &group.name);
    // To rename it back is refused by LVM then; without our tag it is a logical volume like any other.
    let is_taken = report.lvs.contains_key(&object.name);
    let remedy = if is_taken {
        format!("a logical volume {} exists, too: take the tag {} off this one to keep it", object.name, tags::OURS)
    } else {
        format!("the driver uses it again, or deletes it, when it has its name {}", object.name)
    };
    let command = if is_taken {
        words(&["lvchange", "--deltag", tags::OURS, &at])
    } else {
        words(&["lvrename", vg, &lv.name, &object.name])
    };
    Leftover {
        kind: LeftoverKind::Renamed,
        id: object.id.clone(),
        object: lv.dm_path.clone().into(),
        what: format!(
            "it has the tags of {}, but another name: it was renamed by hand; {remedy}; what is not needed is deleted with `lvremove {at}`",
            object.called()
        ),
        commands: vec![command],
        removable: false,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn renamed_logical_volume_is_listed_with_the_command_that_renames_it_back() {
        let group = VolumeGroup::new("vg0", &[], Path::new("/nowhere"));
        let object = Object::volume(&"lvm:pvc-1".parse().expect("an id"));
        let lv = Lv { dm_path: "/dev/mapper/vg0-other".to_owned(), ..Lv::named("other", object.tags()) };
        let alone = renamed(&group, &Report::of([lv.clone()]), &lv, &object);
        assert_eq!(alone.commands, [["lvrename", "vg0", "other", &object.name]]);
        assert!(
            alone.what.contains("the tags of volume lvm:pvc-1") && alone.what.contains("`lvremove vg0/other`"),
            "{}",
            alone.what
        );
        assert!(!alone.removable, "it may hold data");
        let both = renamed(&group, &Report::of([lv.clone(), Lv::named(&object.name, object.tags())]), &lv, &object);
        assert_eq!(both.commands, [["lvchange", "--deltag", "longshore", "vg0/other"]], "the name is taken");
    }
}

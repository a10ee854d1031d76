//! What `longshore inspect` shows of a target server: images, who has them, and what of that the kernel does not show, or shows
//! too much.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::backend::{BlockDevice, Inspect, Leftover, LeftoverKind, Survey, changed};
use crate::os::lio::Lio;
use crate::volume::{NodeId, Result, VolumeId};

use super::names::Names;
use super::record::Record;
use super::{TargetServer, is_ours};

impl Inspect for TargetServer {
    fn survey(&self) -> Result<Survey> {
        let mut survey = self.images.survey()?;
        if let Err(error) = self.survey_exports(&mut survey) {
            survey.unseen.push((format!("exports of backend {}", self.name()), error.to_string()));
        }
        Ok(survey)
    }

    fn release(&self, device: &BlockDevice) -> Result<()> {
        self.images.release(device)
    }

    fn remove(&self, leftover: &Leftover) -> Result<()> {
        if leftover.kind != LeftoverKind::Export {
            return self.images.remove(leftover);
        }
        let _locks = self.images.keep_off()?;
        let pools = self.directories();
        let lio = Lio::loaded()?;
        for names in self.strays(&lio, &pools)? {
            let seen = lio.disk(names.hba, &names.disk)?;
            if leftover.object.to_str() == Some(&names.target) && seen.is_some_and(|seen| is_ours(&seen, &pools)) {
                return self.shut(&lio, &names);
            }
        }
        Err(changed(leftover.object.display()))
    }
}

impl TargetServer {
    fn directories(&self) -> Vec<PathBuf> {
        self.config.pools.iter().map(|pool| pool.path.clone()).collect()
    }

    fn survey_exports(&self, survey: &mut Survey) -> Result<()> {
        let pools = self.directories();
        let mut records = BTreeMap::new();
        for pool in &pools {
            for local in Record::list(pool)? {
                let id = VolumeId::from_parts(self.name(), &local)?;
                match Record::read(&id, pool) {
                    Ok(Some(record)) => drop(records.insert(id, record)),
                    Ok(None) => {}
                    Err(error) => survey.unseen.push((format!("who has volume {id}"), error.to_string())),
                }
            }
        }
        for stored in &mut survey.volumes {
            let nodes = records.get(&stored.id).map(|record| record.nodes.keys().cloned().collect());
            stored.attached = nodes.unwrap_or_default();
        }
        // What someone attaches or detaches just now is nothing to judge, and what a pool that is away records is not known.
        let provisioner = survey.places.iter().any(|place| place.provisioner.is_some());
        if provisioner || survey.places.len() < pools.len() {
            return Ok(());
        }
        let Some(lio) = Lio::open()? else {
            survey.leftovers.extend(records.values().map(|record| missing(record, "anything: its target is not loaded")));
            return Ok(());
        };
        for record in records.values() {
            survey.leftovers.extend(self.lacking(&lio, record)?.map(|lacking| missing(record, &lacking)));
        }
        for names in self.strays(&lio, &pools)? {
            let Some(seen) = lio.disk(names.hba, &names.disk)? else { continue };
            let ours = is_ours(&seen, &pools);
            let nodes = lio.initiators(&names.target)?;
            survey.leftovers.push(Leftover {
                kind: LeftoverKind::Export,
                id: String::new(),
                what: format!(
                    "the kernel shows {} to {}, which nothing records{}",
                    seen.label.display(),
                    if nodes.is_empty() { "nobody".to_owned() } else { nodes.join(", ") },
                    if ours { "" } else { "; it is no image of ours, though it has such a name" }
                ),
                object: names.target.into(),
                commands: Vec::new(),
                removable: ours,
            });
        }
        Ok(())
    }
}

fn missing(record: &Record, lacking: &str) -> Leftover {
    let nodes: Vec<&str> = record.nodes.keys().map(NodeId::as_str).collect();
    Leftover {
        kind: LeftoverKind::NotExported,
        id: record.id.to_string(),
        object: Names::of(&record.id).target.into(),
        what: format!(
            "it is attached to {}, but the kernel lacks {lacking}; the driver shows it again when it starts",
            nodes.join(", ")
        ),
        commands: Vec::new(),
        removable: false,
    }
}

//! What may change in a volume's life: what becomes of its data at its end, and how much each pod reads and writes of it.

use crate::backend::Modify;
use crate::backend::local::mutable_on_delete;
use crate::os::cgroup;
use crate::os::step::step;
use crate::volume::{Error, IoLimits, OnDelete, Outcome, RawParameters, Result, VolumeId};

use super::LvmBackend;
use super::config::{LvmConfig, check_on_delete};
use super::tags::{self, Object, VolumeRecord};

/// What is set; what is left out stays as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Changes {
    pub(super) on_delete: Option<OnDelete>,
    pub(super) io_limits: IoLimits,
}

pub(super) fn parse(raw: &RawParameters, config: &LvmConfig, thin: bool) -> Result<Changes> {
    let mut rest = raw.clone();
    let io_limits = rest.split(&IoLimits::KEYS).parse()?;
    config.check_io_limits(io_limits)?;
    let on_delete = if rest.is_empty() { None } else { Some(mutable_on_delete(&rest)?) };
    on_delete.map_or(Ok(()), |on_delete| check_on_delete("mutable_parameters.onDelete", on_delete, thin))?;
    Ok(Changes { on_delete, io_limits })
}

impl Modify for LvmBackend {
    fn check(&self, raw: &RawParameters) -> Result<()> {
        parse(raw, &self.config, false).map(drop)
    }

    fn modify(&self, id: &VolumeId, raw: &RawParameters) -> Result<Outcome<()>> {
        let found = self.whole(&Object::volume(id))?.ok_or_else(|| Error::volume_not_found(id))?;
        let wanted = parse(raw, &self.config, found.lv.pool.is_some())?;
        let mut record: VolumeRecord = tags::decode(&found.lv)?;
        let before = tags::encode(&record)?;
        if let Some(on_delete) = wanted.on_delete
            && record.on_delete()? != on_delete
        {
            record.on_delete = Some(on_delete);
        }
        if !wanted.io_limits.are_max()
            && let Err(error) = cgroup::check_io()
        {
            // Before it is recorded: with it, the volume could not be published here any more.
            return Err(Error::Unsupported { what: format!("limiting the IO of volume {id}"), reason: error.to_string() });
        }
        record.io_limits = record.io_limits.with(wanted.io_limits);
        let after = tags::encode(&record)?;
        if before == after {
            // Another process may have recorded them: the pods of this node get them now.
            self.remember_io_limits(id, record.io_limits()?);
            return Ok(Outcome::Unchanged(()));
        }
        let (path, mut arguments) = (found.path(), Vec::new());
        // Those that are there: another version, or an administrator, may have written the same otherwise.
        let there: Vec<&String> = tags::of_record(&found.lv).collect();
        for tag in there.iter().filter(|tag| !after.contains(tag)) {
            arguments.extend(["--deltag", tag]);
        }
        for tag in after.iter().filter(|tag| !there.contains(tag)) {
            arguments.extend(["--addtag", tag]);
        }
        arguments.push(&path);
        let held = found.group.lock("lvchange")?;
        step("record parameters", id, || found.group.change(&held, "lvchange", &arguments))?;
        self.remember_io_limits(id, record.io_limits()?);
        Ok(Outcome::Changed(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(pairs: &[(&str, &str)]) -> RawParameters {
        RawParameters::new(pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())))
    }

    fn config(limits: bool) -> LvmConfig {
        let yaml = format!("{{name: lvm, ioLimits: {limits}, classes: [{{name: a, volumeGroup: vg0, devices: [/dev/sda]}}]}}");
        serde_yaml_ng::from_str(&yaml).expect("a configuration")
    }

    #[test]
    fn what_is_left_out_stays() {
        let limits: IoLimits = raw(&[("readIops", "100")]).parse().expect("limits");
        for (pairs, expected) in [
            (&[][..], Changes::default()),
            (&[("onDelete", "retain")], Changes { on_delete: Some(OnDelete::Retain), ..Changes::default() }),
            (&[("readIops", "100")], Changes { io_limits: limits, ..Changes::default() }),
            (&[("readIops", "100"), ("onDelete", "delete")], Changes { on_delete: Some(OnDelete::Delete), io_limits: limits }),
        ] {
            assert_eq!(parse(&raw(pairs), &config(true), false).expect("known"), expected, "{pairs:?}");
        }
    }

    #[test]
    fn limits_and_what_is_unknown_are_refused_by_name() {
        for (pairs, limits, named) in [
            (&[("readIops", "100")][..], false, "ioLimits: true"),
            (&[("readIops", "max")], false, "ioLimits: true"),
            (&[("writeIops", "3")], true, "writeIops"),
            (&[("iops", "100")], true, "iops"),
            (&[("iops", "100"), ("readIops", "100")], true, "iops"),
            (&[("onDelete", "archive")], true, "onDelete"),
        ] {
            let error = parse(&raw(pairs), &config(limits), false).expect_err("refused").to_string();
            assert!(error.contains(named), "{pairs:?}: {error}");
        }
    }
}

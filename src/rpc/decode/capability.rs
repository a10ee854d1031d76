//! VolumeCapability, capacity_range, topologies.

use super::*;
use crate::csi;
use crate::csi::volume_capability::access_mode::Mode;
use crate::volume::{AccessMode, AccessType, Capability, CapacityRange, FsType, MountFlags, Topology, TopologyRequirement};

/// CSI spec, MountVolume.mount_flags: all of them together, in bytes.
const LONGEST_FLAGS: usize = 4096;
/// The mount options whose values may be quoted and then hold commas: SELinux categories. The kubelet writes
/// `context="system_u:object_r:container_file_t:s0:c1,c2"`.
const QUOTED: [&str; 4] = ["context", "fscontext", "defcontext", "rootcontext"];

impl TryFrom<csi::VolumeCapability> for Capability {
    type Error = Error;

    fn try_from(capability: csi::VolumeCapability) -> Result<Self> {
        use csi::volume_capability::AccessType as Wire;
        let access = capability
            .access_type
            .ok_or_else(|| Error::invalid("volume_capability.access_type", "is required: block or mount"))?;
        let mode = mode(capability.access_mode)?;
        let access = match access {
            Wire::Block(_) => AccessType::Block,
            Wire::Mount(mount) => filesystem(&mount)?,
        };
        Ok(Capability { access, mode })
    }
}

fn filesystem(mount: &csi::volume_capability::MountVolume) -> Result<AccessType> {
    let fs_type = short("volume_capability.mount.fs_type", &mount.fs_type)?;
    let fstype = FsType::asked_for(fs_type)?;
    let mount_flags = mount_flags(&mount.mount_flags)?;
    Ok(AccessType::Filesystem { fstype, mount_flags, group: group(&mount.volume_mount_group)? })
}

fn mode(mode: Option<csi::volume_capability::AccessMode>) -> Result<AccessMode> {
    const FIELD: &str = "volume_capability.access_mode";
    let mode = mode.ok_or_else(|| Error::invalid(FIELD, "is required"))?.mode;
    match Mode::try_from(mode) {
        Ok(Mode::SingleNodeWriter) => Ok(AccessMode::SingleNodeWriter),
        Ok(Mode::SingleNodeReaderOnly) => Ok(AccessMode::SingleNodeReaderOnly),
        Ok(Mode::SingleNodeSingleWriter) => Ok(AccessMode::SingleNodeSingleWriter),
        Ok(Mode::SingleNodeMultiWriter) => Ok(AccessMode::SingleNodeMultiWriter),
        Ok(Mode::MultiNodeReaderOnly) => Ok(AccessMode::MultiNodeReaderOnly),
        Ok(Mode::MultiNodeSingleWriter) => Ok(AccessMode::MultiNodeSingleWriter),
        Ok(Mode::MultiNodeMultiWriter) => Ok(AccessMode::MultiNodeMultiWriter),
        Ok(Mode::Unknown) | Err(_) => Err(Error::invalid(FIELD, format!("mode {mode} is none that CSI 1.13 knows"))),
    }
}

/// Kubernetes' fsGroup: digits only, so that no sign or space makes two spellings of one group.
fn group(text: &str) -> Result<Option<u32>> {
    if text.is_empty() {
        return Ok(None);
    }
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    let number = text.parse().ok().filter(|_| digits);
    number.map(Some).ok_or_else(|| {
        let reason = format!("{:?} is no group id; write its number", cut(text));
        Error::invalid("volume_capability.mount.volume_mount_group", reason)
    })
}

/// One option per entry, its quotes with it: what reads them must not part it again. Messages tell the place of a flag, not its text, which may be a secret.
fn mount_flags(flags: &[String]) -> Result<MountFlags> {
    const FIELD: &str = "volume_capability.mount.mount_flags";
    let size: usize = flags.iter().map(String::len).sum();
    if size > LONGEST_FLAGS {
        return Err(Error::invalid(FIELD, format!("have {size} bytes; the most is {LONGEST_FLAGS}")));
    }
    let mut options = Vec::new();
    for (index, flag) in flags.iter().enumerate() {
        let at = |reason: &str| Error::invalid(FIELD, format!("number {}: {reason}", index + 1));
        if flag.chars().any(char::is_control) {
            return Err(at("holds a control character"));
        }
        for option in split(flag).ok_or_else(|| at("has a quote that does not end"))? {
            options.push(whole(option).map_err(at)?.to_owned());
        }
    }
    Ok(options.into())
}

/// Splits at the commas outside of quotes; `None` where a quote does not end.
fn split(flag: &str) -> Option<Vec<&str>> {
    let mut options = Vec::new();
    let (mut start, mut quoted) = (0, false);
    for (at, letter) in flag.char_indices() {
        match letter {
            '"' => quoted = !quoted,
            ',' if !quoted => {
                options.push(&flag[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    options.push(&flag[start..]);
    (!quoted).then_some(options)
}

/// One option, quoted only where that is of use.
fn whole(option: &str) -> Result<&str, &'static str> {
    if option.trim().is_empty() {
        return Err("is or holds an empty option");
    }
    if !option.contains('"') {
        return Ok(option);
    }
    let (key, value) = option.split_once('=').ok_or("has quotes but no value")?;
    let value = value.strip_prefix('"').and_then(|value| value.strip_suffix('"')).filter(|value| !value.contains('"'));
    match value {
        Some(_) if QUOTED.contains(&key) => Ok(option),
        Some(_) => Err("has quotes; only SELinux contexts may"),
        None => Err("has quotes that are not around the whole value"),
    }
}

/// At least one.
pub(super) fn capabilities(wire: Vec<csi::VolumeCapability>) -> Result<Vec<Capability>> {
    if wire.is_empty() {
        return Err(Error::invalid("volume_capabilities", "at least one is required"));
    }
    any_capabilities(wire)
}

pub(super) fn any_capabilities(wire: Vec<csi::VolumeCapability>) -> Result<Vec<Capability>> {
    wire.into_iter().map(Capability::try_from).collect()
}

pub(super) fn present(wire: Option<csi::VolumeCapability>) -> Result<csi::VolumeCapability> {
    wire.ok_or_else(|| Error::invalid("volume_capability", "is required"))
}

/// None at all is any size.
pub(super) fn range(wire: Option<csi::CapacityRange>) -> Result<CapacityRange> {
    wire.map_or(Ok(CapacityRange::default()), |range| CapacityRange::new(range.required_bytes, range.limit_bytes))
}

/// Topologies beyond this many are no place of this world.
const MOST_TOPOLOGIES: usize = 5000;

pub(super) fn topology(wire: csi::Topology) -> Result<Topology> {
    map("accessible_topology.segments", wire.segments).map(Topology::from)
}

pub(super) fn requirement(wire: Option<csi::TopologyRequirement>) -> Result<TopologyRequirement> {
    const FIELD: &str = "accessibility_requirements";
    let Some(wire) = wire else { return Ok(TopologyRequirement::default()) };
    if wire.requisite.is_empty() && wire.preferred.is_empty() {
        return Err(Error::invalid(FIELD, "requisite or preferred is required"));
    }
    if wire.requisite.len().max(wire.preferred.len()) > MOST_TOPOLOGIES {
        return Err(Error::invalid(FIELD, format!("more than {MOST_TOPOLOGIES} topologies")));
    }
    let all = |topologies: Vec<csi::Topology>| topologies.into_iter().map(topology).collect::<Result<Vec<_>>>();
    Ok(TopologyRequirement { requisite: all(wire.requisite)?, preferred: all(wire.preferred)? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rpc::decode::testing::{capability, refused};
    use crate::volume::FsType;

    fn mounted(change: impl FnOnce(&mut csi::volume_capability::MountVolume)) -> csi::VolumeCapability {
        let mut mount = csi::volume_capability::MountVolume::default();
        change(&mut mount);
        csi::VolumeCapability { access_type: Some(csi::volume_capability::AccessType::Mount(mount)), ..capability() }
    }

    #[test]
    fn access_type_and_mode_are_required() {
        refused::<Capability, _>(csi::VolumeCapability { access_type: None, ..capability() }, "volume_capability.access_type");
        refused::<Capability, _>(csi::VolumeCapability { access_mode: None, ..capability() }, "volume_capability.access_mode");
        for mode in [0, 8, -1] {
            let access_mode = Some(csi::volume_capability::AccessMode { mode });
            refused::<Capability, _>(csi::VolumeCapability { access_mode, ..capability() }, "volume_capability.access_mode");
        }
    }

    #[test]
    fn a_file_system_is_known_or_left_to_us() {
        let access = |wire| Capability::try_from(wire).expect("valid").access;
        let none = AccessType::Filesystem { fstype: None, mount_flags: MountFlags::default(), group: None };
        assert_eq!(access(capability()), none);
        let xfs = mounted(|mount| {
            mount.fs_type = "xfs".to_owned();
            mount.volume_mount_group = "2000".to_owned();
        });
        assert_eq!(
            access(xfs),
            AccessType::Filesystem { fstype: Some(FsType::Xfs), mount_flags: MountFlags::default(), group: Some(2000) }
        );
        refused::<Capability, _>(mounted(|mount| mount.fs_type = "ntfs".to_owned()), "volume_capability.mount.fs_type");
        for bad in ["wheel", "+5", "-1", " 5", "4294967296"] {
            let wire = mounted(|mount| mount.volume_mount_group = bad.to_owned());
            refused::<Capability, _>(wire, "volume_capability.mount.volume_mount_group");
        }
    }

    #[test]
    fn mount_flags_are_split_at_commas_that_part_options() {
        let flags = |flags: &[&str]| mount_flags(&flags.iter().map(ToString::to_string).collect::<Vec<_>>());
        assert_eq!(flags(&["ro,noexec", "nodev"]).expect("valid").expose(), ["ro", "noexec", "nodev"]);
        assert_eq!(
            flags(&["ro,context=\"u:r:t:s0:c1,c2\",noexec"]).expect("valid").expose(),
            ["ro", "context=\"u:r:t:s0:c1,c2\"", "noexec"]
        );
        for bad in
            ["", "ro,", "a\nb", "a\0b", "context=\"u,ro", "data=\"a,b\"", "\"ro\"", "context=x\"a,b\"", "context=\"a\"\"b\""]
        {
            assert!(flags(&[bad]).is_err(), "{bad:?}");
        }
        let error = flags(&["ro", "password=hunter2\u{7}"]).expect_err("a control character");
        assert!(!error.to_string().contains("hunter2") && error.to_string().contains("number 2"), "{error}");
    }

    #[test]
    fn a_requirement_says_something() {
        assert_eq!(requirement(None).expect("none"), TopologyRequirement::default());
        assert!(requirement(Some(csi::TopologyRequirement::default())).is_err());
    }
}

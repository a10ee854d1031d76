//! How much each pod may read and write of a volume: set in the pod's control group before it gets the volume, again when it is changed, and
//! lifted when the volume is taken from the pod. What a pod has written and nobody has written out yet is written out at its rate, also after
//! the pod's end.
//!
//! The pod is known by the kubelet's path, and its control group by the pod.

use std::path::Path;

use crate::backend::{BlockDevice, Source};
use crate::os::cgroup;
use crate::os::step::step;
use crate::volume::{Error, IoLimits, Result, VolumeId};

use super::context::Node;
use super::journal::StageEntry;
use super::sources::Sources;
use super::{pods, resolve};

/// Limits the pod at whose target the volume is about to be.
///
/// # Errors
/// `Unsupported` where the volume has limits, and this node cannot apply them; `InProgress` while the pod has no control group yet.
pub(super) fn apply(node: &Node, id: &VolumeId, source: &Source, target: &Path) -> Result<()> {
    let limits = limits_of(node, id)?;
    if limits == IoLimits::default() {
        return Ok(());
    }
    match find_and_limit(node, id, source, target, &limits) {
        // Nothing was to be limited.
        Err(error) if limits.are_max() => {
            tracing::debug!(volume = %id, %error, "its limits of reads and writes were not lifted");
            Ok(())
        }
        limited => limited,
    }
}

fn find_and_limit(node: &Node, id: &VolumeId, source: &Source, target: &Path, limits: &IoLimits) -> Result<()> {
    let unsupported = |reason: String| Error::Unsupported { what: format!("limiting the IO of volume {id}"), reason };
    cgroup::check_io().map_err(|error| unsupported(error.to_string()))?;
    let Source::Device(device) = source else { return Err(unsupported("it is no block device".to_owned())) };
    let uid = pods::pod_of(node.kubelet.path(), target)
        .ok_or_else(|| unsupported(format!("{} is no path of a pod, as the kubelet makes them", target.display())))?;
    let group = cgroup::of_pod(&uid)?.ok_or_else(|| Error::InProgress {
        object: format!("limit the IO of volume {id}"),
        reason: format!(
            "pod {uid} has no control group below /sys/fs/cgroup: the kubelet has not made it yet, makes none (cgroupsPerQOS: false), or \
             that directory is the container's own and not the node's"
        ),
    })?;
    limit(&group, device, limits)
}

/// Limits the pods that have the volume as it is set now: all that can be. The caller holds the volume.
///
/// # Errors
/// The first of those that cannot be.
pub(super) fn apply_to_all(node: &Node, id: &VolumeId) -> Result<()> {
    let limits = limits_of(node, id)?;
    if limits == IoLimits::default() {
        return Ok(());
    }
    let Some(entry) = node.journal.stage(id)?.filter(|entry| node.same_boot(entry)) else { return Ok(()) };
    let sources = Sources::observe(node, id, Some(&entry))?;
    let Some(Source::Device(device)) = sources.used(entry.encryption()?) else { return Ok(()) };
    let targets = node.journal.targets(id)?.into_iter().filter(|target| target.boot == node.boot);
    let mut first = Ok(());
    for uid in targets.filter_map(|target| pods::pod_of(node.kubelet.path(), &target.target)) {
        let limited = match cgroup::of_pod(&uid) {
            Ok(Some(group)) => limit(&group, &device, &limits).or_else(|error| if group.exists() { Err(error) } else { Ok(()) }),
            // It has ended, or is about to be published to.
            Ok(None) => Ok(()),
            Err(error) => Err(error.into()),
        };
        first = first.and(limited);
    }
    first
}

fn limits_of(node: &Node, id: &VolumeId) -> Result<IoLimits> {
    let connect = resolve::backend(node, id)?.connect();
    if connect.limits_io() { connect.io_limits(id) } else { Ok(IoLimits::default()) }
}

/// Lets what a pod has written be written out as fast as the device takes it. The kubelet keeps the control group of a pod as long as it has
/// volumes, and that says whether there are limits: the storage is not asked, which may not answer.
pub(super) fn lift(node: &Node, id: &VolumeId, sources: &Sources, entry: Option<&StageEntry>, target: &Path) {
    let lifted = || {
        let limits = node.registry.get(id.backend()).is_some_and(|backend| backend.connect().limits_io());
        let Some(entry) = entry.filter(|_| limits) else { return Ok(()) };
        let device = sources.used(entry.encryption()?);
        let Some((Source::Device(device), uid)) = device.zip(pods::pod_of(node.kubelet.path(), target)) else { return Ok(()) };
        match cgroup::of_pod(&uid)? {
            Some(group) if cgroup::shown(&group, device.number)?.is_some() => limit(&group, &device, &IoLimits::MAX),
            _ => Ok(()),
        }
    };
    if let Err(error) = lifted() {
        tracing::warn!(
            volume = %id, path = %target.display(), error = %crate::volume::error::chain(&error),
            "the pod's limits of reads and writes were not lifted: what it has not synced is written out at these rates"
        );
    }
}

fn limit(group: &Path, device: &BlockDevice, limits: &IoLimits) -> Result<()> {
    Ok(step("limit IO", &group.display(), || cgroup::limit(group, device.number, limits))?)
}

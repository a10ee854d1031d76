//! Requests of the Node service.

use super::capability::{present, range};
use super::*;
use crate::csi;
use crate::ops::node::{ExpandRequest, PublishRequest, StageRequest};
use crate::volume::{AccessType, Capability};

/// The kubelet's word that a volume is made and gone with its pod.
const EPHEMERAL: &str = "csi.storage.k8s.io/ephemeral";

/// NodeStageVolume.
#[derive(Debug)]
pub(in crate::rpc) struct Stage(pub StageRequest);

impl TryFrom<csi::NodeStageVolumeRequest> for Stage {
    type Error = Error;

    fn try_from(request: csi::NodeStageVolumeRequest) -> Result<Self> {
        let id = required("volume_id", &request.volume_id)?;
        required("staging_target_path", &request.staging_target_path)?;
        let capability = present(request.volume_capability)?.try_into()?;
        let staging = path("staging_target_path", &request.staging_target_path)?;
        let volume_context = map("volume_context", request.volume_context)?;
        let publish_context = map("publish_context", request.publish_context)?;
        let secrets = secrets(request.secrets)?;
        Ok(Stage(StageRequest { handle: handle(id)?, staging, capability, volume_context, publish_context, secrets }))
    }
}

/// NodeUnstageVolume. Without a handle nothing of the kind can be staged.
#[derive(Debug)]
pub(in crate::rpc) struct Unstage {
    pub handle: Option<Handle>,
    pub staging: PathBuf,
}

impl TryFrom<csi::NodeUnstageVolumeRequest> for Unstage {
    type Error = Error;

    fn try_from(request: csi::NodeUnstageVolumeRequest) -> Result<Self> {
        let handle = handle(required("volume_id", &request.volume_id)?).ok();
        Ok(Unstage { handle, staging: path("staging_target_path", &request.staging_target_path)? })
    }
}

/// NodePublishVolume.
#[derive(Debug)]
pub(in crate::rpc) struct Publish(pub PublishRequest);

impl TryFrom<csi::NodePublishVolumeRequest> for Publish {
    type Error = Error;

    fn try_from(request: csi::NodePublishVolumeRequest) -> Result<Self> {
        let id = required("volume_id", &request.volume_id)?;
        required("target_path", &request.target_path)?;
        let capability = present(request.volume_capability)?.try_into()?;
        let target = path("target_path", &request.target_path)?;
        let staging = optional_path("staging_target_path", &request.staging_target_path)?;
        let volume_context = map("volume_context", request.volume_context)?;
        let publish_context = map("publish_context", request.publish_context)?;
        let secrets = secrets(request.secrets)?;
        let inline = volume_context.get(EPHEMERAL).is_some_and(|value| value == "true");
        let (handle, staging) = match inline {
            true => (inline_handle(id)?, None),
            false => (handle(id)?, Some(staging.ok_or_else(|| unstaged(id))?)),
        };
        Ok(Publish(PublishRequest {
            handle,
            staging,
            target,
            capability,
            read_only: request.readonly,
            volume_context,
            publish_context,
            secrets,
        }))
    }
}

fn inline_handle(text: &str) -> Result<Handle> {
    match is_inline(text) {
        true => Ok(Handle::Name(text.to_owned())),
        false => {
            Err(Error::invalid("volume_id", "an inline volume's is 1 to 128 of A-Z a-z 0-9 . _ -, not beginning with a dot"))
        }
    }
}

/// FAILED_PRECONDITION (CSI spec, NodePublishVolume, "Staging target path not set").
fn unstaged(id: &str) -> Error {
    let reason = "staging_target_path is not set; stage it with NodeStageVolume and say where".to_owned();
    Error::NotStaged { volume: cut(id), reason }
}

/// NodeUnpublishVolume. Without a handle nothing of the kind can be published.
#[derive(Debug)]
pub(in crate::rpc) struct Unpublish {
    pub handle: Option<Handle>,
    pub target: PathBuf,
}

impl TryFrom<csi::NodeUnpublishVolumeRequest> for Unpublish {
    type Error = Error;

    fn try_from(request: csi::NodeUnpublishVolumeRequest) -> Result<Self> {
        let id = required("volume_id", &request.volume_id)?;
        let target = path("target_path", &request.target_path)?;
        Ok(Unpublish { handle: handle(id).ok(), target })
    }
}

/// NodeGetVolumeStats.
#[derive(Debug)]
pub(in crate::rpc) struct GetStats {
    pub handle: Handle,
    pub path: PathBuf,
}

impl TryFrom<csi::NodeGetVolumeStatsRequest> for GetStats {
    type Error = Error;

    fn try_from(request: csi::NodeGetVolumeStatsRequest) -> Result<Self> {
        let id = required("volume_id", &request.volume_id)?;
        required("volume_path", &request.volume_path)?;
        optional_path("staging_target_path", &request.staging_target_path)?;
        let handle = handle(id)?;
        Ok(GetStats { handle, path: place("volume_path", id, &request.volume_path)? })
    }
}

/// NodeGetVolumeHealth.
#[derive(Debug)]
pub(in crate::rpc) struct GetHealth {
    pub handle: Handle,
    pub published: Option<PathBuf>,
    pub staging: Option<PathBuf>,
}

impl TryFrom<csi::NodeGetVolumeHealthRequest> for GetHealth {
    type Error = Error;

    fn try_from(request: csi::NodeGetVolumeHealthRequest) -> Result<Self> {
        let id = required("volume_id", &request.volume_id)?;
        let published = optional_path("volume_publish_path", &request.volume_publish_path)?;
        let staging = optional_path("staging_target_path", &request.staging_target_path)?;
        Ok(GetHealth { handle: handle(id)?, published, staging })
    }
}

/// NodeGetStorageHealth.
#[derive(Debug)]
pub(in crate::rpc) struct GetStorageHealth;

impl TryFrom<csi::NodeGetStorageHealthRequest> for GetStorageHealth {
    type Error = Error;

    fn try_from(request: csi::NodeGetStorageHealthRequest) -> Result<Self> {
        secrets(request.secrets).map(|_| GetStorageHealth)
    }
}

/// NodeGetInfo.
#[derive(Debug)]
pub(in crate::rpc) struct GetInfo;

impl TryFrom<csi::NodeGetInfoRequest> for GetInfo {
    type Error = Error;

    fn try_from(_request: csi::NodeGetInfoRequest) -> Result<Self> {
        Ok(GetInfo)
    }
}

/// NodeExpandVolume.
#[derive(Debug)]
pub(in crate::rpc) struct Expand(pub ExpandRequest);

impl TryFrom<csi::NodeExpandVolumeRequest> for Expand {
    type Error = Error;

    fn try_from(request: csi::NodeExpandVolumeRequest) -> Result<Self> {
        let id = required("volume_id", &request.volume_id)?;
        required("volume_path", &request.volume_path)?;
        let staging = optional_path("staging_target_path", &request.staging_target_path)?;
        let range = range(request.capacity_range)?;
        let capability = request.volume_capability.map(Capability::try_from).transpose()?;
        secrets(request.secrets)?;
        Ok(Expand(ExpandRequest {
            handle: handle(id)?,
            path: place("volume_path", id, &request.volume_path)?,
            staging,
            required: range.required(),
            block: capability.map(|capability| matches!(capability.access, AccessType::Block)),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rpc::decode::testing::{capability, not_found, refused};
    use crate::volume::Bytes;

    fn stage() -> csi::NodeStageVolumeRequest {
        csi::NodeStageVolumeRequest {
            volume_id: "image:a".to_owned(),
            staging_target_path: "/k/stage".to_owned(),
            volume_capability: Some(capability()),
            ..Default::default()
        }
    }

    fn publish() -> csi::NodePublishVolumeRequest {
        csi::NodePublishVolumeRequest {
            volume_id: "image:a".to_owned(),
            staging_target_path: "/k/stage".to_owned(),
            target_path: "/k/pod".to_owned(),
            volume_capability: Some(capability()),
            ..Default::default()
        }
    }

    fn fake() -> String {
        "fake-vol-id-3f".to_owned()
    }

    #[test]
    fn stage_needs_volume_path_and_capability_before_any_is_looked_for() {
        assert!(Stage::try_from(stage()).is_ok());
        refused::<Stage, _>(csi::NodeStageVolumeRequest { volume_id: String::new(), ..stage() }, "volume_id");
        let pathless = csi::NodeStageVolumeRequest { volume_id: fake(), staging_target_path: String::new(), ..stage() };
        refused::<Stage, _>(pathless, "staging_target_path");
        let without = csi::NodeStageVolumeRequest { volume_id: fake(), volume_capability: None, ..stage() };
        refused::<Stage, _>(without, "volume_capability");
        let relative = csi::NodeStageVolumeRequest { staging_target_path: "stage".to_owned(), ..stage() };
        refused::<Stage, _>(relative, "staging_target_path");
    }

    #[test]
    fn publish_needs_volume_target_and_capability_before_any_is_looked_for() {
        assert!(Publish::try_from(publish()).is_ok());
        refused::<Publish, _>(csi::NodePublishVolumeRequest { volume_id: String::new(), ..publish() }, "volume_id");
        let targetless = csi::NodePublishVolumeRequest { volume_id: fake(), target_path: String::new(), ..publish() };
        refused::<Publish, _>(targetless, "target_path");
        let without = csi::NodePublishVolumeRequest { volume_id: fake(), volume_capability: None, ..publish() };
        refused::<Publish, _>(without, "volume_capability");
        let unstaged = csi::NodePublishVolumeRequest { staging_target_path: String::new(), ..publish() };
        assert!(matches!(Publish::try_from(unstaged), Err(Error::NotStaged { .. })));
    }

    #[test]
    fn an_inline_volume_has_a_name_and_no_stage() {
        let inline = |id: &str| csi::NodePublishVolumeRequest {
            volume_id: id.to_owned(),
            staging_target_path: String::new(),
            volume_context: [(EPHEMERAL.to_owned(), "true".to_owned())].into(),
            ..publish()
        };
        let Publish(request) = Publish::try_from(inline("csi-0f")).expect("valid");
        assert_eq!((request.handle, request.staging), (Handle::Name("csi-0f".to_owned()), None));
        for bad in ["image:a", "../../etc", &"c".repeat(129)] {
            refused::<Publish, _>(inline(bad), "volume_id");
        }
    }

    #[test]
    fn removals_need_id_and_path_and_accept_what_cannot_exist() {
        let unstage = |id: &str, path: &str| csi::NodeUnstageVolumeRequest {
            volume_id: id.to_owned(),
            staging_target_path: path.to_owned(),
        };
        refused::<Unstage, _>(unstage("", "/k/stage"), "volume_id");
        refused::<Unstage, _>(unstage(&fake(), ""), "staging_target_path");
        assert_eq!(Unstage::try_from(unstage("a\0", "/k/stage")).expect("accepted").handle, None);

        let unpublish =
            |id: &str, path: &str| csi::NodeUnpublishVolumeRequest { volume_id: id.to_owned(), target_path: path.to_owned() };
        refused::<Unpublish, _>(unpublish("", "/k/pod"), "volume_id");
        refused::<Unpublish, _>(unpublish(&fake(), ""), "target_path");
        let handle = |id: &str| Unpublish::try_from(unpublish(id, "/k/pod")).expect("accepted").handle;
        assert!(matches!(handle("image:a"), Some(Handle::Id(_))));
        assert!(matches!(handle("csi-0f"), Some(Handle::Name(_))));
        assert_eq!(handle("no\0id"), None);
    }

    #[test]
    fn statistics_and_growth_find_nothing_at_a_relative_path() {
        let stats = |id: &str, path: &str| csi::NodeGetVolumeStatsRequest {
            volume_id: id.to_owned(),
            volume_path: path.to_owned(),
            ..Default::default()
        };
        refused::<GetStats, _>(stats("", "some/path"), "volume_id");
        refused::<GetStats, _>(stats(&fake(), ""), "volume_path");
        not_found::<GetStats, _>(stats("image:a", "some/path"));
        assert!(GetStats::try_from(stats("csi-0f", "/k/pod")).is_ok());

        let expand = |id: &str, path: &str| csi::NodeExpandVolumeRequest {
            volume_id: id.to_owned(),
            volume_path: path.to_owned(),
            capacity_range: Some(csi::CapacityRange { required_bytes: 7, limit_bytes: 0 }),
            volume_capability: Some(capability()),
            ..Default::default()
        };
        refused::<Expand, _>(expand("", "/k/pod"), "volume_id");
        refused::<Expand, _>(expand("image:a", ""), "volume_path");
        not_found::<Expand, _>(expand(&fake(), "some/path"));
        let Expand(request) = Expand::try_from(expand("image:a", "/k/pod")).expect("valid");
        assert_eq!((request.required, request.block), (Some(Bytes(7)), Some(false)));
    }

    #[test]
    fn health_needs_only_an_id() {
        refused::<GetHealth, _>(csi::NodeGetVolumeHealthRequest::default(), "volume_id");
        let health = csi::NodeGetVolumeHealthRequest { volume_id: "image:a".to_owned(), ..Default::default() };
        assert!(GetHealth::try_from(health).is_ok());
        assert!(GetStorageHealth::try_from(csi::NodeGetStorageHealthRequest::default()).is_ok());
    }
}

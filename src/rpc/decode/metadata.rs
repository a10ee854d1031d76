//! Requests of the SnapshotMetadata service.

use super::*;
use crate::csi;

/// A walk over the blocks of a snapshot: GetMetadataAllocated, or, against a base, GetMetadataDelta.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::rpc) struct Walk {
    pub base: Option<SnapshotId>,
    pub target: SnapshotId,
    /// Bytes from the start. Whether it lies within the snapshot is known only later.
    pub offset: u64,
    /// The most blocks of one message; 0 leaves it to us.
    pub max: usize,
}

impl TryFrom<csi::GetMetadataAllocatedRequest> for Walk {
    type Error = Error;

    fn try_from(request: csi::GetMetadataAllocatedRequest) -> Result<Self> {
        let target = required("snapshot_id", &request.snapshot_id)?;
        let (offset, max) = extent(request.starting_offset, request.max_results)?;
        secrets(request.secrets)?;
        Ok(Walk { base: None, target: snapshot_id(target)?, offset, max })
    }
}

impl TryFrom<csi::GetMetadataDeltaRequest> for Walk {
    type Error = Error;

    fn try_from(request: csi::GetMetadataDeltaRequest) -> Result<Self> {
        let base = required("base_snapshot_id", &request.base_snapshot_id)?;
        let target = required("target_snapshot_id", &request.target_snapshot_id)?;
        let (offset, max) = extent(request.starting_offset, request.max_results)?;
        secrets(request.secrets)?;
        Ok(Walk { base: Some(snapshot_id(base)?), target: snapshot_id(target)?, offset, max })
    }
}

fn extent(offset: i64, max_results: i32) -> Result<(u64, usize)> {
    let max = max("max_results", max_results)?;
    let negative = |_| Error::OutOfRange { field: "starting_offset", reason: format!("{offset} is negative") };
    Ok((u64::try_from(offset).map_err(negative)?, max))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rpc::decode::testing::{not_found, refused};

    fn delta() -> csi::GetMetadataDeltaRequest {
        csi::GetMetadataDeltaRequest {
            base_snapshot_id: "image:s1".to_owned(),
            target_snapshot_id: "image:s2".to_owned(),
            ..Default::default()
        }
    }

    #[test]
    fn snapshots_are_required() {
        assert!(Walk::try_from(delta()).expect("valid").base.is_some());
        refused::<Walk, _>(csi::GetMetadataAllocatedRequest::default(), "snapshot_id");
        refused::<Walk, _>(csi::GetMetadataDeltaRequest { base_snapshot_id: String::new(), ..delta() }, "base_snapshot_id");
        refused::<Walk, _>(csi::GetMetadataDeltaRequest { target_snapshot_id: String::new(), ..delta() }, "target_snapshot_id");
        not_found::<Walk, _>(csi::GetMetadataDeltaRequest { base_snapshot_id: "fake".to_owned(), ..delta() });
    }

    #[test]
    fn offsets_and_counts_are_not_negative() {
        refused::<Walk, _>(csi::GetMetadataDeltaRequest { max_results: -1, ..delta() }, "max_results");
        let request = csi::GetMetadataDeltaRequest { starting_offset: -1, ..delta() };
        assert!(matches!(Walk::try_from(request), Err(Error::OutOfRange { field: "starting_offset", .. })));
    }
}

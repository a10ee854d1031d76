//! The node's side.

use crate::backend::{Connect, ConnectRequest, Source};
use crate::volume::{Bytes, Error, Outcome, Result, VolumeId};

use super::IscsiBackend;

impl Connect for IscsiBackend {
    fn connect(&self, request: &ConnectRequest<'_>) -> Result<Outcome<Source>> {
        Err(Error::volume_not_found(request.id))
    }

    fn connected(&self, _id: &VolumeId, _hint: Option<&Source>) -> Result<Option<Source>> {
        Ok(None)
    }

    fn disconnect(&self, _id: &VolumeId, _hint: Option<&Source>) -> Result<Outcome<()>> {
        Ok(Outcome::Unchanged(()))
    }

    fn refresh(&self, id: &VolumeId, _source: &Source) -> Result<Bytes> {
        Err(Error::volume_not_found(id))
    }
}

//! Volumes come and go.

use super::*;
use crate::backend::{CapacityAnswer, CapacityQuery, VolumeSpec};
use crate::volume::Topology;

/// What a CO gets that does not say how much.
const DEFAULT_SIZE: Bytes = Bytes::GIB;

impl Controller {
    /// Makes a volume, or finds that it is there already (CreateVolume).
    ///
    /// # Errors
    /// `Conflict` where the name is taken by a volume that does not fit the request.
    pub fn provision(&self, request: &ProvisionRequest) -> Result<Outcome<Volume>> {
        let (backend, parameters) = Parameters::parse(&self.registry, &request.parameters)?;
        let provision = provision(backend)?;
        request.capabilities.iter().try_for_each(|capability| check_capability(backend.as_ref(), capability))?;
        self.check_mutable(backend, &request.mutable_parameters)?;

        let id = VolumeId::derive(backend.name(), &request.name);
        let _volume = self.locks.exclusive(Key::Volume(id.clone()), "create volume")?;
        let _source = self.lock_source(request.source.as_ref())?;

        let asked = parameters.to_json();
        let outcome = match provision.find_for_create(&id, &asked)? {
            Some(existing) => Outcome::Unchanged(fits(backend, existing, request, &asked)?),
            None => {
                let spec = self.specify(backend, request, id.clone(), &parameters).map_err(|error| match error {
                    Error::NotFound { .. } => abandon(provision, &id, error),
                    error => error,
                })?;
                let created = provision.create(&spec, self.quiesce()?)?;
                // A backend may end what an earlier request of this name began, whose parameters were others.
                Outcome::Changed(fits(backend, created, request, &asked)?)
            }
        };
        // A call that was interrupted between the two is repeated, finds the volume, and sets them then.
        let Some(modify) = backend.modify().filter(|_| !request.mutable_parameters.is_empty()) else { return Ok(outcome) };
        // As the backend calls it: its storage's own id of this very volume may be recorded there.
        let id = outcome.as_inner().id.clone();
        match modify.modify(&id, &request.mutable_parameters) {
            Ok(_) => self.existing(backend, &id).map(|volume| outcome.map(|_| volume)),
            Err(error) => Err(take_back(provision, &id, &outcome, error)),
        }
    }

    /// Removes a volume; one that is not there is fine (DeleteVolume).
    ///
    /// # Errors
    /// `InUse` while it is attached, or staged on this node, or where it is an ephemeral volume of another.
    pub fn delete(&self, id: &VolumeId) -> Result<Outcome<()>> {
        let backend = self.backend(id.backend())?;
        let provision = provision(backend)?;
        let _volume = self.locks.exclusive(Key::Volume(id.clone()), "delete volume")?;
        let in_use = |by: String| Error::InUse { object: format!("volume {id}"), by };
        if let Some(how) = self.node.as_ref().map(|node| node.in_use(id)).transpose()?.flatten() {
            return Err(in_use(how));
        }
        if let Some(attach) = backend.attach() {
            let attached = attach.attachments(std::slice::from_ref(id))?;
            if let Some(node) = attached.get(id).and_then(|nodes| nodes.first()) {
                return Err(in_use(format!("it is attached to node {node}; detach it first")));
            }
        }
        if id.is_ephemeral() && !self.may_delete_ephemeral(provision, id)? {
            return Ok(Outcome::Unchanged(()));
        }
        let deleted = provision.delete(id)?;
        if let Some(node) = &self.node {
            node.forget(id);
        }
        Ok(deleted)
    }

    /// An ephemeral volume is its node's, which deletes it with its pod; no CO asks for it here. `false` where there is none: what is
    /// half made is left to that node, too.
    fn may_delete_ephemeral(&self, provision: &dyn Provision, id: &VolumeId) -> Result<bool> {
        let Some(volume) = provision.find(id)? else { return Ok(false) };
        if self.node.as_ref().map(|node| node.owns(&volume)).transpose()? == Some(true) {
            return Ok(true);
        }
        let by =
            format!("it is the {}, which deletes it with its pod; if that node is gone for ever, delete it there", volume.name);
        Err(Error::InUse { object: format!("volume {id}"), by })
    }

    /// What can still be made (GetCapacity), with these parameters, in this place.
    pub fn capacity(
        &self,
        capabilities: &[Capability],
        parameters: &RawParameters,
        topology: Option<&Topology>,
    ) -> Result<CapacityAnswer> {
        let (backend, parameters) = Parameters::parse(&self.registry, parameters)?;
        let provision = provision(backend)?;
        let least = parameters.least(backend.as_ref(), capabilities);
        let query = CapacityQuery { parameters: parameters.backend, topology: topology.cloned(), least };
        let answer = provision.capacity(&query)?;
        let usable = capabilities.iter().all(|capability| check_capability(backend.as_ref(), capability).is_ok());
        let here = match topology.filter(|_| backend.is_local()) {
            Some(asked) => backend.topology()?.is_none_or(|place| asked.reaches(&place)),
            None => true,
        };
        if usable && here {
            return Ok(answer);
        }
        Ok(CapacityAnswer { available: Bytes(0), maximum: Bytes(0), ..answer })
    }

    fn check_mutable(&self, backend: &Arc<dyn Backend>, mutable: &RawParameters) -> Result<()> {
        if mutable.is_empty() {
            return Ok(());
        }
        backend.modify().ok_or_else(|| unsupported(backend, "mutable_parameters"))?.check(mutable)
    }

    /// The source must not go, and must not be taken off the node, while it is copied.
    fn lock_source(&self, source: Option<&ContentSource>) -> Result<Option<crate::ops::lock::Guard>> {
        let key = match source {
            None => return Ok(None),
            Some(ContentSource::Snapshot(id)) => Key::Snapshot(id.clone()),
            Some(ContentSource::Volume(id)) => Key::Volume(id.clone()),
        };
        self.locks.shared(key, "copy into a new volume").map(Some)
    }

    fn specify(
        &self,
        backend: &Arc<dyn Backend>,
        request: &ProvisionRequest,
        id: VolumeId,
        parameters: &Parameters,
    ) -> Result<VolumeSpec> {
        check_place(backend, &request.topology)?;
        let source_size = request.source.as_ref().map(|source| self.source_size(backend, source)).transpose();
        let source_size = source_size.map_err(|error| elsewhere(backend, &request.topology, error))?;
        // At least as large as the source: that may have been rounded up, and the claim of a copy says what the first one said.
        let least = parameters.least(backend.as_ref(), &request.capabilities).max(source_size.unwrap_or_default());
        let unit = provision(backend)?.unit();
        let capacity = request.range.choose(source_size.unwrap_or(DEFAULT_SIZE), least, unit)?;
        Ok(VolumeSpec {
            id,
            name: request.name.clone(),
            capacity,
            limit: request.range.limit(),
            source: request.source.clone(),
            parameters: parameters.to_json(),
            several_nodes: several_nodes(&request.capabilities),
            mutable: request.mutable_parameters.clone(),
            topology: request.topology.clone(),
        })
    }

    /// How large a volume from this source must be at least.
    fn source_size(&self, backend: &Arc<dyn Backend>, source: &ContentSource) -> Result<Bytes> {
        let of = match source {
            ContentSource::Snapshot(id) => id.backend(),
            ContentSource::Volume(id) => id.backend(),
        };
        if of != backend.name() {
            return Err(Error::invalid(
                "volume_content_source",
                format!("the source lies in backend {of}, the new volume would lie in {}; they must be the same", backend.name()),
            ));
        }
        match source {
            ContentSource::Volume(id) => Ok(self.existing(backend, id)?.capacity),
            ContentSource::Snapshot(id) => {
                let snapshot = self.get_snapshot(id)?;
                if snapshot.ready {
                    return Ok(snapshot.size);
                }
                Err(Error::InProgress { object: format!("snapshot {id}"), reason: "is not ready to use yet".to_owned() })
            }
        }
    }
}

/// What another node's disk has is not found on this one. A CO that has chosen this node, and would wait for it for ever, is asked to choose
/// again.
fn elsewhere(backend: &Arc<dyn Backend>, wanted: &TopologyRequirement, error: Error) -> Error {
    if !matches!(error, Error::NotFound { .. }) || !backend.is_local() || wanted.is_empty() {
        return error;
    }
    not_there(wanted, format!("{error} on this node; what is made of it is made where it lies"))
}

/// Its source is gone: what an earlier call began of the copy would be orphaned, since the CO does not repeat the call.
fn abandon(provision: &dyn Provision, id: &VolumeId, error: Error) -> Error {
    match provision.delete(id) {
        Ok(_) => error,
        Err(left) => error.leaving(left.to_string()),
    }
}

/// A volume that cannot have its mutable parameters is not left behind a final error. One that was found may be in use.
fn take_back(provision: &dyn Provision, id: &VolumeId, outcome: &Outcome<Volume>, error: Error) -> Error {
    // The CO repeats the call, which finds the volume.
    if error.may_pass() {
        return error;
    }
    let left = match outcome {
        Outcome::Changed(_) => provision.delete(id).err().map(|error| error.to_string()),
        Outcome::Unchanged(_) => Some(format!("volume {id}, without its mutable parameters")),
    };
    match left {
        Some(left) => error.leaving(left),
        None => error.rolled_back(),
    }
}

/// The existing volume, if it is what the request would have made.
fn fits(
    backend: &Arc<dyn Backend>,
    existing: Volume,
    request: &ProvisionRequest,
    parameters: &serde_json::Value,
) -> Result<Volume> {
    let conflict = |existing_is: String, wanted: String| {
        Err(Error::Conflict { object: format!("volume {:?} ({})", existing.name, existing.id), existing: existing_is, wanted })
    };
    if existing.name != request.name {
        return conflict(format!("the name {:?}", existing.name), format!("{:?}", request.name));
    }
    if !request.range.accepts(existing.capacity) {
        let (required, limit) = (request.range.required(), request.range.limit());
        let wanted = match (required, limit) {
            (Some(required), Some(limit)) => format!("{required} to {limit}"),
            (Some(required), None) => format!("at least {required}"),
            (None, Some(limit)) => format!("at most {limit}"),
            (None, None) => "any size".to_owned(),
        };
        return conflict(format!("a capacity of {}", existing.capacity), wanted);
    }
    if existing.source != request.source {
        return conflict(format!("the source {:?}", existing.source), format!("{:?}", request.source));
    }
    if existing.for_one_node && several_nodes(&request.capabilities) {
        return conflict("made for one node".to_owned(), "one for several nodes".to_owned());
    }
    if requested(backend, &existing.parameters) != requested(backend, parameters) {
        return conflict(format!("the parameters {}", existing.parameters), parameters.to_string());
    }
    Ok(existing)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::backend::fake::{Fake, FakeConfig};

    #[test]
    fn new_volume_without_its_mutable_parameters_stays_only_for_the_repeated_call() {
        let busy =
            || Error::Busy { object: "group".to_owned(), operation: "grow", step: "lvextend".to_owned(), since: Duration::ZERO };
        let refused = || Error::invalid("mutable_parameters", "refused");
        let away = || Error::BackendUnavailable { backend: "fake".to_owned(), reason: "it restarts".to_owned() };
        for (error, stays) in [(busy as fn() -> Error, true), (away, true), (refused, false)] {
            let name: BackendName = "fake".parse().expect("a name");
            let fake = Fake::new(FakeConfig::named(name.clone()), "here".parse().expect("a node")).expect("a backend");
            let spec = VolumeSpec {
                id: VolumeId::derive(&name, "new"),
                name: "new".to_owned(),
                capacity: Bytes::MIB,
                limit: None,
                source: None,
                parameters: serde_json::Value::Null,
                several_nodes: false,
                mutable: RawParameters::default(),
                topology: TopologyRequirement::default(),
            };
            let made = Outcome::Changed(fake.create(&spec, &NoNode).expect("made"));
            let answer = take_back(&fake, &spec.id, &made, error());
            assert_eq!(std::mem::discriminant(&answer), std::mem::discriminant(&error()), "{answer}");
            assert_eq!(fake.find(&spec.id).expect("looked").is_some(), stays, "{answer}");
        }
    }
}

//! A driver with the built-in backends and one more: a tmpfs for each volume, whose contents live while it is staged.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};

use longshore::backend::catalog::{Catalog, Configuration, OpenContext};
use longshore::backend::{
    Backend, CapacityAnswer, CapacityQuery, Connect, ConnectRequest, Provision, Quiesce, Source, StoragePath, VolumeSpec,
};
use longshore::os::step::step;
use longshore::os::{self, durable};
use longshore::volume::{AccessMode, AccessType, BackendName, Bytes, Capability, Error, Outcome, Result, Volume, VolumeId};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The row: `type: example`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct ExampleConfig {
    /// The part of every volume id before the colon.
    pub name: BackendName,
    /// Where it is recorded which volumes there are: a directory that the controller and all nodes see.
    pub directory: PathBuf,
    /// How much may be provisioned.
    pub capacity: Bytes,
}

impl Configuration for ExampleConfig {
    const KIND: &'static str = "example";
    const SUMMARY: &'static str = "memory of the node, while a volume is staged";

    fn name(&self) -> &BackendName {
        &self.name
    }
    fn validate(&self) -> Result<()> {
        if self.directory.is_absolute() {
            return Ok(());
        }
        Err(Error::invalid("directory", format!("{} is not absolute", self.directory.display())))
    }
    fn open(self, context: &OpenContext<'_>) -> Result<Arc<dyn Backend>> {
        Ok(Arc::new(Example { config: self, provisions: context.purpose.provisions(), making: Mutex::new(()) }))
    }
    fn storage_paths(&self) -> Vec<StoragePath> {
        vec![StoragePath::directory("records", &self.directory)]
    }
}

struct Example {
    config: ExampleConfig,
    provisions: bool,
    /// What is provisioned is summed up by one call at a time.
    making: Mutex<()>,
}

/// What is kept of a volume, in the file `<id behind the colon>.json`.
#[derive(Serialize, Deserialize)]
struct Record {
    name: String,
    capacity: Bytes,
    parameters: serde_json::Value,
}

const END: &str = ".json";
const LONGEST_RECORD: u64 = 64 << 10;

impl Example {
    fn find(&self, id: &VolumeId) -> Result<Option<Volume>> {
        let path = self.config.directory.join(format!("{}{END}", id.local()));
        let Some(content) = durable::read(&path, LONGEST_RECORD)? else { return Ok(None) };
        let record: Record = serde_json::from_slice(&content).map_err(|error| {
            Error::failed("read the record of volume", id.to_string(), format!("{}: {error}", path.display()))
        })?;
        let Record { name, capacity, parameters } = record;
        let (id, source, topology) = (id.clone(), None, Vec::new());
        Ok(Some(Volume { id, name, capacity, source, parameters: parameters.into(), topology, for_one_node: false }))
    }

    fn existing(&self, id: &VolumeId) -> Result<Volume> {
        self.find(id)?.ok_or_else(|| Error::volume_not_found(id))
    }

    fn available(&self) -> Result<Bytes> {
        let provisioned: u64 = self.list(None, usize::MAX)?.iter().map(|volume| volume.capacity.0).sum();
        Ok(Bytes(self.config.capacity.0.saturating_sub(provisioned)))
    }
}

fn tmpfs(volume: &Volume) -> Source {
    let options = vec![format!("size={}", volume.capacity.0), "mode=0755".to_owned()];
    Source::Filesystem { fstype: "tmpfs".to_owned(), source: volume.id.to_string(), options }
}

impl Backend for Example {
    fn name(&self) -> &BackendName {
        &self.config.name
    }
    fn kind(&self) -> &'static str {
        ExampleConfig::KIND
    }
    fn probe(&self) -> Result<()> {
        fs::read_dir(&self.config.directory).map(drop).map_err(|error| {
            let reason = format!("{}: {error}; make the directory, or mount it", self.config.directory.display());
            Error::BackendUnavailable { backend: self.config.name.to_string(), reason }
        })
    }
    fn access_modes(&self) -> &[AccessMode] {
        &AccessMode::SINGLE_NODE
    }
    fn check_capability(&self, capability: &Capability) -> Result<()> {
        match capability.access {
            AccessType::Filesystem { .. } => Ok(()),
            AccessType::Block => {
                Err(Error::Unsupported { what: "raw block".to_owned(), reason: "a tmpfs is no device".to_owned() })
            }
        }
    }
    fn provision(&self) -> Option<&dyn Provision> {
        self.provisions.then_some(self)
    }
    fn connect(&self) -> &dyn Connect {
        self
    }
}

impl Provision for Example {
    fn find(&self, id: &VolumeId) -> Result<Option<Volume>> {
        Example::find(self, id)
    }
    fn create(&self, spec: &VolumeSpec, _quiesce: &dyn Quiesce) -> Result<Volume> {
        let _making = os::lock(&self.making);
        if spec.source.is_some() {
            let reason = "the contents of a volume live only while it is staged".to_owned();
            return Err(Error::Unsupported { what: "copying a volume".to_owned(), reason });
        }
        let available = self.available()?;
        if spec.capacity > available {
            let reason = format!("{} is asked for, {available} is left", spec.capacity);
            return Err(Error::NoCapacity { place: format!("backend {}", self.config.name), reason });
        }
        let record = Record { name: spec.name.clone(), capacity: spec.capacity, parameters: spec.parameters.clone() };
        let content = serde_json::to_vec(&record).map_err(|error| Error::failed("record volume", spec.id.to_string(), error))?;
        step("record volume", &spec.id, || {
            durable::write(&self.config.directory, &format!("{}{END}", spec.id.local()), &content)
        })?;
        self.existing(&spec.id)
    }
    fn delete(&self, id: &VolumeId) -> Result<Outcome<()>> {
        if Example::find(self, id)?.is_none() {
            return Ok(Outcome::Unchanged(()));
        }
        step("remove record", id, || durable::remove(&self.config.directory, &format!("{}{END}", id.local())))?;
        Ok(Outcome::Changed(()))
    }
    fn list(&self, after: Option<&VolumeId>, max: usize) -> Result<Vec<Volume>> {
        let directory = &self.config.directory;
        let names = fs::read_dir(directory).and_then(Iterator::collect::<std::io::Result<Vec<_>>>);
        let names = names.map_err(|error| os::Error::io("list", directory, error))?;
        let id = |name: &str| format!("{}:{}", self.config.name, name.strip_suffix(END)?).parse::<VolumeId>().ok();
        let mut ids: Vec<VolumeId> = names.iter().filter_map(|entry| id(entry.file_name().to_str()?)).collect();
        ids.sort();
        let page = ids.iter().filter(|id| after.is_none_or(|after| *id > after)).take(max);
        page.filter_map(|id| Example::find(self, id).transpose()).collect()
    }
    fn capacity(&self, query: &CapacityQuery) -> Result<CapacityAnswer> {
        let available = self.available()?;
        let minimum = query.least.max(Bytes(self.unit())).round_up(self.unit());
        Ok(CapacityAnswer { available, maximum: available, minimum })
    }
}

impl Connect for Example {
    fn connect(&self, request: &ConnectRequest<'_>) -> Result<Outcome<Source>> {
        // Nothing to do: `ops` makes the mount.
        self.existing(request.id).map(|volume| Outcome::Unchanged(tmpfs(&volume)))
    }
    fn connected(&self, id: &VolumeId, hint: Option<&Source>) -> Result<Option<Source>> {
        let source = Example::find(self, id)?.as_ref().map(tmpfs);
        Ok(source.filter(|source| hint == Some(source)))
    }
    fn disconnect(&self, _id: &VolumeId, _hint: Option<&Source>) -> Result<Outcome<()>> {
        Ok(Outcome::Unchanged(()))
    }
    fn refresh(&self, id: &VolumeId, _source: &Source) -> Result<Bytes> {
        self.existing(id).map(|volume| volume.capacity)
    }
}

fn main() -> ExitCode {
    longshore::main_with(&Catalog::built_in().with::<ExampleConfig>())
}

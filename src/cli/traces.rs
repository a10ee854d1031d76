//! Traces for a collector, by OTLP over gRPC: one span per RPC, and below it one per step.
//!
//! Spans wait in memory, so many at most, and go in batches from a thread of their own: a collector that is away costs the
//! spans and nothing else.

use std::borrow::Cow;
use std::time::Duration;

use opentelemetry::trace::TracerProvider;
use opentelemetry::{KeyValue, Value};
pub use opentelemetry_otlp::ExporterBuildError;
use opentelemetry_otlp::{SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{SdkTracerProvider, SpanData};
use tokio::runtime::Runtime;
use tracing::{Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::registry::LookupSpan;

use crate::config::{Config, OtlpEndpoint};

/// For how long the end waits for the last spans to be taken.
const CLOSING: Duration = Duration::from_secs(2);
/// For how long one batch may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// Sends spans until dropped; then what still waits.
pub struct Traces {
    provider: SdkTracerProvider,
}

impl Traces {
    /// # Errors
    /// For an endpoint that cannot be one. Whether anybody listens there shows later, in the log.
    pub fn start(endpoint: &OtlpEndpoint, config: &Config, runtime: &Runtime) -> Result<Traces, ExporterBuildError> {
        // tonic's client runs where it was made.
        let _entered = runtime.enter();
        let exporter = SpanExporter::builder().with_tonic().with_endpoint(endpoint.as_str()).with_timeout(PATIENCE).build()?;
        let about = [
            KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
            KeyValue::new("service.instance.id", config.node_id.as_str().to_owned()),
            KeyValue::new("csi.driver.name", config.driver_name.as_str().to_owned()),
        ];
        let resource = Resource::builder().with_service_name("longshore").with_attributes(about).build();
        let provider = SdkTracerProvider::builder().with_batch_exporter(Named(exporter)).with_resource(resource).build();
        Ok(Traces { provider })
    }

    /// Takes the driver's own spans and what is logged in them, whatever goes to the log; not those of the libraries, among them
    /// the one that sends.
    pub fn layer<S: Subscriber + for<'a> LookupSpan<'a>>(&self) -> impl Layer<S> + use<S> {
        let tracer = self.provider.tracer("longshore");
        let ours = Targets::new().with_target("longshore", Level::DEBUG);
        tracing_opentelemetry::layer().with_tracer(tracer).with_location(false).with_threads(false).with_filter(ours)
    }
}

impl Drop for Traces {
    fn drop(&mut self) {
        if let Err(error) = self.provider.shutdown_with_timeout(CLOSING) {
            tracing::warn!(%error, "the last traces were not taken");
        }
    }
}

/// Calls each span what people call it: by its RPC or its step, instead of `rpc` and `step`.
#[derive(Debug)]
struct Named<E>(E);

impl<E: opentelemetry_sdk::trace::SpanExporter> opentelemetry_sdk::trace::SpanExporter for Named<E> {
    fn export(&self, mut batch: Vec<SpanData>) -> impl Future<Output = OTelSdkResult> + Send {
        for span in &mut batch {
            let key = if span.name == "step" { "name" } else { "rpc" };
            let named = span.attributes.iter().find(|attribute| attribute.key.as_str() == key);
            if let Some(Value::String(name)) = named.map(|attribute| &attribute.value) {
                span.name = Cow::Owned(name.as_str().to_owned());
            }
        }
        self.0.export(batch)
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.0.shutdown_with_timeout(timeout)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.0.force_flush()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.0.set_resource(resource);
    }
}

//! Traces, as a collector gets them.
#![cfg(feature = "otlp")]

mod common;

use std::collections::BTreeSet;
use std::net::TcpListener;

use common::otlp::Collector;
use common::{Harness, Pool, capability, create, isolated, stage_request, text};
use longshore::csi;
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value::Value};
use opentelemetry_proto::tonic::trace::v1::Span;

fn attribute<'a>(attributes: &'a [KeyValue], key: &str) -> Option<&'a str> {
    match attributes.iter().find(|attribute| attribute.key == key)?.value.as_ref()?.value.as_ref()? {
        Value::StringValue(text) => Some(text),
        _ => None,
    }
}

#[test]
fn an_rpc_is_a_span_and_its_steps_are_its_children() {
    isolated(|| {
        let mut collector = Collector::start();
        let mut harness = Harness::new(Pool::Local);
        harness.configure(&format!("otlpEndpoint: http://{}", collector.address));
        // What goes to the log does not decide what is traced.
        harness.set("LONGSHORE_LOG", "error,longshore::server=info");
        harness.start();
        harness.block_on(harness.controller().create_volume(create("traced", 64, Some("ext4"), "image"))).expect("created");
        let staging = text(&harness.staging("traced"));
        let stage = stage_request("image:traced", &staging, capability(Some("ext4")));
        harness.block_on(harness.node().node_stage_volume(stage)).expect("staged");
        let unstage = csi::NodeUnstageVolumeRequest { volume_id: "image:traced".to_owned(), staging_target_path: staging };
        harness.block_on(harness.node().node_unstage_volume(unstage)).expect("unstaged");
        // The end sends what still waits.
        assert!(harness.stop());
        collector.until(|spans| spans.iter().any(|span| span.name == "NodeUnstageVolume"));

        let spans = collector.spans();
        let stages: Vec<&Span> = spans.iter().filter(|span| span.name == "NodeStageVolume").collect();
        let [stage] = stages[..] else { panic!("one span: {stages:?}") };
        assert!(stage.parent_span_id.is_empty(), "nobody called it from a trace");
        assert_eq!(attribute(&stage.attributes, "id"), Some("image:traced"));
        assert_eq!(attribute(&stage.attributes, "node"), Some("node-1"));
        assert!(stage.end_time_unix_nano > stage.start_time_unix_nano);
        let children: Vec<&Span> = spans.iter().filter(|span| span.parent_span_id == stage.span_id).collect();
        let names: BTreeSet<&str> = children.iter().map(|child| child.name.as_str()).collect();
        for step in ["write journal", "attach loop device", "probe", "mkfs", "mount"] {
            assert!(names.contains(step), "{step} is not among {names:?}");
        }
        for child in children {
            assert_eq!(child.trace_id, stage.trace_id);
            assert!(
                child.start_time_unix_nano >= stage.start_time_unix_nano && child.end_time_unix_nano <= stage.end_time_unix_nano
            );
        }
        // Steps of the start have no RPC above them; once calls are served, nothing else is without a parent.
        let served = spans.iter().find(|span| span.name == "CreateVolume").expect("the first call").start_time_unix_nano;
        let orphan = |span: &&Span| {
            span.parent_span_id.is_empty() && span.start_time_unix_nano >= served && attribute(&span.attributes, "rpc").is_none()
        };
        assert_eq!(spans.iter().find(orphan), None);
        let resource = collector.requests[0].resource_spans[0].resource.as_ref().expect("who sent it");
        for (key, value) in
            [("service.name", "longshore"), ("service.instance.id", "node-1"), ("csi.driver.name", "longshore.csi.dev")]
        {
            assert_eq!(attribute(&resource.attributes, key), Some(value));
        }
        harness.assert_nothing_left();
    });
}

#[test]
fn a_collector_that_is_away_holds_up_nobody() {
    isolated(|| {
        let port = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("its address").port();
        let mut harness = Harness::new(Pool::Local);
        harness.configure(&format!("otlpEndpoint: http://127.0.0.1:{port}"));
        harness.start();
        harness.block_on(harness.controller().create_volume(create("lonely", 64, None, "image"))).expect("created");
        assert!(harness.stop());
    });
}

//! What came back from a call, in two forms.

use serde_json::{Value, json};

/// What came back.
pub(super) struct Answer {
    /// The response, as in csi.proto.
    pub(super) json: Value,
    /// For people; ends with a newline.
    pub(super) text: String,
}

impl Answer {
    /// For a response that holds nothing.
    pub(super) fn done(what: String) -> Self {
        Answer { json: Value::Object(serde_json::Map::new()), text: what + "\n" }
    }
}

/// The answer of the three GetCapabilities RPCs, all of whose capabilities are RPCs.
pub(super) fn capabilities_answer<'a>(names: impl Iterator<Item = &'a str>) -> Answer {
    let names: Vec<&str> = names.collect();
    let text = names.iter().map(|name| format!("{name}\n")).collect();
    let capabilities: Vec<Value> = names.iter().map(|name| json!({ "rpc": { "type": name } })).collect();
    Answer { json: json!({ "capabilities": capabilities }), text }
}

/// What to do where a list continues after this page.
pub(super) fn more(next: &str) -> String {
    if next.is_empty() { String::new() } else { format!("There are more: --token {next}, or --all\n") }
}

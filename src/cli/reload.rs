//! `longshore reload`: asks a running driver to take up its changed configuration file.

use std::time::Duration;

use tonic::Code;

use crate::admin::{ChangedSetting, ReloadRequest, ReloadResponse};

use super::args::ReloadArgs;
use super::call::{self, Client};
use super::progress::Progress;
use super::{Failure, print, table};

const PATIENCE: Duration = Duration::from_secs(60);

pub fn run(args: ReloadArgs) -> Result<u8, Failure> {
    let endpoint = call::endpoint(args.endpoint)?;
    let answer = call::runtime()?.block_on(async {
        let client = Client::connect(&endpoint, PATIENCE, Progress::new(false)).await?;
        client.answer("reload", client.admin().reload(ReloadRequest { check: args.check })).await
    });
    let answer = answer.map_err(|failure| match failure {
        Failure::Call { code: Code::InvalidArgument, message } => Failure::Usage(message),
        other => other,
    })?;
    print(&report(&answer))?;
    Ok(u8::from(answer.changed.iter().any(|changed| changed.needs_restart)))
}

fn report(answer: &ReloadResponse) -> String {
    let ReloadResponse { file, changed, applied } = answer;
    let conclusion = match (changed.is_empty(), changed.iter().any(|changed| changed.needs_restart), applied) {
        (true, ..) => format!("{file}: nothing has changed"),
        (_, true, _) => format!("{file}: nothing was applied; a setting needs a restart of the driver, or must be taken back"),
        (_, false, true) => format!("{file}: applied"),
        (_, false, false) => format!("{file}: can be applied; nothing was applied"),
    };
    let value = |value: &Option<String>| value.clone().unwrap_or_else(|| "not set".to_owned());
    let row = |ChangedSetting { name, before, after, needs_restart }: &ChangedSetting| {
        vec![name.clone(), value(before), value(after), if *needs_restart { "restart" } else { "reload" }.to_owned()]
    };
    let rows =
        (!changed.is_empty()).then(|| table::rows(&["SETTING", "IN FORCE", "IN THE FILE", "NEEDS"], changed.iter().map(row)));
    format!("{}{conclusion}\n", rows.unwrap_or_default())
}

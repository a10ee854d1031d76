//! `longshore log-level`: asks a running driver to say more, or less.

use std::time::Duration;

use crate::admin::LogLevelRequest;
use crate::config::LogLevel;

use super::args::LogLevelArgs;
use super::call::{self, Client};
use super::progress::Progress;
use super::{Failure, print};

const PATIENCE: Duration = Duration::from_secs(10);

pub fn run(args: LogLevelArgs) -> Result<(), Failure> {
    let endpoint = call::endpoint(args.endpoint)?;
    let level = args.level.as_ref().map(LogLevel::to_string).unwrap_or_default();
    let answer = call::runtime()?.block_on(async {
        let client = Client::connect(&endpoint, PATIENCE, Progress::new(false)).await?;
        client.answer("log-level", client.admin().log_level(LogLevelRequest { level })).await
    })?;
    print(&format!("{}\n", answer.level))
}

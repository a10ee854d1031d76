//! The one place that starts programs.
//!
//! Absolute tool paths, clean environment with `LC_ALL=C` and a fixed PATH, standard input closed (or given), its own process group,
//! killed whole at the deadline, and with us (PR_SET_PDEATHSIG). Secrets travel by standard input, or by files in memory that only
//! the program sees ([`Private`]).

use std::fs::File;
use std::time::Instant;

use super::{Error, Result};

pub use command::{Output, Run, Tool};
pub use detached::run_detached;
pub use private::Private;
pub(super) use wait::poll;

use spawn::start;
use wait::{Collector, Pipes, end, how_it_ended};

mod command;
mod detached;
mod private;
mod spawn;
mod wait;

/// Runs it to its end. What it started in the background and left running is not waited for.
///
/// # Errors
/// `ToolMissing`; `Io` where it could not be started; `Deadline` (the whole group was killed; if it hangs in the kernel, it is
/// reaped later). A failing exit status is not an error here: see [`run_ok`].
pub fn run(run: Run<'_>) -> Result<Output> {
    run_with(run, None, None)
}

/// As `run`, with files of its own.
pub fn run_private(run: Run<'_>, files: Private) -> Result<Output> {
    run_with(run, Some(files), None)
}

/// As `run`; all that it prints to its standard output is in `stdout`, and not in [`Output`].
pub fn run_to_file(run: Run<'_>, stdout: File) -> Result<Output> {
    run_with(run, None, Some(stdout))
}

fn run_with(run: Run<'_>, files: Option<Private>, stdout: Option<File>) -> Result<Output> {
    let path = match &files {
        Some(files) => run.tool.find_where(|path| files.has_program(path))?,
        None => run.tool.find()?,
    };
    let begun = Instant::now();
    let mut child = start(&path, &run, files, stdout)?;
    #[cfg(feature = "faults")]
    let run = Run { deadline: super::faults::started(run.tool.name, child.id()).unwrap_or(run.deadline), ..run };
    let mut pipes = Pipes::of(&mut child, run.stdin);
    match pipes.serve(&child, begun.checked_add(run.deadline)) {
        Ok(true) => {}
        Ok(false) => {
            end(child);
            return Err(Error::Deadline { action: "run", object: run.tool.name.to_owned(), after: run.deadline });
        }
        Err(error) => {
            end(child);
            return Err(Error::io("wait for", &path, error));
        }
    }
    let status = child.wait().map_err(|error| Error::io("wait for", &path, error))?;
    #[cfg(feature = "faults")]
    super::faults::ended(run.tool.name);
    let [stdout, stderr] = pipes.output.map(Collector::into_string);
    Ok(Output { status: how_it_ended(status), stdout, stderr })
}

/// As `run`; an exit status outside `accepted` is an error: see [`Output::accepted`].
pub fn run_ok(command: Run<'_>, object: &str, accepted: &[i32]) -> Result<Output> {
    let tool = command.tool.name;
    run(command)?.accepted(tool, object, accepted)
}

#[cfg(test)]
mod tests;

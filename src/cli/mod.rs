//! The command line: `serve`, `call`, `inspect`, `doctor`, `log-level`, `pre-stop`, `relay`, `completions`,
//! `man-pages`.
//!
//! Wires the parts together and talks to people. No policy of its own: what a flag means is decided in `config`, what a
//! call does by the driver.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::FromArgMatches;
use tonic::Code;

use crate::backend::catalog::Catalog;
use crate::config::{self, ConfigError};
use crate::volume;

#[cfg(feature = "ec2")]
mod api;
mod args;
mod call;
mod doctor;
mod garbage;
mod inspect;
mod log_level;
#[cfg(feature = "ec2")]
mod pre_stop;
mod progress;
#[cfg(feature = "ec2")]
mod relay;
mod serve;
mod table;
#[cfg(feature = "otlp")]
mod traces;
mod tree;

use args::{Cli, Command, command};

/// Why the program ends with something else than 0.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("{0}")]
    Usage(String),
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("cannot read {}: {source}", path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    #[error("{endpoint} cannot be reached: {reason}; is `longshore serve` running there, and may you write to its socket?")]
    Unreachable { endpoint: String, reason: String },
    /// The driver's answer.
    #[error("{}: {message}", call::code_name(*code))]
    Call { code: Code, message: String },
    /// What Probe found.
    #[error("not ready: it starts or stops, or none of its backends can be used; its log and /readyz name the cause")]
    NotReady,
    #[error("cannot {step}: {source}")]
    Serve { step: &'static str, source: Box<dyn std::error::Error + Send + Sync> },
    #[error("cannot make the directory {}: {source}", path.display())]
    Directory { path: PathBuf, source: io::Error },
    /// The node, or a part of it, cannot be looked at or repaired.
    #[error(transparent)]
    Node(#[from] volume::Error),
    /// What the driver ends without having seen.
    #[cfg(feature = "ec2")]
    #[error("{0}")]
    PreStop(String),
    /// There is no API server to speak to.
    #[cfg(feature = "ec2")]
    #[error("{0}")]
    Api(String),
    #[error("cannot write the output: {0}")]
    Output(io::Error),
}

impl Failure {
    /// As `longshore --help` documents them.
    fn exit_code(&self) -> u8 {
        match self {
            #[cfg(feature = "ec2")]
            Failure::PreStop(_) => 1,
            #[cfg(feature = "ec2")]
            Failure::Api(_) => 3,
            Failure::NotReady => 4,
            Failure::Call { code, .. } if call::may_still_run(*code) => 4,
            Failure::Call { .. } | Failure::Serve { .. } | Failure::Directory { .. } | Failure::Output(_) => 1,
            Failure::Usage(_) | Failure::Config(_) | Failure::Unreadable { .. } => 2,
            Failure::Node(volume::Error::Invalid { .. }) => 2,
            Failure::Node(volume::Error::InUse { .. }) => 4,
            Failure::Unreachable { .. } | Failure::Node(_) => 3,
        }
    }

    /// What to do, where the message does not say it.
    fn hint(&self) -> Option<&'static str> {
        match self {
            Failure::Call { code, .. } if call::may_still_run(*code) => {
                Some("this is not final: it may still be running or have left something behind; repeat the same call")
            }
            Failure::Call { code: Code::Unimplemented, .. } => {
                Some("see `longshore call get-plugin-capabilities` for what this driver serves")
            }
            _ => None,
        }
    }
}

/// Runs what the arguments of this process say; answers its exit code.
pub fn main(catalog: &Catalog) -> ExitCode {
    // Wrong usage ends here, with clap's message and 2.
    let mut command = command(catalog);
    let cli = Cli::from_arg_matches(&command.clone().get_matches()).unwrap_or_else(|error| error.format(&mut command).exit());
    let result = match cli.command {
        Command::Serve(args) => serve::run(&args, catalog).map(|()| 0),
        Command::Call(args) => call::run(*args).map(|()| 0),
        Command::Inspect(args) => inspect::run(&args, catalog),
        Command::Doctor(args) => doctor::run(&args, catalog),
        Command::LogLevel(args) => log_level::run(args).map(|()| 0),
        #[cfg(feature = "ec2")]
        Command::PreStop(args) => pre_stop::run(&args, catalog).map(|()| 0),
        #[cfg(feature = "ec2")]
        Command::Relay(args) => relay::run(&args, catalog).map(|()| 0),
        Command::ConfigSchema => config_schema(catalog).map(|()| 0),
        Command::Completions { shell } => completions(shell, catalog).map(|()| 0),
        Command::ManPages { directory } => clap_mangen::generate_to(command, directory).map(|()| 0).map_err(Failure::Output),
    };
    match result {
        Ok(code) => ExitCode::from(code),
        // Who reads our output has read enough: `longshore call list-volumes | head`.
        Err(Failure::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(failure) => {
            let hint = failure.hint().map(|hint| format!("hint: {hint}\n")).unwrap_or_default();
            // Nothing can be done about a standard error that can't be written to; the exit code still tells.
            write!(io::stderr().lock(), "error: {failure}\n{hint}").ok();
            ExitCode::from(failure.exit_code())
        }
    }
}

/// Writes to standard output.
fn print(text: &str) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()).map_err(Failure::Output)
}

/// A variable of the environment; one that isn't UTF-8 counts as not set.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// Whether this runs in a container of a pod: the kubelet gives this variable to each.
fn in_pod() -> bool {
    variable("KUBERNETES_SERVICE_HOST").is_some_and(|host| !host.is_empty())
}

fn config_schema(catalog: &Catalog) -> Result<(), Failure> {
    print(&inspect::json(&config::schema(catalog))?)
}

fn completions(shell: clap_complete::Shell, catalog: &Catalog) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command(catalog), "longshore", &mut script);
    io::stdout().lock().write_all(&script).map_err(Failure::Output)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_that_is_not_final_has_an_exit_code_of_its_own() {
        let call = |code| Failure::Call { code, message: String::new() };
        for code in [Code::Cancelled, Code::DeadlineExceeded, Code::Unavailable, Code::Aborted] {
            assert_eq!(call(code).exit_code(), 4, "{code:?}");
            assert!(call(code).hint().is_some_and(|hint| hint.contains("repeat")), "{code:?}");
        }
        for code in [Code::NotFound, Code::Internal, Code::ResourceExhausted, Code::Unknown] {
            assert_eq!(call(code).exit_code(), 1, "{code:?}");
        }
    }
}

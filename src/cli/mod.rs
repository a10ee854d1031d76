//! The command line: `serve`, `call`, `inspect`, `doctor`, `log-level`, `reload`, `pre-stop`, `relay`, `completions`,
//! `man-pages`.
//!
//! Wires the parts together and talks to people. No policy of its own: what a flag means is decided in `config`, what a
//! call does by the driver.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::FromArgMatches;

use crate::backend::catalog::Catalog;
use crate::config;

#[cfg(feature = "cloud")]
mod api;
mod args;
mod call;
mod codes;
mod doctor;
mod failure;
mod garbage;
mod inspect;
mod log_level;
mod output;
#[cfg(feature = "cloud")]
mod pre_stop;
mod progress;
#[cfg(feature = "cloud")]
mod relay;
mod reload;
mod reloader;
mod serve;
mod table;
#[cfg(feature = "otlp")]
mod traces;
mod tree;

use args::{Cli, Command, command};
use failure::Failure;
use output::{in_pod, json, print, variable};

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
        Command::Reload(args) => reload::run(args),
        #[cfg(feature = "cloud")]
        Command::PreStop(args) => pre_stop::run(&args, catalog).map(|()| 0),
        #[cfg(feature = "cloud")]
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

fn config_schema(catalog: &Catalog) -> Result<(), Failure> {
    print(&json(&config::schema(catalog))?)
}

fn completions(shell: clap_complete::Shell, catalog: &Catalog) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command(catalog), "longshore", &mut script);
    io::stdout().lock().write_all(&script).map_err(Failure::Output)
}

#[cfg(test)]
mod tests {
    use tonic::Code;

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

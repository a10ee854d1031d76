//! The `longshore` program: see `longshore --help`.

use std::process::ExitCode;

fn main() -> ExitCode {
    longshore::cli::main()
}

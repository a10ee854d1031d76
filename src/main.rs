//! The `longshore` program: see `longshore --help`.

use std::process::ExitCode;

fn main() -> ExitCode {
    // To be asked here, before the command line is parsed, whether this process was started to be a freeze guard
    // (`longshore::os::freeze::main_if_guard`): that is no command for people.
    longshore::cli::main()
}

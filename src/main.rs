//! The `longshore` program: see `longshore --help`.

use std::process::ExitCode;

fn main() -> ExitCode {
    // First of all: the program starts itself as the guard of a freeze, which is no command for people.
    if let Some(code) = longshore::os::freeze::main_if_guard() {
        return ExitCode::from(u8::try_from(code).unwrap_or(1));
    }
    longshore::cli::main()
}

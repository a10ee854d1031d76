//! The `longshore` program: see `longshore --help`.

use std::process::ExitCode;

fn main() -> ExitCode {
    // `longshore freeze-guard`, which this program starts of itself (`longshore::os::freeze`), is to be taken here, before
    // the command line is parsed: it is no command for people.
    longshore::cli::main()
}

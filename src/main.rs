//! The `longshore` program: see `longshore --help`.

use std::process::ExitCode;

use longshore::backend::catalog::Catalog;

fn main() -> ExitCode {
    longshore::main_with(&Catalog::built_in())
}

//! Where a program begins.

use std::process::ExitCode;

use crate::backend::catalog::Catalog;
use crate::cli;
use crate::os::freeze;

/// The `main` of a program with these backends: `longshore` with the built-in ones, another with [`Catalog::with`] some of its own.
pub fn main_with(catalog: &Catalog) -> ExitCode {
    // First of all: the program starts itself as the guard of a freeze, which is no command for people.
    if let Some(code) = freeze::main_if_guard() {
        return ExitCode::from(u8::try_from(code).unwrap_or(1));
    }
    cli::main(catalog)
}

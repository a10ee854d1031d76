//! `longshore serve`: builds what the configuration names, and runs it until a signal.

use std::fs;

use crate::config::{Config, Layer};

use super::args::ServeArgs;
use super::{Failure, print, variable};

/// Serves until SIGTERM or SIGINT.
pub fn run(args: ServeArgs) -> Result<(), Failure> {
    let config = configure(&args)?;
    if args.check {
        let yaml = config.to_yaml().map_err(|error| Failure::Serve { step: "print the configuration", source: error.into() })?;
        return print(&yaml);
    }
    Ok(())
}

fn configure(args: &ServeArgs) -> Result<Config, Failure> {
    let mut layers = vec![args.layer(), Layer::from_environment(variable)?];
    if let Some(path) = &args.config {
        let text = fs::read_to_string(path).map_err(|source| Failure::Unreadable { path: path.clone(), source })?;
        layers.push(Layer::from_yaml(path, &text)?);
    }
    let host = nix::sys::utsname::uname().map(|names| names.nodename().to_string_lossy().into_owned());
    let host = host.map_err(|error| Failure::Serve { step: "learn the host name", source: error.into() })?;
    Ok(Config::resolve(layers, &host)?)
}

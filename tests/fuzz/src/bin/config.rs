//! Configuration files.
#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use longshore::config::{Catalog, Config, Layer};

fuzz_target!(|text: &str| {
    let file = Path::new("longshore.yaml");
    let Ok(layer) = Layer::from_yaml(file, text, &Catalog::built_in()) else { return };
    let config = Config::resolve([layer], "host").expect("what a file says is checked when it is read");
    assert!(!config.backends.is_empty());
    assert!(config.kubelet_dir.path().is_absolute() && config.state_dir.path().is_absolute());
    let yaml = config.to_yaml().expect("it can be printed");
    let again = Layer::from_yaml(file, &yaml, &Catalog::built_in()).and_then(|layer| Config::resolve([layer], "another"));
    assert_eq!(again.expect("what `serve --check` prints is a file"), config, "{yaml}");
});

//! StorageClass parameters, an inline volume's attributes, volume_context, secrets: lines of `key=value`.
#![no_main]

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use libfuzzer_sys::fuzz_target;
use longshore::backend::Backend;
use longshore::backend::fake::{Fake, FakeConfig};
use longshore::backend::image::{ImageBackend, ImageConfig, PoolConfig, Role};
use longshore::backend::registry::Registry;
use longshore::ops::parameters::Parameters;
use longshore::volume::{FsType, RawParameters, Secrets};

static REGISTRY: LazyLock<Registry> = LazyLock::new(|| {
    // A pool that is away: parameters are read without a disk.
    let pool = PoolConfig { name: "fast".to_owned(), path: "/nonexistent/pool".into(), overcommit: 1.0, capacity: None };
    let image = ImageConfig { name: "image".parse().expect("a name"), pools: vec![pool], node: None, shared: false };
    let image = ImageBackend::open(image, Role { provision: true }).expect("a backend");
    let fake = Fake::new(FakeConfig::named("fake".parse().expect("a name")), "node".parse().expect("a node")).expect("a backend");
    Registry::new(vec![Arc::new(image), Arc::new(fake) as Arc<dyn Backend>]).expect("two backends")
});

fuzz_target!(|text: &str| {
    let pairs = text.lines().filter_map(|line| line.split_once('='));
    let map: BTreeMap<String, String> = pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect();

    let secrets = format!("{:?}", Secrets::new(map.clone()));
    assert_eq!(secrets, format!("Secrets({} hidden)", map.len()));

    for backend in REGISTRY.iter() {
        // What arrives at a node is read there, no matter who wrote it.
        let _ = Parameters::from_context(backend.as_ref(), &map);
    }
    let Ok((backend, parameters)) = Parameters::parse(&REGISTRY, &RawParameters::new(map)) else { return };
    let context = Parameters::to_context(&parameters.to_json());
    let arrived = Parameters::from_context(backend.as_ref(), &context).expect("what the controller sends");
    assert_eq!(arrived, parameters);
    for fstype in FsType::ALL {
        let Ok(arguments) = parameters.node.mkfs_arguments(fstype) else { continue };
        for argument in &arguments {
            assert!(!argument.contains('/'), "{arguments:?} names a file");
            assert!(argument != "-F" && argument != "-f" && !argument.starts_with("--force"), "{arguments:?} forces");
        }
    }
});

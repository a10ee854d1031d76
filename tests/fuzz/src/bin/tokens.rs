//! Paging tokens, over a backend in memory.
#![no_main]

use std::sync::{Arc, LazyLock};

use libfuzzer_sys::fuzz_target;
use longshore::backend::fake::{Fake, FakeConfig};
use longshore::backend::registry::Registry;
use longshore::ops::Controller;
use longshore::ops::controller::ProvisionRequest;
use longshore::ops::lock::Locks;
use longshore::volume::{AccessMode, AccessType, Capability, CapacityRange, Error, VolumeId};

const NAMES: [&str; 5] = ["a", "b.1", "b_2", "pvc-7f", "z"];

static CONTROLLER: LazyLock<Controller> = LazyLock::new(|| {
    let fake = Fake::new(FakeConfig::named("fake".parse().expect("a name")), "node".parse().expect("a node")).expect("a backend");
    let registry = Registry::new(vec![Arc::new(fake)]).expect("a registry");
    let controller = Controller::new(registry, Locks::default(), None);
    for name in NAMES {
        let capability = Capability { access: AccessType::Block, mode: AccessMode::SingleNodeWriter };
        let request = ProvisionRequest {
            name: name.to_owned(),
            range: CapacityRange::default(),
            capabilities: vec![capability],
            parameters: Default::default(),
            mutable_parameters: Default::default(),
            source: None,
            topology: Default::default(),
        };
        controller.provision(&request).expect("a volume");
    }
    controller
});

// A byte for the most entries, then the token.
fuzz_target!(|input: &[u8]| {
    let Some((max, token)) = input.split_first() else { return };
    let (max, Ok(token)) = (usize::from(*max), std::str::from_utf8(token)) else { return };
    let page = match CONTROLLER.list(max, token) {
        Ok(page) => page,
        // An invalid token is ABORTED, and nothing else can go wrong.
        Err(Error::InvalidPageToken { token: named }) => return assert!(named == token && token.parse::<VolumeId>().is_err()),
        Err(other) => panic!("{other:?}"),
    };
    let after = (!token.is_empty()).then(|| token.parse::<VolumeId>().expect("a token is an id"));
    let all = NAMES.map(|name| format!("fake:{name}").parse::<VolumeId>().expect("an id"));
    let expected: Vec<_> = all.iter().filter(|id| after.as_ref().is_none_or(|after| *id > after)).collect();
    let shown = if max == 0 { expected.len() } else { max.min(expected.len()) };
    let listed: Vec<_> = page.entries.iter().map(|entry| &entry.volume.id).collect();
    assert_eq!(listed, expected[..shown]);
    let last = if shown < expected.len() { expected[shown - 1].to_string() } else { String::new() };
    assert_eq!(page.next_token, last);
});

//! Mount options.
#![no_main]

use libfuzzer_sys::fuzz_target;
use longshore::os::mount::split_options;

fuzz_target!(|text: &str| {
    let given: Vec<String> = text.split('\n').map(str::to_owned).collect();
    let flags = given.iter().cloned().collect();
    let Ok((attributes, options)) = split_options(&flags) else { return };
    let options = options.expose();
    for option in options {
        let key = option.split('=').next().unwrap_or_default();
        assert!(!option.is_empty() && !option.contains(['\0', '"']), "{options:?}");
        assert!(!["bind", "rbind", "remount", "move", "loop", "source", "shared"].contains(&key), "{options:?}");
        assert!(!["ro", "rw", "suid", "nosuid", "dev", "nodev", "exec", "noexec"].contains(&option.as_str()), "{options:?}");
    }
    // Read-only is never lost: the last that is said counts.
    let mut said = given.iter().flat_map(|flags| flags.split(',')).filter(|option| ["ro", "rw"].contains(option));
    if !text.contains('"') {
        assert_eq!(attributes.read_only, said.next_back() == Some("ro"));
    }
});

//! Entries of the node's journal.
#![no_main]

use libfuzzer_sys::fuzz_target;
use longshore::ops::node::rewritten;

fuzz_target!(|data: &[u8]| {
    for kind in ["stage", "target", "frozen"] {
        let dropped = ["formatting", "encrypting", "growing"];
        longshore_fuzz::same_again_and_never_torn(|content| rewritten(kind, content), &dropped, data);
    }
});

//! The files beside the images: of volumes, snapshots, groups, pools.
#![no_main]

use libfuzzer_sys::fuzz_target;
use longshore::backend::image::rewritten;

fuzz_target!(|data: &[u8]| {
    for kind in ["volume", "snapshot", "group", "marker"] {
        longshore_fuzz::same_again_and_never_torn(|content| rewritten(kind, content), &[], data);
    }
});

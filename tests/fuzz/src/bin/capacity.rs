//! Sizes as people write them, and the choice of one within a range.
#![no_main]

use libfuzzer_sys::fuzz_target;
use longshore::volume::{Bytes, CapacityRange};

fuzz_target!(|input: (u8, i64, i64, u32, u32, &str)| {
    let (shift, required, limit, default, least, text) = input;
    if let Ok(size) = text.parse::<Bytes>() {
        // What is a whole number of units is read back from what is printed, and so is any number of bytes.
        assert_eq!(size.0.to_string().parse::<Bytes>().expect("a number"), size);
        let shown = size.to_string();
        if !shown.contains('(') {
            assert_eq!(shown.replace(" bytes", "").parse::<Bytes>().expect("our own"), size, "{text:?} as {shown}");
        }
        if text.bytes().all(|byte| byte.is_ascii_digit()) {
            assert_eq!(Ok(size.0), text.parse(), "{text}");
        }
    }
    let Ok(range) = CapacityRange::new(required, limit) else {
        assert!(required < 0 || limit < 0 || (limit > 0 && required > limit));
        return;
    };
    let unit = 1_u64 << (shift % 33);
    if let Ok(size) = range.choose(Bytes(default.into()), Bytes(least.into()), unit) {
        assert!(range.accepts(size), "{range:?}: {size:?}");
        assert!(size.0.is_multiple_of(unit) && size.0 >= u64::from(least), "{range:?}: {size:?}");
    }
});

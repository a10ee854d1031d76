//! Digests as text: for names that must be short and legal, whatever they are made of.

use sha2::{Digest, Sha256};

/// SHA-256 in 64 hexadecimal digits.
pub fn sha256(bytes: &[u8]) -> String {
    hexadecimal(&Sha256::digest(bytes))
}

/// The same of several texts, each ended by a NUL, so that no two lists are one text.
pub fn sha256_of<'a>(parts: impl IntoIterator<Item = &'a str>) -> String {
    let mut digest = Sha256::new();
    for part in parts {
        digest.update(part.as_bytes());
        digest.update([0]);
    }
    hexadecimal(&digest.finalize())
}

/// A UUID that the same texts always give: of version 8, whose bits are the maker's own (RFC 9562).
pub fn uuid_of<'a>(parts: impl IntoIterator<Item = &'a str>) -> String {
    let digits = sha256_of(parts);
    let part = |range: std::ops::Range<usize>| digits.get(range).unwrap_or_default();
    format!("{}-{}-8{}-8{}-{}", part(0..8), part(8..12), part(13..16), part(17..20), part(20..32))
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

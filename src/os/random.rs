//! Random bytes, for secrets.

use std::fs::File;
use std::io::Read;

use super::{Error, Result};

/// Waits until the kernel's source is seeded, which a reader of /dev/urandom does not (random(4)).
const SOURCE: &str = "/dev/random";

/// As many random bytes, in hexadecimal.
///
/// # Errors
/// `Io`.
pub fn hexadecimal(bytes: usize) -> Result<String> {
    let mut random = vec![0; bytes];
    let failed = |error| Error::io("read", SOURCE, error);
    File::open(SOURCE).map_err(failed)?.read_exact(&mut random).map_err(failed)?;
    Ok(random.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    #[test]
    fn no_two_are_equal() {
        let (one, two) = (super::hexadecimal(16).unwrap(), super::hexadecimal(16).unwrap());
        assert_eq!((one.len(), two.len()), (32, 32));
        assert_ne!(one, two);
    }
}

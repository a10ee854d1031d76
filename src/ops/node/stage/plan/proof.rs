//! Whether a device is the volume's by what it holds, where its storage says what that must be.

use crate::backend::ExpectedContents;
use crate::volume::{Error, Result, VolumeId};

/// What a device holds, as far as it says whose it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holds {
    /// Nothing.
    Nothing,
    /// A file system, a LUKS header, or a part of one with the mark of its format: its UUID.
    Uuid(String),
    /// What is never used, whosever it is.
    Else,
}

/// A blank device is another volume's where this one is a copy of something. Else it may be this one's, before its first format: that a
/// format has ended is recorded nowhere but on the device, so that what speaks for a blank one is the storage's word, its size, and that all of
/// it was read. What is made on it carries the volume's UUID: should it be another's, that one is refused from then on.
///
/// # Errors
/// `Unverified`, naming both UUIDs: nothing was written.
pub fn prove(volume: &VolumeId, device: &str, expected: Option<&ExpectedContents>, holds: &Holds) -> Result<()> {
    let Some(expected) = expected else { return Ok(()) };
    let ExpectedContents { uuid, is_copy, place, remedy } = expected;
    let own = uuid
        .as_ref()
        .map_or_else(|| "a file system of its own".to_owned(), |uuid| format!("what was made for this volume, with UUID {uuid}"));
    let found = match holds {
        Holds::Uuid(found) if expected.may_be(found) => return Ok(()),
        Holds::Nothing if !is_copy => return Ok(()),
        Holds::Else => return Ok(()),
        Holds::Uuid(found) => format!("UUID {found} is on it"),
        Holds::Nothing => "it is blank".to_owned(),
    };
    let reason = format!(
        "the device on {place} should hold {own}, but {found}: it may be another volume's disk, and \
         was neither formatted nor mounted. Look with the cloud's tools what is on {place}; {remedy}"
    );
    Err(Error::Unverified { device: format!("volume {volume} on {device}"), reason })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_volumes_uuid_or_a_device_before_its_first_format_is_used() {
        let id = "az:a".parse().expect("an id");
        let (own, other) = ("11111111-1111-8111-8111-111111111111", "22222222-2222-8222-8222-222222222222");
        let expected = |is_copy| ExpectedContents {
            uuid: Some(own.to_owned()),
            is_copy,
            place: "LUN 5".to_owned(),
            remedy: "detach it".to_owned(),
        };
        for (is_copy, holds, refused) in [
            (false, Holds::Uuid(own.to_owned()), None),
            (true, Holds::Uuid(own.to_owned()), None),
            (false, Holds::Nothing, None),
            (true, Holds::Nothing, Some("it is blank")),
            (false, Holds::Uuid(other.to_owned()), Some(other)),
            (true, Holds::Uuid(other.to_owned()), Some(other)),
            (true, Holds::Else, None),
        ] {
            let result = prove(&id, "/dev/sdc", Some(&expected(is_copy)), &holds);
            match (result, refused) {
                (Ok(()), None) => {}
                (Err(error @ Error::Unverified { .. }), Some(words)) => {
                    let error = error.to_string();
                    for word in [words, own, "/dev/sdc", "LUN 5", "detach it"] {
                        assert!(error.contains(word), "{error}");
                    }
                }
                (other, _) => panic!("a copy: {is_copy}, {holds:?}: {other:?}"),
            }
            prove(&id, "/dev/sdc", None, &holds).expect("nothing is known of its contents");
        }
        // Made by another program: with any UUID, but not blank.
        let existing = ExpectedContents { uuid: None, ..expected(true) };
        prove(&id, "/dev/sdc", Some(&existing), &Holds::Uuid(other.to_owned())).expect("whatever is on it");
        let error = prove(&id, "/dev/sdc", Some(&existing), &Holds::Nothing).expect_err("it is another's disk").to_string();
        assert!(error.contains("it is blank") && error.contains("a file system of its own"), "{error}");
    }
}

//! The JSON records that backends keep with their storage: objects with a `format`, read strictly.

use serde::Deserialize;
use serde::de::{DeserializeOwned, Error as _};

/// Why a record cannot be used. It is left as it is.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unreadable {
    #[error("it has format {found}, this version knows {known}; use the version of longshore that wrote it")]
    OtherFormat { found: u32, known: u32 },
    /// The error may hold a value of the record.
    #[error("it is damaged ({0}); restore it from a backup")]
    Damaged(serde_json::Error),
}

/// The record in `text`, which must be an object of this format. serde also reads a struct from an array, where no field has a name and the
/// format is not seen.
///
/// # Errors
/// For whatever is not exactly that.
pub(super) fn decode<T: DeserializeOwned>(text: &[u8], known: u32) -> Result<T, Unreadable> {
    #[derive(Deserialize)]
    struct AnyFormat {
        format: u32,
    }
    if !text.trim_ascii_start().starts_with(b"{") {
        return Err(Unreadable::Damaged(serde_json::Error::custom("not an object")));
    }
    match serde_json::from_slice::<AnyFormat>(text) {
        Ok(AnyFormat { format: found }) if found != known => Err(Unreadable::OtherFormat { found, known }),
        _ => serde_json::from_slice(text).map_err(Unreadable::Damaged),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Record {
        format: u32,
        id: String,
    }

    #[test]
    fn record_of_another_format_or_shape_is_refused() {
        let read = |text: &str| decode::<Record>(text.as_bytes(), 1).map_err(|error| error.to_string());
        assert_eq!(read(" {\"format\": 1, \"id\": \"a\"}\n"), Ok(Record { format: 1, id: "a".to_owned() }));
        for (text, words) in [
            ("{\"format\": 2, \"shape\": \"round\"}", "it has format 2, this version knows 1"),
            ("{\"format\": 1, \"id\": \"a\", \"more\": 0}", "it is damaged (unknown field `more`"),
            ("{\"format\": 1, \"id\": \"a\"", "it is damaged (EOF"),
            ("[1, \"a\"]", "it is damaged (not an object"),
            ("[3, \"a\"]", "it is damaged (not an object"),
            ("", "it is damaged (not an object"),
        ] {
            let error = read(text).expect_err(text);
            assert!(error.starts_with(words), "{text}: {error}");
        }
    }
}

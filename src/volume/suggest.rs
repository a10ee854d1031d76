//! The nearest right word to one that is unknown.

/// The message of an unknown field or word, with the known one that is nearest to it, if one is near.
///
/// serde's own errors are text by then: `unknown field `pols`, expected one of `name`, `pools``. A test below holds that they still
/// are worded so.
pub fn with_nearest(message: String) -> String {
    let nearest = ["unknown field `", "unknown variant `"].iter().find_map(|start| {
        let (unknown, rest) = message.split_once(start)?.1.split_once('`')?;
        let known = rest.strip_prefix(", expected ")?;
        nearest(unknown, known.split('`').skip(1).step_by(2)).map(str::to_owned)
    });
    match nearest {
        Some(word) => format!("{message}; did you mean `{word}`?"),
        None => message,
    }
}

/// The nearest of the known words, if it is as near as one mistake in three letters, where case is none.
pub fn nearest<'a>(unknown: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let unknown = unknown.to_lowercase();
    let distance = |word: &str| strsim::damerau_levenshtein(&unknown, &word.to_lowercase());
    let (mistakes, word) = known.map(|word| (distance(word), word)).min_by_key(|(mistakes, _)| *mistakes)?;
    (mistakes <= word.len().max(3) / 3).then_some(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_word_is_followed_by_the_nearest_known_one() {
        for (message, expected) in [
            ("unknown field `pols`, expected one of `name`, `pools`, `node` at line 6", Some("pools")),
            ("unknown field `Pools`, expected `pools`", Some("pools")),
            ("backends[0]: unknown variant `nsf`, expected one of `image`, `nfs`", Some("nfs")),
            ("unknown field `capcity`, expected `name` or `capacity`", Some("capacity")),
            ("unknown field `colour`, expected one of `name`, `path`", None),
            ("unknown field `x`, there are no fields", None),
            ("invalid type: map, expected a sequence", None),
        ] {
            let shown = with_nearest(message.to_owned());
            let suffix = expected.map(|word| format!("; did you mean `{word}`?")).unwrap_or_default();
            assert_eq!(shown, format!("{message}{suffix}"));
        }
    }
}

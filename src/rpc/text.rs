//! Text of a caller, for messages.

/// Untrusted or long text, cut to at most `most` bytes between two characters.
pub(super) fn cut(text: &str, most: usize) -> &str {
    let end = (0..=most.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or(0)]
}

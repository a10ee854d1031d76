//! Mount options from the CO: a type that prints names, never values.
//!
//! csi.proto, MountVolume.mount_flags: "This field MAY contain sensitive information. Therefore, the CO and the Plugin MUST NOT leak
//! this information to untrusted entities."

use std::fmt;

/// What stands for a value.
const HIDDEN: &str = "***";
/// Values of so many bytes are hidden wherever they are.
const LONG: usize = 4;

/// The mount options of a request, in the CO's order. `Debug` and `Display` show `noatime,password=***`.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct MountFlags(Vec<String>);

impl MountFlags {
    /// With their values: for the kernel and mount helpers, never for a message.
    pub fn expose(&self) -> &[String] {
        &self.0
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Those of the driver's own, and then these.
    #[must_use]
    pub fn after(&self, own: &[String]) -> MountFlags {
        MountFlags([own, &self.0].concat())
    }

    /// What the kernel or a program printed about these options, without their values. Within a longer word, short values stay:
    /// `1` is in many.
    pub fn redact(&self, text: &str) -> String {
        let values = self.0.iter().filter_map(|option| Some(option.split_once('=')?.1));
        let unquoted = values.clone().filter_map(|value| value.strip_prefix('"')?.strip_suffix('"'));
        let mut values: Vec<&str> = values.chain(unquoted).filter(|value| !value.is_empty()).collect();
        // The longest first: one may be a part of another.
        values.sort_by_key(|value| std::cmp::Reverse(value.len()));
        values.iter().fold(text.to_owned(), |text, value| without(&text, value))
    }
}

/// The text with each occurrence of the value replaced.
fn without(text: &str, value: &str) -> String {
    let (mut result, mut rest, mut before) = (String::new(), text, None);
    while let Some(at) = rest.find(value) {
        let (head, tail) = rest.split_at(at);
        let (found, tail) = tail.split_at(value.len());
        let before_it = head.chars().next_back().or(before);
        let is_word = ![before_it, tail.chars().next()].into_iter().flatten().any(char::is_alphanumeric);
        result.push_str(head);
        result.push_str(if is_word || value.len() >= LONG { HIDDEN } else { found });
        (rest, before) = (tail, found.chars().next_back());
    }
    result + rest
}

/// The name of an option, without its value.
pub fn option_name(option: &str) -> &str {
    option.split('=').next().unwrap_or_default()
}

impl From<Vec<String>> for MountFlags {
    fn from(options: Vec<String>) -> MountFlags {
        MountFlags(options)
    }
}

impl FromIterator<String> for MountFlags {
    fn from_iter<I: IntoIterator<Item = String>>(options: I) -> MountFlags {
        MountFlags(options.into_iter().collect())
    }
}

impl fmt::Display for MountFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, option) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { "," };
            match option.split_once('=') {
                Some((name, _)) => write!(f, "{separator}{name}={HIDDEN}")?,
                None => write!(f, "{separator}{option}")?,
            }
        }
        Ok(())
    }
}

impl fmt::Debug for MountFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MountFlags({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags(options: &[&str]) -> MountFlags {
        options.iter().map(|&option| option.to_owned()).collect()
    }

    #[test]
    fn names_are_printed_and_values_are_not() {
        let flags = flags(&["noatime", "password=hunter2", "context=\"u:r,c1=x\""]);
        assert_eq!(flags.to_string(), "noatime,password=***,context=***");
        assert_eq!(format!("{flags:?}"), "MountFlags(noatime,password=***,context=***)");
        assert_eq!(option_name("password=a=b"), "password");
        assert_eq!(flags.after(&["nodev".to_owned()]).expose()[..2], ["nodev", "noatime"]);
    }

    #[test]
    fn output_of_others_is_redacted_word_by_word() {
        let flags = flags(&["password=hunter2", "user=hunter", "size=1", "context=\"a:b,c\"", "empty=", "ro"]);
        for (text, expected) in [
            ("ext4: Unknown parameter 'password'", "ext4: Unknown parameter 'password'"),
            ("bad option password=hunter2,user=hunter", "bad option password=***,user=***"),
            ("hunter2", "***"),
            ("hunter25 xhunter2 hunter2hunter2", "***5 x*** ******"),
            ("Bad value for 'size': 1 of 11, 1", "Bad value for 'size': *** of 11, ***"),
            ("context a:b,c is none; ro", "context *** is none; ro"),
            ("", ""),
        ] {
            assert_eq!(flags.redact(text), expected);
        }
    }
}

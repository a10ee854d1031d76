//! Which export of which server: texts of users, checked before any of them is a path or an argument.

use std::fmt;
use std::path::Path;

use crate::volume::{Error, Result};

/// The longest path of an export, in bytes.
const LONGEST: usize = 2048;

/// One export of one server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    pub server: String,
    /// Absolute, without a slash at its end unless it is `/`.
    pub path: String,
}

impl Export {
    /// # Errors
    /// `Invalid`, naming `server` or `share`.
    pub fn new(server: &str, share: &str) -> Result<Export> {
        let bare = server.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(server);
        let address = bare.parse::<std::net::IpAddr>().is_ok();
        let name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
        if !address && (server.is_empty() || server.len() > 253 || server.starts_with('-') || !server.bytes().all(name)) {
            return Err(Error::invalid("server", format!("{server:?} is neither a host name nor an address")));
        }
        let refuse = |reason: &str| Err(Error::invalid("share", format!("{share:?} {reason}")));
        let Some(rest) = share.strip_prefix('/') else { return refuse("is not absolute") };
        if share.chars().any(char::is_control) || share.len() > LONGEST {
            return refuse("holds a control character, or is too long");
        }
        let rest = rest.trim_end_matches('/');
        if rest.split('/').any(|part| matches!(part, "." | "..") || (part.is_empty() && !rest.is_empty())) {
            return refuse("has an empty component, . or ..");
        }
        let server = if bare.contains(':') { format!("[{bare}]") } else { bare.to_owned() };
        Ok(Export { server, path: format!("/{rest}") })
    }

    /// As mountinfo shows a mount of `directory` in it; of the export itself where that is empty.
    pub fn source(&self, directory: &Path) -> String {
        let whole = self.to_string();
        if directory.as_os_str().is_empty() {
            return whole;
        }
        format!("{}/{}", whole.trim_end_matches('/'), directory.display())
    }
}

impl fmt::Display for Export {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.server, self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_export_is_shown_as_the_kernel_shows_it() {
        let source = |server: &str, share: &str, directory: &str| {
            Export::new(server, share).map(|export| export.source(Path::new(directory))).expect("sound")
        };
        assert_eq!(source("nfs.example", "/export/", ""), "nfs.example:/export");
        assert_eq!(source("192.0.2.1", "/export", "a/b"), "192.0.2.1:/export/a/b");
        assert_eq!(source("::1", "/", ""), "[::1]:/");
        assert_eq!(source("[::1]", "/", "a"), "[::1]:/a");
    }

    #[test]
    fn source_that_is_no_export_is_named() {
        for (server, share, field) in [
            ("", "/x", "server"),
            ("-o", "/x", "server"),
            ("a b", "/x", "server"),
            ("a:/y", "/x", "server"),
            ("a", "", "share"),
            ("a", "x", "share"),
            ("a", "/x/../y", "share"),
            ("a", "/x//y", "share"),
            ("a", "/x\ny", "share"),
        ] {
            let error = Export::new(server, share).expect_err("refused");
            assert!(matches!(error, Error::Invalid { field: named, .. } if named == field), "{server} {share}: {error}");
        }
    }
}

//! What errors print reads as a sentence: `<operation> <object>: <cause>`. Each kind of error is rendered, and each name of an
//! operation or step in the sources is put before an object.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use longshore::os;
use longshore::volume::{Error, Rollback};

const PREPOSITIONS: [&str; 12] = ["of", "on", "at", "to", "in", "for", "with", "from", "by", "as", "into", "onto"];

/// Panics where a message is garbled.
fn assert_reads(text: &str) {
    assert!(text == text.trim() && !text.contains("  ") && !text.contains("::"), "{text:?}: white space or colons");
    for bad in [" :", " ;", " ,", "( ", "()", " )", ": ;", ":;", " failed for ", " of failed", "\"\"", "None", "Some("] {
        assert!(!text.contains(bad), "{text:?}: has {bad:?}");
    }
    let text = text.replace("was asked for", "was wanted");
    let words: Vec<&str> = text.split_whitespace().collect();
    for pair in words.windows(2) {
        let stands_alone = |word: &str| PREPOSITIONS.contains(&word) || word == "failed";
        let both = PREPOSITIONS.contains(&pair[0]) && (stands_alone(pair[1]) || pair[1].starts_with('('));
        assert!(!both && pair[0] != pair[1], "{text:?}: {} {}", pair[0], pair[1]);
    }
    for word in &words {
        let before = word.trim_end_matches([':', ';', ')', ',']);
        assert!(before.len() == word.len() || !PREPOSITIONS.contains(&before), "{text:?}: {word} has no object");
    }
    assert!(!text.ends_with([':', ';', ',']), "{text:?}: has no end");
    let (operation, cause) = text.split_once(": ").unwrap_or((&text, "."));
    assert!(!operation.is_empty(), "{text:?}: no operation or field");
    assert!(!cause.is_empty(), "{text:?}: no cause");
}

fn io_error() -> io::Error {
    io::Error::from_raw_os_error(libc::EIO)
}

/// One of each variant; the match is there so that a new one is added.
fn kinds() -> Vec<Error> {
    let word = || "volume image:a".to_owned();
    let reason = || "the pool has 3 GiB left".to_owned();
    let all = vec![
        Error::invalid("volume_capability.mount.mount_flags", reason()),
        Error::OutOfRange { field: "capacity_range", reason: reason() },
        Error::volume_not_found(&"image:a".parse().expect("an id")),
        Error::snapshot_not_found(&"image:a".parse().expect("an id")),
        Error::Conflict { object: word(), existing: "ext4".to_owned(), wanted: "xfs".to_owned() },
        Error::InUse { object: word(), by: "process 7 (sh)".to_owned() },
        Error::StillInUse { object: word(), by: "process 7 (sh) uses it".to_owned() },
        Error::WrongNode { object: word(), reason: "it is on node-2".to_owned() },
        Error::NotStaged { volume: "image:a".to_owned(), reason: "stage it first".to_owned() },
        Error::NodeFull { node: "node-1".to_owned(), reason: "26 volumes are attached".to_owned() },
        Error::NoCapacity { place: "pool default".to_owned(), reason: reason() },
        Error::Busy { object: word(), operation: "stage", step: "mkfs /dev/loop3".to_owned(), since: Duration::from_secs(3) },
        Error::InvalidPageToken { token: "x".to_owned() },
        Error::InProgress { object: word(), reason: "its copy has 3 GiB left".to_owned() },
        Error::BackendUnavailable { backend: "nfs".to_owned(), reason: "cannot connect to its TCP port".to_owned() },
        Error::Stale { object: "nas:/a".to_owned(), reason: "its share was mounted anew".to_owned() },
        Error::Throttled { backend: "ec2".to_owned(), reason: "RequestLimitExceeded".to_owned() },
        Error::Denied { object: word(), reason: "UnauthorizedOperation".to_owned() },
        Error::Unsupported { what: "encryption".to_owned(), reason: "it has no devices".to_owned() },
        Error::Unverified { device: "/dev/loop3".to_owned(), reason: "there is data at 4096".to_owned() },
        Error::failed("grow the mounted ext4 on", "/dev/loop9", io_error()),
    ];
    for error in &all {
        match error {
            Error::Invalid { .. }
            | Error::OutOfRange { .. }
            | Error::NotFound { .. }
            | Error::Conflict { .. }
            | Error::InUse { .. }
            | Error::StillInUse { .. }
            | Error::WrongNode { .. }
            | Error::NotStaged { .. }
            | Error::NodeFull { .. }
            | Error::NoCapacity { .. }
            | Error::Busy { .. }
            | Error::InvalidPageToken { .. }
            | Error::InProgress { .. }
            | Error::BackendUnavailable { .. }
            | Error::Stale { .. }
            | Error::Throttled { .. }
            | Error::Denied { .. }
            | Error::Unsupported { .. }
            | Error::Unverified { .. }
            | Error::Failed { .. } => {}
        }
    }
    all
}

/// The same of what the kernel and programs say.
fn of_os() -> Vec<os::Error> {
    let (object, status) = (|| "/dev/loop3".to_owned(), || "exit status 1".to_owned());
    let all = vec![
        os::Error::io("sync the file system at", "/k/s", io_error()),
        os::Error::Tool { tool: "mkfs.ext4", object: object(), status: status(), output: "no room".to_owned() },
        os::Error::Tool { tool: "mkfs.ext4", object: object(), status: status(), output: String::new() },
        os::Error::ToolMissing { tool: "mkfs.ext4", package: "e2fsprogs" },
        os::Error::Deadline { action: "ask for the state of", object: "/s/nfs/mount".to_owned(), after: Duration::from_secs(3) },
        os::Error::Path { path: "/k/s".into(), reason: "leads over a link".to_owned() },
        os::Error::Unexpected { object: "mount option bind".to_owned(), reason: "says how to mount".to_owned() },
    ];
    for error in &all {
        match error {
            os::Error::Io { .. }
            | os::Error::Tool { .. }
            | os::Error::ToolMissing { .. }
            | os::Error::Deadline { .. }
            | os::Error::Path { .. }
            | os::Error::Unexpected { .. } => {}
        }
    }
    all
}

#[test]
fn every_kind_of_error_reads_as_a_sentence() {
    for error in kinds().into_iter().chain(of_os().into_iter().map(Error::from)) {
        assert_reads(&error.to_string());
        assert_reads(&error.rolled_back().to_string());
    }
    for error in kinds() {
        let left = error.leaving("/k/s is still mounted");
        assert!(matches!(&left, Error::Failed { rollback: Rollback::Incomplete(_), .. }));
        assert_reads(&left.to_string());
    }
    for error in of_os() {
        assert_reads(&error.to_string());
    }
    let grown = Error::failed("grow the mounted ext4 on", "/dev/loop9", io_error()).rolled_back().to_string();
    assert_eq!(grown, "grow the mounted ext4 on /dev/loop9: Input/output error (os error 5) (rolled back)");
    let made = Error::from(os::Error::Tool {
        tool: "mkfs.ext4",
        object: "/dev/loop9".to_owned(),
        status: "exit status 1".to_owned(),
        output: "no room".to_owned(),
    });
    let said = made.rolled_back().to_string();
    assert_eq!(said, "mkfs.ext4 /dev/loop9: exit status 1: no room (rolled back)", "each part once");
}

fn sources(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).expect("a directory").map(|entry| entry.expect("an entry").path());
    let inner = entries.flat_map(|path| if path.is_dir() { sources(&path) } else { vec![path] });
    inner.filter(|path| path.extension().is_some_and(|end| end == "rs")).collect()
}

/// The first argument of each call of a function of this name, where it is a text, with what comes after it.
fn calls<'c>(code: &'c str, function: &str) -> Vec<(&'c str, &'c str)> {
    let whole = |at: usize| !code[..at].ends_with(|letter: char| letter.is_alphanumeric() || letter == '_');
    let found = code.match_indices(function).filter(|(at, _)| whole(*at));
    let texts = found.filter_map(|(at, _)| {
        let arguments = code[at + function.len()..].trim_start().strip_prefix('"')?;
        arguments.split_once('"')
    });
    texts.collect()
}

#[test]
fn every_operation_in_the_sources_reads_as_a_sentence_with_its_object() {
    let mut operations = BTreeSet::new();
    for path in sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src")) {
        let code = fs::read_to_string(&path).expect("a source");
        let production = code.split("#[cfg(test)]").next().unwrap_or_default();
        for function in ["io(", "failed(", "fail(", "step(", "action: ", "step: "] {
            for (operation, rest) in calls(production, function) {
                operations.insert(operation.to_owned());
                // An object that is written out is a noun, not nothing.
                let object = rest.trim_start_matches([',', ' ', '\n']);
                for nothing in ["String::new()", "\"\"", "\"it\"", "\" "] {
                    assert!(!object.starts_with(nothing), "{}: {operation:?} has no object: {nothing}", path.display());
                }
            }
        }
    }
    assert!(operations.len() > 150, "the test has stopped finding what it looks for: {operations:?}");
    for operation in &operations {
        assert!(!operation.contains(['(', ')', ':', ';', '{']), "{operation:?}: what explains stands after the object");
        assert!(operation.chars().next().is_some_and(char::is_alphabetic), "{operation:?}: begins with a verb");
        let operation: &'static str = operation.clone().leak();
        assert_reads(&Error::failed(operation, "/dev/loop9", io_error()).to_string());
        assert_reads(&Error::from(os::Error::io(operation, "/dev/loop9", io_error())).rolled_back().to_string());
    }
}

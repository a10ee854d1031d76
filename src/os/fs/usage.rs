//! How full a mounted file system is (statvfs(3)).

use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::time::Duration;

use super::*;
use crate::os::process::{Run, Tool, run};

/// In bytes and inodes. Inode figures are `None` where the file system makes inodes as needed (btrfs says 0).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    pub total: u64,
    /// For unprivileged users.
    pub available: u64,
    pub used: u64,
    pub inodes: Option<(u64, u64, u64)>,
}

/// Of the file system of an open descriptor. Inodes are (total, available, used).
///
/// # Errors
/// `Io` of fstatvfs(3).
pub fn usage(mounted: BorrowedFd<'_>) -> Result<Usage> {
    let stat = rustix::fs::fstatvfs(mounted)
        .map_err(|errno| Error::io("measure file system of", format!("descriptor {}", mounted.as_raw_fd()), errno))?;
    let bytes = |blocks: u64| blocks.saturating_mul(stat.f_frsize);
    let inodes = (stat.f_files > 0).then(|| (stat.f_files, stat.f_ffree, stat.f_files.saturating_sub(stat.f_ffree)));
    Ok(Usage {
        total: bytes(stat.f_blocks),
        available: bytes(stat.f_bavail),
        used: bytes(stat.f_blocks.saturating_sub(stat.f_bfree)),
        inodes,
    })
}

/// At most so many paths for one run of stat(1): what is kept of a program's output is limited.
const AT_ONCE: usize = 256;
/// Blocks, their size, free ones, those for all users, inodes and free ones of the file system.
const FORMAT: &str = "%b %S %f %a %c %d %n";

/// Of the file systems at these paths. Asked by stat(1), which can be left behind where a file system gives no answer: a call of
/// our own would hang with it, and this process at its end. A path at which there is nothing is left out.
///
/// # Errors
/// `Deadline` where 256 of them were not answered within it; `ToolMissing`; `Io` where the program could not be run.
pub fn usages(paths: &[PathBuf], deadline: Duration) -> Result<HashMap<PathBuf, Usage>> {
    let tool = Tool { name: "stat", package: "coreutils" };
    let mut found = HashMap::new();
    for paths in paths.chunks(AT_ONCE) {
        let mut arguments = ["--file-system", "--format", FORMAT, "--"].map(str::to_owned).to_vec();
        arguments.extend(paths.iter().filter_map(|path| path.to_str().map(str::to_owned)));
        let output = run(Run { tool, arguments, keep: Vec::new(), stdin: Vec::new(), deadline })?;
        found.extend(output.stdout.lines().filter_map(parse));
    }
    Ok(found)
}

fn parse(line: &str) -> Option<(PathBuf, Usage)> {
    let mut fields = line.splitn(7, ' ');
    let mut number = || fields.next()?.parse::<u64>().ok();
    let (blocks, size, free, available, inodes, free_inodes) = (number()?, number()?, number()?, number()?, number()?, number()?);
    let usage = Usage {
        total: blocks.saturating_mul(size),
        available: available.saturating_mul(size),
        used: blocks.saturating_sub(free).saturating_mul(size),
        inodes: (inodes > 0).then(|| (inodes, free_inodes, inodes.saturating_sub(free_inodes))),
    };
    Some((fields.next()?.into(), usage))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::testing::{Scratch, in_namespace};
    use super::*;

    #[test]
    fn figures_are_those_of_the_file_system() {
        in_namespace(|| {
            for (fstype, inodes) in [("ext4", true), ("xfs", true), ("btrfs", false)] {
                let Some(scratch) = Scratch::mounted(fstype, 400 << 20) else { return };
                let file = std::fs::File::create_new(scratch.path().join("file")).unwrap();
                let directory = std::fs::File::open(scratch.path()).unwrap();
                let before = usage(directory.as_fd()).unwrap();
                std::os::unix::fs::FileExt::write_all_at(&file, &vec![1; 10 << 20], 0).unwrap();
                file.sync_all().unwrap();
                let after = usage(directory.as_fd()).unwrap();
                let asked = usages(&[scratch.path().to_owned(), "/no/such place".into()], Duration::from_secs(30)).unwrap();
                assert_eq!(asked, HashMap::from([(scratch.path().to_owned(), after)]), "{fstype}");
                assert!((200 << 20..=400 << 20).contains(&after.total), "{fstype}: {after:?}");
                assert!(after.used >= before.used + (10 << 20), "{fstype}: {before:?} {after:?}");
                assert!(after.available <= before.available - (10 << 20), "{fstype}: {before:?} {after:?}");
                assert_eq!(after.inodes.is_some(), inodes, "{fstype}");
                assert!(after.inodes.is_none_or(|(total, available, used)| total == available + used && used > 0));
            }
        });
    }
}

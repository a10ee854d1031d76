//! /proc/self/mountinfo, our own parser: over bytes, octal escapes undone (proc_pid_mountinfo(5)).

use std::collections::HashMap;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use super::{Error, Result};

pub use nodes::of_dev;

mod nodes;

/// Of the thread, which is the process's unless it has unshared its namespace.
const MOUNTINFO: &str = "/proc/thread-self/mountinfo";

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    pub id: u64,
    pub parent: u64,
    /// Major and minor of the file system's device.
    pub device: (u32, u32),
    /// What of the file system is mounted: `/`, or a directory or file in it for a bind mount. If that was removed since,
    /// it ends in `//deleted`.
    pub root: PathBuf,
    pub mount_point: PathBuf,
    /// Options of this mount: `ro`, `nosuid`.
    pub options: Vec<String>,
    /// `shared:1`, `master:2`, `propagate_from:`, `unbindable`.
    pub propagation: Vec<String>,
    pub fstype: String,
    pub source: PathBuf,
    /// Options of the file system.
    pub super_options: Vec<String>,
    /// What [`Mount::block_node`] found when it was first asked.
    pub node: OnceLock<Option<(u32, u32)>>,
}

impl Mount {
    /// Whether writes are refused by the mount or by the file system.
    pub fn is_read_only(&self) -> bool {
        self.options.iter().chain(&self.super_options).any(|option| option == "ro")
    }

    /// Whether what is mounted was removed from its file system since (`//deleted`).
    pub fn is_removed(&self) -> bool {
        self.root.as_os_str().as_bytes().ends_with(b"//deleted")
    }

    /// One line without its newline, or `None`.
    fn parse(line: &[u8]) -> Option<Mount> {
        // A field may be empty (a source of ""), so every space counts.
        let mut fields = line.split(|byte| *byte == b' ');
        let id = number(fields.next()?)?;
        let parent = number(fields.next()?)?;
        let mut device = fields.next()?.split(|byte| *byte == b':');
        let device = match (device.next(), device.next(), device.next()) {
            (Some(major), Some(minor), None) => (number(major)?, number(minor)?),
            _ => return None,
        };
        let root = path(fields.next()?);
        let mount_point = path(fields.next()?);
        let options = options(fields.next()?);
        let mut propagation = Vec::new();
        loop {
            match fields.next()? {
                b"-" => break,
                field => propagation.push(text(field)),
            }
        }
        let fstype = text(fields.next()?);
        let source = path(fields.next()?);
        // To the end of the line: some file systems do not escape the spaces in their options.
        let rest: Vec<&[u8]> = fields.collect();
        let super_options = self::options(&rest.join(&b' '));
        let node = OnceLock::new();
        Some(Mount { id, parent, device, root, mount_point, options, propagation, fstype, source, super_options, node })
    }
}

/// All mounts of this mount namespace, in the kernel's order.
#[derive(Clone, Debug, Default)]
pub struct MountTable {
    mounts: Vec<Mount>,
}

impl MountTable {
    /// Reads the mountinfo of the calling thread.
    ///
    /// # Errors
    /// `Io`; `Unexpected` where a line is not what proc_pid_mountinfo(5) says: then no mount can be distinguished from none.
    pub fn read() -> Result<MountTable> {
        let text = std::fs::read(MOUNTINFO).map_err(|error| Error::io("read", MOUNTINFO, error))?;
        MountTable::parse(&text)
    }

    /// Parses the text of a mountinfo file.
    ///
    /// # Errors
    /// `Unexpected`, naming the line.
    pub fn parse(text: &[u8]) -> Result<MountTable> {
        let lines = text.split(|byte| *byte == b'\n').enumerate().filter(|(_, line)| !line.is_empty());
        let mounts = lines.map(|(index, line)| {
            Mount::parse(line).ok_or_else(|| Error::Unexpected {
                object: "mountinfo".to_owned(),
                reason: format!("line {} is no mount: {}", index + 1, line.escape_ascii()),
            })
        });
        Ok(MountTable { mounts: mounts.collect::<Result<_>>()? })
    }

    /// What is mounted exactly at `path`: none, one, or a stack, the topmost last. It is what one finds who goes there: a mount
    /// at the same path that lies hidden below a mount on some directory above is not among them ([`MountTable::of_device`] shows it).
    ///
    /// The order of the lines does not say which mount is on top (since Linux 6.8 they are sorted by id, and a detached
    /// mount may be older than what it is put upon); the parents do.
    pub fn at(&self, path: &Path) -> Vec<&Mount> {
        stack_at(path, self.mounts.iter().filter(|mount| path.starts_with(&mount.mount_point)).collect())
    }

    /// For many questions to one table.
    pub fn index(&self) -> Index<'_> {
        let mut by_point: HashMap<&Path, Vec<&Mount>> = HashMap::new();
        for mount in &self.mounts {
            by_point.entry(&mount.mount_point).or_default().push(mount);
        }
        Index { by_point }
    }

    /// Mounts strictly below `path`.
    pub fn below<'a>(&'a self, path: &'a Path) -> impl Iterator<Item = &'a Mount> {
        self.mounts.iter().filter(move |mount| mount.mount_point.starts_with(path) && mount.mount_point != path)
    }

    /// Mounts of one file system, wherever they are.
    pub fn of_device(&self, device: (u32, u32)) -> impl Iterator<Item = &Mount> {
        self.mounts.iter().filter(move |mount| mount.device == device)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Mount> {
        self.mounts.iter()
    }

    /// As if the mount with this id showed the node of the block device `number`.
    #[cfg(test)]
    pub fn with_node(self, id: u64, number: (u32, u32)) -> MountTable {
        let mount = self.mounts.iter().find(|mount| mount.id == id).expect("a mount");
        mount.node.set(Some(number)).expect("nobody asked before");
        self
    }
}

/// The mounts of a table by their places: a question costs as much as its path is deep, not as much as there are mounts.
#[derive(Debug)]
pub struct Index<'a> {
    by_point: HashMap<&'a Path, Vec<&'a Mount>>,
}

impl<'a> Index<'a> {
    /// As [`MountTable::at`].
    pub fn at(&self, path: &Path) -> Vec<&'a Mount> {
        if !self.by_point.contains_key(path) {
            return Vec::new();
        }
        stack_at(path, path.ancestors().filter_map(|place| self.by_point.get(place)).flatten().copied().collect())
    }

    /// The mount that `path` lies in: the topmost at the deepest place on the way to it.
    pub fn holder(&self, path: &Path) -> Option<&'a Mount> {
        path.ancestors().find_map(|place| self.at(place).last().copied())
    }
}

/// What one finds at `path`, `on_the_way` being all mounts at it or at a directory above.
fn stack_at<'a>(path: &Path, mut on_the_way: Vec<&'a Mount>) -> Vec<&'a Mount> {
    let mut stack: Vec<&'a Mount> = Vec::new();
    while let Some(next) = next_crossed(&on_the_way, stack.last().copied()) {
        // What has been crossed is never crossed again, so that no made-up table can keep us here.
        on_the_way.retain(|mount| mount.id != next.id);
        if stack.last().is_some_and(|below| below.mount_point != next.mount_point) {
            stack.clear();
        }
        stack.push(next);
    }
    stack.retain(|mount| mount.mount_point == path);
    stack
}

/// The mount that one comes to next on the way from `current` (none: from outside) down a path, `candidates` being the mounts
/// on that path. The first that is met is that with the shortest mount point.
fn next_crossed<'a>(candidates: &[&'a Mount], current: Option<&Mount>) -> Option<&'a Mount> {
    let is_next = |mount: &&&Mount| match current {
        Some(current) => mount.parent == current.id,
        // The root of the namespace, or what hangs on a mount that our root directory does not show.
        None => mount.parent == mount.id || candidates.iter().all(|other| other.id != mount.parent),
    };
    candidates.iter().filter(is_next).min_by_key(|mount| mount.mount_point.as_os_str().len()).copied()
}

fn number<N: std::str::FromStr>(field: &[u8]) -> Option<N> {
    // FromStr takes a leading +, which the kernel never writes.
    if !field.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(field).ok()?.parse().ok()
}

fn path(field: &[u8]) -> PathBuf {
    OsString::from_vec(unescape(field)).into()
}

fn text(field: &[u8]) -> String {
    String::from_utf8(unescape(field)).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

/// A list of options, as it stands in mountinfo.
pub(super) fn options(field: &[u8]) -> Vec<String> {
    field.split(|byte| *byte == b',').filter(|option| !option.is_empty()).map(text).collect()
}

/// Undoes `\ooo`, three octal digits for one byte. Any other backslash stands for itself.
fn unescape(field: &[u8]) -> Vec<u8> {
    if !field.contains(&b'\\') {
        return field.to_vec();
    }
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, after)) = rest.split_first() {
        match rest {
            [b'\\', high @ b'0'..=b'3', middle @ b'0'..=b'7', low @ b'0'..=b'7', after @ ..] => {
                plain.push((high - b'0') << 6 | (middle - b'0') << 3 | (low - b'0'));
                rest = after;
            }
            _ => {
                plain.push(*first);
                rest = after;
            }
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use proptest::prelude::*;

    use super::*;

    /// As the kernel writes it: space, tab, newline, backslash and # are escaped.
    fn escape(bytes: &[u8], more: &[u8]) -> Vec<u8> {
        let mut text = Vec::new();
        for byte in bytes {
            if b" \t\n\\#".contains(byte) || more.contains(byte) {
                text.extend(format!("\\{byte:03o}").bytes());
            } else {
                text.push(*byte);
            }
        }
        text
    }

    fn line(mount: &Mount) -> Vec<u8> {
        let list =
            |options: &[String]| options.iter().map(|option| escape(option.as_bytes(), b",")).collect::<Vec<_>>().join(&b',');
        let mut fields = vec![
            mount.id.to_string().into_bytes(),
            mount.parent.to_string().into_bytes(),
            format!("{}:{}", mount.device.0, mount.device.1).into_bytes(),
            escape(mount.root.as_os_str().as_bytes(), b""),
            escape(mount.mount_point.as_os_str().as_bytes(), b""),
            list(&mount.options),
        ];
        fields.extend(mount.propagation.iter().map(|tag| tag.clone().into_bytes()));
        fields.push(b"-".to_vec());
        fields.push(escape(mount.fstype.as_bytes(), b""));
        fields.push(escape(mount.source.as_os_str().as_bytes(), b""));
        fields.push(list(&mount.super_options));
        fields.join(&b' ')
    }

    fn any_path() -> impl Strategy<Value = PathBuf> {
        prop::collection::vec(1u8.., 0..24).prop_map(|mut bytes| {
            bytes.insert(0, b'/');
            OsString::from_vec(bytes).into()
        })
    }

    fn any_mount() -> impl Strategy<Value = Mount> {
        let options = || prop::collection::vec("[^\0]{1,12}", 1..4);
        let numbers = (any::<u64>(), any::<u64>(), any::<(u32, u32)>());
        let rest = (prop::collection::vec("(shared|master):[0-9]{1,3}", 0..3), "[a-z.]{1,8}");
        (numbers, any_path(), any_path(), any_path(), options(), options(), rest).prop_map(
            |((id, parent, device), root, mount_point, source, options, super_options, (propagation, fstype))| Mount {
                id,
                parent,
                device,
                root,
                mount_point,
                options,
                propagation,
                fstype,
                source,
                super_options,
                node: OnceLock::new(),
            },
        )
    }

    proptest! {
        #[test]
        fn escaped_mountinfo_is_read_back(mounts in prop::collection::vec(any_mount(), 0..4)) {
            let mut text = Vec::new();
            for mount in &mounts {
                text.extend(line(mount));
                text.push(b'\n');
            }
            let table = MountTable::parse(&text).unwrap();
            prop_assert_eq!(&table.mounts, &mounts);
            // Equal paths may differ in bytes (`a//b`); these may not.
            for (read, written) in table.mounts.iter().zip(&mounts) {
                prop_assert_eq!(read.root.as_os_str(), written.root.as_os_str());
                prop_assert_eq!(read.mount_point.as_os_str(), written.mount_point.as_os_str());
            }
        }

        #[test]
        fn no_bytes_make_it_panic(text in prop::collection::vec(any::<u8>(), 0..200), path in any_path()) {
            if let Ok(table) = MountTable::parse(&text) {
                table.at(&path);
            }
        }

        #[test]
        fn malformed_mountinfo_does_not_panic(text in "([0-9]{1,2} [0-9]{1,2} 0:1 /\\\\?[0-8]{0,4} (/|/a|/a/b) rw - x y ?\n){0,8}") {
            if let Ok(table) = MountTable::parse(text.as_bytes()) {
                for path in ["/", "/a", "/a/b"] {
                    prop_assert_eq!(table.at(Path::new(path)), table.index().at(Path::new(path)));
                }
            }
        }
    }

    fn table(text: &str) -> MountTable {
        MountTable::parse(text.as_bytes()).unwrap()
    }

    fn ids(mounts: &[&Mount]) -> Vec<u64> {
        mounts.iter().map(|mount| mount.id).collect()
    }

    #[test]
    fn every_field_is_read() {
        let table = table(
            "36 35 98:0 /mnt1//deleted /mnt\\0402 rw,noatime master:1 propagate_from:3 - ext3 /dev/root rw,errors=continue\n",
        );
        let mount = table.iter().next().unwrap();
        assert_eq!((mount.id, mount.parent, mount.device), (36, 35, (98, 0)));
        assert_eq!(mount.root.as_os_str(), "/mnt1//deleted");
        assert_eq!(mount.mount_point, Path::new("/mnt 2"));
        assert_eq!(mount.options, ["rw", "noatime"]);
        assert_eq!(mount.propagation, ["master:1", "propagate_from:3"]);
        assert_eq!((mount.fstype.as_str(), mount.source.as_path()), ("ext3", Path::new("/dev/root")));
        assert_eq!(mount.super_options, ["rw", "errors=continue"]);
        assert!(!mount.is_read_only() && mount.is_removed());
    }

    #[test]
    fn read_only_is_said_by_either() {
        assert!(table("1 0 0:1 / / ro - a b rw\n").mounts[0].is_read_only());
        assert!(table("1 0 0:1 / / rw - a b ro,x=1\n").mounts[0].is_read_only());
        assert!(!table("1 0 0:1 / / rw - a b rw,errors=remount-ro\n").mounts[0].is_read_only());
    }

    #[test]
    fn oddities_of_real_kernels_are_read() {
        // An empty source, spaces in the options of the file system, no options of it at all.
        assert_eq!(table("1 0 0:1 / / rw - fuse  rw").mounts[0].source.as_os_str(), "");
        assert_eq!(table("1 0 0:1 / / rw - 9p x rw,a=b c").mounts[0].super_options, ["rw", "a=b c"]);
        assert!(table("1 0 0:1 / / rw - 9p x").mounts[0].super_options.is_empty());
        assert_eq!(table("1 0 0:1 / /\\400\\08\\ rw - a b rw").mounts[0].mount_point.as_os_str(), "/\\400\\08\\");
    }

    #[test]
    fn a_bad_line_is_named() {
        let good = "1 0 0:1 / / rw - a b rw\n";
        for bad in
            ["x", "1 0 0:1 / / rw a b rw", "1 0 0 / / rw - a b rw", "1 0 0:1:2 / / rw - a b rw", "+1 0 0:1 / / rw - a b rw"]
        {
            let error = MountTable::parse(format!("{good}{bad}\n{good}").as_bytes()).unwrap_err();
            assert!(error.to_string().contains("line 2"), "{error}");
        }
    }

    #[test]
    fn stack_is_ordered_by_parents_not_by_lines() {
        let table = table(
            "20 1 0:1 / / rw - a b rw\n\
             31 33 0:5 / /a rw - a b rw\n\
             32 20 0:6 / /a rw - a b rw\n\
             33 32 0:7 / /a rw - a b rw\n\
             40 31 0:8 / /a/b rw - a b rw\n\
             41 20 0:9 / /ab rw - a b rw\n",
        );
        assert_eq!(ids(&table.at(Path::new("/a"))), [32, 33, 31]);
        assert_eq!(ids(&table.at(Path::new("/a/"))), [32, 33, 31]);
        assert_eq!(ids(&table.at(Path::new("/"))), [20]);
        assert_eq!(ids(&table.at(Path::new("/a/b"))), [40]);
        assert!(table.at(Path::new("/a/b/c")).is_empty());
        assert_eq!(ids(&table.below(Path::new("/a")).collect::<Vec<_>>()), [40]);
        assert_eq!(ids(&table.of_device((0, 9)).collect::<Vec<_>>()), [41]);
    }

    #[test]
    fn hidden_mount_is_not_at_its_path() {
        // /a/b was mounted, then something over /a.
        let hidden = "20 1 0:1 / / rw - a b rw\n21 20 0:5 / /a/b rw - a b rw\n22 20 0:6 / /a rw - a b rw\n";
        assert!(table(hidden).at(Path::new("/a/b")).is_empty());
        // And /a/b again, in there.
        let again = format!("{hidden}23 22 0:7 / /a/b rw - a b rw\n");
        assert_eq!(ids(&table(&again).at(Path::new("/a/b"))), [23]);
        assert!(table(hidden).index().at(Path::new("/a/b")).is_empty());
        assert_eq!(table(hidden).index().holder(Path::new("/a/b/c")).map(|mount| mount.id), Some(22));
    }

    #[test]
    fn a_root_that_is_no_mount_or_its_own_parent_is_fine() {
        assert_eq!(ids(&table("1 1 0:1 / / rw - rootfs rootfs rw\n2 1 0:2 / /a rw - a b rw\n").at(Path::new("/a"))), [2]);
        assert_eq!(ids(&table("7 3 0:2 / /a rw - a b rw\n").at(Path::new("/a"))), [7]);
    }

    #[test]
    fn mountinfo_of_this_machine_is_read() {
        let table = MountTable::read().unwrap();
        assert_eq!(table.at(Path::new("/proc")).last().unwrap().fstype, "proc");
    }

    #[test]
    fn ten_thousand_mounts_take_no_time() {
        let mut text = String::from("1 1 0:1 / / rw - rootfs rootfs rw\n");
        for n in 2..10_000 {
            writeln!(text, "{n} 1 7:{n} / /var/lib/kubelet/pods/{n}/volumes/kubernetes.io~csi/pvc-{n}/mount rw,relatime shared:{n} - ext4 /dev/loop{n} rw").unwrap();
        }
        let begun = std::time::Instant::now();
        let table = table(&text);
        let found = table.at(Path::new("/var/lib/kubelet/pods/77/volumes/kubernetes.io~csi/pvc-77/mount")).len();
        assert_eq!(found, 1);
        // Some 20 ms without optimisation; what is caught here is a quadratic parser.
        assert!(begun.elapsed() < std::time::Duration::from_secs(2), "{:?}", begun.elapsed());
    }
}

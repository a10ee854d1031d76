//! Control groups, version 2: how much the processes of a pod read and write of a device (Documentation/admin-guide/cgroup-v2.rst, "IO").

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::volume::{IoLimit, IoLimits};

use super::{Error, Result};

const ROOT: &str = "/sys/fs/cgroup";
/// CGROUP2_SUPER_MAGIC, statfs(2).
const CGROUP2: i64 = 0x6367_7270;
/// Directories below the root, at most: `/<cgroup root of the kubelet>/kubepods.slice/kubepods-burstable.slice/...-pod<uid>.slice`.
const DEEPEST: usize = 6;

/// That devices can be limited here.
///
/// # Errors
/// `Unexpected` where they cannot, with the remedy.
pub fn check_io() -> Result<()> {
    let unusable = |reason: &str| Err(Error::Unexpected { object: ROOT.to_owned(), reason: reason.to_owned() });
    let found = rustix::fs::statfs(ROOT).map_err(|errno| Error::io("statfs", ROOT, errno))?;
    if found.f_type != CGROUP2 {
        return unusable(
            "it is not cgroup v2, which alone limits what a pod reads and writes; boot with systemd.unified_cgroup_hierarchy=1",
        );
    }
    let path = Path::new(ROOT).join("cgroup.controllers");
    let controllers = fs::read_to_string(&path).map_err(|error| Error::io("read", &path, error))?;
    if controllers.split_whitespace().any(|controller| controller == "io") {
        return Ok(());
    }
    unusable("the kernel has no io controller of cgroup v2 (CONFIG_BLK_CGROUP, CONFIG_BLK_DEV_THROTTLING)")
}

/// The control group that the kubelet has made for a pod.
pub fn of_pod(uid: &str) -> Result<Option<PathBuf>> {
    find(Path::new(ROOT), uid, DEEPEST)
}

fn find(directory: &Path, uid: &str, depth: usize) -> Result<Option<PathBuf>> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        // Control groups come and go.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::io("list control groups", directory, error)),
    };
    let mut below = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|error| Error::io("list control groups", directory, error))?;
        if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            continue;
        }
        match pod_named(&entry.file_name().to_string_lossy()) {
            Some(pod) if pod == uid => return Ok(Some(entry.path())),
            Some(_) => {}
            // Of users, who name groups there as they like.
            None if entry.file_name() == "user.slice" => {}
            None => below.push(entry.path()),
        }
    }
    if depth > 1 {
        for directory in below {
            if let Some(found) = find(&directory, uid, depth - 1)? {
                return Ok(Some(found));
            }
        }
    }
    Ok(None)
}

/// The UID of the pod whose control group this is, by its name under either of the kubelet's cgroup drivers: `pod<uid>`, or
/// `kubepods-burstable-pod<uid with _ for ->.slice`.
pub(super) fn pod_named(name: &str) -> Option<String> {
    const UID: usize = 36;
    let (_, uid) = name.strip_suffix(".slice").unwrap_or(name).rsplit_once("pod")?;
    let is_uid = uid.len() == UID && uid.bytes().all(|byte| byte.is_ascii_hexdigit() || b"-_".contains(&byte));
    is_uid.then(|| uid.replace('_', "-"))
}

/// What limits a device in a control group, as `io.max` has it; `None` where nothing does.
pub fn shown(group: &Path, (major, minor): (u32, u32)) -> Result<Option<String>> {
    let path = group.join("io.max");
    let device = format!("{major}:{minor} ");
    match fs::read_to_string(&path) {
        Ok(shown) => Ok(shown.lines().find_map(|line| line.strip_prefix(&device)).map(str::to_owned)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::io("read", &path, error)),
    }
}

/// Limits what the processes of a control group read and write of a device, which is no partition, and sees that the kernel has it so.
///
/// # Errors
/// `Unexpected` where the group has no `io.max`, or the kernel shows something else afterwards.
pub fn limit(group: &Path, number: (u32, u32), limits: &IoLimits) -> Result<()> {
    let path = group.join("io.max");
    let wanted = words(limits);
    let device = format!("{}:{}", number.0, number.1);
    // No `O_CREAT`: where the controller is off there is no such file.
    let write = |line: &str| {
        fs::File::options().write(true).open(&path).and_then(|mut file| io::Write::write_all(&mut file, line.as_bytes()))
    };
    match write(&format!("{device} {}", wanted.join(" "))) {
        Err(error) if error.kind() == io::ErrorKind::NotFound && group.exists() => {
            let reason =
                "it has no io.max: the io controller is off for it (see cgroup.subtree_control of the group above), or the \
                          kernel is without CONFIG_BLK_DEV_THROTTLING"
                    .to_owned();
            return Err(Error::Unexpected { object: format!("control group {}", group.display()), reason });
        }
        written => written.map_err(|error| Error::io("limit the IO of", &path, error))?,
    }
    let shown = shown(group, number)?;
    // A device without any limit is not listed.
    let line = shown.as_deref().unwrap_or("rbps=max wbps=max riops=max wiops=max");
    match wanted.iter().find(|word| !line.split(' ').any(|shown| shown == word.as_str())) {
        Some(word) => {
            let reason = format!("{word} was written for device {device}, and it shows {line:?}");
            Err(Error::Unexpected { object: path.display().to_string(), reason })
        }
        None => Ok(()),
    }
}

fn words(limits: &IoLimits) -> Vec<String> {
    let of = |key: &str, limit: Option<IoLimit>| limit.map(|limit| format!("{key}={limit}"));
    [
        of("rbps", limits.read_bandwidth),
        of("wbps", limits.write_bandwidth),
        of("riops", limits.read_iops),
        of("wiops", limits.write_iops),
    ]
    .into_iter()
    .flatten()
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pod_is_found_under_either_cgroup_driver() {
        let root = tempfile::tempdir().expect("a directory");
        let uid = |last: u32| format!("0b9c3b8e-6d2f-4a55-9a53-2f9d1c6f7e{last:02}");
        let groups = [
            format!("kubepods/burstable/pod{}/abcdef", uid(1)),
            format!("kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{}.slice", uid(2).replace('-', "_")),
            format!("kubelet/kubepods/pod{}", uid(3)),
            format!("system.slice/pod{}x/pod{}", uid(4), uid(5)),
            format!("user.slice/user-1000.slice/user@1000.service/pod{}", uid(7)),
        ];
        for group in &groups {
            fs::create_dir_all(root.path().join(group)).expect("a group");
        }
        let found = |last| {
            find(root.path(), &uid(last), DEEPEST)
                .expect("readable")
                .map(|path| path.strip_prefix(root.path()).expect("below").to_owned())
        };
        assert_eq!(found(1).as_deref(), Path::new(&groups[0]).parent());
        assert_eq!(found(2).as_deref(), Some(Path::new(&groups[1])));
        assert_eq!(found(3).as_deref(), Some(Path::new(&groups[2])));
        assert_eq!((found(4), found(6), found(7)), (None, None, None));
        assert_eq!(found(5).as_deref(), Some(Path::new(&groups[3])));
    }

    #[test]
    fn group_without_the_controller_is_not_limited() {
        let root = tempfile::tempdir().expect("a directory");
        let limits = IoLimits { write_iops: Some(IoLimit::Max), ..IoLimits::default() };
        let error = limit(root.path(), (7, 0), &limits).expect_err("it has no io.max").to_string();
        assert!(error.contains("io controller") && error.contains("subtree_control"), "{error}");
        assert!(!root.path().join("io.max").exists());
        assert_eq!(shown(root.path(), (7, 0)).expect("nothing"), None);
    }

    #[test]
    fn what_the_kernel_does_not_take_over_is_an_error() {
        let root = tempfile::tempdir().expect("a directory");
        let path = root.path().join("io.max");
        let limits = IoLimits { write_iops: Some("120".to_owned().try_into().expect("a limit")), ..IoLimits::default() };
        fs::write(&path, "").expect("a file");
        limit(root.path(), (7, 1), &limits).expect("it shows what was written");
        assert_eq!(fs::read_to_string(&path).expect("a file"), "7:1 wiops=120");
        assert_eq!(shown(root.path(), (7, 1)).expect("a file").as_deref(), Some("wiops=120"));
        assert_eq!(shown(root.path(), (7, 0)).expect("a file"), None);
        // It takes everything and shows nothing.
        fs::remove_file(&path).and_then(|()| std::os::unix::fs::symlink("/dev/null", &path)).expect("a link");
        let error = limit(root.path(), (7, 12), &limits).expect_err("not shown").to_string();
        assert!(error.contains("wiops=120") && error.contains("7:12"), "{error}");
        let none = IoLimits { write_iops: Some(IoLimit::Max), ..IoLimits::default() };
        limit(root.path(), (7, 12), &none).expect("what has no limit is not listed");
    }
}

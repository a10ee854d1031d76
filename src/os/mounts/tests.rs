use std::fs;
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use test_support::{in_namespace, skipped};

use super::*;
use crate::os::mountinfo::of_dev;

const NONE: Option<&str> = None;
/// Names of directories, each with the same inside: two of them are odd for mountinfo.
const NAMES: [&str; 4] = ["a", "b\nc", "d \\040", "e"];

#[derive(Clone, Debug)]
enum Change {
    Tmpfs(usize, bool),
    Bind(usize, usize, bool),
    Move(usize, usize),
    Propagation(usize, usize),
    Unmount(usize, bool),
    Remove(usize),
}

fn any_change() -> impl Strategy<Value = Change> {
    let place = || 0..PLACES;
    prop_oneof![
        4 => (place(), any::<bool>()).prop_map(|(at, ro)| Change::Tmpfs(at, ro)),
        4 => (place(), place(), any::<bool>()).prop_map(|(from, to, deep)| Change::Bind(from, to, deep)),
        2 => (place(), place()).prop_map(|(from, to)| Change::Move(from, to)),
        2 => (place(), 0..4_usize).prop_map(|(at, kind)| Change::Propagation(at, kind)),
        2 => (place(), any::<bool>()).prop_map(|(at, lazy)| Change::Unmount(at, lazy)),
        1 => place().prop_map(Change::Remove),
    ]
}

/// All directories of one, two and three names.
const PLACES: usize = 4 + 16 + 64;

fn place(ground: &Path, number: usize) -> PathBuf {
    let name = |number: usize| NAMES[number % 4];
    match number {
        0..4 => ground.join(name(number)),
        4..20 => ground.join(name((number - 4) / 4)).join(name(number)),
        _ => ground.join(name((number - 20) / 16)).join(name((number - 20) / 4)).join(name(number)),
    }
}

fn grow_tree(ground: &Path, depth: usize) {
    for name in NAMES.iter().filter(|_| depth > 0) {
        // Read-only, full of earlier mounts: whatever can be made.
        fs::create_dir(ground.join(name)).ok();
        grow_tree(&ground.join(name), depth - 1);
    }
}

/// Whatever the kernel refuses is no change.
fn apply(ground: &Path, change: &Change) {
    let at = |number: &usize| place(ground, *number);
    match change {
        Change::Tmpfs(to, read_only) => {
            let flags = if *read_only { MsFlags::MS_RDONLY | MsFlags::MS_NOEXEC } else { MsFlags::MS_NOATIME };
            if mount(Some("a source"), &at(to), Some("tmpfs"), flags, Some("size=64k")).is_ok() {
                grow_tree(&at(to), 1);
            }
        }
        Change::Bind(from, to, deep) => {
            let flags = if *deep { MsFlags::MS_BIND | MsFlags::MS_REC } else { MsFlags::MS_BIND };
            mount(Some(&at(from)), &at(to), NONE, flags, NONE).ok();
        }
        Change::Move(from, to) => {
            mount(Some(&at(from)), &at(to), NONE, MsFlags::MS_MOVE, NONE).ok();
        }
        Change::Propagation(to, kind) => {
            let flags = [MsFlags::MS_SHARED, MsFlags::MS_SLAVE, MsFlags::MS_PRIVATE, MsFlags::MS_UNBINDABLE];
            mount(NONE, &at(to), NONE, flags[*kind], NONE).ok();
        }
        Change::Unmount(to, lazy) => {
            umount2(&at(to), if *lazy { MntFlags::MNT_DETACH } else { MntFlags::empty() }).ok();
        }
        // By way of a bind mount elsewhere, so that what is mounted is removed (`//deleted`).
        Change::Remove(number) => {
            fs::remove_dir(at(number)).ok();
        }
    }
}

/// The kernel's answers to each question are those of the table.
fn compare(ground: &Path) {
    let table = MountTable::read().unwrap();
    let points: Vec<&Mount> = table.iter().filter(|mount| mount.mount_point.starts_with(ground)).collect();
    assert!(points.len() < 20_000);
    for number in 0..PLACES {
        let path = place(ground, number);
        let shown: Vec<Mount> = table.at(&path).into_iter().cloned().collect();
        let asked = stack(&path).map(|stack| stack.into_iter().map(|seen| seen.mount).collect::<Vec<_>>());
        // A place whose directory is not in memory, or is gone, may be left to the table.
        if let Some(asked) = asked {
            assert_eq!(asked, shown, "at {path:?}");
        } else {
            assert_eq!(shown, [], "at {path:?} the kernel must know what is mounted");
        }
        assert_eq!(Mounts::Kernel.at(&path).unwrap(), shown);

        let below: Vec<&Mount> = table.below(&path).collect();
        let inside = Mounts::Kernel.inside(&path).unwrap();
        if let Some(inside) = &inside {
            assert!(below.contains(&inside), "inside {path:?}: {inside:?}");
        } else {
            let bottom = shown.first();
            let missed = below.iter().find(|mount| match bottom {
                Some(bottom) => descends(&table, mount, bottom.id),
                None => table.at(&mount.mount_point).contains(mount),
            });
            assert_eq!(missed, None, "inside {path:?}");
        }
    }
    for expected in &points {
        let of_device = |fixed: &Fixed| fixed.device == expected.device;
        let found = Mounts::Kernel.find(of_device, |mount| mount.id == expected.id).unwrap();
        assert_eq!(found.as_ref(), Some(*expected));
    }
    let mut all: Vec<u64> = Vec::new();
    for id in kernel::list(kernel::ALL).unwrap() {
        all.push(kernel::stat(id).unwrap().mount.id);
    }
    all.sort_unstable();
    let mut shown: Vec<u64> = table.iter().map(|mount| mount.id).collect();
    shown.sort_unstable();
    assert_eq!(all, shown);
}

fn descends(table: &MountTable, mount: &Mount, from: u64) -> bool {
    let mut parent = mount.parent;
    loop {
        if parent == from {
            return true;
        }
        match table.iter().find(|above| above.id == parent) {
            Some(above) if above.parent != parent => parent = above.parent,
            _ => return false,
        }
    }
}

fn supported() -> bool {
    if !is_supported() {
        skipped("the kernel has no statmount(2) with all that is in mountinfo");
    }
    is_supported()
}

#[test]
fn kernel_and_table_agree_on_random_trees_of_mounts() {
    if !supported() {
        return;
    }
    let changes = prop::collection::vec(any_change(), 1..24);
    let config = Config { cases: 60, failure_persistence: None, max_shrink_iters: 40, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    let agree = |changes: Vec<Change>| {
        in_namespace(|| {
            let directory = tempfile::tempdir().unwrap();
            mount(Some("ground"), directory.path(), Some("tmpfs"), MsFlags::empty(), NONE).unwrap();
            mount(NONE, directory.path(), NONE, MsFlags::MS_SHARED, NONE).unwrap();
            grow_tree(directory.path(), 3);
            for change in &changes {
                apply(directory.path(), change);
            }
            compare(directory.path());
            umount2(directory.path(), MntFlags::MNT_DETACH).unwrap();
        });
        Ok(())
    };
    runner.run(&changes, agree).unwrap();
}

#[test]
fn all_mounts_of_this_machine_are_shown_as_in_mountinfo() {
    if !supported() {
        return;
    }
    in_namespace(|| {
        let table = MountTable::read().unwrap();
        for expected in table.iter() {
            let found = Mounts::Kernel.find(|_| true, |mount| mount.id == expected.id).unwrap();
            assert_eq!(found.as_ref(), Some(expected));
            let shown: Vec<Mount> = table.at(&expected.mount_point).into_iter().cloned().collect();
            assert_eq!(Mounts::Kernel.at(&expected.mount_point).unwrap(), shown, "{}", expected.mount_point.display());
        }
    });
}

/// A mount in another namespace is no answer to what is mounted here, and a remembered one is not one that is still there.
#[test]
fn find_tells_namespaces_apart_and_forgets_what_was_unmounted() {
    if !supported() {
        return;
    }
    let found = |path: &Path| {
        let tmpfs = |fixed: &Fixed| fixed.source.as_deref() == Some(Path::new("of one namespace"));
        Mounts::Kernel.find(tmpfs, |mount| mount.mount_point == path).unwrap()
    };
    in_namespace(|| {
        let directory = tempfile::tempdir().unwrap();
        mount(Some("of one namespace"), directory.path(), Some("tmpfs"), MsFlags::empty(), NONE).unwrap();
        assert!(found(directory.path()).is_some());
        in_namespace(|| {
            assert!(found(directory.path()).is_some(), "the copy");
            umount2(directory.path(), MntFlags::empty()).unwrap();
            assert_eq!(found(directory.path()), None);
        });
        assert!(found(directory.path()).is_some());
        umount2(directory.path(), MntFlags::empty()).unwrap();
        assert_eq!(found(directory.path()), None);
        assert_eq!(Mounts::Kernel.at(directory.path()).unwrap(), []);
    });
}

#[test]
fn file_system_that_does_not_answer_is_not_waited_for() {
    if !supported() {
        return;
    }
    in_namespace(|| {
        let directory = tempfile::tempdir().unwrap();
        let Some(hung) = crate::os::mount::testing::Hung::over(directory.path()) else { return };
        let shown: Vec<Mount> = MountTable::read().unwrap().at(directory.path()).into_iter().cloned().collect();
        assert_eq!(shown.len(), 1);
        assert_eq!(Mounts::Kernel.at(directory.path()).unwrap(), shown);
        assert_eq!(Mounts::Kernel.inside(directory.path()).unwrap(), None);
        assert_eq!(Mounts::Kernel.at(&directory.path().join("x")).unwrap(), []);
        drop(hung);
    });
}

#[test]
fn node_of_a_block_device_is_found_and_its_number_remembered() {
    if !supported() {
        return;
    }
    in_namespace(|| {
        let directory = tempfile::tempdir().unwrap();
        let Some(disk) = crate::os::fs::testing::Loop::new(1 << 20) else { return };
        let number = crate::os::block::Device::open(&disk.device, false).unwrap().number();
        let place = directory.path().join("node");
        fs::write(&place, "").unwrap();
        mount(Some(&disk.device), &place, NONE, MsFlags::MS_BIND, NONE).unwrap();
        let find = |number| {
            let found =
                Mounts::Kernel.find(|fixed| fixed.may_be_node_of(number, of_dev()), |mount| mount.block_node() == Some(number));
            found.unwrap().map(|mount| mount.mount_point)
        };
        for _ in 0..2 {
            assert_eq!(find(number), Some(place.clone()));
            assert_eq!(find((number.0, number.1 + 4096)), None);
        }
        umount2(&place, MntFlags::empty()).unwrap();
        assert_eq!(find(number), None);
    });
}

#[test]
fn table_answers_where_the_kernel_shows_no_single_mounts() {
    in_namespace(|| {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().join("a");
        let inner = place.join("b");
        fs::create_dir(&place).unwrap();
        mount(Some("lower"), &place, Some("tmpfs"), MsFlags::empty(), NONE).unwrap();
        fs::create_dir(&inner).unwrap();
        mount(Some("inner"), &inner, Some("tmpfs"), MsFlags::empty(), NONE).unwrap();
        let sources = |mounts: Vec<Mount>| mounts.into_iter().map(|mount| mount.source).collect::<Vec<_>>();
        let table = Mounts::from(MountTable::read().unwrap());
        for mounts in [table, Mounts::now().unwrap()] {
            assert_eq!(sources(mounts.at(&place).unwrap()), [Path::new("lower")]);
            assert_eq!(sources(mounts.at(directory.path()).unwrap()), [] as [&Path; 0]);
            assert_eq!(sources(mounts.inside(&place).unwrap().into_iter().collect()), [Path::new("inner")]);
            assert_eq!(mounts.inside(&inner).unwrap(), None);
            let found = mounts.find(|fixed| fixed.fstype == "tmpfs", |mount| mount.source == Path::new("inner")).unwrap();
            assert_eq!(found.unwrap().mount_point, inner);
        }
        umount2(&inner, MntFlags::empty()).unwrap();
        umount2(&place, MntFlags::empty()).unwrap();
    });
}

//! Journal against kernel: what a reboot, a lost or torn journal, or an administrator left, is seen for what it is. Without a valid
//! stage nothing is published: a pod never writes into the node's own disk.

mod common;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use common::{Harness, Pool, capability, create, isolated, mounts_at, publish_request, run, stage_request, text};
use longshore::csi;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use tonic::{Code, Status};

const NONE: Option<&str> = None;

/// A driver, and a volume `v` that is staged and published with a file in it.
struct Node {
    harness: Harness,
}

impl Node {
    fn new() -> Node {
        let mut harness = Harness::new(Pool::Local);
        harness.start();
        let node = Node { harness };
        node.create("v");
        node.stage("v").expect("staged");
        node.publish("v").expect("published");
        fs::write(node.target("v").join("data"), "kept").expect("written");
        node
    }

    fn create(&self, name: &str) {
        let request = create(name, 64, Some("ext4"), "image");
        self.harness.block_on(self.harness.controller().create_volume(request)).expect("created");
    }

    fn staging(&self, name: &str) -> PathBuf {
        self.harness.staging(name)
    }

    fn target(&self, name: &str) -> PathBuf {
        self.harness.target(name)
    }

    fn image(&self, name: &str) -> PathBuf {
        self.harness.path("pool/images/volumes").join(name).join("image")
    }

    fn journal(&self) -> PathBuf {
        self.harness.path("state/journal/image:v")
    }

    fn stage(&self, name: &str) -> Result<(), Status> {
        let request = stage_request(format!("image:{name}"), self.staging(name), capability(Some("ext4")));
        self.harness.block_on(self.harness.node().node_stage_volume(request)).map(drop)
    }

    fn unstage(&self, name: &str) -> Result<(), Status> {
        let request =
            csi::NodeUnstageVolumeRequest { volume_id: format!("image:{name}"), staging_target_path: text(&self.staging(name)) };
        self.harness.block_on(self.harness.node().node_unstage_volume(request)).map(drop)
    }

    fn publish(&self, name: &str) -> Result<(), Status> {
        let request = publish_request(format!("image:{name}"), self.staging(name), self.target(name), capability(Some("ext4")));
        self.harness.block_on(self.harness.node().node_publish_volume(request)).map(drop)
    }

    fn unpublish(&self, name: &str) -> Result<(), Status> {
        let request =
            csi::NodeUnpublishVolumeRequest { volume_id: format!("image:{name}"), target_path: text(&self.target(name)) };
        self.harness.block_on(self.harness.node().node_unpublish_volume(request)).map(drop)
    }

    fn restart(&mut self) {
        self.harness.kill();
        self.harness.start();
    }

    /// Mounts and loop devices are gone, and the kernel has another boot id: as after a reboot.
    fn reboot(&mut self) {
        self.harness.kill();
        for name in ["v", "w"] {
            for path in [self.target(name), self.staging(name)] {
                while umount2(&path, MntFlags::empty()).is_ok() {}
            }
        }
        for device in self.harness.loops() {
            run("losetup", ["--detach", &device]);
        }
        let boot = self.harness.path("boot");
        fs::write(&boot, "11111111-2222-3333-4444-555555555555\n").expect("a boot id");
        mount(Some(&boot), "/proc/sys/kernel/random/boot_id", NONE, MsFlags::MS_BIND, NONE).expect("another boot");
        self.harness.start();
    }

    fn unmounted(&self, path: &Path) {
        umount2(path, MntFlags::empty()).expect("unmounted behind our back");
    }

    /// Refused, and what the pod would write to is not there.
    fn publish_is_refused(&self, words: &str) {
        let status = self.publish("v").expect_err("without a valid stage");
        assert!(matches!(status.code(), Code::FailedPrecondition | Code::AlreadyExists), "{status}");
        assert!(status.message().contains(words), "{words:?} is not in: {status}");
    }

    /// What is beneath the mounts is the node's own disk: nobody wrote there.
    fn nothing_beneath(&self) {
        for path in [self.staging("v"), self.target("v")].iter().filter(|path| mounts_at(path) == 0) {
            let written = fs::read_dir(path).map_or(0, Iterator::count);
            assert_eq!(written, 0, "{} holds something", path.display());
        }
    }

    /// Staged and published again, it has what was written before; and then it goes without a rest.
    fn lives_on(&self) {
        self.stage("v").expect("staged again");
        self.publish("v").expect("published again");
        assert_eq!(fs::read_to_string(self.target("v").join("data")).expect("a file"), "kept");
        assert_eq!((mounts_at(&self.staging("v")), mounts_at(&self.target("v"))), (1, 1));
        self.ends();
    }

    fn ends(&self) {
        self.unpublish("v").expect("unpublished");
        self.unstage("v").expect("unstaged");
        self.harness.assert_nothing_left();
        self.nothing_beneath();
        let request = csi::DeleteVolumeRequest { volume_id: "image:v".to_owned(), ..Default::default() };
        self.harness.block_on(self.harness.controller().delete_volume(request)).expect("deleted");
    }
}

#[allow(clippy::disallowed_methods, reason = "in the test's own directory, and never mounted upon")]
fn lose(directory: &Path) {
    fs::remove_dir_all(directory).expect("lost");
}

fn stranger_on(path: &Path) {
    mount(Some("stranger"), path, Some("tmpfs"), MsFlags::empty(), NONE).expect("a tmpfs");
    fs::write(path.join("theirs"), "theirs").expect("written");
}

fn stranger_is_left(path: &Path) {
    assert_eq!(fs::read_to_string(path.join("theirs")).expect("still mounted"), "theirs");
    umount2(path, MntFlags::empty()).expect("unmounted");
}

/// Staged, not published.
fn only_staged(node: &Node) {
    node.unpublish("v").expect("unpublished");
}

/// Volume `w`'s file system, mounted at `path` by hand.
fn other_volume_on(node: &Node, path: &Path) {
    node.create("w");
    node.stage("w").expect("staged");
    fs::write(node.staging("w").join("theirs"), "theirs").expect("written");
    mount(Some(&node.staging("w")), path, NONE, MsFlags::MS_BIND, NONE).expect("mounted");
}

fn other_volume_ends(node: &Node) {
    let names: Vec<_> = fs::read_dir(node.staging("w")).expect("mounted").flatten().map(|entry| entry.file_name()).collect();
    assert!(names.iter().all(|name| name == "theirs" || name == "lost+found"), "{names:?}");
    node.unstage("w").expect("unstaged");
}

type Case = (&'static str, fn(&mut Node));

const CASES: &[Case] = &[
    ("a reboot, then a stage", |node| {
        node.reboot();
        node.publish_is_refused("last boot");
        node.nothing_beneath();
        node.lives_on();
    }),
    ("a reboot, then an end", |node| {
        node.reboot();
        node.ends();
    }),
    ("a reboot, then a deletion", |node| {
        node.reboot();
        let request = csi::DeleteVolumeRequest { volume_id: "image:v".to_owned(), ..Default::default() };
        node.harness.block_on(node.harness.controller().delete_volume(request)).expect("deleted");
        assert_eq!(node.harness.journal(), [""; 0]);
    }),
    ("a reboot with the journal lost", |node| {
        lose(&node.harness.path("state/journal"));
        node.reboot();
        node.publish_is_refused("no stage of it");
        node.nothing_beneath();
        node.lives_on();
    }),
    ("a lost journal, all else there", |node| {
        node.harness.kill();
        lose(&node.harness.path("state/journal"));
        node.harness.start();
        node.publish_is_refused("no stage of it");
        assert_eq!(node.unstage("v").expect_err("still published").code(), Code::FailedPrecondition);
        node.lives_on();
    }),
    ("a lost journal, then an end", |node| {
        node.harness.kill();
        lose(&node.harness.path("state/journal"));
        node.harness.start();
        node.ends();
    }),
    ("a torn journal, and what an interrupted write leaves", |node| {
        node.harness.kill();
        for entry in fs::read_dir(node.journal()).expect("a journal").flatten() {
            let whole = fs::read(entry.path()).expect("an entry");
            fs::write(entry.path(), &whole[..whole.len() / 2]).expect("torn");
        }
        fs::write(node.journal().join(".stage.json.tmp"), "{").expect("left");
        node.harness.start();
        assert!(!node.journal().join(".stage.json.tmp").exists(), "swept");
        node.publish_is_refused("no stage of it");
        node.stage("v").expect("taken over");
        node.publish("v").expect("taken over");
        node.unpublish("v").expect("unpublished");
        node.unstage("v").expect("unstaged");
        let left = node.harness.journal();
        assert!(left.iter().all(|name| name.ends_with(".damaged")) && !left.is_empty(), "kept for a person: {left:?}");
        lose(&node.journal());
        node.lives_on();
    }),
    ("never staged", |node| {
        node.ends();
        node.create("v");
        node.publish_is_refused("no stage of it");
        assert!(!node.target("v").exists(), "no place to write into is made");
        node.nothing_beneath();
        node.unpublish("v").expect("nothing to do");
    }),
    ("the staging mount is gone", |node| {
        only_staged(node);
        node.unmounted(&node.staging("v"));
        node.publish_is_refused("nothing is mounted at");
        assert!(!node.target("v").exists());
        node.nothing_beneath();
        node.restart();
        node.publish_is_refused("nothing is mounted at");
        node.lives_on();
    }),
    ("the staging mount and its device are gone", |node| {
        only_staged(node);
        node.unmounted(&node.staging("v"));
        run("losetup", ["--detach", &node.harness.loops()[0]]);
        node.publish_is_refused("no longer connected");
        node.nothing_beneath();
        node.lives_on();
    }),
    ("the device's name is another's, and mounted", |node| {
        only_staged(node);
        let device = node.harness.loops()[0].clone();
        node.unmounted(&node.staging("v"));
        run("losetup", ["--detach", &device]);
        let other = node.harness.path("pool/other");
        File::create(&other).and_then(|file| file.set_len(64 << 20)).expect("a file");
        run("mkfs.ext4", ["-q", "-F", &text(&other)]);
        // The same number again is up to who else uses loop devices; so the journal names the one that it has become.
        let theirs = run("losetup", ["--find", "--show", &text(&other)]);
        node.harness.kill();
        let entry = fs::read_to_string(node.journal().join("stage.json")).expect("an entry");
        let number = |device: &str| format!("[7,{}]", device.trim_start_matches("/dev/loop"));
        let compact: String = entry.split_whitespace().collect();
        let edited = compact.replace(&format!("{device}\""), &format!("{theirs}\"")).replace(&number(&device), &number(&theirs));
        assert!(edited.contains(&number(&theirs)) && edited.contains(&format!("{theirs}\"")), "{edited}");
        fs::write(node.journal().join("stage.json"), edited).expect("written");
        node.harness.start();
        let device = theirs;
        mount(Some(device.as_str()), &node.staging("v"), Some("ext4"), MsFlags::empty(), NONE).expect("mounted");
        fs::write(node.staging("v").join("theirs"), "theirs").expect("written");
        node.publish_is_refused("no longer connected");
        node.stage("v").expect_err("it is not ours");
        node.unstage("v").expect_err("it is not ours");
        node.restart();
        stranger_is_left(&node.staging("v"));
        run("losetup", ["--detach", &device]);
        node.lives_on();
    }),
    ("the staging path is mounted upon by a stranger", |node| {
        only_staged(node);
        let staging = node.staging("v");
        stranger_on(&staging);
        for answer in [node.publish("v"), node.stage("v"), node.unstage("v")] {
            assert_eq!(answer.expect_err("not ours").code(), Code::FailedPrecondition);
        }
        node.restart();
        node.publish_is_refused("stranger");
        stranger_is_left(&staging);
        node.lives_on();
    }),
    ("the staging path is mounted twice", |node| {
        only_staged(node);
        let staging = node.staging("v");
        mount(Some(&staging), &staging, NONE, MsFlags::MS_BIND, NONE).expect("twice");
        node.publish_is_refused("mounts lie on top of each other");
        node.restart();
        node.publish_is_refused("mounts lie on top of each other");
        node.ends();
    }),
    ("another volume is mounted at the staging path", |node| {
        only_staged(node);
        let staging = node.staging("v");
        node.unmounted(&staging);
        other_volume_on(node, &staging);
        for answer in [node.publish("v"), node.stage("v"), node.unstage("v")] {
            assert_eq!(answer.expect_err("not ours").code(), Code::FailedPrecondition);
        }
        node.restart();
        node.publish_is_refused("not this volume");
        stranger_is_left(&staging);
        other_volume_ends(node);
        node.lives_on();
    }),
    ("another volume is mounted at the target", |node| {
        only_staged(node);
        let target = node.target("v");
        fs::create_dir(&target).expect("a directory");
        other_volume_on(node, &target);
        node.publish_is_refused("this volume");
        node.unpublish("v").expect_err("not ours");
        node.restart();
        node.unpublish("v").expect_err("not ours");
        stranger_is_left(&target);
        other_volume_ends(node);
        node.lives_on();
    }),
    ("the target is covered by a stranger", |node| {
        let target = node.target("v");
        stranger_on(&target);
        node.publish_is_refused("stranger");
        node.unpublish("v").expect_err("not ours");
        assert_eq!(node.unstage("v").expect_err("still published").code(), Code::FailedPrecondition);
        node.restart();
        node.unpublish("v").expect_err("not ours");
        stranger_is_left(&target);
        node.lives_on();
    }),
    ("the target is mounted twice", |node| {
        let (staging, target) = (node.staging("v"), node.target("v"));
        mount(Some(&staging), &target, NONE, MsFlags::MS_BIND, NONE).expect("twice");
        node.publish_is_refused("mounts lie on top of each other");
        node.restart();
        node.ends();
    }),
    ("the target is gone", |node| {
        node.unmounted(&node.target("v"));
        node.restart();
        node.nothing_beneath();
        node.lives_on();
    }),
    ("the image is removed", |node| {
        lose(node.image("v").parent().expect("a directory"));
        node.unpublish("v").expect("unpublished");
        node.restart();
        node.unstage("v").expect("unstaged");
        node.harness.assert_nothing_left();
        let status = node.stage("v").expect_err("there is no volume");
        assert_eq!(status.code(), Code::NotFound, "{status}");
        node.harness.assert_nothing_left();
        node.ends();
    }),
    ("the image's file is removed", |node| {
        fs::remove_file(node.image("v")).expect("removed");
        node.unpublish("v").expect("unpublished");
        node.unstage("v").expect("unstaged");
        node.harness.assert_nothing_left();
        let status = node.stage("v").expect_err("its image is missing");
        assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
        node.harness.assert_nothing_left();
    }),
    ("the image is replaced, then an end", |node| {
        replace_image(node);
        node.publish_is_refused("no longer connected");
        node.ends();
    }),
    ("the image is replaced, then a stage", |node| {
        replace_image(node);
        node.unpublish("v").expect("unpublished");
        node.restart();
        node.lives_on();
    }),
];

/// By a copy, as a restored backup would.
fn replace_image(node: &Node) {
    let image = node.image("v");
    let copy = node.harness.path("pool/copy");
    run("sync", ["--file-system", &text(&node.target("v"))]);
    run("cp", [&image, &copy]);
    fs::rename(&copy, &image).expect("replaced");
}

#[test]
fn journal_that_contradicts_the_kernel_is_overruled() {
    isolated(|| {
        for (name, case) in CASES {
            eprintln!("case: {name}");
            let mut node = Node::new();
            case(&mut node);
            node.harness.assert_nothing_left();
            drop(node);
            while umount2("/proc/sys/kernel/random/boot_id", MntFlags::empty()).is_ok() {}
        }
        println!("FIGURE: reconciliation: {} cases", CASES.len());
    });
}

/// The staging mount goes while a publish runs: then the directory beneath is the node's own disk.
#[test]
fn a_stage_that_vanishes_while_it_is_published_shows_no_disk_of_the_node() {
    isolated(|| {
        let node = Node::new();
        only_staged(&node);
        let (staging, target) = (node.staging("v"), node.target("v"));
        let mut published = 0;
        const ROUNDS: usize = 60;
        for _ in 0..ROUNDS {
            node.stage("v").expect("staged");
            let over = AtomicBool::new(false);
            let answer = std::thread::scope(|scope| {
                // It is made after the stage was looked at, and before what is staged is opened.
                let pull = scope.spawn(|| {
                    while !target.exists() && !over.load(Ordering::SeqCst) {
                        std::hint::spin_loop();
                    }
                    umount2(&staging, MntFlags::MNT_DETACH).expect("unmounted");
                });
                let answer = node.publish("v");
                over.store(true, Ordering::SeqCst);
                pull.join().expect("pulled away");
                answer
            });
            if mounts_at(&target) > 0 {
                assert!(target.join("data").exists(), "the pod would write into the node's own disk: {answer:?}");
                published += 1;
            } else {
                assert!(answer.is_err(), "OK without a mount");
            }
            node.unpublish("v").expect("unpublished");
        }
        println!("FIGURE: vanishing stages: {ROUNDS} rounds, {published} published");
        node.ends();
    });
}

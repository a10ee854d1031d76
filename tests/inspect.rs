//! `longshore inspect` on the real kernel: every kind of orphan is made for real; it is named, the command that is printed repairs it,
//! `--fix` repairs it, and what is not the driver's stays as it is.

#![allow(clippy::disallowed_methods, reason = "the program itself is what is tested")]

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};

use common::holder::Holder;
use common::{
    Harness, Pool, capability, create, isolated, loop_files, mounts_at, publish_request, run, skipped, stage_request, text,
};
use longshore::backend::Backend;
use longshore::backend::image::{ImageBackend, ImageConfig, PoolConfig};
use longshore::csi;
use longshore::ops::node::inspect::{Configured, Repair, Repairer, Setup, inspect};
use longshore::ops::node::{InlineLimits, NodeSettings};
use longshore::os::loopdev;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use serde_json::Value;

const POD: &str = "0b9c3b8e-6d2f-4a55-9a53-2f9d1c6f7e11";

/// A driver, what one can do with it, and things beside it that are none of its business.
struct World {
    harness: Harness,
    bystander: Option<Bystander>,
}

/// Another driver's loop device, mounted within the kubelet's directory.
struct Bystander {
    device: String,
    image: PathBuf,
    place: PathBuf,
}

impl World {
    fn new() -> World {
        let mut harness = Harness::new(Pool::Local);
        harness.start();
        World { harness, bystander: None }
    }

    fn volume(&self, name: &str, fstype: Option<&str>) -> String {
        let request = create(name, 64, fstype, "image");
        let answer = self.harness.block_on(self.harness.controller().create_volume(request)).expect("created");
        answer.into_inner().volume.expect("a volume").volume_id
    }

    fn stage(&self, id: &str, fstype: Option<&str>) -> PathBuf {
        let staging = self.harness.staging(id);
        let request = stage_request(id, &staging, capability(fstype));
        self.harness.block_on(self.harness.node().node_stage_volume(request)).expect("staged");
        staging
    }

    fn publish(&self, id: &str, fstype: Option<&str>) -> PathBuf {
        let target = self.harness.target(&format!("{POD}/volumes/kubernetes.io~csi/{}", id.replace(':', "-")));
        let request =
            publish_request(id, self.harness.path("kubelet/plugins").join(id).join("globalmount"), &target, capability(fstype));
        self.harness.block_on(self.harness.node().node_publish_volume(request)).expect("published");
        target
    }

    /// A volume with an ext4, staged.
    fn staged(&self, name: &str) -> (String, PathBuf) {
        let id = self.volume(name, Some("ext4"));
        let staging = self.stage(&id, Some("ext4"));
        (id, staging)
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = self.harness.command("inspect");
        command.args(words);
        command
    }

    fn inspect(&self, words: &[&str]) -> Output {
        let _starting = common::starting();
        self.command(words).output().expect("it runs")
    }

    /// What it says, as JSON, with this exit code.
    fn seen(&self, code: i32, words: &[&str]) -> Value {
        let output = self.inspect(&[&["--json"], words].concat());
        let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{said}\n{}", self.harness.log());
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {said}"))
    }

    fn bystander(&mut self) {
        let image = self.harness.path("pool/other-driver.img");
        let place = self.harness.path("kubelet/plugins/other.driver/globalmount");
        fs::create_dir_all(&place).expect("a directory");
        run("truncate", ["-s", "16M", &text(&image)]);
        run("mkfs.ext4", ["-q", "-F", &text(&image)]);
        let device = run("losetup", ["--find", "--show", &text(&image)]);
        mount(Some(device.as_str()), &place, Some("ext4"), MsFlags::empty(), None::<&str>).expect("mounted");
        self.bystander = Some(Bystander { device, image, place });
    }

    fn assert_bystander(&self) {
        let Some(other) = &self.bystander else { return };
        assert_eq!(mounts_at(&other.place), 1, "another driver's mount");
        assert!(loop_files().contains(&(other.device.clone(), text(&other.image))), "another driver's device");
    }

    /// Runs what was printed, as a person does who pastes it.
    fn paste(&self, seen: &Value) {
        let mut lines = vec!["set -e".to_owned()];
        for finding in seen["findings"].as_array().expect("findings") {
            lines.extend(
                finding["commands"].as_array().expect("commands").iter().map(|line| line.as_str().expect("text").to_owned()),
            );
        }
        let program = Path::new(env!("CARGO_BIN_EXE_longshore")).parent().expect("a directory");
        let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap_or_default());
        run("env", [&format!("PATH={path}"), "sh", "-c", &lines.join("\n")]);
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if let Some(other) = &self.bystander {
            umount2(&other.place, MntFlags::MNT_DETACH).ok();
            Command::new("losetup").args(["--detach", &other.device]).status().ok();
        }
    }
}

fn kinds(seen: &Value) -> Vec<String> {
    let findings = seen["findings"].as_array().expect("findings");
    findings.iter().map(|finding| finding["kind"].as_str().expect("a kind").to_owned()).collect()
}

/// What `break_it` makes is named by inspect; the printed commands repair it, and so does `--fix`, which leaves the bystander alone.
fn orphan(expected: &[&str], break_it: impl Fn(&mut World, &str) + Send + 'static) {
    let expected: Vec<String> = expected.iter().map(|kind| (*kind).to_owned()).collect();
    isolated(move || {
        let mut world = World::new();
        world.bystander();
        for (round, by_hand) in [true, false].into_iter().enumerate() {
            if round > 0 {
                world.harness.start();
            }
            let name = format!("v{round}");
            break_it(&mut world, &name);
            let seen = world.seen(1, &[]);
            assert_eq!(kinds(&seen), expected, "{seen:#}");
            documented(&seen);
            assert!(seen["findings"].as_array().expect("findings").iter().all(|finding| finding["fix"] == true), "{seen:#}");
            if by_hand {
                world.paste(&seen);
            } else {
                let fixed = world.seen(0, &["--fix", "--yes"]);
                documented(&fixed);
                let actions = fixed["actions"].as_array().expect("actions");
                assert!(actions.len() == expected.len() && actions.iter().all(|action| action["result"] == "done"), "{fixed:#}");
            }
            let after = world.seen(0, &[]);
            assert_eq!(kinds(&after), Vec::<String>::new(), "{after:#}");
            world.assert_bystander();
            assert_eq!(world.harness.loops().len(), 1, "only the bystander's");
            assert_eq!(world.harness.journal(), Vec::<String>::new());
            assert_eq!(world.harness.mounts().len(), 1, "only the bystander's");
        }
    });
}

fn forget(world: &World, id: &str) {
    let directory = world.harness.path("state/journal").join(id);
    for entry in fs::read_dir(&directory).expect("a journal") {
        fs::remove_file(entry.expect("an entry").path()).expect("removed");
    }
    fs::remove_dir(&directory).expect("removed");
}

fn edit(world: &World, id: &str, field: &str, value: Value) {
    let path = world.harness.path("state/journal").join(id).join("stage.json");
    let mut entry: Value = serde_json::from_slice(&fs::read(&path).expect("a journal")).expect("JSON");
    entry[field] = value;
    fs::write(&path, entry.to_string()).expect("written");
}

fn unmount(path: &Path) {
    umount2(path, MntFlags::empty()).expect("unmounted");
}

#[test]
fn a_lost_journal_leaves_mount_and_device() {
    orphan(&["mount-unknown", "device-unowned"], |world, name| {
        let (id, _) = world.staged(name);
        world.harness.kill();
        forget(world, &id);
    });
}

#[test]
fn a_loop_device_that_was_left() {
    orphan(&["device-unowned"], |world, name| {
        let (id, staging) = world.staged(name);
        world.harness.kill();
        forget(world, &id);
        unmount(&staging);
    });
}

#[test]
fn volume_held_by_another_mount_namespace_is_shown_with_its_holder() {
    isolated(|| {
        let world = World::new();
        let (id, staging) = world.staged("held");
        let holder = Holder::new(common::starting());
        let unstage = |world: &World| {
            let staging_target_path = text(&staging);
            let request = csi::NodeUnstageVolumeRequest { volume_id: id.clone(), staging_target_path };
            world.harness.block_on(world.harness.node().node_unstage_volume(request)).map(drop)
        };
        let status = unstage(&world).expect_err("it is still in the kernel");
        assert_eq!(status.code(), tonic::Code::Unavailable, "{status}");
        let seen = world.seen(1, &[]);
        assert_eq!(kinds(&seen), ["device-held"], "{seen:#}");
        documented(&seen);
        let finding = &seen["findings"][0];
        assert!(finding["what"].as_str().expect("words").contains(&holder.name()), "{finding:#}");
        // The kubelet shows the unstage's error to nobody; that of DeleteVolume is an event of the PersistentVolume.
        let delete = csi::DeleteVolumeRequest { volume_id: id.clone(), ..Default::default() };
        let status = world.harness.block_on(world.harness.controller().delete_volume(delete)).expect_err("in use");
        assert_eq!(status.code(), tonic::Code::FailedPrecondition, "{status}");
        assert!(status.message().contains(&holder.name()), "{status}");
        world.paste(&seen);
        unstage(&world).expect("unstaged");
        assert_eq!(kinds(&world.seen(0, &[])), Vec::<String>::new());
        drop(holder);
    });
}

#[test]
fn a_stage_whose_mount_is_gone() {
    orphan(&["mount-missing"], |world, name| {
        let (_, staging) = world.staged(name);
        world.harness.kill();
        unmount(&staging);
    });
}

#[test]
fn a_stage_whose_device_is_gone() {
    orphan(&["device-missing"], |world, name| {
        let (_, staging) = world.staged(name);
        let devices = world.harness.loops();
        let ours = devices.iter().find(|device| Some(*device) != world.bystander.as_ref().map(|other| &other.device));
        world.harness.kill();
        unmount(&staging);
        run("losetup", ["--detach", ours.expect("the volume's")]);
    });
}

#[test]
fn a_mount_that_was_moved() {
    orphan(&["mount-unknown", "mount-missing"], |world, name| {
        let (_, staging) = world.staged(name);
        world.harness.kill();
        let elsewhere = world.harness.path(&format!("kubelet/moved it's {name}"));
        fs::create_dir(&elsewhere).expect("a directory");
        mount(Some(&staging), &elsewhere, None::<&str>, MsFlags::MS_MOVE, None::<&str>).expect("moved");
    });
}

#[test]
fn a_target_that_is_gone() {
    isolated(|| {
        let mut world = World::new();
        world.bystander();
        for by_hand in [true, false] {
            let (id, staging) = world.staged(if by_hand { "a" } else { "b" });
            let target = world.publish(&id, Some("ext4"));
            world.harness.kill();
            unmount(&target);
            let seen = world.seen(1, &[&id]);
            assert_eq!(kinds(&seen), ["target-missing"], "{seen:#}");
            if by_hand {
                world.paste(&seen);
            } else {
                world.seen(0, &["--fix", "--yes"]);
                assert!(!target.exists(), "as the driver would have left it");
            }
            let after = world.seen(0, &[&id]);
            assert_eq!(after["volumes"][0]["state"], "staged", "the stage stays: {after:#}");
            assert_eq!(mounts_at(&staging), 1);
            world.assert_bystander();
            world.harness.start();
        }
    });
}

#[test]
fn a_stage_that_was_interrupted() {
    orphan(&["stage-interrupted"], |world, name| {
        let (id, _) = world.staged(name);
        world.harness.kill();
        edit(world, &id, "phase", "unstaging".into());
    });
}

#[test]
fn a_stage_of_before_the_last_boot() {
    orphan(&["stage-of-earlier-boot"], |world, name| {
        let (id, staging) = world.staged(name);
        let devices = world.harness.loops();
        let ours = devices.iter().find(|device| Some(*device) != world.bystander.as_ref().map(|other| &other.device));
        world.harness.kill();
        unmount(&staging);
        run("losetup", ["--detach", ours.expect("the volume's")]);
        edit(world, &id, "boot", "another".into());
    });
}

#[test]
fn a_journal_file_that_is_damaged() {
    orphan(&["device-unowned", "journal-damaged"], |world, name| {
        let (id, staging) = world.staged(name);
        world.harness.kill();
        unmount(&staging);
        let path = world.harness.path("state/journal").join(&id).join("stage.json");
        fs::write(&path, "{\"version\": 1, \"id").expect("torn");
    });
}

#[test]
fn a_raw_block_device_that_was_left() {
    orphan(&["device-unowned"], |world, name| {
        let id = world.volume(name, None);
        world.stage(&id, None);
        world.harness.kill();
        forget(world, &id);
    });
}

#[test]
fn a_mapping_that_was_left() {
    let mapper = fs::read_to_string("/proc/misc").is_ok_and(|misc| misc.contains("device-mapper"));
    if !mapper {
        return skipped("no device-mapper in this kernel");
    }
    orphan(&["mapping-unowned", "device-unowned"], |world, name| {
        let mut request = create(name, 64, Some("ext4"), "image");
        request.parameters.insert("encryption".to_owned(), "luks2".to_owned());
        let answer = world.harness.block_on(world.harness.controller().create_volume(request)).expect("created");
        let volume = answer.into_inner().volume.expect("a volume");
        let staging = world.harness.staging(&volume.volume_id);
        let request = csi::NodeStageVolumeRequest {
            volume_context: volume.volume_context,
            secrets: [("encryptionPassphrase".to_owned(), "open sesame".to_owned())].into(),
            ..stage_request(volume.volume_id.clone(), &staging, capability(Some("ext4")))
        };
        world.harness.block_on(world.harness.node().node_stage_volume(request)).expect("staged");
        world.harness.kill();
        unmount(&staging);
        forget(world, &volume.volume_id);
    });
}

#[test]
fn drafts_and_trash_of_a_killed_driver() {
    isolated(|| {
        let mut world = World::new();
        world.harness.kill();
        for by_hand in [true, false] {
            for directory in ["tmp/volume~a", "trash/snapshot~b"] {
                let directory = world.harness.path("pool/images").join(directory);
                fs::create_dir(&directory).expect("a directory");
                fs::write(directory.join("image"), "half").expect("written");
            }
            let seen = world.seen(1, &[]);
            assert_eq!(kinds(&seen), ["draft", "trash"], "{seen:#}");
            if by_hand {
                world.paste(&seen);
            } else {
                world.seen(0, &["--fix", "--yes"]);
            }
            assert_eq!(kinds(&world.seen(0, &[])), Vec::<String>::new());
            world.harness.assert_pool_empty();
        }
        // What is not ours is reported, and stays.
        let directory = world.harness.path("pool/images/tmp/volume~c");
        fs::create_dir(&directory).expect("a directory");
        fs::write(directory.join("thesis.tex"), "precious").expect("written");
        world.seen(1, &["--fix", "--yes"]);
        assert_eq!(fs::read_to_string(directory.join("thesis.tex")).expect("there"), "precious");
        // What a driver makes just now is no leftover.
        world.harness.start();
        fs::create_dir(world.harness.path("pool/images/tmp/volume~d")).expect("a directory");
        assert_eq!(kinds(&world.seen(0, &[])), Vec::<String>::new());
    });
}

#[test]
fn data_without_metadata_is_reported_and_never_deleted() {
    for (gone, kind) in [("meta.json", "metadata-missing"), ("image", "data-missing")] {
        isolated(move || {
            let mut world = World::new();
            let id = world.volume("a", Some("ext4"));
            world.harness.kill();
            let directory = world.harness.path("pool/images/volumes/a");
            fs::remove_file(directory.join(gone)).expect("removed");
            let seen = world.seen(1, &["--fix", "--yes"]);
            assert_eq!((kinds(&seen), &seen["findings"][0]["fix"]), (vec![kind.to_owned()], &Value::Bool(false)), "{seen:#}");
            assert_eq!(seen["volumes"][0]["id"], id.as_str());
            assert!(directory.exists(), "--fix moves and deletes no data");
            world.paste(&seen);
            world.seen(0, &[]);
            let kept = fs::read_dir(world.harness.path("pool/images/retained")).expect("a directory").count();
            assert_eq!(kept, 1, "it is kept aside");
        });
    }
}

#[test]
fn a_volume_that_a_pod_has_is_never_unmounted_by_us() {
    isolated(|| {
        let mut world = World::new();
        let (id, staging) = world.staged("a");
        let target = world.publish(&id, Some("ext4"));
        world.harness.kill();
        forget(&world, &id);
        let by_hand = world.harness.path("by-hand");
        fs::create_dir(&by_hand).expect("a directory");
        mount(Some(&staging), &by_hand, None::<&str>, MsFlags::MS_BIND, None::<&str>).expect("bound");
        let seen = world.seen(1, &["--fix", "--yes"]);
        assert_eq!((mounts_at(&target), mounts_at(&by_hand)), (1, 1), "{seen:#}");
        assert_eq!(world.harness.loops().len(), 1);
        let left: Vec<&Value> = seen["findings"].as_array().expect("findings").iter().collect();
        assert!(left.iter().all(|finding| finding["fix"] == false && finding["whyNot"].is_string()), "{seen:#}");
        world.paste(&seen);
        assert_eq!(kinds(&world.seen(0, &[])), Vec::<String>::new());
    });
}

#[test]
fn loop_device_attached_by_others_is_reported_and_left() {
    isolated(|| {
        let mut world = World::new();
        let id = world.volume("a", Some("ext4"));
        world.harness.kill();
        let device = run("losetup", ["--find", "--show", &text(&world.harness.path("pool/images/volumes/a/image"))]);
        let seen = world.seen(1, &[&id, "--fix", "--yes"]);
        assert_eq!((kinds(&seen), &seen["findings"][0]["object"]), (vec!["device-unowned".to_owned()], &device.clone().into()));
        assert_eq!(world.harness.loops(), [device]);
        world.paste(&seen);
        world.seen(0, &[]);
    });
}

/// Two nodes of one kernel (kind) have their pools at the same path, each in a mount namespace of its own, and all loop devices.
#[test]
fn loop_device_of_another_node_whose_pool_has_the_same_path_is_not_ours() {
    isolated(|| {
        let mut world = World::new();
        world.harness.kill();
        let pool = world.harness.path("pool/images");
        let (attached, seen) = mpsc::channel();
        let (end, ended) = mpsc::channel::<()>();
        std::thread::scope(|scope| {
            scope.spawn(|| isolated(move || as_another_node(&pool, &attached, &ended)));
            let Ok(device) = seen.recv() else { return };
            world.seen(0, &["--fix", "--yes"]);
            assert!(loop_files().iter().any(|(one, _)| *one == device), "it is still attached");
            drop(end);
        });
    });
}

/// Has a volume of its own attached as the driver does it, until it is asked to end.
fn as_another_node(pool: &Path, attached: &Sender<String>, ended: &Receiver<()>) {
    mount(None::<&str>, pool, Some("tmpfs"), MsFlags::empty(), None::<&str>).expect("a file system of its own");
    fs::create_dir_all(pool.join("volumes/a")).expect("a directory");
    let image = fs::File::options().read(true).write(true).create_new(true).open(pool.join("volumes/a/image")).expect("an image");
    image.set_len(1 << 20).expect("a size");
    let device = loopdev::attach(&image, "image:a", false).expect("attached");
    attached.send(text(&device.path)).expect("heard");
    ended.recv().expect_err("nothing is sent");
    loopdev::detach(&device.path, device.backing).expect("detached");
}

#[test]
fn the_stack_of_a_volume_is_shown_with_and_without_a_driver() {
    isolated(|| {
        let mut world = World::new();
        let (id, staging) = world.staged("pvc-with-a-name");
        let target = world.publish(&id, Some("ext4"));
        let other = world.volume("pvc-stored", Some("ext4"));
        let device = world.harness.loops().remove(0);
        let state = || {
            (world_files(&world.harness.path("state")), world_files(&world.harness.path("pool/images")), world.harness.mounts())
        };
        let before = state();
        let seen = world.seen(0, &[]);
        assert_eq!(before, state(), "looking changes nothing");
        assert_eq!(seen["running"]["driver"]["pid"], world.harness.pid(), "{seen:#}");
        assert_eq!(seen["storage"][0]["provisioner"], world.harness.pid());
        let volume = &seen["volumes"][1];
        assert_eq!((volume["id"].as_str(), volume["state"].as_str()), (Some(id.as_str()), Some("staged")));
        assert_eq!(volume["devices"][0]["path"], device.as_str());
        let image = text(&world.harness.path("pool/images/volumes/pvc-with-a-name/image").canonicalize().expect("there"));
        assert_eq!(volume["devices"][0]["shows"], image.as_str());
        assert_eq!((&volume["stored"]["capacity"], &volume["filesystem"]["type"]), (&(64_u64 << 20).into(), &"ext4".into()));
        assert!(volume["filesystem"]["used"].as_u64().is_some_and(|used| used < 16 << 20), "{volume:#}");
        let places = volume["places"].as_array().expect("places");
        assert_eq!((&places[0]["role"], &places[0]["path"]), (&"staging".into(), &text(&staging).into()));
        assert_eq!(
            (&places[1]["role"], &places[1]["path"], &places[1]["podUid"]),
            (&"target".into(), &text(&target).into(), &POD.into())
        );
        assert_eq!(seen["volumes"][0]["state"], "stored");
        documented(&seen);

        world.harness.kill();
        let seen = world.seen(0, &[]);
        assert!(seen["running"].get("driver").is_none(), "{seen:#}");
        // By a part of the id; as a tree of plain ASCII, since nobody looks.
        let output = world.inspect(&["with-a"]);
        let shown = String::from_utf8(output.stdout).expect("UTF-8");
        for line in [
            format!("`- image    {image}"),
            format!("`- device   {device}"),
            "`- ext4".to_owned(),
            format!("|- staging  {}", staging.display()),
        ] {
            assert!(shown.contains(&line), "{shown}\nlacks {line}");
        }
        assert!(shown.contains(&format!("`- target   {}  pod {POD}", target.display())), "{shown}");
        assert!(
            shown.contains("differs:  in nothing") && shown.contains("next:     nothing to do") && shown.is_ascii(),
            "{shown}"
        );
        for (text, words) in [("pvc-", [id.as_str(), other.as_str()]), ("no-such", ["no volume", "no-such"])] {
            let output = world.inspect(&[text]);
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.code() == Some(2) && words.iter().all(|word| said.contains(word)), "{said}");
        }
    });
}

/// The `fake` backend shows nothing of its storage to others: what the journal says and the kernel confirms is shown all the same.
#[test]
fn volumes_of_a_backend_that_shows_nothing() {
    isolated(|| {
        let mut world = World::new();
        for (name, fstype, medium) in
            [("disk", Some("ext4"), "block"), ("raw", None, "block"), ("memory", Some("ext4"), "filesystem")]
        {
            let name = format!("{}-{name}", world.harness.name());
            let mut request = create(&name, 64, fstype, "fake");
            request.parameters.insert("medium".to_owned(), medium.to_owned());
            let answer = world.harness.block_on(world.harness.controller().create_volume(request)).expect("created");
            let id = answer.into_inner().volume.expect("a volume").volume_id;
            world.stage(&id, fstype);
            world.publish(&id, fstype);
            let seen = world.seen(0, &[&id]);
            let places = seen["volumes"][0]["places"].as_array().expect("places").clone();
            assert!(places.iter().all(|place| place["mounted"] == true) && !places.is_empty(), "{seen:#}");
            assert_eq!(seen["volumes"][0]["state"], "staged");
            assert_eq!(seen["volumes"][0]["devices"].as_array().map(Vec::len), Some(usize::from(medium == "block")), "{seen:#}");
        }
        world.harness.kill();
        world.seen(0, &[]);
    });
}

/// Every field of the JSON is documented.
fn documented(value: &Value) {
    const GUIDE: &str = include_str!("../docs/inspect.md");
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                assert!(GUIDE.contains(&format!("`{name}`")), "docs/inspect.md says nothing of {name}");
                documented(value);
            }
        }
        Value::Array(values) => values.iter().for_each(documented),
        _ => {}
    }
}

/// All files, with their times: but for images, which a file system that is mounted from them may write at any time.
fn world_files(directory: &Path) -> String {
    let (image, other) = ("%p %i %s\n", "%p %i %s %T@ %C@\n");
    run("find", [&text(directory), "-name", "image", "-printf", image, "-o", "-printf", other])
}

#[test]
fn repair_beside_a_driver_is_refused() {
    isolated(|| {
        let mut world = World::new();
        let (id, _) = world.staged("a");
        forget(&world, &id);
        let seen = world.seen(1, &[]);
        assert_eq!(kinds(&seen), ["mount-unknown", "device-unowned"]);
        let output = world.inspect(&["--fix", "--yes"]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(4) && said.contains(&format!("process {}", world.harness.pid())), "{said}");
        assert_eq!(kinds(&world.seen(1, &[])), ["mount-unknown", "device-unowned"], "all is as it was");
        // Nobody can be asked.
        world.harness.kill();
        let output = world.inspect(&["--fix"]);
        assert!(output.status.code() == Some(2) && String::from_utf8_lossy(&output.stderr).contains("--yes"));
        assert_eq!(kinds(&world.seen(1, &[])), ["mount-unknown", "device-unowned"], "all is as it was");
        world.seen(0, &["--fix", "--yes"]);
    });
}

/// What was found is looked at again: by the time that it is repaired, its name may be another's.
#[test]
fn resource_that_changed_its_owner_is_not_repaired() {
    // Between two commands another process may take the number of the loop device; then nothing was tested.
    isolated(|| while !anothers_device_and_mount_are_left_alone() {});
}

fn anothers_device_and_mount_are_left_alone() -> bool {
    let mut world = World::new();
    let (id, staging) = world.staged("a");
    world.harness.kill();
    forget(&world, &id);
    let setup = setup(&world);
    let report = inspect(&setup).expect("looked at");
    let repairs: Vec<&Repair> = report.findings.iter().filter_map(|finding| finding.repair.as_ref()).collect();
    assert!(matches!(repairs.as_slice(), [Repair::Unmount { .. }, Repair::Release { .. }]), "{repairs:?}");
    // An administrator takes it down, and has the same device and place for something else.
    let device = world.harness.loops().remove(0);
    unmount(&staging);
    run("losetup", ["--detach", &device]);
    let image = world.harness.path("pool/other.img");
    run("truncate", ["-s", "16M", &text(&image)]);
    run("mkfs.ext4", ["-q", "-F", &text(&image)]);
    if !Command::new("losetup").args([&device, &text(&image)]).status().expect("losetup").success() {
        return false;
    }
    let repairer = Repairer::new(&setup).expect("no driver runs");
    assert!(repairer.repair(repairs[1]).is_err(), "the device shows another file");
    mount(Some(device.as_str()), &staging, Some("ext4"), MsFlags::empty(), None::<&str>).expect("mounted");
    assert!(repairer.repair(repairs[0]).is_err(), "it is another mount");
    assert_eq!(mounts_at(&staging), 1);
    assert!(loop_files().contains(&(device.clone(), text(&image))));
    unmount(&staging);
    run("losetup", ["--detach", &device]);
    // A driver cannot start meanwhile.
    assert!(!world.harness.try_start() && world.harness.log().contains("serves this node"), "{}", world.harness.log());
    drop(repairer);
    world.harness.start();
    true
}

fn setup(world: &World) -> Setup {
    let config = ImageConfig {
        name: "image".parse().expect("a name"),
        pools: vec![PoolConfig {
            name: "default".to_owned(),
            path: world.harness.path("pool/images"),
            overcommit: 1.0,
            capacity: None,
        }],
        node: None,
        shared: false,
    };
    let name = config.name.clone();
    let backend: Arc<dyn Backend> = Arc::new(ImageBackend::open_to_look(config, None).expect("opened"));
    Setup {
        node: NodeSettings {
            node_id: "node-1".parse().expect("an id"),
            kubelet_dir: world.harness.path("kubelet"),
            state_dir: world.harness.path("state"),
            inline_limits: InlineLimits { max_size: longshore::volume::Bytes::GIB, allowed_parameters: Vec::new() },
        },
        driver: "longshore.csi.dev".to_owned(),
        endpoint: world.harness.path("csi.sock"),
        backends: vec![Configured { name, backend: Ok(backend) }],
    }
}

#[test]
fn a_running_driver_is_asked_by_the_printed_command() {
    isolated(|| {
        let world = World::new();
        let (_, staging) = world.staged("a");
        unmount(&staging);
        let seen = world.seen(1, &[]);
        assert_eq!(kinds(&seen), ["mount-missing"]);
        assert_eq!(seen["volumes"][0]["problems"][0]["reason"], "MountMissing");
        world.paste(&seen);
        world.seen(0, &[]);
        world.harness.assert_nothing_left();
    });
}

#[test]
fn resource_of_an_operation_in_progress_is_no_orphan() {
    isolated(|| {
        let world = World::new();
        let ids: Vec<String> = (0..3).map(|n| world.volume(&format!("v{n}"), Some("ext4"))).collect();
        let socket = world.harness.path("csi.sock");
        let done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            for id in &ids {
                let (socket, done, staging) = (&socket, &done, world.harness.staging(id));
                scope.spawn(move || {
                    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
                    let mut node = runtime.block_on(async { csi::node_client::NodeClient::new(common::connect(socket.clone())) });
                    while !done.load(std::sync::atomic::Ordering::Relaxed) {
                        let stage = stage_request(id.clone(), &staging, capability(Some("ext4")));
                        runtime.block_on(node.node_stage_volume(stage)).expect("staged");
                        let unstage =
                            csi::NodeUnstageVolumeRequest { volume_id: id.clone(), staging_target_path: text(&staging) };
                        runtime.block_on(node.node_unstage_volume(unstage)).expect("unstaged");
                    }
                });
            }
            let looks = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                for _ in 0..25 {
                    let output = world.command(&[]).output().expect("it runs");
                    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stdout));
                }
            }));
            done.store(true, std::sync::atomic::Ordering::Relaxed);
            if let Err(panic) = looks {
                std::panic::resume_unwind(panic);
            }
        });
    });
}

#[test]
fn resource_that_cannot_be_read_is_not_taken_for_absent() {
    isolated(|| {
        let mut world = World::new();
        let (id, staging) = world.staged("a");
        world.harness.kill();
        let (pool, away) = (world.harness.path("pool/images"), world.harness.path("pool/away"));
        fs::rename(&pool, &away).expect("renamed");
        for words in [&[][..], &[id.as_str()], &["--fix", "--yes"]] {
            let seen = world.seen(3, words);
            assert!(kinds(&seen).is_empty() && !seen["notSeen"].as_array().expect("a list").is_empty(), "{seen:#}");
        }
        assert_eq!((mounts_at(&staging), world.harness.loops().len()), (1, 1));
        assert_eq!(world.inspect(&["no-such"]).status.code(), Some(3), "it may be where we could not look");
        fs::rename(&away, &pool).expect("renamed");
        world.seen(0, &[]);
        let nowhere = PathBuf::from("/no/such/directory");
        let [state, kubelet] = ["state", "kubelet"].map(|name| world.harness.path(name));
        for (name, state, kubelet) in [("state_dir", &nowhere, &kubelet), ("kubelet_dir", &state, &nowhere)] {
            let mut command = Command::new(env!("CARGO_BIN_EXE_longshore"));
            command.arg("inspect").arg("--state-dir").arg(state).arg("--kubelet-dir").arg(kubelet);
            let output = command.output().expect("it runs");
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.code() == Some(2) && said.contains(name) && said.contains("/no/such/directory"), "{said}");
        }
    });
}

/// A file system whose server never answers: a mount of FUSE with nobody behind it.
#[test]
fn a_dead_file_system_does_not_hang_it() {
    isolated(|| {
        use std::os::fd::AsRawFd;
        let mut world = World::new();
        let (_, staging) = world.staged("a");
        world.harness.kill();
        let Ok(fuse) = fs::File::options().read(true).write(true).open("/dev/fuse") else { return skipped("no FUSE") };
        let dead = world.harness.path("dead");
        fs::create_dir(&dead).expect("a directory");
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", fuse.as_raw_fd());
        mount(Some("dead"), &dead, Some("fuse"), MsFlags::empty(), Some(options.as_str())).expect("mounted");
        let config = fs::read_to_string(world.harness.path("config.yaml")).expect("a file");
        let place = text(&dead.join("pool"));
        fs::write(
            world.harness.path("config.yaml"),
            config + &format!("  - {{name: far, type: image, pools: [{{name: p, path: {place}}}]}}\n"),
        )
        .expect("written");
        let begun = Instant::now();
        let seen = world.seen(3, &[]);
        println!("a dead pool cost {:?}", begun.elapsed());
        assert!(begun.elapsed() < Duration::from_secs(40), "{:?}", begun.elapsed());
        assert_eq!(seen["notSeen"][0]["what"], "backend far", "{seen:#}");
        assert_eq!(seen["volumes"][0]["state"], "staged", "the others are seen: {seen:#}");
        assert_eq!(mounts_at(&staging), 1);
        drop(fuse);
        umount2(&dead, MntFlags::MNT_DETACH).expect("unmounted");
    });
}

#[test]
fn one_driver_at_a_time_serves_a_state_directory() {
    isolated(|| {
        let mut world = World::new();
        let (state, kubelet) = (world.harness.path("state"), world.harness.path("kubelet"));
        let second = |config: &Path| {
            let _starting = common::starting();
            let mut command = Command::new(env!("CARGO_BIN_EXE_longshore"));
            command.args(["serve", "--mode", "node", "--endpoint"]).arg(world.harness.path("second.sock"));
            command.arg("--state-dir").arg(&state).arg("--kubelet-dir").arg(&kubelet).arg("--config").arg(config);
            command.stdin(Stdio::null()).output().expect("it runs")
        };
        let output = second(&world.harness.path("config.yaml"));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            !output.status.success() && said.contains(&format!("process {} serves this node", world.harness.pid())),
            "{said}"
        );
        world.harness.kill();
        world.harness.start();
    });
}

#[test]
fn a_thousand_volumes_are_seen_at_once() {
    isolated(|| {
        let world = World::new();
        for number in 0..1000 {
            world.volume(&format!("v{number:04}"), None);
        }
        let staged: Vec<String> = (0..100).map(|number| format!("image:v{number:04}")).collect();
        for id in &staged {
            world.stage(id, None);
        }
        let mut times: Vec<Duration> = (0..5)
            .map(|_| {
                let begun = Instant::now();
                let seen = world.seen(0, &[]);
                assert_eq!(seen["volumes"].as_array().map(Vec::len), Some(1000));
                begun.elapsed()
            })
            .collect();
        times.sort();
        println!("FIGURE: inspect: 1000 volumes, {} staged, {} milliseconds", staged.len(), times[2].as_millis());
        assert!(times[0] < Duration::from_secs(10), "{times:?}");
        for id in &staged {
            let staging = text(&world.harness.path("kubelet/plugins").join(id).join("globalmount"));
            let request = csi::NodeUnstageVolumeRequest { volume_id: id.clone(), staging_target_path: staging };
            world.harness.block_on(world.harness.node().node_unstage_volume(request)).expect("unstaged");
        }
    });
}

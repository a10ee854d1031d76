//! Volumes that are directories of a local file system, through the socket; what is asserted is what the kernel and the disk show.

mod common;

use std::collections::HashMap;
use std::ffi::CString;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::{Harness, MIB, Pool, capability, create, isolated, mounts_at, starting, text};
use longshore::csi;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use serde_json::json;
use tonic::{Code, Status};

const BASE: &str = "pool/base";

/// A driver with the backend `dir` on an xfs of its own, and `more` in the backend's configuration.
fn harness(more: &str) -> Harness {
    harness_on(Pool::Xfs, more)
}

fn harness_on(pool: Pool, more: &str) -> Harness {
    let harness = Harness::new(pool);
    for name in [BASE, "pool/static"] {
        fs::create_dir(harness.path(name)).expect("a directory");
        fs::set_permissions(harness.path(name), PermissionsExt::from_mode(0o755)).expect("a mode");
    }
    harness.configure(&format!(
        "  - name: dir\n    type: directory\n    path: {}\n    staticPaths: [{}]\n{more}",
        harness.path(BASE).display(),
        harness.path("pool/static").display()
    ));
    harness
}

fn request(name: &str) -> csi::CreateVolumeRequest {
    create(name, 64, Some("ext4"), "dir")
}

fn for_many(mut capability: csi::VolumeCapability) -> csi::VolumeCapability {
    let mode = csi::volume_capability::access_mode::Mode::MultiNodeMultiWriter.into();
    capability.access_mode = Some(csi::volume_capability::AccessMode { mode });
    capability
}

fn made(harness: &Harness, request: csi::CreateVolumeRequest) -> Result<csi::Volume, Status> {
    harness.block_on(harness.controller().create_volume(request)).map(|answer| answer.into_inner().volume.expect("a volume"))
}

fn delete(harness: &Harness, id: &str) -> Result<(), Status> {
    let request = csi::DeleteVolumeRequest { volume_id: id.to_owned(), ..Default::default() };
    harness.block_on(harness.controller().delete_volume(request)).map(drop)
}

fn stage(harness: &Harness, volume: &csi::Volume, name: &str) -> Result<(), Status> {
    let request = csi::NodeStageVolumeRequest {
        volume_id: volume.volume_id.clone(),
        staging_target_path: text(&harness.staging(name)),
        volume_capability: Some(for_many(capability(Some("ext4")))),
        volume_context: volume.volume_context.clone(),
        ..Default::default()
    };
    harness.block_on(harness.node().node_stage_volume(request)).map(drop)
}

fn publish(harness: &Harness, volume: &csi::Volume, name: &str, target: &str, readonly: bool) -> Result<PathBuf, Status> {
    let target = harness.target(target);
    let request = csi::NodePublishVolumeRequest {
        volume_id: volume.volume_id.clone(),
        staging_target_path: text(&harness.staging(name)),
        target_path: text(&target),
        volume_capability: Some(for_many(capability(Some("ext4")))),
        volume_context: volume.volume_context.clone(),
        readonly,
        ..Default::default()
    };
    harness.block_on(harness.node().node_publish_volume(request)).map(|_| target)
}

fn unpublish(harness: &Harness, id: &str, target: &Path) {
    let request = csi::NodeUnpublishVolumeRequest { volume_id: id.to_owned(), target_path: text(target) };
    harness.block_on(harness.node().node_unpublish_volume(request)).expect("unpublished");
}

fn unstage(harness: &Harness, id: &str, name: &str) {
    let request = csi::NodeUnstageVolumeRequest { volume_id: id.to_owned(), staging_target_path: text(&harness.staging(name)) };
    harness.block_on(harness.node().node_unstage_volume(request)).expect("unstaged");
}

fn statistics(harness: &Harness, id: &str, path: &Path) -> Result<Vec<csi::VolumeUsage>, Status> {
    let request =
        csi::NodeGetVolumeStatsRequest { volume_id: id.to_owned(), volume_path: text(path), staging_target_path: String::new() };
    harness.block_on(harness.node().node_get_volume_stats(request)).map(|answer| answer.into_inner().usage)
}

/// A static volume at `path`.
fn static_volume(id: &str, path: &str) -> csi::Volume {
    let pairs = [("backend", "dir"), ("path", path)].map(|(key, value)| (key.to_owned(), value.to_owned()));
    csi::Volume { volume_id: id.to_owned(), volume_context: HashMap::from(pairs), ..Default::default() }
}

fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(directory)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// The trash is emptied behind its caller's back.
fn await_empty(directory: &Path) {
    let end = Instant::now() + Duration::from_secs(30);
    while !names(directory).is_empty() {
        assert!(Instant::now() < end, "{} still holds {:?}", directory.display(), names(directory));
        std::thread::yield_now();
    }
}

#[test]
fn a_directory_lives_from_creation_to_the_trash() {
    life(Pool::Xfs);
}

#[test]
fn a_subvolume_lives_from_creation_to_the_trash() {
    life(Pool::Btrfs);
}

fn life(pool: Pool) {
    isolated(|| {
        let mut harness = harness_on(pool, "");
        harness.start();
        let mut first = request("first");
        first.volume_capabilities = vec![for_many(capability(Some("ext4")))];
        let volume = made(&harness, first.clone()).expect("made");
        assert_eq!(made(&harness, first).expect("a repeat").volume_id, volume.volume_id);
        let topology = &volume.accessible_topology[0].segments;
        assert_eq!(topology.values().collect::<Vec<_>>(), ["node-1"], "{topology:?}");
        let own = harness.path(BASE).join(volume.volume_id.strip_prefix("dir:").expect("an id"));
        let mode = own.metadata().expect("its directory").mode() & 0o7777;
        assert_eq!(mode, 0o755, "no chmod 0777");
        let is_subvolume = own.metadata().expect("its directory").dev() != harness.path(BASE).metadata().expect("the base").dev();
        assert_eq!(is_subvolume, pool == Pool::Btrfs);

        for _ in 0..2 {
            stage(&harness, &volume, "first").expect("staged");
        }
        let one = publish(&harness, &volume, "first", "one", false).expect("published");
        let other = publish(&harness, &volume, "first", "other", false).expect("published for another pod");
        let reader = publish(&harness, &volume, "first", "reader", true).expect("published read-only");
        publish(&harness, &volume, "first", "one", false).expect("a repeat");
        assert_eq!([&one, &other, &reader].map(|target| mounts_at(target)), [1, 1, 1]);
        fs::write(one.join("file"), "one").expect("written");
        assert_eq!(fs::read(other.join("file")).expect("shared"), b"one");
        assert_eq!(fs::read(own.join("file")).expect("it is this directory"), b"one");
        assert_eq!(fs::write(reader.join("file"), "no").expect_err("read-only").raw_os_error(), Some(libc::EROFS));
        let options = fs::read_to_string("/proc/thread-self/mountinfo").expect("mountinfo");
        let line = options.lines().find(|line| line.contains(&text(&one))).expect("mounted");
        assert!(line.contains("nosuid,nodev"), "{line}");
        assert!(statistics(&harness, &volume.volume_id, &one).expect("statistics").iter().all(|usage| usage.total > 0));

        // It is in use, whatever the journal says.
        let error = delete(&harness, &volume.volume_id).expect_err("in use");
        assert_eq!(error.code(), Code::FailedPrecondition, "{error}");
        harness.stop();
        fs::rename(harness.path("state/journal"), harness.path("lost")).expect("the journal is lost");
        harness.start();
        let error = delete(&harness, &volume.volume_id).expect_err("in use");
        assert_eq!(error.code(), Code::FailedPrecondition, "{error}");
        assert_eq!(fs::read(own.join("file")).expect("there"), b"one");
        for target in [&one, &other, &reader] {
            umount2(target.as_path(), MntFlags::empty()).expect("unmounted by hand");
        }
        umount2(harness.staging("first").as_path(), MntFlags::empty()).expect("unmounted by hand");

        let snapshot = csi::CreateSnapshotRequest {
            source_volume_id: volume.volume_id.clone(),
            name: "then".to_owned(),
            ..Default::default()
        };
        let taken = harness.block_on(harness.controller().create_snapshot(snapshot)).expect("taken").into_inner();
        let taken = taken.snapshot.expect("a snapshot");
        assert!(taken.ready_to_use);
        fs::write(own.join("file"), "changed").expect("written");
        let source = csi::volume_content_source::SnapshotSource { snapshot_id: taken.snapshot_id.clone() };
        let source = csi::VolumeContentSource { r#type: Some(csi::volume_content_source::Type::Snapshot(source)) };
        let restored = made(&harness, csi::CreateVolumeRequest { volume_content_source: Some(source), ..request("second") });
        let restored = restored.expect("restored");
        stage(&harness, &restored, "second").expect("staged");
        let target = publish(&harness, &restored, "second", "second", false).expect("published");
        assert_eq!(fs::read(target.join("file")).expect("there"), b"one");
        unpublish(&harness, &restored.volume_id, &target);
        unstage(&harness, &restored.volume_id, "second");
        for id in [&restored.volume_id, &volume.volume_id] {
            delete(&harness, id).expect("deleted");
            delete(&harness, id).expect("a repeat");
        }
        let request = csi::DeleteSnapshotRequest { snapshot_id: taken.snapshot_id, ..Default::default() };
        harness.block_on(harness.controller().delete_snapshot(request)).expect("deleted");
        await_empty(&harness.path(BASE).join(".longshore/trash"));
        assert_eq!(names(&harness.path(BASE)), [".longshore"]);
        harness.assert_nothing_left();
    });
}

#[test]
fn block_volume_and_mount_options_of_a_file_system_are_refused_with_the_reason() {
    isolated(|| {
        let mut harness = harness("");
        harness.start();
        let error = made(&harness, create("block", 64, None, "dir")).expect_err("no block");
        assert!(error.message().contains("has directories, not devices"), "{error}");
        for (flag, reason) in [("suid", "is forbidden"), ("dev", "is forbidden"), ("data=ordered", "one of a file system")] {
            let mut flagged = request("flagged");
            let access = csi::volume_capability::MountVolume { mount_flags: vec![flag.to_owned()], ..Default::default() };
            flagged.volume_capabilities[0].access_type = Some(csi::volume_capability::AccessType::Mount(access));
            let error = made(&harness, flagged).expect_err(flag);
            assert!(error.message().contains(reason), "{flag}: {error}");
        }
        assert_eq!(names(&harness.path(BASE)), [".longshore"], "nothing was made");
    });
}

/// What `longshore inspect` or `doctor` says of this node.
fn reported(harness: &Harness, name: &str) -> serde_json::Value {
    let _starting = starting();
    let output = harness.command(name).arg("--json").output().expect("it runs");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

#[test]
fn directories_and_what_is_left_of_deleted_ones_are_shown() {
    isolated(|| {
        let mut harness = harness("");
        let before = reported(&harness, "inspect");
        assert_eq!(before["findings"], json!([]), "a base that was never used: {before:#}");
        assert!(!before["notSeen"].to_string().contains("base directory"), "a base that was never used: {before:#}");
        harness.start();
        let volume = made(&harness, request("shown")).expect("made");
        let mut retained = request("retained");
        retained.parameters.insert("onDelete".to_owned(), "retain".to_owned());
        let retained = made(&harness, retained).expect("made");
        delete(&harness, &retained.volume_id).expect("deleted");
        let lost = made(&harness, request("lost")).expect("made");
        fs::remove_dir(harness.path(BASE).join("lost")).expect("removed");

        let seen = reported(&harness, "inspect");
        let storage =
            seen["storage"].as_array().expect("a list").iter().find(|one| one["backend"] == "dir").expect("the backend");
        assert_eq!(storage["at"], text(&harness.path(BASE)), "{storage:#}");
        let of = |id: &str| {
            let all = seen["volumes"].as_array().expect("a list").iter();
            all.clone().find(|one| one["id"] == id).unwrap_or_else(|| panic!("no {id}: {seen:#}"))
        };
        assert_eq!(of(&volume.volume_id)["stored"]["capacity"], 64 * MIB);
        assert!(of(&lost.volume_id).to_string().contains("DirectoryMissing"), "{seen:#}");
        let findings = |seen: &serde_json::Value| {
            let found = seen["findings"].as_array().expect("a list").iter();
            found.map(|one| (one["kind"].clone(), one["object"].clone())).collect::<Vec<_>>()
        };
        let kept = ("metadata-missing".into(), text(&harness.path(BASE).join("retained")).into());
        assert_eq!(findings(&seen), std::slice::from_ref(&kept), "{seen:#}");

        // What a running driver deletes is not left; what a killed one has left is.
        let trash = harness.path(BASE).join(".longshore/trash/left~1");
        fs::create_dir(&trash).expect("made");
        assert_eq!(findings(&reported(&harness, "inspect")), std::slice::from_ref(&kept));
        harness.kill();
        let seen = reported(&harness, "inspect");
        assert_eq!(findings(&seen), [("trash".into(), text(&trash).into()), kept], "{seen:#}");
        let checks = reported(&harness, "doctor");
        let of = |name: &str| {
            let mut found = checks["checks"].as_array().expect("a list").iter();
            found.find(|one| one["name"] == name && one["found"].to_string().contains("pool base")).cloned()
        };
        assert_eq!(of("pool-quota").expect("a check")["level"], "warning", "{checks:#}");
        assert!(
            of("pool-lock").expect("a check")["found"].to_string().contains("no process is seen to have its lock"),
            "{checks:#}"
        );
    });
}

#[test]
fn base_directory_of_an_unmounted_disk_is_refused_and_nothing_is_written_there() {
    isolated(|| {
        let mut harness = harness("");
        harness.start();
        let volume = made(&harness, request("kept")).expect("made");
        fs::write(harness.path(BASE).join(&volume.volume_id[4..]).join("file"), "precious").expect("written");
        let device = fs::read_to_string("/proc/thread-self/mountinfo").expect("mountinfo");
        let device = device.lines().find(|line| line.contains(&format!(" {} ", text(&harness.path("pool"))))).expect("mounted");
        let device = device.rsplit(" - ").next().expect("fields").split(' ').nth(1).expect("a source").to_owned();

        // While the driver runs, and after it was started.
        for restart in [false, true] {
            umount2(harness.path("pool").as_path(), MntFlags::MNT_DETACH).expect("unmounted");
            for name in ["pool/images", BASE] {
                fs::create_dir_all(harness.path(name)).expect("the directory below the mount point");
            }
            if restart {
                harness.stop();
                harness.start();
            }
            for error in [
                made(&harness, request("other")).expect_err("no base"),
                made(&harness, request("kept")).expect_err("no base"),
                delete(&harness, &volume.volume_id).expect_err("not gone"),
                stage(&harness, &volume, "kept").expect_err("not there"),
            ] {
                assert_eq!(error.code(), Code::Unavailable, "{error}");
                assert!(error.message().contains("most likely its disk is not mounted; mount it"), "{error}");
            }
            // Nor one in which another driver had begun: it has a marker, and not the recorded one.
            fs::create_dir(harness.path(BASE).join(".longshore")).expect("made");
            fs::set_permissions(harness.path(BASE).join(".longshore"), PermissionsExt::from_mode(0o700)).expect("a mode");
            let marker = "{\"format\": 1, \"id\": \"another\", \"backend\": \"dir\"}";
            fs::write(harness.path(BASE).join(".longshore/marker.json"), marker).expect("written");
            let error = made(&harness, request("other")).expect_err("another base");
            assert!(error.message().contains("is not the base directory that was used before"), "{error}");
            assert_eq!(names(&harness.path(BASE).join(".longshore")), ["marker.json"], "nothing was made");
            fs::remove_file(harness.path(BASE).join(".longshore/marker.json")).expect("removed");
            fs::remove_dir(harness.path(BASE).join(".longshore")).expect("removed");
            assert_eq!(names(&harness.path(BASE)), [""; 0], "nothing was made");
            mount(Some(device.as_str()), &harness.path("pool"), Some("xfs"), MsFlags::empty(), None::<&str>).expect("mounted");
            assert_eq!(made(&harness, request("kept")).expect("it is there again").volume_id, volume.volume_id);
            stage(&harness, &volume, "kept").expect("staged");
            assert_eq!(fs::read(harness.staging("kept").join("file")).expect("there"), b"precious");
            unstage(&harness, &volume.volume_id, "kept");
        }
        harness.assert_nothing_left();
    });
}

#[test]
fn base_directory_is_made_at_the_first_start_and_never_again() {
    isolated(|| {
        let mut harness = harness("");
        fs::remove_dir(harness.path(BASE)).expect("removed");
        harness.start();
        assert_eq!(fs::metadata(harness.path(BASE)).expect("made").permissions().mode() & 0o7777, 0o700);
        made(&harness, request("one")).expect("made");

        fs::rename(harness.path(BASE), harness.path("pool/elsewhere")).expect("renamed");
        for restart in [false, true] {
            if restart {
                harness.stop();
                harness.start();
            }
            let error = made(&harness, request("two")).expect_err("no base");
            assert_eq!(error.code(), Code::Unavailable, "{error}");
            assert!(!harness.path(BASE).exists(), "it was made again");
        }
        fs::rename(harness.path("pool/elsewhere"), harness.path(BASE)).expect("renamed");
        delete(&harness, "dir:one").expect("deleted");
    });
}

#[test]
fn base_directory_on_another_file_system_than_the_configured_one_is_refused() {
    isolated(|| {
        let mut harness = harness("    filesystem: 00000000-0000-0000-0000-000000000001\n");
        harness.start();
        let error = made(&harness, request("none")).expect_err("another file system");
        assert_eq!(error.code(), Code::Unavailable, "{error}");
        assert!(error.message().contains("not on 00000000-0000-0000-0000-000000000001"), "{error}");
        assert_eq!(names(&harness.path(BASE)), [""; 0], "nothing was made");
    });
}

#[test]
fn required_quota_without_project_quotas_is_refused_with_the_remedy() {
    isolated(|| {
        let mut harness = harness("    quota: required\n");
        harness.start();
        let error = made(&harness, request("none")).expect_err("no quotas");
        assert!(error.message().contains("mount it with prjquota"), "{error}");
        assert_eq!(names(&harness.path(BASE)), [".longshore"], "no volume was made");
        assert_eq!(names(&harness.path(BASE).join(".longshore/volumes")), [""; 0], "no record is left");
    });
}

#[test]
fn static_path_is_bound_only_below_what_is_allowed_and_over_no_link() {
    isolated(|| {
        let mut harness = harness("");
        let top = harness.path("pool/static");
        fs::create_dir_all(top.join("pvc-1_shop_data/inner")).expect("made");
        fs::write(top.join("pvc-1_shop_data/file"), "old data").expect("written");
        fs::create_dir(harness.path("outside")).expect("made");
        fs::write(harness.path("outside/secret"), "secret").expect("written");
        symlink(harness.path("outside"), top.join("link")).expect("linked");
        symlink("../../outside", top.join("up")).expect("linked");
        fs::write(top.join("plain"), "").expect("written");
        harness.start();
        let volume = static_volume("old-local-path-volume", &text(&top.join("pvc-1_shop_data")));
        for _ in 0..2 {
            stage(&harness, &volume, "old").expect("staged");
        }
        let target = publish(&harness, &volume, "old", "old", false).expect("published");
        assert_eq!(fs::read(target.join("file")).expect("there"), b"old data");
        assert!(statistics(&harness, &volume.volume_id, &target).expect("statistics").iter().all(|usage| usage.total > 0));
        unpublish(&harness, &volume.volume_id, &target);
        unstage(&harness, &volume.volume_id, "old");
        assert_eq!(fs::read(top.join("pvc-1_shop_data/file")).expect("it stays"), b"old data");

        for (path, code) in [
            (text(&top), Code::InvalidArgument),
            (format!("{}/../../outside", text(&top)), Code::InvalidArgument),
            (text(&harness.path("outside")), Code::InvalidArgument),
            ("/etc".to_owned(), Code::InvalidArgument),
            (text(&top.join("link")), Code::InvalidArgument),
            (text(&top.join("link/x")), Code::InvalidArgument),
            (text(&top.join("up")), Code::InvalidArgument),
            (text(&top.join("plain")), Code::InvalidArgument),
            (text(&top.join("missing")), Code::NotFound),
        ] {
            let error = stage(&harness, &static_volume("bad", &path), "bad").expect_err(&path);
            assert_eq!(error.code(), code, "{path}: {error}");
            assert_eq!(mounts_at(&harness.staging("bad")), 0, "{path}");
        }
        harness.assert_nothing_left();
    });
}

/// Renames exchange the two names.
fn exchange(one: &Path, other: &Path) {
    let [one, other] = [one, other].map(|path| CString::new(text(path)).expect("a path"));
    // SAFETY: both are C strings.
    #[allow(unsafe_code, reason = "renameat2(2) with RENAME_EXCHANGE")]
    let answer = unsafe { libc::renameat2(libc::AT_FDCWD, one.as_ptr(), libc::AT_FDCWD, other.as_ptr(), libc::RENAME_EXCHANGE) };
    assert_eq!(answer, 0, "{}", std::io::Error::last_os_error());
}

#[test]
fn directory_exchanged_with_a_link_or_another_during_the_calls_is_never_shown() {
    isolated(|| {
        let mut harness = harness("");
        let top = harness.path("pool/static");
        fs::create_dir_all(top.join("mine/data")).expect("made");
        fs::write(top.join("mine/data/whose"), "mine").expect("written");
        fs::create_dir_all(harness.path("pool/outside/data")).expect("made");
        fs::write(harness.path("pool/outside/data/whose"), "another's").expect("written");
        symlink(harness.path("pool/outside"), top.join("link")).expect("linked");
        harness.start();
        let volume = static_volume("swapped", &text(&top.join("mine/data")));
        let (mut shown, mut refused) = (0, 0);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    exchange(&top.join("mine"), &top.join("link"));
                }
            });
            for _ in 0..60 {
                match stage(&harness, &volume, "swapped") {
                    Ok(()) => {
                        let whose = fs::read(harness.staging("swapped").join("whose")).expect("staged");
                        assert_eq!(whose, b"mine", "it led over the link");
                        shown += 1;
                    }
                    Err(_) => refused += 1,
                }
                let request = csi::NodeUnstageVolumeRequest {
                    volume_id: volume.volume_id.clone(),
                    staging_target_path: text(&harness.staging("swapped")),
                };
                // The directory's name may be the link's by now; once it is its own again the call must come through.
                harness.block_on(harness.node().node_unstage_volume(request)).ok();
            }
            stop.store(true, Ordering::Relaxed);
        });
        if top.join("mine").symlink_metadata().expect("there").is_symlink() {
            exchange(&top.join("mine"), &top.join("link"));
        }
        unstage(&harness, &volume.volume_id, "swapped");
        println!("FIGURE: directory exchanged: {shown} shown, {refused} refused");
        assert_eq!(fs::read(harness.path("pool/outside/data/whose")).expect("untouched"), b"another's");
        stage(&harness, &volume, "swapped").expect("staged");
        assert_eq!(fs::read(harness.staging("swapped").join("whose")).expect("staged"), b"mine");
        unstage(&harness, &volume.volume_id, "swapped");
        harness.assert_nothing_left();
    });
}

#[test]
fn mount_inside_of_a_volume_is_neither_shown_nor_emptied() {
    mount_inside(Pool::Xfs);
}

#[test]
fn mount_inside_of_a_subvolume_is_neither_shown_nor_emptied() {
    mount_inside(Pool::Btrfs);
}

fn mount_inside(pool: Pool) {
    isolated(|| {
        let mut harness = harness_on(pool, "");
        harness.start();
        let volume = made(&harness, request("holder")).expect("made");
        let own = harness.path(BASE).join(&volume.volume_id[4..]);
        let inside = own.join("inside");
        fs::create_dir(&inside).expect("made");
        mount(Some("tmpfs"), &inside, Some("tmpfs"), MsFlags::empty(), None::<&str>).expect("mounted");
        fs::write(inside.join("precious"), "another's").expect("written");
        stage(&harness, &volume, "holder").expect("staged");
        assert_eq!(names(&harness.staging("holder").join("inside")), [""; 0], "what is mounted inside is not shown");
        unstage(&harness, &volume.volume_id, "holder");
        delete(&harness, &volume.volume_id).expect("deleted");
        let trash = harness.path(BASE).join(".longshore/trash");
        let thrown = trash.join(&names(&trash)[0]).join("inside/precious");
        assert_eq!(fs::read(&thrown).expect("left alone"), b"another's");
        // A directory in the place of the mount: a new volume cannot be made over anything that is there.
        fs::create_dir(&own).expect("made");
        fs::write(own.join("file"), "another's").expect("written");
        let error = made(&harness, request("holder")).expect_err("in the way");
        assert_eq!(error.code(), Code::AlreadyExists, "{error}");
        assert_eq!(fs::read(own.join("file")).expect("left alone"), b"another's");
        umount2(thrown.parent().expect("a directory"), MntFlags::empty()).expect("unmounted");
        await_empty(&trash);
    });
}

/// An administrator mounts something on a volume's directory, and the volume is deleted.
#[test]
fn volume_with_a_mount_on_its_directory_is_deleted_when_that_is_unmounted() {
    isolated(|| {
        let mut harness = harness("");
        harness.start();
        let volume = made(&harness, request("covered")).expect("made");
        let own = harness.path(BASE).join(&volume.volume_id[4..]);
        fs::write(own.join("file"), "the volume's").expect("written");
        mount(Some("tmpfs"), &own, Some("tmpfs"), MsFlags::empty(), None::<&str>).expect("mounted");
        fs::write(own.join("precious"), "another's").expect("written");
        let error = delete(&harness, &volume.volume_id).expect_err("its directory is covered");
        assert!(error.code() == Code::FailedPrecondition && error.message().contains("umount"), "{error}");
        assert_eq!(fs::read(own.join("precious")).expect("left alone"), b"another's");
        umount2(&own, MntFlags::empty()).expect("unmounted");
        delete(&harness, &volume.volume_id).expect("deleted");
        assert!(!own.exists());
        await_empty(&harness.path(BASE).join(".longshore/trash"));
    });
}

#[test]
fn retained_and_archived_directories_keep_their_data() {
    isolated(|| {
        let mut harness = harness("");
        harness.start();
        for way in ["retain", "archive"] {
            let mut wanted = request(way);
            wanted.parameters.insert("onDelete".to_owned(), way.to_owned());
            wanted.parameters.insert("subDir".to_owned(), format!("team/{way}"));
            wanted.parameters.insert("mountPermissions".to_owned(), "2770".to_owned());
            wanted.parameters.insert("gid".to_owned(), "1234".to_owned());
            let volume = made(&harness, wanted).expect("made");
            let own = harness.path(BASE).join("team").join(way);
            let seen = own.metadata().expect("its directory");
            assert_eq!((seen.mode() & 0o7777, seen.gid()), (0o2770, 1234));
            fs::write(own.join("file"), way).expect("written");
            delete(&harness, &volume.volume_id).expect("deleted");
        }
        assert_eq!(fs::read(harness.path(BASE).join("team/retain/file")).expect("retained"), b"retain");
        let archive = harness.path(BASE).join(".longshore/archive");
        let kept = names(&archive).into_iter().find(|name| archive.join(name).is_dir()).expect("archived");
        assert_eq!(fs::read(archive.join(kept).join("file")).expect("archived"), b"archive");
    });
}

/// Asks for the inline volume `csi-ephemeral` of 64 MiB, with these attributes.
fn inline(target: &Path, more: &[(&str, &str)]) -> csi::NodePublishVolumeRequest {
    let pairs = [
        ("backend", "dir"),
        ("size", "64MiB"),
        ("csi.storage.k8s.io/ephemeral", "true"),
        ("csi.storage.k8s.io/pod.uid", "0b1e"),
        ("csi.storage.k8s.io/pod.name", "pod"),
        ("csi.storage.k8s.io/pod.namespace", "default"),
    ];
    csi::NodePublishVolumeRequest {
        volume_id: "csi-ephemeral".to_owned(),
        target_path: text(target),
        volume_capability: Some(capability(Some(""))),
        volume_context: pairs.iter().chain(more).map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
        ..Default::default()
    }
}

#[test]
fn ephemeral_volume_in_memory_has_its_size_and_leaves_nothing_on_disk() {
    isolated(|| {
        let mut harness = harness("");
        harness.start();
        let target = harness.target("pod");
        let request = inline(&target, &[("medium", "memory"), ("mountPermissions", "1770"), ("gid", "1234")]);
        let publish = |harness: &Harness| harness.block_on(harness.node().node_publish_volume(request.clone()));
        for _ in 0..2 {
            publish(&harness).expect("published");
        }
        let seen = nix::sys::statfs::statfs(&target).expect("mounted");
        assert_eq!(seen.filesystem_type(), nix::sys::statfs::TMPFS_MAGIC);
        let there = fs::metadata(&target).expect("a directory");
        assert_eq!((there.mode() & 0o7777, there.uid(), there.gid()), (0o1770, 0, 1234));
        let table = fs::read_to_string("/proc/thread-self/mountinfo").expect("mountinfo");
        let line = table.lines().find(|line| line.split(' ').nth(4) == Some(&text(&target))).expect("mounted");
        assert!(line.contains("nosuid,nodev"), "{line}");
        fs::write(target.join("kept"), "scratch").expect("written");
        let full = fs::write(target.join("large"), vec![1; 65 << 20]).expect_err("64 MiB is all there is");
        assert_eq!(full.raw_os_error(), Some(libc::ENOSPC));
        fs::remove_file(target.join("large")).expect("removed");
        let usage = statistics(&harness, "csi-ephemeral", &target).expect("statistics");
        let bytes = usage.iter().find(|usage| usage.unit == csi::volume_usage::Unit::Bytes as i32).expect("bytes");
        assert_eq!((bytes.total, bytes.used), (64 << 20, 4096));

        // The driver may end, and its journal be lost.
        harness.kill();
        harness.start();
        publish(&harness).expect("published still");
        assert_eq!(fs::read_to_string(target.join("kept")).expect("it is still there"), "scratch");
        assert_eq!(mounts_at(&target), 1);
        harness.kill();
        fs::rename(harness.path("state/journal"), harness.path("lost")).expect("the journal");
        harness.start();
        publish(&harness).expect("published still");
        assert_eq!(fs::read_to_string(target.join("kept")).expect("it is still there"), "scratch");

        unpublish(&harness, "csi-ephemeral", &target);
        await_empty(&harness.path(BASE).join(".longshore/trash"));
        assert_eq!(names(&harness.path(BASE)), [".longshore"]);
        harness.assert_nothing_left();
    });
}

#[test]
fn memory_is_no_medium_of_a_persistent_volume_and_is_not_copied() {
    isolated(|| {
        let mut harness = harness("");
        harness.start();
        let mut persistent = request("persistent");
        persistent.parameters.insert("medium".to_owned(), "memory".to_owned());
        let refused = made(&harness, persistent).expect_err("it would lose its data");
        assert_eq!(refused.code(), Code::InvalidArgument);
        assert!(refused.message().contains("medium") && refused.message().contains("ephemeral"), "{}", refused.message());
        assert_eq!(names(&harness.path(BASE)), [".longshore"]);

        let target = harness.target("pod");
        harness.block_on(harness.node().node_publish_volume(inline(&target, &[("medium", "memory")]))).expect("published");
        let listed = harness.block_on(harness.controller().list_volumes(csi::ListVolumesRequest::default())).expect("a list");
        let volumes: Vec<csi::Volume> = listed.into_inner().entries.into_iter().filter_map(|entry| entry.volume).collect();
        let [csi::Volume { volume_id: id, .. }] = &volumes[..] else { panic!("one volume: {volumes:?}") };
        let snapshot = csi::CreateSnapshotRequest { source_volume_id: id.clone(), name: "s".to_owned(), ..Default::default() };
        let refused = harness.block_on(harness.controller().create_snapshot(snapshot)).expect_err("its directory is empty");
        assert!(refused.message().contains("in memory"), "{}", refused.message());
        unpublish(&harness, "csi-ephemeral", &target);
        harness.assert_nothing_left();
    });
}

#[test]
fn ephemeral_directory_comes_and_goes_with_its_pod() {
    isolated(|| {
        let mut harness = harness("");
        harness.start();
        let target = harness.target("pod");
        let request = inline(&target, &[]);
        for _ in 0..2 {
            harness.block_on(harness.node().node_publish_volume(request.clone())).expect("published");
        }
        fs::write(target.join("file"), "scratch").expect("written");
        unpublish(&harness, "csi-ephemeral", &target);
        await_empty(&harness.path(BASE).join(".longshore/trash"));
        assert_eq!(names(&harness.path(BASE)), [".longshore"]);
        harness.assert_nothing_left();
    });
}

#[test]
fn capacity_of_the_backend_limits_what_is_made_and_is_reported_with_its_topology() {
    isolated(|| {
        let mut harness = harness("    capacity: 100MiB\n");
        harness.start();
        let capacity = |harness: &Harness| {
            let request = csi::GetCapacityRequest {
                parameters: HashMap::from([("backend".to_owned(), "dir".to_owned())]),
                ..Default::default()
            };
            harness.block_on(harness.controller().get_capacity(request)).expect("a capacity").into_inner().available_capacity
        };
        assert_eq!(capacity(&harness), 100 * MIB);
        let volume = made(&harness, request("one")).expect("made");
        assert_eq!(capacity(&harness), 36 * MIB);
        assert_eq!(made(&harness, request("two")).expect_err("no room").code(), Code::ResourceExhausted);
        let grow = csi::ControllerExpandVolumeRequest {
            volume_id: volume.volume_id.clone(),
            capacity_range: Some(csi::CapacityRange { required_bytes: 100 * MIB, limit_bytes: 0 }),
            ..Default::default()
        };
        let grown = harness.block_on(harness.controller().controller_expand_volume(grow)).expect("grown").into_inner();
        assert_eq!((grown.capacity_bytes, grown.node_expansion_required), (100 * MIB, false));
        let info = harness.block_on(harness.node().node_get_info(csi::NodeGetInfoRequest {})).expect("info").into_inner();
        let topology = info.accessible_topology.expect("a topology").segments;
        assert_eq!(topology.values().collect::<Vec<_>>(), ["node-1"]);
    });
}

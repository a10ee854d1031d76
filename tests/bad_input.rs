//! Bad input: each is a clear error that names the field or file, with the right code, and changes nothing.

mod common;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use common::{Harness, MIB, Pool, capability, create, isolated, mounts_at, publish_request, run, stage_request, text};
use longshore::csi;
use tonic::{Code, Status};

fn assert_says(status: &Status, code: Code, words: &[&str]) {
    assert_eq!(status.code(), code, "{status}");
    for word in words {
        assert!(status.message().contains(word), "{word:?} is not in: {}", status.message());
    }
}

fn create_fails(harness: &Harness, request: csi::CreateVolumeRequest) -> Status {
    let status = harness.block_on(harness.controller().create_volume(request)).expect_err("refused");
    harness.assert_pool_empty();
    status
}

#[test]
fn parameters_and_sizes_that_cannot_be() {
    isolated(|| {
        let mut harness = Harness::new(Pool::Local);
        harness.start();
        let with = |key: &str, value: &str| {
            let mut request = create("bad", 64, Some("ext4"), "image");
            request.parameters.insert(key.to_owned(), value.to_owned());
            request
        };
        assert_says(&create_fails(&harness, with("colour", "red")), Code::InvalidArgument, &["parameters", "colour", "onDelete"]);
        assert_says(&create_fails(&harness, with("onDelete", "shred")), Code::InvalidArgument, &["shred", "scrub"]);
        assert_says(&create_fails(&harness, with("preallocate", "yes")), Code::InvalidArgument, &["yes"]);
        assert_says(&create_fails(&harness, with("pool", "elsewhere")), Code::InvalidArgument, &["elsewhere", "default"]);
        assert_says(&create_fails(&harness, with("backend", "ebs")), Code::InvalidArgument, &["ebs", "image"]);
        assert_says(&create_fails(&harness, with("mkfsOptions", "-F")), Code::InvalidArgument, &["mkfsOptions", "-F"]);
        let mut small = create("small", 64, Some("xfs"), "image");
        small.capacity_range = Some(csi::CapacityRange { required_bytes: 64 * MIB, limit_bytes: 100 * MIB });
        assert_says(&create_fails(&harness, small), Code::OutOfRange, &["limit_bytes", "300 MiB"]);
        let ntfs = create("ntfs", 64, Some("ntfs"), "image");
        assert_says(&create_fails(&harness, ntfs), Code::InvalidArgument, &["fs_type", "ntfs", "btrfs"]);
        let huge = create("huge", 1 << 40, Some("ext4"), "image");
        assert_says(&create_fails(&harness, huge), Code::ResourceExhausted, &["default"]);
    });
}

#[test]
fn ids_that_are_none_of_ours() {
    isolated(|| {
        let mut harness = Harness::new(Pool::Local);
        harness.start();
        for id in ["image:../../etc", "image:..", "nonsense", "image:a/b", "image:a\0b", "image:a\nb"] {
            let request = stage_request(id, harness.staging("x"), capability(Some("ext4")));
            let status = harness.block_on(harness.node().node_stage_volume(request)).expect_err("refused");
            assert_eq!(status.code(), Code::NotFound, "{id:?}: {status}");
        }
        let request = csi::DeleteVolumeRequest { volume_id: "ebs:vol-1".to_owned(), ..Default::default() };
        let status = harness.block_on(harness.controller().delete_volume(request)).expect_err("not ours to say that it is gone");
        assert_says(&status, Code::Unavailable, &["ebs", "configuration"]);
    });
}

/// A volume that is staged, to publish to bad places.
fn staged(harness: &Harness) -> csi::NodePublishVolumeRequest {
    let created = harness.block_on(harness.controller().create_volume(create("v", 64, Some("ext4"), "image"))).expect("created");
    let volume = created.into_inner().volume.expect("a volume");
    let request = stage_request(volume.volume_id.clone(), harness.staging("v"), capability(Some("ext4")));
    harness.block_on(harness.node().node_stage_volume(request)).expect("staged");
    publish_request(volume.volume_id, harness.staging("v"), harness.target("v"), capability(Some("ext4")))
}

#[test]
fn paths_that_lead_elsewhere() {
    isolated(|| {
        let mut harness = Harness::new(Pool::Local);
        harness.start();
        let good = staged(&harness);
        let outside = harness.path("outside");
        fs::create_dir(&outside).expect("a directory");
        let link = harness.path("kubelet/pods/link");
        symlink(&outside, &link).expect("a link");
        let final_link = harness.path("kubelet/pods/v/final");
        symlink(&outside, &final_link).expect("a link");
        let kubelet = harness.path("kubelet");
        let bad: [(PathBuf, &str); 8] = [
            (outside.join("mount"), "not below"),
            (kubelet.join("pods/../../outside/mount"), ".."),
            (link.join("mount"), "link"),
            (final_link.clone(), "link"),
            (PathBuf::from("/proc/self/root").join(outside.strip_prefix("/").expect("absolute")), "not below"),
            (PathBuf::from("relative/mount"), "absolute"),
            (kubelet.join("x".repeat(300)), "300"),
            (kubelet.clone(), "itself"),
        ];
        for (path, word) in bad {
            let request = csi::NodePublishVolumeRequest { target_path: text(&path), ..good.clone() };
            let status = harness
                .block_on(harness.node().node_publish_volume(request))
                .err()
                .unwrap_or_else(|| panic!("{}", path.display()));
            assert_says(&status, Code::InvalidArgument, &[word]);
            let request = csi::NodeUnpublishVolumeRequest { volume_id: good.volume_id.clone(), target_path: text(&path) };
            harness.block_on(harness.node().node_unpublish_volume(request)).err().unwrap_or_else(|| panic!("{}", path.display()));
        }
        assert_eq!(fs::read_dir(&outside).expect("still there").count(), 0, "nothing was made outside");
        assert!(final_link.is_symlink() && link.is_symlink(), "links of others are left alone");
        assert_eq!(mounts_at(&outside), 0);
        harness.block_on(harness.node().node_publish_volume(good)).expect("the good one works");
    });
}

#[test]
fn mount_options_that_no_one_knows_leave_nothing_behind() {
    isolated(|| {
        let mut harness = Harness::new(Pool::Local);
        harness.start();
        harness.block_on(harness.controller().create_volume(create("v", 64, Some("ext4"), "image"))).expect("created");
        let mut capability = capability(Some("ext4"));
        if let Some(csi::volume_capability::AccessType::Mount(mount)) = &mut capability.access_type {
            mount.mount_flags = vec!["noatime".to_owned(), "colour=red".to_owned()];
        }
        let request = stage_request("image:v", harness.staging("v"), capability);
        let status = harness.block_on(harness.node().node_stage_volume(request)).expect_err("refused");
        assert!(status.message().contains("colour"), "{status}");
        harness.assert_nothing_left();
    });
}

#[test]
fn a_stranger_on_the_staging_path_is_left_alone() {
    isolated(|| {
        let mut harness = Harness::new(Pool::Local);
        harness.start();
        harness.block_on(harness.controller().create_volume(create("v", 64, Some("ext4"), "image"))).expect("created");
        let staging = harness.staging("v");
        nix::mount::mount(Some("tmpfs"), &staging, Some("tmpfs"), nix::mount::MsFlags::empty(), None::<&str>).expect("mounted");
        fs::write(staging.join("theirs"), "x").expect("written");
        let request = stage_request("image:v", &staging, capability(Some("ext4")));
        let status = harness.block_on(harness.node().node_stage_volume(request)).expect_err("refused");
        assert!(status.message().contains("tmpfs"), "{status}");
        let request = csi::NodeUnstageVolumeRequest { volume_id: "image:v".to_owned(), staging_target_path: text(&staging) };
        let _ = harness.block_on(harness.node().node_unstage_volume(request));
        assert_eq!(fs::read_to_string(staging.join("theirs")).expect("still mounted"), "x");
        assert_eq!(harness.loops(), Vec::<String>::new());
    });
}

#[test]
fn a_device_with_data_is_never_formatted() {
    isolated(|| {
        let mut harness = Harness::new(Pool::Local);
        harness.start();
        harness.block_on(harness.controller().create_volume(create("v", 64, Some("ext4"), "image"))).expect("created");
        let image = harness.path("pool/images/volumes/v/image");
        let content = [b"not a file system, but data of a user".as_slice(), &[7; 4096]].concat();
        use std::os::unix::fs::FileExt;
        for offset in [0, 5 << 20, (64 << 20) - 8192] {
            let file = fs::OpenOptions::new().write(true).open(&image).expect("the image");
            file.set_len(0).expect("emptied");
            file.set_len(64 << 20).expect("sized");
            file.write_all_at(&content, offset).expect("written");
            let before = fs::read(&image).expect("the image");
            let request = stage_request("image:v", harness.staging("v"), capability(Some("ext4")));
            let status = harness.block_on(harness.node().node_stage_volume(request)).expect_err("refused");
            assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
            assert!(before == fs::read(&image).expect("the image"), "it was written to, with data at {offset}");
            harness.assert_nothing_left();
        }
    });
}

#[test]
fn a_pool_that_is_gone_read_only_or_damaged() {
    isolated(|| {
        let mut harness = Harness::new(Pool::Xfs);
        harness.start();
        for name in ["whole", "torn"] {
            harness.block_on(harness.controller().create_volume(create(name, 64, Some("ext4"), "image"))).expect("created");
        }

        harness.kill();

        // A truncated metadata file harms its own volume only, and nobody touches it.
        let meta = harness.path("pool/images/volumes/torn/meta.json");
        let content = fs::read(&meta).expect("metadata");
        fs::write(&meta, &content[..content.len() / 2]).expect("truncated");
        harness.start();
        let get = |id: &str| {
            let request = csi::ControllerGetVolumeRequest { volume_id: id.to_owned() };
            harness.block_on(harness.controller().controller_get_volume(request))
        };
        get("image:whole").expect("not harmed");
        let status = get("image:torn").expect_err("damaged");
        assert_ne!(status.code(), Code::NotFound, "cannot see is not gone: {status}");
        assert!(status.message().contains("meta.json"), "{status}");
        let request = csi::DeleteVolumeRequest { volume_id: "image:torn".to_owned(), ..Default::default() };
        harness.block_on(harness.controller().delete_volume(request)).expect_err("never deleted");
        harness
            .block_on(harness.controller().create_volume(create("torn", 64, Some("ext4"), "image")))
            .expect_err("never overwritten");
        assert_eq!(fs::read(&meta).expect("still there"), content[..content.len() / 2]);
        assert!(harness.path("pool/images/volumes/torn/image").exists());
        let request = csi::ControllerGetVolumeHealthRequest { volume_id: "image:torn".to_owned(), ..Default::default() };
        let health = harness.block_on(harness.controller().controller_get_volume_health(request)).expect("health").into_inner();
        assert!(!health.volume_health.expect("health").health_statuses.is_empty());

        // Read-only: an error, and nothing changes.
        harness.kill();
        run("mount", ["-o", "remount,ro", &text(&harness.path("pool"))]);
        harness.start();
        let request = create("new", 64, Some("ext4"), "image");
        let status = harness.block_on(harness.controller().create_volume(request.clone())).expect_err("read-only");
        assert_says(&status, Code::Unavailable, &["Read-only"]);
        harness.kill();
        run("mount", ["-o", "remount,rw", &text(&harness.path("pool"))]);

        // Of a later version, or damaged: the driver starts, takes down what is in use, and says what is wrong.
        harness.start();
        let staging = harness.staging("whole");
        let stage = || stage_request("image:whole", staging.clone(), capability(Some("ext4")));
        harness.block_on(harness.node().node_stage_volume(stage())).expect("staged");
        let marker = harness.path("pool/images/longshore-pool.json");
        let content = fs::read_to_string(&marker).expect("the marker");
        let later = content.replacen("\"format\": 1", "\"format\": 9", 1);
        assert_ne!(later, content);
        for damaged in [later.as_str(), &content[..content.len() / 2]] {
            harness.kill();
            fs::write(&marker, damaged).expect("written");
            harness.start();
            let request = create("new", 64, Some("ext4"), "image");
            let status = harness.block_on(harness.controller().create_volume(request)).expect_err("no pool to make it in");
            assert_says(&status, Code::Unavailable, &["longshore-pool.json"]);
            let request =
                csi::NodeUnstageVolumeRequest { volume_id: "image:whole".to_owned(), staging_target_path: text(&staging) };
            harness.block_on(harness.node().node_unstage_volume(request)).expect("unstaged");
            harness.assert_nothing_left();
            assert_eq!(fs::read_to_string(&marker).expect("the marker"), damaged);
            // Repaired while the driver runs.
            fs::write(&marker, &content).expect("written");
            harness.block_on(harness.node().node_stage_volume(stage())).expect("staged");
        }
        let request = csi::NodeUnstageVolumeRequest { volume_id: "image:whole".to_owned(), staging_target_path: text(&staging) };
        harness.block_on(harness.node().node_unstage_volume(request)).expect("unstaged");
        harness.kill();

        // Missing: cannot see is not gone.
        fs::rename(harness.path("pool/images"), harness.path("pool/elsewhere")).expect("moved away");
        harness.start();
        let request = csi::ControllerGetVolumeRequest { volume_id: "image:whole".to_owned() };
        let status = harness.block_on(harness.controller().controller_get_volume(request)).expect_err("cannot be seen");
        assert_eq!(status.code(), Code::Unavailable, "{status}");
        let request = csi::DeleteVolumeRequest { volume_id: "image:whole".to_owned(), ..Default::default() };
        harness.block_on(harness.controller().delete_volume(request)).expect_err("cannot be seen, so not deleted");
        assert!(!harness.path("pool/images").exists(), "no new pool is made where an old one is missing");
    });
}

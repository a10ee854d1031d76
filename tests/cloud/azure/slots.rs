//! What is found in a slot is used only if it proves to be the volume's disk. Loop devices stand in for disks, as namespaces of an NVMe
//! controller.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use nix::unistd::{Whence, lseek};
use tonic::Status;

use super::super::common::{LoopDevice, isolated, mounts_at, run, runs, skipped, stage_request, text};
use super::*;

/// A device in a slot of this machine.
struct Device {
    /// Detached with this.
    device: LoopDevice,
    file: PathBuf,
    entry: PathBuf,
}

impl Drop for Device {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.entry).expect("out of the slot");
    }
}

impl Device {
    /// All that is not zero, and where.
    fn bytes(&self) -> Vec<(u64, Vec<u8>)> {
        parts(&self.file)
    }

    /// As blkid(8) has it; empty for what is blank.
    fn uuid(&self) -> String {
        let output = std::process::Command::new("blkid").args(["-p", "-s", "UUID", "-o", "value", &self.device.0]).output();
        String::from_utf8(output.expect("blkid runs").stdout).expect("text").trim().to_owned()
    }
}

/// The parts of a file that are not all zero, and where they are. Holes are not read.
fn parts(path: &Path) -> Vec<(u64, Vec<u8>)> {
    const PART: usize = 1 << 20;
    let zero = vec![0; PART];
    let file = File::open(path).expect("its file");
    let mut found = Vec::new();
    let mut at = 0;
    // Beyond the last data there is none (ENXIO).
    while let Ok(data) = lseek(&file, at, Whence::SeekData) {
        let start = data.cast_unsigned() / PART as u64 * PART as u64;
        let mut part = vec![0; PART];
        file.read_exact_at(&mut part, start).expect("read");
        if part != zero {
            found.push((start, part));
        }
        at = (start + PART as u64).cast_signed();
    }
    found
}

/// A driver that is the controller and machine `n1`.
struct Rig {
    azure: Azure,
    driver: Driver,
}

/// A volume as the CO has it.
#[derive(Clone)]
struct Volume {
    made: csi::Volume,
    name: String,
    fstype: &'static str,
}

impl Rig {
    fn start() -> Rig {
        let azure = Azure::start();
        let mut driver = driver_of(&azure, "test");
        let disks = driver.harness.path("disks");
        fs::create_dir_all(disks.join("block")).expect("a directory");
        driver.harness.set("LONGSHORE_AZURE_DISKS", &text(&disks));
        Rig { azure, driver: driver.started() }
    }

    /// A blank device on LUN 0; `sequence` is the kernel's count of disks.
    fn device(&self, gib: u64, sequence: u64) -> Device {
        let file = self.driver.harness.path(&format!("disk-{sequence}"));
        File::create(&file).expect("a file").set_len(gib << 30).expect("a size");
        let device = LoopDevice::over(&file);
        let name = Path::new(&device.0).file_name().expect("a name").to_owned();
        let entry = self.driver.harness.path("disks/block").join(&name);
        let number = fs::read_to_string(Path::new("/sys/block").join(&name).join("dev")).expect("a number");
        fs::create_dir_all(entry.join("device")).expect("a directory");
        for (file, text) in [
            ("device/model", "MSFT NVMe Accelerator v1.0\n"),
            ("nsid", "2\n"),
            ("diskseq", &format!("{sequence}\n")),
            ("dev", &number),
        ] {
            fs::write(entry.join(file), text).expect("a file");
        }
        Device { device, file, entry }
    }

    /// Of one GiB, or a copy of two.
    fn volume(&self, request: csi::CreateVolumeRequest, fstype: &'static str) -> Volume {
        let name = request.name.clone();
        Volume { made: self.driver.create_as(request).expect("created"), name, fstype }
    }

    fn stage(&self, volume: &Volume, context: &HashMap<String, String>) -> Result<(), Status> {
        let harness = &self.driver.harness;
        let request = csi::NodeStageVolumeRequest {
            publish_context: context.clone(),
            volume_context: volume.made.volume_context.clone(),
            secrets: HashMap::from([("encryptionPassphrase".to_owned(), "a passphrase".to_owned())]),
            ..stage_request(volume.made.volume_id.clone(), harness.staging(&volume.name), capability(Some(volume.fstype)))
        };
        harness.block_on(harness.node().node_stage_volume(request)).map(drop)
    }

    fn unstage(&self, volume: &Volume) {
        let harness = &self.driver.harness;
        let request = csi::NodeUnstageVolumeRequest {
            volume_id: volume.made.volume_id.clone(),
            staging_target_path: text(&harness.staging(&volume.name)),
        };
        harness.block_on(harness.node().node_unstage_volume(request)).expect("unstaged");
    }

    /// The device is refused in these words, and is left as it is.
    fn refused(&self, volume: &Volume, context: &HashMap<String, String>, device: &Device, words: &[&str]) {
        let before = device.bytes();
        let status = self.stage(volume, context).expect_err("another disk");
        assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
        for word in words {
            assert!(status.message().contains(word), "{word}: {}", status.message());
        }
        assert_eq!(mounts_at(&self.driver.harness.staging(&volume.name)), 0);
        assert!(before == device.bytes(), "the other disk has other bytes");
        assert_eq!(self.driver.harness.journal(), Vec::<String>::new());
    }

    fn attach(&self, volume: &Volume) -> HashMap<String, String> {
        self.driver.attach(&volume.made.volume_id, "n1").expect("attached")
    }

    fn detach(&self, volume: &Volume) {
        self.driver.detach(&volume.made.volume_id, "n1").expect("detached");
    }

    fn delete(&self, volume: &Volume) {
        self.driver.delete(&volume.made.volume_id).expect("deleted");
    }
}

fn of_a_gib(name: &str, fstype: &'static str, parameters: &[(&str, &str)]) -> csi::CreateVolumeRequest {
    let capacity_range = Some(csi::CapacityRange { required_bytes: GIB, limit_bytes: 0 });
    let volume_capabilities = vec![capability(Some(fstype))];
    with(parameters, csi::CreateVolumeRequest { capacity_range, volume_capabilities, ..creation(name) })
}

fn has(programs: &[&str]) -> bool {
    let missing = programs.iter().find(|program| !runs("which", [**program]));
    missing.iter().for_each(|program| skipped(&format!("there is no {program}")));
    missing.is_none()
}

/// Between attachment and stage another disk comes into the slot, of which the metadata service says nothing yet.
#[test]
fn azure_other_disk_in_the_slot_is_neither_formatted_nor_mounted() {
    if !has(&["blkid", "mkfs.ext4", "mkfs.xfs", "mkfs.btrfs", "cryptsetup"]) {
        return;
    }
    isolated(|| {
        let rig = Rig::start();
        let volumes = [("ext4", ""), ("xfs", ""), ("btrfs", ""), ("ext4", "luks2")].map(|(fstype, encryption)| {
            let parameters: &[(&str, &str)] = if encryption.is_empty() { &[] } else { &[("encryption", "luks2")] };
            rig.volume(of_a_gib(&format!("data-{fstype}{encryption}"), fstype, parameters), fstype)
        });
        let devices = fs::read_to_string("/proc/misc").expect("the kernel's devices");
        let mut sequence = 17..;
        let mut next = || sequence.next().expect("a number");
        for volume in &volumes {
            let encrypted = volume.made.volume_context.values().any(|text| text.contains("luks2"));
            if encrypted && !devices.contains("device-mapper") {
                skipped("no device-mapper here: what is encrypted is not tested");
                rig.delete(volume);
                continue;
            }
            let context = rig.attach(volume);
            let own = rig.device(1, next());
            rig.stage(volume, &context).expect("staged");
            rig.unstage(volume);
            assert_eq!(own.uuid(), context["contents"], "{}", volume.name);
            rig.detach(volume);
            // The next attachment: the record is that of the disk.
            let again = rig.attach(volume);
            assert_eq!((&again["contents"], again.get("madeEmpty")), (&context["contents"], None));
            rig.stage(volume, &again).expect("staged");
            rig.unstage(volume);
            drop(own);

            rig.azure.let_host_lag();
            let other = rig.device(1, next());
            run(&format!("mkfs.{}", volume.fstype), ["-q", &other.device.0]);
            let theirs = other.uuid();
            // What is in clear is refused without a look at its UUID where the volume is encrypted.
            let words: &[&str] = if encrypted {
                &["in clear", &other.device.0]
            } else {
                &["LUN 0", &context["contents"], &theirs, &other.device.0]
            };
            rig.refused(volume, &again, &other, words);
            drop(other);
            let other = rig.device(1, next());
            let passphrase = rig.driver.harness.path("passphrase");
            fs::write(&passphrase, "a passphrase").expect("a file");
            run(
                "cryptsetup",
                [
                    "luksFormat",
                    "--batch-mode",
                    "--type",
                    "luks2",
                    "--key-file",
                    &text(&passphrase),
                    "--pbkdf",
                    "pbkdf2",
                    "--pbkdf-force-iterations",
                    "1000",
                    &other.device.0,
                ],
            );
            let theirs = other.uuid();
            let words: &[&str] =
                if encrypted { &["LUN 0", &context["contents"], &theirs, &other.device.0] } else { &["LUKS", &other.device.0] };
            rig.refused(volume, &again, &other, words);
            drop(other);
            let other = rig.device(2, next());
            rig.refused(volume, &again, &other, &["LUN 0", "2 GiB", "1 GiB", &other.device.0]);
            drop(other);
            rig.azure.state().outdated = None;
            rig.detach(volume);
            rig.delete(volume);
        }
        rig.driver.assert_clean(&rig.azure, "at the end");
    });
}

/// A copy holds what its source holds, and is never blank.
#[test]
fn azure_copy_is_known_by_what_its_source_holds() {
    if !has(&["blkid", "mkfs.ext4"]) {
        return;
    }
    isolated(|| {
        let rig = Rig::start();
        let source = rig.volume(of_a_gib("data", "ext4", &[]), "ext4");
        let context = rig.attach(&source);
        let own = rig.device(1, 17);
        rig.stage(&source, &context).expect("staged");
        rig.unstage(&source);
        rig.detach(&source);
        let kept = own.bytes();
        drop(own);
        let snapshot = rig.driver.snapshot("then", &source.made.volume_id).expect("a snapshot");
        let small = |request: csi::CreateVolumeRequest| csi::CreateVolumeRequest {
            capacity_range: Some(csi::CapacityRange { required_bytes: GIB, limit_bytes: 0 }),
            ..request
        };
        let copies =
            [small(rig.driver.restored_from("restored", &snapshot)), small(rig.driver.clone_of("copy", &source.made.volume_id))];
        let copies = copies.map(|request| rig.volume(request, "ext4"));
        for (number, copy) in (0..).zip(&copies) {
            let copied = rig.attach(copy);
            assert_eq!(copied["contents"], context["contents"], "{}", copy.name);
            let blank = rig.device(1, 20 + number);
            rig.refused(copy, &copied, &blank, &["LUN 0", "it is blank", &context["contents"]]);
            drop(blank);
            let own = rig.device(1, 30 + number);
            let device = File::options().write(true).open(&own.device.0).expect("the device");
            kept.iter().for_each(|(at, part)| device.write_all_at(part, *at).expect("written"));
            drop(device);
            rig.stage(copy, &copied).expect("staged");
            rig.unstage(copy);
            drop(own);
            rig.detach(copy);
            rig.delete(copy);
        }
        rig.driver.delete_snapshot(&snapshot).expect("deleted");
        rig.delete(&source);
        rig.driver.assert_clean(&rig.azure, "at the end");
    });
}

/// azuredisk-csi-driver issue 2537: a person detaches a disk, whose VolumeAttachment still names its slot.
#[test]
fn azure_slot_that_an_attachment_still_names_is_given_to_no_other_disk() {
    let azure = Azure::start();
    let driver = start(&azure);
    let [first, second, third] = ["one", "two", "three"].map(|name| driver.create(name).expect("created"));
    let slot = |id: &str| driver.attach(id, "n1").expect("attached")["device"].clone();
    assert_eq!(slot(&first), "0");
    azure.detach_by_hand(&azure.luns("n1")[0].1);
    assert_eq!(slot(&second), "1");
    driver.detach(&first, "n1").expect("detached");
    assert_eq!(slot(&third), "0");
    for id in [&second, &third] {
        driver.detach(id, "n1").expect("detached");
    }
    [first, second, third].iter().for_each(|id| driver.delete(id).expect("deleted"));
    driver.assert_clean(&azure, "at the end");
}

//! Images as snapshots: VolumeSnapshotClasses of `snapshot-type: images`, as gcp-compute-persistent-disk-csi-driver has them.

use super::super::tenant::{Variant, With, killed_before_every_step, lost};
use super::*;

struct Images;

impl Variant for Images {
    type Cloud = Google;
    const NAME: &'static str = "gce with images";

    fn prepare(google: &Google) {
        google.order(&json!({"settings": {"upload": 0.05, "rights": all_rights()}}));
    }

    fn driver_with(google: &Google, more: &str) -> Driver {
        Driver { snapshot_class: class(&[]), ..driver_with(google, "test", &format!("images: true\n    {more}")) }
    }

    fn request_of(call: Call) -> Option<&'static str> {
        match call {
            Call::Snapshot => Some("images.insert"),
            Call::DeleteSnapshot => Some("images.delete"),
            _ => None,
        }
    }
}

type WithImages = With<Images>;

fn class(more: &[(&str, &str)]) -> HashMap<String, String> {
    let all = more.iter().chain(&[("snapshot-type", "images")]);
    all.map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

/// In a slower clock: how a call ends hangs on what it sees within seconds.
fn open() -> Option<(WithImages, Driver)> {
    let google = WithImages::open()?;
    let mut driver = google.driver();
    driver.harness.set("LONGSHORE_CLOUD_SPEED", "2");
    Some((google, driver.started()))
}

/// How many images and snapshots there are.
fn counted(google: &Google) -> (usize, usize) {
    (google.images().len(), google.snapshots().len())
}

#[test]
fn gce_image_is_a_snapshot_of_a_disk_that_is_attached() {
    let Some((google, driver)) = open() else { return };
    let driver = Driver { snapshot_class: class(&[("image-family", "base"), ("storage-locations", "eu")]), ..driver };
    let mut request = creation("data");
    let key = "projects/p-1/locations/eu/keyRings/r/cryptoKeys/k";
    request.parameters.insert("disk-encryption-kms-key".to_owned(), key.to_owned());
    let id = driver.create_as(request).expect("created").volume_id;
    driver.attach(&id, "n1").expect("attached");
    let before = std::time::SystemTime::now() - Duration::from_secs(2);
    let snapshot = driver.snapshot("then", &id).expect("an image of a disk in use");
    assert_eq!(driver.snapshot("then", &id).expect("again"), snapshot);
    let image = google.images().remove(0);
    assert_eq!(snapshot, format!("pd:d-image-{}.then", image["id"].as_str().expect("a number")));
    assert_eq!(
        (&image["family"], &image["storageLocations"], &image["labels"]["team"], &image["labels"]["longshore-image"]),
        (&json!("base"), &json!(["eu"]), &json!("storage"), &Value::Null)
    );
    assert_eq!(image["imageEncryptionKey"], json!({"kmsKeyName": key}));
    assert_eq!((counted(&google), google.count("images.insert")), ((1, 0), 1), "the snapshot that it was made of is gone");
    driver.detach(&id, "n1").expect("detached");

    let listed = driver.call(|mut client| async move { client.list_snapshots(csi::ListSnapshotsRequest::default()).await });
    let shown: Vec<_> = listed.expect("a list").entries.into_iter().filter_map(|entry| entry.snapshot).collect();
    assert_eq!((shown.len(), shown[0].snapshot_id.as_str(), shown[0].ready_to_use), (1, snapshot.as_str(), true));
    assert_eq!(shown[0].source_volume_id, id);
    let taken = std::time::SystemTime::try_from(shown[0].creation_time.expect("a time")).expect("a time");
    assert!(taken >= before && taken <= std::time::SystemTime::now(), "{taken:?}: that of the temporary snapshot");

    driver.delete(&id).expect("an image does not keep its disk");
    let restored = driver.create_as(driver.restored_from("restored", &snapshot)).expect("restored").volume_id;
    assert_eq!(driver.create_as(driver.restored_from("restored", &snapshot)).expect("again").volume_id, restored);
    assert_eq!((&google.disk()["sourceImageId"], &google.disk()["sourceSnapshotId"]), (&image["id"], &Value::Null));
    let context = driver.attach(&restored, "n2").expect("attached");
    assert!(!context.contains_key("madeEmpty"), "{context:?}");
    driver.detach(&restored, "n2").expect("detached");
    driver.delete_snapshot(&snapshot).expect("deleted");
    driver.delete_snapshot(&snapshot).expect("again");
    assert_eq!(google.count("images.delete"), 1);
    driver.delete(&restored).expect("deleted");
    driver.assert_clean(&google.0, "at the end");
    let used = google.state()["used"].clone();
    let of_images = |right: &String| right.starts_with("compute.images.");
    let used: Vec<String> = serde_json::from_value::<Vec<String>>(used).expect("names").into_iter().filter(of_images).collect();
    assert_eq!(used, all_rights().into_iter().filter(of_images).collect::<Vec<_>>(), "sorted, in docs/gce.md");
}

#[test]
fn gce_image_that_fails_is_made_again_and_says_why() {
    let Some((google, mut driver)) = open() else { return };
    let id = driver.create("data").expect("created");
    driver.persistent = false;
    let full = "Quota 'IMAGES' exceeded. Limit: 2000.0 globally.";
    google.fault(json!({"method": "images.insert", "kind": "fail", "code": "QUOTA_EXCEEDED", "message": full}));
    let (refused, message) = code(driver.snapshot("then", &id));
    assert_eq!((refused, message.contains(full)), (Code::ResourceExhausted, true), "{message}");
    assert_eq!(counted(&google), (0, 0), "what was begun is deleted");
    // One that stays is deleted by the next call.
    google.order(&json!({"settings": {"failed_stay": true}}));
    google.fault(json!({"method": "images.insert", "kind": "fail", "code": "QUOTA_EXCEEDED", "message": full}));
    let (refused, message) = code(driver.snapshot("then", &id));
    assert_eq!((is_final(refused), message.contains(full)), (false, true), "{message}");
    assert_eq!(counted(&google), (1, 1));
    driver.snapshot("then", &id).expect("another");
    assert_eq!(counted(&google), (1, 0));
    driver.delete_snapshot(&driver.snapshot("then", &id).expect("again")).expect("deleted");

    // The driver ends while an image is made: the next one continues with what is there.
    google.fault(json!({"method": "images.insert", "kind": "late", "delay": 3600}));
    let (refused, message) = code(driver.snapshot("then", &id));
    assert_eq!((is_final(refused), message.contains("PENDING")), (false, true), "{message}");
    assert_eq!(counted(&google), (1, 1));
    driver.harness.kill();
    driver.harness.start();
    google.order(&json!({"hurry": true}));
    driver.persistent = true;
    let snapshot = driver.snapshot("then", &id).expect("an image");
    assert_eq!((counted(&google), google.count("images.insert")), ((1, 0), 4));

    driver.delete_snapshot(&snapshot).expect("deleted");
    driver.delete(&id).expect("deleted");
    driver.assert_clean(&google.0, "at the end");
}

/// Nothing but the request that makes the image says that it came to nothing.
#[test]
fn gce_image_is_not_given_up_because_a_look_is_refused() {
    let Some((google, mut driver)) = open() else { return };
    let id = driver.create("data").expect("created");
    driver.persistent = false;
    google.fault(json!({"method": "images.insert", "kind": "late", "delay": 0.5}));
    let rights: Vec<String> = all_rights().into_iter().filter(|right| right != "compute.images.get").collect();
    let refusing = |google: &Google| {
        while google.images().is_empty() {
            std::thread::sleep(Duration::from_millis(5));
        }
        google.order(&json!({"settings": {"rights": rights}}));
    };
    let (refused, message) = std::thread::scope(|scope| {
        scope.spawn(|| refusing(&google));
        code(driver.snapshot("then", &id))
    });
    assert_eq!((is_final(refused), message.contains("images.get")), (false, true), "{message}");
    assert_eq!(counted(&google), (1, 1));
    google.order(&json!({"settings": {"rights": all_rights()}}));
    driver.persistent = true;
    let snapshot = driver.snapshot("then", &id).expect("an image");
    assert_eq!((counted(&google), google.count("images.insert")), ((1, 0), 1));
    driver.delete_snapshot(&snapshot).expect("deleted");
    driver.delete(&id).expect("deleted");
    driver.assert_clean(&google.0, "at the end");
}

#[test]
fn gce_image_of_another_program_is_neither_used_nor_deleted() {
    let Some((google, mut driver)) = open() else { return };
    let id = driver.create("data").expect("created");
    let snapshot = driver.snapshot("then", &id).expect("an image");
    driver.delete(&id).expect("deleted");
    google.disown();
    let id = driver.create("data").expect("created");
    driver.persistent = false;
    assert_eq!(code(driver.snapshot("then", &id)).0, Code::FailedPrecondition);
    assert_eq!(code(driver.delete_snapshot(&snapshot)).0, Code::FailedPrecondition);
    assert_eq!(counted(&google), (1, 0));
    google.order(&json!({"no_images": true}));
    driver.persistent = true;
    driver.delete(&id).expect("deleted");
    driver.assert_clean(&google.0, "at the end");
}

#[test]
fn gce_image_needs_the_configuration_to_say_so() {
    let Some((google, driver)) = open() else { return };
    let id = driver.create("data").expect("created");
    let snapshot = driver.snapshot("then", &id).expect("an image");
    let without = Driver { persistent: false, snapshot_class: class(&[]), ..start(&google) };
    let (refused, message) = code(without.snapshot("other", &id));
    assert_eq!((refused, message.contains("images: true")), (Code::InvalidArgument, true), "{message}");
    let (_, message) = code(without.delete_snapshot(&snapshot));
    assert!(message.contains("images: true"), "{message}");
    driver.delete_snapshot(&snapshot).expect("deleted");
    driver.delete(&id).expect("deleted");
    driver.assert_clean(&google.0, "at the end");
}

#[test]
fn gce_answers_about_images_that_are_lost() {
    lost::<WithImages>("after");
}

#[test]
fn gce_killed_before_every_step_with_images() {
    killed_before_every_step::<WithImages>();
}

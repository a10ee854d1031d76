//! What goes wrong between the driver and OpenStack.

use super::super::tenant::{both, killed_before_every_step, lost};
use super::super::tls::TlsFront;
use super::*;

/// Longer than any test: `hurry` ends it.
const AN_HOUR: Duration = Duration::from_secs(3600);

// An answer that is lost is the harder case; `make test` has no time for both.
#[test]
#[ignore = "run by `make test-e2e`"]
fn cinder_requests_that_are_lost() {
    lost::<OpenStack>("before");
}

#[test]
fn cinder_answers_that_are_lost() {
    lost::<OpenStack>("after");
}

#[test]
fn cinder_killed_before_every_step() {
    killed_before_every_step::<OpenStack>();
}

/// The request of a driver that was killed comes to the API after the next driver has looked: of two volumes one is kept.
#[test]
fn cinder_request_that_is_overtaken_leaves_one_volume() {
    let cloud = OpenStack::start(None);
    let driver = start(&cloud);
    for round in 0..3 {
        let name = format!("data-{round}");
        cloud.trouble("create volume", Trouble::Overtaken(Duration::from_millis(100)), 1);
        let id = driver.create(&name).expect("created");
        assert_eq!(driver.create(&name).expect("again"), id);
        let disk = cloud.volume()["id"].as_str().expect("an id").to_owned();
        assert!(id.contains(&disk), "{id} is not {disk}");
        driver.delete(&id).expect("deleted");
        driver.assert_clean(&cloud, &name);
    }
}

/// Two controllers that both think that they lead: one volume, one attachment. Cinder does not recognise a repeat.
#[test]
fn cinder_two_controllers_make_one_volume() {
    let cloud = OpenStack::start(None);
    let drivers = [start(&cloud), start(&cloud)];
    for round in 0..3 {
        let name = format!("data-{round}");
        let ids = both(&drivers, |driver| driver.create(&name));
        assert_eq!(ids[0], ids[1]);
        cloud.volume();
        let attached = both(&drivers, |driver| driver.attach(&ids[0], "n1").map(|context| context["identity"].clone()));
        assert_eq!(attached[0], attached[1]);
        assert_eq!(cloud.state().attachments.len(), 1);
        both(&drivers, |driver| driver.detach(&ids[0], "n1"));
        both(&drivers, |driver| driver.delete(&ids[0]));
        drivers[0].assert_clean(&cloud, &name);
    }
}

/// Cinder refuses a second deletion as it refuses that of a volume in use: what is gone by then is deleted.
#[test]
fn cinder_deletion_that_another_controller_ended_is_done() {
    let cloud = OpenStack::start(None);
    cloud.state().delay = Duration::from_millis(20);
    let driver = Driver { persistent: false, ..start(&cloud) };
    let id = driver.create("data").expect("created");
    let snapshot = driver.snapshot("then", &id).expect("a snapshot");
    cloud.trouble("delete snapshot", Trouble::Rival, 1);
    driver.delete_snapshot(&snapshot).expect("deleted");
    cloud.trouble("delete volume", Trouble::Rival, 1);
    driver.delete(&id).expect("deleted");
    driver.assert_clean(&cloud, "at the end");
}

/// A detachment that nobody waits for any more must not remove the next attachment.
#[test]
fn cinder_late_detachment_does_not_remove_the_next_attachment() {
    let cloud = OpenStack::start(None);
    let mut driver = start(&cloud);
    let id = driver.create("data").expect("created");
    driver.attach(&id, "n1").expect("attached");
    cloud.trouble("detach volume", Trouble::Late(AN_HOUR), 1);
    driver.persistent = false;
    assert!(!is_final(code(driver.detach(&id, "n1")).0));
    // The next controller knows of it only from Cinder.
    driver.harness.kill();
    driver.harness.start();
    assert!(!is_final(code(driver.attach(&id, "n1")).0));
    cloud.state().hurry();
    driver.persistent = true;
    driver.attach(&id, "n1").expect("attached after the detachment has ended");
    assert_eq!(cloud.count("detach volume"), 1);
    assert_eq!(cloud.state().attachments.len(), 1);
    driver.detach(&id, "n1").expect("detached");
    driver.delete(&id).expect("deleted");
    driver.assert_clean(&cloud, "at the end");
}

/// Nova gives up in the background, and says nothing: the volume is as it was before (cloud-provider-openstack issues 1628 and 2558).
#[test]
fn cinder_attachment_that_comes_to_nothing_is_made_again() {
    let cloud = OpenStack::start(None);
    let driver = start(&cloud);
    let id = driver.create("data").expect("created");
    cloud.trouble("attach volume", Trouble::Fail(""), 1);
    driver.attach(&id, "n1").expect("attached by the second request");
    cloud.trouble("detach volume", Trouble::Fail(""), 1);
    driver.detach(&id, "n1").expect("detached by the second request");
    assert_eq!((cloud.count("attach volume"), cloud.count("detach volume")), (2, 2));
    driver.delete(&id).expect("deleted");
    driver.assert_clean(&cloud, "at the end");
}

#[test]
fn cinder_volume_that_ends_in_error_is_deleted_and_says_why() {
    let cloud = OpenStack::start(None);
    let driver = start(&cloud);
    let driver = Driver { persistent: false, ..driver };
    for (message, expected) in [
        ("schedule allocate volume:Could not find any available weighted backend.", Code::ResourceExhausted),
        ("create volume:Driver failed to create the volume.", Code::Internal),
    ] {
        cloud.trouble("create volume", Trouble::Fail(message), 1);
        let (refused, text) = code(driver.create("data"));
        assert_eq!((refused, text.contains(message)), (expected, true), "{text}");
        driver.assert_clean(&cloud, message);
    }
}

/// A volume that was used may come to be in error, with its data: nothing but DeleteVolume deletes it.
#[test]
fn cinder_used_volume_in_error_is_kept() {
    let cloud = OpenStack::start(None);
    let driver = start(&cloud);
    let source = driver.create("source").expect("created");
    let snapshot = driver.snapshot("then", &source).expect("a snapshot");
    let ids = [
        driver.create("data").expect("created"),
        driver.create_as(driver.restored_from("restored", &snapshot)).expect("made").volume_id,
    ];
    let driver = Driver { persistent: false, ..driver };
    for id in &ids {
        driver.attach(id, "n1").expect("attached");
        driver.detach(id, "n1").expect("detached");
        let disk = id.split_once("d-").and_then(|(_, rest)| rest.split_once('.')).expect("a handle").0;
        cloud.state().volumes.get_mut(disk).expect("ours")["status"] = json!("error");
    }
    assert_eq!(driver.create("data").expect("it is there"), ids[0]);
    driver.create_as(driver.restored_from("restored", &snapshot)).expect("it is there");
    for id in &ids {
        let (_, message) = code(driver.attach(id, "n1"));
        assert!(message.contains("Unusable") && message.contains("repaired"), "{message}");
    }
    assert_eq!(cloud.state().volumes.len(), 3);
    let driver = Driver { persistent: true, ..driver };
    ids.iter().for_each(|id| driver.delete(id).expect("deleted"));
    driver.delete_snapshot(&snapshot).expect("deleted");
    driver.delete(&source).expect("deleted");
    driver.assert_clean(&cloud, "at the end");
}

#[test]
fn cinder_change_that_fails_later_is_an_error() {
    let cloud = OpenStack::start(None);
    let driver = start(&cloud);
    let id = driver.create("data").expect("created");
    let driver = Driver { persistent: false, ..driver };
    cloud.trouble("retype volume", Trouble::Fail("retype volume:Migration is not allowed."), 1);
    let (_, message) = code(driver.modify(&id, &[("type", "fast")]));
    assert!(message.contains("Migration is not allowed"), "{message}");
    driver.modify(&id, &[("type", "fast")]).expect("the next request");
    cloud.trouble("extend volume", Trouble::Fail("extend volume:Driver failed to extend the volume."), 1);
    let (_, message) = code(driver.expand(&id, 20));
    assert!(message.contains("failed to extend"), "{message}");
    assert_eq!(cloud.volume()["status"], "error_extending");
    driver.delete(&id).expect("deleted");
    driver.assert_clean(&cloud, "at the end");
}

/// A deletion is answered once it has ended, also where another process has asked for it.
#[test]
fn cinder_deletion_that_fails_is_no_deletion() {
    let cloud = OpenStack::start(None);
    let mut driver = start(&cloud);
    let id = driver.create("data").expect("created");
    let snapshot = driver.snapshot("then", &id).expect("a snapshot");
    driver.persistent = false;
    cloud.trouble("delete snapshot", Trouble::Fail("delete snapshot:Snapshot is busy."), 1);
    let (_, message) = code(driver.delete_snapshot(&snapshot));
    assert!(message.contains("busy"), "{message}");
    driver.delete_snapshot(&snapshot).expect("deleted");
    cloud.trouble("delete volume", Trouble::Late(AN_HOUR), 1);
    assert!(!is_final(code(driver.delete(&id)).0), "it is being deleted");
    driver.harness.kill();
    driver.harness.start();
    assert!(!is_final(code(driver.delete(&id)).0), "it is being deleted");
    cloud.state().hurry();
    driver.persistent = true;
    driver.delete(&id).expect("deleted");
    driver.assert_clean(&cloud, "at the end");
    let id = driver.create("data").expect("created");
    cloud.trouble("delete volume", Trouble::Fail("delete volume:Driver failed to delete the volume."), 1);
    driver.persistent = false;
    let (_, message) = code(driver.delete(&id));
    assert!(message.contains("failed to delete"), "{message}");
    code(driver.delete(&id));
    assert_eq!(cloud.volume()["status"], "error_deleting");
}

#[test]
fn cinder_request_that_is_refused_says_why() {
    let cloud = OpenStack::start(None);
    let driver = start(&cloud);
    let driver = Driver { persistent: false, ..driver };
    let refuse = |request: &'static str, status: u16, message: &'static str| {
        cloud.trouble(request, Trouble::Refuse { status, message, retry_after: None }, 1);
    };
    for (status, message, expected) in [
        (
            413,
            "VolumeSizeExceedsAvailableQuota: Requested volume or snapshot exceeds allowed gigabytes quota.",
            Code::ResourceExhausted,
        ),
        (403, "Policy doesn't allow volume:create to be performed.", Code::PermissionDenied),
        (400, "Invalid input received: Volume size 1 cannot be lesser than the volume type's min", Code::InvalidArgument),
    ] {
        refuse("create volume", status, message);
        let (refused, text) = code(driver.create("data"));
        assert_eq!((refused, text.contains(message)), (expected, true), "{text}");
    }
    cloud.state().quota = 0;
    assert_eq!(code(driver.create("data")).0, Code::ResourceExhausted);
    cloud.state().quota = 1000;
    let id = driver.create("data").expect("created");
    // What is said of the service says nothing of a volume.
    refuse("show volume", 404, "The resource could not be found.");
    assert!(!is_final(code(driver.delete(&id)).0));
    cloud.volume();
    let driver = Driver { persistent: true, ..driver };
    // A server that is being rebooted (409), and limits of rates, with and without a time.
    refuse("attach volume", 409, "Cannot 'attach_volume' instance 1 while it is in task_state rebooting");
    driver.attach(&id, "n1").expect("attached");
    for (status, retry_after) in [(429, Some(2)), (413, Some(2)), (429, None)] {
        cloud.trouble("create volume", Trouble::Refuse { status, message: "This request was rate-limited.", retry_after }, 2);
        let second = driver.create("second").expect("created");
        driver.delete(&second).expect("deleted");
    }
    driver.detach(&id, "n1").expect("detached");
    driver.delete(&id).expect("deleted");
    driver.assert_clean(&cloud, "at the end");
}

#[test]
fn cinder_token_is_renewed_before_its_end_and_after_a_refusal() {
    let cloud = OpenStack::start(None);
    let driver = driver_of(&cloud, "password").started();
    let id = driver.create("data").expect("created with a password");
    assert_eq!(cloud.count("token"), 1);
    cloud.end_tokens();
    driver.delete(&id).expect("with another token");
    assert_eq!(cloud.count("token"), 2);
    // One that is good for less than five minutes is not kept.
    cloud.state().token_life = Duration::from_secs(200);
    cloud.end_tokens();
    let id = driver.create("data").expect("created");
    driver.delete(&id).expect("deleted");
    assert!(cloud.count("token") > 4, "{}", cloud.count("token"));
    driver.assert_clean(&cloud, "at the end");
    // Credentials that are exchanged are read from the file; wrong ones are said.
    cloud.end_tokens();
    let path = driver.harness.path("clouds.yaml");
    let right = fs::read_to_string(&path).expect("the file");
    fs::write(&path, right.replace(PASSWORD, "wrong")).expect("the file");
    let driver = Driver { persistent: false, ..driver };
    let (refused, message) = code(driver.create("data"));
    assert!(!is_final(refused) && message.contains("clouds.yaml") && message.contains("401"), "{refused:?} {message}");
    fs::write(&path, right).expect("the file");
    let driver = Driver { persistent: true, ..driver };
    let id = driver.create("data").expect("created");
    driver.delete(&id).expect("deleted");
    driver.assert_clean(&cloud, "at the end");
}

/// Keystone, Cinder and Nova are believed only by certificates of the authority that clouds.yaml names.
#[test]
fn cinder_services_are_believed_only_by_their_certificates() {
    let cloud = OpenStack::start(None);
    let mut driver = driver_of(&cloud, "test");
    let path = driver.harness.path("clouds.yaml");
    let other = TlsFront::of(cloud.address, "openstack.example.org");
    let front = TlsFront::of(cloud.address, "127.0.0.1");
    let write = |front: &TlsFront, authority: &str| {
        let base = format!("https://{}", front.address);
        let over = format!(
            "    block_storage_endpoint_override: {base}/volume/v3/{PROJECT}\n    compute_endpoint_override: {base}/compute/v2.1\n    cacert: {authority}\n"
        );
        fs::write(&path, clouds(&cloud, false).replace(&format!("http://{}", cloud.address), &base) + &over)
            .expect("clouds.yaml");
    };
    write(&front, &front.authority());
    driver.harness.start();
    let id = driver.create("data").expect("over TLS");
    driver.attach(&id, "n1").expect("over TLS");
    driver.detach(&id, "n1").expect("over TLS");
    driver.delete(&id).expect("over TLS");
    driver.persistent = false;
    for (front, authority, why) in [
        (&front, other.authority(), "invalid peer certificate"),
        (&other, other.authority(), "not valid for name"),
        (&front, path.display().to_string(), "no certificate in PEM"),
        (&front, "/no/such/file".to_owned(), "cacert: read /no/such/file"),
    ] {
        write(front, &authority);
        cloud.end_tokens();
        let refused = driver.create("not-over-tls").expect_err("it is not believed");
        assert!(refused.code() == Code::Unavailable && refused.message().contains(why), "{why}: {refused}");
    }
    driver.assert_clean(&cloud, "at the end");
}

//! What goes wrong between the driver and Azure.

use super::super::tenant::{Story, both, killed_before_every_step, lost};
use super::*;

/// Longer than any test: `hurry` ends it.
const AN_HOUR: Duration = Duration::from_secs(3600);

const ATTACH: &str = "virtualMachines.attachDetachDataDisks";

// An answer that is lost is the harder case; `make test` has no time for both.
#[test]
#[ignore = "run by `make test-e2e`"]
fn azure_requests_that_are_lost() {
    lost::<Azure>("before");
}

#[test]
fn azure_answers_that_are_lost() {
    lost::<Azure>("after");
}

#[test]
#[ignore = "run by `make test-e2e`"]
fn azure_killed_before_every_step() {
    killed_before_every_step::<Azure>();
}

/// The next controller knows of a detachment that runs only from the machine.
#[test]
fn azure_late_detachment_does_not_remove_the_next_attachment() {
    let azure = Azure::start();
    let mut driver = start(&azure);
    let id = driver.create("data").expect("created");
    driver.attach(&id, "n1").expect("attached");
    azure.trouble(ATTACH, Trouble::Late(AN_HOUR), 1);
    driver.persistent = false;
    assert!(!is_final(code(driver.detach(&id, "n1")).0));
    driver.harness.kill();
    driver.harness.start();
    let (refused, message) = code(driver.attach(&id, "n1"));
    assert!(!is_final(refused) && message.contains("detach"), "{message}");
    azure.state().hurry();
    driver.persistent = true;
    driver.attach(&id, "n1").expect("attached after the detachment has ended");
    azure.wait_until_idle();
    assert_eq!(azure.luns("n1").len(), 1);
    assert_eq!(azure.disk()["properties"]["diskState"], "Attached");
    driver.detach(&id, "n1").expect("detached");
    driver.delete(&id).expect("deleted");
    driver.assert_clean(&azure, "at the end");
}

#[test]
fn azure_operation_that_fails_at_its_end_is_refused_with_its_own_error() {
    let azure = Azure::start();
    let mut driver = start(&azure);
    driver.persistent = false;
    for (error, expected) in [
        ("QuotaExceeded", Code::ResourceExhausted),
        ("SkuNotAvailable", Code::ResourceExhausted),
        ("ZonalAllocationFailed", Code::ResourceExhausted),
        ("InvalidParameter", Code::InvalidArgument),
        ("KeyVaultAccessForbidden", Code::PermissionDenied),
    ] {
        azure.trouble("disks.put", Trouble::Fail(error), 1);
        let (refused, message) = code(driver.create("data"));
        assert_eq!(refused, expected, "{error}: {message}");
        assert!(message.contains(error) && message.contains("words of the operation"), "{message}");
        assert!(azure.state().disks.is_empty());
    }
    // Of these nothing is concluded: it is done by the next attempts.
    driver.persistent = true;
    for error in ["InternalExecutionError", "OperationPreempted", ""] {
        azure.trouble("disks.put", Trouble::Fail(error), 1);
        let id = driver.create("data").expect("created");
        azure.trouble(ATTACH, Trouble::Fail(error), 1);
        driver.attach(&id, "n1").expect("attached");
        assert_eq!(azure.disk()["properties"]["diskState"], "Attached");
        azure.trouble(ATTACH, Trouble::Fail(error), 1);
        driver.detach(&id, "n1").expect("detached");
        azure.trouble("disks.delete", Trouble::Fail(error), 1);
        driver.delete(&id).expect("deleted");
        driver.assert_clean(&azure, error);
    }
}

/// azuredisk-csi-driver PR 1356
#[test]
fn azure_error_that_comes_with_success_is_one() {
    let azure = Azure::start();
    let driver = start(&azure);
    let id = driver.create("data").expect("created");
    for code in ["OperationPreempted", "Conflict"] {
        azure.trouble(ATTACH, Trouble::FailAtOnce(code), 1);
        driver.attach(&id, "n1").expect("attached");
        assert_eq!(azure.disk()["properties"]["diskState"], "Attached", "{code}");
        azure.trouble(ATTACH, Trouble::FailAtOnce(code), 1);
        driver.detach(&id, "n1").expect("detached");
        assert_eq!(azure.disk()["properties"]["diskState"], "Unattached", "{code}");
    }
    driver.delete(&id).expect("deleted");
    driver.assert_clean(&azure, "at the end");
}

/// azuredisk-csi-driver PR 3650: what was accepted is neither forgotten nor made twice because a look at it was throttled.
#[test]
fn azure_throttled_look_ends_nothing() {
    let azure = Azure::start();
    let driver = start(&azure);
    let throttled = |request: &'static str, times| {
        let (code, message) =
            ("OperationNotAllowed", "The server rejected the request because too many requests have been received.");
        azure.trouble(request, Trouble::Refuse { status: 429, code, message, retry_after: Some(2) }, times);
    };
    throttled("operations.get", 2);
    let id = driver.create("data").expect("created");
    assert_eq!(azure.count("disks.put"), 1);
    throttled("operations.get", 2);
    driver.attach(&id, "n1").expect("attached");
    assert_eq!(azure.count(ATTACH), 1);
    for request in ["disks.get", "virtualMachines.get", ATTACH] {
        throttled(request, 2);
    }
    driver.detach(&id, "n1").expect("detached");
    throttled("disks.delete", 2);
    driver.delete(&id).expect("deleted");
    driver.assert_clean(&azure, "at the end");
}

#[test]
fn azure_request_that_is_refused_says_why() {
    let azure = Azure::start();
    let mut driver = start(&azure);
    driver.persistent = false;
    for (status, error, message, expected) in [
        (409, "OperationNotAllowed", "it results in exceeding approved Quota", Code::ResourceExhausted),
        (403, "AuthorizationFailed", "The client does not have authorization to perform action", Code::PermissionDenied),
        (400, "InvalidParameter", "The value of parameter disk is invalid.", Code::InvalidArgument),
        (
            404,
            "ResourceNotFound",
            "The Resource 'Microsoft.Compute/diskEncryptionSets/keys' was not found.",
            Code::PermissionDenied,
        ),
    ] {
        azure.trouble("disks.put", Trouble::Refuse { status, code: error, message, retry_after: None }, 1);
        let (refused, text) = code(driver.create("data"));
        assert_eq!((refused, text.contains(message)), (expected, true), "{text}");
    }
    // A resource group that is not there says nothing of a volume.
    let id = driver.create("data").expect("created");
    let gone = Trouble::Refuse {
        status: 404,
        code: "ResourceGroupNotFound",
        message: "Resource group could not be found.",
        retry_after: None,
    };
    azure.trouble("disks.get", gone, 1);
    assert!(!is_final(code(driver.delete(&id)).0));
    driver.persistent = true;
    driver.delete(&id).expect("deleted");
    driver.assert_clean(&azure, "at the end");
}

/// A name stays in use until the deletion has ended.
#[test]
fn azure_name_that_is_being_deleted_is_waited_for() {
    let azure = Azure::start();
    let mut driver = start(&azure);
    let id = driver.create("data").expect("created");
    azure.trouble("disks.delete", Trouble::Late(AN_HOUR), 1);
    driver.persistent = false;
    assert!(!is_final(code(driver.delete(&id)).0));
    let (refused, message) = code(driver.create("data"));
    assert!(!is_final(refused), "{message}");
    azure.state().hurry();
    driver.persistent = true;
    let second = driver.create("data").expect("created");
    assert_eq!(azure.disk()["properties"]["diskState"], "Unattached");
    driver.delete(&second).expect("deleted");
    driver.assert_clean(&azure, "at the end");
}

/// Two controllers that both think that they lead: one disk, one attachment.
#[test]
fn azure_two_controllers_make_one_disk() {
    let azure = Azure::start();
    let drivers = [start(&azure), start(&azure)];
    for round in 0..3 {
        let name = format!("data-{round}");
        let ids = both(&drivers, |driver| driver.create(&name));
        assert_eq!(ids[0], ids[1]);
        azure.disk();
        let attached = both(&drivers, |driver| driver.attach(&ids[0], "n1").map(|context| context["device"].clone()));
        assert_eq!(attached[0], attached[1]);
        assert_eq!(azure.luns("n1").len(), 1);
        both(&drivers, |driver| driver.detach(&ids[0], "n1"));
        both(&drivers, |driver| driver.delete(&ids[0]));
        drivers[0].assert_clean(&azure, &name);
    }
}

/// Killed once a request's operation runs, whose answer nobody heard.
#[test]
#[ignore = "run by `make test-e2e`"]
fn azure_killed_while_an_operation_runs() {
    let Some(mut story) = Story::<Azure>::start() else { return };
    for call in super::super::tenant::CALLS {
        let expected = story.undisturbed(call);
        for again in [true, false] {
            let when = format!("{call:?}, killed while its operation runs, {}", if again { "made again" } else { "undone" });
            story.prepare(call);
            let request = Azure::request_of(call);
            story.cloud.trouble(request, Trouble::Late(Duration::from_millis(500)), 1);
            let before = story.cloud.count(request);
            let pid = nix::unistd::Pid::from_raw(i32::try_from(story.driver.harness.pid()).expect("a pid"));
            story.driver.persistent = false;
            let answer = std::thread::scope(|scope| {
                let counted = story.cloud.counter();
                let killer = scope.spawn(move || {
                    let begun = Instant::now();
                    while counted.count(request) <= before && begun.elapsed() < Duration::from_secs(20) {
                        std::thread::sleep(Duration::from_millis(5));
                    }
                    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).expect("the driver lives");
                });
                let answer = story.perform(call);
                killer.join().expect("killed");
                answer
            });
            story.driver.persistent = true;
            assert!(answer.is_err(), "{when}: {answer:?}");
            story.driver.harness.kill();
            story.driver.harness.start();
            if again {
                story.perform(call).unwrap_or_else(|status| panic!("{when}: {status}\n{}", story.driver.harness.log()));
                assert_eq!(story.cloud.summary(), expected, "{when}\n{}", story.driver.harness.log());
            }
            story.clear(&when);
        }
    }
}

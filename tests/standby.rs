//! Several drivers on the same pools: one provisions, the others are on standby, and take over when it ends.
#![allow(clippy::disallowed_methods, reason = "tests wait for other processes, and remove what they made")]

mod common;

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::{Harness, Pool, create, isolated, starting};
use longshore::csi;
use tonic::{Code, Status};

/// A standby tries every second.
const TAKEOVER: Duration = Duration::from_secs(20);
const HOUR: Duration = Duration::from_secs(3600);

fn until(what: &str, mut seen: impl FnMut() -> bool) {
    let deadline = Instant::now() + TAKEOVER;
    while !seen() {
        assert!(Instant::now() < deadline, "not within {TAKEOVER:?}: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn is_ready(harness: &Harness) -> bool {
    let answer = harness.block_on(harness.identity().probe(csi::ProbeRequest {})).expect("Probe is never an error");
    answer.into_inner().ready.expect("it says whether")
}

fn created(harness: &Harness, name: &str, pool: Option<&str>) -> Result<String, Status> {
    let mut request = create(name, 64, Some("ext4"), "image");
    request.parameters.extend(pool.map(|pool| ("pool".to_owned(), pool.to_owned())));
    let answer = harness.block_on(harness.controller().create_volume(request))?;
    Ok(answer.into_inner().volume.expect("a volume").volume_id)
}

fn listed(harness: &Harness) -> Result<Vec<String>, Status> {
    let answer = harness.block_on(harness.controller().list_volumes(csi::ListVolumesRequest::default()))?;
    Ok(answer.into_inner().entries.into_iter().filter_map(|entry| Some(entry.volume?.volume_id)).collect())
}

/// Another driver with the same pools, and all else of its own.
fn beside(first: &Harness) -> Harness {
    let second = Harness::new(Pool::Local);
    fs::copy(first.path("config.yaml"), second.path("config.yaml")).expect("the configuration");
    second
}

fn with_pools(pools: &[(&str, &Path)]) -> Harness {
    let harness = Harness::new(Pool::Local);
    let pools: Vec<String> = pools.iter().map(|(name, path)| format!("{{name: {name}, path: {}}}", path.display())).collect();
    let config = format!("backends: [{{name: image, type: image, pools: [{}]}}]\n", pools.join(", "));
    fs::write(harness.path("config.yaml"), config).expect("the configuration");
    harness
}

/// What `doctor` or `inspect` prints of this driver and its pools.
fn shown(harness: &Harness, name: &str) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_longshore"));
    command.arg(name).arg("--endpoint").arg(harness.path("csi.sock")).arg("--config").arg(harness.path("config.yaml"));
    command.arg("--state-dir").arg(harness.path("state")).arg("--kubelet-dir").arg(harness.path("kubelet"));
    let _starting = starting();
    let output = command.stdin(Stdio::null()).output().expect("it runs");
    [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat()
}

fn assert_on_standby(harness: &Harness, words: &[&str]) {
    assert!(!is_ready(harness), "{}", harness.log());
    let refused = [created(harness, "refused", None).expect_err("no volume"), listed(harness).expect_err("no list")];
    for status in refused {
        assert_eq!(status.code(), Code::Unavailable, "{status}");
        assert!(words.iter().all(|word| status.message().contains(word)), "{words:?} are not in: {status}");
    }
}

#[test]
fn standby_serves_the_node_and_takes_over_when_the_lock_is_free() {
    isolated(|| {
        let mut first = Harness::new(Pool::Local);
        first.with_http();
        first.start();
        let volume = created(&first, "before", None).expect("created");
        let mut second = beside(&first);
        second.start();
        let holder = format!("process {} on {}", first.pid(), rustix::system::uname().nodename().to_string_lossy());
        assert!(second.log().contains("on standby") && second.log().contains(&holder), "{}", second.log());
        assert_on_standby(&second, &[&holder, "default"]);

        // What the first is at is none of the second's business.
        let draft = first.path("pool/images/tmp/volume~draft");
        fs::create_dir(&draft).expect("as an interrupted call leaves it");
        second.block_on(second.node().node_get_info(csi::NodeGetInfoRequest {})).expect("the node is served");
        let (status, page) = second.get("/readyz");
        assert!(status == 200 && page.contains("[+] standby: ") && page.contains(&holder), "{status}: {page}");
        assert!(second.get("/metrics").1.contains("longshore_standby{driver_name=\"longshore.csi.dev\"} 1"));
        assert!(first.get("/metrics").1.contains("longshore_standby{driver_name=\"longshore.csi.dev\"} 0"));
        assert!(is_ready(&first) && draft.exists());

        let (here, there) = (shown(&first, "doctor"), shown(&second, "doctor"));
        let year = humantime::format_rfc3339(std::time::SystemTime::now()).to_string()[..4].to_owned();
        let lock = format!("pool default: {holder} has its lock since {year}-");
        assert!(here.contains(&lock) && there.contains(&lock), "{lock}\n{here}\n{there}");
        assert!(here.contains("the driver here provisions"), "{here}");
        let standby = there.lines().find(|line| line.contains("the driver here is on standby: ")).expect("it says so");
        assert!(standby.contains("pool default") && standby.contains(&holder), "{standby}");

        first.kill();
        until("the second is ready", || is_ready(&second));
        assert!(!draft.exists(), "it recovers as at a start");
        assert_eq!(listed(&second).expect("a list"), [volume.as_str()]);
        assert_eq!(created(&second, "before", None).expect("found"), volume);
        created(&second, "after", None).expect("created");
        assert_eq!(listed(&second).expect("a list").len(), 2);
        let (status, page) = second.get("/readyz");
        assert!(status == 200 && !page.contains("standby"), "{status}: {page}");
        assert!(second.log().contains("no longer on standby"), "{}", second.log());

        first.start();
        assert_on_standby(&first, &[&format!("process {} ", second.pid())]);
        assert!(second.stop());
        until("the first is ready again", || is_ready(&first));
        assert_eq!(listed(&first).expect("a list").len(), 2);
    });
}

#[test]
fn lock_of_another_machine_is_shown_from_its_record_and_not_as_held() {
    isolated(|| {
        let harness = Harness::new(Pool::Local);
        // Made a pool, without a process that has it.
        let mut first = beside(&harness);
        first.start();
        assert!(first.stop());
        let lock = harness.path("pool/images/lock");
        let own = shown(&harness, "inspect");
        assert!(!own.contains("recorded by"), "this machine's locks are seen: {own}");
        assert!(shown(&harness, "doctor").contains("no process is seen to have its lock; the last one was process"));

        fs::write(&lock, format!("{:10} {:68}\n", 7, "longshore-controller-0")).expect("written");
        File::options().write(true).open(&lock).expect("it").set_modified(std::time::SystemTime::now() - 3 * HOUR).expect("set");
        let text = shown(&harness, "inspect");
        let words = "recorded by process 7 on longshore-controller-0 3h ago as provisioned from (not seen from here)";
        assert!(text.contains(words) && !text.contains("provisioned from by"), "{text}");
        let text = shown(&harness, "doctor");
        assert!(text.contains("its lock is recorded by process 7 on longshore-controller-0 since "), "{text}");
        assert!(text.contains("whether that one still has it is not seen from here"), "{text}");

        // A lock of this machine is seen, no matter what the record says.
        let held = File::open(&lock).expect("the lock");
        held.lock().expect("free");
        let text = shown(&harness, "inspect");
        assert!(
            text.contains(&format!("provisioned from by process {} ", std::process::id())) && !text.contains("recorded by"),
            "{text}"
        );
    });
}

#[test]
fn two_processes_that_start_together_never_share_the_pools() {
    isolated(|| {
        let place = tempfile::tempdir_in("/var/tmp").expect("a directory");
        let (a, b) = (place.path().join("a"), place.path().join("b"));
        let mut first = with_pools(&[("a", &a), ("b", &b)]);
        // In another order: that of the names counts.
        let mut second = with_pools(&[("b", &b), ("a", &a)]);
        for round in 0..4 {
            std::thread::scope(|scope| {
                scope.spawn(|| first.start());
                scope.spawn(|| second.start());
            });
            let ready = [is_ready(&first), is_ready(&second)];
            assert!(ready[0] != ready[1], "{ready:?}\n{}\n{}", first.log(), second.log());
            let (leader, standby) = if ready[0] { (&mut first, &mut second) } else { (&mut second, &mut first) };
            for pool in ["a", "b"] {
                created(leader, &format!("{pool}-{round}"), Some(pool)).expect("the leader has both");
            }
            assert_on_standby(standby, &["pool a "]);
            // It may have looked before the leader had written its number.
            let holder = format!("process {} ", leader.pid());
            until("it knows who leads", || created(standby, "refused", None).expect_err("none").message().contains(&holder));
            leader.kill();
            until("the other one leads", || is_ready(standby));
            assert_eq!(listed(standby).expect("a list").len(), 2 * (round + 1));
            standby.kill();
        }
    });
}

#[test]
fn leader_that_finds_an_earlier_pool_held_elsewhere_ends_and_stands_by() {
    isolated(|| {
        let place = tempfile::tempdir_in("/var/tmp").expect("a directory");
        let (away, a, b) = (place.path().join("away"), place.path().join("a"), place.path().join("b"));
        let mut driver = with_pools(&[("a", &a.join("images")), ("b", &b)]);
        driver.start();
        created(&driver, "v", Some("b")).expect("the other pool is not away");
        let status = created(&driver, "w", Some("a")).expect_err("away");
        assert_eq!(status.code(), Code::Unavailable, "{status}");

        // The pool comes, and another controller has it.
        fs::create_dir_all(away.join("images")).expect("a directory");
        let lock = File::create(away.join("images/lock")).expect("the lock");
        lock.lock().expect("free");
        fs::rename(&away, &a).expect("it comes");
        assert!(driver.ends_within(TAKEOVER), "{}", driver.log());
        assert!(driver.log().contains("this process ends, so that one provisions from everything"), "{}", driver.log());
        driver.start();
        assert_on_standby(&driver, &["pool a "]);

        drop(lock);
        until("it leads", || is_ready(&driver));
        created(&driver, "w", Some("a")).expect("both pools are its own");
        assert_eq!(listed(&driver).expect("a list"), ["image:v", "image:w"].map(str::to_owned));
    });
}

#[test]
fn leader_whose_lock_another_machine_has_got_from_the_file_server_ends() {
    isolated(|| {
        let place = tempfile::tempdir_in("/var/tmp").expect("a directory");
        let mut driver = with_pools(&[("a", &place.path().join("a")), ("b", &place.path().join("b"))]);
        driver.start();
        created(&driver, "v", Some("b")).expect("created");
        // The kernel here gives no lock away; what the other one writes is the same.
        let lock = place.path().join("b/lock");
        let content = fs::read_to_string(&lock).expect("the lock");
        fs::write(&lock, content.replace(&driver.pid().to_string(), "4321")).expect("written");
        let status = created(&driver, "w", Some("b")).expect_err("taken over");
        assert!(status.code() == Code::Unavailable && status.message().contains("process 4321"), "{status}");
        assert!(driver.ends_within(TAKEOVER), "{}", driver.log());
        assert!(driver.log().contains("this process ends, so that one provisions from everything"), "{}", driver.log());
        driver.start();
        created(&driver, "w", Some("b")).expect("nobody has it");
    });
}

#[test]
fn later_pool_that_is_held_elsewhere_keeps_only_its_own_volumes_away() {
    isolated(|| {
        let place = tempfile::tempdir_in("/var/tmp").expect("a directory");
        let (a, b) = (place.path().join("a"), place.path().join("b"));
        let mut driver = with_pools(&[("a", &a), ("b", &b)]);
        driver.start();
        created(&driver, "v", Some("b")).expect("created");
        driver.kill();
        let lock = File::open(b.join("lock")).expect("the lock");
        lock.lock().expect("free");
        driver.start();
        assert!(is_ready(&driver), "{}", driver.log());
        created(&driver, "w", Some("a")).expect("created");
        for status in [created(&driver, "x", Some("b")).expect_err("held"), listed(&driver).expect_err("not all is known")] {
            assert_eq!(status.code(), Code::Unavailable, "{status}");
            assert!(status.message().contains("pool b ") && status.message().contains("provisions from it"), "{status}");
        }
        drop(lock);
        created(&driver, "x", Some("b")).expect("created");
        assert_eq!(listed(&driver).expect("a list").len(), 3);
    });
}

#[test]
fn two_backends_of_one_process_with_one_pool_are_refused() {
    isolated(|| {
        let place = tempfile::tempdir_in("/var/tmp").expect("a directory");
        let (pool, link) = (place.path().join("pool"), place.path().join("link"));
        std::os::unix::fs::symlink(&pool, &link).expect("a link");
        let mut twice = with_pools(&[("a", &pool), ("b", &link)]);
        assert!(!twice.try_start(), "{}", twice.log());
        assert!(twice.log().contains("this one, provisions from it"), "{}", twice.log());

        fs::remove_dir_all(&pool).expect("removed");
        let backend =
            |name: &str, path: &Path| format!("{{name: {name}, type: image, pools: [{{name: p, path: {}}}]}}", path.display());
        let config = format!("backends: [{}, {}]\n", backend("one", &pool), backend("two", &link));
        fs::write(twice.path("config.yaml"), config).expect("the configuration");
        assert!(!twice.try_start(), "{}", twice.log());
        assert!(twice.log().contains("is the pool of backend"), "{}", twice.log());
    });
}

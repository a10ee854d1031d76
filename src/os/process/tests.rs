//! Programs that are started.

use super::super::Error;
use super::command::{Run, Tool};
use super::command::{SEARCH, TAIL_LIMIT, tail};
use super::private::Private;
use super::wait::OUTPUT_LIMIT;
use super::*;
use rustix::process::{Pid, Signal};
use std::io::{self, BufRead, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::time::{Duration, Instant};

const SH: Tool = Tool { name: "sh", package: "dash" };

fn sh(script: &str) -> Run<'static> {
    let arguments = vec!["-c".to_owned(), script.to_owned()];
    Run { tool: SH, arguments, keep: Vec::new(), stdin: Vec::new(), deadline: Duration::from_secs(30) }
}

/// Running or stopped: a zombie whose parent does not reap it is dead enough.
fn lives(pid: &str) -> bool {
    std::fs::read_to_string(format!("/proc/{}/stat", pid.trim()))
        .is_ok_and(|stat| !stat.rsplit_once(") ").unwrap().1.starts_with(['Z', 'X']))
}

#[test]
fn output_status_and_signal_are_reported() {
    let output = run(sh("echo out; echo err >&2; exit 7")).unwrap();
    assert_eq!((output.status, &*output.stdout, &*output.stderr), (Ok(7), "out\n", "err\n"));
    assert_eq!(run(sh("kill -TERM $$")).unwrap().status, Err(libc::SIGTERM));
}

#[test]
fn the_environment_is_clean() {
    let output = run(sh("/usr/bin/env; pwd; readlink /proc/self/fd/0")).unwrap();
    let mut lines: Vec<&str> = output.stdout.lines().filter(|line| !line.starts_with("PWD=")).collect();
    lines.sort_unstable();
    assert_eq!(lines, ["/", "/dev/null", "DM_DISABLE_UDEV=1", "LC_ALL=C", &format!("PATH={SEARCH}")]);
}

#[test]
fn files_of_its_own_are_seen_by_no_other() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("public"), "x").unwrap();
    let mut files = Private::default();
    files.cover(directory.path()).unwrap();
    files.add(directory.path(), Path::new("a/b/secret"), b"hush").unwrap();
    files.add(directory.path(), Path::new("a/other"), b"").unwrap();
    assert!(!format!("{files:?}").contains("hush"));
    let script = format!(
        "cd {} && find . -type f -printf '%p %m\\n' | sort; cat a/b/secret; stat -f -c ' %T' .; echo more >left",
        directory.path().display()
    );
    let output = run_private(sh(&script), files).unwrap();
    assert_eq!(output.stdout, "./a/b/secret 600\n./a/other 600\nhush ramfs\n", "{}", output.stderr);
    let mut left: Vec<_> = std::fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["public"]);
    assert!(!std::fs::read_to_string("/proc/self/mountinfo").unwrap().contains(directory.path().to_str().unwrap()));
}

#[test]
fn program_in_the_view_of_another_process_has_its_files() {
    crate::os::mount::testing::in_own_namespace(|| {
        let directory = tempfile::tempdir().unwrap();
        let covered = directory.path().join("covered");
        std::fs::create_dir(&covered).unwrap();
        let script = r#"mount -t tmpfs view "$0" && mkdir "$0/etc" && echo elsewhere >"$0/file" && echo ready && read -r _"#;
        #[allow(clippy::disallowed_methods, reason = "a process of another mount namespace")]
        let mut other = std::process::Command::new("unshare")
            .args(["--mount", "sh", "-c", script])
            .arg(&covered)
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut ready = String::new();
        io::BufReader::new(other.stdout.take().unwrap()).read_line(&mut ready).unwrap();
        assert_eq!(ready, "ready\n");
        let files = Private::of_process(other.id()).unwrap();
        assert!(files.has_directory(&covered.join("etc")) && !Private::default().has_directory(&covered.join("etc")));
        let seen = run_private(sh(&format!("cat {}/file", covered.display())), files).unwrap();
        drop(other.stdin.take());
        other.wait().unwrap();
        assert_eq!(seen.stdout, "elsewhere\n", "{}", seen.stderr);
    });
}

/// As the kubelet's directory is: shared.
#[test]
fn program_with_files_of_its_own_keeps_no_unmounted_volume() {
    crate::os::mount::testing::in_own_namespace(|| {
        let directory = tempfile::tempdir().unwrap();
        let [volume, covered, ready] = ["volume", "covered", "ready"].map(|name| directory.path().join(name));
        [&volume, &covered].into_iter().for_each(|path| std::fs::create_dir(path).unwrap());
        let shared = rustix::mount::MountPropagationFlags::SHARED | rustix::mount::MountPropagationFlags::REC;
        rustix::mount::mount_change("/", shared).unwrap();
        rustix::mount::mount("volume", &volume, "tmpfs", rustix::mount::MountFlags::empty(), None).unwrap();
        let script = format!(
            "grep -q ' {0} ' /proc/self/mountinfo && echo mounted; : >{1}; \
             while grep -q ' {0} ' /proc/self/mountinfo; do :; done; echo unmounted",
            volume.display(),
            ready.display()
        );
        let mut files = Private::default();
        files.cover(&covered).unwrap();
        let output = std::thread::scope(|scope| {
            let program = scope.spawn(|| run_private(Run { deadline: Duration::from_secs(10), ..sh(&script) }, files));
            while !ready.exists() && !program.is_finished() {
                std::thread::yield_now();
            }
            rustix::mount::unmount(&volume, rustix::mount::UnmountFlags::empty()).unwrap();
            program.join().unwrap()
        });
        assert_eq!(output.unwrap().stdout, "mounted\nunmounted\n");
    });
}

#[test]
fn program_leads_a_process_group() {
    let output = run(sh("cut -d' ' -f1,5 /proc/$$/stat")).unwrap();
    let (pid, group) = output.stdout.trim().split_once(' ').unwrap();
    assert_eq!(pid, group);
}

#[test]
fn program_is_killed_with_its_parent() {
    let tool = Tool { name: "setpriv", package: "util-linux" };
    match run(Run { tool, arguments: vec!["--dump".to_owned()], ..sh("") }) {
        Ok(output) => assert!(output.stdout.contains("Parent death signal: KILL"), "{}", output.stdout),
        Err(error) => eprintln!("SKIPPED: the signal at our death: {error}"),
    }
}

#[test]
fn a_missing_tool_names_its_package() {
    let tool = Tool { name: "no-such-tool", package: "no-such-package" };
    let error = run(Run { tool, ..sh("") }).unwrap_err();
    assert_eq!(error.to_string(), "no-such-tool is not installed; install the package no-such-package");
}

#[test]
fn much_on_all_three_streams_does_not_deadlock() {
    let input: Vec<u8> = b"0123456789abcde\n".repeat(64 << 10);
    let output = run(Run { stdin: input.clone(), ..sh("tee /dev/stderr; echo end") }).unwrap();
    assert_eq!(output.status, Ok(0));
    assert_eq!((output.stdout.len(), output.stderr.len()), (OUTPUT_LIMIT, OUTPUT_LIMIT));
    assert!(output.stdout.ends_with("abcde\nend\n"));
    assert_eq!(output.stderr.as_bytes(), &input[input.len() - OUTPUT_LIMIT..]);
}

#[test]
fn program_that_does_not_read_its_input_is_no_failure() {
    let output = run(Run { stdin: vec![b'x'; 1 << 20], ..sh("exec 0<&-; exit 3") }).unwrap();
    assert_eq!(output.status, Ok(3));
}

#[test]
fn at_the_deadline_the_whole_group_is_killed_and_the_child_reaped() {
    let directory = tempfile::tempdir().unwrap();
    let pids = directory.path().join("pids");
    let script = format!("trap '' TERM; sleep 1000 & echo $! $$ >{}; wait", pids.display());
    let begun = Instant::now();
    let error = run(Run { deadline: Duration::from_millis(500), ..sh(&script) }).unwrap_err();
    assert!(matches!(error, Error::Deadline { action: "run", .. }), "{error}");
    assert!(begun.elapsed() < Duration::from_secs(10));
    let pids = std::fs::read_to_string(pids).unwrap();
    let (background, shell) = pids.split_once(' ').unwrap();
    assert!(!Path::new("/proc").join(shell.trim()).exists(), "reaped");
    // It got the signal in the same call; its last moments are the kernel's.
    while lives(background) {
        std::thread::yield_now();
        assert!(begun.elapsed() < Duration::from_secs(20), "the background process lives");
    }
}

#[test]
fn a_background_process_that_holds_the_pipe_is_not_waited_for() {
    let begun = Instant::now();
    let output = run(sh("sleep 20 & echo $!")).unwrap();
    assert!(begun.elapsed() < Duration::from_secs(15));
    let pid: i32 = output.stdout.trim().parse().unwrap();
    rustix::process::kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
}

#[test]
fn only_what_is_kept_is_open_in_the_child() {
    let mut kept = tempfile::tempfile().unwrap();
    kept.write_all(b"by number").unwrap();
    let other = tempfile::tempfile().unwrap();
    let fd = kept.as_raw_fd();
    let script = format!("cat /proc/self/fd/{fd}; test -e /proc/self/fd/{} && echo leaked", other.as_raw_fd());
    let output = run(Run { keep: vec![kept.as_fd()], ..sh(&script) }).unwrap();
    assert_eq!(output.stdout, "by number");
    assert!(rustix::io::fcntl_getfd(&kept).unwrap().contains(rustix::io::FdFlags::CLOEXEC), "still closed in others");
}

#[test]
fn a_standard_stream_cannot_be_kept() {
    let stderr = io::stderr();
    let error = run(Run { keep: vec![stderr.as_fd()], ..sh("") }).unwrap_err();
    assert!(matches!(error, Error::Unexpected { .. }), "{error}");
}

#[test]
fn an_unaccepted_status_is_an_error_with_what_was_said() {
    assert_eq!(run_ok(sh("exit 2"), "x", &[0, 2]).unwrap().status, Ok(2));
    let error = run_ok(sh("echo why >&2; exit 4"), "/dev/x", &[0]).unwrap_err();
    assert_eq!(error.to_string(), "sh /dev/x: exit status 4: why");
    let error = run_ok(sh("echo instead; kill -KILL $$"), "/dev/x", &[0]).unwrap_err();
    assert_eq!(error.to_string(), "sh /dev/x: killed by signal 9: instead");
}

#[test]
fn the_tail_is_whole_lines_and_whole_characters() {
    let text = format!("first\n{}last\n", "ä line\n".repeat(1000));
    let tail = tail(&text);
    assert!(tail.starts_with("... ä line\n") && tail.ends_with("\nlast") && tail.len() <= TAIL_LIMIT + 4);
}

#[test]
fn debug_shows_no_secret() {
    let shown = format!("{:?}", Run { stdin: b"secret".to_vec(), ..sh("") });
    assert!(shown.contains("6 bytes") && !shown.contains("secret") && !shown.contains("115"));
}

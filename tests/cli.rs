//! The program as people meet it: help, completions, checks, messages and exit codes.

use std::fs;
use std::io::{BufRead, BufReader, Lines};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Output, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

/// Runs `longshore` with these words and nothing of our own environment that it listens to.
fn longshore(words: &[&str]) -> Output {
    command(words).output().expect("the program starts")
}

#[allow(clippy::disallowed_methods, reason = "the program itself is what is tested")]
fn command(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_longshore"));
    command.args(words).env_remove("CSI_ENDPOINT").env_remove("KUBE_NODE_NAME").env_remove("LONGSHORE_LOG");
    command
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("UTF-8")
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("UTF-8")
}

/// Asserts the exit code and what standard error says.
fn assert_fails(output: &Output, code: i32, words: &[&str]) {
    let said = stderr(output);
    assert_eq!(output.status.code(), Some(code), "{said}");
    for word in words {
        assert!(said.contains(word), "{said}\nlacks {word}");
    }
    assert_eq!(stdout(output), "", "a failure prints nothing for a pipe");
}

struct File {
    _directory: tempfile::TempDir,
    path: PathBuf,
}

fn file(text: &str) -> File {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("longshore.yaml");
    fs::write(&path, text).expect("written");
    File { _directory: directory, path }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

const RPCS: [&str; 38] = [
    "get-plugin-info",
    "get-plugin-capabilities",
    "probe",
    "create-volume",
    "delete-volume",
    "controller-publish-volume",
    "controller-unpublish-volume",
    "validate-volume-capabilities",
    "list-volumes",
    "get-volume",
    "get-capacity",
    "create-snapshot",
    "delete-snapshot",
    "list-snapshots",
    "get-snapshot",
    "expand-volume",
    "modify-volume",
    "get-volume-health",
    "list-volume-health",
    "controller-get-capabilities",
    "group-get-capabilities",
    "create-group-snapshot",
    "delete-group-snapshot",
    "get-group-snapshot",
    "metadata-allocated",
    "metadata-delta",
    "stage-volume",
    "unstage-volume",
    "publish-volume",
    "unpublish-volume",
    "volume-stats",
    "node-get-volume-health",
    "storage-health",
    "node-expand-volume",
    "node-get-capabilities",
    "node-info",
    "--json",
    "--timeout",
];

#[test]
fn every_rpc_of_the_protocol_has_a_command() {
    let proto = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/proto/csi.proto")).expect("the protocol");
    let rpcs: Vec<&str> = proto.lines().filter_map(|line| line.trim_start().strip_prefix("rpc ")).collect();
    assert!(rpcs.len() > 30, "{rpcs:?}");
    let help = stdout(&longshore(&["call", "--help"]));
    for rpc in rpcs {
        let name = rpc.split(['(', ' ']).next().unwrap_or_default();
        assert!(help.contains(&format!("{name}: ")), "{name} is in no command's help:\n{help}");
    }
}

#[test]
fn help_tells_commands_flags_and_exit_codes() {
    for (words, wanted) in [
        (
            &["--help"][..],
            &["serve", "call", "inspect", "doctor", "completions", "Exit codes:", "4  it failed, but may still be running"][..],
        ),
        (&["serve", "--help"], &["--mode", "--config", "--check", "KUBE_NODE_NAME", "CSI_ENDPOINT", "Examples:", "pools:"]),
        (&["call", "--help"], &RPCS),
        (&["inspect", "--help"], &["--json", "--fix", "--yes", "--state-dir", "Exit codes:", "4  --fix was refused"]),
        (&["doctor", "--help"], &["--json", "--mode", "--kubelet-dir", "Exit codes:", "init container"]),
        (&["call", "create-volume", "--help"], &["--size", "--limit", "--from-snapshot", "--secret-file", "single-node-writer"]),
    ] {
        let output = longshore(words);
        assert!(output.status.success());
        for word in wanted {
            assert!(stdout(&output).contains(word), "{words:?} lacks {word}:\n{}", stdout(&output));
        }
    }
    assert_eq!(stdout(&longshore(&["--version"])), concat!("longshore ", env!("CARGO_PKG_VERSION"), "\n"));
}

#[test]
fn man_pages_are_written_for_each_command() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().to_str().expect("UTF-8");
    assert!(longshore(&["man-pages", path]).status.success());
    for page in ["longshore.1", "longshore-serve.1", "longshore-call-create-volume.1", "longshore-inspect.1"] {
        let text = fs::read_to_string(directory.path().join(page)).unwrap_or_else(|error| panic!("{page}: {error}"));
        assert!(text.starts_with(".ie") || text.contains(".TH"), "{page}: {text:.200}");
    }
    assert_eq!(longshore(&["man-pages", "/nonexistent"]).status.code(), Some(1));
}

#[test]
fn completions_know_the_commands() {
    for shell in ["bash", "zsh", "fish"] {
        let output = longshore(&["completions", shell]);
        assert!(output.status.success());
        assert!(stdout(&output).contains("create-group-snapshot"), "{shell}");
    }
    assert_eq!(longshore(&["completions", "dos"]).status.code(), Some(2));
}

#[test]
fn check_prints_what_it_would_do_and_reads_it_again() {
    let first = longshore(&["serve", "--check", "--node-id", "n1", "--state-dir", "/srv/state", "--mode", "controller"]);
    assert!(first.status.success(), "{}", stderr(&first));
    let printed = stdout(&first);
    for line in ["mode: controller", "nodeId: n1", "stateDir: /srv/state", "path: /srv/state/pool", "type: image"] {
        assert!(printed.contains(line), "{printed}\nlacks {line}");
    }
    let file = file(&printed);
    assert_eq!(stdout(&longshore(&["serve", "--check", "--config", text(&file.path)])), printed);
}

#[test]
fn flags_go_before_the_environment_and_that_before_the_file() {
    let file = file("endpoint: /run/file.sock\nnodeId: from-file\nlog: {level: debug}\n");
    let output = command(&["serve", "--check", "--config", text(&file.path), "--node-id", "from-flag"])
        .env("KUBE_NODE_NAME", "from-environment")
        .env("CSI_ENDPOINT", "/run/environment.sock")
        .output()
        .expect("the program starts");
    let printed = stdout(&output);
    for line in ["nodeId: from-flag", "endpoint: unix:///run/environment.sock", "level: debug"] {
        assert!(printed.contains(line), "{printed}\nlacks {line}");
    }
}

#[test]
fn a_wrong_configuration_is_reported_and_nothing_is_started() {
    let wrong = file("mode: all\nbackends:\n- name: a\n  type: image\n  pools:\n  - name: p\n    path: /srv\n    colour: blue\n");
    assert_fails(&longshore(&["serve", "--config", text(&wrong.path)]), 2, &[text(&wrong.path), "colour", "line 8"]);
    assert_fails(&longshore(&["serve", "--check", "--config", "/no/such.yaml"]), 2, &["cannot read /no/such.yaml"]);
    assert_fails(&longshore(&["serve", "--check", "--config", "/"]), 2, &["cannot read /"]);
    let output = command(&["serve", "--check"]).env("CSI_ENDPOINT", "tcp://1.2.3.4:5").output().expect("the program starts");
    assert_fails(&output, 2, &["CSI_ENDPOINT", "tcp://1.2.3.4:5"]);
}

#[test]
fn wrong_usage_ends_with_2() {
    for (words, said) in [
        (&["serve", "--mode", "both"][..], "possible values: all, controller, node"),
        (&["serve", "--driver-name", "a_b"], "no driver name"),
        (&["serve", "--state-dir", "relative"], "absolute"),
        (&["serve", "--log-level", "loud"], "no log level"),
        (&["call"], "Usage:"),
        (&["call", "create-volume"], "--name"),
        (&["call", "create-volume", "--name", "a", "--size", "ten"], "10GiB, 500M or a number of bytes"),
        (&["call", "create-volume", "--name", "a", "--parameter", "pool"], "key=value"),
        (&["call", "create-volume", "--name", "a", "--from-volume", "v", "--from-snapshot", "s"], "cannot be used with"),
        (&["call", "expand-volume", "image:a"], "--size"),
        (&["call", "list-volumes", "--max", "0"], "0 is not in"),
        (&["call", "probe", "--timeout", "soon"], "--timeout"),
    ] {
        assert_fails(&longshore(words), 2, &[said]);
    }
}

#[test]
fn a_socket_that_is_not_there_ends_with_3() {
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("csi.sock");
    let output = longshore(&["call", "probe", "--endpoint", text(&socket)]);
    assert_fails(&output, 3, &[text(&socket), "cannot be reached", "No such file or directory"]);
    let from_environment = command(&["call", "probe"]).env("CSI_ENDPOINT", &socket).output().expect("the program starts");
    assert_fails(&from_environment, 3, &[text(&socket)]);
}

/// A controller in memory, ended with the test.
struct Driver {
    child: Child,
    /// Nobody reads on after the start; the pipe must stay open all the same.
    log: Lines<BufReader<ChildStderr>>,
    directory: tempfile::TempDir,
}

impl Driver {
    fn start() -> Driver {
        let directory = tempfile::tempdir().expect("a directory");
        let config = directory.path().join("longshore.yaml");
        fs::write(&config, "mode: controller\nbackends:\n- name: memory\n  type: fake\n").expect("written");
        let mut command = command(&["serve", "--log-format", "json", "--node-id", "n1", "--config", text(&config)]);
        command.arg("--endpoint").arg(directory.path().join("csi.sock")).arg("--state-dir").arg(directory.path().join("state"));
        let mut child = command.stderr(Stdio::piped()).spawn().expect("the driver starts");
        let log = BufReader::new(child.stderr.take().expect("a pipe")).lines();
        let mut driver = Driver { child, log, directory };
        let lines = std::iter::from_fn(|| driver.log.next()?.ok());
        let listening = lines
            .map(|line| serde_json::from_str::<Value>(&line).expect("JSON lines"))
            .any(|line| line["fields"]["message"] == "listening");
        assert!(listening, "it ends without listening");
        driver
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("csi.sock")
    }

    fn call(&self, line: &str) -> Output {
        let words: Vec<&str> = std::iter::once("call").chain(line.split_whitespace()).collect();
        command(&words).env("CSI_ENDPOINT", self.socket()).output().expect("the program starts")
    }

    /// A call that is answered, as text.
    fn answer(&self, line: &str) -> String {
        let output = self.call(line);
        assert!(output.status.success(), "{line}: {}", stderr(&output));
        assert_eq!(stderr(&output), "", "nothing but the answer, and that to standard output");
        stdout(&output)
    }

    /// The same, as JSON.
    fn json(&self, line: &str) -> Value {
        serde_json::from_str(&self.answer(&format!("{line} --json"))).expect("one JSON document")
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // It may have ended already.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

#[test]
fn volumes_are_made_listed_and_removed() {
    let driver = Driver::start();
    assert_eq!(driver.answer("probe"), "ready\n");
    assert_eq!(driver.answer("list-volumes"), "no volumes\n");
    for name in ["a", "b", "c"] {
        let made = driver.answer(&format!("create-volume --name {name} --size 1GiB"));
        assert!(made.contains(&format!("memory:{name}")) && made.contains("1 GiB"), "{made}");
    }
    let page = driver.answer("list-volumes --max 2");
    assert!(page.contains("memory:b") && !page.contains("memory:c") && page.contains("There are more: --token"), "{page}");
    let all = driver.json("list-volumes --max 2 --all");
    let ids: Vec<_> = all["entries"].as_array().expect("a list").iter().map(|entry| &entry["volume"]["volume_id"]).collect();
    assert_eq!(ids, ["memory:a", "memory:b", "memory:c"]);
    assert_eq!(all["entries"][0]["volume"]["capacity_bytes"], 1_u64 << 30);
    assert_eq!(driver.json("expand-volume memory:a --size 2GiB")["capacity_bytes"], 2_u64 << 30);
    driver.answer("create-snapshot memory:a --name s");
    let restored = driver.json("create-volume --name d --size 2GiB --from-snapshot memory:s");
    assert_eq!(restored["volume"]["content_source"]["snapshot"]["snapshot_id"], "memory:s");
    assert!(driver.answer("list-snapshots --volume memory:a").contains("memory:s"));
    driver.answer("delete-volume memory:b");
    assert_fails(&driver.call("get-volume memory:b"), 1, &["error: NOT_FOUND: ", "memory:b"]);
}

#[test]
fn attaching_finds_the_volumes_context_by_itself() {
    let driver = Driver::start();
    driver.answer("create-volume --name a --size 1GiB");
    assert!(driver.answer("controller-publish-volume memory:a --node n1").contains("memory:a is attached to n1"));
    let volume = driver.json("get-volume memory:a");
    assert_eq!(volume["status"]["published_node_ids"], Value::from(vec!["n1"]));
    driver.answer("controller-unpublish-volume memory:a");
}

#[test]
fn refusal_of_the_driver_is_printed_with_its_code() {
    let driver = Driver::start();
    driver.answer("create-volume --name a --size 1GiB");
    assert_fails(&driver.call("create-volume --name a --size 2GiB"), 1, &["error: ALREADY_EXISTS: "]);
    assert_fails(&driver.call("create-volume --name e --parameter colour=blue"), 1, &["error: INVALID_ARGUMENT: ", "colour"]);
    assert_fails(&driver.call("stage-volume memory:a --staging /x"), 1, &["error: UNIMPLEMENTED", "hint: "]);
    assert_fails(&driver.call("delete-volume memory:a --secret-file k=/no/file"), 2, &["cannot read /no/file"]);
    let twice = driver.call("create-volume --name f --parameter a=1 --parameter a=2");
    assert_fails(&twice, 2, &["--parameter a is given twice"]);
}

#[test]
fn a_signal_ends_the_driver_and_removes_its_socket() {
    let mut driver = Driver::start();
    assert!(driver.socket().exists());
    let pid = i32::try_from(driver.child.id()).expect("a pid");
    kill(Pid::from_raw(pid), Signal::SIGTERM).expect("it runs");
    assert_eq!(driver.child.wait().expect("it ends").code(), Some(0));
    assert!(!driver.socket().exists());
}

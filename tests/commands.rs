//! Each `longshore` command line of the documentation, in the environment that the driver's container has: run beside a driver where
//! that is possible, else at least understood by the program.

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use common::{Harness, Pool, capability, create, isolated, stage_request, starting, text};
use longshore::csi;

/// What is run, with the exit codes that may come of it: 0, or what the command says of a machine that has its own faults.
const RUN: [(&str, &[i32]); 20] = [
    ("longshore call --help", &[0]),
    ("longshore call create-volume --name a --size 1GiB", &[0]),
    ("longshore call list-volumes", &[0]),
    ("longshore config-schema", &[0]),
    ("longshore doctor", &[0]),
    ("longshore doctor --json", &[0]),
    ("longshore doctor --mode controller", &[0]),
    ("longshore inspect", &[0]),
    ("longshore inspect --json", &[0]),
    // It is refused beside a driver, as documented, and where nobody can be asked.
    ("longshore inspect --fix", &[2]),
    ("longshore inspect pvc-3f1c", &[0]),
    ("longshore inspect VOLUME_ID", &[2]),
    ("longshore log-level", &[0]),
    ("longshore log-level debug", &[0]),
    ("longshore log-level info", &[0]),
    ("longshore reload", &[0]),
    ("longshore reload --check", &[0]),
    ("longshore serve --help", &[0]),
    ("longshore serve --check", &[0]),
    ("longshore serve --check --config FILE", &[2]),
];

/// What is not run, and why; the program must understand it all the same.
const PARSED: [(&str, &str); 11] = [
    ("longshore relay", "needs an API server: sidecars/cluster"),
    ("longshore pre-stop", "needs an API server: src/cli/pre_stop.rs, sidecars/cluster"),
    ("longshore serve", "it is what runs already"),
    ("longshore serve --mode controller", "it is what runs already"),
    ("longshore call metadata-allocated", "needs the id of a snapshot: tests/lifecycle.rs"),
    ("longshore call delete-volume", "needs the id of a volume: tests/lifecycle.rs"),
    ("longshore inspect --backend NAME", "needs a cloud: tests/cloud/garbage.rs"),
    ("longshore inspect --backend NAME --handles FILE --snapshot-handles FILE", "needs a cloud: tests/cloud/garbage.rs"),
    (
        "longshore inspect --backend ebs --handles - --snapshot-handles /var/lib/longshore/snapshot-handles",
        "needs a cloud: tests/cloud/garbage.rs",
    ),
    (
        "longshore inspect --backend ebs --handles - --snapshot-handles /var/lib/longshore/snapshot-handles --delete HANDLE",
        "needs a cloud: tests/cloud/garbage.rs",
    ),
    ("longshore call", "a name, no command line"),
];

/// The command lines: in fenced blocks after `# ` or, in a pod, after ` -- `, and between backticks.
fn documented() -> BTreeSet<String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut pages: Vec<PathBuf> = vec![root.join("README.md")];
    pages.extend(fs::read_dir(root.join("docs")).expect("docs").map(|entry| entry.expect("a page").path()));
    let mut found = BTreeSet::new();
    for page in pages.into_iter().filter(|page| page.extension().is_some_and(|end| end == "md")) {
        let text = fs::read_to_string(&page).expect("a page");
        for (at, part) in text.split("```").enumerate() {
            if at % 2 == 0 {
                let spans = part.split('`').skip(1).step_by(2);
                found.extend(spans.filter(|span| span.starts_with("longshore ")).map(words));
            } else if part.starts_with("console\n") {
                // A line that continues ends with a backslash.
                let joined = part.replace("\\\n", " ");
                let after = |line: &str| {
                    let start =
                        [" -- longshore ", "# longshore "].iter().find_map(|mark| line.find(mark).map(|at| at + mark.len() - 10));
                    start.map(|start| {
                        words(
                            line[start..]
                                .split(" # ")
                                .next()
                                .unwrap_or_default()
                                .split([';', '|', '<', '>', '\''])
                                .next()
                                .unwrap_or_default(),
                        )
                    })
                };
                found.extend(joined.lines().filter_map(after).filter(|line| line != "longshore"));
            }
        }
    }
    found
}

fn words(text: &str) -> String {
    text.split_whitespace().filter(|word| *word != "...").collect::<Vec<_>>().join(" ")
}

/// As `kubectl exec` runs it in the driver's container: nothing but the container's environment.
#[allow(clippy::disallowed_methods, reason = "the program itself is what is tested")]
fn in_pod(environment: &BTreeMap<&str, String>, line: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_longshore"));
    command.args(line.split(' ').skip(1)).env_clear().envs(environment).env("PATH", std::env::var_os("PATH").unwrap_or_default());
    let _starting = starting();
    command.stdin(std::process::Stdio::null()).output().expect("it starts")
}

fn said(output: &Output) -> String {
    [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned()).concat()
}

#[test]
fn every_documented_command_works_in_the_pod_of_its_driver() {
    isolated(|| {
        let mut harness = Harness::new(Pool::Local);
        let (state, kubelet) = (harness.path("state"), harness.path("kubelet"));
        harness.configure(&format!("stateDir: {}\nkubeletDir: {}", state.display(), kubelet.display()));
        harness.start();
        harness.block_on(harness.controller().create_volume(create("pvc-3f1c", 64, Some("ext4"), "image"))).expect("created");
        let stage = stage_request("image:pvc-3f1c", harness.staging("pvc-3f1c"), capability(Some("ext4")));
        harness.block_on(harness.node().node_stage_volume(stage.clone())).expect("staged");
        let environment = BTreeMap::from([
            ("CSI_ENDPOINT", format!("unix://{}", harness.path("csi.sock").display())),
            ("LONGSHORE_CONFIG", text(&harness.path("config.yaml"))),
            ("LONGSHORE_MODE", "all".to_owned()),
            ("KUBE_NODE_NAME", "node-1".to_owned()),
        ]);

        let known: BTreeSet<String> =
            RUN.iter().map(|(line, _)| *line).chain(PARSED.iter().map(|(line, _)| *line)).map(str::to_owned).collect();
        let missing: Vec<_> = documented().difference(&known).cloned().collect();
        assert!(missing.is_empty(), "say of each whether it can be run: {missing:#?}");
        for (line, codes) in RUN {
            let output = in_pod(&environment, line);
            assert!(
                output.status.code().is_some_and(|code| codes.contains(&code)),
                "{line}: {}\n{}",
                output.status,
                said(&output)
            );
        }
        for (line, why) in PARSED {
            let output = in_pod(&environment, &format!("{line} --help"));
            assert!(output.status.success(), "{line} ({why}): {}", said(&output));
        }

        // They speak of this driver, and of no other.
        let report: serde_json::Value =
            serde_json::from_slice(&in_pod(&environment, "longshore inspect --json").stdout).expect("JSON");
        assert_eq!(report["running"]["driver"]["pid"], harness.pid(), "{report}");
        assert_eq!(report["running"]["driver"]["answers"], true, "{report}");
        assert_eq!(report["stateDir"], text(&state), "{report}");
        let doctor = said(&in_pod(&environment, "longshore doctor"));
        for place in ["csi.sock", "pool"].map(|name| text(&harness.path(name))) {
            assert!(doctor.contains(&place), "{place}: {doctor}");
        }
        let volumes = said(&in_pod(&environment, "longshore call list-volumes"));
        assert!(volumes.contains("image:pvc-3f1c") && volumes.contains("image:a"), "{volumes}");
        // What the variables say is used, and a flag goes before it.
        let elsewhere = BTreeMap::from([("LONGSHORE_CONFIG", "/nonexistent/longshore.yaml".to_owned())]);
        assert!(said(&in_pod(&elsewhere, "longshore inspect")).contains("/nonexistent/longshore.yaml"));
        let flag = format!("longshore serve --check --config {}", harness.path("config.yaml").display());
        assert!(in_pod(&elsewhere, &flag).status.success());

        let unstage =
            csi::NodeUnstageVolumeRequest { volume_id: stage.volume_id, staging_target_path: stage.staging_target_path };
        harness.block_on(harness.node().node_unstage_volume(unstage)).expect("unstaged");
        assert!(harness.stop());
    });
}

#[test]
fn the_log_says_more_and_less_while_the_driver_runs() {
    isolated(|| {
        let mut harness = Harness::new(Pool::Local);
        harness.start();
        let environment = BTreeMap::from([("CSI_ENDPOINT", format!("unix://{}", harness.path("csi.sock").display()))]);
        let level = |line: &str| said(&in_pod(&environment, line));
        // A step of os/ is logged at debug only.
        let make = |name: &str| {
            let before = harness.log().len();
            harness.block_on(harness.controller().create_volume(create(name, 64, Some("ext4"), "image"))).expect("created");
            harness.log()[before..].to_owned()
        };
        assert_eq!(level("longshore log-level"), "info\n");
        assert!(!make("a").contains("DEBUG"));
        let pid = harness.pid();
        assert_eq!(level("longshore log-level debug"), "debug\n");
        assert!(make("b").contains("DEBUG"), "{}", harness.log());
        assert_eq!(level("longshore log-level info,longshore::os=debug"), "info,longshore::os=debug\n");
        assert_eq!(level("longshore log-level off"), "off\n");
        assert_eq!(make("c"), "");
        let wrong = in_pod(&environment, "longshore log-level loud");
        assert!(wrong.status.code() == Some(2) && said(&wrong).contains("no log level"), "{}", said(&wrong));
        assert_eq!(level("longshore log-level info"), "info\n");
        assert!(make("d").contains("INFO"));
        assert_eq!((level("longshore log-level").as_str(), harness.pid()), ("info\n", pid), "it is the same process");
        assert!(harness.stop());
    });
}

#[test]
fn the_list_of_a_lost_nodes_volumes_is_made_of_all_kinds_of_volumes() {
    let page = include_str!("../docs/operations.md");
    let filter = page.split("jq -r '").nth(1).and_then(|rest| rest.split("'\n").next()).expect("the filter");
    let volumes = serde_json::json!({ "items": [
        { "metadata": { "name": "of-another-driver" }, "spec": { "nfs": {} } },
        { "metadata": { "name": "without-affinity" }, "spec": { "csi": { "driver": "longshore.csi.dev" }, "claimRef": { "namespace": "a", "name": "b" } } },
        { "metadata": { "name": "here" }, "spec": { "csi": { "driver": "longshore.csi.dev" }, "claimRef": { "namespace": "shop", "name": "data" },
            "nodeAffinity": { "required": { "nodeSelectorTerms": [
                { "matchFields": [] }, { "matchExpressions": [{ "key": "k", "operator": "In", "values": ["NODE"] }] } ] } } } },
        { "metadata": { "name": "elsewhere" }, "spec": { "csi": { "driver": "longshore.csi.dev" }, "claimRef": { "namespace": "shop", "name": "x" },
            "nodeAffinity": { "required": { "nodeSelectorTerms": [{ "matchExpressions": [{ "key": "k", "operator": "In", "values": ["NODE-2"] }] }] } } } },
    ] });
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("volumes.json");
    fs::write(&file, volumes.to_string()).expect("written");
    assert_eq!(common::run("jq", ["-r", filter, &text(&file)]).trim(), "here shop/data");
}

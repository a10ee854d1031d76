//! docs/parameters.md, and the README's table of features, say what the code knows, no more and no less.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use longshore::backend::Backend;
use longshore::backend::azure::parameters::{AzureParameters, Mutable, SnapshotParameters as AzureSnapshotParameters};
use longshore::backend::catalog::{Catalog, OpenContext, Purpose};
use longshore::backend::cinder::parameters::{CinderParameters, Retype, SnapshotParameters as CinderSnapshotParameters};
use longshore::backend::directory::DirectoryParameters;
use longshore::backend::disk::DiskParameters;
use longshore::backend::ec2::parameters::{Ec2Parameters, Rates, SnapshotSettings};
use longshore::backend::fake::{Fake, FakeConfig, FakeParameters};
use longshore::backend::gce::parameters::{GceParameters, Rates as GceRates, SnapshotParameters};
use longshore::backend::image::{ImageParameters, MutableParameters};
use longshore::backend::iscsi::IscsiParameters;
use longshore::backend::lvm::LvmParameters;
use longshore::backend::nfs::{NfsParameters, NfsSnapshotParameters};
use longshore::backend::registry::Registry;
use longshore::ops::parameters::Parameters;
use longshore::volume::{
    AccessMode, AccessType, Capability, Encryption, IoLimits, MountFlags, NodeId, NodeParameters, RawParameters, Result,
};
use serde::Deserialize;

/// The first column of the first table in the section of this name.
fn documented(section: &str) -> BTreeSet<String> {
    documented_in(include_str!("../docs/parameters.md"), &format!("\n## {section}\n"))
}

fn documented_in(text: &str, title: &str) -> BTreeSet<String> {
    let section = text.split(title).nth(1).unwrap_or_else(|| panic!("no section {title}"));
    let table = section.split("\n## ").next().unwrap_or_default().split("\n\n").find(|part| part.contains("|---|"));
    let rows = table.expect("a table").lines().filter_map(|line| line.strip_prefix("| `"));
    rows.filter_map(|row| row.split('`').next()).map(str::to_owned).collect()
}

fn fields(parameters: impl serde::Serialize) -> BTreeSet<String> {
    let value = serde_json::to_value(parameters).expect("it serializes");
    value.as_object().expect("an object").keys().cloned().collect()
}

/// The names in the error for one that does not exist.
fn known(error: Result<()>) -> BTreeSet<String> {
    let error = error.expect_err("no such parameter").to_string();
    let list = error.split("expected").nth(1).unwrap_or_else(|| panic!("{error}: tells none"));
    list.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// All that a class may say of a volume on a share.
fn nfs() -> NfsParameters {
    let pairs = [
        ("server", "a"),
        ("share", "/b"),
        ("subDir", "c"),
        ("mountPermissions", "0700"),
        ("uid", "1"),
        ("gid", "1"),
        ("consistency", "file"),
    ];
    NfsParameters::of_class(&RawParameters::new(pairs.map(|(key, value)| (key.to_owned(), value.to_owned())))).expect("known")
}

/// All that a class may say of an EBS volume; of the tags one.
fn ec2() -> BTreeSet<String> {
    let mut all = known(unheard_of().parse::<Ec2Parameters>().map(|_| ()));
    for inner in ["rates", "tags"] {
        assert!(all.remove(inner), "{inner} is no parameter of a class");
    }
    all.extend(rates());
    all.insert("tagSpecification_1".to_owned());
    all
}

fn rates() -> BTreeSet<String> {
    known(unheard_of().parse::<Rates>().map(|_| ()))
}

#[test]
fn every_attribute_of_a_static_volume() {
    let reported = documented("Static volumes");
    let iscsi: BTreeSet<String> = known(unheard_of().parse::<IscsiParameters>().map(|_| ()));
    let mut all: BTreeSet<String> = iscsi.into_iter().filter(|name| name != "sessionCHAPAuth").collect();
    all.extend(["server", "subDir", "path", "volumeGroup", "device"].map(str::to_owned));
    assert_eq!(reported, all);
}

const LVM_STATIC: [&str; 2] = ["volumeGroup", "logicalVolume"];

fn unheard_of() -> RawParameters {
    RawParameters::new([("unheardOf".to_owned(), "x".to_owned())])
}

#[test]
fn every_parameter_of_a_storage_class() {
    let image = ImageParameters { pool: Some("any".to_owned()), ..ImageParameters::default() };
    let mut all = known(unheard_of().parse::<NodeParameters>().map(|_| ()));
    all.extend(fields(image));
    // Two in one row.
    let nfs = fields(nfs()).into_iter().filter(|name| !["share", "gid"].contains(&name.as_str()));
    all.extend(nfs);
    let directory: BTreeSet<String> = known(unheard_of().parse::<DirectoryParameters>().map(|_| ()));
    all.extend(directory.into_iter().filter(|name| !["path", "gid"].contains(&name.as_str())));
    let lvm: BTreeSet<String> = known(unheard_of().parse::<LvmParameters>().map(|_| ()));
    // Limits of writes in the rows of those of reads.
    let of_a_row = |name: &String| !LVM_STATIC.contains(&name.as_str()) && !name.starts_with("write");
    all.extend(lvm.into_iter().filter(of_a_row));
    let disk: BTreeSet<String> = known(unheard_of().parse::<DiskParameters>().map(|_| ()));
    all.extend(disk.into_iter().filter(|name| name != "device"));
    all.extend(fields(FakeParameters::default()));
    all.extend(ec2());
    all.extend(known(unheard_of().parse::<GceParameters>().map(|_| ())));
    // Two in one row.
    let azure = known(unheard_of().parse::<AzureParameters>().map(|_| ()));
    all.extend(azure.into_iter().filter(|name| name != "DiskMBpsReadWrite"));
    all.extend(known(unheard_of().parse::<CinderParameters>().map(|_| ())));
    all.insert("backend".to_owned());
    assert_eq!(documented("StorageClass"), all);
}

#[test]
fn every_parameter_that_may_change() {
    let fake = FakeConfig::named("fake".parse().expect("a name"));
    let fake = Fake::new(fake, "node".parse().expect("a node")).expect("a backend");
    let mut all = known(unheard_of().parse::<MutableParameters>().map(|_| ()));
    // In one row.
    all.extend(rates().into_iter().filter(|name| name == "type"));
    all.extend(known(unheard_of().parse::<GceRates>().map(|_| ())).into_iter().filter(|name| name == "iops"));
    let azure = known(unheard_of().parse::<Mutable>().map(|_| ()));
    all.extend(azure.into_iter().filter(|name| !name.starts_with("Disk")));
    all.extend(known(unheard_of().parse::<IoLimits>().map(|_| ())).into_iter().filter(|name| name == "readBandwidth"));
    all.extend(known(unheard_of().parse::<Retype>().map(|_| ())));
    all.extend(known(fake.modify().expect("it modifies").check(&unheard_of())));
    assert_eq!(documented("VolumeAttributesClass"), all);
}

#[test]
fn every_secret_and_every_parameter_of_snapshots() {
    let chap = ["node.session.auth.username", "discovery.sendtargets.auth.username"].map(str::to_owned);
    assert_eq!(documented("Secrets"), chap.into_iter().chain([Encryption::SECRET.to_owned()]).collect());
    let fake = FakeConfig::named("fake".parse().expect("a name"));
    let fake = Fake::new(fake, "node".parse().expect("a node")).expect("a backend");
    let mut snapshots = known(unheard_of().parse::<SnapshotSettings>().map(|_| ()));
    snapshots.insert("tagSpecification_1".to_owned());
    snapshots.extend(known(unheard_of().parse::<SnapshotParameters>().map(|_| ())));
    snapshots.extend(known(unheard_of().parse::<AzureSnapshotParameters>().map(|_| ())));
    snapshots.extend(known(unheard_of().parse::<CinderSnapshotParameters>().map(|_| ())));
    snapshots.extend(known(unheard_of().parse::<NfsSnapshotParameters>().map(|_| ())));
    assert_eq!(documented("VolumeSnapshotClass and VolumeGroupSnapshotClass"), snapshots);
    fake.snapshots().expect("it has them").check(&unheard_of()).expect_err("a snapshot class has no parameters");
}

/// Each backend as it is configured to provision, with its column's title. None of them is asked for more than what it offers.
fn backends(below: &Path) -> Vec<(&'static str, Arc<dyn Backend>)> {
    let (pool, node): (_, NodeId) = (below.display(), "node".parse().expect("a node id"));
    let configured = [
        ("`image`", format!("{{name: local, type: image, node: node, pools: [{{name: a, path: {pool}/local}}]}}")),
        ("`image`, shared", format!("{{name: shared, type: image, shared: true, pools: [{{name: a, path: {pool}/shared}}]}}")),
        ("`directory`", format!("{{name: directories, type: directory, node: node, path: {pool}/base, staticPaths: [/opt]}}")),
        (
            "`lvm`",
            "{name: lvm, type: lvm, node: node, ioLimits: true, classes: [{name: thin, volumeGroup: vg0, devices: [/dev/sda], thinPool: pool0}]}"
                .to_owned(),
        ),
        ("`disk`", "{name: disk, type: disk, node: node, classes: [{name: nvme, devices: [/dev/no-such-disk]}]}".to_owned()),
        ("`nfs`", "{name: nfs, type: nfs, shares: [{server: 192.0.2.1, share: /srv}]}".to_owned()),
        (
            "`iscsi`",
            format!("{{name: iscsi, type: iscsi, portals: ['127.0.0.1:3260'], pools: [{{name: a, path: {pool}/iscsi}}]}}"),
        ),
        ("`ec2`", "{name: ebs, type: ec2, cluster: c, region: eu-west-1}".to_owned()),
        ("`gce`", "{name: pd, type: gce, cluster: c, project: p, region: europe-west3}".to_owned()),
        (
            "`azure`",
            "{name: az, type: azure, cluster: c, subscriptionId: s, resourceGroup: g, location: westeurope, clientId: c}"
                .to_owned(),
        ),
        ("`cinder`", "{name: vol, type: cinder, cluster: c}".to_owned()),
        ("`fake`", "{name: fake, type: fake}".to_owned()),
    ];
    let file = configured.iter().fold("backends:\n".to_owned(), |file, (_, entry)| file + "- " + entry + "\n");
    let state = below.join("state");
    let context = OpenContext {
        purpose: Purpose::Serve { controller: true, node: false },
        node_id: &node,
        state_dir: &state,
        metrics: None,
        identity: None,
    };
    let catalog = Catalog::built_in();
    let configs = catalog.read(&file).expect("a valid configuration").expect("backends");
    for row in catalog.rows() {
        assert!(configs.iter().any(|config| config.kind() == row.kind), "the README's table has no column of {}", row.kind);
    }
    let titles = configured.iter().map(|(title, _)| *title);
    titles
        .zip(configs.iter().map(|config| config.open(&context).unwrap_or_else(|error| panic!("{}: {error}", config.kind()))))
        .collect()
}

/// Whether volumes of this kind can be had in this access mode.
fn serves(backend: &dyn Backend, mode: AccessMode, access: AccessType) -> bool {
    backend.access_modes().contains(&mode) && backend.check_capability(&Capability { access, mode }).is_ok()
}

fn file_system() -> AccessType {
    AccessType::Filesystem { fstype: None, mount_flags: MountFlags::default(), group: None }
}

#[test]
fn feature_table_of_the_readme_is_what_the_backends_offer() {
    use AccessMode::{MultiNodeMultiWriter, MultiNodeReaderOnly, SingleNodeWriter};
    let scratch = tempfile::tempdir().expect("a directory");
    for pool in ["local", "shared", "base", "iscsi", "state"] {
        std::fs::create_dir(scratch.path().join(pool)).expect("a pool");
    }
    let backends = backends(scratch.path());
    type Has = fn(&dyn Backend) -> bool;
    let features: [(&str, Has); 14] = [
        ("create, delete, list, capacity", |backend| backend.provision().is_some()),
        ("expand", |backend| backend.expand().is_some()),
        ("snapshot, restore, clone", |backend| backend.snapshots().is_some()),
        ("group snapshot", |backend| backend.groups().is_some()),
        ("changed blocks (SnapshotMetadata)", |backend| backend.changed_blocks().is_some()),
        ("VolumeAttributesClass", |backend| backend.modify().is_some()),
        ("attach and detach", |backend| backend.attach().is_some()),
        ("volume health", |backend| backend.health().is_some()),
        ("topology", |backend| backend.has_topology()),
        ("file system volume, ReadWriteOnce", |backend| serves(backend, SingleNodeWriter, file_system())),
        ("raw block volume, ReadWriteOnce", |backend| serves(backend, SingleNodeWriter, AccessType::Block)),
        ("file system volume, ReadOnlyMany", |backend| serves(backend, MultiNodeReaderOnly, file_system())),
        ("file system volume, ReadWriteMany", |backend| serves(backend, MultiNodeMultiWriter, file_system())),
        ("raw block volume, ReadWriteMany", |backend| serves(backend, MultiNodeMultiWriter, AccessType::Block)),
    ];
    let row = |first: &str, cells: Vec<&str>| format!("| {first} | {} |\n", cells.join(" | "));
    let mut table = row("feature", backends.iter().map(|(title, _)| *title).collect());
    table.push_str(&format!("|---|{}\n", ":-:|".repeat(backends.len())));
    for (feature, has) in features {
        table.push_str(&row(
            feature,
            backends.iter().map(|(_, backend)| if has(backend.as_ref()) { "yes" } else { "" }).collect(),
        ));
    }
    assert!(include_str!("../README.md").contains(&table), "README.md lacks this table:\n{table}");
}

/// What an example gives a driver is what the backends take, and each of its names is one that exists.
#[test]
fn examples_have_parameters_that_the_driver_takes() {
    let scratch = tempfile::tempdir().expect("a directory");
    for pool in ["local", "shared", "base", "iscsi", "state"] {
        std::fs::create_dir(scratch.path().join(pool)).expect("a pool");
    }
    let mut backends: Vec<_> = backends(scratch.path()).into_iter().map(|(_, backend)| backend).collect();
    backends.retain(|backend| backend.name().as_str() != "shared");
    let registry = Registry::new(backends).expect("backends of different names");
    let mut seen = BTreeSet::new();
    for file in std::fs::read_dir("examples").expect("the examples") {
        let path = file.expect("an example").path();
        let text = std::fs::read_to_string(&path).expect("text");
        for document in serde_yaml_ng::Deserializer::from_str(&text) {
            let object = serde_json::Value::deserialize(document).expect("YAML");
            let kind = object["kind"].as_str().expect("a kind").to_owned();
            let place = format!("{}: {kind} {}", path.display(), object["metadata"]["name"]);
            match kind.as_str() {
                "StorageClass" => {
                    assert_eq!(object["provisioner"], "longshore.csi.dev", "{place}");
                    Parameters::parse(&registry, &parameters(&object["parameters"]))
                        .unwrap_or_else(|error| panic!("{place}: {error}"));
                }
                "VolumeAttributesClass" => {
                    let wanted = parameters(&object["parameters"]);
                    let takes = |backend: &Arc<dyn Backend>| backend.modify().is_some_and(|modify| modify.check(&wanted).is_ok());
                    assert!(registry.iter().any(takes), "{place}: no backend takes these parameters");
                }
                "PersistentVolume" => {
                    let attributes = parameters(&object["spec"]["csi"]["volumeAttributes"]);
                    let backend = registry.describing(&attributes).unwrap_or_else(|| panic!("{place}: no backend knows it"));
                    backend.parse_static_attributes(&attributes).unwrap_or_else(|error| panic!("{place}: {error}"));
                }
                _ => {}
            }
            seen.insert(kind);
        }
    }
    let kinds = ["StorageClass", "VolumeAttributesClass", "PersistentVolume", "VolumeSnapshotClass", "Pod"];
    assert!(kinds.iter().all(|kind| seen.contains(*kind)), "examples of {seen:?} only");
}

/// As csi-provisioner hands them over: without its own, but with the names of the claim and the volume (`--extra-create-metadata`).
fn parameters(object: &serde_json::Value) -> RawParameters {
    let given = object.as_object().expect("a map").iter().filter(|(key, _)| !key.starts_with("csi.storage.k8s.io/"));
    let given = given.map(|(key, value)| (key.clone(), value.as_str().expect("a string").to_owned()));
    let names = ["pvc/name", "pvc/namespace", "pv/name"].map(|key| (format!("csi.storage.k8s.io/{key}"), "a".to_owned()));
    RawParameters::new(given.chain(names))
}

/// What a type of backends needs beside its row, its directory and its tools.
#[test]
fn catalog_has_documentation_and_tests_for_each_backend() {
    /// Not in the matrices of tests/matrix.rs, but in others.
    const OTHER_MATRICES: [(&str, &str); 4] = [
        ("ec2", "tests/cloud/main.rs"),
        ("gce", "tests/cloud/gce/faults.rs"),
        ("azure", "tests/cloud/azure/faults.rs"),
        ("cinder", "tests/cloud/cinder/faults.rs"),
    ];
    let file = |path: &str| std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let mut missing = Vec::new();
    let mut need = |there: bool, what: String| {
        if !there {
            missing.push(what)
        }
    };
    for row in Catalog::built_in().rows() {
        let kind = row.kind;
        let page = std::fs::read_to_string(format!("docs/{kind}.md")).unwrap_or_default();
        need(!page.is_empty(), format!("{kind}: no page docs/{kind}.md"));
        for page in ["docs/README.md", "docs/configuration.md"] {
            need(file(page).contains(&format!("({kind}.md)")), format!("{kind}: {page} has no link to docs/{kind}.md"));
        }
        let schema = (row.schema)(&mut schemars::SchemaGenerator::default()).to_value();
        let fields =
            schema["properties"].as_object().expect("fields").keys().filter(|field| !["name", "type"].contains(&&***field));
        for field in fields {
            let is_named = page
                .split('`')
                .skip(1)
                .step_by(2)
                .any(|code| code.split(|letter: char| !letter.is_alphanumeric()).any(|word| word == field));
            need(is_named, format!("{kind}: docs/{kind}.md does not explain the setting `{field}`"));
        }
        let of = |line: &str| line.split('|').nth(2).is_some_and(|of| of.split([',', ' ']).any(|word| word == kind));
        need(file("docs/parameters.md").lines().any(of), format!("{kind}: docs/parameters.md has no parameter of it"));
        let runner = file("csi-sanity/run");
        let is_setup = |line: &str| {
            [format!("{kind})"), format!("{kind}-deployed)")].iter().any(|setup| line.trim().split(' ').next() == Some(setup))
        };
        let is_of_several = runner.contains(&format!("    {kind}-*)"));
        need(is_of_several || runner.lines().any(is_setup), format!("{kind}: csi-sanity/run has no setup of it (write_config)"));
        let parameters = format!("csi-sanity/settings/{kind}-volume.yaml");
        need(Path::new(&parameters).exists(), format!("{kind}: no {parameters}"));
        let is_elsewhere = OTHER_MATRICES.iter().any(|(other, path)| *other == kind && Path::new(path).exists());
        let is_varied = file("tests/matrix.rs").contains(&format!("backend: \"{kind}\""));
        need(is_varied || is_elsewhere, format!("{kind}: no variant in tests/matrix.rs"));
    }
    assert!(missing.is_empty(), "{}", missing.join("\n"));
}

#[test]
fn catalog_has_a_row_for_each_directory_of_a_backend() {
    let names: BTreeSet<String> = Catalog::built_in().rows().iter().map(|row| row.kind.to_owned()).collect();
    let directories = std::fs::read_dir("src/backend").expect("the backends").map(|entry| entry.expect("an entry").path());
    // What has a configuration is a backend; the others are parts of some.
    let backends = directories.filter(|path| path.join("config.rs").exists() && !path.ends_with("catalog"));
    let directories: BTreeSet<String> =
        backends.map(|path| path.file_name().expect("a name").to_string_lossy().into_owned()).collect();
    assert_eq!(names, directories);
}

/// The published schema, and its copy in the chart.
#[test]
fn schema_of_the_configuration_is_what_the_driver_prints() {
    let printed = longshore::config::schema(&Catalog::built_in()).to_value();
    let read = |path: &str| -> serde_json::Value {
        serde_json::from_str(&std::fs::read_to_string(path).expect("a schema")).expect("JSON")
    };
    let again = "`cargo build && manifests/schema` writes it again";
    assert_eq!(read("docs/config.schema.json"), printed, "docs/config.schema.json is out of date: {again}");
    let text = printed.to_string().replace("\"#/$defs/", "\"#/$defs/config/$defs/");
    let mut embedded: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    embedded.as_object_mut().expect("a map").remove("$schema");
    let chart = read("manifests/helm/longshore/values.schema.json");
    assert_eq!(chart["$defs"]["config"], embedded, "the chart's values.schema.json is out of date: {again}");
    let backends = &chart["properties"]["driver"]["properties"]["backends"];
    assert_eq!(backends["$ref"], "#/$defs/backends");
    assert_eq!(
        chart["$defs"]["backends"]["items"]["$ref"], "#/$defs/config/$defs/Backend",
        "the chart takes what the driver does"
    );
}

#[test]
fn links_between_pages_lead_to_files() {
    let directories = [".", "docs", "tests", "sidecars", "sidecars/cluster", "benches"];
    let pages = directories
        .iter()
        .flat_map(|directory| std::fs::read_dir(directory).expect("a directory"))
        .map(|page| page.expect("a page").path());
    let mut followed = 0;
    for page in pages.filter(|page| page.extension().is_some_and(|extension| extension == "md")) {
        let text = std::fs::read_to_string(&page).expect("text");
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let target = link.split('#').next().unwrap_or_default();
            if target.is_empty() || target.contains("://") {
                continue;
            }
            let file = page.parent().expect("a directory").join(target);
            assert!(file.exists(), "{}: the link {link} leads nowhere", page.display());
            followed += 1;
        }
    }
    assert!(followed > 50, "{followed} links");
}

/// Words that no search finds, and what is written instead. One word has one meaning across the code.
const BANNED: [(&str, &str); 22] = [
    ("told", "reported, distinguished, asked"),
    ("folder", "directory"),
    ("folders", "directories"),
    ("mend", "repair"),
    ("mends", "repairs"),
    ("mended", "repaired"),
    ("mending", "repairing"),
    ("whoever", "anyone who, no matter who"),
    ("spoilt", "blacklisted, made invalid"),
    ("doubted", "outcome unknown"),
    ("promisable", "provisionable"),
    ("cut off", "interrupted"),
    ("storage machine", "target server"),
    ("storage machines", "target servers"),
    ("made by hand", "static"),
    ("belongs to nothing", "orphaned"),
    ("of nobody", "orphaned"),
    ("held still", "frozen"),
    ("somebody", "a pod, another program, an administrator"),
    ("nobody s", "orphaned, of no volume"),
    ("goes on", "continues"),
    ("going on", "continuing"),
];

#[test]
fn words_that_nobody_searches_for_are_not_used() {
    let names = [
        "src",
        "tests",
        "docs",
        "examples",
        "manifests",
        "sidecars",
        "scripts",
        "csi-sanity",
        "benches",
        "README.md",
        "RELIABILITY.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "Cargo.toml",
        "Containerfile",
        "Makefile",
    ];
    let mut rest: Vec<_> = names.map(std::path::PathBuf::from).into();
    let (mut files, mut found) = (0, Vec::new());
    while let Some(path) = rest.pop() {
        // Its inputs are no text of ours.
        if path.ends_with("tests/fuzz/corpus") {
            continue;
        }
        if path.is_dir() {
            rest.extend(std::fs::read_dir(&path).expect("a directory").map(|entry| entry.expect("an entry").path()));
            continue;
        }
        // This list itself.
        let Some(text) = std::fs::read_to_string(&path).ok().filter(|_| !path.ends_with("tests/docs.rs")) else { continue };
        files += 1;
        for (number, line) in text.lines().enumerate() {
            // Names on disk, which earlier versions read.
            if line.trim_start().starts_with("#[serde(rename = ") {
                continue;
            }
            let words = format!(" {} ", words(line).join(" "));
            for (word, better) in BANNED.iter().filter(|(word, _)| words.contains(&format!(" {word} "))) {
                found.push(format!("{}:{}: \"{word}\"; write \"{better}\"", path.display(), number + 1));
            }
        }
    }
    assert!(files > 300, "{files} files");
    assert!(found.is_empty(), "{}", found.join("\n"));
}

/// In lower case; the parts of names in snake_case and CamelCase are words.
fn words(line: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut lower = false;
    for letter in line.chars() {
        if !letter.is_alphabetic() || (lower && letter.is_uppercase()) {
            words.push(String::new());
        }
        lower = letter.is_lowercase();
        if letter.is_alphabetic() {
            words.last_mut().expect("one").extend(letter.to_lowercase());
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

#[test]
fn words_of_a_line_are_parts_of_names() {
    assert_eq!(
        words("let a_folder = MakeFolder::of(\"folder's\");"),
        ["let", "a", "folder", "make", "folder", "of", "folder", "s"]
    );
}

#[test]
fn picture_of_the_architecture_has_the_labels_of_its_source() {
    let picture = include_str!("../docs/pictures/architecture.svg");
    let source = include_str!("../docs/pictures/architecture.dot");
    let labels: Vec<&str> = source.split("label=\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
    assert!(labels.len() > 15, "{labels:?}");
    for line in labels.iter().flat_map(|label| label.split("\\n")) {
        let shown = line.replace('-', "&#45;");
        assert!(picture.contains(&format!(">{shown}</text>")), "{line}: run docs/pictures/make");
    }
}

#[test]
fn readme_is_one_screen_and_lines_are_short() {
    let lines = include_str!("../README.md").lines();
    assert!(lines.clone().count() <= 100, "README.md has {} lines, 100 are allowed", lines.count());
    let pages = std::fs::read_dir("docs").expect("docs").map(|page| page.expect("a page").path());
    let long = pages
        .chain(["README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "tests/README.md"].map(Into::into))
        .filter(|page| page.extension().is_some_and(|extension| extension == "md"));
    for page in long {
        let text = std::fs::read_to_string(&page).expect("text");
        let mut code = false;
        for (number, line) in text.lines().enumerate() {
            code ^= line.starts_with("```");
            let free = code || line.starts_with('|') || line.starts_with("```");
            assert!(free || line.chars().count() <= 120, "{}:{}: longer than 120 characters", page.display(), number + 1);
        }
    }
}

#[test]
fn reloadable_settings_of_the_document_are_those_of_the_code() {
    let page = include_str!("../docs/configuration.md");
    let table = page.split("\n## Reloading\n").nth(1).and_then(|rest| rest.split("\n\n").find(|part| part.contains("|---|")));
    let cells = |row: &str, at: usize| -> BTreeSet<String> {
        let cell = row.split('|').nth(at + 1).unwrap_or_default().to_owned();
        cell.split('`').skip(1).step_by(2).map(str::to_owned).collect()
    };
    let mut documented = BTreeSet::new();
    for row in table.expect("a table").lines().filter(|line| line.starts_with("| `")) {
        for setting in cells(row, 0) {
            let types = cells(row, 1);
            documented.extend(types.iter().map(|kind| (kind.clone(), setting.clone())));
            documented.extend(types.is_empty().then(|| (String::new(), setting)));
        }
    }
    let mut known: BTreeSet<_> = longshore::config::RELOADABLE.map(|setting| (String::new(), setting.to_owned())).into();
    for row in Catalog::built_in().rows() {
        known.extend(row.reloadable.iter().map(|path| (row.kind.to_owned(), format!("backends[].{path}"))));
    }
    assert_eq!(documented, known, "documented, and known to the code");
}

//! docs/parameters.md, and the README's table of parameters, say what the code knows, no more and no less.

use std::collections::BTreeSet;

use longshore::backend::Backend;
use longshore::backend::ec2::parameters::{Ec2Parameters, Rates, SnapshotSettings};
use longshore::backend::fake::{Fake, FakeConfig, FakeParameters};
use longshore::backend::image::{ImageParameters, MutableParameters};
use longshore::backend::iscsi::IscsiParameters;
use longshore::backend::nfs::{NfsParameters, NfsSnapshotParameters};
use longshore::volume::{Encryption, NodeParameters, RawParameters, Result};

/// The first column of the first table in the section of this name.
fn told(section: &str) -> BTreeSet<String> {
    told_by(include_str!("../docs/parameters.md"), &format!("\n## {section}\n"))
}

fn told_by(text: &str, title: &str) -> BTreeSet<String> {
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
fn every_attribute_of_a_volume_made_by_hand() {
    let told = told("Volumes made by hand");
    let iscsi: BTreeSet<String> = known(unheard_of().parse::<IscsiParameters>().map(|_| ()));
    let mut all: BTreeSet<String> = iscsi.into_iter().filter(|name| name != "sessionCHAPAuth").collect();
    all.extend(["server", "subDir"].map(str::to_owned));
    assert_eq!(told, all);
}

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
    all.extend(fields(FakeParameters::default()));
    all.extend(ec2());
    all.insert("backend".to_owned());
    assert_eq!(told("StorageClass"), all);
    // The README has a row for each.
    all.extend(["share", "gid"].map(str::to_owned));
    assert_eq!(told_by(include_str!("../README.md"), "\n### StorageClass parameters\n"), all);
}

#[test]
fn every_parameter_that_may_change() {
    let fake = FakeConfig::named("fake".parse().expect("a name"));
    let fake = Fake::new(fake, "node".parse().expect("a node")).expect("a backend");
    let mut all = known(unheard_of().parse::<MutableParameters>().map(|_| ()));
    // In one row.
    all.extend(rates().into_iter().filter(|name| name == "type"));
    all.extend(known(fake.modify().expect("it modifies").check(&unheard_of())));
    assert_eq!(told("VolumeAttributesClass"), all);
}

#[test]
fn every_secret_and_every_parameter_of_snapshots() {
    let chap = ["node.session.auth.username", "discovery.sendtargets.auth.username"].map(str::to_owned);
    assert_eq!(told("Secrets"), chap.into_iter().chain([Encryption::SECRET.to_owned()]).collect());
    let fake = FakeConfig::named("fake".parse().expect("a name"));
    let fake = Fake::new(fake, "node".parse().expect("a node")).expect("a backend");
    let mut snapshots = known(unheard_of().parse::<SnapshotSettings>().map(|_| ()));
    snapshots.insert("tagSpecification_1".to_owned());
    snapshots.extend(known(unheard_of().parse::<NfsSnapshotParameters>().map(|_| ())));
    assert_eq!(told("VolumeSnapshotClass and VolumeGroupSnapshotClass"), snapshots);
    fake.snapshots().expect("it has them").check(&unheard_of()).expect_err("a snapshot class has no parameters");
}

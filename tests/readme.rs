//! The README's table of parameters says what the code knows, no more and no less.

use std::collections::BTreeSet;

use longshore::backend::fake::FakeParameters;
use longshore::backend::image::ImageParameters;
use longshore::backend::nfs::NfsParameters;
use longshore::volume::{NodeParameters, RawParameters};

fn fields(parameters: impl serde::Serialize) -> impl Iterator<Item = String> {
    let value = serde_json::to_value(parameters).expect("it serializes");
    let keys: Vec<String> = value.as_object().expect("an object").keys().cloned().collect();
    keys.into_iter()
}

#[test]
fn every_parameter_is_in_the_table() {
    let readme = include_str!("../README.md");
    let table = readme.split("### StorageClass parameters").nth(1).expect("the section").split("\n\n").next().expect("the table");
    let told: BTreeSet<String> = table
        .lines()
        .filter_map(|line| line.strip_prefix("| `"))
        .filter_map(|line| line.split('`').next())
        .map(str::to_owned)
        .collect();
    let image = ImageParameters { pool: Some("any".to_owned()), ..ImageParameters::default() };
    let pairs = [("server", "a"), ("share", "/b"), ("subDir", "c"), ("mountPermissions", "0700"), ("uid", "1"), ("gid", "1")];
    let nfs = RawParameters::new(pairs.map(|(key, value)| (key.to_owned(), value.to_owned())));
    let known: BTreeSet<String> = fields(NodeParameters::default())
        .chain(fields(image))
        .chain(fields(NfsParameters::of_class(&nfs).expect("known")))
        .chain(fields(FakeParameters::default()))
        .chain(["backend".to_owned()])
        .collect();
    assert_eq!(told, known);
}

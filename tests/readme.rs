//! The README's table of parameters says what the code knows, no more and no less.

use std::collections::BTreeSet;

use longshore::backend::fake::FakeParameters;
use longshore::backend::image::ImageParameters;
use longshore::volume::NodeParameters;

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
    let known: BTreeSet<String> = fields(NodeParameters::default())
        .chain(fields(image))
        .chain(fields(FakeParameters::default()))
        .chain(["backend".to_owned()])
        .collect();
    assert_eq!(told, known);
}

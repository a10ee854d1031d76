//! Loop devices stand in for disks: they come late, or say that they are another volume's.

use crate::backend::cloud::node_lab::Lab;

use super::*;

const ONE: &str = "europe-west3-a_1111";
const OTHER: &str = "europe-west3-a_2222";
const MODEL: (&str, &str) = ("device/model", "PersistentDisk  \n");

fn lab(patience: Duration) -> Lab<Node> {
    Lab::new(|directory| Node { patience, ..Node::new(None, None, Disks::stand_in(directory)) })
}

#[test]
fn disk_is_found_by_what_it_says_however_late() {
    let lab = lab(Duration::from_secs(60));
    let Some(_other) = lab.disk(&[MODEL, ("attached-as", &device_name(&DiskId(OTHER.to_owned())))]) else { return };
    let late = [MODEL, ("attached-as", "longshore-1111")];
    lab.disk_is_found_however_late("pd:a", ONE, "gce-longshore-1111", &late, ("attached-as", "longshore-2222"));
}

#[test]
fn doubtful_disk_is_not_used() {
    let refused = [
        ("pd:d-europe-west3-a_2222.a", Some(ONE), "was attached, but volume"),
        ("pd:a", Some("vol-1"), "no id of a disk"),
        ("pd:a", None, "is missing"),
    ];
    let files = [MODEL, ("attached-as", "longshore-1111")];
    lab(Duration::from_millis(200)).doubtful_disk_is_not_used("pd:a", ONE, &files, &refused);
}

//! Loop devices stand in for disks: they come late, or say that they are another volume's.

use crate::backend::cloud::node_lab::Lab;

use super::*;

const ONE: &str = "0b3c0a54-0e0e-4d0b-8a4a-1f0c7a3a7a2b";
const ITS_SERIAL: (&str, &str) = ("serial", "0b3c0a54-0e0e-4d0b-8\n");
const OTHER_SERIAL: (&str, &str) = ("serial", "1b3c0a54-0e0e-4d0b-8");

fn lab(patience: Duration) -> Lab<Node> {
    Lab::new(|directory| Node { patience, ..Node::new(None, 25, Disks::stand_in(directory)) })
}

#[test]
fn disk_is_found_by_its_serial_number_however_late() {
    let lab = lab(Duration::from_secs(60));
    let Some(_other) = lab.disk(&[OTHER_SERIAL]) else { return };
    lab.disk_is_found_however_late("vol:a", ONE, "cinder-0b3c0a54-0e0e-4d0b-8a4a-1f0c7a3a7a2b", &[ITS_SERIAL], OTHER_SERIAL);
}

#[test]
fn doubtful_disk_is_not_used() {
    let refused = [
        ("vol:d-1b3c0a54-0e0e-4d0b-8a4a-1f0c7a3a7a2b.a", Some(ONE), "was attached, but volume"),
        ("vol:a", Some("vol-1"), "no id of a volume"),
        ("vol:a", None, "is missing"),
    ];
    lab(Duration::from_millis(200)).doubtful_disk_is_not_used("vol:a", ONE, &[ITS_SERIAL], &refused);
}

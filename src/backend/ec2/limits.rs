//! How many volumes an instance takes.
//!
//! DescribeInstanceTypes says it (`EbsInfo.MaximumEbsAttachments`, `AttachmentLimitType`); the table here is for nodes, which may not ask,
//! and for when there is no answer. Its numbers are AWS's ("Amazon EBS volume limits for Amazon EC2 instances", EC2 user guide), and
//! where that is silent, or older, those of aws-ebs-csi-driver (August 2026). They have the primary network interface and the disks of the
//! instance store taken
//! off already. Of a type that it does not know it says what the least of the present ones take.

use serde::{Deserialize, Serialize};

use crate::volume::{Error, Result};

/// What an instance type takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attachments {
    pub most: u64,
    /// Network interfaces beyond the first take from it, too.
    pub shared: bool,
}

/// What is on an instance that is no volume of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// Network interfaces, the primary one among them.
    pub interfaces: u64,
    /// EBS volumes, the root's among them.
    pub disks: u64,
}

impl Default for Taken {
    /// Any instance has these.
    fn default() -> Self {
        Taken { interfaces: 1, disks: 1 }
    }
}

/// What the operator says of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct Limits {
    /// How many volumes a node takes, whatever its type. Default: by its instance type.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_attach_limit: Option<u64>,
    /// How many places are kept for volumes that are not this driver's, the root volume among them. Default: the root volume, and
    /// what else was attached when the instance was started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reserved_volume_attachments: Option<u64>,
}

impl Limits {
    /// # Errors
    /// `Invalid`, naming the field.
    pub fn validate(&self) -> Result<()> {
        if self.volume_attach_limit == Some(0) {
            let reason = "0 would let no node have a volume; leave it out for what its instance type takes";
            return Err(Error::invalid("volumeAttachLimit", reason));
        }
        Ok(())
    }

    /// How many volumes of ours an instance takes. At least one: 0 would be "as many as you like" to the CO (CSI spec,
    /// NodeGetInfoResponse).
    pub fn volumes(&self, of: Attachments, taken: Taken) -> u64 {
        if let Some(said) = self.volume_attach_limit {
            return said;
        }
        let interfaces = if of.shared { taken.interfaces.saturating_sub(1) } else { 0 };
        let reserved = self.reserved_volume_attachments.unwrap_or(taken.disks);
        of.most.saturating_sub(interfaces).saturating_sub(reserved).max(1)
    }
}

/// What a type takes: as DescribeInstanceTypes has it, else by the table. It calls some dedicated that are shared, and knows no third
/// word for those on Xen, whose interfaces take nothing: corrected here.
pub fn of_type(kind: &str, reported: Option<Attachments>) -> Attachments {
    let (family, size) = kind.split_once('.').unwrap_or((kind, ""));
    let table = by_table(family, size);
    let never_shared = is_xen(family, size) || size.starts_with("metal-");
    match reported {
        Some(reported) => Attachments { most: reported.most, shared: reported.shared && !never_shared },
        None => table,
    }
}

/// Before Nitro; bare metal never was.
const XEN: &[&str] = &[
    "c1", "c3", "c4", "d2", "f1", "g2", "g3", "g3s", "h1", "hs1", "i2", "i3", "m1", "m2", "m3", "m4", "p2", "p3", "r3", "r4",
    "t1", "t2", "x1", "x1e",
];

/// Families, whole or by how they begin (`*`), whose limit is the volumes' alone.
const DEDICATED: &[&str] = &[
    "c7a", "c7i", "c7i-flex", "c8*", "c9*", "f2", "g6", "g6e", "g6f", "g7", "g7e", "gr6", "gr6f", "hpc7a", "hpc8a", "i7i",
    "i7ie", "i8*", "m7a", "m7i", "m7i-flex", "m8*", "m9*", "p4d", "p4de", "p5", "p5e", "p5en", "p6-*", "r7a", "r7i", "r7iz",
    "r8*", "trn2*", "u7i*", "x8*",
];

/// Families, as above, and of them the sizes that take another number than others of their kind; `*` is any.
type Exception = (&'static [&'static str], &'static [(&'static str, u64)]);

/// The first line that fits.
const EXCEPTIONS: &[Exception] = &[
    // Dedicated.
    (&["c8gb", "c8gn", "m8gb", "m8gn", "r8gb", "r8gn"], &[("metal-48xl", 78)]),
    (
        &["c8ib", "c8in", "m8ib", "m8idb", "m8idn", "m8in", "r8ib", "r8idb", "r8idn", "r8in"],
        &[("metal-48xl", 64), ("metal-96xl", 78)],
    ),
    (&["c8a", "m8a", "r8a"], &[("metal-24xl", 64)]),
    (&["c8i", "c8id", "m8i", "m8id", "r8i", "r8id", "x8i"], &[("metal-48xl", 64)]),
    (&["m8azn", "x8aedz"], &[("12xlarge", 64), ("24xlarge", 128), ("metal-12xl", 64), ("metal-24xl", 79)]),
    (&["hpc7a", "hpc8a"], &[("*", 27)]),
    (&["p4d", "p4de"], &[("*", 28)]),
    (&["p5", "p5e", "p5en", "p6-*", "trn2*"], &[("48xlarge", 64)]),
    // Shared, with disks or accelerators that take places.
    (&["c6gd", "m6gd", "r6gd", "c7gd", "m7gd", "r7gd", "x2gd"], &[("12xlarge", 25), ("16xlarge", 25), ("metal", 31), ("*", 26)]),
    (
        &["c6id", "m6id", "r6id", "m6idn", "r6idn"],
        &[("12xlarge", 25), ("16xlarge", 25), ("24xlarge", 23), ("32xlarge", 23), ("metal", 31), ("*", 26)],
    ),
    (
        &["m5d", "r5d", "m5dn", "r5dn", "m5ad", "r5ad"],
        &[("4xlarge", 25), ("8xlarge", 25), ("12xlarge", 25), ("16xlarge", 23), ("24xlarge", 23), ("metal", 31), ("*", 26)],
    ),
    (&["c5d"], &[("12xlarge", 25), ("18xlarge", 25), ("24xlarge", 23), ("metal", 31), ("*", 26)]),
    (&["c5ad"], &[("large", 26), ("xlarge", 26), ("2xlarge", 26), ("*", 25)]),
    (&["d3"], &[("xlarge", 24), ("2xlarge", 21), ("4xlarge", 15), ("*", 3)]),
    (&["d3en"], &[("xlarge", 25), ("2xlarge", 23), ("4xlarge", 19), ("6xlarge", 15), ("8xlarge", 11), ("*", 3)]),
    (&["dl1", "trn1n"], &[("*", 28)]),
    (&["dl2q"], &[("*", 19)]),
    (&["g4ad"], &[("8xlarge", 24), ("16xlarge", 21), ("*", 25)]),
    (&["g4dn"], &[("12xlarge", 22), ("metal", 31), ("*", 25)]),
    (&["g5"], &[("12xlarge", 22), ("24xlarge", 22), ("48xlarge", 9), ("*", 25)]),
    (&["g5g"], &[("16xlarge", 25), ("metal", 31), ("*", 26)]),
    (&["hpc6id"], &[("*", 23)]),
    (&["i3en"], &[("2xlarge", 25), ("6xlarge", 25), ("12xlarge", 23), ("24xlarge", 19), ("metal", 31), ("*", 26)]),
    (&["i4g", "im4gn"], &[("8xlarge", 25), ("16xlarge", 23), ("*", 26)]),
    (
        &["i4i"],
        &[("8xlarge", 25), ("12xlarge", 24), ("16xlarge", 23), ("24xlarge", 21), ("32xlarge", 19), ("metal", 31), ("*", 26)],
    ),
    (&["is4gen"], &[("4xlarge", 25), ("8xlarge", 23), ("*", 26)]),
    (&["inf1"], &[("6xlarge", 23), ("24xlarge", 11), ("*", 26)]),
    (&["inf2"], &[("24xlarge", 28), ("48xlarge", 28), ("*", 26)]),
    (&["mac1"], &[("*", 16)]),
    (&["mac2*", "mac-m3ultra", "mac-m4max"], &[("*", 10)]),
    (&["p3dn"], &[("*", 17)]),
    (&["trn1"], &[("32xlarge", 28), ("*", 25)]),
    (&["vt1"], &[("6xlarge", 23), ("*", 25)]),
    (&["x2idn", "x2iedn"], &[("24xlarge", 25), ("32xlarge", 25), ("metal", 31), ("*", 26)]),
    (&["z1d"], &[("12xlarge", 25), ("metal", 31), ("*", 26)]),
    (&["*"], &[("metal", 31)]),
];

fn by_table(family: &str, size: &str) -> Attachments {
    if is_xen(family, size) {
        return Attachments { most: 39, shared: false };
    }
    let shared = !DEDICATED.iter().any(|pattern| fits(pattern, family));
    let exception = EXCEPTIONS.iter().filter(|(families, _)| families.iter().any(|pattern| fits(pattern, family)));
    let exception = exception.flat_map(|(_, sizes)| *sizes).find(|(pattern, _)| fits(pattern, size)).map(|(_, most)| *most);
    Attachments { most: exception.unwrap_or_else(|| if shared { 27 } else { dedicated(size) }), shared }
}

/// The table of "Dedicated EBS volume limit" in the user guide, by size.
fn dedicated(size: &str) -> u64 {
    if let Some(metal) = size.strip_prefix("metal-") {
        return if matches!(metal, "16xl" | "24xl") { 39 } else { 79 };
    }
    match size.strip_suffix("xlarge").and_then(|times| times.parse::<u32>().ok()).unwrap_or(1) {
        ..16 => 32,
        16..24 => 48,
        24..32 => 64,
        32..48 => 88,
        48.. => 128,
    }
}

fn is_xen(family: &str, size: &str) -> bool {
    XEN.contains(&family) && !size.starts_with("metal")
}

fn fits(pattern: &str, text: &str) -> bool {
    pattern.strip_suffix('*').map_or(pattern == text, |start| text.starts_with(start))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shared(most: u64) -> Attachments {
        Attachments { most, shared: true }
    }

    fn alone(most: u64) -> Attachments {
        Attachments { most, shared: false }
    }

    #[test]
    fn the_table_knows_the_types() {
        for (kind, of) in [
            ("m5.large", shared(27)),
            ("t3.nano", shared(27)),
            ("m7g.16xlarge", shared(27)),
            ("m5.metal", shared(31)),
            ("i3.metal", shared(31)),
            ("c5d.24xlarge", shared(23)),
            ("c5d.9xlarge", shared(26)),
            ("m5ad.4xlarge", shared(25)),
            ("c5ad.xlarge", shared(26)),
            ("c5ad.24xlarge", shared(25)),
            ("c6gd.medium", shared(26)),
            ("r6idn.32xlarge", shared(23)),
            ("d3en.12xlarge", shared(3)),
            ("g5.48xlarge", shared(9)),
            ("g4dn.metal", shared(31)),
            ("i4i.metal", shared(31)),
            ("inf2.48xlarge", shared(28)),
            ("mac2-m2pro.metal", shared(10)),
            ("mac-m4.metal", shared(31)),
            ("trn1.2xlarge", shared(25)),
            ("m4.large", alone(39)),
            ("t2.micro", alone(39)),
            ("i3.8xlarge", alone(39)),
            ("m7i.large", alone(32)),
            ("m7i-flex.16xlarge", alone(48)),
            ("i7ie.18xlarge", alone(48)),
            ("r7iz.metal-16xl", alone(39)),
            ("r7iz.32xlarge", alone(88)),
            ("c7a.metal-48xl", alone(79)),
            ("c8gn.48xlarge", alone(128)),
            ("c8gn.metal-48xl", alone(78)),
            ("c8in.metal-96xl", alone(78)),
            ("m9g.large", alone(32)),
            ("c8gn.metal-24xl", alone(39)),
            ("m8gb.48xlarge", alone(128)),
            ("m8a.metal-24xl", alone(64)),
            ("x8aedz.12xlarge", alone(64)),
            ("x8g.12xlarge", alone(32)),
            ("r8i.metal-96xl", alone(79)),
            ("p5.4xlarge", alone(32)),
            ("p6-b200.48xlarge", alone(64)),
            ("trn2.3xlarge", alone(32)),
            ("u7in-32tb.224xlarge", alone(128)),
            ("hpc7a.96xlarge", alone(27)),
            ("p4d.24xlarge", alone(28)),
            ("f2.6xlarge", alone(32)),
            // Of what is not known the least is said.
            ("q9x.48xlarge", shared(27)),
            ("", shared(27)),
            ("metal", shared(27)),
        ] {
            assert_eq!(of_type(kind, None), of, "{kind}");
        }
    }

    #[test]
    fn configured_limit_goes_before_the_table() {
        assert_eq!(of_type("m5.large", Some(shared(30))), shared(30));
        assert_eq!(of_type("q9x.large", Some(alone(500))), alone(500));
        assert_eq!(of_type("c8a.metal-48xl", Some(shared(79))), alone(79), "reported wrongly");
        assert_eq!(of_type("m4.large", Some(shared(39))), alone(39), "Xen");
        assert_eq!(of_type("i3.metal", Some(shared(31))), shared(31));
    }

    #[test]
    fn devices_already_attached_reduce_the_limit() {
        let limits = |most, reserved| Limits { volume_attach_limit: most, reserved_volume_attachments: reserved };
        let taken = |interfaces, disks| Taken { interfaces, disks };
        for (limits, of, taken, volumes) in [
            (limits(None, None), shared(27), Taken::default(), 26),
            (limits(None, None), shared(27), taken(3, 2), 23),
            (limits(None, None), alone(32), taken(3, 2), 30),
            (limits(None, Some(5)), shared(27), taken(2, 1), 21),
            (limits(None, Some(0)), alone(39), taken(2, 1), 39),
            (limits(Some(7), Some(5)), shared(27), taken(3, 2), 7),
            // Not 0, which would be no limit at all.
            (limits(None, None), shared(3), taken(8, 1), 1),
            (limits(None, Some(1000)), alone(39), Taken::default(), 1),
        ] {
            assert_eq!(limits.volumes(of, taken), volumes, "{limits:?} {of:?} {taken:?}");
        }
    }

    #[test]
    fn a_limit_of_nothing_is_refused() {
        let limits: Limits = serde_yaml_ng::from_str("volumeAttachLimit: 0").expect("fields");
        assert!(limits.validate().expect_err("0").to_string().starts_with("volumeAttachLimit"));
        let limits: Limits = serde_yaml_ng::from_str("{volumeAttachLimit: 1, reservedVolumeAttachments: 0}").expect("fields");
        limits.validate().expect("both can be");
    }
}

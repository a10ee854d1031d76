//! How many disks an instance takes ("Maximum number of disks per VM", and "About Hyperdisk", "Maximum total disks per VM").
//!
//! Machines whose only disks are Hyperdisks take fewer, by their vCPUs. Of a type that is not known the least is said.

/// Of shared-core machines, and of what is not known.
const LEAST: u64 = 16;
const MOST: u64 = 128;

/// Families of which all but shared-core machines take [`MOST`].
const USUAL: [&str; 20] = [
    "a2", "a3", "a4", "c2", "c2d", "c3", "c3d", "custom", "e2", "g2", "h3", "m1", "m2", "m3", "n1", "n2", "n2d", "t2a", "t2d",
    "z3",
];

/// By family: up to so many vCPUs, so many disks.
const BY_VCPUS: [(&str, &[(u64, u64)]); 6] = [
    ("c4", &[(2, 8), (4, 16), (24, 32), (48, 64), (u64::MAX, 128)]),
    ("c4a", &[(2, 8), (8, 16), (48, 32), (u64::MAX, 64)]),
    ("c4d", &[(2, 4), (4, 8), (8, 16), (96, 32), (192, 64), (u64::MAX, 128)]),
    ("n4", &[(8, 16), (u64::MAX, 32)]),
    ("n4a", &[(8, 16), (u64::MAX, 32)]),
    // What else is of the fourth generation, as its smallest.
    ("n4d", &[(2, 4), (4, 8), (8, 16), (u64::MAX, 32)]),
];

/// By the beginning and the end of the type, with the boot disk, as gcp-compute-persistent-disk-csi-driver has them (August 2026).
const OTHERS: [(&str, &str, u64); 5] =
    [("a4x-", "-metal", 32), ("a4x-", "-1g", 64), ("a4x-", "g", MOST), ("c3-", "-metal", 16), ("x4-", "", 40)];

const SHARED_CORE: [&str; 5] = ["f1-micro", "g1-small", "e2-micro", "e2-small", "e2-medium"];

/// All disks of a machine of this type, its boot disk among them.
pub fn of_type(machine_type: &str) -> u64 {
    let mut parts = machine_type.split('-');
    let family = parts.next().unwrap_or_default();
    if SHARED_CORE.contains(&machine_type) {
        return LEAST;
    }
    let is_like = |(begin, end, _): &&(&str, &str, u64)| machine_type.starts_with(begin) && machine_type.ends_with(end);
    if let Some((_, _, disks)) = OTHERS.iter().find(is_like) {
        return *disks;
    }
    if let Some((_, limits)) = BY_VCPUS.iter().find(|(name, _)| *name == family) {
        let vcpus = parts.find_map(|part| part.parse().ok()).unwrap_or(0);
        return limits.iter().find(|(most, _)| vcpus <= *most).map_or(LEAST, |(_, disks)| *disks);
    }
    if USUAL.contains(&family) { MOST } else { LEAST }
}

/// How many volumes of ours: what the operator says, or all but the boot disk. At least one: 0 would be "as many as you like" to the CO (CSI
/// spec, NodeGetInfoResponse).
pub fn volumes(configured: Option<u64>, machine_type: &str) -> u64 {
    configured.unwrap_or_else(|| of_type(machine_type).saturating_sub(1).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limit_is_that_of_the_machine_type() {
        for (machine_type, disks) in [
            ("n1-standard-1", 128),
            ("custom-2-4096", 128),
            ("e2-custom-4-8192", 128),
            ("e2-micro", 16),
            ("f1-micro", 16),
            ("c4-standard-2", 8),
            ("c4-standard-48", 64),
            ("c4-highmem-192-lssd", 128),
            ("c4a-standard-4", 16),
            ("c4d-standard-384", 128),
            ("n4-custom-8-16384", 16),
            ("n4-standard-16", 32),
            ("n4a-standard-16", 32),
            ("a4-highgpu-8g", 128),
            ("a4x-highgpu-1g", 64),
            ("a4x-highgpu-4g", 128),
            ("a4x-maxgpu-4g-metal", 32),
            ("c3-standard-192-metal", 16),
            ("c3-standard-4", 128),
            ("x4-megamem-960-metal", 40),
            // (gcp-compute-persistent-disk-csi-driver issue 2351)
            ("n4d-standard-2", 4),
            ("q9-standard-64", 16),
            ("", 16),
        ] {
            assert_eq!(of_type(machine_type), disks, "{machine_type}");
        }
        assert_eq!((volumes(None, "n2-standard-4"), volumes(Some(7), "n2-standard-4")), (127, 7));
    }
}

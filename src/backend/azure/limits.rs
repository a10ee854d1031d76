//! How many data disks a machine takes ("Sizes for virtual machines in Azure", "Max data disks").

/// Of what is not known.
const LEAST: u64 = 4;

/// By family and version: up to so many vCPUs, so many disks. What is not here is as most are.
const BY_VCPUS: [(&str, &[(u64, u64)]); 6] = [
    // Dv6, Ev6 and their like, whose disks are NVMe.
    ("v6", &[(2, 10), (4, 12), (8, 24), (16, 48), (u64::MAX, 64)]),
    ("b", &[(1, 2), (2, 4), (4, 8), (12, 16), (u64::MAX, 32)]),
    ("f", &[(1, 4), (2, 8), (4, 16), (8, 32), (u64::MAX, 64)]),
    ("dv2", &[(1, 4), (2, 8), (4, 16), (8, 32), (u64::MAX, 64)]),
    ("l", &[(8, 16), (u64::MAX, 32)]),
    ("m", &[(8, 8), (16, 16), (32, 32), (u64::MAX, 64)]),
];
/// D, E and F of the versions 2 to 5.
const USUAL: &[(u64, u64)] = &[(1, 2), (2, 4), (4, 8), (8, 16), (u64::MAX, 32)];

/// The family, the number in the name, and the version: `Standard_D4ds_v5` is `d`, 4 and `v5`.
fn parts(size: &str) -> Option<(String, u64, String)> {
    let mut parts =
        size.split('_').skip_while(|part| part.eq_ignore_ascii_case("standard") || part.eq_ignore_ascii_case("basic"));
    let name = parts.next()?.to_ascii_lowercase();
    let family: String = name.chars().take_while(char::is_ascii_alphabetic).collect();
    let digits: String = name.chars().skip(family.len()).take_while(char::is_ascii_digit).collect();
    let is_version = |part: &&str| part.to_ascii_lowercase().starts_with('v') && part.len() <= 3;
    let version = parts.find(is_version).map(str::to_ascii_lowercase).unwrap_or_default();
    Some((family, digits.parse().ok()?, version))
}

fn up_to(limits: &[(u64, u64)], vcpus: u64) -> u64 {
    limits.iter().find(|(most, _)| vcpus <= *most).map_or(LEAST, |(_, disks)| *disks)
}

/// `None` where it is not known.
pub fn of_size(size: &str) -> Option<u64> {
    let (family, number, version) = parts(size)?;
    let listed = |name: &str| BY_VCPUS.iter().find(|(of, _)| *of == name).map(|(_, limits)| *limits);
    let first = family.chars().next()?.to_string();
    if version == "v6" {
        return Some(up_to(listed("v6")?, number));
    }
    match family.as_str() {
        // By a number of the series, 1 to 5 and 11 to 15, which is not that of the vCPUs.
        "d" | "ds" if version == "v2" || version.is_empty() => {
            let vcpus = 1 << (number % 10).clamp(1, 5).saturating_sub(1);
            Some(up_to(listed("dv2")?, vcpus))
        }
        "f" | "fs" if version.is_empty() => Some(up_to(listed("f")?, number)),
        "f" if version == "v2" => Some(up_to(USUAL, number)),
        _ if ["b", "l", "m"].contains(&first.as_str()) => Some(up_to(listed(&first)?, number)),
        _ if ["d", "e", "f"].contains(&first.as_str()) => Some(up_to(USUAL, number)),
        _ => None,
    }
}

/// How many volumes of ours: what the operator says, or what its size takes. At least one: 0 would be "as many as you like" to the CO (CSI
/// spec, NodeGetInfoResponse).
pub fn volumes(configured: Option<u64>, size: &str) -> u64 {
    configured.unwrap_or_else(|| of_size(size).unwrap_or(LEAST))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limit_is_that_of_the_size() {
        for (size, disks) in [
            ("Standard_D2s_v3", Some(4)),
            ("Standard_D8ds_v5", Some(16)),
            ("Standard_E64s_v5", Some(32)),
            ("Standard_D4s_v6", Some(12)),
            ("Standard_DS2_v2", Some(8)),
            ("Standard_DS14_v2", Some(32)),
            ("Standard_B2ms", Some(4)),
            ("Standard_F8s_v2", Some(16)),
            ("Standard_F8s", Some(32)),
            ("Standard_L8s_v3", Some(16)),
            ("Standard_M64s", Some(64)),
            ("standard_d2s_v3", Some(4)),
            ("Standard_NC6s_v3", None),
            ("", None),
        ] {
            assert_eq!(of_size(size), disks, "{size}");
        }
        assert_eq!((volumes(None, "Standard_X1"), volumes(Some(7), "Standard_D2s_v3")), (LEAST, 7));
    }
}

//! How many data disks a machine takes.

/// Of sizes that are listed.
const SIZES: &str = include_str!("sizes.txt");
/// Of what is not known.
const LEAST: u64 = 4;
/// What the least of the D, E and F of each number of vCPUs take: those that are not listed are newer ones.
const USUAL: [(u64, u64); 4] = [(2, 4), (4, 8), (8, 16), (16, 32)];

/// A size as the list names it, and the number in it: `Standard_D16-4ds_v5` is `dNds_v5` and 16.
fn parts(size: &str) -> Option<(String, u64)> {
    let size = size.to_ascii_lowercase();
    let size = size.strip_prefix("standard_").unwrap_or(&size);
    let size = size.strip_suffix("_promo").unwrap_or(size);
    let (family, rest) = size.split_at(size.find(|letter: char| letter.is_ascii_digit())?);
    let (number, rest) = digits(rest);
    let rest = match rest.strip_prefix('-').map(digits) {
        Some((in_use, rest)) if !in_use.is_empty() => rest,
        _ => rest,
    };
    Some((format!("{family}N{rest}"), number.parse().ok()?))
}

fn digits(text: &str) -> (&str, &str) {
    text.split_at(text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len()))
}

/// From each number on so many disks, of a line of [`SIZES`].
fn steps(line: &str) -> impl Iterator<Item = (u64, u64)> {
    let pairs = line.split(" =").next().unwrap_or_default().split(' ').filter_map(|pair| pair.split_once(':'));
    pairs.filter_map(|(from, disks)| Some((from.parse().ok()?, disks.parse().ok()?)))
}

fn at(steps: impl Iterator<Item = (u64, u64)>, number: u64) -> Option<u64> {
    steps.take_while(|(from, _)| *from <= number).last().map(|(_, disks)| disks)
}

/// `None` where it is not known.
pub fn of_size(size: &str) -> Option<u64> {
    let (name, number) = parts(size)?;
    let has_name = |line: &&str| line.split(' ').any(|word| word == name);
    let listed = SIZES.lines().filter(|line| !line.starts_with('#')).find(has_name);
    listed.and_then(|line| at(steps(line), number))
}

/// How many volumes of ours: what the operator says, or what its size takes. At least one: 0 would be "as many as you like" to the CO (CSI
/// spec, NodeGetInfoResponse).
pub fn volumes(configured: Option<u64>, size: &str) -> u64 {
    configured.or_else(|| of_size(size)).unwrap_or_else(|| {
        let usual = parts(size).filter(|(name, _)| name.starts_with(['d', 'e', 'f']) && name.contains("_v"));
        usual.and_then(|(_, number)| at(USUAL.into_iter(), number)).unwrap_or(LEAST)
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn limit_is_that_of_the_size() {
        for (size, disks) in [
            ("Standard_D2s_v3", Some(4)),
            ("Standard_D8ds_v5", Some(16)),
            ("Standard_E64s_v5", Some(32)),
            ("Standard_E104is_v5", Some(64)),
            ("Standard_D4s_v6", Some(12)),
            ("Standard_D2as_v6", Some(4)),
            ("Standard_E16-4ads_v6", Some(32)),
            ("Standard_DS2_v2", Some(8)),
            ("Standard_DS14_v2", Some(64)),
            ("Standard_DS14-4_v2_Promo", Some(64)),
            ("Standard_B2ms", Some(4)),
            ("Standard_F8s_v2", Some(16)),
            ("Standard_F8s", Some(32)),
            ("Standard_L8s_v3", Some(16)),
            ("Standard_M64s", Some(64)),
            ("Standard_DC8_v2", Some(8)),
            ("Standard_NC6s_v3", Some(12)),
            ("Standard_NV12ads_A10_v5", Some(8)),
            ("Basic_A0", Some(1)),
            ("standard_d2s_v3", Some(4)),
            ("Standard_D16s_v99", None),
            ("Standard_D1s_v6", None),
            ("", None),
            ("Standard_", None),
        ] {
            assert_eq!(of_size(size), disks, "{size}");
        }
    }

    #[test]
    fn unknown_size_takes_the_least_of_its_like() {
        for (size, disks) in [("Standard_D16s_v99", 32), ("Standard_X16s_v1", LEAST), ("", LEAST)] {
            assert_eq!(volumes(None, size), disks, "{size}");
        }
        assert_eq!(volumes(Some(7), "Standard_D2s_v3"), 7);
    }

    #[test]
    fn list_of_sizes_is_well_formed() {
        let mut all = BTreeSet::new();
        for line in SIZES.lines().filter(|line| !line.starts_with('#')) {
            let (pairs, names) = line.split_once(" = ").expect("numbers and names");
            let steps: Vec<_> = steps(line).collect();
            assert!(steps.len() == pairs.split(' ').count() && steps.is_sorted(), "{line}");
            assert!(steps.iter().all(|(_, disks)| (1..=64).contains(disks)), "{line}");
            for name in names.split(' ') {
                assert!(name.contains('N') && all.insert(name), "{name}");
            }
        }
        assert!(all.len() > 500);
    }
}

//! What a volume that nobody uses costs. Alone in its process, so that what it measures is its own.

use longshore::backend::fake::{Fake, FakeConfig};
use longshore::backend::{Backend, FreezeGuard, Provision, Quiesce, VolumeSpec};
use longshore::volume::{Bytes, RawParameters, Result, TopologyRequirement, VolumeId};

/// So many that neither the allocator's slack nor what a first call brings in counts.
const VOLUMES: u64 = 100_000;
/// In bytes: a volume's record, its id and name, and its share of the tree.
const MOST: u64 = 500;

struct Nothing;

impl FreezeGuard for Nothing {
    fn release(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

impl Quiesce for Nothing {
    fn freeze(&self, _volumes: &[VolumeId]) -> Result<Box<dyn FreezeGuard>> {
        Ok(Box::new(Nothing))
    }
}

/// In bytes.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("procfs is mounted");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a line for it");
    let kibibytes: u64 = line.trim().trim_end_matches(" kB").parse().expect("a number");
    kibibytes * 1024
}

#[test]
fn an_idle_volume_takes_less_than_500_bytes() {
    let mut config = FakeConfig::named("fake".parse().expect("a valid name"));
    config.capacity = Bytes(1 << 60);
    let fake = Fake::new(config, "here".parse().expect("a valid node id")).expect("a valid configuration");
    let parameters = serde_json::json!({
        "node": { "mkfsOptions": "", "discard": "false", "fsck": "true", "encryption": "none" },
        "backend": { "medium": "block" },
    });
    let before = resident();
    for number in 0..VOLUMES {
        // As long as Kubernetes' own, in no order.
        let name = format!("pvc-{:08x}-1234-5678-9abc-{number:012x}", number.wrapping_mul(2_654_435_761) & 0xffff_ffff);
        let spec = VolumeSpec {
            id: VolumeId::derive(fake.name(), &name),
            name,
            capacity: Bytes::GIB,
            limit: None,
            source: None,
            parameters: parameters.clone(),
            several_nodes: false,
            mutable: RawParameters::default(),
            topology: TopologyRequirement::default(),
        };
        fake.create(&spec, &Nothing).expect("room");
    }
    let each = (resident() - before) / VOLUMES;
    assert_eq!(fake.list(None, usize::MAX).expect("in memory").len() as u64, VOLUMES);
    println!("{each} bytes for each idle volume");
    assert!(each < MOST, "{each} bytes for each of {VOLUMES} idle volumes");
}

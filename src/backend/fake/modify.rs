//! The one parameter that may change in a volume's life.

use super::Fake;
use super::config::{MutableParameters, Tier};
use crate::backend::Modify;
use crate::os::step::step;
use crate::volume::{Outcome, RawParameters, Result, VolumeId};

impl Modify for Fake {
    fn check(&self, raw: &RawParameters) -> Result<()> {
        raw.parse::<MutableParameters>().map(|_| ())
    }

    fn modify(&self, id: &VolumeId, raw: &RawParameters) -> Result<Outcome<()>> {
        let wanted: MutableParameters = raw.parse()?;
        step("set tier", id, || {
            let mut state = self.store.lock();
            let volume = state.volume_mut(id)?;
            match wanted.tier {
                Some(tier) if volume.tier != Some(tier) => {
                    volume.tier = Some(tier);
                    Ok(Outcome::Changed(()))
                }
                _ => Ok(Outcome::Unchanged(())),
            }
        })
    }
}

impl Fake {
    /// The tier that a volume was last given. It is not among its parameters, which never change in a volume's life: the
    /// CO's copy of them travels to the node, and a repeated CreateVolume is compared with them.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn tier(&self, id: &VolumeId) -> Result<Option<Tier>> {
        Ok(self.store.lock().volume(id)?.tier)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Bench, GIB, id, raw};
    use super::*;
    use crate::backend::Provision;
    use crate::volume::Error;

    #[test]
    fn a_tier_is_kept_and_changes_no_parameter() {
        let bench = Bench::new();
        let before = bench.create("a", GIB);
        assert_eq!(bench.fake.modify(&id("a"), &raw(&[("tier", "gold")])).expect("known"), Outcome::Changed(()));
        assert_eq!(bench.fake.modify(&id("a"), &raw(&[("tier", "gold")])).expect("known"), Outcome::Unchanged(()));
        assert_eq!(bench.fake.modify(&id("a"), &raw(&[])).expect("nothing asked"), Outcome::Unchanged(()));
        assert_eq!(bench.fake.tier(&id("a")).expect("exists"), Some(Tier::Gold));
        assert_eq!(bench.fake.find(&id("a")).expect("found"), Some(before));
        assert!(matches!(bench.fake.modify(&id("a"), &raw(&[("tier", "tin")])), Err(Error::Invalid { .. })));
        assert!(matches!(Modify::check(bench.fake.as_ref(), &raw(&[("teir", "gold")])), Err(Error::Invalid { .. })));
        assert!(matches!(bench.fake.modify(&id("b"), &raw(&[("tier", "gold")])), Err(Error::NotFound { .. })));
    }
}

//! What is wrong with volumes: what a test has said, since memory does not fall ill by itself.

use super::Fake;
use crate::backend::ReportHealth;
use crate::volume::{Health, Result, VolumeId};

impl Fake {
    /// Says what is wrong with a volume from now on; nothing heals it but a call with an empty `health`. For tests: memory
    /// does not fall ill by itself.
    ///
    /// # Errors
    /// `NotFound`.
    pub fn set_health(&self, id: &VolumeId, health: Health) -> Result<()> {
        self.store.lock().set_health(id, health)
    }
}

impl ReportHealth for Fake {
    fn volume_health(&self, id: &VolumeId) -> Result<Health> {
        self.store.lock().health(id)
    }

    fn storage_health(&self) -> Result<Health> {
        Ok(Health::new())
    }

    fn unhealthy(&self, after: Option<&VolumeId>, max: usize) -> Result<Vec<(VolumeId, Health)>> {
        Ok(self.store.lock().unhealthy_after(after, max))
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Bench, GIB, id};
    use super::*;
    use crate::backend::Provision;
    use crate::volume::{Error, HealthProblem, Severity};

    #[test]
    fn ill_volumes_are_listed_in_order_until_they_are_well_or_gone() {
        let bench = Bench::new();
        let problem = HealthProblem { severity: Severity::Degraded, reason: "Slow", message: "it is slow".to_owned() };
        for name in ["c", "a", "b"] {
            bench.create(name, GIB);
            bench.fake.set_health(&id(name), vec![problem.clone()]).expect("exists");
        }
        let page = |after: Option<&str>, max| -> Vec<String> {
            let listed = bench.fake.unhealthy(after.map(id).as_ref(), max).expect("in memory");
            listed.into_iter().map(|(id, _)| id.local().to_owned()).collect()
        };
        assert_eq!(page(None, 2), ["a", "b"]);
        assert_eq!(page(Some("b"), 2), ["c"]);
        assert_eq!(bench.fake.volume_health(&id("a")).expect("exists"), std::slice::from_ref(&problem));
        bench.fake.set_health(&id("a"), Health::new()).expect("exists");
        bench.fake.delete(&id("b")).expect("not in use");
        assert_eq!(page(None, 9), ["c"]);
        bench.create("b", GIB);
        assert_eq!(bench.fake.volume_health(&id("b")).expect("a new one"), []);
        assert!(matches!(bench.fake.volume_health(&id("d")), Err(Error::NotFound { .. })));
        assert!(matches!(bench.fake.set_health(&id("d"), vec![problem]), Err(Error::NotFound { .. })));
        assert_eq!(bench.fake.storage_health().expect("in memory"), []);
    }
}

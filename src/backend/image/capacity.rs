//! What may still be provisioned, and where.

use std::sync::Arc;

use crate::backend::{CapacityAnswer, CapacityQuery, PoolUsage};
use crate::volume::{Bytes, Error, Result};

use super::ledger::Reservation;
use super::pool::Pool;
use super::ready::Ready;
use super::{ImageBackend, ImageParameters, scan};

/// Sizes are whole ones of these, in bytes.
pub(super) const UNIT: u64 = 1 << 20;
/// The smallest volume.
const LEAST: Bytes = Bytes::MIB;

/// Sets `bytes` of a pool's capacity aside.
///
/// # Errors
/// `NoCapacity`, naming the pool, what was asked for and what is left.
pub(super) fn reserve(pool: &Ready, bytes: Bytes) -> Result<Reservation> {
    with_limit(pool, bytes, |limit| pool.ledger.reserve(bytes.0, limit))
}

/// Lets a reservation have at least `bytes`.
pub(super) fn grow(pool: &Ready, reservation: &mut Reservation, bytes: Bytes) -> Result<()> {
    with_limit(pool, bytes, |limit| reservation.grow(bytes.0, limit))
}

fn with_limit<T>(pool: &Ready, bytes: Bytes, mut attempt: impl FnMut(u64) -> Result<T, u64>) -> Result<T> {
    let limit = pool.provisionable(pool.room()?.total);
    attempt(limit).or_else(|_| {
        // The operator may have removed what was archived or retained.
        pool.ledger.set_kept(scan::kept(pool));
        attempt(limit).map_err(|left| no_capacity(pool, bytes, Bytes(left), Bytes(limit)))
    })
}

fn no_capacity(pool: &Ready, asked: Bytes, left: Bytes, limit: Bytes) -> Error {
    Error::NoCapacity {
        place: pool.called(),
        reason: format!(
            "{asked} asked for, {left} of {limit} left to provision; delete volumes or snapshots, raise the pool's capacity or overcommit, \
             or use another pool"
        ),
    }
}

/// Whether `bytes` could be allocated now.
pub(super) fn check_free(pool: &Ready, bytes: Bytes) -> Result<()> {
    let free = Bytes(pool.room()?.free);
    if bytes <= free {
        return Ok(());
    }
    Err(Error::NoCapacity {
        place: pool.called(),
        reason: format!("{bytes} asked for at once (preallocate), {free} free on its disk"),
    })
}

/// What one more volume in this pool could have at most.
fn left(pool: &Ready, preallocate: bool) -> Result<u64> {
    let room = pool.room()?;
    let left = pool.ledger.left(pool.provisionable(room.total));
    Ok(if preallocate { left.min(room.free) } else { left })
}

impl Pool {
    /// How much is in it.
    pub(super) fn usage(&self) -> Result<PoolUsage> {
        let ready = self.ready()?;
        let room = ready.room()?;
        Ok(PoolUsage {
            total: Bytes(room.total),
            used: Some(Bytes(room.total.saturating_sub(room.free))),
            metadata: None,
            provisionable: Bytes(ready.provisionable(room.total)),
            provisioned: (self.role.provision && ready.has_ledger()).then(|| ready.ledger.provisioned()),
        })
    }
}

impl ImageBackend {
    /// The pool that a StorageClass names.
    fn named(&self, name: &str) -> Result<&Pool> {
        self.pools.iter().map(|pool| &**pool).find(|pool| pool.config.name == name).ok_or_else(|| {
            let known: Vec<&str> = self.pools.iter().map(|pool| pool.config.name.as_str()).collect();
            let reason = format!("backend {} has no pool {name:?}; there are: {}", self.name, known.join(", "));
            Error::invalid("parameters.pool", reason)
        })
    }

    /// Whether the parameters can be, beyond what their types say.
    pub(super) fn check_parameters(&self, parameters: &ImageParameters) -> Result<()> {
        parameters.pool.as_deref().map_or(Ok(()), |name| self.named(name).map(|_| ()))
    }

    /// The pool for a new volume: the one named, else the source's (where a reflink may do), else the one with most room.
    pub(super) fn choose(
        &self,
        parameters: &ImageParameters,
        capacity: Bytes,
        source: Option<&Arc<Ready>>,
    ) -> Result<Arc<Ready>> {
        if let Some(name) = &parameters.pool {
            return self.named(name)?.writable();
        }
        if let Some(beside) = source.filter(|pool| pool.is_writable())
            && left(beside, parameters.preallocate)? >= capacity.0
        {
            return Ok(Arc::clone(beside));
        }
        let mut best: Option<(u64, Arc<Ready>)> = None;
        let mut away = None;
        for pool in &self.pools {
            match pool.writable().and_then(|ready| Ok((left(&ready, parameters.preallocate)?, ready))) {
                Ok((room, ready)) if best.as_ref().is_none_or(|(most, _)| room > *most) => best = Some((room, ready)),
                Ok(_) => {}
                Err(error) => away = Some(error),
            }
        }
        match (best, away) {
            (Some((_, ready)), _) => Ok(ready),
            (None, Some(error)) => Err(error),
            (None, None) => Err(Error::invalid("pools", format!("backend {} has none", self.name))),
        }
    }

    /// What is left over all pools that the query leaves to choose from. A pool that is away has no room.
    pub(super) fn answer_capacity(&self, query: &CapacityQuery) -> Result<CapacityAnswer> {
        let parameters = ImageParameters::from_json(&query.parameters)?;
        let minimum = LEAST.max(query.least);
        let reached = match (&self.topology, &query.topology) {
            (Some(place), Some(asked)) => asked.reaches(place),
            _ => true,
        };
        let mut answer = CapacityAnswer { available: Bytes(0), maximum: Bytes(0), minimum };
        if !reached {
            return Ok(answer);
        }
        let pools: Vec<&Pool> = match &parameters.pool {
            Some(name) => vec![self.named(name)?],
            None => self.pools.iter().map(|pool| &**pool).collect(),
        };
        let mut away = None;
        let mut seen = 0;
        for pool in &pools {
            let room = pool.writable().and_then(|ready| {
                ready.ledger.set_kept(scan::kept(&ready));
                left(&ready, parameters.preallocate)
            });
            match room {
                Ok(room) => {
                    let whole = room - room % UNIT;
                    answer.available.0 = answer.available.0.saturating_add(whole);
                    answer.maximum = answer.maximum.max(Bytes(whole));
                    seen += 1;
                }
                Err(error) => away = Some(error),
            }
        }
        match away {
            Some(error) if seen == 0 => Err(error),
            _ => Ok(answer),
        }
    }
}

//! Snapshots of several volumes at one instant, all or none.
//!
//! The members are made in `tmp`, copied under one hold, and renamed into place; then the group's record is written.
//! That is the commit point: members without a record do not exist for the CO, and are removed when their group is made
//! or deleted again, or the pools are next opened.

use std::sync::Arc;

use crate::backend::{Groups, Quiesce, SnapshotSpec};
use crate::os::durable;
use crate::os::step::step;
use crate::volume::{Error, Group, GroupId, Outcome, RawParameters, Result, SnapshotId};

use super::draft::{self, Draft};
use super::layout::{GROUPS, Kind};
use super::ledger::Entry;
use super::meta::{self, FORMAT, GroupRecord, Membership, SnapshotMeta, from_nanos, to_nanos};
use super::ready::Ready;
use super::scan::{self, group_file};
use super::snapshot::{self, Begun, Complete};
use super::{ImageBackend, Pool};

impl Groups for ImageBackend {
    fn check_group(&self, raw: &RawParameters) -> Result<()> {
        snapshot::no_parameters(raw)
    }

    fn find_group(&self, id: &GroupId) -> Result<Option<Group>> {
        let Some((_, _, record)) = self.record(id)? else { return Ok(None) };
        let mut snapshots = Vec::with_capacity(record.members.len());
        for member in &record.members {
            let (_, meta) = self.visible_snapshot(member)?.ok_or_else(|| Error::Unverified {
                device: format!("group snapshot {id}"),
                reason: format!("its member {member} is gone; delete the group"),
            })?;
            snapshots.push(meta.into_snapshot(self.topology.clone()));
        }
        Ok(Some(Group { id: record.id, name: record.name, created: from_nanos(record.created), snapshots }))
    }

    fn group_members(&self, id: &GroupId) -> Result<Option<Vec<SnapshotId>>> {
        Ok(self.record(id)?.map(|(_, _, record)| record.members))
    }

    fn create_group(&self, id: &GroupId, name: &str, members: &[SnapshotSpec], quiesce: &dyn Quiesce) -> Result<Group> {
        let Some(first) = members.first() else { return Err(Error::invalid("source_volume_ids", "at least one is needed")) };
        members.iter().try_for_each(|member| self.remove_passing(Kind::Snapshot, member.id.local()))?;
        self.remove_stray_members(id)?;
        members.iter().try_for_each(|member| self.remove_stray(&member.id))?;
        let begun = members.iter().map(|member| self.begin(member)).collect::<Result<Vec<_>>>()?;
        let pools: Vec<Arc<Ready>> = begun.iter().map(|begun| Arc::clone(&begun.pool)).collect();
        let home = pools.first().ok_or_else(|| Error::snapshot_not_found(&first.id))?;
        let group = Membership { id: id.clone(), home: home.id.clone() };
        let taken = self.take(&group, members, begun, &pools, quiesce);
        let (created, metas) = taken.inspect_err(|_| remember_drafts(id, members, &pools))?;
        let record = GroupRecord {
            format: FORMAT,
            id: id.clone(),
            name: name.to_owned(),
            created,
            members: members.iter().map(|member| member.id.clone()).collect(),
        };
        commit(home, &record).map_err(|error| undo(home, &record, &pools, error))?;
        Ok(Group {
            id: record.id,
            name: record.name,
            created: from_nanos(created),
            snapshots: metas.into_iter().map(|meta| meta.into_snapshot(self.topology.clone())).collect(),
        })
    }

    fn delete_group(&self, id: &GroupId) -> Result<Outcome<()>> {
        let recorded = self.record(id)?;
        let known = recorded.is_some();
        if let Some((pool, _, record)) = recorded {
            // What is damaged, or in two pools, is left to a person, and what is gone is no reason to keep the others.
            for member in &record.members {
                if let Some(located) = self.locate::<SnapshotMeta>(member.local())? {
                    located.seen.whole()?;
                }
            }
            // The commit point of the deletion, too: from here on the members do not exist for the CO.
            let ready = pool.writable()?;
            let directory = ready.path.join(GROUPS);
            let file = group_file(id.local());
            step("remove group record", &directory.join(&file).display(), || durable::remove(&directory, &file))
                .map_err(|error| ready.failure(error))?;
        }
        let removed = self.remove_stray_members(id)?;
        Ok(if known || removed { Outcome::Changed(()) } else { Outcome::Unchanged(()) })
    }
}

impl ImageBackend {
    /// Whether the group of a member exists.
    ///
    /// # Errors
    /// `BackendUnavailable` where the pool that would have the record is away, or not configured.
    pub(super) fn group_exists(&self, member: &Membership) -> Result<bool> {
        let home = self.pools.iter().find(|pool| pool.id.get().is_some_and(|id| *id == member.home));
        let Some(home) = home else {
            let reason =
                format!("the pool with the record of group snapshot {} (its id is {}) is not there", member.id, member.home);
            return Err(Error::BackendUnavailable { backend: self.name.to_string(), reason });
        };
        scan::has_group(&*home.ready()?, member.id.local())
    }

    fn record(&self, id: &GroupId) -> Result<Option<(&Pool, Arc<Ready>, GroupRecord)>> {
        self.search(Kind::Snapshot, id.local(), |ready| scan::group_record(ready, id.local()))
    }

    /// Makes all members and puts them in place; none is left on failure.
    fn take(
        &self,
        group: &Membership,
        members: &[SnapshotSpec],
        begun: Vec<Begun>,
        pools: &[Arc<Ready>],
        quiesce: &dyn Quiesce,
    ) -> Result<(u64, Vec<SnapshotMeta>)> {
        let mut drafts = Vec::with_capacity(members.len());
        for (member, pool) in members.iter().zip(pools) {
            match Draft::begin(pool, Kind::Snapshot, member.id.local()) {
                Ok(draft) => drafts.push(draft),
                Err(error) => return Err(discard(drafts, error)),
            }
        }
        let jobs: Vec<_> =
            begun.iter().zip(members).zip(&drafts).map(|((begun, member), draft)| begun.job(member, draft)).collect();
        let instant = self.copy_at_one_instant(quiesce, &jobs);
        drop(jobs);
        let created = match instant {
            Ok(instant) => to_nanos(instant),
            Err(error) => return Err(discard(drafts, error)),
        };
        let mut complete: Vec<Complete> = Vec::with_capacity(members.len());
        for ((begun, member), draft) in begun.into_iter().zip(members).zip(&drafts) {
            match begun.complete(member, Some(group), created, draft) {
                Ok(done) => complete.push(done),
                Err(error) => return Err(discard(drafts, error)),
            }
        }
        place_all(drafts, complete, pools).map(|metas| (created, metas))
    }

    /// Removes the members of a group that has no record, from all pools; those, too, of which an earlier call left a part in
    /// the trash. Whether there were any.
    fn remove_stray_members(&self, id: &GroupId) -> Result<bool> {
        let (mut removed, mut away) = (false, None);
        for pool in &self.pools {
            let ready = match pool.ready() {
                Ok(ready) => ready,
                Err(error) => {
                    away = away.or(Some(error).filter(|_| self.shared || !pool.surely_lacks_group(id.local())));
                    continue;
                }
            };
            for local in ready.ledger.members(id.local()) {
                if !ready.has(Kind::Snapshot, &local)? {
                    removed |= draft::clear_leftovers(&*pool.writable()?, Kind::Snapshot, &local)?;
                } else if self.is_stray(&ready, &local)? {
                    draft::throw_away(&*pool.writable()?, Kind::Snapshot, &local)?;
                    removed = true;
                }
            }
        }
        away.map_or(Ok(removed), Err)
    }

    fn is_stray(&self, ready: &Ready, local: &str) -> Result<bool> {
        let Some(seen) = scan::find::<SnapshotMeta>(ready, local)? else { return Ok(false) };
        let (meta, _) = seen.whole()?;
        Ok(!self.is_visible(&meta)?)
    }

    /// Removes what is left of groups that were never completed or half deleted, where that is certain.
    pub(super) fn remove_stray_groups(&self) {
        for ready in self.pools.iter().filter(|pool| pool.is_open()).filter_map(|pool| pool.writable().ok()) {
            for (group, local) in ready.ledger.grouped() {
                let removed = self.is_stray(&ready, &local).and_then(|stray| {
                    if stray { draft::throw_away(&ready, Kind::Snapshot, &local).map(|()| true) } else { Ok(false) }
                });
                match removed {
                    Ok(true) => tracing::info!(%group, snapshot = %local, "removed a member of a group that was never completed"),
                    Ok(false) => {}
                    Err(error) => {
                        tracing::warn!(%group, snapshot = %local, %error, "whether its group exists cannot be seen; it stays")
                    }
                }
            }
        }
    }
}

/// Enters the drafts that could not be discarded into the ledger, by which the group's deletion finds them: the CO was never given
/// of these snapshots. The next opening of the pool removes them anyway.
fn remember_drafts(group: &GroupId, members: &[SnapshotSpec], pools: &[Arc<Ready>]) {
    for (member, pool) in members.iter().zip(pools) {
        let (id, source) = (member.id.local(), member.source.local());
        if !draft::is_gone(pool, Kind::Snapshot, id) {
            pool.ledger.put_snapshot(Entry { id, source, group: Some(group.local()), provisioned: 0 });
        }
    }
}

fn place_all(drafts: Vec<Draft<'_>>, complete: Vec<Complete>, pools: &[Arc<Ready>]) -> Result<Vec<SnapshotMeta>> {
    let mut metas: Vec<SnapshotMeta> = Vec::with_capacity(complete.len());
    let mut drafts = drafts.into_iter();
    for (complete, pool) in complete.into_iter().zip(pools) {
        let Some(draft) = drafts.next() else { break };
        match snapshot::place(draft, pool, complete) {
            Ok(meta) => metas.push(meta),
            Err(error) => {
                let error = discard(drafts.collect(), error);
                let placed = metas.iter().zip(pools).map(|(meta, pool)| (&**pool, meta.id.local()));
                return Err(take_back(placed, error));
            }
        }
    }
    Ok(metas)
}

/// Makes the group exist.
fn commit(home: &Ready, record: &GroupRecord) -> Result<()> {
    home.check_kept()?;
    let directory = home.path.join(GROUPS);
    let file = group_file(record.id.local());
    let text = meta::encode(record, &directory.join(&file))?;
    step("write group record", &directory.join(&file).display(), || durable::write(&directory, &file, &text))
        .map_err(|error| home.failure(error))
}

/// Undoes a commit that failed, and what went before it.
fn undo(home: &Ready, record: &GroupRecord, pools: &[Arc<Ready>], failure: Error) -> Error {
    // It may be that of another process, which made the group meanwhile.
    if let Err(error) = home.check_kept() {
        return failure.leaving(error.to_string());
    }
    let directory = home.path.join(GROUPS);
    let file = group_file(record.id.local());
    if let Err(error) = step("roll back", &directory.join(&file).display(), || durable::remove(&directory, &file)) {
        return failure.leaving(error.to_string());
    }
    take_back(record.members.iter().zip(pools).map(|(member, pool)| (&**pool, member.local())), failure)
}

/// Removes members that are in place already; final only if all are seen to be gone.
fn take_back<'a>(members: impl Iterator<Item = (&'a Ready, &'a str)>, failure: Error) -> Error {
    let left: Vec<String> = members
        .filter_map(|(pool, local)| draft::throw_away(pool, Kind::Snapshot, local).err().map(|error| format!("{local}: {error}")))
        .collect();
    if left.is_empty() { failure.rolled_back() } else { failure.leaving(left.join("; ")) }
}

/// Discards drafts; final only if all are seen to be gone.
fn discard(drafts: Vec<Draft<'_>>, failure: Error) -> Error {
    drafts.into_iter().fold(failure, |failure, draft| draft.discard(failure))
}

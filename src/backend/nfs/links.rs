//! What `longshore inspect` shows of this node's mounts of shares, and takes down.

use crate::backend::{Link, changed, words};
use crate::os::mountinfo::MountTable;
use crate::volume::Result;

use super::shares::{Share, Shares};

/// All of a backend, in the order of their places.
pub(super) fn all(shares: &Shares) -> Result<Vec<Link>> {
    let before = MountTable::read()?;
    let mut links = Vec::new();
    for share in shares.all()? {
        links.push(look(&share, &before)?);
    }
    links.sort_by(|a, b| a.object.cmp(&b.object));
    Ok(links)
}

pub(super) fn take_down(shares: &Shares, link: &Link) -> Result<()> {
    let share = shares.all()?.into_iter().find(|share| share.mount().display().to_string() == link.object);
    let share = share.ok_or_else(|| changed(&link.object))?;
    let _turn = shares.turn(&share)?;
    if look(&share, &MountTable::read()?)? != *link {
        return Err(changed(&link.object));
    }
    share.clear()
}

/// A user is noted before the share is mounted, and crossed out after it was unmounted: `table` is of before the users are read, so
/// that what is mounted in it has its users.
fn look(share: &Share, table: &MountTable) -> Result<Link> {
    let object = share.mount().display().to_string();
    let mounts = table.at(&share.mount());
    let (mut users, notes) = share.noted()?;
    users.sort_by(|a, b| a.id.cmp(&b.id));
    let export = || users.first().map(|user| user.export.clone());
    let mounted = mounts.last().map(|mount| mount.source.display().to_string());
    let up = mounted.is_some();
    let state = match mounted {
        Some(export) => export,
        None => format!("{}, not mounted", export().unwrap_or_else(|| "of no share that is known".to_owned())),
    };
    let mut release = vec![words(&["umount", "--", &object]); mounts.len()];
    if !notes.is_empty() {
        let notes = notes.iter().map(|note| note.display().to_string());
        release.push(words(&["rm", "--force", "--"]).into_iter().chain(notes).collect());
    }
    let directories = share.directories();
    let directories =
        directories.iter().filter(|directory| up || directory.exists()).map(|directory| directory.display().to_string());
    release.push(words(&["rmdir", "--"]).into_iter().chain(directories).collect());
    Ok(Link { object, state, up, users: users.into_iter().map(|user| user.id).collect(), devices: Vec::new(), release })
}

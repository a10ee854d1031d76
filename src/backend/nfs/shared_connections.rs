//! What `longshore inspect` shows of this node's mounts of shares, and takes down.

use crate::backend::{SharedConnection, changed, words};
use crate::os::mountinfo::MountTable;
use crate::volume::Result;

use super::shares::{Share, Shares};

/// All of a backend, in the order of their places.
pub(super) fn all(shares: &Shares) -> Result<Vec<SharedConnection>> {
    let before = MountTable::read()?;
    let mut connections = Vec::new();
    for share in shares.all()? {
        connections.push(look(&share, &before)?);
    }
    connections.sort_by(|a, b| a.object.cmp(&b.object));
    Ok(connections)
}

pub(super) fn take_down(shares: &Shares, connection: &SharedConnection) -> Result<()> {
    let share = shares.all()?.into_iter().find(|share| share.mount().display().to_string() == connection.object);
    let share = share.ok_or_else(|| changed(&connection.object))?;
    let _lock = shares.lock(&share)?;
    if look(&share, &MountTable::read()?)? != *connection {
        return Err(changed(&connection.object));
    }
    share.clear()
}

/// A user is noted before the share is mounted, and crossed out after it was unmounted: `table` is of before the users are read, so
/// that what is mounted in it has its users.
fn look(share: &Share, table: &MountTable) -> Result<SharedConnection> {
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
    Ok(SharedConnection {
        object,
        state,
        up,
        users: users.into_iter().map(|user| user.id).collect(),
        devices: Vec::new(),
        release,
    })
}

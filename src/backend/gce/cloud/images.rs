//! Images as snapshots, where the VolumeSnapshotClass says `snapshot-type: images`: machines of other projects can be started from them, and they
//! belong to a family.
//!
//! Google advises against an image of a disk that is attached ("Create custom images": its integrity is not certain). So an image is made of a
//! temporary snapshot of the same name, which is of one instant. That is deleted once the image is whole, and only then the CO is given an id:
//! csi-snapshotter keeps the first that it gets, and the making of an image may fail after minutes. No call waits for it: the source's lock is held
//! meanwhile.

use super::*;

/// For how long a call looks whether the next step can be made.
const SOON: Duration = Duration::from_secs(5);
const INSERT: &str = "images.insert";
const DELETE: &str = "images.delete";

impl GceCloud {
    fn check_images(&self, action: &'static str) -> Answer<()> {
        let reason = "a snapshot that is an image is only used with `images: true` in the configuration of this backend";
        self.images.then_some(()).ok_or_else(|| invalid(action, "images", reason.to_owned()))
    }

    /// By its name or number.
    fn look_image(&self, which: &str) -> Answer<Option<api::Snapshot>> {
        const ACTION: &str = "images.get";
        self.check_images(ACTION)?;
        self.api.look(&Request::get(ACTION, format!("global/images/{which}")))
    }

    fn image_of_number(&self, number: u64) -> Answer<Option<api::Snapshot>> {
        Ok(self.look_image(&number.to_string())?.filter(|found| found.id == number))
    }

    /// This very image; `action` is what it is asked for.
    pub(super) fn image(&self, action: &'static str, number: u64) -> Answer<api::Snapshot> {
        let missing = || refusal(CloudErrorKind::NotFound, action, "notFound", format!("there is no image {number}"));
        self.image_of_number(number)?.ok_or_else(missing)
    }

    pub(super) fn image_by_number(&self, number: u64) -> Answer<Option<CloudSnapshot>> {
        let Some(image) = self.image_of_number(number)? else { return Ok(None) };
        let has_temporary = self.temporary_of(&image)?.is_some();
        Ok(Some(convert::image(image, has_temporary)))
    }

    /// The snapshot of this name, or the image.
    pub(super) fn snapshot_or_image(&self, name: &str) -> Answer<Option<CloudSnapshot>> {
        let snapshot = self.snapshot_named(name)?;
        // In this order: the temporary snapshot goes only after the image has come.
        let may_be_image = self.images && snapshot.as_ref().is_none_or(convert::is_for_image);
        let image = if may_be_image { self.look_image(name)? } else { None };
        let is_of =
            |image: &api::Snapshot| snapshot.as_ref().is_some_and(|snapshot| image.source_snapshot_id == Some(snapshot.id));
        let image = image.map(|image| (is_of(&image), image));
        Ok(image.map(|(has_temporary, image)| convert::image(image, has_temporary)).or_else(|| snapshot.map(convert::snapshot)))
    }

    /// With the label of these tags, in the order of `snapshot_or_image`. A snapshot of which there is an image is not in it.
    pub(super) fn snapshots_and_images(&self, tags: &Tags, take: Take<'_, CloudSnapshot>) -> Answer<()> {
        let mut temporary = BTreeMap::new();
        self.listed("snapshots.list", "global/snapshots", tags, |page| {
            let (for_images, own): (Vec<_>, Vec<_>) = page.into_iter().partition(convert::is_for_image);
            temporary.extend(for_images.into_iter().map(|snapshot| (snapshot.id, snapshot)));
            take(own.into_iter().map(convert::snapshot).collect());
        })?;
        self.listed("images.list", "global/images", tags, |page| {
            let found = |image: api::Snapshot| {
                let has_temporary = image.source_snapshot_id.and_then(|number| temporary.remove(&number)).is_some();
                convert::image(image, has_temporary)
            };
            take(page.into_iter().map(found).collect());
        })?;
        take(temporary.into_values().map(convert::snapshot).collect());
        Ok(())
    }

    /// The snapshot that an image was made of, while it is there.
    fn temporary_of(&self, image: &api::Snapshot) -> Answer<Option<api::Snapshot>> {
        let is_it = |found: &api::Snapshot| convert::is_for_image(found) && image.source_snapshot_id == Some(found.id);
        Ok(self.snapshot_named(&image.name)?.filter(is_it))
    }

    /// Removes the snapshot that an image was made of, if it is there, and waits until it is gone.
    fn remove_temporary(&self, action: &'static str, image: &api::Snapshot, end: Duration) -> Answer<()> {
        let Some(temporary) = self.temporary_of(image)? else { return Ok(()) };
        let mut deletion = None;
        if temporary.status != "DELETING" {
            match self.delete_snapshot(&CloudSnapshotId(temporary.id.to_string())) {
                Ok(accepted) => deletion = accepted.operation,
                Err(refusal) if refusal.because == CloudErrorKind::NotFound => return Ok(()),
                Err(refusal) => return Err(refusal),
            }
        }
        let look = || {
            let found = self.temporary_of(image)?;
            if let (Some(_), Some(operation)) = (&found, &deletion) {
                self.operation_failed(operation)?;
            }
            Ok(found)
        };
        match self.clock.look_until(end, look, Option::is_none)? {
            None => Ok(()),
            Some(left) => {
                Err(unfinished(action, format!("snapshot {}, of which the image was made, is not deleted yet", left.name)))
            }
        }
    }

    /// Makes an image of its temporary snapshot, or completes one.
    ///
    /// # Errors
    /// Of the request that makes the image, and of its operation: nothing else says that it came to nothing.
    pub(super) fn finish_image(&self, begun: &CloudSnapshot, spec: &CloudSnapshotSpec) -> Answer<Accepted<CloudSnapshot>> {
        self.check_images(INSERT)?;
        let end = self.clock.now() + SOON;
        if let Some(number) = names::parse_image(&begun.id) {
            let image = self.image(INSERT, number).map_err(Refusal::perhaps)?;
            return self.complete(&image.name, image.source_snapshot_id, None, end);
        }
        let settings: SnapshotSettings = read_settings(INSERT, &spec.settings)?;
        let is_over = |seen: &Option<api::Snapshot>| {
            seen.as_ref().is_none_or(|seen| !["CREATING", "UPLOADING"].contains(&seen.status.as_str()))
        };
        let seen = self.clock.look_until(end, || self.snapshot(&begun.id), is_over).map_err(Refusal::perhaps)?;
        let temporary = match seen {
            Some(temporary) if temporary.status == "READY" => temporary,
            Some(other) => {
                return Err(unfinished(
                    INSERT,
                    format!("snapshot {}, of which it is to be made, is {}", other.name, other.status),
                ));
            }
            None => return Err(unfinished(INSERT, format!("snapshot {}, of which it was to be made, is gone", begun.id))),
        };
        let body = self.image_body(&temporary, settings, begun, spec)?;
        let sent = self.api.send::<api::Operation>(&api::change(INSERT, "POST", "global/images", &spec.key).body(body));
        let operation = match sent {
            Ok(operation) => Some(convert::operation_id(&operation)),
            // An earlier request has made it whose answer was lost.
            Err(refusal) if refusal.because == CloudErrorKind::Exists => None,
            // Another process has completed it, and deleted the snapshot.
            Err(refusal) if refusal.because == CloudErrorKind::NotFound => return Err(refusal.perhaps()),
            Err(refusal) => return Err(refusal),
        };
        self.complete(&temporary.name, Some(temporary.id), operation.as_ref(), end)
    }

    fn image_body(
        &self,
        temporary: &api::Snapshot,
        settings: SnapshotSettings,
        begun: &CloudSnapshot,
        spec: &CloudSnapshotSpec,
    ) -> Answer<Value> {
        let mut tags = spec.tags.clone();
        tags.insert(record::INSTANT.to_owned(), humantime::format_rfc3339_millis(begun.created).to_string());
        let record = Record::of(&tags).map_err(|reason| invalid(INSERT, "description", reason))?;
        let mut body = json!({
            "name": temporary.name,
            "sourceSnapshot": self.url(&format!("global/snapshots/{}", temporary.name))?,
            "description": record.description,
            "labels": record.labels,
        });
        // A snapshot has its disk's key by itself; of an image the reference says no such thing.
        if let Some(key) = convert::kms_key(temporary.snapshot_encryption_key.as_ref()) {
            body["imageEncryptionKey"] = json!({"kmsKeyName": key});
        }
        if let Some(family) = settings.image_family {
            body["family"] = family.into();
        }
        if !settings.locations.is_empty() {
            body["storageLocations"] = json!(settings.locations);
        }
        Ok(body)
    }

    /// The image of this name, of the snapshot of this number, once it is whole and its temporary snapshot is gone. `operation` makes it, where
    /// that is known.
    fn complete(
        &self,
        name: &str,
        of: Option<u64>,
        operation: Option<&OperationId>,
        end: Duration,
    ) -> Answer<Accepted<CloudSnapshot>> {
        let look = || {
            let found = self.look_image(name).map_err(Refusal::perhaps)?;
            // It failed, which its operation says, or is not shown.
            if let (None, Some(operation)) = (&found, operation) {
                self.operation_failed(operation)?;
            }
            Ok(found)
        };
        let seen = self.clock.look_until(end, look, |seen| seen.as_ref().is_some_and(|seen| seen.status != "PENDING"))?;
        let image = seen.ok_or_else(|| unfinished(INSERT, format!("image {name} was accepted, and is not there")))?;
        if image.source_snapshot_id != of {
            let reason =
                format!("there is an image {name}, which was not made by this call; nothing was done to it: rename or delete it");
            return Err(unfinished(INSERT, reason));
        }
        match image.status.as_str() {
            "READY" => {
                self.remove_temporary(INSERT, &image, end).map_err(Refusal::perhaps)?;
                Ok(Accepted::done(convert::image(image, false)))
            }
            // The next call deletes it, and makes another.
            "FAILED" => {
                let why = operation.and_then(|operation| self.operation_failed(operation).err());
                let why = why.map_or_else(|| "the log of its operation says why".to_owned(), |refusal| refusal.to_string());
                Err(unfinished(INSERT, format!("image {name} is FAILED, and will be made again: {why}")))
            }
            status => Err(unfinished(INSERT, format!("image {name} is {status}"))),
        }
    }

    /// With the snapshot that it was made of, which goes first: once the image is gone, nothing names it. By its name, once its number is seen
    /// to be the image's, as a disk.
    pub(super) fn delete_image(&self, number: u64) -> Answer<Accepted<()>> {
        let image = self.image(DELETE, number)?;
        if image.status == "PENDING" {
            return Err(unfinished(DELETE, format!("image {} is still being made", image.name)));
        }
        self.remove_temporary(DELETE, &image, self.clock.now() + SOON)?;
        self.begin(
            &api::change(DELETE, "DELETE", format!("global/images/{}", image.name), &names::snapshot_of_image(number).0),
            (),
        )
    }
}

fn unfinished(action: &'static str, reason: String) -> Refusal {
    refusal(CloudErrorKind::Running, action, "not yet", reason)
}

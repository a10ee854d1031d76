//! What is kept of a volume or snapshot: tags of its logical volume, in the metadata of the volume group. LVM writes them with the logical
//! volume itself, at once.
//!
//! - `longshore` is on all that the driver made; `lvs @longshore` lists them.
//! - `longshore.volume=ID` or `longshore.snapshot=ID` says whose it is. It counts only where the logical volume has the name made of that id.
//! - `longshore.state=draft` is on what is not whole yet, or is being deleted.
//! - `longshore.blank` is on a thick one that holds zeroes and was never written to. Earlier versions had it on thin ones, too, of which the
//!   kernel knows it.
//! - `longshore.record.N=...` is the record, JSON, in pieces.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::backend::local::is_default;
use crate::os::lvm::Lv;
use crate::volume::digest::sha256;
use crate::volume::{ContentSource, Error, IoLimits, OnDelete, Result, SnapshotId, VolumeId};

use super::config::LvmParameters;

pub(super) const OURS: &str = "longshore";
pub(super) const DRAFT: &str = "longshore.state=draft";
pub(super) const BLANK: &str = "longshore.blank";
const RECORD: &str = "longshore.record.";
/// In the name of what was deleted with `onDelete: retain`: seconds since 1970 follow.
const RETAINED: &str = "_retained_";
/// The longest tag is 1024 bytes (lvm(8)).
const PIECE: usize = 900;
/// Of the record.
pub(super) const FORMAT: u32 = 1;

/// What a logical volume is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Volume,
    Snapshot,
    /// The extents by which a volume is about to grow, while they are zeroed.
    Growth,
}

impl Kind {
    fn key(self) -> &'static str {
        match self {
            Kind::Volume => "longshore.volume",
            Kind::Snapshot => "longshore.snapshot",
            Kind::Growth => "longshore.growth",
        }
    }

    fn prefix(self) -> &'static str {
        match self {
            Kind::Volume => "longshore_v_",
            Kind::Snapshot => "longshore_s_",
            Kind::Growth => "longshore_g_",
        }
    }
}

/// A volume or snapshot, as LVM knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Object {
    pub(super) kind: Kind,
    /// Ours, as text.
    pub(super) id: String,
    /// Of the logical volume: a digest, since ids are longer than names may be and have other characters.
    pub(super) name: String,
}

impl Object {
    fn new(kind: Kind, id: String) -> Object {
        let name = format!("{}{}", kind.prefix(), &sha256(id.as_bytes())[..32]);
        Object { kind, id, name }
    }

    pub(super) fn volume(id: &VolumeId) -> Object {
        Object::new(Kind::Volume, id.to_string())
    }

    pub(super) fn snapshot(id: &SnapshotId) -> Object {
        Object::new(Kind::Snapshot, id.to_string())
    }

    pub(super) fn growth(id: &VolumeId) -> Object {
        Object::new(Kind::Growth, id.to_string())
    }

    /// What a logical volume is by its tags; `None` for one that has another name, or is not the driver's.
    pub(super) fn of(lv: &Lv) -> Option<Object> {
        Object::tagged(lv).filter(|object| object.name == lv.name)
    }

    /// What a logical volume was before someone renamed it; `None` also for what the driver itself renamed, to retain it.
    pub(super) fn renamed(lv: &Lv) -> Option<Object> {
        Object::tagged(lv).filter(|object| object.name != lv.name && !object.is_retained_as(&lv.name))
    }

    fn tagged(lv: &Lv) -> Option<Object> {
        let of_kind = |kind: Kind| lv.tag(kind.key()).map(|id| Object::new(kind, id.to_owned()));
        [Kind::Volume, Kind::Snapshot, Kind::Growth].into_iter().find_map(of_kind).filter(|_| lv.has_tag(OURS))
    }

    /// The name of what stays when it is deleted with `onDelete: retain`, `seconds` since 1970.
    pub(super) fn retained(&self, seconds: u64) -> String {
        format!("{}{RETAINED}{seconds}", self.name)
    }

    fn is_retained_as(&self, name: &str) -> bool {
        let seconds = name.strip_prefix(&self.name).and_then(|rest| rest.strip_prefix(RETAINED));
        seconds.is_some_and(|seconds| seconds.parse::<u64>().is_ok())
    }

    /// For errors: `volume lvm:pvc-1`.
    pub(super) fn called(&self) -> String {
        match self.kind {
            Kind::Volume => format!("volume {}", self.id),
            Kind::Snapshot => format!("snapshot {}", self.id),
            Kind::Growth => format!("the growth of volume {}", self.id),
        }
    }

    /// The tags that say whose it is.
    pub(super) fn tags(&self) -> Vec<String> {
        vec![OURS.to_owned(), format!("{}={}", self.kind.key(), self.id)]
    }
}

/// What is kept of a volume.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct VolumeRecord {
    pub(super) format: u32,
    /// The CO's name.
    pub(super) name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) source: Option<ContentSource>,
    pub(super) parameters: serde_json::Value,
    /// As ControllerModifyVolume has set it; else that of the parameters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) on_delete: Option<OnDelete>,
    /// As ControllerModifyVolume has set them; else those of the parameters.
    #[serde(default, skip_serializing_if = "is_default")]
    pub(super) io_limits: IoLimits,
}

impl VolumeRecord {
    pub(super) fn on_delete(&self) -> Result<OnDelete> {
        Ok(self.on_delete.unwrap_or(self.of_class()?.on_delete))
    }

    pub(super) fn io_limits(&self) -> Result<IoLimits> {
        Ok(self.of_class()?.io_limits().with(self.io_limits))
    }

    fn of_class(&self) -> Result<LvmParameters> {
        LvmParameters::from_json(&self.parameters["backend"])
    }
}

/// What is kept of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SnapshotRecord {
    pub(super) format: u32,
    /// The CO's name.
    pub(super) name: String,
    pub(super) source: VolumeId,
    /// Seconds since 1970.
    pub(super) created: u64,
}

/// A record as tags.
pub(super) fn encode(record: &impl Serialize) -> Result<Vec<String>> {
    let json = serde_json::to_string(record).map_err(|error| Error::failed("record", "a volume", error))?;
    let text = escape(&json);
    // Only ASCII is left of it.
    let pieces = text.as_bytes().chunks(PIECE).enumerate();
    Ok(pieces.map(|(number, piece)| format!("{RECORD}{number}={}", String::from_utf8_lossy(piece))).collect())
}

/// The tags that hold a record.
pub(super) fn of_record(lv: &Lv) -> impl Iterator<Item = &String> {
    lv.tags.iter().filter(|tag| tag.starts_with(RECORD))
}

/// The record of a logical volume.
///
/// # Errors
/// `Unverified` where it has none, or a damaged one.
pub(super) fn decode<T: DeserializeOwned>(lv: &Lv) -> Result<T> {
    let damaged = |reason: String| Error::Unverified { device: format!("logical volume {}", lv.name), reason };
    let (mut text, mut pieces) = (String::new(), 0);
    while let Some(piece) = lv.tag(&format!("{RECORD}{pieces}")) {
        text.push_str(piece);
        pieces += 1;
    }
    if of_record(lv).count() != pieces {
        return Err(damaged(format!(
            "its tags {RECORD}N are not those of one record; see `lvs -o lv_tags`, and remove the wrong ones (lvchange --deltag)"
        )));
    }
    let json = unescape(&text).ok_or_else(|| damaged(format!("its tags {RECORD}N are damaged: {text:?}")))?;
    let no_record = |error: serde_json::Error| {
        damaged(format!("its tags {RECORD}N hold no record: {error}; set them again (lvchange --addtag)"))
    };
    let record: serde_json::Value = serde_json::from_str(&json).map_err(no_record)?;
    match &record["format"] {
        format if *format == FORMAT => serde_json::from_value(record).map_err(no_record),
        format => {
            Err(damaged(format!("its tags {RECORD}N have the format {format}, and this version of the driver knows {FORMAT}")))
        }
    }
}

/// What a tag may hold (lvm(8): A-Z a-z 0-9 _ + . - / = ! : # &), any other byte as `=` and two hexadecimal digits.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len() * 2);
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'_' | b'+' | b'.' | b'-' | b'/' | b':' => escaped.push(char::from(byte)),
            _ => escaped.push_str(&format!("={byte:02X}")),
        }
    }
    escaped
}

fn unescape(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        if *first != b'=' {
            bytes.push(*first);
            continue;
        }
        let digits = std::str::from_utf8(rest.get(..2)?).ok()?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        rest = rest.get(2..)?;
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn id(text: &str) -> VolumeId {
        text.parse().expect("an id")
    }

    #[test]
    fn logical_volume_of_another_name_is_not_ours() {
        let object = Object::volume(&id("lvm:pvc-1"));
        assert_eq!(Object::of(&Lv::named(&object.name, object.tags())), Some(object.clone()));
        assert_eq!(Object::of(&Lv::named("data", object.tags())), None, "someone copied the tags");
        assert_eq!(Object::of(&Lv::named(&object.name, Vec::new())), None, "someone removed them");
        assert_eq!(Object::renamed(&Lv::named(&object.name, object.tags())), None, "it has its name");
        assert_eq!(Object::renamed(&Lv::named("data", object.tags())), Some(object.clone()));
        assert_eq!(
            Object::renamed(&Lv::named("data", object.tags()[1..].to_vec())),
            None,
            "an administrator took it from the driver"
        );
        assert_eq!(Object::renamed(&Lv::named(&object.retained(7), object.tags())), None, "the driver renamed it");
        assert_eq!(Object::renamed(&Lv::named(&format!("{}_retained_", object.name), object.tags())), Some(object.clone()));
        assert_eq!(
            Object::renamed(&Lv::named("longshore_v_0_retained_7", object.tags())),
            Some(object.clone()),
            "that of another"
        );
        let named: Vec<String> =
            [object.clone(), Object::volume(&id("lvm:pvc-2")), Object::growth(&id("lvm:pvc-1"))].map(|one| one.name).into();
        assert!(named[0] != named[1] && named[0] != named[2]);
        assert!(named.iter().all(|name| name.len() < 60 && !name.contains('-')), "hyphens are doubled in names of device-mapper");
    }

    #[test]
    fn long_record_is_several_tags() {
        let record = SnapshotRecord { format: FORMAT, name: "n".repeat(2000), source: id("lvm:a"), created: 7 };
        let tags = encode(&record).expect("JSON");
        assert!(tags.len() > 1 && tags.iter().all(|tag| tag.len() <= 1024), "{}", tags.len());
        let mut shuffled = tags.clone();
        shuffled.reverse();
        assert_eq!(decode::<SnapshotRecord>(&Lv::named("x", shuffled)).expect("whole"), record);
        assert!(decode::<SnapshotRecord>(&Lv::named("x", tags[1..].to_vec())).is_err(), "the first is gone");
        assert!(decode::<SnapshotRecord>(&Lv::named("x", Vec::new())).is_err());
        let two = [&tags[..], &["longshore.record.0=other".to_owned()]].concat();
        let error = decode::<SnapshotRecord>(&Lv::named("x", two)).expect_err("two records").to_string();
        assert!(error.contains("not those of one record"), "{error}");
        let later = encode(&SnapshotRecord { format: FORMAT + 1, ..record }).expect("JSON");
        let error = decode::<SnapshotRecord>(&Lv::named("x", later)).expect_err("of a later version").to_string();
        assert!(error.contains("format 2"), "{error}");
    }

    #[test]
    fn record_of_an_earlier_version_has_the_limits_of_its_class() {
        let json =
            serde_json::json!({"format": 1, "name": "a", "parameters": {"backend": {"readIops": "100", "writeIops": "50"}}});
        let mut record: VolumeRecord = serde_json::from_value(json.clone()).expect("a record");
        let limits = record.io_limits().expect("limits");
        assert_eq!(serde_json::to_value(limits).expect("JSON"), json["parameters"]["backend"]);
        assert_eq!(serde_json::to_value(&record).expect("JSON"), json, "what is not set takes no room in the metadata");
        record.io_limits = serde_json::from_value(serde_json::json!({"writeIops": "max"})).expect("limits");
        let tags = encode(&record).expect("JSON");
        let read: VolumeRecord = decode(&Lv::named("x", tags)).expect("whole");
        let limits = serde_json::to_value(read.io_limits().expect("limits")).expect("JSON");
        assert_eq!(limits, serde_json::json!({"readIops": "100", "writeIops": "max"}));
    }

    proptest! {
        #[test]
        fn any_text_survives_tags(text in ".{0,300}") {
            let escaped = escape(&text);
            prop_assert!(escaped.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_+.-/=:".contains(&byte)));
            let unescaped = unescape(&escaped);
            prop_assert_eq!(unescaped.as_deref(), Some(text.as_str()));
        }
    }
}

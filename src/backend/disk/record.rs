//! What is kept of a volume: a record on its disk, in a partition of its own ([`crate::os::disk`]). It goes with the disk to another slot or
//! machine.

use serde::{Deserialize, Serialize};

use crate::backend::record;
use crate::os;
use crate::os::disk::Disk;
use crate::os::disk::gpt::Guid;
use crate::volume::{BackendName, OnDelete, Result, VolumeId};

use super::config::DiskParameters;

const FORMAT: u32 = 1;

/// The record of a disk.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct Record {
    format: u32,
    pub(super) backend: BackendName,
    /// Of the disk, and of its partition for the data, as in the partition table.
    pub(super) disk: Guid,
    pub(super) data: Guid,
    hardware: Hardware,
    /// It was seen to be blank by samples only, and has not been overwritten since.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) sampled: bool,
    pub(super) state: State,
}

/// By what a disk is seen to be the one that the record was written for, and no copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Hardware {
    size: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    serial: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    wwid: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) enum State {
    /// All of it was seen to be blank; its partition table is being written.
    Claiming,
    /// Its data is zeroes from the first byte to the last.
    Free,
    Volume(VolumeRecord),
    /// It is being overwritten with zeroes, which is done up to `done`, in bytes.
    Wiping {
        volume: VolumeRecord,
        done: u64,
    },
    /// The volume was deleted, and its data is kept. A person frees the disk.
    Retained {
        volume: VolumeRecord,
    },
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct VolumeRecord {
    /// Without the record of the disk in it.
    pub(super) id: VolumeId,
    /// The CO's name.
    pub(super) name: String,
    pub(super) parameters: serde_json::Value,
    /// As ControllerModifyVolume has set it; else that of the parameters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) on_delete: Option<OnDelete>,
    /// Which of the disk's volumes, one after the other, it is: no two have the same.
    pub(super) generation: u64,
    /// It holds zeroes, and was never connected.
    pub(super) blank: bool,
}

impl VolumeRecord {
    pub(super) fn on_delete(&self) -> Result<OnDelete> {
        let of_class = DiskParameters::from_json(&self.parameters["backend"])?.on_delete;
        Ok(self.on_delete.unwrap_or(of_class))
    }
}

impl Record {
    /// Of a disk that is about to be the driver's.
    pub(super) fn claiming(backend: &BackendName, disk: &Disk, sampled: bool) -> Result<Record> {
        let hardware = Hardware { size: disk.size, serial: disk.serial.clone(), wwid: disk.wwid.clone() };
        let (state, format) = (State::Claiming, FORMAT);
        Ok(Record { format, backend: backend.clone(), disk: Guid::random()?, data: Guid::random()?, hardware, sampled, state })
    }

    /// # Errors
    /// Why it cannot be read.
    pub(super) fn decode(content: &[u8]) -> Result<Record, String> {
        record::decode(content, FORMAT).map_err(|error| format!("its record cannot be used: {error}"))
    }

    pub(super) fn encode(&self) -> os::Result<Vec<u8>> {
        let failed =
            |error: serde_json::Error| os::Error::Unexpected { object: "a record".to_owned(), reason: error.to_string() };
        serde_json::to_vec(self).map_err(failed)
    }

    /// Why the disk is not that for which the record was written; what a machine does not say of its disks is not compared.
    pub(super) fn copied_from(&self, disk: &Disk) -> Option<String> {
        let differs = |recorded: &Option<String>, seen: &Option<String>| match (recorded, seen) {
            (Some(recorded), Some(seen)) => (recorded != seen).then(|| format!("{recorded:?}, and it has {seen:?}")),
            _ => None,
        };
        let Hardware { size, serial, wwid } = &self.hardware;
        // A virtual disk may have grown.
        let size = (*size > disk.size).then(|| format!("{size} bytes, and it has {}", disk.size));
        let serial = differs(serial, &disk.serial).map(|what| format!("the serial {what}"));
        // The kernel does not always have the same WWID for an NVMe disk.
        let same_serial = self.hardware.serial.is_some() && self.hardware.serial == disk.serial;
        let wwid = differs(wwid, &disk.wwid).filter(|_| !same_serial).map(|what| format!("the WWID {what}"));
        let what = size.or(serial).or(wwid);
        what.map(|what| format!("its record was written for a disk with {what}"))
    }

    /// How large the disk was when it became the driver's, in bytes: its partitions are laid out by that.
    pub(super) fn size(&self) -> u64 {
        self.hardware.size
    }

    /// By what a volume's id names its disk: the first digits of the disk's GUID, since an id has not room for all.
    pub(super) fn disk_id(&self) -> String {
        self.disk.to_string().chars().filter(char::is_ascii_hexdigit).take(20).collect()
    }

    /// Of the volume that is, or was, on the disk.
    pub(super) fn id(&self) -> Option<VolumeId> {
        match &self.state {
            State::Volume(volume) | State::Wiping { volume, .. } | State::Retained { volume } => Some(volume.id.clone()),
            State::Claiming | State::Free => None,
        }
    }

    /// The volume that is whole.
    pub(super) fn volume(&self) -> Option<&VolumeRecord> {
        match &self.state {
            State::Volume(volume) => Some(volume),
            State::Claiming | State::Free | State::Wiping { .. } | State::Retained { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk() -> Disk {
        let serial = Some("S1".to_owned());
        Disk { name: "sda".to_owned(), size: 1 << 30, serial, wwid: Some("naa.5".to_owned()), ..Disk::default() }
    }

    #[test]
    fn record_reads_as_it_was_written_and_not_of_another_format() {
        let mut record = Record::claiming(&"disk".parse().expect("a name"), &disk(), false).expect("random");
        record.state = State::Wiping {
            volume: VolumeRecord {
                id: "disk:a".parse().expect("an id"),
                name: "a".to_owned(),
                parameters: serde_json::json!({"node": {}, "backend": {"onDelete": "retain"}}),
                on_delete: None,
                generation: 3,
                blank: false,
            },
            done: 7,
        };
        let text = record.encode().expect("JSON");
        assert_eq!(Record::decode(&text), Ok(record));
        let newer = String::from_utf8(text).expect("UTF-8").replace("\"format\":1", "\"format\":2");
        assert!(Record::decode(newer.as_bytes()).expect_err("newer").contains("format 2"));
    }

    #[test]
    fn record_on_another_disk_is_a_copy() {
        let record = Record::claiming(&"disk".parse().expect("a name"), &disk(), false).expect("random");
        assert_eq!(record.copied_from(&disk()), None);
        assert_eq!(record.copied_from(&Disk { size: 2 << 30, ..disk() }), None, "it has grown");
        assert_eq!(record.copied_from(&Disk { wwid: Some("naa.6".to_owned()), ..disk() }), None, "by another kernel");
        assert_eq!(record.copied_from(&Disk { serial: None, wwid: None, ..disk() }), None, "the machine does not say");
        for (other, word) in [
            (Disk { serial: Some("S2".to_owned()), ..disk() }, "serial"),
            (Disk { serial: None, wwid: Some("naa.6".to_owned()), ..disk() }, "WWID"),
            (Disk { size: 1 << 20, ..disk() }, "bytes"),
        ] {
            assert!(record.copied_from(&other).expect("a copy").contains(word), "{word}");
        }
    }
}

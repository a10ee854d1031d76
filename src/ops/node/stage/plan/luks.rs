//! How the device of an encrypted volume is made to appear in clear.

use crate::os::fs::Contents;
use crate::os::luks::Header;
use crate::volume::{Error, Result, VolumeId};

use super::remedy::wipe_remedy;

/// What the device of an encrypted volume showed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LuksObservation {
    pub volume: VolumeId,
    /// `/dev/loop3`, for messages.
    pub device: String,
    pub contents: Contents,
    pub header: Option<Header>,
    /// The medium has the mark of a luksFormat of ours that was interrupted, and no header that says it was ever used.
    pub interrupted: bool,
    /// The device itself takes no writes.
    pub device_read_only: bool,
    pub mapping: Mapping,
}

/// The mapping of an encrypted volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mapping {
    None,
    /// It is whole and lies on this device.
    Whole,
    /// Half made, or on another device.
    Stale,
}

/// What makes the device of an encrypted volume appear in clear.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unlock {
    Close,
    /// Write onto the medium, and into the journal, that a LUKS format begins.
    RecordFormat,
    /// Take away what an interrupted format left.
    Wipe,
    Format,
    Open,
    /// The device may have grown since the mapping was opened.
    Grow,
}

/// # Errors
/// `Unverified` for anything on the device that is neither a LUKS2 header nor proven nothing: it is left as it is.
pub fn unlock(read_only: bool, locked: &LuksObservation) -> Result<Vec<Unlock>> {
    let refuse =
        |reason: String| Err(Error::Unverified { device: format!("volume {} on {}", locked.volume, locked.device), reason });
    let blank = locked.interrupted || locked.contents == Contents::Blank;
    let mut steps = Vec::new();
    if locked.mapping == Mapping::Stale || (locked.mapping == Mapping::Whole && blank) {
        steps.push(Unlock::Close);
    }
    if blank && (read_only || locked.device_read_only) {
        return refuse("it is blank, and to be used read-only: there is nothing to open. Stage it for writing once".to_owned());
    }
    match (&locked.contents, &locked.header) {
        (contents, _) if locked.interrupted && foreign_to_luks(contents).is_some() => {
            return refuse(format!(
                "its LUKS format was interrupted, but now it holds {}: another process or node wrote to it. {}",
                foreign_to_luks(contents).unwrap_or_default(),
                wipe_remedy(&locked.device)
            ));
        }
        _ if locked.interrupted => steps.extend([Unlock::RecordFormat, Unlock::Wipe, Unlock::Format, Unlock::Open]),
        (_, Some(header)) if header.version == 2 => match locked.mapping {
            Mapping::Whole if !read_only => steps.push(Unlock::Grow),
            Mapping::Whole => {}
            Mapping::None | Mapping::Stale => steps.push(Unlock::Open),
        },
        (_, Some(header)) => {
            return refuse(format!(
                "its LUKS header is of version {}, not 2; with the volume unstaged, `cryptsetup convert --type luks2` changes it",
                header.version
            ));
        }
        (Contents::Blank, None) => steps.extend([Unlock::RecordFormat, Unlock::Format, Unlock::Open]),
        (Contents::Filesystem(found), None) => {
            return refuse(format!(
                "it holds {found} in clear, but is to be encrypted; its data is left as it is. Use it without encryption, or \
                 copy it into a new volume"
            ));
        }
        (Contents::Other(what) | Contents::Unknown(what), None) => {
            return refuse(format!(
                "it is neither proven blank nor encrypted with LUKS2 ({what}), and is not formatted. {}",
                wipe_remedy(&locked.device)
            ));
        }
    }
    Ok(steps)
}

/// What no LUKS format writes.
fn foreign_to_luks(contents: &Contents) -> Option<String> {
    match contents {
        Contents::Filesystem(found) => Some(found.to_string()),
        Contents::Other(what) => (!what.contains("LUKS")).then(|| what.clone()),
        Contents::Blank | Contents::Unknown(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::luks::State;
    use crate::volume::FsType;

    fn id() -> VolumeId {
        "image:a".parse().expect("valid")
    }

    fn locked(contents: Contents, version: Option<u16>) -> LuksObservation {
        LuksObservation {
            volume: id(),
            device: "/dev/loop3".to_owned(),
            contents,
            header: version.map(|version| Header { version, state: State::Used, uuid: String::new() }),
            interrupted: false,
            device_read_only: false,
            mapping: Mapping::None,
        }
    }

    #[test]
    fn only_what_is_blank_is_encrypted() {
        use Unlock::*;
        let blank = locked(Contents::Blank, None);
        let luks = locked(Contents::Other("LUKS".to_owned()), Some(2));
        assert_eq!(unlock(false, &blank).unwrap(), [RecordFormat, Format, Open]);
        assert_eq!(unlock(false, &luks).unwrap(), [Open]);
        assert_eq!(unlock(true, &luks).unwrap(), [Open]);
        assert_eq!(unlock(false, &LuksObservation { mapping: Mapping::Whole, ..luks.clone() }).unwrap(), [Grow]);
        assert_eq!(unlock(true, &LuksObservation { mapping: Mapping::Whole, ..luks.clone() }).unwrap(), []);
        assert_eq!(unlock(false, &LuksObservation { mapping: Mapping::Stale, ..luks.clone() }).unwrap(), [Close, Open]);
        for (contents, version, says) in [
            (Contents::Filesystem(FsType::Xfs), None, "holds xfs in clear"),
            (Contents::Other("GPT".to_owned()), None, "neither proven blank nor encrypted with LUKS2 (GPT)"),
            (Contents::Unknown("an error".to_owned()), None, "(an error)"),
            (Contents::Other("LUKS".to_owned()), Some(1), "version 1"),
        ] {
            let error = unlock(false, &locked(contents, version)).unwrap_err().to_string();
            assert!(error.contains(says) && error.contains("/dev/loop3"), "{error}");
        }
        assert!(unlock(true, &blank).is_err());
        assert!(unlock(false, &LuksObservation { device_read_only: true, ..blank }).is_err());
    }

    #[test]
    fn an_interrupted_luks_format_is_done_again_unless_another_writer_came() {
        use Unlock::*;
        let interrupted = |contents| LuksObservation { interrupted: true, ..locked(contents, None) };
        for contents in [
            Contents::Blank,
            Contents::Unknown("data at 0".to_owned()),
            Contents::Other("LUKS".to_owned()),
            Contents::Other("LUKS2 secondary header at 16 KiB".to_owned()),
        ] {
            assert_eq!(unlock(false, &interrupted(contents)).unwrap(), [RecordFormat, Wipe, Format, Open]);
        }
        let open = LuksObservation { mapping: Mapping::Whole, ..interrupted(Contents::Other("LUKS".to_owned())) };
        assert_eq!(unlock(false, &open).unwrap(), [Close, RecordFormat, Wipe, Format, Open]);
        for contents in [Contents::Filesystem(FsType::Ext4), Contents::Other("GPT".to_owned())] {
            let error = unlock(false, &interrupted(contents)).unwrap_err().to_string();
            assert!(error.contains("another process or node wrote"), "{error}");
        }
    }
}

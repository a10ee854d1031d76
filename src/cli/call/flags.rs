//! Flags that several RPCs share, and what they become in a request.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;
use std::str::FromStr;

use clap::builder::PossibleValuesParser;
use clap::{Args, ValueEnum};
use tonic::Code;

use crate::csi::volume_capability::access_mode::Mode;
use crate::csi::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use crate::csi::{CapacityRange, ControllerGetVolumeRequest, Topology, TopologyRequirement, VolumeCapability};
use crate::volume::Bytes;

use super::super::Failure;
use super::client::Client;

/// `k=v`; the value may hold further `=` and may be empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    key: String,
    value: String,
}

impl FromStr for Pair {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some((key, value)) if !key.is_empty() => Ok(Pair { key: key.to_owned(), value: value.to_owned() }),
            _ => Err("write key=value".to_owned()),
        }
    }
}

/// # Errors
/// `Usage` where a key is given twice.
pub fn pairs(flag: &str, pairs: &[Pair]) -> Result<HashMap<String, String>, Failure> {
    let mut map = HashMap::new();
    for Pair { key, value } in pairs {
        if map.insert(key.clone(), value.clone()).is_some() {
            return Err(Failure::Usage(format!("--{flag} {key} is given twice")));
        }
    }
    Ok(map)
}

/// A size of at most 2^63-1 bytes, which is what the protocol has room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size(i64);

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bytes: Bytes = text.parse().map_err(|_| "write 10GiB, 500M or a number of bytes".to_owned())?;
        i64::try_from(bytes.0).map(Size).map_err(|_| "that is more than 8 EiB".to_owned())
    }
}

/// How large.
#[derive(Clone, Copy, Debug, Default, Args)]
pub struct SizeArgs {
    /// At least so large: 10GiB, 500M, or bytes
    #[arg(long)]
    size: Option<Size>,
    /// At most so large
    #[arg(long, value_name = "SIZE")]
    limit: Option<Size>,
}

impl SizeArgs {
    /// `None` where nothing was said.
    pub fn range(self) -> Option<CapacityRange> {
        let bytes = |size: Option<Size>| size.map_or(0, |size| size.0);
        (self.size.is_some() || self.limit.is_some())
            .then(|| CapacityRange { required_bytes: bytes(self.size), limit_bytes: bytes(self.limit) })
    }
}

/// Who may use a volume, as the specification calls it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Access {
    #[default]
    SingleNodeWriter,
    SingleNodeReaderOnly,
    SingleNodeSingleWriter,
    SingleNodeMultiWriter,
    MultiNodeReaderOnly,
    MultiNodeSingleWriter,
    MultiNodeMultiWriter,
}

impl From<Access> for Mode {
    fn from(access: Access) -> Mode {
        match access {
            Access::SingleNodeWriter => Mode::SingleNodeWriter,
            Access::SingleNodeReaderOnly => Mode::SingleNodeReaderOnly,
            Access::SingleNodeSingleWriter => Mode::SingleNodeSingleWriter,
            Access::SingleNodeMultiWriter => Mode::SingleNodeMultiWriter,
            Access::MultiNodeReaderOnly => Mode::MultiNodeReaderOnly,
            Access::MultiNodeSingleWriter => Mode::MultiNodeSingleWriter,
            Access::MultiNodeMultiWriter => Mode::MultiNodeMultiWriter,
        }
    }
}

/// How a volume is to be used.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "How it is used")]
pub struct UseArgs {
    /// As this file system [default: the driver's choice]
    #[arg(long, value_name = "TYPE", value_parser = PossibleValuesParser::new(["ext4", "xfs", "btrfs"]))]
    fs: Option<String>,
    /// As a raw block device
    #[arg(long, conflicts_with_all = ["fs", "mount_flag", "group"])]
    block: bool,
    /// By whom at a time [default: single-node-writer]
    #[arg(long, value_enum, value_name = "MODE", hide_possible_values = false)]
    access: Option<Access>,
    /// A mount option; may be repeated
    #[arg(long, value_name = "OPTION", allow_hyphen_values = true)]
    mount_flag: Vec<String>,
    /// The group id that must be able to read and write
    #[arg(long, value_name = "GID")]
    group: Option<u32>,
}

impl UseArgs {
    pub fn capability(&self) -> VolumeCapability {
        let access_type = if self.block {
            AccessType::Block(BlockVolume {})
        } else {
            AccessType::Mount(MountVolume {
                fs_type: self.fs.clone().unwrap_or_default(),
                mount_flags: self.mount_flag.clone(),
                volume_mount_group: self.group.map(|group| group.to_string()).unwrap_or_default(),
            })
        };
        let mode = Mode::from(self.access.unwrap_or_default());
        VolumeCapability { access_type: Some(access_type), access_mode: Some(AccessMode { mode: mode.into() }) }
    }

    /// For RPCs that do not insist on one.
    pub fn capability_if_said(&self) -> Option<VolumeCapability> {
        let said =
            self.fs.is_some() || self.block || self.access.is_some() || !self.mount_flag.is_empty() || self.group.is_some();
        said.then(|| self.capability())
    }
}

/// A secret's name and the file that holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretFile {
    key: String,
    path: PathBuf,
}

impl FromStr for SecretFile {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some((key, path)) if !key.is_empty() && !path.is_empty() => Ok(SecretFile { key: key.to_owned(), path: path.into() }),
            _ => Err("write key=FILE".to_owned()),
        }
    }
}

/// Secrets: never on the command line, where every process of this machine could read them.
#[derive(Clone, Debug, Default, Args)]
pub struct SecretArgs {
    /// A secret, from a file (one newline at its end is left out); may be repeated
    #[arg(long, value_name = "KEY=FILE")]
    secret_file: Vec<SecretFile>,
}

impl SecretArgs {
    /// Reads the files.
    pub fn read(&self) -> Result<HashMap<String, String>, Failure> {
        let mut secrets = HashMap::new();
        for SecretFile { key, path } in &self.secret_file {
            let text = fs::read_to_string(path).map_err(|source| Failure::Unreadable { path: path.clone(), source })?;
            let value = text.strip_suffix('\n').unwrap_or(&text).to_owned();
            if secrets.insert(key.clone(), value).is_some() {
                return Err(Failure::Usage(format!("--secret-file {key} is given twice")));
            }
        }
        Ok(secrets)
    }
}

/// What the controller has said about a volume.
#[derive(Clone, Debug, Default, Args)]
pub struct ContextArgs {
    /// An entry of the volume's context; may be repeated [default: as ControllerGetVolume answers, if that is served here]
    #[arg(long, value_name = "KEY=VALUE")]
    context: Vec<Pair>,
}

impl ContextArgs {
    /// What was said.
    pub fn said(&self) -> Result<HashMap<String, String>, Failure> {
        pairs("context", &self.context)
    }

    /// What was said, else what the controller knows.
    ///
    /// # Errors
    /// The controller's, except that it may not be served on this socket.
    pub async fn find(&self, client: &Client, volume_id: &str) -> Result<HashMap<String, String>, Failure> {
        if !self.context.is_empty() {
            return self.said();
        }
        let request = ControllerGetVolumeRequest { volume_id: volume_id.to_owned() };
        match client.answer("get-volume", client.controller().controller_get_volume(request)).await {
            Ok(response) => Ok(response.volume.map(|volume| volume.volume_context).unwrap_or_default()),
            Err(Failure::Call { code: Code::Unimplemented, .. }) => Ok(HashMap::new()),
            Err(failure) => Err(failure),
        }
    }
}

/// What ControllerPublishVolume answered.
#[derive(Clone, Debug, Default, Args)]
pub struct PublishContextArgs {
    /// An entry of what controller-publish-volume answered; may be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    publish_context: Vec<Pair>,
}

impl PublishContextArgs {
    pub fn said(&self) -> Result<HashMap<String, String>, Failure> {
        pairs("publish-context", &self.publish_context)
    }
}

/// A StorageClass's parameters.
#[derive(Clone, Debug, Default, Args)]
pub struct ParameterArgs {
    /// A parameter, as in a StorageClass: backend=scratch; may be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    parameter: Vec<Pair>,
}

impl ParameterArgs {
    pub fn said(&self) -> Result<HashMap<String, String>, Failure> {
        pairs("parameter", &self.parameter)
    }
}

/// A VolumeAttributesClass's parameters.
#[derive(Clone, Debug, Default, Args)]
pub struct MutableArgs {
    /// A parameter that may change later, as in a VolumeAttributesClass; may be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    mutable_parameter: Vec<Pair>,
}

impl MutableArgs {
    pub fn said(&self) -> Result<HashMap<String, String>, Failure> {
        pairs("mutable-parameter", &self.mutable_parameter)
    }
}

/// From where a volume must be reached.
#[derive(Clone, Debug, Default, Args)]
pub struct TopologyArgs {
    /// A segment of the place it must be reached from: topology.longshore.csi.dev/node=a; may be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    topology: Vec<Pair>,
}

impl TopologyArgs {
    /// `None` where nothing was said.
    pub fn place(&self) -> Result<Option<Topology>, Failure> {
        let segments = pairs("topology", &self.topology)?;
        Ok((!segments.is_empty()).then_some(Topology { segments }))
    }

    pub fn requirement(&self) -> Result<Option<TopologyRequirement>, Failure> {
        Ok(self.place()?.map(|place| TopologyRequirement { requisite: vec![place.clone()], preferred: vec![place] }))
    }
}

/// Which part of a list.
#[derive(Clone, Debug, Default, Args)]
pub struct PageArgs {
    /// At most so many entries a page [default: as the driver likes]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(i32).range(1..))]
    max: Option<i32>,
    /// Continue where an earlier page ended
    #[arg(long)]
    token: Option<String>,
    /// All pages
    #[arg(long)]
    all: bool,
}

/// Entries, and the token of the page after them; empty at the end.
pub type Page<T> = (Vec<T>, String);

impl PageArgs {
    /// Gets one page, or with --all all of them, by `get(max, token)`.
    pub async fn entries<T, F>(&self, mut get: impl FnMut(i32, String) -> F) -> Result<Page<T>, Failure>
    where
        F: Future<Output = Result<Page<T>, Failure>>,
    {
        let max = self.max.unwrap_or_default();
        let (mut entries, mut next) = get(max, self.token.clone().unwrap_or_default()).await?;
        while self.all && !next.is_empty() {
            let (more, after) = get(max, next.clone()).await?;
            if after == next {
                let message = format!("the driver answers token {next:?} with the same token again");
                return Err(Failure::Call { code: Code::Internal, message });
            }
            entries.extend(more);
            next = after;
        }
        Ok((entries, next))
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::io::Write;

    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        size: SizeArgs,
        #[command(flatten)]
        usage: UseArgs,
        #[command(flatten)]
        secrets: SecretArgs,
        #[command(flatten)]
        parameters: ParameterArgs,
        #[command(flatten)]
        page: PageArgs,
    }

    fn flags(line: &str) -> Result<Flags, clap::Error> {
        Flags::try_parse_from(std::iter::once("test").chain(line.split_whitespace()))
    }

    #[test]
    fn sizes_read_as_people_write_them() {
        let range = flags("--size 10GiB --limit 500G").ok().and_then(|flags| flags.size.range()).expect("valid");
        assert_eq!((range.required_bytes, range.limit_bytes), (10 << 30, 500_000_000_000));
        assert!(flags("").expect("valid").size.range().is_none());
        assert_eq!("4096".parse(), Ok(Size(4096)));
        for wrong in ["ten", "-1", "", "1GiBs", "9223372036854775808", "99999PiB"] {
            assert!(wrong.parse::<Size>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn pairs_have_a_key_and_one_value() {
        let flags = flags("--parameter mkfsOptions=-E=x --parameter empty=").expect("valid");
        let said = flags.parameters.said().expect("different keys");
        assert_eq!((said["mkfsOptions"].as_str(), said["empty"].as_str()), ("-E=x", ""));
        assert!("=v".parse::<Pair>().is_err() && "k".parse::<Pair>().is_err());
        let twice = ["a=1".parse().expect("a pair"), "a=2".parse().expect("a pair")];
        assert!(pairs("parameter", &twice).expect_err("twice").to_string().contains("--parameter a"));
    }

    #[test]
    fn volume_is_used_as_requested_or_else_by_one_writer() {
        let plain = flags("").expect("valid").usage;
        assert!(plain.capability_if_said().is_none());
        assert_eq!(plain.capability().access_mode.map(|access| access.mode()), Some(Mode::SingleNodeWriter));
        let line = "--fs xfs --mount-flag noatime --mount-flag nodiratime --group 1000 --access multi-node-reader-only";
        let requested = flags(line).expect("valid").usage.capability();
        assert_eq!(requested.access_mode.map(|access| access.mode()), Some(Mode::MultiNodeReaderOnly));
        let Some(AccessType::Mount(mount)) = requested.access_type else { panic!("a file system") };
        assert_eq!((mount.fs_type.as_str(), mount.volume_mount_group.as_str()), ("xfs", "1000"));
        assert_eq!(mount.mount_flags, ["noatime", "nodiratime"]);
        assert!(matches!(flags("--block").expect("valid").usage.capability().access_type, Some(AccessType::Block(_))));
        assert!(flags("--block --fs xfs").is_err() && flags("--fs zfs").is_err() && flags("--access all").is_err());
    }

    #[test]
    fn secrets_come_from_files() {
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        file.write_all(b"pass word\n\n").expect("written");
        let flags = flags(&format!("--secret-file key={}", file.path().display())).expect("valid");
        assert_eq!(flags.secrets.read().expect("readable")["key"], "pass word\n");
        assert!("key=".parse::<SecretFile>().is_err() && "value".parse::<SecretFile>().is_err());
    }

    #[tokio::test]
    async fn all_pages_are_read_to_the_end() {
        let asked = RefCell::new(Vec::new());
        let get = |max, token: String| {
            asked.borrow_mut().push((max, token.clone()));
            let page = match token.as_str() {
                "" => (vec![1, 2], "two".to_owned()),
                "two" => (vec![3], "three".to_owned()),
                _ => (vec![], String::new()),
            };
            std::future::ready(Ok(page))
        };
        let all = flags("--all --max 2").expect("valid").page.entries(get).await.expect("three pages");
        assert_eq!(all, (vec![1, 2, 3], String::new()));
        assert_eq!(asked.borrow().len(), 3);
        let one = flags("--token two").expect("valid").page.entries(get).await.expect("a page");
        assert_eq!(one, (vec![3], "three".to_owned()));
        let endless = |_, _| std::future::ready(Ok((vec![()], "again".to_owned())));
        assert!(flags("--all").expect("valid").page.entries(endless).await.is_err());
    }
}

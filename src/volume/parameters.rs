//! StorageClass parameters that mean the same for every backend.
//!
//! Each parameter is a field of a struct that refuses what it does not know; a backend adds a struct of its own
//! for the rest. They are parsed once, in the controller, and travel to the node as typed JSON.

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::Bytes;
use super::capability::FsType;
use super::error::{Error, Result};
use super::suggest::with_nearest;

/// What Kubernetes' sidecars add by themselves (`csi.storage.k8s.io/pvc/name` and so on).
pub const KUBERNETES_PREFIX: &str = "csi.storage.k8s.io/";

/// Parameters as the CO sent them. What the sidecars add by themselves is kept apart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RawParameters {
    values: BTreeMap<String, String>,
    /// Without their prefix.
    metadata: BTreeMap<String, String>,
}

impl RawParameters {
    pub fn new(values: impl IntoIterator<Item = (String, String)>) -> Self {
        let mut raw = RawParameters::default();
        for (key, value) in values {
            match key.strip_prefix(KUBERNETES_PREFIX) {
                Some(name) => raw.metadata.insert(name.to_owned(), value),
                None => raw.values.insert(key, value),
            };
        }
        raw
    }

    /// What the sidecars tell of the claim: `pvc/name`, `pvc/namespace`, `pv/name` (csi-provisioner, `--extra-create-metadata`).
    pub fn metadata(&self, key: &str) -> Option<&str> {
        self.metadata.get(key).map(String::as_str)
    }

    /// One parameter, left where it is.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.values.get(key).map(String::as_str)
    }

    /// Takes one parameter out.
    pub fn take(&mut self, key: &str) -> Option<String> {
        self.values.remove(key)
    }

    /// Takes out those whose names are in `keys`.
    pub fn split(&mut self, keys: &[&str]) -> RawParameters {
        let values = keys.iter().filter_map(|key| self.values.remove_entry(*key)).collect();
        RawParameters { values, metadata: BTreeMap::new() }
    }

    /// Takes out those whose names begin so, with their names.
    pub fn split_prefixed(&mut self, prefix: &str) -> BTreeMap<String, String> {
        let (taken, kept) = std::mem::take(&mut self.values).into_iter().partition(|(key, _)| key.starts_with(prefix));
        self.values = kept;
        taken
    }

    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Parses all that is here into `T`, whose `deny_unknown_fields` names what it does not know.
    ///
    /// # Errors
    /// INVALID_ARGUMENT naming the parameter, with what is known.
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T> {
        let parsed = |without: Option<&String>| {
            let values = self.values.iter().filter(|(key, _)| Some(*key) != without);
            let object = values.map(|(key, value)| (key.clone(), value.clone().into())).collect();
            serde_json::from_value(serde_json::Value::Object(object))
        };
        parsed(None).map_err(|error| {
            let reason = error.to_string();
            // serde does not say whose value it is: it is the one without which the answer is another.
            let differs =
                |key: &&String| parsed(Some(*key)).err().is_none_or(|other: serde_json::Error| other.to_string() != reason);
            let key = self.values.keys().find(differs).filter(|key| !reason.contains(key.as_str()));
            Error::invalid("parameters", with_nearest(key.map_or(reason.clone(), |key| format!("{key}: {reason}"))))
        })
    }
}

/// What the node does with any volume, whatever its backend.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct NodeParameters {
    /// Further arguments of mkfs, separated by spaces, such as `-m 0 -i 8192`. None may force it, or name a file or device.
    pub mkfs_options: String,
    /// `true`: freed blocks are given back to the storage at once (mount option `discard`). Default `false`.
    #[serde(with = "text_bool")]
    pub discard: bool,
    /// `false` leaves out the file system check before a mount. Default `true`.
    #[serde(with = "text_bool")]
    pub fsck: bool,
    /// `luks2`: encrypted on its device, by the passphrase in the node-stage secret `encryptionPassphrase`. The header takes
    /// 16 MiB of the capacity. Default `none`.
    pub encryption: Encryption,
    /// ext4, xfs: bytes of a block of the file system.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub block_size: Option<Number>,
    /// ext4, xfs: bytes of an inode.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inode_size: Option<Number>,
    /// ext4: an inode for so many bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_per_inode: Option<Number>,
    /// ext4: how many inodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub number_of_inodes: Option<Number>,
    /// ext4: `true` gives blocks away in clusters. Default `false`.
    #[serde(rename = "ext4BigAlloc", with = "text_bool", skip_serializing_if = "is_false")]
    pub ext4_big_alloc: bool,
    /// ext4: bytes of a cluster; with `ext4BigAlloc`.
    #[serde(rename = "ext4ClusterSize", skip_serializing_if = "Option::is_none")]
    pub ext4_cluster_size: Option<Number>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
const fn is_false(value: &bool) -> bool {
    !*value
}

/// How a volume lies on its device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Encryption {
    #[default]
    None,
    Luks2,
}

impl Encryption {
    /// The secret that holds the passphrase.
    pub const SECRET: &str = "encryptionPassphrase";

    /// What it takes of the volume's capacity.
    pub const fn overhead(self) -> Bytes {
        match self {
            Encryption::None => Bytes(0),
            Encryption::Luks2 => Bytes(16 << 20),
        }
    }
}

impl Default for NodeParameters {
    fn default() -> Self {
        NodeParameters {
            mkfs_options: String::new(),
            discard: false,
            fsck: true,
            encryption: Encryption::None,
            block_size: None,
            inode_size: None,
            bytes_per_inode: None,
            number_of_inodes: None,
            ext4_big_alloc: false,
            ext4_cluster_size: None,
        }
    }
}

impl NodeParameters {
    /// The names of the parameters above.
    pub const KEYS: [&str; 10] = [
        "mkfsOptions",
        "discard",
        "fsck",
        "encryption",
        "blockSize",
        "inodeSize",
        "bytesPerInode",
        "numberOfInodes",
        "ext4BigAlloc",
        "ext4ClusterSize",
    ];

    /// The arguments of mkfs for a file system of this type.
    ///
    /// # Errors
    /// INVALID_ARGUMENT for what is not known to be harmless. mkfs runs as root, and a pod's author may choose these: some of
    /// its options copy files of the node into the volume (`-d`, `--rootdir`) or write to another device (`-l logdev=`), and
    /// a word that is no option is another device to format. Nor does a tenant choose the UUID or label: a node mounts its own file
    /// systems by these (`UUID=` in /etc/fstab), and would find two.
    pub fn mkfs_arguments(&self, fstype: FsType) -> Result<Vec<String>> {
        let (valued, plain, long) = mkfs_options(fstype);
        let refuse = |word: &str, reason: &str| Err(Error::invalid("parameters.mkfsOptions", format!("{word:?} {reason}")));
        let mut words = self.mkfs_options.split_whitespace();
        while let Some(word) = words.next() {
            let value = if let Some((name, value)) = word.strip_prefix("--").and_then(|option| option.split_once('=')) {
                if !long.contains(&name) {
                    return refuse(word, &format!("may not be given to mkfs.{fstype}; of the long options only {long:?}"));
                }
                value
            } else {
                let Some(letters) = word.strip_prefix('-').filter(|letters| !letters.is_empty()) else {
                    return refuse(word, "is neither an option nor the value of one; only options are allowed");
                };
                let last = letters.trim_start_matches(|letter| plain.contains(letter));
                match last.chars().next() {
                    None => continue,
                    Some(letter) if valued.contains(letter) => match &last[letter.len_utf8()..] {
                        "" => match words.next() {
                            Some(value) => value,
                            None => return refuse(word, "needs a value"),
                        },
                        glued => glued,
                    },
                    Some(_) => {
                        let reason = "which neither force it nor name a file or the file system";
                        let reason =
                            format!("may not be given to mkfs.{fstype}; only -{valued} with a value and -{plain}, {reason}");
                        return refuse(word, &reason);
                    }
                }
            };
            let names = value.split(',').any(|part| NAMING.contains(&part.split('=').next().unwrap_or_default()));
            if names || value.contains('/') {
                return refuse(value, "names a file, a device or the file system, which no option of mkfs may");
            }
            if value.starts_with('-') || value.contains(char::is_control) {
                return refuse(value, "is no value of an option");
            }
        }
        let further = self.mkfs_options.split_whitespace().map(str::to_owned);
        Ok(self.layout(fstype)?.into_iter().chain(further).collect())
    }

    /// What the parameters that name a part of the layout come to.
    fn layout(&self, fstype: FsType) -> Result<Vec<String>> {
        let bytes = |number: Option<Number>| number.map(|number| number.0.to_string());
        let given = [
            ("blockSize", bytes(self.block_size), Some("-b"), Some("-b")),
            ("inodeSize", bytes(self.inode_size), Some("-I"), Some("-i")),
            ("bytesPerInode", bytes(self.bytes_per_inode), Some("-i"), None),
            ("numberOfInodes", bytes(self.number_of_inodes), Some("-N"), None),
            ("ext4BigAlloc", self.ext4_big_alloc.then(|| "bigalloc".to_owned()), Some("-O"), None),
            ("ext4ClusterSize", bytes(self.ext4_cluster_size), Some("-C"), None),
        ];
        let mut words = Vec::new();
        for (name, value, ext4, xfs) in given {
            let Some(value) = value else { continue };
            let (option, value) = match fstype {
                FsType::Ext4 => (ext4, value),
                FsType::Xfs => (xfs, format!("size={value}")),
                FsType::Btrfs => (None, value),
            };
            let option =
                option.ok_or_else(|| Error::invalid("parameters", format!("{name}: mkfs.{fstype} has no such option")))?;
            words.extend([option.to_owned(), value]);
        }
        Ok(words)
    }
}

/// The options of mkfs that may be given: letters that take a value, letters that do not, long names that take one.
const fn mkfs_options(fstype: FsType) -> (&'static str, &'static str, &'static [&'static str]) {
    match fstype {
        FsType::Ext4 => ("bCEeGgIiJmNOT", "Dqv", &[]),
        FsType::Xfs => ("bdilmns", "Kq", &[]),
        FsType::Btrfs => ("bdmnORs", "KMqv", &["csum", "data", "features", "metadata", "nodesize", "sectorsize"]),
    }
}

/// What names a file or device in the value of an option, or the file system itself (`-m uuid=`, `-J device=`, `-d file,name=`, `-l logdev=`, `-r rtdev=`).
const NAMING: [&str; 6] = ["device", "file", "logdev", "name", "rtdev", "uuid"];

/// What DeleteVolume does with the data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnDelete {
    /// It is gone.
    #[default]
    Delete,
    /// It stays where it is, no longer listed, until someone removes it by hand.
    Retain,
    /// It is moved to the backend's archive, under its name and the time.
    Archive,
    /// It is overwritten with zeroes, seen to be zeroes on disk, then deleted.
    Scrub,
}

/// A whole number, as a StorageClass has it: text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Number(pub u32);

impl From<Number> for String {
    fn from(number: Number) -> String {
        number.0.to_string()
    }
}

impl TryFrom<String> for Number {
    type Error = String;

    fn try_from(text: String) -> Result<Number, String> {
        text.parse().map(Number).map_err(|_| format!("{text:?} is no whole number"))
    }
}

/// Booleans as text: StorageClass parameters are strings.
pub mod text_bool {
    use serde::{Deserialize, Deserializer, Serializer};

    /// Writes `"true"` or `"false"`.
    pub fn serialize<S: Serializer>(value: &bool, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(if *value { "true" } else { "false" })
    }

    /// Reads `"true"` or `"false"`, nothing else.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
        match String::deserialize(deserializer)?.as_str() {
            "true" => Ok(true),
            "false" => Ok(false),
            other => Err(serde::de::Error::custom(format!("{other:?} is neither true nor false"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(pairs: &[(&str, &str)]) -> RawParameters {
        RawParameters::new(pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())))
    }

    #[test]
    fn an_unknown_parameter_is_named() {
        let error = raw(&[("mkfsOption", "-m 0")]).parse::<NodeParameters>().expect_err("a typo");
        assert!(error.to_string().contains("mkfsOption") && error.to_string().contains("mkfsOptions"), "{error}");
    }

    #[test]
    fn the_sidecars_own_are_left_out() {
        assert!(raw(&[("csi.storage.k8s.io/pvc/name", "a")]).is_empty());
    }

    #[test]
    fn every_key_is_a_field() {
        let error = raw(&[("unheardOf", "")]).parse::<NodeParameters>().expect_err("no such parameter").to_string();
        let fields: Vec<_> = error.split('`').skip(3).step_by(2).collect();
        assert_eq!(fields, NodeParameters::KEYS);
    }

    #[test]
    fn a_layout_is_what_its_file_system_calls_it() {
        let arguments = |pairs: &[(&str, &str)], fstype| {
            let parameters: NodeParameters = raw(pairs).parse().expect("parameters");
            parameters.mkfs_arguments(fstype).map(|words| words.join(" ")).map_err(|error| error.to_string())
        };
        let both = [("blockSize", "1024"), ("inodeSize", "512"), ("mkfsOptions", "-q")];
        assert_eq!(arguments(&both, FsType::Ext4).expect("ext4"), "-b 1024 -I 512 -q");
        assert_eq!(arguments(&both, FsType::Xfs).expect("xfs"), "-b size=1024 -i size=512 -q");
        arguments(&both, FsType::Btrfs).expect_err("it has neither");
        let ext4 = [("bytesPerInode", "8192"), ("numberOfInodes", "99"), ("ext4BigAlloc", "true"), ("ext4ClusterSize", "65536")];
        assert_eq!(arguments(&ext4, FsType::Ext4).expect("ext4"), "-i 8192 -N 99 -O bigalloc -C 65536");
        let error = arguments(&ext4, FsType::Xfs).expect_err("only ext4 has them");
        assert!(error.contains("bytesPerInode") && error.contains("mkfs.xfs"), "{error}");
        raw(&[("blockSize", "4k")]).parse::<NodeParameters>().expect_err("no number");
    }

    #[test]
    fn mkfs_is_never_forced_and_is_given_no_file() {
        let arguments = |options: &str, fstype| {
            NodeParameters { mkfs_options: options.to_owned(), ..NodeParameters::default() }.mkfs_arguments(fstype)
        };
        for options in [
            "-F",
            "-f",
            "--force",
            "-qF",
            "-m 0 -F",
            "-K -f",
            "-",
            "--",
            "--roo=etc",
            "--rootdir=etc",
            "--rootdir etc",
            "-r etc",
            "-retc",
            "/dev/sda",
            "dev",
            "..",
            "-q dev",
            "-m 0 dev",
            "-d etc/x",
            "-J device=sda",
            "-l logdev=sda",
            "-l size=9,logdev=sda",
            "-d file,name=sda",
            "-r rtdev=sda",
            "-p proto",
            "-c options=x",
            "-z undo",
            "-L a/b",
            "-L root",
            "-Lroot",
            "-qL root",
            "--label=root",
            "-U clear",
            "-U 6c25b2f4-9b0c-4e0b-8d53-0c2a9be21a60",
            "--uuid=6c25b2f4-9b0c-4e0b-8d53-0c2a9be21a60",
            "-m uuid=6c25b2f4-9b0c-4e0b-8d53-0c2a9be21a60",
            "-m crc=1,uuid=6c25b2f4-9b0c-4e0b-8d53-0c2a9be21a60",
            "-é",
            "-L",
            "-L --force",
            "-L a\0b",
        ] {
            for fstype in FsType::ALL {
                assert!(arguments(options, fstype).is_err(), "{options} for {fstype}");
            }
        }
        // A directory for mkfs.ext4, a section of the disk or a profile for the others.
        assert!(arguments("-d etc", FsType::Ext4).is_err() && arguments("-detc", FsType::Ext4).is_err());
        for (options, fstype) in [
            ("", FsType::Ext4),
            ("-m 0 -i 8192 -O ^has_journal -E lazy_itable_init=0,discard -J size=4", FsType::Ext4),
            ("-qm0", FsType::Ext4),
            ("-K -d agcount=4,su=64k,sw=2 -m reflink=1,crc=1 -l size=16m -n ftype=1", FsType::Xfs),
            ("-K -d single -m dup --csum=xxhash -O no-holes", FsType::Btrfs),
        ] {
            assert_eq!(arguments(options, fstype).expect(options).join(" "), options, "{fstype}");
        }
    }
}

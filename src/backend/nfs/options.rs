//! Mount options of a volume: which there may be, and which of them the kernel's mount of the share has.

use crate::os::mount;
use crate::volume::mount_flags::option_name;
use crate::volume::{Error, MountFlags, Result};

const FIELD: &str = "volume_capability.mount.mount_flags";

/// The options of NFS (nfs(5)), and those of every file system that are not the bind mount's, by their names. `bg`, `fg` and `retry`
/// are missing: who tries again is the CO. So are those that say which server it is: `addr`, `mounthost`, `clientaddr`.
const KNOWN: [&str; 62] = [
    "ac",
    "acdirmax",
    "acdirmin",
    "acl",
    "acregmax",
    "acregmin",
    "actimeo",
    "async",
    "context",
    "cto",
    "defcontext",
    "fsc",
    "fscontext",
    "hard",
    "intr",
    "local_lock",
    "lock",
    "lookupcache",
    "max_connect",
    "migration",
    "minorversion",
    "mountport",
    "mountproto",
    "mountvers",
    "namlen",
    "nconnect",
    "nfsvers",
    "noac",
    "noacl",
    "nocto",
    "nofsc",
    "nointr",
    "nolock",
    "nomigration",
    "nordirplus",
    "noresvport",
    "nosharecache",
    "notrunkdiscovery",
    "port",
    "posix",
    "proto",
    "rdirplus",
    "rdma",
    "resvport",
    "retrans",
    "rootcontext",
    "rsize",
    "sec",
    "sharecache",
    "sloppy",
    "soft",
    "softerr",
    "softreval",
    "nosoftreval",
    "sync",
    "tcp",
    "timeo",
    "trunkdiscovery",
    "udp",
    "vers",
    "wsize",
    "xprtsec",
];

/// What the operator allows and forbids.
#[derive(Debug)]
pub struct OptionRules {
    /// Dangerous ones that a volume may have.
    pub allow: Vec<String>,
    /// Those that no volume may have.
    pub forbid: Vec<String>,
}

/// Checked mount options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Of the kernel's mount, in order: two volumes with the same share it.
    pub share: MountFlags,
    /// Of each bind mount, before those that the CO asks for.
    pub bind: Vec<String>,
}

/// # Errors
/// `Invalid`, naming the option and what forbids it.
pub fn check(rules: &OptionRules, flags: &MountFlags) -> Result<Options> {
    let refuse =
        |option: &str, reason: &str| Err(Error::invalid(FIELD, format!("mount option {} {reason}", option_name(option))));
    for flag in flags.expose() {
        let name = option_name(flag);
        let dangerous = matches!(name, "suid" | "dev") && !rules.allow.iter().any(|allowed| allowed == name);
        if dangerous {
            return refuse(flag, "is forbidden; only allowMountOptions in the backend's configuration allows it");
        }
        if rules.forbid.iter().any(|forbidden| forbidden == name) {
            return refuse(flag, "is forbidden by forbidMountOptions in the backend's configuration");
        }
    }
    let (_, share) = mount::split_options(flags).map_err(|error| Error::invalid(FIELD, error.to_string()))?;
    let mut share = share.expose().to_vec();
    for option in &share {
        let name = option_name(option);
        if !KNOWN.contains(&name) {
            return refuse(option, "is none of NFS (nfs(5)), or one that is the driver's to set; leave it out");
        }
    }
    for option in &mut share {
        // The quotes that keep its commas together, for mount.nfs to take off again.
        if option.contains(',')
            && let Some((name, value)) = option.split_once('=')
        {
            *option = format!("{name}=\"{value}\"");
        }
    }
    share.sort();
    share.dedup();
    Ok(Options { share: share.into(), bind: ["nosuid", "nodev"].map(str::to_owned).to_vec() })
}

impl Options {
    /// Whether the server is spoken to over TCP, as is usual.
    pub fn is_tcp(&self) -> bool {
        !self.share.expose().iter().any(|option| {
            matches!(option.as_str(), "udp" | "rdma") || option.starts_with("proto=") && !option.starts_with("proto=tcp")
        })
    }

    /// The server's port, where it is not the usual one.
    pub fn port(&self) -> Option<u16> {
        self.share.expose().iter().find_map(|option| option.strip_prefix("port=")?.parse().ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(allow: &[&str], forbid: &[&str]) -> OptionRules {
        let list = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        OptionRules { allow: list(allow), forbid: list(forbid) }
    }

    fn check(rules: &OptionRules, flags: &[&str]) -> Result<Options> {
        super::check(rules, &flags.iter().map(|&flag| flag.to_owned()).collect())
    }

    #[test]
    fn the_same_options_in_another_order_are_one_mount() {
        let rules = rules(&[], &[]);
        let options = check(&rules, &["hard", "nfsvers=4.1", "noexec", "nconnect=4", "port=2050"]).expect("known");
        assert_eq!(options, check(&rules, &["nconnect=4", "port=2050", "ro", "nfsvers=4.1", "hard", "hard"]).expect("known"));
        assert_eq!(options.share.expose(), ["hard", "nconnect=4", "nfsvers=4.1", "port=2050"]);
        assert_eq!(
            (options.port(), options.is_tcp(), options.bind),
            (Some(2050), true, vec!["nosuid".to_owned(), "nodev".to_owned()])
        );
        assert!(!check(&rules, &["proto=rdma"]).expect("known").is_tcp() && !check(&rules, &["udp"]).expect("known").is_tcp());
        let context = check(&rules, &[r#"context="a:b:c0,c1""#]).expect("known").share;
        assert_eq!(context.expose(), [r#"context="a:b:c0,c1""#]);
    }

    #[test]
    fn forbidden_option_is_named() {
        for (allow, forbid, flag, named) in [
            (&[][..], &[][..], "suid", "suid is forbidden; only allowMountOptions"),
            (&["suid"], &[], "dev", "dev is forbidden; only allowMountOptions"),
            (&["suid"], &["suid"], "suid", "suid is forbidden by forbidMountOptions"),
            (&[], &["nolock"], "nolock", "nolock is forbidden by forbidMountOptions"),
            (&[], &["exec"], "exec", "exec is forbidden by forbidMountOptions"),
            (&[], &[], "addr=192.0.2.1", "option addr is none of NFS"),
            (&[], &[], "bg", "bg is none of NFS"),
            (&[], &[], "data=ordered", "option data is none of NFS"),
            (&[], &[], "bind", "bind: says how to mount"),
        ] {
            let error = check(&rules(allow, forbid), &[flag]).expect_err(flag).to_string();
            assert!(error.contains(named), "{flag}: {error}");
        }
        check(&rules(&["suid", "dev"], &[]), &["suid", "dev"]).expect("allowed");
    }
}

//! Compiles the protocols of CSI and of the kubelet's registration into Rust, from the official files and no others, and our own.

use std::error::Error;
use std::fs;

use sha2::{Digest, Sha256};

/// Others' files and their checksums; proto/README.md says their versions.
const PROTOCOLS: [(&str, &str); 2] = [
    ("proto/csi.proto", "8c5604cb76fefff19c01cf88ebd229e4f8c88c419898b07e4914318d25d84af3"),
    ("proto/pluginregistration.proto", "7a67a0000a1a167c155286834bc9ccb489f8bcdb394e006daba270189c272afa"),
];

/// Ours.
const OWN: &str = "proto/longshore.proto";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    // Where it may lie anywhere in memory, a debug build moves 180,000 addresses at each start, which under emulation takes longer than all
    // else. What is shipped stays relocatable.
    if std::env::var("PROFILE")? == "debug" {
        println!("cargo:rustc-link-arg-bins=-no-pie");
    }
    for (file, expected) in PROTOCOLS {
        let digest: String = Sha256::digest(fs::read(file)?).iter().map(|byte| format!("{byte:02x}")).collect();
        if digest != expected {
            return Err(format!("{file} has the sha256 {digest}, not {expected}: it must stay verbatim").into());
        }
    }
    let files = protox::compile(PROTOCOLS.map(|(file, _)| file).into_iter().chain([OWN]), ["proto"])?;
    tonic_prost_build::configure()
        // What is not overridden answers UNIMPLEMENTED.
        .generate_default_stubs(true)
        // Messages that carry secrets get no derived `Debug`: rpc/redact.rs writes one that hides them.
        .skip_debug([".csi.v1"])
        .compile_fds(files)?;
    Ok(())
}

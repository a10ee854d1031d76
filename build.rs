//! Compiles the CSI protocol into Rust, from the official file and no other.

use std::error::Error;
use std::fs;

use sha2::{Digest, Sha256};

/// proto/csi.proto of v1.13.0; see proto/README.md.
const CSI_SHA256: &str = "8c5604cb76fefff19c01cf88ebd229e4f8c88c419898b07e4914318d25d84af3";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    let digest: String = Sha256::digest(fs::read("proto/csi.proto")?).iter().map(|byte| format!("{byte:02x}")).collect();
    if digest != CSI_SHA256 {
        return Err(format!("proto/csi.proto has the sha256 {digest}, not {CSI_SHA256}: it must stay verbatim").into());
    }
    let files = protox::compile(["proto/csi.proto"], ["proto"])?;
    tonic_prost_build::configure()
        // What is not overridden answers UNIMPLEMENTED.
        .generate_default_stubs(true)
        // Messages that carry secrets get no derived `Debug`: rpc/redact.rs writes one that hides them.
        .skip_debug([".csi.v1"])
        .compile_fds(files)?;
    Ok(())
}

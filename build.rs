//! Compiles the CSI protocol into Rust. Messages that carry secrets get no derived `Debug`:
//! `rpc/redact.rs` writes one that hides them.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=proto");
    let files = protox::compile(["proto/csi.proto"], ["proto"])?;
    tonic_prost_build::configure().generate_default_stubs(true).skip_debug([".csi.v1"]).compile_fds(files)?;
    Ok(())
}

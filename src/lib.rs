pub mod backend;
pub mod ops;
pub mod os;
pub mod volume;
#[allow(clippy::all, clippy::pedantic, missing_docs, unused_qualifications)]
pub mod csi {
    tonic::include_proto!("csi.v1");
}

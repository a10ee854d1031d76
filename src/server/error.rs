//! Why something is not served.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Why the socket cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("endpoint {text:?}: {reason}; write unix:///run/longshore/csi.sock")]
    Endpoint { text: String, reason: &'static str },

    #[error("{}: a living process listens there; stop it, or use another {option}", path.display())]
    Taken { path: PathBuf, option: &'static str },

    #[error("{}: it is no socket; it is left as it is. Move it away, or use another {option}", path.display())]
    NoSocket { path: PathBuf, option: &'static str },

    #[error(
        "{}: there is no such directory, in which the kubelet would look for the driver; name the kubelet's directory by --kubelet-dir, \
         mount it into the container, or leave --kubelet-registration out",
        directory.display()
    )]
    NoRegistry { directory: PathBuf },

    #[error("{address}: a living process listens there; stop it, or use another {option}")]
    HttpTaken { address: SocketAddr, option: &'static str },

    #[error("{address}: HTTP cannot be served there: {source}; use another {option}")]
    Http {
        address: SocketAddr,
        option: &'static str,
        #[source]
        source: io::Error,
    },

    #[error("{action} {}: {source}", path.display())]
    Io {
        action: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },

    #[error("the server ended: {source}")]
    Serve {
        #[source]
        source: tonic::transport::Error,
    },
}

pub type Result<T, E = Error> = std::result::Result<T, E>;

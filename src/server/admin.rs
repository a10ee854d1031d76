//! What the driver serves beside CSI, on the same socket: the level of its log while it runs.

use std::fmt;
use std::sync::Arc;

use tonic::{Request, Response, Status};

use crate::admin::admin_server::{Admin, AdminServer};
use crate::admin::{LogLevelRequest, LogLevelResponse};

/// Sets a level, if there is one, and answers the one that holds then; the error says what is wrong with it.
type SetLevel = dyn Fn(Option<&str>) -> Result<String, String> + Send + Sync;

/// The log, as far as it can be changed.
#[derive(Clone)]
pub struct Log(Arc<SetLevel>);

impl Log {
    pub fn new(set: impl Fn(Option<&str>) -> Result<String, String> + Send + Sync + 'static) -> Log {
        Log(Arc::new(set))
    }

    /// One that stays as it is.
    pub fn fixed() -> Log {
        Log::new(|_| Err("this process has a log that cannot be changed".to_owned()))
    }

    pub(super) fn service(self) -> AdminServer<Service> {
        AdminServer::new(Service(self))
    }
}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Log")
    }
}

pub(super) struct Service(Log);

#[tonic::async_trait]
impl Admin for Service {
    async fn log_level(&self, request: Request<LogLevelRequest>) -> Result<Response<LogLevelResponse>, Status> {
        let wanted = request.into_inner().level;
        let wanted = (!wanted.is_empty()).then_some(wanted.as_str());
        let level = (self.0.0)(wanted).map_err(Status::invalid_argument)?;
        if wanted.is_some() {
            // Whatever the level: who reads the log later must know why lines lack.
            tracing::error!(%level, "not an error: the level of the log was changed");
        }
        Ok(Response::new(LogLevelResponse { level }))
    }
}

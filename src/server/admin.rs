//! What the driver serves beside CSI, on the same socket: the level of its log, and its configuration, while it runs.

use std::fmt;
use std::sync::Arc;

use tonic::{Request, Response, Status};

use crate::admin::admin_server::AdminServer;
use crate::admin::{
    LogLevelRequest, LogLevelResponse, ReloadRequest, ReloadResponse, StandbyRequest, StandbyResponse, admin_server,
};
use crate::rpc::readiness::Readiness;

/// Sets a level, if there is one, and answers the one that holds then; the error says what is wrong with it.
type SetLevel = dyn Fn(Option<&str>) -> Result<String, String> + Send + Sync;

/// Reads the configuration again, and applies it unless it is only to be checked; the error says what is wrong with it.
type Reread = dyn Fn(bool) -> Result<ReloadResponse, String> + Send + Sync;

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

    /// Sets the level, and answers it.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn set(&self, level: &str) -> Result<String, String> {
        let level = (self.0)(Some(level))?;
        // Whatever the level: who reads the log later must know why lines lack.
        tracing::error!(%level, "not an error: the level of the log was changed");
        Ok(level)
    }
}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Log")
    }
}

/// The configuration, as far as it can be changed.
#[derive(Clone)]
pub struct Reload(Arc<Reread>);

impl Reload {
    pub fn new(reread: impl Fn(bool) -> Result<ReloadResponse, String> + Send + Sync + 'static) -> Reload {
        Reload(Arc::new(reread))
    }

    /// Of a process that keeps the configuration of its start.
    pub fn none() -> Reload {
        Reload::new(|_| Err("this process keeps the configuration of its start".to_owned()))
    }
}

impl fmt::Debug for Reload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Reload")
    }
}

/// What an administrator changes while the process runs.
#[derive(Clone, Debug)]
pub struct Admin {
    pub log: Log,
    pub reload: Reload,
}

impl Admin {
    pub(super) fn service(self, readiness: Readiness) -> AdminServer<Service> {
        AdminServer::new(Service { admin: self, readiness })
    }
}

pub(super) struct Service {
    admin: Admin,
    readiness: Readiness,
}

#[tonic::async_trait]
impl admin_server::Admin for Service {
    async fn log_level(&self, request: Request<LogLevelRequest>) -> Result<Response<LogLevelResponse>, Status> {
        let wanted = request.into_inner().level;
        let level = if wanted.is_empty() { (self.admin.log.0)(None) } else { self.admin.log.set(&wanted) };
        Ok(Response::new(LogLevelResponse { level: level.map_err(Status::invalid_argument)? }))
    }

    /// Continues if its caller does not wait: it is applied as a whole.
    async fn reload(&self, request: Request<ReloadRequest>) -> Result<Response<ReloadResponse>, Status> {
        let check = request.into_inner().check;
        let reread = Arc::clone(&self.admin.reload.0);
        let ended = tokio::task::spawn_blocking(move || reread(check)).await;
        let answer = ended.map_err(|error| Status::internal(format!("the reload ended early: {error}")))?;
        answer.map(Response::new).map_err(Status::invalid_argument)
    }

    async fn standby(&self, _request: Request<StandbyRequest>) -> Result<Response<StandbyResponse>, Status> {
        let reason = self.readiness.standby().map(|reason| reason.to_string());
        Ok(Response::new(StandbyResponse { contended: self.readiness.is_contended(), reason }))
    }
}

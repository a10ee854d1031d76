//! What a probe of the cloud came to.

use std::sync::Mutex;
use std::time::Duration;

use super::api::Answer;

/// How the cloud answered when it was asked for no other reason.
#[derive(Debug, Default)]
pub(super) struct LastProbe(pub Mutex<Option<(Duration, Answer<()>)>>);

//! The other end of the driver's gate (`src/os/gate.rs`): sees each step before it begins, and holds it.

use std::future::Future;
use std::path::Path;
use std::pin::pin;
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::net::{UnixListener, UnixStream};

/// Long past anything that is not stuck.
const PATIENCE: Duration = Duration::from_secs(30);

pub struct Gate(UnixListener);

/// A step that waits; it begins when this is dropped.
pub struct Held {
    /// Its name and object.
    pub step: String,
    _stream: UnixStream,
}

impl Gate {
    /// To be called in a runtime.
    pub fn new(socket: &Path) -> Gate {
        Gate(UnixListener::bind(socket).expect("a gate"))
    }

    /// The next step that wants to begin, if ever.
    pub async fn next(&self) -> Held {
        let (mut stream, _) = self.0.accept().await.expect("a step");
        let mut step = String::new();
        stream.read_to_string(&mut step).await.expect("its name");
        Held { step, _stream: stream }
    }

    /// The next step, which must come.
    pub async fn held(&self) -> Held {
        patiently(self.next()).await
    }

    /// Lets the steps of a call begin until the `n`-th, which is held while the caller leaves; the call's answer where
    /// it has fewer.
    pub async fn hold<T>(&self, n: usize, call: impl Future<Output = T>) -> Result<Held, T> {
        let mut call = pin!(call);
        let mut seen = 0;
        patiently(async {
            loop {
                tokio::select! {
                    answer = &mut call => return Err(answer),
                    held = self.next() => {
                        seen += 1;
                        if seen == n {
                            return Ok(held);
                        }
                    }
                }
            }
        })
        .await
    }

    /// Runs a call, letting all steps begin, also those of others.
    pub async fn pass<T>(&self, call: impl Future<Output = T>) -> T {
        let Err(answer) = self.hold(usize::MAX, call).await else { unreachable!("none is held") };
        answer
    }

    /// As `pass`, but some steps take some milliseconds more, so that deadlines end in all of them.
    pub async fn pass_slowly<T>(&self, calls: impl Future<Output = T>) -> T {
        let mut calls = pin!(calls);
        let mut seen = 0;
        loop {
            tokio::select! {
                answer = &mut calls => return answer,
                held = self.next() => {
                    seen += 1;
                    let longer = Duration::from_millis(if seen % 3 == 0 { seen % 8 } else { 0 });
                    tokio::spawn(async move {
                        tokio::time::sleep(longer).await;
                        drop(held);
                    });
                }
            }
        }
    }

    /// Runs a call that must not come to any step.
    pub async fn without_steps<T>(&self, call: impl Future<Output = T>) -> T {
        match self.hold(1, call).await {
            Ok(held) => panic!("a second operation works, at {:?}", held.step),
            Err(answer) => answer,
        }
    }
}

async fn patiently<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, work).await.expect("it is stuck")
}

//! The end of a program in two phases: *begun* (finish what is in flight) and *forced* (leave now).

use tokio_util::sync::CancellationToken;

/// Where a program stands on its way out. Clones share the state; phases only go forward.
#[derive(Clone, Debug, Default)]
pub struct Shutdown {
    begun: CancellationToken,
    forced: CancellationToken,
}

impl Shutdown {
    /// Neither phase is reached.
    pub fn new() -> Self {
        Self::default()
    }

    /// Asks everyone to finish what is in flight and to start nothing new.
    pub fn begin(&self) {
        self.begun.cancel();
    }

    /// Asks everyone to leave at once; it implies [`begin`](Self::begin).
    pub fn force(&self) {
        self.begun.cancel();
        self.forced.cancel();
    }

    /// Waits for the first phase.
    ///
    /// # Cancel safety
    /// Safe: it only looks, and a new call sees a phase that is already reached.
    pub async fn begun(&self) {
        self.begun.cancelled().await;
    }

    /// Waits for the second phase.
    ///
    /// # Cancel safety
    /// Safe, as [`begun`](Self::begun).
    pub async fn forced(&self) {
        self.forced.cancelled().await;
    }

    /// Whether the first phase is reached.
    pub fn is_begun(&self) -> bool {
        self.begun.is_cancelled()
    }

    /// The first phase as a token, for code that wants one or derives children from it.
    pub fn token(&self) -> CancellationToken {
        self.begun.clone()
    }
}

/// Turns signals into phases: the first SIGTERM or SIGINT begins, the second forces. From this call on signals no longer
/// kill the process; the future runs until forced.
///
/// When the operating system refuses a signal handler, an error line says so and the signals keep their usual effect.
pub(crate) fn on_signals(shutdown: Shutdown) -> impl Future<Output = ()> + Send + use<> {
    let signals = Signals::new();
    async move {
        match signals {
            Ok(signals) => obey(signals, shutdown).await,
            Err(error) => {
                tracing::error!("cannot listen for signals, so they end the program at once: {error}");
                shutdown.forced().await;
            }
        }
    }
}

async fn obey(mut signals: Signals, shutdown: Shutdown) {
    loop {
        let signal = tokio::select! {
            signal = signals.next() => signal,
            () = shutdown.forced() => return,
        };
        if shutdown.is_begun() {
            tracing::warn!("{signal}: leaving at once");
            shutdown.force();
        } else {
            tracing::info!("{signal}: finishing what is in flight; once more to leave at once");
            shutdown.begin();
        }
    }
}

#[cfg(unix)]
struct Signals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

#[cfg(unix)]
impl Signals {
    fn new() -> std::io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

#[cfg(not(unix))]
struct Signals;

#[cfg(not(unix))]
impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Self)
    }

    async fn next(&mut self) -> &'static str {
        // Without a handler Ctrl-C ends the process by itself, which is all that is left to do then.
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
        "Ctrl-C"
    }
}

#[cfg(test)]
mod tests {
    use super::Shutdown;

    #[tokio::test]
    async fn force_implies_begin() {
        let shutdown = Shutdown::new();
        assert!(!shutdown.is_begun() && !shutdown.forced.is_cancelled());
        shutdown.clone().force();
        assert!(shutdown.is_begun() && shutdown.forced.is_cancelled());
        shutdown.begun().await;
        shutdown.forced().await;
    }

    #[tokio::test]
    async fn begin_does_not_force() {
        let shutdown = Shutdown::new();
        shutdown.begin();
        shutdown.begin();
        shutdown.begun().await;
        assert!(shutdown.token().is_cancelled());
        assert!(!shutdown.forced.is_cancelled());
    }
}

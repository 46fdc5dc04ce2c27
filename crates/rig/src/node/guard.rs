//! Who ends a node that tests have started.

use std::io::{BufRead, BufReader};
use std::mem;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

const SCRIPT: &str = include_str!("guard.sh");

/// A process that has started a node and ends it when this value is dropped, when this process ends, or when the named
/// owner does.
pub(super) struct Guard(Child);

impl Guard {
    /// Starts a node in `dir` and returns once it is ready. With an `owner` (a process id) the node lives as long as
    /// that, else as long as the guard.
    ///
    /// # Errors
    /// The last words of `scripts/broker`.
    pub(super) fn start(broker: &Path, dir: &Path, owner: Option<u32>) -> Result<Guard, String> {
        let owner = owner.map_or_else(String::new, |pid| pid.to_string());
        let mut child = Command::new("bash")
            .args(["-c", SCRIPT, "rig-guard"])
            .args([broker, dir])
            .arg(owner)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .map_err(|error| format!("bash cannot be run: {error}"))?;
        let mut last = String::new();
        if let Some(stdout) = child.stdout.take() {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if line == "ready" {
                    return Ok(Guard(child));
                }
                last = line;
            }
        }
        // It says so and ends.
        let _ = child.wait();
        Err(last)
    }

    /// The node outlives this value: it ends with its owner, or with this process, whose end closes the pipe.
    pub(super) fn leave(self) {
        mem::forget(self);
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        // So that a machine carries as many nodes as there are tests that hold one.
        let _ = self.0.wait();
    }
}

//! The built binaries as processes, their lines awaited.

use std::env;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::tokens::SECRET;
use crate::vhost::Vhost;
use crate::wait::{PATIENCE, within};

/// Variables of the user's that would change what a program does.
const PREFIXES: [&str; 5] = ["AUTH_PROXY_", "PRODUCERS_", "CONSUMERS_", "AMQP_", "JWT_"];

/// A process and all lines it has printed. It is killed when dropped.
pub struct Program {
    child: Child,
    stdout: watch::Receiver<Vec<String>>,
    stderr: watch::Receiver<Vec<String>>,
    readers: JoinSet<()>,
}

impl Program {
    /// Starts one of the repository's binaries. `RUST_LOG` and the programs' own variables come from `environment`
    /// alone.
    ///
    /// # Panics
    /// It has not been built.
    pub fn start(name: &str, arguments: &[&str], environment: &[(&str, &str)]) -> Program {
        let mut command = Command::new(binary(name));
        let strange = |key: &str| key == "RUST_LOG" || PREFIXES.iter().any(|prefix| key.starts_with(prefix));
        for (key, _) in env::vars().filter(|(key, _)| strange(key)) {
            command.env_remove(key);
        }
        command.args(arguments).envs(environment.iter().copied());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{name} cannot be run: {error}"));
        let mut readers = JoinSet::new();
        let stdout = lines(&mut readers, child.stdout.take().expect("stdout is a pipe"));
        let stderr = lines(&mut readers, child.stderr.take().expect("stderr is a pipe"));
        Program { child, stdout, stderr, readers }
    }

    /// `producers` at this vhost.
    pub fn producers(vhost: &Vhost, arguments: &[&str]) -> Program {
        let url = vhost.amqp_url("producer");
        Program::start("producers", arguments, &[("AMQP_URL", &url)])
    }

    /// `consumers` at this proxy, with tokens that it accepts.
    pub fn consumers(proxy: SocketAddr, arguments: &[&str]) -> Program {
        let url = format!("ws://{proxy}");
        Program::start("consumers", arguments, &[("CONSUMERS_URL", &url), ("JWT_SECRET", SECRET)])
    }

    /// What it has printed to stdout.
    pub fn stdout(&self) -> Vec<String> {
        self.stdout.borrow().clone()
    }

    /// What it has printed to stderr.
    pub fn stderr(&self) -> Vec<String> {
        self.stderr.borrow().clone()
    }

    /// The first line of stdout that holds `text`, printed already or not yet.
    ///
    /// # Panics
    /// There is none within `deadline`, or stdout ends without it.
    pub async fn wait_for_line(&mut self, text: &str, deadline: Duration) -> String {
        self.wait_for_lines(text, 1, deadline).await.swap_remove(0)
    }

    /// The lines of stdout that hold `text`, once there are `count` of them.
    ///
    /// # Panics
    /// As [`wait_for_line`](Self::wait_for_line).
    pub async fn wait_for_lines(&mut self, text: &str, count: usize, deadline: Duration) -> Vec<String> {
        let matching = |lines: &[String]| lines.iter().filter(|line| line.contains(text)).cloned().collect::<Vec<_>>();
        let mut stdout = self.stdout.clone();
        let enough = stdout.wait_for(|lines| matching(lines).len() >= count);
        let found = tokio::time::timeout(deadline, enough).await;
        match found {
            Ok(Ok(lines)) => matching(&lines),
            missing => {
                let why = if missing.is_ok() { "the program has ended" } else { "the deadline is over" };
                drop(missing);
                panic!(
                    "{why}, and {count} lines with {text:?} are not there; stdout: {:#?}; stderr: {:#?}",
                    self.stdout(),
                    self.stderr()
                )
            }
        }
    }

    /// Sends a signal.
    ///
    /// # Panics
    /// The process has ended.
    pub fn signal(&self, signal: Signal) {
        let id = self.child.id().and_then(|id| i32::try_from(id).ok()).expect("the process runs");
        kill(Pid::from_raw(id), signal).expect("the process runs");
    }

    /// Waits for its end and the end of its output.
    ///
    /// # Panics
    /// It is not over within `deadline`.
    pub async fn wait(&mut self, deadline: Duration) -> ExitStatus {
        let ended = tokio::time::timeout(deadline, self.child.wait()).await;
        let status = ended.unwrap_or_else(|_| {
            panic!("not ended within {deadline:?}; stdout: {:#?}; stderr: {:#?}", self.stdout(), self.stderr())
        });
        let status = status.expect("the process can be waited for");
        let drained = async { while self.readers.join_next().await.is_some() {} };
        within(PATIENCE, "the end of its output", drained).await;
        status
    }

    /// Its resident memory in KiB.
    ///
    /// # Panics
    /// The process has ended.
    pub fn resident_kib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).expect("the process runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("Linux says VmRSS");
        line.trim().trim_end_matches("kB").trim().parse().expect("a number of kB")
    }

    /// The process id.
    ///
    /// # Panics
    /// The process has ended.
    pub fn pid(&self) -> u32 {
        self.child.id().expect("the process runs")
    }
}

/// `auth-proxy` as a process, listening.
pub struct ProxyProcess {
    program: Program,
    address: SocketAddr,
}

impl ProxyProcess {
    /// Starts it at this vhost, on a free port, and waits until it listens.
    ///
    /// # Panics
    /// It does not come up.
    pub async fn start(vhost: &Vhost, arguments: &[&str], environment: &[(&str, &str)]) -> ProxyProcess {
        let url = vhost.amqp_url("auth-proxy");
        let mut variables =
            vec![("AMQP_URL", url.as_str()), ("AUTH_PROXY_LISTEN", "127.0.0.1:0"), ("JWT_SECRET", SECRET)];
        variables.extend_from_slice(environment);
        let mut program = Program::start("auth-proxy", arguments, &variables);
        let line = program.wait_for_line("listening on ", PATIENCE).await;
        let address = line.split("listening on ").nth(1).and_then(|text| text.trim().parse().ok());
        let address = address.unwrap_or_else(|| panic!("no address in {line:?}"));
        ProxyProcess { program, address }
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.address
    }

    /// The process.
    pub fn program(&mut self) -> &mut Program {
        &mut self.program
    }
}

fn lines(readers: &mut JoinSet<()>, stream: impl AsyncRead + Send + Unpin + 'static) -> watch::Receiver<Vec<String>> {
    let (sender, receiver) = watch::channel(Vec::new());
    readers.spawn(async move {
        let mut lines = BufReader::new(stream).split(b'\n');
        while let Ok(Some(line)) = lines.next_segment().await {
            sender.send_modify(|all| all.push(String::from_utf8_lossy(&line).into_owned()));
        }
    });
    receiver
}

/// Tests lie in `target/<profile>/deps`, binaries one directory above.
fn binary(name: &str) -> PathBuf {
    let test = env::current_exe().expect("the test knows its own path");
    let path = test.parent().and_then(|deps| deps.parent()).expect("the test lies in the target directory").join(name);
    assert!(path.exists(), "{} is not built: run `cargo build --bins` first, or scripts/test", path.display());
    path
}

//! A RabbitMQ node: the one that tests share, or one of a test's own.

mod console;
mod guard;

use std::collections::HashMap;
use std::os::unix::process::parent_id;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::{env, fs};

use tokio::process::Command;
use tokio::sync::OnceCell;
use tokio::task::spawn_blocking;

use console::Console;
use guard::Guard;

/// A running node. Clones share it; a [private](Node::private) one ends with the last clone.
#[derive(Clone)]
pub struct Node(Arc<Inner>);

struct Inner {
    dir: PathBuf,
    facts: HashMap<String, String>,
    console: Arc<Mutex<Option<Console>>>,
    /// Ends a private node. Of a shared one somebody else is the owner.
    guard: Option<Guard>,
}

/// Of this process. Under nextest each test is a process, and they meet at the directory.
static SHARED: OnceCell<Node> = OnceCell::const_new();

impl Node {
    /// The node for all tests that take a vhost and hurt nobody else.
    ///
    /// It is the one in `RIG_BROKER_DIR`, which `scripts/test` starts and stops. Without that variable it is started
    /// here, once, and lives as long as what runs the tests: this process, or the runner when every test is a process
    /// (nextest).
    ///
    /// # Panics
    /// There is no broker to be had; the message says how to get one.
    pub async fn shared() -> Node {
        SHARED.get_or_init(find_or_start).await.clone()
    }

    /// A node of the test's own: to be killed and restarted, for alarms and changed users. It takes some 5 s to start
    /// and ends with its last handle, also when the test panics or is killed.
    ///
    /// # Panics
    /// As [`shared`](Self::shared).
    pub async fn private() -> Node {
        let dir = tempfile::Builder::new().prefix("push-gateway-rig-").tempdir().expect("a temporary directory").keep();
        let guard = started(dir.clone(), None).await;
        Node::in_directory(dir, Some(guard))
    }

    fn in_directory(dir: PathBuf, guard: Option<Guard>) -> Node {
        let file = dir.join("env");
        let text = fs::read_to_string(&file).unwrap_or_else(|error| {
            panic!(
                "no broker: {} cannot be read ({error}); run the tests by scripts/test, or unset RIG_BROKER_DIR",
                file.display()
            )
        });
        let facts = text.lines().filter_map(|line| line.split_once('=')).map(|(k, v)| (k.to_owned(), v.to_owned()));
        Node(Arc::new(Inner { dir, facts: facts.collect(), console: Arc::default(), guard }))
    }

    fn fact(&self, name: &str) -> &str {
        self.0.facts.get(name).unwrap_or_else(|| panic!("{} has no line {name}=", self.0.dir.join("env").display()))
    }

    /// Where it listens for AMQP, on 127.0.0.1; the same after a restart.
    pub fn amqp_port(&self) -> u16 {
        self.fact("amqp_port").parse().expect("amqp_port is a port")
    }

    /// Where its management API listens, on 127.0.0.1; the same after a restart.
    pub fn management_port(&self) -> u16 {
        self.fact("management_port").parse().expect("management_port is a port")
    }

    /// Its Erlang name.
    pub fn name(&self) -> &str {
        self.fact("node")
    }

    /// Where its data and its log lie.
    pub fn dir(&self) -> &Path {
        &self.0.dir
    }

    /// As a power cut. Its data stay.
    ///
    /// # Panics
    /// It is not [private](Self::private).
    pub async fn kill(&self) {
        self.own("kill").await;
    }

    /// An orderly stop. Its data stay.
    ///
    /// # Panics
    /// It is not [private](Self::private).
    pub async fn stop(&self) {
        self.own("stop").await;
    }

    /// Again after [`kill`](Self::kill) or [`stop`](Self::stop), with its data and its ports; returns when it is ready.
    ///
    /// # Panics
    /// It is not [private](Self::private), or does not start.
    pub async fn start(&self) {
        self.own("start").await;
    }

    /// Runs `rabbitmqctl` with these arguments and returns what it prints. It takes 1 to 2 s; [`eval`](Self::eval) does
    /// most things in a few ms.
    ///
    /// # Panics
    /// It fails.
    pub async fn ctl(&self, arguments: &[&str]) -> String {
        let mut words = vec!["ctl", "--dir", self.dir_text(), "--", "-q"];
        words.extend_from_slice(arguments);
        broker_script(&words).await
    }

    /// Evaluates Erlang expressions on the node and returns the last one's value: a binary as text, else as Erlang writes
    /// it. One line, ending in a full stop.
    ///
    /// # Panics
    /// The expression fails, or the node is down.
    pub async fn eval(&self, expressions: &str) -> String {
        self.try_eval(expressions).await.unwrap_or_else(|error| panic!("{expressions} on {}: {error}", self.name()))
    }

    /// As [`eval`](Self::eval), for a node that may be down.
    ///
    /// # Errors
    /// What Erlang says.
    pub async fn try_eval(&self, expressions: &str) -> Result<String, String> {
        if self.fact("kind") == "container" {
            // No way in but through the engine.
            let printed = self.ctl(&["eval", expressions]).await;
            let printed = printed.trim();
            let binary = printed.strip_prefix("<<\"").and_then(|rest| rest.strip_suffix("\">>"));
            return Ok(binary.map_or_else(|| printed.to_owned(), |text| text.replace("\\\"", "\"")));
        }
        let (inner, line) = (self.clone(), expressions.replace('\n', " "));
        let asked = spawn_blocking(move || {
            let mut console = inner.0.console.lock().unwrap_or_else(PoisonError::into_inner);
            console.get_or_insert_with(|| Console::open(&inner)).ask(&line)
        });
        asked.await.expect("the console of the broker")
    }

    fn dir_text(&self) -> &str {
        self.0.dir.to_str().expect("the node's directory has a name in UTF-8")
    }

    async fn own(&self, command: &str) {
        assert!(self.0.guard.is_some(), "{command} would hurt other tests: take Node::private()");
        broker_script(&[command, "--dir", self.dir_text()]).await;
    }
}

async fn find_or_start() -> Node {
    if let Some(dir) = env::var_os("RIG_BROKER_DIR").filter(|dir| !dir.is_empty()) {
        return Node::in_directory(dir.into(), None);
    }
    if env::var_os("NEXTEST").is_some() {
        return beside(parent_id()).await;
    }
    let dir = tempfile::Builder::new().prefix("push-gateway-rig-").tempdir().expect("a temporary directory").keep();
    let guard = started(dir.clone(), None).await;
    // A node that tests share is nobody's to kill, so the handle has no guard.
    guard.leave();
    Node::in_directory(dir, None)
}

/// One node for all processes of a runner: the first that comes starts it while the others wait for the lock.
async fn beside(runner: u32) -> Node {
    let dir = env::temp_dir().join(format!("push-gateway-rig-{runner}"));
    let lock = fs::File::create(dir.with_extension("lock")).expect("a lock file in the temporary directory");
    let lock = spawn_blocking(move || lock.lock().map(|()| lock)).await.expect("no panic").expect("a lock");
    if !dir.join("env").exists() {
        fs::create_dir_all(&dir).expect("a temporary directory");
        started(dir.clone(), Some(runner)).await.leave();
    }
    drop(lock);
    Node::in_directory(dir, None)
}

async fn started(dir: PathBuf, owner: Option<u32>) -> Guard {
    let (script, place) = (script(), dir.clone());
    let started = spawn_blocking(move || Guard::start(&script, &place, owner)).await.expect("no panic");
    started.unwrap_or_else(|said| {
        // With a log in it, it stays.
        let _ = fs::remove_dir(&dir);
        panic!("no broker: {said}")
    })
}

fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/broker")
}

async fn broker_script(arguments: &[&str]) -> String {
    let output = Command::new(script()).args(arguments).output().await.expect("scripts/broker runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "scripts/broker {}: {said}", arguments.join(" "));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

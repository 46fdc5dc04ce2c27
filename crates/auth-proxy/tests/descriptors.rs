//! The accept loop when the process runs out of descriptors. A test binary of its own, since the limit is the process's.

use std::time::Duration;

use auth_proxy::accept::{Accepted, Limits, Lobby, accept_loop, bind};
use auth_proxy::metrics::Upgrades;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use service::shutdown::Shutdown;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;

const LONG: Duration = Duration::from_secs(30);
const CLIENTS: usize = 4;

#[tokio::test]
async fn connections_wait_for_descriptors_and_are_then_served() {
    let listener = bind("127.0.0.1:0".parse().expect("an address")).expect("a port");
    let address = listener.local_addr().expect("an address");
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(TcpStream::connect(address).await.expect("queued by the kernel"));
    }

    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("a limit");
    setrlimit(Resource::RLIMIT_NOFILE, 1, hard).expect("lowered");
    let shutdown = Shutdown::new();
    let (sender, mut accepted) = mpsc::channel::<Accepted>(CLIENTS);
    let limits = Limits { max_heads: CLIENTS, close_timeout: LONG, drain_timeout: LONG };
    let mut served = JoinSet::new();
    let lobby = Lobby::new(&limits, Upgrades::default());
    served.spawn(accept_loop(listener, limits, lobby, shutdown.clone(), move |accepted| {
        sender.try_send(accepted).expect("room");
        std::future::ready(())
    }));
    let early = timeout(Duration::from_millis(300), accepted.recv()).await;
    assert!(early.is_err(), "accepted without a descriptor");

    setrlimit(Resource::RLIMIT_NOFILE, soft, hard).expect("raised");
    let mut held = Vec::new();
    for _ in 0..CLIENTS {
        held.push(timeout(LONG, accepted.recv()).await.expect("in time").expect("a connection"));
    }
    shutdown.begin();
    let served = timeout(LONG, served.join_next()).await.expect("in time").expect("one task").expect("no panic");
    assert_eq!((served.accepted, served.panicked, served.cut_off), (4, 0, 0));
}

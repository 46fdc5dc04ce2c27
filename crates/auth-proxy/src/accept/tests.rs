use std::future::{Future, pending};
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use service::shutdown::Shutdown;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::{Accepted, Limits, Lobby, SEND_BUFFER_BYTES, Served, accept_loop, bind};
use crate::metrics::Upgrades;
use crate::refusal::Refusal;

/// Long enough for any machine; only a failing test waits for it.
const LONG: Duration = Duration::from_secs(30);

const LIMITS: Limits = Limits { max_heads: 100, close_timeout: LONG, drain_timeout: LONG };

/// A running accept loop.
struct Running {
    address: SocketAddr,
    shutdown: Shutdown,
    upgrades: Upgrades,
    served: JoinSet<Served>,
}

impl Running {
    fn start<H, F>(limits: Limits, handler: H) -> Self
    where
        H: Fn(Accepted) -> F + Send + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        let listener = bind("127.0.0.1:0".parse().expect("an address")).expect("a port");
        let address = listener.local_addr().expect("an address");
        let shutdown = Shutdown::new();
        let mut served = JoinSet::new();
        let upgrades = Upgrades::default();
        let lobby = Lobby::new(&limits, upgrades.clone());
        served.spawn(accept_loop(listener, limits, lobby, shutdown.clone(), handler));
        Running { address, shutdown, upgrades, served }
    }

    async fn connect(&self) -> TcpStream {
        timeout(LONG, TcpStream::connect(self.address)).await.expect("in time").expect("connected")
    }

    async fn end(mut self) -> Served {
        timeout(LONG, self.served.join_next()).await.expect("in time").expect("one task").expect("no panic")
    }
}

/// A handler that hands its connection to the test.
fn handing_over() -> (impl Fn(Accepted) -> std::future::Ready<()> + Send, mpsc::Receiver<Accepted>) {
    let (sender, receiver) = mpsc::channel(100);
    let handler = move |accepted| {
        sender.try_send(accepted).expect("room, and a test that listens");
        std::future::ready(())
    };
    (handler, receiver)
}

async fn next(accepted: &mut mpsc::Receiver<Accepted>) -> Accepted {
    timeout(LONG, accepted.recv()).await.expect("in time").expect("a connection")
}

async fn read_to_end(mut stream: TcpStream) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    timeout(LONG, stream.read_to_end(&mut bytes)).await.expect("in time")?;
    Ok(bytes)
}

#[tokio::test]
async fn connections_have_no_delay_and_a_fixed_send_buffer() {
    let (handler, mut accepted) = handing_over();
    let running = Running::start(LIMITS, handler);
    let client = running.connect().await;
    let Accepted { stream, peer, .. } = next(&mut accepted).await;
    assert_eq!(peer, client.local_addr().unwrap());
    assert!(stream.nodelay().unwrap());
    let bytes = TcpSocket::from_std_stream(stream.into_std().unwrap()).send_buffer_size().unwrap();
    let expected = if cfg!(target_os = "linux") { 2 * SEND_BUFFER_BYTES } else { SEND_BUFFER_BYTES };
    assert_eq!(bytes, expected);
}

#[tokio::test]
async fn a_burst_is_accepted_whole() {
    let (handler, mut accepted) = handing_over();
    let running = Running::start(LIMITS, handler);
    let mut clients = Vec::new();
    for _ in 0..100 {
        clients.push(running.connect().await);
    }
    let mut held = Vec::new();
    for _ in &clients {
        held.push(next(&mut accepted).await);
    }
    running.shutdown.begin();
    assert_eq!(running.end().await, Served { accepted: 100, ..Served::default() });
}

#[tokio::test]
async fn too_many_heads_are_answered_and_the_others_go_on() {
    let (handler, mut accepted) = handing_over();
    let running = Running::start(Limits { max_heads: 1, ..LIMITS }, handler);
    let _first = running.connect().await;
    let Accepted { head_slot, .. } = next(&mut accepted).await;

    // It has sent its request already, which must not cost it the answer.
    let mut second = running.connect().await;
    second.write_all(b"GET / HTTP/1.1\r\nHost: h\r\n\r\n").await.unwrap();
    assert_eq!(read_to_end(second).await.unwrap(), Refusal::TooManyUpgrades.answer_to(None));

    drop(head_slot);
    let _third = running.connect().await;
    next(&mut accepted).await;
    running.shutdown.begin();
    assert_eq!(running.upgrades.refusals(Refusal::TooManyUpgrades), 1);
    assert_eq!(running.end().await, Served { accepted: 2, ..Served::default() });
}

#[tokio::test]
async fn a_flood_beyond_the_answers_is_cut_off() {
    let running = Running::start(Limits { max_heads: 1, ..LIMITS }, |accepted| async move {
        let _held = accepted;
        pending::<()>().await;
    });
    let _first = running.connect().await;
    let mut waiting = running.connect().await;
    // Its answer is written, and the task waits for it to close.
    waiting.read_exact(&mut [0]).await.unwrap();
    // The answer fits the empty send buffer, and nothing was sent that would cause a reset.
    let third = running.connect().await;
    assert_eq!(read_to_end(third).await.unwrap(), Refusal::TooManyUpgrades.answer_to(None));
    running.shutdown.force();
    assert_eq!(running.upgrades.refusals(Refusal::TooManyUpgrades), 2);
    assert_eq!(running.end().await, Served { accepted: 1, cut_off: 2, ..Served::default() });
}

#[tokio::test]
async fn a_panic_ends_its_own_connection_alone() {
    let (sender, mut asked) = mpsc::channel(1);
    let running = Running::start(LIMITS, move |mut accepted: Accepted| {
        let sender = sender.clone();
        async move {
            match accepted.stream.read_u8().await {
                Ok(b'p') => panic!("as the test wants it"),
                _ => sender.send(accepted).await.expect("a test that listens"),
            }
        }
    });
    let mut first = running.connect().await;
    let mut second = running.connect().await;
    first.write_all(b"p").await.unwrap();
    assert_eq!(read_to_end(first).await.unwrap(), b"");
    second.write_all(b"x").await.unwrap();
    next(&mut asked).await;
    running.shutdown.begin();
    assert_eq!(running.end().await, Served { accepted: 2, panicked: 1, ..Served::default() });
}

#[tokio::test]
async fn while_draining_new_connections_are_answered_until_the_last_handler_is_done() {
    let (sender, mut running_handlers) = mpsc::channel(1);
    let running = Running::start(LIMITS, move |mut accepted: Accepted| {
        let sender = sender.clone();
        async move {
            sender.send(()).await.expect("a test that listens");
            assert_eq!(accepted.stream.read_u8().await.expect("a byte"), b'q');
        }
    });
    let mut session = running.connect().await;
    timeout(LONG, running_handlers.recv()).await.expect("in time").expect("a handler runs");
    running.shutdown.begin();
    for _ in 0..3 {
        assert_eq!(read_to_end(running.connect().await).await.unwrap(), Refusal::Draining.answer_to(None));
    }
    session.write_all(b"q").await.unwrap();
    assert_eq!(running.upgrades.refusals(Refusal::Draining), 3);
    assert_eq!(running.end().await, Served { accepted: 1, ..Served::default() });
}

#[tokio::test]
async fn the_drain_deadline_cuts_off_who_does_not_end() {
    let limits = Limits { drain_timeout: Duration::from_millis(50), ..LIMITS };
    let (sender, mut running_handlers) = mpsc::channel(1);
    let running = Running::start(limits, move |accepted| {
        let sender = sender.clone();
        async move {
            let _held = accepted;
            sender.send(()).await.expect("a test that listens");
            pending::<()>().await;
        }
    });
    let client = running.connect().await;
    timeout(LONG, running_handlers.recv()).await.expect("in time").expect("a handler runs");
    running.shutdown.begin();
    assert_eq!(running.end().await, Served { accepted: 1, cut_off: 1, ..Served::default() });
    assert_eq!(read_to_end(client).await.unwrap(), b"");
}

//! A TCP relay between two programs, and everything that goes wrong on a network.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;

/// Small, so that little hides in the relay when one side does not read. The kernel takes twice that.
const BUFFER_BYTES: u32 = 16 * 1024;

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From whoever connected to the relay.
    ToTarget,
    /// From the target of the relay.
    ToClient,
}

/// What happens to bytes on their way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// They arrive.
    Pass,
    /// They wait, and so does the end of the connection; the sender finds its window closed after a while.
    Stall,
    /// They vanish, and so does the end of the connection: the other side is left half open.
    Swallow,
}

/// How connections are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// A reset to both sides.
    Reset,
    /// A regular end to both sides.
    Fin,
}

#[derive(Clone, Copy)]
struct State {
    to_target: Mode,
    to_client: Mode,
    pace: Option<(usize, Duration)>,
    cuts: u64,
    cut: Cut,
    refuses: bool,
}

impl State {
    fn mode(&self, direction: Direction) -> Mode {
        match direction {
            Direction::ToTarget => self.to_target,
            Direction::ToClient => self.to_client,
        }
    }
}

#[derive(Default)]
struct Counts {
    to_target: AtomicU64,
    to_client: AtomicU64,
    connections: AtomicU64,
}

impl Counts {
    fn of(&self, direction: Direction) -> &AtomicU64 {
        match direction {
            Direction::ToTarget => &self.to_target,
            Direction::ToClient => &self.to_client,
        }
    }
}

/// Listens on a free port and passes on to a target, as told. All its connections end when it is dropped.
pub struct Relay {
    address: SocketAddr,
    state: watch::Sender<State>,
    counts: Arc<Counts>,
    _tasks: JoinSet<()>,
}

impl Relay {
    /// Starts one that passes everything.
    pub async fn start(target: SocketAddr) -> Relay {
        let socket = TcpSocket::new_v4().expect("a socket");
        // Accepted sockets inherit it.
        socket.set_recv_buffer_size(BUFFER_BYTES).expect("a socket takes SO_RCVBUF");
        socket.bind((Ipv4Addr::LOCALHOST, 0).into()).expect("a free port");
        let listener = socket.listen(1024).expect("a bound socket listens");
        let address = listener.local_addr().expect("a bound socket has an address");
        let (to_target, to_client) = (Mode::Pass, Mode::Pass);
        let (state, receiver) =
            watch::channel(State { to_target, to_client, pace: None, cuts: 0, cut: Cut::Fin, refuses: false });
        let counts = Arc::new(Counts::default());
        let mut tasks = JoinSet::new();
        tasks.spawn(accept(listener, target, receiver, Arc::clone(&counts)));
        Relay { address, state, counts, _tasks: tasks }
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.address
    }

    /// What happens to bytes in one direction from now on, also on connections that are open.
    pub fn set(&self, direction: Direction, mode: Mode) {
        self.state.send_modify(|state| match direction {
            Direction::ToTarget => state.to_target = mode,
            Direction::ToClient => state.to_client = mode,
        });
    }

    /// As [`set`](Self::set), for both directions.
    pub fn set_both(&self, mode: Mode) {
        self.set(Direction::ToTarget, mode);
        self.set(Direction::ToClient, mode);
    }

    /// From now on bytes go in chunks of at most `bytes`, each after a pause: `(1024, 50 ms)` is 20 KiB/s.
    pub fn pace(&self, bytes: usize, pause: Duration) {
        self.state.send_modify(|state| state.pace = Some((bytes, pause)));
    }

    /// As fast as it goes, again.
    pub fn full_speed(&self) {
        self.state.send_modify(|state| state.pace = None);
    }

    /// Ends all connections that are open; new ones pass.
    pub fn cut(&self, cut: Cut) {
        self.state.send_modify(|state| {
            state.cuts += 1;
            state.cut = cut;
        });
    }

    /// Whether new connections are reset at once; open ones stay.
    pub fn refuse(&self, refuses: bool) {
        self.state.send_modify(|state| state.refuses = refuses);
    }

    /// Bytes that have arrived.
    pub fn bytes(&self, direction: Direction) -> u64 {
        self.counts.of(direction).load(Ordering::Relaxed)
    }

    /// Connections that reached the target so far.
    pub fn connections(&self) -> u64 {
        self.counts.connections.load(Ordering::Relaxed)
    }
}

async fn accept(listener: TcpListener, target: SocketAddr, state: watch::Receiver<State>, counts: Arc<Counts>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let Ok((client, _)) = accepted else { continue };
                if state.borrow().refuses {
                    let _ = client.set_zero_linger();
                    continue;
                }
                connections.spawn(relay(client, target, state.clone(), Arc::clone(&counts)));
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn relay(mut client: TcpStream, target: SocketAddr, state: watch::Receiver<State>, counts: Arc<Counts>) {
    // Before the target knows of the connection, so that no cut is missed that comes after.
    let cuts = state.borrow().cuts;
    let mut cut = state.clone();
    let Ok(mut target) = connect(target).await else {
        let _ = client.set_zero_linger();
        return;
    };
    counts.connections.fetch_add(1, Ordering::Relaxed);
    let _ = (client.set_nodelay(true), target.set_nodelay(true));
    let (from_client, to_client) = client.split();
    let (from_target, to_target) = target.split();
    let pumps = async {
        tokio::try_join!(
            pump(from_client, to_target, Direction::ToTarget, state.clone(), &counts),
            pump(from_target, to_client, Direction::ToClient, state.clone(), &counts),
        )
    };
    let regular = tokio::select! {
        ended = pumps => ended.is_ok(),
        how = cut.wait_for(|state| state.cuts != cuts) => how.is_ok_and(|state| state.cut == Cut::Fin),
    };
    if !regular {
        let _ = (client.set_zero_linger(), target.set_zero_linger());
    }
}

async fn connect(target: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = if target.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_recv_buffer_size(BUFFER_BYTES)?;
    socket.connect(target).await
}

/// Until the regular end of one direction, or an error, which ends the connection with a reset.
async fn pump(
    mut from: ReadHalf<'_>,
    mut to: WriteHalf<'_>,
    direction: Direction,
    mut state: watch::Receiver<State>,
    counts: &Counts,
) -> std::io::Result<()> {
    let mut buffer = vec![0; 16 * 1024];
    loop {
        // Nothing is read while it stalls, so that the sender notices.
        moving(&mut state, direction).await;
        let pace = state.borrow().pace;
        let size = pace.map_or(buffer.len(), |(bytes, _)| bytes.clamp(1, buffer.len()));
        let chunk = &mut buffer[..size];
        let read = from.read(chunk).await?;
        if let Some((_, pause)) = pace {
            sleep(pause).await;
        }
        if moving(&mut state, direction).await == Mode::Swallow {
            if read == 0 {
                std::future::pending::<()>().await;
            }
            continue;
        }
        if read == 0 {
            return to.shutdown().await;
        }
        to.write_all(&chunk[..read]).await?;
        counts.of(direction).fetch_add(read as u64, Ordering::Relaxed);
    }
}

/// The mode as soon as it is not [`Mode::Stall`].
async fn moving(state: &mut watch::Receiver<State>, direction: Direction) -> Mode {
    let mode = state.wait_for(|state| state.mode(direction) != Mode::Stall).await.map(|state| state.mode(direction));
    match mode {
        Ok(mode) => mode,
        // The relay is gone, and this task is about to be.
        Err(_) => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;

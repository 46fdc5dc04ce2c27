//! Sessions that read and ack at once, and among them some that never read after their welcome.

use std::net::SocketAddr;

use futures::{StreamExt as _, stream};
use protocol::names::{Address, DEFAULT_CLIENT, DEFAULT_INSTANCE, RoutingKey, consumer_id};
use protocol::v1::ServerFrame;
use rig::{Client, Dial, PATIENCE, Received};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::score::Score;

/// Upgrades in progress at once. Few, so that sessions come to their lanes nearly in order, and the stalled ones lie
/// evenly on them.
const DIALS: usize = 16;
/// The smallest that Linux gives, nearly.
const STALLED_RECEIVE_BUFFER: u32 = 4096;

/// All of them, connected.
pub(crate) struct Clients {
    /// Who reads.
    pub(crate) healthy: Vec<RoutingKey>,
    /// Who does not.
    pub(crate) stalled: Vec<RoutingKey>,
    tasks: JoinSet<String>,
    _open: Vec<TcpStream>,
}

impl Clients {
    /// `count` of them, of which `stalled` are spread evenly over the order in which they connect.
    pub(crate) async fn connect(proxy: SocketAddr, count: u64, stalled: u64, score: &Score) -> Clients {
        let stalls = |index: u64| (index + 1) * stalled / count > index * stalled / count;
        let dial = |index: u64| async move {
            let name = consumer_id(index);
            let dial = Dial::to(proxy).consumer(&name).v1();
            let dial = if stalls(index) { dial.receive_buffer(STALLED_RECEIVE_BUFFER) } else { dial };
            let mut client = dial.connect().await;
            client.welcome().await;
            (RoutingKey::new(&name).expect("a short name"), stalls(index), client)
        };
        let mut connected = Box::pin(stream::iter(0..count).map(dial).buffered(DIALS));
        let (mut healthy, mut still) = (Vec::new(), Vec::new());
        let (mut tasks, mut open) = (JoinSet::new(), Vec::new());
        while let Some((key, stalls, client)) = connected.next().await {
            if stalls {
                still.push(key);
                open.push(client.drop_silently());
            } else {
                tasks.spawn(read(key.as_str().to_owned(), client, score.clone()));
                healthy.push(key);
            }
        }
        Clients { healthy, stalled: still, tasks, _open: open }
    }

    /// That every session of those who read is still the one it was.
    pub(crate) fn check(&mut self) {
        if let Some(ended) = self.tasks.try_join_next() {
            let why = ended.unwrap_or_else(|error| error.to_string());
            assert!(why.is_empty(), "a session that should last has ended: {why}");
        }
    }
}

/// The name of the mailbox of a consumer.
pub(crate) fn mailbox(key: &RoutingKey) -> String {
    let (client, consumer, instance) = (DEFAULT_CLIENT.into(), key.as_str().into(), DEFAULT_INSTANCE.into());
    Address { client, consumer, instance }.queue().expect("a short name").to_string()
}

/// Reads and acks to the end of the session; says what that was.
async fn read(name: String, mut client: Client, score: Score) -> String {
    loop {
        let text = match client.try_receive(PATIENCE).await {
            Some(Received::Text(text)) => text,
            // It is quiet.
            None => continue,
            Some(other) => return format!("{name}: {other:?}"),
        };
        match ServerFrame::parse(&text) {
            Ok(ServerFrame::Message(message)) => {
                let Some(sent_at) = message.sent_at else { return format!("{name}: not from here: {text}") };
                if message.redelivered {
                    return format!("{name}: redelivered: {text}");
                }
                score.arrived(sent_at);
                client.ack(message.seq).await;
            }
            Ok(_) => {}
            Err(error) => return format!("{name}: {error}: {text}"),
        }
    }
}

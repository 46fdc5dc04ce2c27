//! One life of a lane's channel: its number, its ledger, and the one writer of its acks.

use std::{
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use lapin::{
    Channel, Connection,
    options::{BasicAckOptions, BasicNackOptions},
};
use tokio::{
    sync::Notify,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use crate::{
    ledger::{DeliveryTag, Ledger, Outcome, Write},
    lock,
};

/// For the close of a channel; a broker that does not answer forgets it with the connection.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// Numbers the lives of all lanes of this process, so that a tag of an old channel is never taken for one of the new.
static GENERATIONS: AtomicU64 = AtomicU64::new(1);

/// A channel from its opening to its end.
pub(crate) struct Live {
    pub(crate) generation: u64,
    pub(crate) channel: Channel,
    connection: Arc<Connection>,
    pub(crate) dead: CancellationToken,
    ledger: Mutex<Ledger>,
    /// The highest tag that came out of the client library so far.
    seen: AtomicU64,
    settled_tags: AtomicU64,
    flushes: AtomicU64,
    settled: Notify,
    urgent: Notify,
    /// Held while acks are written, so that they reach the broker in the ledger's order.
    writer: tokio::sync::Mutex<Vec<Write>>,
    write_timeout: Duration,
}

impl Live {
    pub(crate) fn new(connection: Arc<Connection>, channel: Channel, write_timeout: Duration) -> Arc<Self> {
        Arc::new(Self {
            generation: GENERATIONS.fetch_add(1, Ordering::Relaxed),
            channel,
            connection,
            dead: CancellationToken::new(),
            ledger: Mutex::default(),
            seen: AtomicU64::new(0),
            settled_tags: AtomicU64::new(0),
            flushes: AtomicU64::new(0),
            settled: Notify::new(),
            urgent: Notify::new(),
            writer: tokio::sync::Mutex::default(),
            write_timeout,
        })
    }

    pub(crate) fn is_alive(&self) -> bool {
        // A connection that breaks says so before its channels do.
        !self.dead.is_cancelled() && self.connection.status().connected() && self.channel.status().connected()
    }

    /// Ends this life. A channel that the broker still holds is closed, so that it requeues what it had out on it.
    pub(crate) async fn end(&self) {
        self.dead.cancel();
        if self.connection.status().connected() && self.channel.status().connected() {
            let _ = timeout(CLOSE_TIMEOUT, self.channel.close(200, "lane ends".into())).await;
        }
    }

    /// Settles tags of this channel; written by the next flush or the one after, at once-ish when `urgent`.
    pub(crate) fn settle(&self, tags: impl IntoIterator<Item = DeliveryTag>, outcome: Outcome, urgent: bool) {
        let mut count = 0;
        {
            let mut ledger = lock(&self.ledger);
            for tag in tags {
                count += 1;
                self.delivered(tag);
                ledger.settle(tag, outcome, urgent);
            }
        }
        self.settled_tags.fetch_add(count, Ordering::Relaxed);
        self.settled.notify_one();
        if urgent || outcome != Outcome::Ack {
            self.urgent.notify_one();
        }
    }

    /// Notes a delivery that came out of the client library.
    pub(crate) fn delivered(&self, tag: DeliveryTag) {
        self.seen.fetch_max(tag, Ordering::Relaxed);
    }

    /// Tags that are not settled. Tags count up from 1 over all subscriptions of the channel, so those below the highest
    /// one that still wait for their subscription are among them.
    pub(crate) fn open_tags(&self) -> u64 {
        self.seen.load(Ordering::Relaxed).saturating_sub(self.settled_tags.load(Ordering::Relaxed))
    }

    /// How often acks were gathered so far: what was settled before a change of it is on its way.
    pub(crate) fn flushes(&self) -> u64 {
        self.flushes.load(Ordering::Relaxed)
    }

    /// Writes acks until the channel is dead: `pause` after the first settlement, or sooner when one is urgent.
    pub(crate) async fn write_acks(&self, pause: Duration) {
        loop {
            self.settled.notified().await;
            tokio::select! {
                () = sleep(pause) => {}
                () = self.urgent.notified() => {}
            }
            self.flush().await;
            if self.dead.is_cancelled() {
                return;
            }
        }
    }

    /// Writes what the ledger has to say; returns when it has left this process, or the channel is dead.
    pub(crate) async fn flush(&self) {
        let mut writes = self.writer.lock().await;
        writes.clear();
        let more = {
            let mut ledger = lock(&self.ledger);
            ledger.flush(&mut writes);
            !ledger.is_idle()
        };
        self.flushes.fetch_add(1, Ordering::Relaxed);
        if more {
            self.settled.notify_one();
        }
        let written = in_order(writes.iter().map(|write| self.write(*write)));
        if !matches!(timeout(self.write_timeout, written).await, Ok(Ok(()))) {
            self.dead.cancel();
        }
    }

    async fn write(&self, write: Write) -> lapin::Result<()> {
        let ack = |tag, multiple| self.channel.basic_ack(tag, BasicAckOptions { multiple });
        match write {
            Write::AckUpTo(tag) => ack(tag, true).await,
            Write::Ack(tag) => ack(tag, false).await,
            Write::Nack { tag, requeue } => {
                self.channel.basic_nack(tag, BasicNackOptions { multiple: false, requeue }).await
            }
        }
    }
}

/// Starts the futures one after the other and then waits for all. The client library puts a frame in its queue when the
/// future is first polled, and resolves it once the frame is written: this keeps the order and pays one wait for all.
async fn in_order<F>(futures: impl Iterator<Item = F>) -> lapin::Result<()>
where
    F: Future<Output = lapin::Result<()>>,
{
    let mut started: Vec<Pin<Box<F>>> = Vec::new();
    for future in futures {
        let mut future = Box::pin(future);
        match futures::poll!(future.as_mut()) {
            std::task::Poll::Ready(done) => done?,
            std::task::Poll::Pending => started.push(future),
        }
    }
    for future in started {
        future.await?;
    }
    Ok(())
}

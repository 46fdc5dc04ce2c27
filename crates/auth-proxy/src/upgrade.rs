//! The way from an accepted connection to an admitted one, and the way out for all others.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use protocol::token::Verifier;
use service::shutdown::Shutdown;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::accept::HeadSlot;
use crate::admission::{self, Admission};
use crate::config::Config;
use crate::head::{RequestHead, read_head};
use crate::refusal::Refusal;

/// What a refused peer may still send before the connection is cut: enough for any head and body that is already under
/// way, too little to be worth an attack.
const DISCARD_BYTES_MAX: u64 = 1024 * 1024;

/// The part of an upgrade before the broker is asked. One for the whole gateway; cheap to clone.
#[derive(Clone, Debug)]
pub struct Door {
    verifier: Arc<Verifier>,
    upgrades: Arc<Semaphore>,
    shutdown: Shutdown,
    head_timeout: Duration,
    close_timeout: Duration,
}

/// A connection that may have its mailbox.
#[derive(Debug)]
pub struct Admitted {
    /// Whose mailbox, and how the 101 will read.
    pub admission: Admission,
    /// What the client sent after its request head.
    pub leftover: BytesMut,
    /// Holds the place among the upgrades in progress; drop it once the 101 or a refusal is written.
    pub slot: UpgradeSlot,
}

/// A place among the upgrades in progress, given back when it is dropped.
#[derive(Debug)]
pub struct UpgradeSlot {
    _permit: OwnedSemaphorePermit,
}

/// A connection that ended at the door. It has had its answer.
#[derive(Debug, PartialEq, Eq)]
pub enum Ended {
    /// Refused with this answer.
    Refused(Refusal),
    /// The peer left before its request was complete.
    Gone,
}

impl Door {
    /// A door that closes when `shutdown` begins.
    pub fn new(config: &Config, shutdown: Shutdown) -> Self {
        Door {
            verifier: Arc::clone(&config.verifier),
            upgrades: Arc::new(Semaphore::new(config.max_upgrades)),
            shutdown,
            head_timeout: config.head_timeout,
            close_timeout: config.close_timeout,
        }
    }

    /// Whether the next upgrade with a valid token would find a place.
    pub(crate) fn has_room(&self) -> bool {
        self.upgrades.available_permits() > 0
    }

    /// Reads the request head and checks it. Whoever is not admitted is answered here, in full.
    ///
    /// The slot of the head is given back as soon as the head is read; from then on the place among the upgrades counts,
    /// which a connection without a valid token never takes.
    ///
    /// # Errors
    /// The connection has ended: [`Ended`].
    ///
    /// # Cancel safety
    /// Not cancel safe: drop the stream too.
    pub async fn admit<S>(&self, stream: &mut S, head_slot: HeadSlot) -> Result<Admitted, Ended>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let (head, leftover) = match self.head(stream).await {
            Ok(read) => read,
            Err(None) => return Err(Ended::Gone),
            Err(Some(refusal)) => {
                drop(head_slot);
                self.refuse(stream, refusal, None).await;
                return Err(Ended::Refused(refusal));
            }
        };
        drop(head_slot);
        match self.check(&head) {
            Ok((admission, slot)) => Ok(Admitted { admission, leftover, slot }),
            Err(refusal) => {
                self.refuse(stream, refusal, Some(&head.method)).await;
                Err(Ended::Refused(refusal))
            }
        }
    }

    /// Answers an admitted upgrade that the broker's part failed, and ends the connection.
    pub async fn turn_away<S>(&self, stream: &mut S, refusal: Refusal)
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        self.refuse(stream, refusal, Some("GET")).await;
    }

    /// The request head, within its deadline and before a shutdown; else the answer, if there is one to give.
    async fn head<S>(&self, stream: &mut S) -> Result<(RequestHead, BytesMut), Option<Refusal>>
    where
        S: AsyncRead + Unpin,
    {
        let read = timeout(self.head_timeout, read_head(stream));
        let outcome = tokio::select! {
            outcome = read => outcome,
            () = self.shutdown.begun() => return Err(Some(Refusal::Draining)),
        };
        match outcome {
            Ok(Ok(read)) => Ok(read),
            Ok(Err(error)) => {
                tracing::debug!("no upgrade: {error}");
                Err(error.refusal())
            }
            Err(_elapsed) => Err(Some(Refusal::HeadTimeout)),
        }
    }

    fn check(&self, head: &RequestHead) -> Result<(Admission, UpgradeSlot), Refusal> {
        let admission = admission::admit(head, &self.verifier).map_err(|error| {
            tracing::debug!("no upgrade: {error}");
            error.refusal
        })?;
        if self.shutdown.is_begun() {
            return Err(Refusal::Draining);
        }
        let permit = Arc::clone(&self.upgrades).try_acquire_owned().map_err(|_| Refusal::TooManyUpgrades)?;
        Ok((admission, UpgradeSlot { _permit: permit }))
    }

    async fn refuse<S>(&self, stream: &mut S, refusal: Refusal, method: Option<&str>)
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        farewell(stream, &refusal.answer_to(method), refusal, self.close_timeout).await;
    }
}

/// Writes an answer whole and lets the peer read it, all within a deadline.
///
/// A socket that is closed while input waits in it sends a reset, and a reset makes the peer's system throw the answer
/// away unread. So the write side is closed first, and what still comes is read and forgotten until the peer closes too.
pub(crate) async fn farewell<S>(stream: &mut S, answer: &[u8], refusal: Refusal, within: Duration)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let said = timeout(within, async {
        stream.write_all(answer).await?;
        stream.shutdown().await?;
        let mut input = stream.take(DISCARD_BYTES_MAX);
        tokio::io::copy(&mut input, &mut tokio::io::sink()).await?;
        io::Result::Ok(())
    });
    let outcome = match said.await {
        Ok(Ok(())) => "answered",
        Ok(Err(_)) => "the peer did not wait for the end of the answer",
        Err(_elapsed) => "the peer did not close in time",
    };
    tracing::debug!("refused: {} {}, {outcome}", refusal.status(), refusal.label());
}

#[cfg(test)]
mod tests;

//! What a v1 client says, and what it does.

use broker::ledger::Outcome;
use protocol::v1::{ClientFrame, ServerFrame};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::Instant,
};
use tracing::{debug, info};

use super::{Mailbox, Particulars, Session};
use crate::{end::End, expiry::Expiry, outbox::NotSent};

impl<S, M> Session<S, M>
where
    S: AsyncRead + AsyncWrite + Unpin + Send,
    M: Mailbox,
{
    pub(super) fn on_client(&mut self, text: &str) -> Result<(), End> {
        let now = Instant::now();
        let not_sent = |NotSent| End::ContractBroken("an answer to a message that was not sent".to_owned());
        match ClientFrame::parse(text).map_err(|error| End::ContractBroken(error.to_string()))? {
            ClientFrame::Ack { seq } => {
                let acked: Vec<_> = self.outbox.ack(seq, now).map_err(not_sent)?.collect();
                self.settle(&acked, Outcome::Ack);
            }
            ClientFrame::Nack { seq, requeue } => match self.outbox.nack(seq, now).map_err(not_sent)? {
                Some(nacked) if requeue => self.requeues.push(nacked.tag, now),
                nacked => self.settle(nacked.as_slice(), Outcome::Reject),
            },
            ClientFrame::Refresh { token } => self.refresh(&token.0),
            ClientFrame::Ping => self.say(&ServerFrame::Pong),
        }
        Ok(())
    }

    fn refresh(&mut self, token: &str) {
        let Particulars { name, identity: old, expiry, .. } = &mut self.particulars;
        let reason = match self.terms.verifier.verify(token) {
            Ok(new) if (&new.client, &new.consumer) != (&old.client, &old.consumer) => {
                "the token is for another client"
            }
            Ok(new) if new.expires_at <= old.expires_at => "the token does not last longer than the present one",
            Ok(new) => {
                *expiry = Expiry::of(&new, self.terms.expiring_notice);
                *old = new;
                let expires_at = old.expires_at;
                return self.say(&ServerFrame::Refreshed { expires_at });
            }
            Err(error) => {
                debug!("A new token of {name} is refused: {error}");
                "the token is not valid"
            }
        };
        let id = &self.terms.proxy_id;
        // Once for a session: how often a client asks is its own choice.
        if std::mem::replace(&mut self.refresh_refused, true) {
            debug!("AuthProxy {id}: {name} stays with its old token: {reason}");
        } else {
            info!("AuthProxy {id}: {name} stays with its old token: {reason}");
        }
        self.say(&ServerFrame::Error { reason: reason.into() });
    }
}

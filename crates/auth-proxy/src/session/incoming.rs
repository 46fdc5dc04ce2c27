//! What comes out of the mailbox, and what it does.

use broker::{
    ledger::Outcome,
    subscription::{Delivery, Incoming},
};
use protocol::{
    text::Escaped,
    v1::{self, ServerFrame},
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::Instant,
};
use tracing::{info, warn};

use super::{Interruption, Mailbox, Particulars, Session, Terms};
use crate::{end::End, metrics::Rejection};

impl<S, M> Session<S, M>
where
    S: AsyncRead + AsyncWrite + Unpin + Send,
    M: Mailbox,
{
    pub(super) fn on_incoming(&mut self, incoming: Incoming) -> Result<(), End> {
        let mut next = Some(incoming);
        // What waits already goes out with the same flush.
        while let Some(incoming) = next {
            match incoming {
                Incoming::Delivery(delivery) => self.on_delivery(delivery),
                Incoming::Interrupted { redelivers } => self.on_interrupted(redelivers),
                Incoming::Restored { recreated } => self.on_restored(recreated),
                Incoming::Lost(reason) => return Err(End::MailboxLost(reason)),
            }
            next = self.mailbox.try_next();
        }
        Ok(())
    }

    fn on_interrupted(&mut self, redelivers: bool) {
        self.interrupted = Some(Interruption { since: Instant::now(), redelivers });
        if redelivers {
            self.outbox.forget();
            self.requeues.forget();
            self.say(&ServerFrame::Notice { event: v1::Event::BrokerLost });
        }
    }

    fn on_restored(&mut self, recreated: bool) {
        if self.interrupted.take().is_some_and(|interruption| interruption.redelivers) {
            self.say(&ServerFrame::Notice { event: v1::Event::BrokerBack });
        }
        if recreated {
            let Terms { proxy_id, .. } = &*self.terms;
            warn!("AuthProxy {proxy_id}: the mailbox of {} had gone and was made anew", self.particulars.name);
            self.say(&ServerFrame::Notice { event: v1::Event::QueueRecreated });
        }
    }

    pub(super) fn on_delivery(&mut self, delivery: Delivery) {
        let bytes = delivery.body.len();
        let Terms { proxy_id: id, .. } = &*self.terms;
        let Particulars { name, meter, .. } = &self.particulars;
        meter.arrived(&delivery);
        if bytes > self.terms.max_message_bytes {
            warn!("AuthProxy {id}: a message of {bytes} bytes for {name} is above the limit and rejected");
            let settled = self.mailbox.settle(&[delivery.tag], Outcome::Reject);
            meter.rejected(Rejection::TooLarge, settled);
            return;
        }
        if self.terms.log_messages {
            let body = String::from_utf8_lossy(&delivery.body);
            info!("AuthProxy {id}: For {name}: Forwarding [{}]", Escaped(body.trim_end()));
        }
        self.outbox.push(delivery, Instant::now());
    }
}

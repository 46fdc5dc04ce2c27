//! The dialect with acks, frame by frame.

use protocol::v1::{ClientFrame, Message, ServerFrame, Token, Welcome};

use super::{Client, Received};

impl Client {
    /// The next thing, which must be a frame of v1.
    ///
    /// # Panics
    /// It is something else.
    pub async fn said(&mut self) -> ServerFrame<'static> {
        let text = self.text().await;
        ServerFrame::parse(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    /// The next thing, which must be the welcome.
    ///
    /// # Panics
    /// It is something else.
    pub async fn welcome(&mut self) -> Welcome<'static> {
        match self.said().await {
            ServerFrame::Welcome(welcome) => welcome,
            other => panic!("a welcome was expected, not {other:?}"),
        }
    }

    /// The next message, notices and the like before it skipped.
    ///
    /// # Panics
    /// The session ends, or nothing comes.
    pub async fn message(&mut self) -> Message<'static> {
        loop {
            if let ServerFrame::Message(message) = self.said().await {
                return *message;
            }
        }
    }

    /// The bodies of so many messages as text, each acked.
    ///
    /// # Panics
    /// As [`message`](Self::message).
    pub async fn take(&mut self, count: usize) -> Vec<String> {
        let mut bodies = Vec::with_capacity(count);
        while bodies.len() < count {
            let message = self.message().await;
            bodies.push(String::from_utf8_lossy(message.body()).into_owned());
            self.ack(message.seq).await;
        }
        bodies
    }

    /// Reads to the end: every text, and the close frame if there was one.
    ///
    /// # Panics
    /// A binary message came, which v1 does not have.
    pub async fn until_close(&mut self) -> (Vec<String>, Option<(u16, String)>) {
        let mut said = Vec::new();
        loop {
            match self.receive().await {
                Received::Text(text) => said.push(text),
                Received::Binary(body) => panic!("v1 has no binary frames: {} bytes", body.len()),
                Received::Close(close) => return (said, close),
                Received::Gone => return (said, None),
            }
        }
    }

    /// Says something.
    pub async fn say(&mut self, frame: &ClientFrame<'_>) {
        self.send_text(&frame.encode()).await;
    }

    /// Acks everything up to `seq`.
    pub async fn ack(&mut self, seq: u64) {
        self.say(&ClientFrame::Ack { seq }).await;
    }

    /// Nacks one.
    pub async fn nack(&mut self, seq: u64, requeue: bool) {
        self.say(&ClientFrame::Nack { seq, requeue }).await;
    }

    /// Offers a newer token.
    pub async fn refresh(&mut self, token: &str) {
        self.say(&ClientFrame::Refresh { token: Token(token.into()) }).await;
    }
}

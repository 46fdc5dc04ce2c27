//! A crowd of v1 clients that behave well: each reads, answers pings and acks in a task of its own, notes what it saw, and
//! comes back if it is told to.

mod notes;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use protocol::v1::ServerFrame;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::sleep;

pub use notes::{Arrival, Notes};

use crate::client::{Client, Dial, Failure, Received};
use crate::wait::{PATIENCE, wait_until};

/// Upgrades in progress at once.
const DIALS: usize = 64;
/// Between two tries of one that comes back.
const RETURN_PAUSE: Duration = Duration::from_millis(100);
/// For a crowd to do something together, in a debug build on a machine that is busy.
const CROWD_PATIENCE: Duration = Duration::from_secs(2 * PATIENCE.as_secs());
/// So many of those who are not there yet are named.
const NAMED: usize = 5;

/// One client.
pub struct Member {
    /// Its consumer id.
    pub name: String,
    notes: Arc<Mutex<Notes>>,
    acks: watch::Sender<bool>,
}

impl Member {
    /// What it has seen so far.
    pub fn notes(&self) -> Notes {
        self.look(Notes::clone)
    }

    /// Looks at what it has seen so far.
    pub fn look<T>(&self, look: impl FnOnce(&Notes) -> T) -> T {
        look(&self.notes.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Stops acking: it goes on reading what its window allows.
    pub fn hold(&self) {
        self.acks.send_replace(false);
    }

    /// Acks everything that it has read in its present session, and goes on acking.
    pub fn ack_again(&self) {
        self.acks.send_replace(true);
    }
}

/// Whether a client whose session has ended comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// It stays away, so that nothing hides that a session ended.
    Stays,
    /// It comes back, to the next address in turn, until it is let in.
    Returns,
}

/// Clients and their tasks; all are reset when it is dropped.
pub struct Crowd {
    members: Vec<Member>,
    tasks: JoinSet<()>,
}

impl Crowd {
    /// One client for each consumer id, connected to the first address and welcomed. Default instance, `resume=true`. A
    /// proxy that has just started may refuse them with 503 at first, which is in their notes; they try again.
    ///
    /// # Panics
    /// One is refused for another reason, or not welcomed within two minutes.
    pub async fn of(addresses: &[SocketAddr], names: impl IntoIterator<Item = String>, then: Then) -> Crowd {
        let mut crowd = Crowd { members: Vec::new(), tasks: JoinSet::new() };
        crowd.grow(addresses, names, then).await;
        crowd
    }

    /// More come, as with [`of`](Self::of).
    ///
    /// # Panics
    /// As [`of`](Self::of).
    pub async fn grow(&mut self, addresses: &[SocketAddr], names: impl IntoIterator<Item = String>, then: Then) {
        let dials = Arc::new(Semaphore::new(DIALS));
        for name in names {
            let notes = Arc::<Mutex<Notes>>::default();
            let (acks, acking) = watch::channel(true);
            let dial =
                |address: &SocketAddr| Dial::to(*address).consumer(&name).v1().target("/?instance=1&resume=true");
            let one = One { dials: addresses.iter().map(dial).collect(), notes: notes.clone(), acking, then };
            let turn = dials.clone();
            self.tasks.spawn(async move {
                let permit = turn.acquire_owned().await.expect("it is never closed");
                let client = one.admitted(one.dials.iter().take(1).cycle()).await;
                drop(permit);
                one.run(client).await;
            });
            self.members.push(Member { name, notes, acks });
        }
        self.until("all are welcomed", |notes| notes.sessions > 0).await;
    }

    /// The clients, in the order of their names.
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// The client of this name.
    ///
    /// # Panics
    /// There is none.
    pub fn member(&self, name: &str) -> &Member {
        self.members.iter().find(|member| member.name == name).unwrap_or_else(|| panic!("nobody is called {name}"))
    }

    /// Waits until it holds for what each has seen.
    ///
    /// # Panics
    /// It does not within two minutes; some of those who lag behind are shown.
    pub async fn until(&self, what: &str, holds: impl Fn(&Notes) -> bool) {
        self.each_until(what, |_, notes| holds(notes)).await;
    }

    /// As [`until`](Self::until), with the name of each.
    ///
    /// # Panics
    /// As [`until`](Self::until).
    pub async fn each_until(&self, what: &str, holds: impl Fn(&str, &Notes) -> bool) {
        let late = async || {
            let late = self.members.iter().filter(|member| !member.look(|notes| holds(&member.name, notes)));
            let late: Vec<_> = late.collect();
            let some =
                late.iter().take(NAMED).map(|member| format!("{}: {}", member.name, member.look(Notes::in_short)));
            (late.len(), some.collect::<Vec<_>>())
        };
        wait_until(CROWD_PATIENCE, what, late, |(late, _)| *late == 0).await;
    }

    /// The sum over what each has seen.
    pub fn sum(&self, count: impl Fn(&Notes) -> usize) -> usize {
        self.members.iter().map(|member| member.look(&count)).sum()
    }

    /// Those for whom it holds.
    pub fn which(&self, holds: impl Fn(&Notes) -> bool) -> Vec<&Member> {
        self.members.iter().filter(|member| member.look(&holds)).collect()
    }
}

/// The task of a client.
struct One {
    dials: Vec<Dial>,
    notes: Arc<Mutex<Notes>>,
    acking: watch::Receiver<bool>,
    then: Then,
}

impl One {
    fn note<T>(&self, note: impl FnOnce(&mut Notes) -> T) -> T {
        note(&mut self.notes.lock().unwrap_or_else(PoisonError::into_inner))
    }

    async fn run(mut self, mut client: Client) {
        for next in (1..self.dials.len()).chain(0..1).cycle() {
            let code = self.session(client).await;
            self.note(|notes| notes.ends.push(code));
            if self.then == Then::Stays {
                return;
            }
            sleep(RETURN_PAUSE.mul_f64(rand::random())).await;
            client = self.admitted(self.dials.iter().cycle().skip(next)).await;
        }
    }

    /// To its end; says the close code.
    async fn session(&mut self, mut client: Client) -> Option<u16> {
        let (mut read, mut acked) = (0, 0);
        let mut acking = self.acking.clone();
        loop {
            if read > acked && *acking.borrow_and_update() {
                client.ack(read).await;
                acked = read;
            }
            let received = tokio::select! {
                received = client.try_receive(PATIENCE) => received,
                Ok(()) = acking.changed() => continue,
            };
            match received {
                Some(Received::Text(text)) => {
                    let frame = ServerFrame::parse(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
                    read = self.said(&frame).unwrap_or(read);
                }
                Some(Received::Binary(body)) => panic!("v1 has no binary frames: {} bytes", body.len()),
                Some(Received::Close(close)) => return close.map(|(code, _)| code),
                Some(Received::Gone) => return None,
                // It is quiet.
                None => {}
            }
        }
    }

    /// Notes a frame; returns the seq of a message.
    fn said(&self, frame: &ServerFrame<'_>) -> Option<u64> {
        self.note(|notes| match frame {
            ServerFrame::Welcome(welcome) => {
                notes.sessions += 1;
                notes.resumed.push(welcome.resumed);
                None
            }
            ServerFrame::Message(message) => {
                let session = notes.sessions;
                notes.arrivals.push(Arrival::of(session, message));
                Some(message.seq)
            }
            ServerFrame::Notice { event } => {
                notes.notices.push(*event);
                None
            }
            _ => None,
        })
    }

    /// Tries the addresses in turn until one lets it in.
    async fn admitted(&self, addresses: impl Iterator<Item = &Dial>) -> Client {
        for dial in addresses {
            match dial.attempt().await {
                Ok(client) => return client,
                Err(Failure::Refused(answer)) if answer.status == 503 => self.note(|notes| notes.refusals += 1),
                Err(Failure::Refused(answer)) => panic!("refused: {} {}", answer.status, answer.text()),
                Err(Failure::Unanswered(_)) => {}
            }
            sleep(RETURN_PAUSE.mul_f64(0.5 + rand::random::<f64>())).await;
        }
        unreachable!("the addresses have no end")
    }
}

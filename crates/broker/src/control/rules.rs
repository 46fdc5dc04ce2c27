//! Who keeps a mailbox that two sessions of different proxies want. Pure: no clock, no channel.
//!
//! Each proxy has at most one [`Party`] per mailbox, the holder of its claim. A party that finds another consumer in its
//! mailbox says so (a notice), again and again while it waits. Who hears that decides:
//!
//! | it has | the claimant is a new upgrade | the claimant subscribes again after an outage |
//! | --- | --- | --- |
//! | a session | the claimant wins, unless its upgrade certainly began first | the newer one wins |
//! | a new upgrade | order decides | it says nothing: its own notice decides |
//!
//! *Certainly*, and *newer* among sessions, need no common clock, since a claimant says its age. One that was older when it
//! spoke than the session is when that is heard began before it; one that was younger when it answered than the session was
//! when it asked began after it. So neither an upgrade that waits for long, perhaps of a client that has long gone elsewhere,
//! nor the relic of a session, on a proxy whose clock is ahead, ends the session that came after it. What is left are two
//! that began within one question and its answer, at most [`CONFIRM_WITHIN`]: of those order decides, that is the clocks. So
//! it does between upgrades, where the wrong one costs a 503, and nobody's session.
//!
//! A claimant that wins is asked first whether it still waits: the broker may have held its notice back for minutes (an
//! alarm), and the session must not end for somebody who gave up. The answer must come soon, for it can be held back as
//! well. An upgrade that is refused goes without asking: it comes again.
//!
//! Two sessions must not end for each other, though each sees other ages than the other, nor three in a ring: then nobody
//! would be left. So a session ends on the answer to a question of its own alone, also when it was told of a newer one, and
//! while it has one open it answers none; but those of who is ahead in order, for which it drops its own. Of those that
//! wait in a ring the first in order is answered, and of those that answered in a ring not all can have had a question open.

use std::time::Duration;

use super::message::{Claimant, Order, ProxyId, Said};

/// How long an answer to [`Said::Ask`] counts. Long for a round trip, short for the life of a session.
pub(crate) const CONFIRM_WITHIN: Duration = Duration::from_secs(5);

/// One claim on a mailbox, as the rules see it.
#[derive(Debug)]
pub(crate) struct Party {
    order: Order,
    /// An upgrade before its 101.
    fresh: bool,
    /// It found another consumer and waits for it to go.
    waiting: Option<Waiting>,
    /// How many wait on it.
    waiters: u32,
    /// What was asked lately: one question for each proxy at most.
    asked: Vec<Asked>,
    /// It was told to end, and somebody waits to hear that it has.
    ending: bool,
}

#[derive(Debug, Default)]
struct Waiting {
    /// A holder asked, so it lives and will say when it has gone.
    heard: bool,
    /// Somebody has gone since the last look.
    gone: bool,
    /// Looks in a row that saw no consumer.
    zeros: u32,
}

#[derive(Debug)]
struct Asked {
    from: ProxyId,
    order: Order,
    nonce: u64,
    /// The party's age then.
    at: Duration,
    /// It was said to be newer for certain.
    newer: bool,
    /// It is answered, and the other one is to decide.
    left: bool,
}

/// What a party does about what it heard.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Reaction {
    Nothing,
    Say(Said),
    /// End, and say [`Said::Gone`] when everything is back in the mailbox.
    End,
    /// The upgrade is refused, since a newer one has the mailbox.
    Lose,
    /// Look how many consumers there are.
    Look,
}

impl Party {
    pub(crate) fn new(order: Order) -> Self {
        Self { order, fresh: true, waiting: None, waiters: 0, asked: Vec::new(), ending: false }
    }

    /// Its mailbox is its own: the 101 may go out.
    pub(crate) fn establish(&mut self) {
        self.fresh = false;
    }

    pub(crate) fn is_fresh(&self) -> bool {
        self.fresh
    }

    /// It found another consumer.
    pub(crate) fn wait(&mut self) {
        self.waiters += 1;
        self.waiting.get_or_insert_default();
    }

    pub(crate) fn stop_waiting(&mut self) {
        self.waiters = self.waiters.saturating_sub(1);
        if self.waiters == 0 {
            self.waiting = None;
        }
    }

    pub(crate) fn claimant(&self, age: Duration) -> Claimant {
        Claimant::new(self.order, self.fresh, age)
    }

    /// Notes how many others a look saw; true when the mailbox is free.
    ///
    /// A holder that leaves has cancelled its consumer before everything is back in the mailbox. So where one is known to
    /// live, its word counts and not the look, unless the mailbox stays without a consumer from one look to the next: then
    /// it died on its way out.
    pub(crate) fn saw(&mut self, others: u32) -> bool {
        let Some(waiting) = &mut self.waiting else { return others == 0 };
        if others > 0 {
            (waiting.zeros, waiting.gone) = (0, false);
            return false;
        }
        waiting.zeros += 1;
        waiting.gone || !waiting.heard || waiting.zeros > 1
    }

    /// Decides about what another proxy said. `age` is the time since this party's upgrade; `nonce` a number drawn at
    /// random, for a question.
    pub(crate) fn hear(&mut self, me: ProxyId, from: ProxyId, said: &Said, age: Duration, nonce: u64) -> Reaction {
        if self.ending {
            return Reaction::Nothing;
        }
        match said {
            Said::Notice { claimant } => self.on_notice(from, claimant, age, nonce),
            Said::Ask { to, order, nonce, mine } if (*to, *order) == (me, self.order) => {
                self.on_ask(from, *nonce, *mine, age)
            }
            Said::Confirm { to, nonce, claimant } if *to == me => self.on_confirm(from, *nonce, claimant, age),
            Said::Newer { to, order, mine } if (*to, *order) == (me, self.order) => {
                self.on_newer(from, mine, age, nonce)
            }
            Said::Gone => match &mut self.waiting {
                Some(waiting) => {
                    waiting.gone = true;
                    Reaction::Look
                }
                None => Reaction::Nothing,
            },
            Said::Ask { .. } | Said::Confirm { .. } | Said::Newer { .. } => Reaction::Nothing,
        }
    }

    fn on_notice(&mut self, from: ProxyId, claimant: &Claimant, age: Duration, nonce: u64) -> Reaction {
        if claimant.order == self.order {
            return Reaction::Nothing;
        }
        // A question that is open stands, and so does its reason: notices are repeated, with another delay each, and must
        // not be told the one thing now and the other then.
        let stands = self.question(from, claimant.order, age).is_some();
        if self.asked.iter().any(|asked| asked.left && asked.is_recent(age) && asked.concerns(from, claimant.order)) {
            return Reaction::Say(Said::Notice { claimant: self.claimant(age) });
        }
        let yields = match (self.fresh, claimant.fresh) {
            _ if stands => true,
            (true, false) => return Reaction::Nothing,
            (true, true) => claimant.order > self.order,
            (false, _) => !claimant.began_before(age),
        };
        if yields { self.ask(from, claimant.order, false, age, nonce) } else { self.refuse(from, claimant, age) }
    }

    /// A party that waits, or a session, lives and still wants its mailbox.
    fn on_ask(&mut self, from: ProxyId, nonce: u64, theirs: Order, age: Duration) -> Reaction {
        if self.fresh && self.waiting.is_none() {
            return Reaction::Nothing;
        }
        if !self.fresh && self.asked.iter().any(|asked| asked.is_open(age)) {
            if theirs < self.order {
                return Reaction::Nothing;
            }
            self.asked.clear();
        }
        if let Some(waiting) = &mut self.waiting {
            waiting.heard = true;
        }
        Reaction::Say(Said::Confirm { to: from, nonce, claimant: self.claimant(age) })
    }

    fn on_confirm(&mut self, from: ProxyId, nonce: u64, claimant: &Claimant, age: Duration) -> Reaction {
        let question = self.question(from, claimant.order, age).filter(|asked| asked.nonce == nonce);
        let Some(&Asked { at, newer, .. }) = question else { return Reaction::Nothing };
        self.forget(from);
        if !self.fresh && claimant.began_before(age) {
            return self.refuse(from, claimant, age);
        }
        if self.fresh || claimant.fresh || newer || claimant.began_after(at) || claimant.order > self.order {
            self.ending = true;
            return Reaction::End;
        }
        // Ours by order alone: that is for the other one to find, who sees other ages and must not end as well. It is not
        // asked again at once, since a question that is open would keep its own from being answered.
        self.asked.push(Asked { from, order: claimant.order, nonce, at: age, newer: false, left: true });
        Reaction::Say(Said::Notice { claimant: self.claimant(age) })
    }

    fn on_newer(&mut self, from: ProxyId, theirs: &Claimant, age: Duration, nonce: u64) -> Reaction {
        if self.fresh {
            return if self.waiting.is_some() { Reaction::Lose } else { Reaction::Nothing };
        }
        if theirs.began_before(age) { Reaction::Nothing } else { self.ask(from, theirs.order, true, age, nonce) }
    }

    fn ask(&mut self, from: ProxyId, order: Order, newer: bool, age: Duration, nonce: u64) -> Reaction {
        let open = self.question(from, order, age);
        let (nonce, at, newer) =
            open.map_or((nonce, age, newer), |asked| (asked.nonce, asked.at, asked.newer || newer));
        self.forget(from);
        self.asked.retain(|asked| asked.is_recent(age));
        self.asked.push(Asked { from, order, nonce, at, newer, left: false });
        Reaction::Say(Said::Ask { to: from, order, nonce, mine: self.order })
    }

    /// What was asked of it before counts no more.
    fn refuse(&mut self, to: ProxyId, claimant: &Claimant, age: Duration) -> Reaction {
        self.forget(to);
        Reaction::Say(Said::Newer { to, order: claimant.order, mine: self.claimant(age) })
    }

    /// What is open at this age.
    fn question(&self, to: ProxyId, order: Order, age: Duration) -> Option<&Asked> {
        self.asked.iter().find(|asked| asked.concerns(to, order) && asked.is_open(age))
    }

    fn forget(&mut self, to: ProxyId) {
        self.asked.retain(|asked| asked.from != to);
    }
}

impl Asked {
    fn concerns(&self, from: ProxyId, order: Order) -> bool {
        (self.from, self.order) == (from, order)
    }

    fn is_recent(&self, age: Duration) -> bool {
        age.saturating_sub(self.at) < CONFIRM_WITHIN
    }

    fn is_open(&self, age: Duration) -> bool {
        !self.left && self.is_recent(age)
    }
}

#[cfg(test)]
mod tests;

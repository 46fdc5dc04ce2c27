//! Who keeps a mailbox that two sessions of different proxies want. Pure: no clock, no channel.
//!
//! Each proxy has at most one [`Party`] per mailbox, the holder of its claim. A party that finds another consumer in its
//! mailbox says so (a notice), again and again while it waits. Who hears that decides:
//!
//! | it has | the claimant is a new upgrade | the claimant subscribes again after an outage |
//! | --- | --- | --- |
//! | a session | the claimant wins, whatever the clocks say, unless its upgrade certainly began first | order decides |
//! | a new upgrade | order decides | it says nothing: its own notice decides |
//!
//! *Certainly* needs no common clock: a claimant that was older when it spoke than the session is when that is heard
//! began before it. So an upgrade that waits for long, perhaps of a client that has long gone elsewhere, does not end the
//! session that came after it.
//!
//! A claimant that wins is asked first whether it still waits: the broker may have held its notice back for minutes (an
//! alarm), and the session must not end for somebody who gave up. The answer must come soon, for it can be held back as
//! well. Only what the loser loses anyway goes without asking: a session that is told of a newer one is a relic for good,
//! and an upgrade that is refused comes again.

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
    asked: Option<Asked>,
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
}

/// What a party does about what it heard.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Reaction {
    Nothing,
    Say(Said),
    /// End, and say [`Said::Gone`] when everything is back in the mailbox.
    End,
    /// End, since a newer one has the mailbox.
    Lose,
    /// Look how many consumers there are.
    Look,
}

#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    ClaimantWins,
    PartyWins,
    Undecided,
}

impl Party {
    pub(crate) fn new(order: Order) -> Self {
        Self { order, fresh: true, waiting: None, asked: None, ending: false }
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
        self.waiting = Some(Waiting::default());
    }

    pub(crate) fn stop_waiting(&mut self) {
        self.waiting = None;
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
        match said {
            Said::Notice { claimant } => self.on_notice(from, claimant, age, nonce),
            Said::Ask { to, order, nonce } => match &mut self.waiting {
                Some(waiting) if *to == me && *order == self.order && !self.ending => {
                    waiting.heard = true;
                    Reaction::Say(Said::Confirm { to: from, nonce: *nonce, claimant: self.claimant(age) })
                }
                _ => Reaction::Nothing,
            },
            Said::Confirm { to, nonce, claimant } if *to == me => self.on_confirm(from, *nonce, claimant, age),
            Said::Gone => match &mut self.waiting {
                Some(waiting) => {
                    waiting.gone = true;
                    Reaction::Look
                }
                None => Reaction::Nothing,
            },
            // Among established sessions a newer one is newer for good; let nobody else claim to be.
            Said::Newer { to, order, mine } if *to == me && *order == self.order && self.waiting.is_some() => {
                if self.fresh || mine > order { Reaction::Lose } else { Reaction::Nothing }
            }
            Said::Confirm { .. } | Said::Newer { .. } => Reaction::Nothing,
        }
    }

    fn on_notice(&mut self, from: ProxyId, claimant: &Claimant, age: Duration, nonce: u64) -> Reaction {
        if self.ending {
            return Reaction::Nothing;
        }
        // A question that is open stands, and so does its reason: notices are repeated, with another delay each, and must
        // not be told the one thing now and the other then.
        let same = |asked: &&Asked| (asked.from, asked.order) == (from, claimant.order);
        let open = self.asked.as_ref().filter(same).filter(|asked| age.saturating_sub(asked.at) < CONFIRM_WITHIN);
        if let Some(Asked { nonce, .. }) = open {
            return Reaction::Say(Said::Ask { to: from, order: claimant.order, nonce: *nonce });
        }
        match self.judge(claimant, age) {
            Verdict::Undecided => Reaction::Nothing,
            Verdict::PartyWins => Reaction::Say(Said::Newer { to: from, order: claimant.order, mine: self.order }),
            Verdict::ClaimantWins => {
                self.asked = Some(Asked { from, order: claimant.order, nonce, at: age });
                Reaction::Say(Said::Ask { to: from, order: claimant.order, nonce })
            }
        }
    }

    fn on_confirm(&mut self, from: ProxyId, nonce: u64, claimant: &Claimant, age: Duration) -> Reaction {
        let answered = |asked: &Asked| (asked.from, asked.order, asked.nonce) == (from, claimant.order, nonce);
        let Some(asked) = self.asked.take_if(|asked| answered(asked)) else { return Reaction::Nothing };
        if age.saturating_sub(asked.at) < CONFIRM_WITHIN && !self.ending {
            self.ending = true;
            return Reaction::End;
        }
        Reaction::Nothing
    }

    fn judge(&self, claimant: &Claimant, age: Duration) -> Verdict {
        let claimant_wins = match (self.fresh, claimant.fresh) {
            _ if claimant.order == self.order => return Verdict::Undecided,
            (true, false) => return Verdict::Undecided,
            (false, true) => claimant.age() <= age,
            (true, true) | (false, false) => claimant.order > self.order,
        };
        if claimant_wins { Verdict::ClaimantWins } else { Verdict::PartyWins }
    }
}

#[cfg(test)]
mod tests;

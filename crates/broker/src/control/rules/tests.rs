use super::*;

mod simulation;

const US: ProxyId = ProxyId(1);
const THEM: ProxyId = ProxyId(2);

fn order(at_ms: u64) -> Order {
    Order::new(at_ms, 0)
}

fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn established(at_ms: u64) -> Party {
    let mut party = Party::new(order(at_ms));
    party.establish();
    party
}

fn notice(at_ms: u64, fresh: bool, age: Duration) -> Said {
    Said::Notice { claimant: Claimant::new(order(at_ms), fresh, age) }
}

fn confirm(at_ms: u64, fresh: bool, nonce: u64) -> Said {
    Said::Confirm { to: US, nonce, claimant: Claimant::new(order(at_ms), fresh, s(0)) }
}

fn ask(at_ms: u64, nonce: u64) -> Reaction {
    Reaction::Say(Said::Ask { to: THEM, order: order(at_ms), nonce, mine: order(500) })
}

fn asks(to: ProxyId, at_ms: u64, mine: u64) -> Said {
    Said::Ask { to, order: order(at_ms), nonce: 7, mine: order(mine) }
}

fn told(ours: u64, theirs: Claimant) -> Said {
    Said::Newer { to: US, order: order(ours), mine: theirs }
}

fn newer(theirs: u64, mine: Claimant) -> Reaction {
    Reaction::Say(Said::Newer { to: THEM, order: order(theirs), mine })
}

#[test]
fn a_new_upgrade_beats_a_session_whatever_the_clocks_say() {
    for at_ms in [1, 1_000] {
        let mut party = established(500);
        assert_eq!(party.hear(US, THEM, &notice(at_ms, true, s(0)), s(60), 7), ask(at_ms, 7));
        assert_eq!(party.hear(US, THEM, &confirm(at_ms, true, 7), s(61), 8), Reaction::End);
    }
}

#[test]
fn an_upgrade_that_began_before_the_session_does_not_end_it() {
    let mut party = established(500);
    assert_eq!(party.hear(US, THEM, &notice(1_000, true, s(20)), s(10), 7), newer(1_000, party.claimant(s(10))));
}

#[test]
fn between_two_upgrades_order_decides() {
    let mut party = Party::new(order(500));
    assert_eq!(party.hear(US, THEM, &notice(501, true, s(9)), s(1), 7), ask(501, 7));
    assert_eq!(party.hear(US, THEM, &notice(499, true, s(0)), s(1), 7), newer(499, party.claimant(s(1))));
    let told = told(500, Claimant::new(order(501), true, s(0)));
    assert_eq!(party.hear(US, THEM, &told, s(1), 7), Reaction::Nothing, "it has not asked for anything");
    party.wait();
    assert_eq!(party.hear(US, THEM, &told, s(1), 7), Reaction::Lose);
}

#[test]
fn a_relic_that_subscribes_again_never_ends_a_newer_session_whatever_the_clocks_say() {
    for relics in [499, 9_000] {
        let mut live = established(500);
        let answer = newer(relics, live.claimant(s(10)));
        assert_eq!(live.hear(US, THEM, &notice(relics, false, s(100)), s(10), 7), answer);
        let mut relic = Party::new(order(500));
        relic.establish();
        let told = told(500, Claimant::new(order(9_500 - relics), false, s(10)));
        let asked = ask(9_500 - relics, 7);
        assert_eq!(relic.hear(US, THEM, &told, s(100), 7), asked, "whether the newer one is there still");
        let yes = Said::Confirm { to: US, nonce: 7, claimant: Claimant::new(order(9_500 - relics), false, s(11)) };
        assert_eq!(relic.hear(US, THEM, &yes, s(101), 8), Reaction::End);
    }
}

#[test]
fn a_notice_of_a_relic_that_is_minutes_late_does_not_make_it_young() {
    let mut live = established(500);
    assert_eq!(live.hear(US, THEM, &notice(9_000, false, s(100)), s(190), 7), ask(9_000, 7));
    let yes = Said::Confirm { to: US, nonce: 7, claimant: Claimant::new(order(9_000), false, s(281)) };
    assert_eq!(live.hear(US, THEM, &yes, s(191), 8), newer(9_000, live.claimant(s(191))));
    assert_eq!(live.hear(US, THEM, &yes, s(191), 8), Reaction::Nothing, "and the question is closed");
}

#[test]
fn a_newer_session_that_subscribes_again_ends_the_relic_whatever_the_clocks_say() {
    for at_ms in [1, 501] {
        let mut relic = established(500);
        assert_eq!(relic.hear(US, THEM, &notice(at_ms, false, s(10)), s(100), 7), ask(at_ms, 7));
        let yes = Said::Confirm { to: US, nonce: 7, claimant: Claimant::new(order(at_ms), false, s(11)) };
        assert_eq!(relic.hear(US, THEM, &yes, s(101), 8), Reaction::End);
    }
}

#[test]
fn sessions_that_began_within_a_question_and_its_answer_go_by_order() {
    let confirmed = |at_ms| {
        let mut party = established(500);
        assert_eq!(party.hear(US, THEM, &notice(at_ms, false, s(60)), s(61), 7), ask(at_ms, 7));
        let yes = Said::Confirm { to: US, nonce: 7, claimant: Claimant::new(order(at_ms), false, s(62)) };
        (party.hear(US, THEM, &yes, s(63), 8), party)
    };
    assert_eq!(confirmed(501).0, Reaction::End);
    let (reaction, mut party) = confirmed(499);
    let said = Reaction::Say(Said::Notice { claimant: party.claimant(s(63)) });
    assert_eq!(reaction, said, "the other one is to find out");
    let again = party.hear(US, THEM, &notice(499, false, s(62)), s(63), 9);
    assert_eq!(again, said, "and is left the time for it");
    let answer = party.hear(US, THEM, &asks(US, 500, 499), s(63), 9);
    assert!(matches!(answer, Reaction::Say(Said::Confirm { .. })), "{answer:?}");
}

#[test]
fn a_session_that_may_end_confirms_nothing_but_to_who_is_ahead_in_order() {
    for (theirs, kept) in [(499, true), (501, false)] {
        let mut party = established(500);
        assert_eq!(party.hear(US, THEM, &notice(1, false, s(10)), s(60), 7), ask(1, 7));
        let answer = party.hear(US, ProxyId(3), &asks(US, 500, theirs), s(60), 8);
        assert_eq!(answer == Reaction::Nothing, kept, "{answer:?}");
        let yes = Said::Confirm { to: US, nonce: 7, claimant: Claimant::new(order(1), false, s(11)) };
        let expected = if kept { Reaction::End } else { Reaction::Nothing };
        assert_eq!(party.hear(US, THEM, &yes, s(61), 8), expected);
    }
}

#[test]
fn a_session_does_not_ask_one_that_calls_itself_newer_and_is_not() {
    let mut session = established(500);
    session.wait();
    let told = told(500, Claimant::new(order(501), false, s(3)));
    assert_eq!(session.hear(US, THEM, &told, s(2), 7), Reaction::Nothing);
}

#[test]
fn an_upgrade_leaves_it_to_its_own_notice_to_end_a_session_that_subscribes_again() {
    for at_ms in [1, 1_000] {
        let mut party = Party::new(order(500));
        assert_eq!(party.hear(US, THEM, &notice(at_ms, false, s(5)), s(1), 7), Reaction::Nothing);
    }
}

#[test]
fn a_stale_notice_is_asked_about_and_ends_nobody() {
    let mut holder = established(500);
    assert_eq!(holder.hear(US, THEM, &notice(600, true, s(1)), s(60), 7), ask(600, 7));
    // He who sent it has given up, or waits for something else now.
    for mut other in [Party::new(order(601)), Party::new(order(600))] {
        let question = asks(THEM, 600, 500);
        assert_eq!(other.hear(THEM, US, &question, s(90), 1), Reaction::Nothing, "it does not wait");
    }
}

#[test]
fn who_waits_says_so_to_who_asks() {
    let mut newcomer = Party::new(order(600));
    newcomer.wait();
    let question = |to, at_ms| asks(to, at_ms, 500);
    let claimant = newcomer.claimant(s(3));
    let answer = Reaction::Say(Said::Confirm { to: THEM, nonce: 7, claimant });
    assert_eq!(newcomer.hear(US, THEM, &question(THEM, 600), s(3), 1), Reaction::Nothing, "another proxy was asked");
    assert_eq!(newcomer.hear(US, THEM, &question(US, 599), s(3), 1), Reaction::Nothing, "another session was asked");
    assert_eq!(newcomer.hear(US, THEM, &question(US, 600), s(3), 1), answer);
    newcomer.stop_waiting();
    assert_eq!(newcomer.hear(US, THEM, &question(US, 600), s(3), 1), Reaction::Nothing, "it has given up");
}

#[test]
fn only_the_answer_that_was_asked_for_ends_a_session_and_only_in_time() {
    let asked = || {
        let mut party = established(500);
        assert_eq!(party.hear(US, THEM, &notice(600, true, s(0)), s(60), 7), ask(600, 7));
        party
    };
    assert_eq!(established(500).hear(US, THEM, &confirm(600, true, 7), s(60), 8), Reaction::Nothing, "unasked");
    assert_eq!(asked().hear(US, THEM, &confirm(600, true, 6), s(60), 8), Reaction::Nothing, "another question");
    assert_eq!(asked().hear(US, THEM, &confirm(601, true, 7), s(60), 8), Reaction::Nothing, "another claimant");
    assert_eq!(asked().hear(US, ProxyId(3), &confirm(600, true, 7), s(60), 8), Reaction::Nothing, "another proxy");
    let late = s(60) + CONFIRM_WITHIN;
    assert_eq!(asked().hear(US, THEM, &confirm(600, true, 7), late, 8), Reaction::Nothing, "held back by an alarm");
    let mut party = asked();
    assert_eq!(party.hear(US, THEM, &confirm(600, true, 7), s(61), 8), Reaction::End);
    assert_eq!(party.hear(US, THEM, &confirm(600, true, 7), s(61), 8), Reaction::Nothing, "once");
}

#[test]
fn a_question_stands_while_notices_are_repeated_and_is_asked_anew_afterwards() {
    let mut party = established(500);
    assert_eq!(party.hear(US, THEM, &notice(600, true, s(0)), s(60), 7), ask(600, 7));
    assert_eq!(party.hear(US, THEM, &notice(600, true, s(1)), s(61), 8), ask(600, 7));
    assert_eq!(party.hear(US, THEM, &notice(600, true, s(6)), s(66), 9), ask(600, 9));
    assert_eq!(party.hear(US, THEM, &confirm(600, true, 9), s(66), 8), Reaction::End);
}

#[test]
fn of_two_that_wait_on_one_claim_the_end_of_one_silences_nobody() {
    let mut party = established(500);
    party.wait();
    party.wait();
    party.stop_waiting();
    assert_eq!(party.hear(US, THEM, &Said::Gone, s(1), 1), Reaction::Look);
    party.stop_waiting();
    assert_eq!(party.hear(US, THEM, &Said::Gone, s(1), 1), Reaction::Nothing);
}

#[test]
fn its_own_echo_concerns_nobody() {
    let mut party = established(500);
    assert_eq!(party.hear(US, THEM, &notice(500, true, s(0)), s(60), 7), Reaction::Nothing);
}

#[test]
fn a_look_counts_unless_a_holder_lives_that_will_say_when_it_has_gone() {
    let mut nobody = Party::new(order(1));
    nobody.wait();
    assert!(!nobody.saw(1));
    assert!(nobody.saw(0), "nobody has answered: it was dropped by the broker");

    let heard = || {
        let mut party = Party::new(order(1));
        party.wait();
        let question = asks(US, 1, 500);
        assert!(matches!(party.hear(US, THEM, &question, s(1), 1), Reaction::Say(Said::Confirm { .. })));
        assert!(!party.saw(1));
        party
    };
    let mut leaving = heard();
    assert!(!leaving.saw(0), "it has cancelled, and not everything is back");
    assert_eq!(leaving.hear(US, THEM, &Said::Gone, s(1), 1), Reaction::Look);
    assert!(leaving.saw(0));
    let mut died = heard();
    assert!(!died.saw(0));
    assert!(died.saw(0), "it died on its way out");
    let mut another = heard();
    assert_eq!(another.hear(US, THEM, &Said::Gone, s(1), 1), Reaction::Look);
    assert!(!another.saw(1), "somebody else is there");
    assert!(!another.saw(0), "and what was said before says nothing about him");
}

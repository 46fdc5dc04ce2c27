//! Instances that behave badly on purpose, each way for a share of all. Pure.

use std::time::Duration;

/// How an instance treats its server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behaviour {
    /// Acks what it has processed, at once.
    Good,
    /// Takes this long for each message before its ack; one after the other.
    Slow(Duration),
    /// Reads and never acks.
    NoAck,
    /// Never reads again once it is welcome; the socket stays open.
    Stall,
}

/// A part of all instances, in millionths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share(u32);

impl Share {
    /// Everyone.
    pub const ALL: Self = Self(1_000_000);

    /// Reads `10%` or `0.5%`; the sign may be missing.
    ///
    /// # Errors
    /// A sentence for the user when it is no number above 0 and up to 100.
    pub fn parse(text: &str) -> Result<Self, String> {
        let number = text.trim().trim_end_matches('%').trim_end().parse::<f64>().ok();
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked in the same line")]
        let millionths = number.filter(|n| (0.0..=100.0).contains(n)).map(|n| (n * 10_000.0).round() as u32);
        match millionths {
            Some(millionths) if millionths > 0 => Ok(Self(millionths)),
            _ => Err("expected a share of the instances, more than 0 and up to 100: 10%, 0.5%".to_owned()),
        }
    }

    /// Rounded up, so that who asks for some gets one.
    fn of(self, total: u64) -> u64 {
        let part = (u128::from(total) * u128::from(self.0)).div_ceil(1_000_000);
        u64::try_from(part).unwrap_or(u64::MAX)
    }
}

/// Who behaves how: the first instances in the order of their numbers stall, those after them never ack, those after
/// these are slow, the rest is good. Nobody is bad in two ways, and the same command means the same instances.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Behaviours(Vec<(Behaviour, Share)>);

impl Behaviours {
    /// The ways that were asked for, `None` when the shares are more than everyone.
    #[must_use]
    pub fn new(ways: Vec<(Behaviour, Share)>) -> Option<Self> {
        let sum: u64 = ways.iter().map(|(_, share)| u64::from(share.0)).sum();
        (sum <= u64::from(Share::ALL.0)).then_some(Self(ways))
    }

    /// How instance `index` (from 0) of `total` behaves.
    #[must_use]
    pub fn of(&self, index: u64, total: u64) -> Behaviour {
        self.ranges(total).find(|(_, range)| range.contains(&index)).map_or(Behaviour::Good, |(way, _)| way)
    }

    /// What is said at the start; `name` makes the log name of an index.
    #[must_use]
    pub fn lines(&self, total: u64, name: impl Fn(u64) -> String) -> Vec<String> {
        let line = |(way, range): (Behaviour, std::ops::Range<u64>)| {
            let what = match way {
                Behaviour::Good => return None,
                Behaviour::Slow(time) => format!("{time:?} for each message"),
                Behaviour::NoAck => "no acks".to_owned(),
                Behaviour::Stall => "nothing read once welcome".to_owned(),
            };
            let (count, last) = (range.end - range.start, range.end.checked_sub(1)?);
            (count > 0).then(|| {
                format!("On purpose, {what}: {count} of {total} instances, {} to {}", name(range.start), name(last))
            })
        };
        self.ranges(total).filter_map(line).collect()
    }

    fn ranges(&self, total: u64) -> impl Iterator<Item = (Behaviour, std::ops::Range<u64>)> {
        let mut next = 0;
        self.0.iter().map(move |(way, share)| {
            let start = next;
            next = share.of(total).saturating_add(start).min(total);
            (*way, start..next)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLOW: Behaviour = Behaviour::Slow(Duration::from_millis(250));

    fn share(text: &str) -> Share {
        Share::parse(text).unwrap()
    }

    #[test]
    fn a_share_is_a_percentage() {
        assert_eq!(share("100%"), Share::ALL);
        assert_eq!(share("100"), Share::ALL);
        assert_eq!((share("10%").of(10), share("0.5 %").of(1_000), share("33.3%").of(1_000)), (1, 5, 333));
        assert_eq!((share("1%").of(6), share("51%").of(2), share("0.0001%").of(1)), (1, 2, 1), "some is at least one");
        for text in ["0", "0%", "-1%", "100.1%", "", "%", "ten", "NaN", "inf", "0.00001%"] {
            assert!(Share::parse(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn the_first_ones_are_bad_and_each_in_one_way() {
        use Behaviour::{Good, NoAck, Stall};
        let ways = vec![(Stall, share("20%")), (NoAck, share("10%")), (SLOW, share("30%"))];
        let behaviours = Behaviours::new(ways).unwrap();
        let all: Vec<_> = (0..10).map(|index| behaviours.of(index, 10)).collect();
        assert_eq!(all, [Stall, Stall, NoAck, SLOW, SLOW, SLOW, Good, Good, Good, Good]);
        assert_eq!(
            behaviours.lines(10, |index| format!("#{index}")),
            [
                "On purpose, nothing read once welcome: 2 of 10 instances, #0 to #1",
                "On purpose, no acks: 1 of 10 instances, #2 to #2",
                "On purpose, 250ms for each message: 3 of 10 instances, #3 to #5",
            ]
        );
    }

    #[test]
    fn more_than_everyone_is_refused_and_rounding_up_never_exceeds_it() {
        assert!(Behaviours::new(vec![(Behaviour::Stall, share("60%")), (SLOW, share("41%"))]).is_none());
        let halves = Behaviours::new(vec![(Behaviour::Stall, share("50%")), (SLOW, share("50%"))]).unwrap();
        assert_eq!(
            (0..3).map(|index| halves.of(index, 3)).collect::<Vec<_>>(),
            [Behaviour::Stall, Behaviour::Stall, SLOW]
        );
        let crumbs = Behaviours::new(vec![(Behaviour::Stall, share("1%")), (SLOW, share("1%"))]).unwrap();
        assert_eq!(crumbs.of(0, 1), Behaviour::Stall);
        assert_eq!(crumbs.lines(1, |index| index.to_string()).len(), 1, "nobody is left to be slow");
    }

    #[test]
    fn without_a_wish_everyone_is_good() {
        assert_eq!(Behaviours::default().of(0, 1), Behaviour::Good);
        assert!(Behaviours::default().lines(7, |index| index.to_string()).is_empty());
    }
}

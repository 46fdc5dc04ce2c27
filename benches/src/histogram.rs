//! Durations, counted instead of kept: whole µs, true to 1.6 %.

/// Values below are exact; above, each doubling has so many buckets.
const EXACT: u64 = 64;

/// How many values of which size there were.
#[derive(Clone, Debug, Default)]
pub struct Histogram {
    buckets: Vec<u64>,
    total: u64,
    longest: u64,
}

impl Histogram {
    /// One more.
    pub fn note(&mut self, us: u64) {
        let bucket = bucket(us);
        if self.buckets.len() <= bucket {
            self.buckets.resize(bucket + 1, 0);
        }
        if let Some(count) = self.buckets.get_mut(bucket) {
            *count += 1;
        }
        self.total += 1;
        self.longest = self.longest.max(us);
    }

    /// How many there were.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// The longest, exactly; 0 when there was none.
    pub fn longest(&self) -> u64 {
        self.longest
    }

    /// At most so many µs had this many of a thousand.
    pub fn per_mille(&self, share: u64) -> u64 {
        let wanted = (self.total * share).div_ceil(1000);
        let mut seen = 0;
        let found = self.buckets.iter().position(|count| {
            seen += count;
            seen >= wanted
        });
        found.map_or(0, upper_end).min(self.longest)
    }
}

fn bucket(us: u64) -> usize {
    let doublings = u64::from((us / EXACT).checked_ilog2().map_or(0, |log| log + 1));
    let shift = doublings.saturating_sub(1);
    usize::try_from(shift * EXACT + (us >> shift)).unwrap_or(usize::MAX)
}

/// The largest value of a bucket.
fn upper_end(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    let shift = (bucket / EXACT).saturating_sub(1);
    let leading = bucket - shift * EXACT;
    ((leading + 1) << shift) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_lies_in_its_bucket_and_the_next_begins_behind_it() {
        let mut previous = None;
        for us in (0..5000).chain([1 << 20, (1 << 40) - 1]) {
            let end = upper_end(bucket(us));
            assert!(us <= end && end - us <= us / EXACT, "{us} lies in the bucket that ends at {end}");
            if let Some((before, its_end)) = previous.replace((us, end)).filter(|(before, _)| before + 1 == us) {
                assert!(end == its_end || its_end == before, "{us} begins a bucket, and {before} ends at {its_end}");
            }
        }
    }

    #[test]
    fn shares_are_of_all_values() {
        let mut histogram = Histogram::default();
        assert_eq!((histogram.per_mille(500), histogram.longest()), (0, 0));
        (1..=1000).for_each(|us| histogram.note(us));
        assert_eq!(histogram.total(), 1000);
        assert!((500..508).contains(&histogram.per_mille(500)), "{}", histogram.per_mille(500));
        assert!((990..=1000).contains(&histogram.per_mille(990)), "{}", histogram.per_mille(990));
        assert_eq!((histogram.per_mille(1000), histogram.longest()), (1000, 1000));
    }
}

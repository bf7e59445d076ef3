//! Durations counted in buckets, so that the percentiles of a month can be added up from its hours.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A bucket ends this much above the one before it: a percentile is right within 5 %.
const GROWTH: f64 = 1.1;
/// Ends at 5 years.
const LAST_BUCKET: u8 = 200;

/// How often each bucket of durations was seen.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct DurationHistogram {
    counts: BTreeMap<u8, u64>,
}

impl DurationHistogram {
    /// A duration that isn't finite and positive counts as none.
    pub fn add(&mut self, seconds: f64) {
        self.add_bucket(bucket(seconds), 1);
    }

    pub fn add_bucket(&mut self, bucket: u8, count: u64) {
        *self.counts.entry(bucket.min(LAST_BUCKET)).or_default() += count;
    }

    pub fn merge(&mut self, other: &Self) {
        for (bucket, count) in &other.counts {
            *self.counts.entry(*bucket).or_default() += count;
        }
    }

    pub fn count(&self) -> u64 {
        self.counts.values().sum()
    }

    /// In seconds, within 5 %; `None` of nothing. `share` is from 0 to 1.
    pub fn percentile(&self, share: f64) -> Option<f64> {
        let rank = (share * self.count() as f64).ceil().max(1.0) as u64;
        let mut seen = 0;
        self.counts.iter().find_map(|(bucket, count)| {
            seen += count;
            (seen >= rank).then(|| middle(*bucket))
        })
    }
}

/// 0 is less than a second.
pub fn bucket(seconds: f64) -> u8 {
    if seconds.is_infinite() {
        return 0;
    }
    // The cast makes 0 of what is negative and of the logarithm of a negative number.
    ((1.0 + seconds.log(GROWTH).floor()) as u8).min(LAST_BUCKET)
}

fn middle(bucket: u8) -> f64 {
    if bucket == 0 { 0.0 } else { GROWTH.powf(f64::from(bucket) - 0.5) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_of_added_hours_are_those_of_the_day_within_five_percent() {
        let seconds = |n: u32| 3.0 * f64::from(n) + 0.5;
        let mut day = DurationHistogram::default();
        for hour in 0..24 {
            let mut histogram = DurationHistogram::default();
            (0..1000).filter(|n| n % 24 == hour).for_each(|n| histogram.add(seconds(n)));
            day.merge(&histogram);
        }
        assert_eq!(day.count(), 1000);
        for (share, exact) in [(0.5, seconds(499)), (0.95, seconds(949)), (1.0, seconds(999))] {
            let found = day.percentile(share).unwrap();
            assert!((found / exact - 1.0).abs() < 0.05, "{share}: {found} for {exact}");
        }
        assert_eq!(DurationHistogram::default().percentile(0.5), None);
    }

    #[test]
    fn odd_durations_have_a_bucket() {
        let mut odd = DurationHistogram::default();
        for seconds in [f64::NAN, f64::NEG_INFINITY, -1.0, 0.0, f64::INFINITY, 1e300] {
            odd.add(seconds);
        }
        assert_eq!((odd.count(), odd.percentile(0.1)), (6, Some(0.0)));
        assert_eq!([f64::NAN, -1.0, 0.0, f64::INFINITY].map(bucket), [0; 4]);
        assert_eq!([0.99, 1.0, 1.11, 1e300].map(bucket), [0, 1, 2, LAST_BUCKET]);
        let text = serde_json::to_string(&odd).unwrap();
        assert_eq!(serde_json::from_str::<DurationHistogram>(&text).unwrap(), odd, "{text}");
    }
}

//! Facts older than the retention are rolled up into daily aggregates and deleted.

use crcr_domain::results::RepoDay;
use crcr_domain::results::totals::by_day;
use jiff::Timestamp;

use super::{Results, ResultsError, RolledUpDay, Window};

pub const DAY_MILLIS: i64 = 86_400_000;
/// For how many days after a dispatch a newer head of its pull request can supersede it.
const SUPERSEDE_DAYS: i64 = 2;

/// Rolls up the whole UTC days before `before`, oldest first, and returns how many aggregates were
/// stored. A day that was rolled up earlier isn't changed by facts that arrived since.
pub async fn roll_up(results: &dyn Results, before: Timestamp) -> Result<usize, ResultsError> {
    let cutoff = before.as_millisecond().div_euclid(DAY_MILLIS);
    let ever = Window::all(Timestamp::UNIX_EPOCH, midnight(cutoff));
    let mut days: Vec<i64> =
        results.day_revisions(&ever).await?.into_iter().map(|mark| mark.day).collect();
    days.sort_unstable();
    days.dedup();
    let mut count = 0;
    for day in days.into_iter().filter(|day| *day < cutoff) {
        let window = Window::all(midnight(day), midnight(day + 1));
        let tallies = by_day(
            &results.attempts(&window).await?,
            &results.dispatches(&window).await?,
            &results.dispatches(&after(&window)).await?,
        );
        let known = results.rolled_up_days(&window).await?;
        let rolled: Vec<_> = tallies
            .into_iter()
            .filter(|(day, _)| known.iter().all(|known| known.day != *day))
            .map(|(day, tally)| RolledUpDay { day, tally })
            .collect();
        results.store_rolled_up_days(&rolled).await?;
        count += rolled.len();
    }

    results.delete_before(midnight(cutoff)).await?;
    results.delete_test_runs_before(midnight(cutoff)).await?;
    Ok(count)
}

/// The window after this one in which a newer head can still supersede a dispatch of this one.
pub fn after(window: &Window) -> Window {
    Window { from: window.to, to: heads_until(window.to), repos: window.repos.clone() }
}

/// Until when a newer head can supersede a dispatch from before `time`.
pub fn heads_until(time: Timestamp) -> Timestamp {
    midnight(day_of(time) + SUPERSEDE_DAYS)
}

pub fn midnight(day: i64) -> Timestamp {
    Timestamp::from_millisecond(day.saturating_mul(DAY_MILLIS)).unwrap_or(Timestamp::MAX)
}

/// The UTC day, as days since 1970.
pub fn day_of(time: Timestamp) -> i64 {
    time.as_millisecond().div_euclid(DAY_MILLIS)
}

/// The UTC day, as days since 1970.
pub fn day_number(day: &RepoDay) -> i64 {
    let midnight = day.day.to_zoned(jiff::tz::TimeZone::UTC);
    midnight.map(|midnight| day_of(midnight.timestamp())).unwrap_or_default()
}

/// The last day that a window covers, at least in part.
pub fn last_day(window: &Window) -> i64 {
    (window.to.as_millisecond() - 1).div_euclid(DAY_MILLIS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_begin_at_midnight_in_utc() {
        let at = |millis| Timestamp::from_millisecond(millis).unwrap();
        for (millis, day) in [(-1, -1), (0, 0), (DAY_MILLIS - 1, 0), (DAY_MILLIS, 1)] {
            assert_eq!(day_of(at(millis)), day, "{millis}");
        }
        assert_eq!(midnight(3), at(3 * DAY_MILLIS));
        assert_eq!(heads_until(at(DAY_MILLIS - 1)), midnight(2));
        let window = |to| Window::all(at(0), at(to));
        assert_eq!(last_day(&window(DAY_MILLIS)), 0, "the end isn't in it");
        assert_eq!(last_day(&window(DAY_MILLIS + 1)), 1);
        let after = after(&window(DAY_MILLIS));
        assert_eq!((after.from, after.to), (midnight(1), midnight(3)));
    }
}

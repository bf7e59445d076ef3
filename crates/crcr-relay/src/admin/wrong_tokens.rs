//! How many wrong admin tokens are looked at in a minute.

use std::time::Duration;

use aws_lc_rs::constant_time;
use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use secrecy::{ExposeSecret as _, SecretString};

use crate::config::secrets::Secret;
use crate::limits;

/// Wrong tokens of the current minute.
#[derive(Default)]
pub(crate) struct Guesses(Mutex<(Timestamp, u32)>);

impl Guesses {
    /// Whether a token is right; a wrong one is counted. Fails with how long to wait when there were
    /// so many that no token is looked at, not even the right one.
    pub(crate) fn check(
        &self,
        token: &Secret,
        given: &str,
        now: Timestamp,
    ) -> Result<bool, Duration> {
        let mut guesses = self.0.lock();
        let (since, wrong) = &mut *guesses;
        let age = now.duration_since(*since);
        if age.is_negative() || age >= SignedDuration::from_mins(1) {
            (*since, *wrong) = (now, 0);
        }
        if *wrong >= limits::WRONG_TOKENS {
            let left = (*since + Duration::from_secs(60)).duration_since(now);
            return Err(left.unsigned_abs());
        }
        let right = is_token(token, given);
        *wrong += u32::from(!right);
        Ok(right)
    }
}

fn is_token(token: &Secret, given: &str) -> bool {
    let same = |token: &SecretString| {
        let token = token.expose_secret().as_bytes();
        constant_time::verify_slices_are_equal(given.as_bytes(), token).is_ok()
    };
    token.all().iter().any(same)
}

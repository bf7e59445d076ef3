//! Limits how fast admin tokens can be guessed.

use std::time::Duration;

use aws_lc_rs::constant_time;
use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use secrecy::{ExposeSecret as _, SecretString};

use super::operators::Listener;
use crate::config::secrets::Secret;
use crate::limits;

/// Wrong tokens are counted apart for the public listener: anybody reaches it, and would keep Prometheus and others from the
/// operators' one.
#[derive(Default)]
pub(crate) struct WrongTokens {
    public: Mutex<WrongInMinute>,
    operators: Mutex<WrongInMinute>,
}

/// The start of the current minute, and the wrong tokens since then.
type WrongInMinute = (Timestamp, u32);

impl WrongTokens {
    /// Whether a token is right. A wrong one is counted; after too many, even the right one is refused,
    /// with the time to wait.
    pub(crate) fn check(
        &self,
        listener: Listener,
        token: &Secret,
        given: &str,
        now: Timestamp,
    ) -> Result<bool, Duration> {
        let mut counter = match listener {
            Listener::Public => self.public.lock(),
            Listener::Loopback | Listener::Network => self.operators.lock(),
        };
        let (since, wrong) = &mut *counter;
        let age = now.duration_since(*since);
        if age.is_negative() || age >= SignedDuration::from_mins(1) {
            (*since, *wrong) = (now, 0);
        }
        if *wrong >= limits::WRONG_TOKENS {
            let wait = (*since + Duration::from_secs(60)).duration_since(now);
            return Err(wait.unsigned_abs());
        }
        let is_right = is_token(token, given);
        *wrong += u32::from(!is_right);
        Ok(is_right)
    }
}

fn is_token(token: &Secret, given: &str) -> bool {
    let same = |token: &SecretString| {
        let token = token.expose_secret().as_bytes();
        constant_time::verify_slices_are_equal(given.as_bytes(), token).is_ok()
    };
    token.all().iter().any(same)
}

//! What the relay's user has to be allowed to do on its keys.

use redis::aio::MultiplexedConnection;
use redis::{ErrorKind, RedisError, RedisResult, ServerErrorKind, Value, pipe};

/// Every command that the relay or one of its scripts uses, without its key. Only the first one changes anything: after
/// it the others meet a value of another type, which the server finds out after it has checked the permission.
const COMMANDS: [&str; 24] = [
    "SET check",
    "GET",
    "GETRANGE 0 0",
    "MGET",
    "EXISTS",
    "PTTL",
    "INCR",
    "HSET field value",
    "HGET field",
    "HMGET field",
    "HDEL field",
    "SADD member",
    "SREM member",
    "SCARD",
    "ZADD 0 member",
    "ZREM member",
    "ZCARD",
    "ZRANGE 0 0",
    "ZRANGEBYSCORE 0 0",
    "XADD * field value",
    "XRANGE - +",
    "XLEN",
    "XTRIM MAXLEN 0",
    "DEL",
];

/// Fails with the commands that the user lacks a permission for. What a script has written before such a command stays,
/// so this has to be known before a script runs. Whatever else hinders a command is left to those who need it: a server
/// that is full can still be emptied.
pub(crate) async fn check(connection: &mut MultiplexedConnection, prefix: &str) -> RedisResult<()> {
    let key = format!("{prefix}:check");
    let mut tries = pipe();
    for command in COMMANDS {
        let mut words = command.split(' ');
        tries.cmd(words.next().unwrap_or_default()).arg(&key).arg(words.collect::<Vec<_>>());
    }
    tries.ignore_errors();
    let answers: Vec<RedisResult<Value>> = tries.query_async(connection).await?;
    let refused: Vec<_> = COMMANDS
        .iter()
        .zip(&answers)
        .filter(|(_, answer)| answer.as_ref().is_err_and(is_refused))
        .map(|(command, _)| format!("`{}`", name(command)))
        .collect();
    if refused.is_empty() {
        return Ok(());
    }
    let kind = ErrorKind::Server(ServerErrorKind::NoPerm);
    let detail = format!("for {} on `{prefix}*`", refused.join(", "));
    Err(RedisError::from((kind, "a permission is missing", detail)))
}

fn is_refused(error: &RedisError) -> bool {
    error.code() == Some("NOPERM")
}

fn name(command: &str) -> &str {
    command.split_once(' ').map_or(command, |(name, _)| name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::redis::scripts::{COMMON, SCRIPTS};

    #[test]
    fn every_command_of_a_script_is_tried_before_the_script_runs() {
        for script in [COMMON].iter().chain(&SCRIPTS) {
            for call in script.split("call('").skip(1) {
                let used = call.split('\'').next().unwrap();
                assert!(COMMANDS.iter().any(|command| name(command) == used), "{used}");
            }
        }
    }
}

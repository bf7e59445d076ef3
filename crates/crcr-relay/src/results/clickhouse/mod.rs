//! Facts in ClickHouse, over its HTTP interface.
//!
//! Rows are replaced by key: the one with the greatest version stays, when a merge comes to it, and
//! every query asks for that one row, so that a batch may be sent twice and rows may come in any
//! order. Works with every version since 18.16, which knows neither query parameters nor common
//! table expressions.

mod rows;
mod schema;

use std::collections::HashMap;
use std::io::Write as _;
use std::time::Duration;

use async_trait::async_trait;
use crcr_domain::Level;
use crcr_domain::facts::{AttemptFact, CallbackFact, DispatchFact, Fact};
use crcr_domain::results::DayOf;
use flate2::Compression;
use flate2::write::GzEncoder;
use jiff::Timestamp;
use reqwest::Client;
use secrecy::{ExposeSecret as _, SecretString};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::sync::OnceCell;
use url::Url;

use super::retention::{DAY, day_number, day_of, last_day};
use super::{Mark, Results, ResultsError, Rolled, Window};

/// The longest that a query may take, here and on the server.
const PATIENCE: Duration = Duration::from_secs(30);
/// The largest answer that is read, in bytes.
const MAX_ANSWER: usize = 512 * 1024 * 1024;
/// The first version with `{name:Type}` in queries.
/// <https://clickhouse.com/docs/interfaces/http#cli-queries-with-parameters>
const WITH_PARAMETERS: (u32, u32) = (19, 14);

/// Where a ClickHouse is, and who asks.
#[derive(Debug, Clone)]
pub struct Server {
    endpoint: Url,
    user: String,
    password: SecretString,
    database: String,
}

/// Facts in a ClickHouse.
pub struct ClickHouse {
    server: Server,
    client: Client,
    /// Whether the server binds parameters itself, once it has told its version.
    binds: OnceCell<bool>,
    /// Whether the tables are there.
    prepared: OnceCell<()>,
}

/// A value of a query's `{name:Type}`.
enum Value<'a> {
    Text(&'a str),
    Number(i64),
}

#[derive(Deserialize)]
struct MarkRow {
    whose: String,
    day: i64,
    mark: u64,
}

#[derive(Deserialize)]
struct DayRow {
    repo: String,
    day: i64,
    nightly: u8,
    tally: String,
}

type Parameters<'a> = [(&'static str, Value<'a>)];

impl Server {
    /// Reads `clickhouse+https://user:password@host:port/database`, http for this machine only.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let wrong = |what: &str| {
            format!(
                "{what}, expected clickhouse+https://USER:PASSWORD@HOST:PORT/DATABASE (http for loopback only)"
            )
        };
        let plain = text.strip_prefix("clickhouse+").ok_or_else(|| wrong("no ClickHouse"))?;
        // The text may hold a password: no message repeats it.
        let mut endpoint = Url::parse(plain).map_err(|error| wrong(&format!("no URL: {error}")))?;
        if !crate::config::is_secure(&endpoint) {
            return Err(wrong("neither https nor loopback"));
        }
        let decoded = |text: &str| {
            percent_encoding::percent_decode_str(text)
                .decode_utf8()
                .map(std::borrow::Cow::into_owned)
                .map_err(|_| wrong("a name or password that isn't UTF-8"))
        };
        let user = decoded(endpoint.username())?;
        let password = decoded(endpoint.password().unwrap_or_default())?;
        let database = endpoint.path().trim_matches('/').to_owned();
        let database = if database.is_empty() { "default".to_owned() } else { database };
        let named = |c: char| c.is_ascii_alphanumeric() || c == '_';
        if !database.chars().all(named) || endpoint.query().is_some() {
            return Err(wrong("a database whose name isn't letters, digits and `_`"));
        }
        if endpoint.set_username("").and_then(|()| endpoint.set_password(None)).is_err() {
            return Err(wrong("no host"));
        }
        endpoint.set_path("/");
        let user = if user.is_empty() { "default".to_owned() } else { user };
        Ok(Self { endpoint, user, password: password.into(), database })
    }
}

impl ClickHouse {
    /// The facts on `server`; nothing is asked yet.
    pub fn new(server: Server) -> Result<Self, ResultsError> {
        let client = crcr_github::http::client()
            .map_err(|error| ResultsError::Unavailable(error.to_string()))?;
        Ok(Self { server, client, binds: OnceCell::new(), prepared: OnceCell::new() })
    }

    fn request(&self, settings: &[(&str, &str)]) -> reqwest::RequestBuilder {
        let mut url = self.server.endpoint.clone();
        // Errors come as a status and not at the end of half an answer.
        url.query_pairs_mut()
            .append_pair("wait_end_of_query", "1")
            .append_pair("output_format_json_quote_64bit_integers", "0")
            .append_pair("max_execution_time", &PATIENCE.as_secs().to_string())
            .extend_pairs(settings);
        self.client
            .post(url)
            .timeout(PATIENCE)
            .header("X-ClickHouse-User", &self.server.user)
            .header("X-ClickHouse-Key", self.server.password.expose_secret())
    }

    async fn send(&self, request: reqwest::RequestBuilder) -> Result<Vec<u8>, ResultsError> {
        let said = |error: crcr_github::http::Error| {
            ResultsError::Unavailable(format!("ClickHouse at {}: {error}", self.server.endpoint))
        };
        let response = crcr_github::http::send_once(request).await.map_err(said)?;
        Ok(crcr_github::http::read(response, MAX_ANSWER).await.map_err(said)?.to_vec())
    }

    /// Sends a statement outside of the database.
    async fn bare(&self, statement: &str) -> Result<Vec<u8>, ResultsError> {
        self.send(self.request(&[]).body(statement.to_owned())).await
    }

    /// Asks `query` with its `{name:Type}`s bound.
    async fn ask(&self, query: &str, values: &Parameters<'_>) -> Result<Vec<u8>, ResultsError> {
        let binds = self.binds.get_or_try_init(|| self.binds_parameters()).await?;
        let database = ("database", self.server.database.as_str());
        if !binds {
            return self.send(self.request(&[database]).body(filled(query, values))).await;
        }
        let values: Vec<_> =
            values.iter().map(|(name, value)| (format!("param_{name}"), value.escaped())).collect();
        let mut settings = vec![database];
        settings.extend(values.iter().map(|(name, value)| (name.as_str(), value.as_str())));
        self.send(self.request(&settings).body(query.to_owned())).await
    }

    async fn binds_parameters(&self) -> Result<bool, ResultsError> {
        let version = self.bare("SELECT version()").await?;
        let version = String::from_utf8_lossy(&version);
        let mut parts = version.trim().split('.').map(str::parse::<u32>);
        match (parts.next(), parts.next()) {
            (Some(Ok(major)), Some(Ok(minor))) => Ok((major, minor) >= WITH_PARAMETERS),
            _ => {
                Err(ResultsError::Unavailable(format!("{} is no ClickHouse", self.server.endpoint)))
            }
        }
    }

    async fn read<T: DeserializeOwned>(
        &self,
        table: &rows::Table,
        condition: &str,
        values: &Parameters<'_>,
    ) -> Result<Vec<T>, ResultsError> {
        let query = table.select(condition);
        let answer = self.ask(&query, values).await?;
        table
            .read(&answer)
            .map_err(|why| ResultsError::Malformed(format!("{} in ClickHouse: {why}", table.name)))
    }

    async fn lines<T: DeserializeOwned>(
        &self,
        query: &str,
        values: &Parameters<'_>,
    ) -> Result<Vec<T>, ResultsError> {
        let answer = self.ask(query, values).await?;
        let lines = serde_json::Deserializer::from_slice(&answer).into_iter();
        lines.collect::<Result<_, _>>().map_err(|error| ResultsError::Malformed(error.to_string()))
    }

    async fn in_window<T: DeserializeOwned>(
        &self,
        table: &rows::Table,
        window: &Window,
    ) -> Result<Vec<T>, ResultsError> {
        let time = table.time;
        let mut condition = format!("{time} >= {{from:Int64}} AND {time} < {{to:Int64}}");
        let mut values = vec![
            ("from", Value::Number(window.from.as_millisecond())),
            ("to", Value::Number(window.to.as_millisecond())),
        ];
        let repo = window.repo.as_deref().map(str::to_ascii_lowercase);
        if let Some(repo) = &repo {
            condition.push_str(" AND repo_key = {repo:String}");
            values.push(("repo", Value::Text(repo)));
        }
        self.read(table, &condition, &values).await
    }

    async fn insert(&self, table: &str, lines: &[u8]) -> Result<(), ResultsError> {
        let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
        let packed = packed
            .write_all(lines)
            .and_then(|()| packed.finish())
            .map_err(|error| ResultsError::Unavailable(error.to_string()))?;
        let query = format!("INSERT INTO {table} FORMAT JSONEachRow");
        let database = ("database", self.server.database.as_str());
        let query = ("query", query.as_str());
        let request = self.request(&[database, query]).header("Content-Encoding", "gzip");
        self.send(request.body(packed)).await.map(drop)
    }
}

#[async_trait]
impl Results for ClickHouse {
    async fn prepare(&self) -> Result<(), ResultsError> {
        self.prepared.get_or_try_init(|| schema::create(self)).await.copied()
    }

    async fn append(&self, facts: Vec<Fact>) -> Result<(), ResultsError> {
        self.prepare().await?;
        for table in rows::TABLES {
            let lines = table.write(&facts);
            if !lines.is_empty() {
                self.insert(table.name, &lines).await?;
            }
        }
        Ok(())
    }

    async fn dispatches(&self, window: &Window) -> Result<Vec<DispatchFact>, ResultsError> {
        let mut found: Vec<DispatchFact> = self.in_window(&rows::DISPATCH, window).await?;
        sort_dispatches(&mut found);
        Ok(found)
    }

    async fn attempts(&self, window: &Window) -> Result<Vec<AttemptFact>, ResultsError> {
        let mut found: Vec<AttemptFact> = self.in_window(&rows::ATTEMPT, window).await?;
        sort_attempts(&mut found);
        Ok(found)
    }

    async fn callbacks(&self, window: &Window) -> Result<Vec<CallbackFact>, ResultsError> {
        let mut found: Vec<CallbackFact> = self.in_window(&rows::CALLBACK, window).await?;
        found.sort_by_cached_key(|fact| (fact.at, super::callback_id(fact).cast_signed()));
        Ok(found)
    }

    async fn at_level_since(
        &self,
        window: &Window,
        level: Level,
    ) -> Result<Option<Timestamp>, ResultsError> {
        let repo = window.repo.as_deref().unwrap_or_default().to_ascii_lowercase();
        let within = "FROM crcr_dispatch WHERE repo_key = {repo:String} \
                      AND enqueued_at >= {from:Int64} AND enqueued_at < {to:Int64}";
        let query = format!(
            "SELECT min(enqueued_at) {within} AND enqueued_at > \
             (SELECT max(enqueued_at) {within} AND level != {{level:String}})"
        );
        let values = [
            ("repo", Value::Text(&repo)),
            ("from", Value::Number(window.from.as_millisecond())),
            ("to", Value::Number(window.to.as_millisecond())),
            ("level", Value::Text(level.as_str())),
        ];
        let answer = self.ask(&query, &values).await?;
        // The least of nothing is 0.
        let since: i64 = String::from_utf8_lossy(&answer).trim().parse().unwrap_or(0);
        Ok(Timestamp::from_millisecond(since).ok().filter(|_| since > 0))
    }

    async fn marks(&self, window: &Window) -> Result<Vec<Mark>, ResultsError> {
        let mut marks: HashMap<(String, i64), u64> = HashMap::new();
        let repo = window.repo.as_deref().map(str::to_ascii_lowercase);
        let only = if repo.is_some() { "AND whose = {repo:String}" } else { "" };
        for (table, repo_key, version) in [
            (&rows::DISPATCH, "repo_key", "version"),
            (&rows::ATTEMPT, "repo_key", "version"),
            (&rows::CALLBACK, "''", "id"),
        ] {
            let query = format!(
                "SELECT {repo_key} AS whose, intDiv({time}, {DAY}) AS day, \
                 sum(cityHash64({version})) AS mark FROM {name} \
                 WHERE {time} >= {{from:Int64}} AND {time} < {{to:Int64}} {only} \
                 GROUP BY whose, day FORMAT JSONEachRow",
                time = table.time,
                name = table.name,
            );
            let from = day_of(window.from).saturating_mul(DAY);
            let mut values = vec![
                ("from", Value::Number(from)),
                ("to", Value::Number((last_day(window) + 1).saturating_mul(DAY))),
            ];
            values.extend(repo.as_deref().map(|repo| ("repo", Value::Text(repo))));
            for MarkRow { whose, day, mark } in self.lines(&query, &values).await? {
                let sum = marks.entry((whose, day)).or_default();
                *sum = sum.wrapping_mul(31).wrapping_add(mark);
            }
        }
        Ok(marks.into_iter().map(|((repo, day), mark)| Mark { repo, day, mark }).collect())
    }

    async fn rolled(&self, window: &Window) -> Result<Vec<Rolled>, ResultsError> {
        let repo = window.repo.as_deref().map(str::to_ascii_lowercase);
        let only = if repo.is_some() { "AND repo = {repo:String}" } else { "" };
        let query = format!(
            "SELECT repo, day, nightly, tally FROM crcr_day \
             WHERE day >= {{from:Int64}} AND day <= {{to:Int64}} {only} \
             ORDER BY version DESC LIMIT 1 BY repo, day, nightly FORMAT JSONEachRow"
        );
        let mut values = vec![
            ("from", Value::Number(day_of(window.from))),
            ("to", Value::Number(last_day(window))),
        ];
        values.extend(repo.as_deref().map(|repo| ("repo", Value::Text(repo))));
        let days = self.lines(&query, &values).await?.into_iter().map(|row: DayRow| {
            let at = Timestamp::from_millisecond(row.day.saturating_mul(DAY)).unwrap_or_default();
            let day = DayOf { nightly: row.nightly == 1, ..DayOf::new(&row.repo, at, "") };
            let tally = serde_json::from_str(&row.tally)
                .map_err(|error| ResultsError::Malformed(format!("a rolled-up day: {error}")))?;
            Ok(Rolled { day, tally })
        });
        days.collect()
    }

    async fn keep(&self, days: &[Rolled]) -> Result<(), ResultsError> {
        let version = Timestamp::now().as_millisecond();
        let mut lines = Vec::new();
        for Rolled { day, tally } in days {
            let tally = serde_json::to_string(tally).expect("tallies are always JSON");
            let row = serde_json::json!({
                "repo": day.repo, "day": day_number(day), "nightly": u8::from(day.nightly),
                "tally": tally, "version": version,
            });
            lines.extend_from_slice(row.to_string().as_bytes());
            lines.push(b'\n');
        }
        if lines.is_empty() { Ok(()) } else { self.insert("crcr_day", &lines).await }
    }

    async fn delete_before(&self, time: Timestamp) -> Result<(), ResultsError> {
        for table in rows::TABLES {
            let (name, column) = (table.name, table.time);
            let statement = format!("ALTER TABLE {name} DELETE WHERE {column} < {{before:Int64}}");
            self.ask(&statement, &[("before", Value::Number(time.as_millisecond()))]).await?;
        }
        Ok(())
    }

    async fn of_pull(
        &self,
        upstream: &str,
        number: u64,
    ) -> Result<(Vec<AttemptFact>, Vec<DispatchFact>), ResultsError> {
        let upstream = upstream.to_ascii_lowercase();
        let condition = "pull_request = {number:Int64} AND upstream_key = {upstream:String}";
        let values =
            [("number", Value::Number(number.cast_signed())), ("upstream", Value::Text(&upstream))];
        let mut attempts = self.read(&rows::ATTEMPT, condition, &values).await?;
        let mut dispatches = self.read(&rows::DISPATCH, condition, &values).await?;
        sort_attempts(&mut attempts);
        sort_dispatches(&mut dispatches);
        Ok((attempts, dispatches))
    }
}

fn sort_attempts(rows: &mut [AttemptFact]) {
    let millisecond = |time: Timestamp| time.as_millisecond();
    rows.sort_by(|a, b| {
        (millisecond(a.received_at), &a.delivery, a.repo.to_ascii_lowercase(), &a.run_id)
            .cmp(&(millisecond(b.received_at), &b.delivery, b.repo.to_ascii_lowercase(), &b.run_id))
            .then_with(|| {
                (a.run_attempt, &a.workflow, &a.job, &a.check_run_id).cmp(&(
                    b.run_attempt,
                    &b.workflow,
                    &b.job,
                    &b.check_run_id,
                ))
            })
    });
}

fn sort_dispatches(rows: &mut [DispatchFact]) {
    rows.sort_by(|a, b| {
        (a.enqueued_at, &a.delivery, a.repo.to_ascii_lowercase()).cmp(&(
            b.enqueued_at,
            &b.delivery,
            b.repo.to_ascii_lowercase(),
        ))
    });
}

impl Value<'_> {
    /// As a `param_…` takes it: the text of a tab-separated field.
    fn escaped(&self) -> String {
        match self {
            Self::Number(number) => number.to_string(),
            Self::Text(text) => {
                text.replace('\\', "\\\\").replace('\t', "\\t").replace('\n', "\\n")
            }
        }
    }

    /// As a literal that can't end early: of a text only its bytes' digits are written.
    fn literal(&self) -> String {
        match self {
            Self::Number(number) => format!("({number})"),
            Self::Text(text) => format!("unhex('{}')", hex::encode(text)),
        }
    }
}

/// The query for a server that doesn't bind `{name:Type}`.
fn filled(query: &str, values: &Parameters<'_>) -> String {
    let mut query = query.to_owned();
    for (name, value) in values {
        for kind in ["Int64", "String"] {
            query = query.replace(&format!("{{{name}:{kind}}}"), &value.literal());
        }
    }
    query
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_and_its_password_is_never_shown() {
        let server = Server::parse("clickhouse+https://me:p%40ss@ch.test:8443/crcr").unwrap();
        assert_eq!(server.endpoint.as_str(), "https://ch.test:8443/");
        assert_eq!((server.user.as_str(), server.database.as_str()), ("me", "crcr"));
        assert_eq!(server.password.expose_secret(), "p@ss");
        assert!(!format!("{server:?}").contains("p@ss"));
        assert!(Server::parse("clickhouse+http://127.0.0.1:8123").is_ok());
        for odd in [
            "clickhouse+http://ch.test:8123/crcr",
            "clickhouse+ftp://ch.test/crcr",
            "clickhouse+https://me:hush@ch.test/a;b",
            "clickhouse+https://me:hush@ch.test/a?x=1",
            "https://me:hush@ch.test/crcr",
        ] {
            let what = Server::parse(odd).unwrap_err();
            assert!(!what.contains("hush"), "{what}");
        }
    }

    #[test]
    fn a_text_never_leaves_its_literal() {
        let values = [("a", Value::Text("' OR 1 = 1 -- \\")), ("b", Value::Number(-1))];
        let query = filled("SELECT {a:String}, {b:Int64}", &values);
        assert_eq!(query, "SELECT unhex('27204f522031203d2031202d2d205c'), (-1)");
        assert_eq!(Value::Text("a\\b\tc\n").escaped(), "a\\\\b\\tc\\n");
    }
}

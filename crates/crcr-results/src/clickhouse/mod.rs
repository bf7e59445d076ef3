//! Facts in ClickHouse, over its HTTP interface.
//!
//! The tables replace rows by key: a merge keeps the row with the highest version. ClickHouse merges
//! at some later time, so every query selects that row itself. A batch can therefore be sent twice,
//! and rows can arrive in any order.
//!
//! Requests go through our own HTTP client. The `clickhouse` crate brings another one (hyper with its
//! own connector), which wouldn't follow the proxy, the TLS roots and the time-outs of the rest.

pub(crate) mod rows;
pub(crate) mod schema;

use std::collections::HashSet;
use std::io::Write as _;
use std::time::Duration;

use async_trait::async_trait;
use crcr_domain::Level;
use crcr_domain::protocol::event::EventName;
use crcr_domain::results::RepoDay;
use crcr_domain::results::facts::{
    AttemptFact, CallbackFact, CallbackOutcome, CheckFact, DispatchFact, Fact, MergeBaseFact,
};
use crcr_github::{SecureUrl, SecureUrlError};
use flate2::Compression;
use flate2::write::GzEncoder;
use jiff::Timestamp;
use parking_lot::Mutex;
use reqwest::Client;
use secrecy::{ExposeSecret as _, SecretString};
use serde::de::DeserializeOwned;
use tokio::sync::OnceCell;
use url::Url;

use self::rows::{FactTable, RowReader};
use self::schema::SchemaStep;
use super::retention::{DAY_MILLIS, day_number, day_of, last_day};
use super::{
    AttemptFilter, DayRevision, REFUSED, ReportOutcome, Results, ResultsError, RolledUpDay, Window,
    outcome_list, sort_attempts, sort_dispatches,
};

/// The longest time that a query may take, for the client and on the server.
const QUERY_TIMEOUT: Duration = Duration::from_secs(30);
/// In bytes. A larger response is an error.
const MAX_RESPONSE: usize = 512 * 1024 * 1024;
/// The address and credentials of a ClickHouse server.
#[derive(Debug, Clone)]
pub struct ClickHouseServer {
    endpoint: SecureUrl,
    user: String,
    password: SecretString,
    database: String,
}

pub struct ClickHouseResults {
    server: ClickHouseServer,
    client: Client,
    /// Events whose views exist.
    pub(crate) viewed_events: Mutex<HashSet<String>>,
    /// How its tables came to be as they are.
    steps: &'static [SchemaStep],
    /// Set once the tables have been created or upgraded.
    prepared: OnceCell<()>,
}

/// The value of a query parameter, which a query names as `{name:Type}`.
pub(crate) enum QueryValue<'a> {
    Text(&'a str),
    Number(i64),
}

pub(crate) type QueryParameters<'a> = [(String, QueryValue<'a>)];

impl ClickHouseServer {
    /// Parses `clickhouse+https://user:password@host:port/database`; `clickhouse+http` for loopback only.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let wrong = |what: &str| {
            format!(
                "{what}, expected clickhouse+https://USER:PASSWORD@HOST:PORT/DATABASE (http for loopback only)"
            )
        };
        let plain =
            text.strip_prefix("clickhouse+").ok_or_else(|| wrong("not a ClickHouse address"))?;
        // The text can contain a password, so no message repeats it.
        let mut endpoint =
            Url::parse(plain).map_err(|error| wrong(&format!("not a URL: {error}")))?;
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
        let endpoint = endpoint
            .try_into()
            .map_err(|error: SecureUrlError| wrong(&format!("an address that {error}")))?;
        let user = if user.is_empty() { "default".to_owned() } else { user };
        Ok(Self { endpoint, user, password: password.into(), database })
    }
}

impl ClickHouseResults {
    pub(crate) fn new(
        server: ClickHouseServer,
        steps: &'static [SchemaStep],
    ) -> Result<Self, ResultsError> {
        let client = crcr_github::http::client()
            .map_err(|error| ResultsError::Unavailable(error.to_string()))?;
        Ok(Self {
            server,
            client,
            steps,
            prepared: OnceCell::new(),
            viewed_events: Mutex::default(),
        })
    }

    fn request(&self, settings: &[(&str, &str)]) -> reqwest::RequestBuilder {
        let mut url = Url::from(self.server.endpoint.clone());
        // The server answers only when the query has ended, so an error is a status and not text at the
        // end of half a response.
        url.query_pairs_mut()
            .append_pair("wait_end_of_query", "1")
            .append_pair("max_execution_time", &QUERY_TIMEOUT.as_secs().to_string())
            .extend_pairs(settings);
        self.client
            .post(url)
            .timeout(QUERY_TIMEOUT)
            .header("X-ClickHouse-User", &self.server.user)
            .header("X-ClickHouse-Key", self.server.password.expose_secret())
    }

    async fn send(&self, request: reqwest::RequestBuilder) -> Result<Vec<u8>, ResultsError> {
        let said = |error: crcr_github::http::HttpError| {
            ResultsError::Unavailable(format!("ClickHouse at {}: {error}", self.server.endpoint))
        };
        let response = crcr_github::http::send_unless_page(request).await.map_err(said)?;
        Ok(crcr_github::http::read(response, MAX_RESPONSE).await.map_err(said)?.to_vec())
    }

    /// Runs a statement that must work before the database exists.
    pub(crate) async fn run_outside_database(
        &self,
        statement: &str,
    ) -> Result<Vec<u8>, ResultsError> {
        self.send(self.request(&[]).body(statement.to_owned())).await
    }

    /// Runs `query` with its parameters bound.
    pub(crate) async fn query(
        &self,
        query: &str,
        values: &QueryParameters<'_>,
    ) -> Result<Vec<u8>, ResultsError> {
        let database = ("database", self.server.database.as_str());
        let values: Vec<_> =
            values.iter().map(|(name, value)| (format!("param_{name}"), value.escaped())).collect();
        let mut settings = vec![database];
        settings.extend(values.iter().map(|(name, value)| (name.as_str(), value.as_str())));
        self.send(self.request(&settings).body(query.to_owned())).await
    }

    pub(crate) async fn rows<T>(
        &self,
        query: &str,
        values: &QueryParameters<'_>,
        read: fn(&mut RowReader<'_>) -> Result<T, String>,
    ) -> Result<Vec<T>, ResultsError> {
        let answer = self.query(&format!("{query} FORMAT RowBinary"), values).await?;
        RowReader::rows(&answer, read)
            .map_err(|why| ResultsError::Malformed(format!("{why}, from ClickHouse")))
    }

    /// The facts of the window that also meet `extra_condition`.
    async fn select_window<T: DeserializeOwned>(
        &self,
        table: &FactTable,
        window: &Window,
        extra_condition: &str,
    ) -> Result<Vec<T>, ResultsError> {
        let repos = window.keys();
        let condition = format!("{} {extra_condition}", in_window(table.time, repos.as_deref()));
        let values = window_values(window, repos.as_deref());
        self.rows(&table.select(&condition), &values, |row| row.json()).await
    }

    /// The newest reports of the window that meet the condition.
    async fn newest_where(
        &self,
        window: &Window,
        condition: &str,
        limit: usize,
    ) -> Result<Vec<CallbackFact>, ResultsError> {
        let FactTable { name, time, key, .. } = &rows::CALLBACK;
        let repos = window.keys();
        let query = format!(
            "SELECT document FROM {name} WHERE {} AND {condition} \
             ORDER BY at DESC, toInt64(id) DESC LIMIT 1 BY {key} LIMIT {limit}",
            in_window(time, repos.as_deref())
        );
        self.rows(&query, &window_values(window, repos.as_deref()), |row| row.json()).await
    }

    pub(crate) async fn insert(&self, table: &str, lines: &[u8]) -> Result<(), ResultsError> {
        self.insert_as("JSONEachRow", table, lines).await
    }

    /// Inserts lines of all columns in their order, which takes half the time of [`Self::insert`].
    pub(crate) async fn insert_tabs(&self, table: &str, lines: &[u8]) -> Result<(), ResultsError> {
        self.insert_as("TabSeparated", table, lines).await
    }

    /// Deletes the rows in which `column` is before a time. If there are none, the table isn't altered: ClickHouse would
    /// replace every part of it.
    pub(crate) async fn delete_older(
        &self,
        table: &str,
        column: &str,
        before: i64,
    ) -> Result<(), ResultsError> {
        let values = [("before".to_owned(), QueryValue::Number(before))];
        let find = format!("SELECT 1 FROM {table} WHERE {column} < {{before:Int64}} LIMIT 1");
        if self.rows(&find, &values, |row| row.u8()).await?.is_empty() {
            return Ok(());
        }
        let delete = format!("ALTER TABLE {table} DELETE WHERE {column} < {{before:Int64}}");
        self.query(&delete, &values).await.map(drop)
    }

    async fn insert_as(&self, format: &str, table: &str, lines: &[u8]) -> Result<(), ResultsError> {
        let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
        let packed = packed
            .write_all(lines)
            .and_then(|()| packed.finish())
            .map_err(|error| ResultsError::Unavailable(error.to_string()))?;
        let query = format!("INSERT INTO {table} FORMAT {format}");
        let database = ("database", self.server.database.as_str());
        let query = ("query", query.as_str());
        // The profile of the user may have rows answered before they are written: a crash would lose them.
        let durable = ("async_insert", "0");
        let request = self.request(&[database, query, durable]).header("Content-Encoding", "gzip");
        self.send(request.body(packed)).await.map(drop)
    }
}

#[async_trait]
impl Results for ClickHouseResults {
    async fn prepare(&self) -> Result<(), ResultsError> {
        self.prepared.get_or_try_init(|| schema::create(self)).await.copied()
    }

    async fn append(&self, facts: Vec<Fact>) -> Result<(), ResultsError> {
        self.prepare().await?;
        // The order matters to readers in between: a pull request's day is listed before its facts
        // exist, and a day counts as changed only once they do, so it is read again.
        let facts = [("crcr_pull", rows::pull_request_days(&facts))]
            .into_iter()
            .chain(rows::fact_rows(&facts))
            .chain([("crcr_change", rows::day_changes(&facts))]);
        for (table, lines) in facts {
            if !lines.is_empty() {
                self.insert(table, &lines).await?;
            }
        }
        Ok(())
    }

    async fn dispatches(&self, window: &Window) -> Result<Vec<DispatchFact>, ResultsError> {
        let mut found = self.select_window(&rows::DISPATCH, window, "").await?;
        found.retain(|row: &DispatchFact| row.event != EventName::Probe);
        sort_dispatches(&mut found);
        Ok(found)
    }

    async fn attempts(&self, window: &Window) -> Result<Vec<AttemptFact>, ResultsError> {
        let mut found = self.select_window(&rows::ATTEMPT, window, "").await?;
        found.retain(|row: &AttemptFact| row.event != EventName::Probe);
        sort_attempts(&mut found);
        Ok(found)
    }

    async fn push_attempts(&self, window: &Window) -> Result<Vec<AttemptFact>, ResultsError> {
        let without_pull_request = "AND isNull(pull_request)";
        let mut found = self.select_window(&rows::ATTEMPT, window, without_pull_request).await?;
        sort_attempts(&mut found);
        Ok(found)
    }

    async fn callbacks(&self, window: &Window) -> Result<Vec<CallbackFact>, ResultsError> {
        let mut found: Vec<CallbackFact> = self.select_window(&rows::CALLBACK, window, "").await?;
        found.sort_by_cached_key(|fact| (fact.at, crcr_store::callback_id(fact).cast_signed()));
        Ok(found)
    }

    async fn refused_callbacks(
        &self,
        window: &Window,
        limit: usize,
    ) -> Result<Vec<CallbackFact>, ResultsError> {
        self.newest_where(window, &format!("({REFUSED})"), limit).await
    }

    async fn newest_callbacks(
        &self,
        window: &Window,
        outcomes: &[CallbackOutcome],
        limit: usize,
    ) -> Result<Vec<CallbackFact>, ResultsError> {
        let condition = format!("outcome IN ({})", outcome_list(outcomes));
        self.newest_where(window, &condition, limit).await
    }

    async fn report_outcomes(&self, window: &Window) -> Result<Vec<ReportOutcome>, ResultsError> {
        let FactTable { name, time, key, .. } = &rows::CALLBACK;
        let repos = window.keys();
        let condition = in_window(time, repos.as_deref());
        let query = format!(
            "SELECT at, outcome, latency_ms FROM {name} WHERE {condition} LIMIT 1 BY {key}"
        );
        self.rows(&query, &window_values(window, repos.as_deref()), rows::report_outcome).await
    }

    async fn at_level_since(
        &self,
        window: &Window,
        level: Level,
    ) -> Result<Option<Timestamp>, ResultsError> {
        let repos = window.keys();
        let condition = in_window("enqueued_at", repos.as_deref());
        let within = format!("FROM crcr_dispatch WHERE {condition}");
        let query = format!(
            "SELECT min(enqueued_at) {within} AND enqueued_at > \
             (SELECT max(enqueued_at) {within} AND level != {{level:String}})"
        );
        let mut values = window_values(window, repos.as_deref());
        values.push(("level".to_owned(), QueryValue::Text(level.as_str())));
        let found = self.rows(&query, &values, |row| row.integer()).await?;
        // `min` of no rows is 0.
        let since = found.first().copied().filter(|since| *since > 0);
        Ok(since.and_then(|since| Timestamp::from_millisecond(since).ok()))
    }

    async fn day_revisions(&self, window: &Window) -> Result<Vec<DayRevision>, ResultsError> {
        let repos = window.keys();
        let query = format!(
            "SELECT repo, day, sum(changes) FROM crcr_change WHERE {} GROUP BY repo, day",
            in_days(repos.as_deref())
        );
        let read = |row: &mut RowReader<'_>| {
            Ok(DayRevision { repo: row.text()?, day: row.integer()?, changes: row.u64()? })
        };
        self.rows(&query, &day_values(window, repos.as_deref()), read).await
    }

    async fn rolled_up_days(&self, window: &Window) -> Result<Vec<RolledUpDay>, ResultsError> {
        let repos = window.keys();
        let query = format!(
            "SELECT repo, day, nightly, tally FROM crcr_day WHERE {} \
             ORDER BY version DESC LIMIT 1 BY repo, day, nightly",
            in_days(repos.as_deref())
        );
        let read = |row: &mut RowReader<'_>| {
            let (repo, day) = (row.text()?, row.integer()?);
            let at =
                Timestamp::from_millisecond(day.saturating_mul(DAY_MILLIS)).unwrap_or_default();
            let day = RepoDay::new(&repo, at, row.u8()? == 1);
            Ok(RolledUpDay { day, tally: row.json()? })
        };
        self.rows(&query, &day_values(window, repos.as_deref()), read).await
    }

    async fn store_rolled_up_days(&self, days: &[RolledUpDay]) -> Result<(), ResultsError> {
        let version = Timestamp::now().as_millisecond();
        let mut lines = Vec::new();
        for RolledUpDay { day, tally } in days {
            let tally = serde_json::to_string(tally).expect("tallies are always JSON");
            let row = serde_json::json!({
                "repo": day.repo, "day": day_number(day), "nightly": u8::from(day.nightly),
                "tally": tally, "version": version,
            });
            rows::line(&mut lines, &row);
        }
        if lines.is_empty() { Ok(()) } else { self.insert("crcr_day", &lines).await }
    }

    async fn delete_before(&self, time: Timestamp) -> Result<(), ResultsError> {
        for (name, column, before) in [
            (rows::DISPATCH.name, rows::DISPATCH.time, time.as_millisecond()),
            (rows::ATTEMPT.name, rows::ATTEMPT.time, time.as_millisecond()),
            (rows::CALLBACK.name, rows::CALLBACK.time, time.as_millisecond()),
            (rows::MERGE_BASE.name, rows::MERGE_BASE.time, time.as_millisecond()),
            (rows::CHECK.name, rows::CHECK.time, time.as_millisecond()),
            ("crcr_webhook", "received_at", time.as_millisecond()),
            ("crcr_webhook_branch", "newest", time.as_millisecond()),
            ("crcr_pull_state", "heard", time.as_millisecond()),
            ("crcr_job_log", "completed_at", time.as_millisecond()),
            ("crcr_green_job", "completed_at", time.as_millisecond()),
            ("crcr_ended_ci", "ended_at", time.as_millisecond()),
            ("crcr_pull", "day", day_of(time)),
            ("crcr_change", "day", day_of(time)),
        ] {
            self.delete_older(name, column, before).await?;
        }
        Ok(())
    }

    async fn pull_request_facts(
        &self,
        upstream: &str,
        numbers: &[u64],
        only: AttemptFilter<'_>,
    ) -> Result<(Vec<AttemptFact>, Vec<DispatchFact>), ResultsError> {
        if numbers.is_empty() {
            return Ok((vec![], vec![]));
        }
        let upstream = upstream.to_ascii_lowercase();
        let numbers = integers(numbers);
        let mut values = vec![("upstream".to_owned(), QueryValue::Text(&upstream))];
        let query = format!(
            "SELECT DISTINCT day FROM crcr_pull \
             WHERE upstream = {{upstream:String}} AND number IN ({numbers})"
        );
        let mut days = self.rows(&query, &values, |row| row.integer()).await?;
        days.sort_unstable();
        let (Some(first), Some(last)) = (days.first(), days.last()) else {
            return Ok((vec![], vec![]));
        };
        values.push(("from".to_owned(), QueryValue::Number(first.saturating_mul(DAY_MILLIS))));
        values.push(("to".to_owned(), QueryValue::Number((last + 1).saturating_mul(DAY_MILLIS))));
        let days: Vec<String> = days.iter().map(i64::to_string).collect();
        let condition = |time: &str| {
            format!(
                "{} AND intDiv({time}, {DAY_MILLIS}) IN ({}) AND pull_request IN ({numbers}) \
                 AND upstream_key = {{upstream:String}}",
                in_window(time, None),
                days.join(", ")
            )
        };
        let mut wanted = condition(rows::ATTEMPT.time);
        if !only.heads.is_empty() {
            let heads = head_list(only.heads, &mut values);
            wanted = format!("{wanted} AND head_sha IN ({heads})");
        }
        let repos: Option<Vec<String>> =
            only.repos.map(|repos| repos.iter().map(|repo| repo.to_ascii_lowercase()).collect());
        if let Some(repos) = &repos {
            wanted = format!("{wanted} {}", of_repos("repo_key", Some(repos)));
            values.extend(repo_values(repos));
        }
        let attempts = rows::ATTEMPT.select(&wanted);
        let dispatches = rows::DISPATCH.select(&condition(rows::DISPATCH.time));
        let (mut attempts, mut dispatches) = tokio::try_join!(
            self.rows(&attempts, &values, |row| row.json()),
            self.rows(&dispatches, &values, |row| row.json()),
        )?;
        sort_attempts(&mut attempts);
        sort_dispatches(&mut dispatches);
        Ok((attempts, dispatches))
    }

    async fn dispatches_of_commits(
        &self,
        prefix: &str,
        limit: usize,
    ) -> Result<Vec<DispatchFact>, ResultsError> {
        let values = [("prefix".to_owned(), QueryValue::Text(prefix))];
        let select = rows::DISPATCH.select("startsWith(head_sha, {prefix:String})");
        let query = format!("{select} LIMIT {limit}");
        let mut found = self.rows(&query, &values, |row| row.json()).await?;
        sort_dispatches(&mut found);
        Ok(found)
    }

    async fn attempts_of_commits(
        &self,
        prefix: &str,
        limit: usize,
    ) -> Result<Vec<AttemptFact>, ResultsError> {
        let values = [("prefix".to_owned(), QueryValue::Text(prefix))];
        let on_commits = "startsWith(head_sha, {prefix:String}) AND isNull(pull_request)";
        let query = format!("{} LIMIT {limit}", rows::ATTEMPT.select(on_commits));
        let mut found = self.rows(&query, &values, |row| row.json()).await?;
        found.retain(|row: &AttemptFact| row.event != EventName::Probe);
        sort_attempts(&mut found);
        Ok(found)
    }

    async fn merge_bases(
        &self,
        upstream: &str,
        numbers: &[u64],
    ) -> Result<Vec<MergeBaseFact>, ResultsError> {
        if numbers.is_empty() {
            return Ok(vec![]);
        }
        let upstream = upstream.to_ascii_lowercase();
        let values = [("upstream".to_owned(), QueryValue::Text(&upstream))];
        let query = rows::MERGE_BASE.select(&format!(
            "upstream_key = {{upstream:String}} AND pull_request IN ({})",
            integers(numbers)
        ));
        self.rows(&query, &values, |row| row.json()).await
    }

    async fn checks(
        &self,
        upstream: &str,
        heads: &[String],
    ) -> Result<Vec<CheckFact>, ResultsError> {
        if heads.is_empty() {
            return Ok(vec![]);
        }
        self.prepare().await?;
        let upstream = upstream.to_ascii_lowercase();
        let mut values = vec![("upstream".to_owned(), QueryValue::Text(&upstream))];
        let listed = head_list(heads, &mut values);
        let query = rows::CHECK
            .select(&format!("upstream_key = {{upstream:String}} AND head_sha IN ({listed})"));
        self.rows(&query, &values, |row| row.json()).await
    }
}

/// A list of commits for SQL, whose texts are parameters.
fn head_list<'a>(heads: &'a [String], values: &mut Vec<(String, QueryValue<'a>)>) -> String {
    let names: Vec<String> = (0..heads.len()).map(|n| format!("head{n}")).collect();
    let listed: Vec<String> = names.iter().map(|name| format!("{{{name}:String}}")).collect();
    values.extend(names.into_iter().zip(heads.iter().map(|sha| QueryValue::Text(sha))));
    listed.join(", ")
}

/// A list for SQL.
fn integers(numbers: &[u64]) -> String {
    let texts: Vec<String> =
        numbers.iter().map(|number| number.cast_signed().to_string()).collect();
    texts.join(", ")
}

/// SQL for the facts of a window.
fn in_window(time: &str, repos: Option<&[String]>) -> String {
    format!("{time} >= {{from:Int64}} AND {time} < {{to:Int64}} {}", of_repos("repo_key", repos))
}

/// SQL for the days that a window covers, at least in part.
fn in_days(repos: Option<&[String]>) -> String {
    format!("day >= {{from:Int64}} AND day <= {{to:Int64}} {}", of_repos("repo", repos))
}

fn of_repos(column: &str, repos: Option<&[String]>) -> String {
    let Some(repos) = repos else { return String::new() };
    if repos.is_empty() {
        return "AND 0".to_owned();
    }
    let names: Vec<_> = (0..repos.len()).map(|n| format!("{{repo{n}:String}}")).collect();
    format!("AND {column} IN ({})", names.join(", "))
}

fn window_values<'a>(
    window: &Window,
    repos: Option<&'a [String]>,
) -> Vec<(String, QueryValue<'a>)> {
    bounds_and_repos((window.from.as_millisecond(), window.to.as_millisecond()), repos)
}

fn day_values<'a>(window: &Window, repos: Option<&'a [String]>) -> Vec<(String, QueryValue<'a>)> {
    bounds_and_repos((day_of(window.from), last_day(window)), repos)
}

fn bounds_and_repos<'a>(
    (from, to): (i64, i64),
    repos: Option<&'a [String]>,
) -> Vec<(String, QueryValue<'a>)> {
    [("from".to_owned(), QueryValue::Number(from)), ("to".to_owned(), QueryValue::Number(to))]
        .into_iter()
        .chain(repo_values(repos.unwrap_or_default()))
        .collect()
}

/// The names in [`of_repos`].
fn repo_values(repos: &[String]) -> impl Iterator<Item = (String, QueryValue<'_>)> {
    repos.iter().enumerate().map(|(n, repo)| (format!("repo{n}"), QueryValue::Text(repo)))
}

impl QueryValue<'_> {
    /// The text of a tab-separated field, as a `param_NAME` setting expects it.
    fn escaped(&self) -> String {
        match self {
            Self::Number(number) => number.to_string(),
            Self::Text(text) => {
                text.replace('\\', "\\\\").replace('\t', "\\t").replace('\n', "\\n")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crcr_testkit::clickhouse::ClickHouse as TestServer;

    use super::*;
    use crate::CLICKHOUSE_STEPS;
    use crate::retention::roll_up;

    #[tokio::test]
    #[ignore = "needs chdb"]
    async fn hourly_retention_replaces_no_part_of_a_table_without_old_rows() {
        let server = TestServer::start().unwrap();
        let address = ClickHouseServer::parse(&server.url()).unwrap();
        let results = ClickHouseResults::new(address, CLICKHOUSE_STEPS).unwrap();
        let now: Timestamp = "2026-09-15T12:00:00Z".parse().unwrap();
        let facts = crcr_standin::generate::facts(3, now, 12, 6, "acme/upstream");
        results.append(facts).await.unwrap();
        let deletions = async || {
            let count = "SELECT count() FROM system.mutations";
            let answer = results.query(count, &[]).await.unwrap();
            String::from_utf8(answer).unwrap().trim().parse::<u32>().unwrap()
        };
        roll_up(&results, Timestamp::UNIX_EPOCH).await.unwrap();
        assert_eq!(deletions().await, 0);
        roll_up(&results, now).await.unwrap();
        assert!(deletions().await > 0);
    }

    #[test]
    fn address_is_parsed_and_its_password_never_shown() {
        let server =
            ClickHouseServer::parse("clickhouse+https://me:p%40ss@ch.test:8443/crcr").unwrap();
        assert_eq!(server.endpoint.as_str(), "https://ch.test:8443/");
        assert_eq!((server.user.as_str(), server.database.as_str()), ("me", "crcr"));
        assert_eq!(server.password.expose_secret(), "p@ss");
        assert!(!format!("{server:?}").contains("p@ss"));
        assert!(ClickHouseServer::parse("clickhouse+http://127.0.0.1:8123").is_ok());
        for odd in [
            "clickhouse+http://ch.test:8123/crcr",
            "clickhouse+ftp://ch.test/crcr",
            "clickhouse+https://me:hush@ch.test/a;b",
            "clickhouse+https://me:hush@ch.test/a?x=1",
            "https://me:hush@ch.test/crcr",
        ] {
            let what = ClickHouseServer::parse(odd).unwrap_err();
            assert!(!what.contains("hush"), "{what}");
        }
    }

    #[test]
    fn text_cannot_end_its_parameter() {
        assert_eq!(QueryValue::Text("a\\b\tc\n").escaped(), "a\\\\b\\tc\\n");
        assert_eq!(QueryValue::Number(-1).escaped(), "-1");
    }
}

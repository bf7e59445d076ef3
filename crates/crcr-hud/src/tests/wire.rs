//! What crosses the wire, and what crawlers and people who mistype get.

use std::collections::{BTreeSet, VecDeque};
use std::io::Read as _;
use std::sync::atomic::{AtomicI64, Ordering};

use axum::http::header;
use axum::response::Response;
use crcr_standin::generate::UpstreamCi;

use super::jobs::{month, red_job};
use super::*;

/// A month of an upstream on a GitHub Enterprise Server, with its own CI and its pull requests.
async fn enterprise() -> Site {
    enterprise_at(Box::new(now)).await
}

async fn enterprise_at(clock: Box<dyn Fn() -> Timestamp + Send + Sync>) -> Site {
    const SERVER: &str = "https://github.corp.example";
    let mut facts = facts(7, now(), 3, 6, UPSTREAM);
    for fact in &mut facts {
        if let Fact::Attempt(row) = fact {
            for url in [&mut row.details.url, &mut row.details.artifact_url].into_iter().flatten() {
                *url = url.replace("https://github.com", SERVER);
            }
        }
    }
    let mut ci = UpstreamCi::new(&facts, now()).unwrap();
    for row in &mut ci.webhooks {
        row.document = row.document.replace("https://github.com", SERVER);
    }
    let site = site_on(facts, SERVER, clock).await;
    ci.store(&*site.hud.results).await.unwrap();
    site
}

async fn ask(site: &Site, path: &str, headers: &[(header::HeaderName, &str)]) -> Response {
    let mut request = Request::get(path);
    for (name, value) in headers {
        request = request.header(name, *value);
    }
    site.router.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap()
}

async fn bytes(answer: Response) -> Vec<u8> {
    axum::body::to_bytes(answer.into_body(), 8 << 20).await.unwrap().to_vec()
}

/// The addresses on this host that a page links to.
fn links(page: &str) -> BTreeSet<String> {
    let parts = page.split("href=\"").skip(1).filter_map(|rest| rest.split('"').next());
    let own = parts.filter(|link| link.starts_with('/') && !link.starts_with("//"));
    own.map(|link| link.split('#').next().unwrap().replace("&amp;", "&")).collect()
}

/// Follows links, and calls `look` with each page. Stops after `limit` pages.
async fn crawl(
    site: &Site,
    limit: usize,
    may_fetch: impl Fn(&str) -> bool,
    mut look: impl FnMut(&str, StatusCode, &str),
) -> usize {
    let (mut seen, mut queue) = (BTreeSet::new(), VecDeque::from(["/".to_owned()]));
    let mut fetched = 0;
    while let Some(path) = queue.pop_front() {
        if !may_fetch(&path) || !seen.insert(path.clone()) {
            continue;
        }
        fetched += 1;
        if fetched > limit {
            break;
        }
        let answer = ask(site, &path, &[]).await;
        let status = answer.status();
        let page = String::from_utf8(bytes(answer).await).unwrap();
        look(&path, status, &page);
        queue.extend(links(&page));
    }
    fetched
}

#[tokio::test]
async fn every_page_of_an_enterprise_server_links_to_that_server_and_to_what_exists() {
    let site = enterprise().await;
    let mut kinds = BTreeSet::new();
    // One address of each kind of page and filter is enough.
    let is_new = std::cell::RefCell::new(BTreeSet::new());
    let kind_of = |path: &str| {
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        let mut parts: Vec<&str> = path.split('/').skip(1).collect();
        parts.truncate(1 + usize::from(parts.len() > 3));
        let last = path.rsplit('/').next().unwrap_or_default();
        let last = if ["level", "main"].contains(&last) { last } else { "" };
        // A failure of a pull request has other links than one of a branch.
        if parts[0] == "failure" {
            return path.to_owned();
        }
        let names: BTreeSet<&str> = query.split('&').filter_map(|p| p.split('=').next()).collect();
        format!("{parts:?} {last} {names:?}")
    };
    let may_fetch = |path: &str| {
        let first_of_kind = is_new.borrow_mut().insert(kind_of(path));
        first_of_kind || path == "/"
    };
    let fetched = crawl(&site, 2000, may_fetch, |path, status, page| {
        kinds.insert(path.split(['/', '?']).nth(1).unwrap_or_default().to_owned());
        // A search with one answer leads to it.
        let is_answer = path.starts_with("/search?") && status == StatusCode::SEE_OTHER;
        assert!(status == StatusCode::OK || is_answer, "{path}: {status} {page}");
        assert!(!page.contains("github.com"), "{path} leads to github.com: {page}");
        let foreign = page.split("src=\"").skip(1).filter(|rest| !rest.starts_with('/')).count();
        assert_eq!(foreign, 0, "{path} loads something from another host");
    })
    .await;
    assert!(fetched > 20, "{fetched}");
    for kind in ["", "prs", "pr", "crcr", "hud", "commit", "tests"] {
        assert!(kinds.contains(kind), "{kind} isn't linked from anywhere: {kinds:?}");
    }
}

#[tokio::test]
async fn login_is_linked_only_where_operators_can_log_in() {
    for has_login in [false, true] {
        let site = site(vec![]).await.with_logs("file:none", |hud| hud.has_login = has_login);
        let (_, page) = site.get("/").await;
        assert_eq!(page.contains("href=\"/crcr/login\""), has_login, "{page}");
    }
}

#[tokio::test]
async fn crawler_that_honours_robots_txt_gets_the_front_pages_and_ends() {
    let site = enterprise().await;
    let (status, robots) = site.get("/robots.txt").await;
    assert_eq!(status, StatusCode::OK);
    // <https://www.rfc-editor.org/rfc/rfc9309.html#section-2.2.2>: the longest match wins.
    let rules: Vec<(bool, String)> = robots
        .lines()
        .filter_map(|line| line.split_once(": "))
        .filter(|(name, _)| ["Allow", "Disallow"].contains(name))
        .map(|(name, path)| (name == "Allow", path.to_owned()))
        .collect();
    let may_fetch = |path: &str| {
        let matching = rules.iter().filter(|(_, rule)| match rule.strip_suffix('$') {
            Some(whole) => path == whole,
            None => path.starts_with(rule.as_str()),
        });
        matching.max_by_key(|(_, rule)| rule.len()).is_none_or(|(allow, _)| *allow)
    };
    let mut pages = vec![];
    let fetched = crawl(&site, 50, may_fetch, |path, _, page| {
        if page.starts_with("<!DOCTYPE") {
            pages.push(path.to_owned());
        }
    })
    .await;
    pages.sort();
    assert_eq!(pages, ["/", "/crcr", "/hud", "/prs"]);
    assert!(fetched < 10, "{fetched}");
}

#[tokio::test]
async fn crawler_that_ignores_robots_txt_costs_a_bounded_number_of_pages() {
    // A minute passes with every page, so an address with the time of its page would never end.
    static MINUTE: AtomicI64 = AtomicI64::new(0);
    let clock = || now() + jiff::SignedDuration::from_mins(MINUTE.fetch_add(1, Ordering::Relaxed));
    let mut facts = facts(7, now(), 1, 3, UPSTREAM);
    facts.retain(|fact| match fact {
        Fact::Dispatch(sent) => sent.repo == "aurora-example/torch-aurora",
        Fact::Attempt(row) => row.repo == "aurora-example/torch-aurora",
        _ => true,
    });
    let site = site_on(facts, "https://github.com", Box::new(clock)).await;
    let fetched = crawl(&site, 6000, |path| !path.contains("/assets/"), |_, _, _| {}).await;
    eprintln!("a crawler that follows everything fetches {fetched} pages");
    assert!(fetched < 3000, "{fetched}");
}

#[tokio::test]
async fn crawler_that_ignores_robots_txt_ends_on_a_branch_with_many_jobs() {
    let site = enterprise().await;
    let may_fetch = |path: &str| path == "/" || path.starts_with("/hud");
    let fetched = crawl(&site, 3000, may_fetch, |_, _, _| {}).await;
    eprintln!("a crawler that follows everything fetches {fetched} pages of branches");
    assert!(fetched < 3000, "{fetched}");
}

#[tokio::test]
async fn pages_and_twins_are_compressed_tagged_and_304_when_nothing_changed() {
    let site = enterprise().await;
    for path in ["/", "/prs", "/crcr", "/api/v1/now", "/api/v1/pulls", "/api/v1/overview", "/hud"] {
        let plain = ask(&site, path, &[]).await;
        assert_eq!(plain.status(), StatusCode::OK, "{path}");
        let tag = plain.headers()[header::ETAG].to_str().unwrap().to_owned();
        assert_eq!(plain.headers()[header::CACHE_CONTROL], "no-cache");
        let whole = bytes(plain).await;
        let zipped = ask(&site, path, &[(header::ACCEPT_ENCODING, "gzip")]).await;
        assert_eq!(zipped.headers()[header::CONTENT_ENCODING], "gzip", "{path}");
        assert_eq!(zipped.headers()[header::ETAG], tag, "the same page has the same tag");
        let zipped = bytes(zipped).await;
        assert!(zipped.len() * 2 < whole.len() || whole.len() < 1500, "{path}: {}", zipped.len());
        let mut unzipped = vec![];
        flate2::read::GzDecoder::new(&*zipped).read_to_end(&mut unzipped).unwrap();
        assert_eq!(unzipped, whole, "{path}");
        let brotli = ask(&site, path, &[(header::ACCEPT_ENCODING, "gzip, br")]).await;
        assert_eq!(brotli.headers()[header::CONTENT_ENCODING], "br", "{path}");
        let known = format!("\"other\", {tag}");
        let again = ask(&site, path, &[(header::IF_NONE_MATCH, &known)]).await;
        assert_eq!(again.status(), StatusCode::NOT_MODIFIED, "{path}");
        assert_eq!(again.headers()[header::VARY], "cookie, accept-encoding", "{path}");
        assert_eq!(bytes(again).await, b"", "{path}");
        let stale = ask(&site, path, &[(header::IF_NONE_MATCH, "W/\"0\"")]).await;
        assert_eq!(stale.status(), StatusCode::OK, "{path}");
    }
}

#[tokio::test]
async fn stored_log_is_whole_when_it_is_compressed() {
    let site = month().await;
    let path = format!("/failure/{UPSTREAM}/{}/log.txt", red_job(&site).await);
    let whole = bytes(ask(&site, &path, &[]).await).await;
    assert!(whole.len() > 1000, "{}", whole.len());
    for path in [path.clone(), format!("{path}?download=1")] {
        let zipped = ask(&site, &path, &[(header::ACCEPT_ENCODING, "gzip")]).await;
        assert_eq!(zipped.headers()[header::CONTENT_ENCODING], "gzip", "{path}");
        let (zipped, mut unzipped) = (bytes(zipped).await, vec![]);
        flate2::read::GzDecoder::new(&*zipped).read_to_end(&mut unzipped).unwrap();
        assert_eq!(String::from_utf8(unzipped).unwrap(), String::from_utf8_lossy(&whole), "{path}");
        let brotli = ask(&site, &path, &[(header::ACCEPT_ENCODING, "br")]).await;
        assert_eq!(brotli.headers()[header::CONTENT_ENCODING], "br", "{path}");
        assert!(!bytes(brotli).await.is_empty(), "{path}");
    }
}

#[tokio::test]
async fn page_that_shows_the_same_three_seconds_later_is_304() {
    static SECOND: AtomicI64 = AtomicI64::new(5);
    let clock = || now() + jiff::SignedDuration::from_secs(SECOND.load(Ordering::Relaxed));
    let site = enterprise_at(Box::new(clock)).await;
    let pulls = site.json("/api/v1/pulls").await;
    let (number, sha) = (&pulls["pulls"][0]["number"], pulls["pulls"][0]["head_sha"].as_str());
    let pages = [
        "/",
        "/prs",
        "/crcr",
        "/hud",
        "/tests",
        "/quarantine",
        "/failures",
        "/failures?list=jobs",
        "/trends",
        "/trends?window=24h",
        "/relay",
        "/relay?list=reports&kind=refused",
        "/reported?kind=test_failed",
        "/crcr/feed.atom",
        "/search?q=torch",
        "/crcr/ember-example/torch-ember/feed.atom",
        "/api/v1/trends",
        "/api/v1/failures",
        "/api/v1/now",
        "/api/v1/tests",
        &format!("/hud/{UPSTREAM}/main"),
        &format!("/feeds/{UPSTREAM}/main"),
        &format!("/crcr/{AURORA}"),
        &format!("/crcr/{AURORA}/level"),
        &format!("/commit/{}", sha.unwrap()),
        &format!("/pr/{number}"),
    ];
    for path in pages {
        let first = ask(&site, path, &[]).await;
        assert_eq!(first.status(), StatusCode::OK, "{path}");
        let tag = first.headers()[header::ETAG].to_str().unwrap().to_owned();
        let length = bytes(first).await.len().to_string();
        SECOND.fetch_add(3, Ordering::Relaxed);
        let again = ask(&site, path, &[(header::IF_NONE_MATCH, &tag)]).await;
        SECOND.fetch_sub(3, Ordering::Relaxed);
        assert_eq!(again.status(), StatusCode::NOT_MODIFIED, "{path}");
        let head = Request::head(path).body(Body::empty()).unwrap();
        let head = site.router.clone().oneshot(head).await.unwrap();
        assert_eq!(head.headers()[header::ETAG], tag, "{path}");
        assert_eq!(head.headers()[header::CONTENT_LENGTH], length, "{path}");
        assert_eq!(bytes(head).await, b"", "{path}");
    }
}

#[tokio::test]
async fn error_says_what_is_near_which_part_is_bad_and_is_json_for_those_who_ask() {
    let site = enterprise().await;
    let (status, page) = site.get("/crcr/aurora-example/torch-auroa").await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    assert!(page.contains("href=\"/crcr/aurora-example/torch-aurora\""), "{page}");
    for (path, part) in [
        ("/pr/abc", "`abc` in the address has to be a whole number"),
        ("/pr/18446744073709551616", "`18446744073709551616` in the address is too large"),
        ("/prs?show=odd", "`show`"),
        ("/prs?sort=size", "`sort`"),
        ("/commit/xyz", "`xyz`"),
        ("/crcr?window=1y", "`window`"),
        ("/crcr?from=2016-01-01T00:00:00Z&to=2026-01-01T00:00:00Z", "at most 366 days"),
        ("/tests?days=9999", "`days`"),
    ] {
        let (status, page) = site.get(path).await;
        assert!(status == StatusCode::BAD_REQUEST && page.contains(part), "{path}: {page}");
        let json = ask(&site, path, &[(header::ACCEPT, "application/json")]).await;
        assert_eq!(json.headers()[header::CONTENT_TYPE], "application/json", "{path}");
        let json: serde_json::Value = serde_json::from_slice(&bytes(json).await).unwrap();
        assert!(json["detail"].as_str().unwrap().contains(part), "{path}: {json}");
        // What costs too much or can't be read is answered with a narrower address to click.
        if let Some((narrower, _)) = path.split_once('?') {
            let link = format!("<a href=\"{narrower}\"><bdi>This page with its usual filters");
            assert!(page.contains(&link), "{path}: {page}");
            assert_eq!(site.get(narrower).await.0, StatusCode::OK, "{path}");
        }
    }
}

#[tokio::test]
async fn wrong_parameter_is_400_on_every_page_and_twin_and_is_named() {
    let site = enterprise().await;
    let branch = format!("hud/{UPSTREAM}/main");
    for (page, twin, query) in [
        ("crcr", "overview", "rows=odd"),
        ("crcr", "overview", "heads=odd"),
        ("crcr", "overview", "from=yesterday"),
        (&*format!("crcr/{AURORA}"), &*format!("repositories/{AURORA}"), "events=odd"),
        (&*format!("crcr/{AURORA}/level"), &*format!("repositories/{AURORA}/level"), "level=L9"),
        (&*branch, &*branch, "before=yesterday"),
        (&*branch, &*branch, "job=abc"),
        (&*branch, &*branch, "rows=odd"),
        ("prs", "pulls", "before=yesterday"),
        ("prs", "pulls", "page=4"),
        (&*format!("crcr/{AURORA}"), &*format!("repositories/{AURORA}"), "page=0"),
        ("failures", "failures", "before=yesterday"),
        ("failures", "failures", "list=odd"),
        ("failures", "failures", "sort=odd"),
        ("failures", "failures", "before_job=abc"),
        ("failures", "failures", "like=odd"),
        ("failures", "failures", "page=0"),
        ("trends", "trends", "sort=odd"),
        ("tests", "tests", "sort=odd"),
        ("relay", "relay", "kind=odd"),
        ("reported", "reported", "kind=odd"),
        ("jobs", "jobs", "state=odd"),
        ("hud", "hud", "sort=odd"),
        (&*format!("crcr/{AURORA}"), &*format!("repositories/{AURORA}"), "sort=odd"),
    ] {
        let name = format!("`{}`", query.split('=').next().unwrap());
        for path in [format!("/{page}?{query}"), format!("/api/v1/{twin}?{query}")] {
            let (status, body) = site.get(&path).await;
            assert!(status == StatusCode::BAD_REQUEST && body.contains(&name), "{path}: {body}");
        }
    }
    // What an error leads to isn't an error again.
    let (_, page) = site.get(&format!("/test/{UPSTREAM}?days=0")).await;
    let near = "/tests?repo=acme%2Fupstream";
    assert!(page.contains(near) && !page.contains(&format!("href=\"/test/{UPSTREAM}\"")), "{page}");
    assert_eq!(site.get(near).await.0, StatusCode::OK);
}

#[tokio::test]
async fn api_is_described_with_every_twin_and_a_promise() {
    let site = site(vec![]).await;
    let document = site.json("/api/v1/openapi.json").await;
    assert!(document["info"]["description"].as_str().unwrap().contains("nothing is renamed"));
    let paths = document["paths"].as_object().unwrap();
    for twin in ["/api/v1/now", "/api/v1/pulls", "/api/v1/pulls/{number}", "/api/v1/commits/{sha}"]
    {
        let answer =
            &paths[twin]["get"]["responses"]["200"]["content"]["application/json"]["schema"];
        assert!(answer.is_object(), "{twin}: {answer}");
    }
    // As `spectral lint` wants it.
    for (path, methods) in paths {
        let is_report = path == "/github/callback";
        let operation = &methods[if is_report { "post" } else { "get" }];
        let description = operation["description"].as_str().unwrap_or_default();
        let tag = if is_report { "reports" } else { "pages" };
        assert!(!description.is_empty() && operation["tags"] == json!([tag]), "{path}");
    }
    assert_eq!(bare_arrays(&document), 0, "each array says of what");
    let source = include_str!("../routes.rs");
    let twins = source.matches("\"/api/v1/").count() + source.matches("\"/api/crcr/").count();
    let described = paths.keys().filter(|path| path.starts_with("/api/")).count();
    assert!(described >= 15 && described < twins, "{described} of {twins}");
}

/// Whoever has no `crcr report` for their CI writes a report by this.
#[tokio::test]
async fn api_describes_every_field_of_a_report_that_the_relay_reads() {
    let site = site(vec![]).await;
    let document = site.json("/api/v1/openapi.json").await;
    let content = &document["paths"]["/github/callback"]["post"]["requestBody"]["content"];
    let body = &content["application/json"]["schema"];
    let fields = &body["properties"]["workflow"]["properties"];
    let readers = [
        include_str!("../../../crcr-domain/src/protocol/callback.rs"),
        include_str!("../../../crcr-domain/src/protocol/callback/details.rs"),
    ];
    let names = readers.iter().flat_map(|source| source.split("get(\"").skip(1));
    let names: BTreeSet<_> = names.filter_map(|rest| rest.split('"').next()).collect();
    assert!(names.len() > 15, "{names:?}");
    // That is one of a failed test.
    for name in names.iter().filter(|name| **name != "duration") {
        assert!(fields[name].is_object(), "`{name}`");
    }
    let test = &document["components"]["schemas"]["FailedTest"];
    assert!(test["properties"]["duration"].is_object(), "{test}");
    // A report with all that is required.
    let report = json!({
        "delivery_id": "d", "workflow": { "status": "in_progress", "run_id": 7, "name": "CI" },
    });
    let keys = |value: &serde_json::Value| -> BTreeSet<String> {
        value.as_object().unwrap().keys().cloned().collect()
    };
    let required = |schema: &serde_json::Value| -> BTreeSet<String> {
        serde_json::from_value(schema["required"].clone()).unwrap()
    };
    assert_eq!(required(body), keys(&report));
    assert_eq!(required(&body["properties"]["workflow"]), keys(&report["workflow"]));
    let read = crcr_domain::protocol::callback::read(report.to_string().as_bytes()).unwrap();
    assert!(read.details.warnings.is_empty(), "{:?}", read.details.warnings);
}

/// Schemas of arrays that don't say what is in them.
fn bare_arrays(value: &serde_json::Value) -> usize {
    let is_array = value["type"].to_string().contains("\"array\"");
    let own = usize::from(is_array && value.get("items").is_none());
    let fields = value.as_object().into_iter().flatten().map(|(_, field)| field);
    own + fields.chain(value.as_array().into_iter().flatten()).map(bare_arrays).sum::<usize>()
}

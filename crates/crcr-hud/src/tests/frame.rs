use super::*;

#[tokio::test]
async fn page_is_503_with_retry_after_while_too_many_are_computed() {
    let site = site(vec![]).await;
    let all = u32::try_from(crate::context::MAX_CONCURRENT_PAGES).unwrap();
    let held = Arc::clone(&site.hud.page_permits).acquire_many_owned(all).await.unwrap();
    let request = Request::get("/crcr").body(Body::empty()).unwrap();
    let answer = site.router.clone().oneshot(request).await.unwrap();
    assert_eq!(answer.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(answer.headers()["retry-after"], "5");
    drop(held);
    assert_eq!(site.get("/crcr").await.0, StatusCode::OK);
}

#[tokio::test]
async fn page_is_503_at_once_while_hundreds_wait() {
    let site = site(vec![]).await;
    let all = u32::try_from(crate::context::MAX_CONCURRENT_PAGES).unwrap();
    let _held = Arc::clone(&site.hud.page_permits).acquire_many_owned(all).await.unwrap();
    let waiting: Vec<_> = (0..crate::context::MAX_WAITING_PAGES)
        .map(|_| {
            let request = Request::get("/crcr").body(Body::empty()).unwrap();
            tokio::spawn(site.router.clone().oneshot(request))
        })
        .collect();
    while site.hud.page_queue.available_permits() > 0 {
        tokio::task::yield_now().await;
    }
    let asked_at = std::time::Instant::now();
    assert_eq!(site.get("/crcr").await.0, StatusCode::SERVICE_UNAVAILABLE);
    assert!(asked_at.elapsed() < std::time::Duration::from_secs(2), "{:?}", asked_at.elapsed());
    assert!(waiting.iter().all(|page| !page.is_finished()), "these have their turn");
}

#[tokio::test]
async fn nothing_and_nonsense_have_words_of_their_own() {
    let site = site(vec![]).await;
    let (status, page) = site.get("/crcr").await;
    assert_eq!(status, StatusCode::OK);
    assert!(page.contains("No results in this span."), "{page}");
    for (path, expected) in [
        ("/pr/1", StatusCode::NOT_FOUND),
        ("/crcr/no-such/repo", StatusCode::NOT_FOUND),
        ("/crcr/-odd-/repo", StatusCode::NOT_FOUND),
        ("/crcr?window=1y", StatusCode::BAD_REQUEST),
        ("/crcr/cedar-example/torch-cedar/level?level=L5", StatusCode::BAD_REQUEST),
        ("/pr/1?upstream=odd", StatusCode::BAD_REQUEST),
    ] {
        let (status, page) = site.get(path).await;
        assert_eq!(status, expected, "{path}");
        assert!(page.contains("All backends"), "{path}: {page}");
    }
    let page = site.page_with("/pr/1", "nothing is stored about pull request 1").await;
    assert!(page.contains("This pull request on GitHub") && !page.contains("Is it one"), "{page}");
}

#[tokio::test]
async fn job_test_or_branch_that_is_unknown_leads_to_those_of_its_repository_that_are_known() {
    let site = site(vec![]).await;
    for (path, links) in [
        ("failure/acme/upstream/1", vec!["failures?repo=acme%2Fupstream", "hud/acme/upstream"]),
        ("test/acme/upstream?name=no", vec!["tests?repo=acme%2Fupstream"]),
        ("hud/acme/upstream/no/such", vec!["hud/acme/upstream", "hud"]),
        ("hud/acme/upstraem", vec!["hud"]),
    ] {
        let (status, page) = site.get(&format!("/{path}")).await;
        assert_eq!(status, StatusCode::NOT_FOUND, "{path}");
        for link in links {
            assert!(page.contains(&format!("<li><a href=\"/{link}\">")), "{link}: {page}");
        }
    }
}

#[tokio::test]
async fn forms_keep_the_order_and_the_filters_that_they_do_not_ask_for() {
    let site = site(facts(7, now(), 3, 3, UPSTREAM)).await.with_logs("", |_| {});
    for (path, form, kept) in [
        ("failures?sort=newest", "/failures", vec![("sort", "newest")]),
        ("quarantine?sort=owner", "/quarantine", vec![("sort", "owner")]),
        ("trends?runner=linux&sort=-run", "/trends", vec![("sort", "-run"), ("runner", "linux")]),
        (
            "crcr?q=torch&sort=queue&events=nightly",
            "/crcr",
            vec![("q", "torch"), ("sort", "queue"), ("events", "nightly")],
        ),
        (
            &*format!("crcr/{AURORA}?heads=all&rows=failing&q=build&events=pr"),
            &*format!("/crcr/{AURORA}"),
            vec![("heads", "all"), ("rows", "failing"), ("q", "build"), ("events", "pr")],
        ),
        (
            "prs?before=2026-09-15T11:00:00Z&sort=-since",
            "/prs",
            vec![("before", "2026-09-15T11:00:00Z"), ("sort", "-since")],
        ),
        (
            &*format!("hud/{UPSTREAM}/main?before=2026-09-15T11:00:00Z&rows=all&open=CI+/+a"),
            &*format!("/hud/{UPSTREAM}/main"),
            vec![("before", "2026-09-15T11:00:00Z"), ("rows", "all"), ("open", "CI / a")],
        ),
    ] {
        let (_, page) = site.get(&format!("/{path}")).await;
        let (_, rest) = page.split_once(&format!("action=\"{form}\"")).expect(path);
        let fields = rest.split("</form>").next().unwrap();
        for (name, value) in kept {
            let field = format!("<input type=\"hidden\" name=\"{name}\" value=\"{value}\">");
            assert_eq!(fields.matches(&field).count(), 1, "{path}: {field}: {fields}");
        }
    }
}

#[tokio::test]
async fn parameter_that_should_name_a_repository_is_400_on_every_page_if_it_names_none() {
    let site = site(vec![]).await;
    let pages = ["/trends?repo", "/jobs?repo", "/quarantine?repo", "/tests?repo", "/failures?repo"];
    let pages = pages.into_iter().chain(["/reported?backend", "/relay?backend", "/pr/1?upstream"]);
    for page in pages {
        for wrong in ["x", "../.."] {
            let (status, text) = site.get(&format!("{page}={wrong}")).await;
            assert_eq!(status, StatusCode::BAD_REQUEST, "{page}={wrong}");
            assert!(text.contains("has to be `owner/repo`"), "{text}");
        }
    }
}

#[tokio::test]
async fn blank_parameter_is_an_absent_one_on_every_page() {
    let site = site(facts(7, now(), 2, 10, UPSTREAM)).await;
    let sha = "b7".repeat(20);
    let job = json!({
        "id": 5, "name": "build", "workflow_name": "CI", "status": "completed", "conclusion": "failure",
        "head_sha": sha, "head_branch": "main",
    });
    let push = json!({
        "ref": "refs/heads/main", "after": sha,
        "head_commit": { "message": "One", "author": { "name": "Ada" } },
    });
    let job = ("workflow_job", 1, json!({ "workflow_job": job }));
    site.add_webhooks(vec![("push", 2, push), job]).await;
    let document = site.json("/api/v1/openapi.json").await;
    let mut seen = 0;
    for (address, methods) in document["paths"].as_object().unwrap() {
        let repository = if address.contains("/repositories/") { AURORA } else { UPSTREAM };
        let named = [("{owner}/{repo}", repository), ("{sha}", &*sha), ("{number}", "101002")];
        let named = named.into_iter().chain([("{branch}", "main"), ("{job}", "5")]);
        let path = named.fold(address.clone(), |path, (name, value)| path.replace(name, value));
        let absent = site.get(&path).await;
        for parameter in methods["get"]["parameters"].as_array().into_iter().flatten() {
            if parameter["in"] == "query" {
                let asked = format!("{path}?{}=%20+", parameter["name"].as_str().unwrap());
                assert_eq!(site.get(&asked).await, absent, "{asked}");
                seen += 1;
            }
        }
    }
    assert!(seen > 60, "{seen}");
}

#[tokio::test]
async fn hostile_words_are_shown_as_text() {
    let evil = "\"><script>alert(1)</script>\u{202e}".to_owned() + &"x".repeat(200);
    let mut facts = facts(7, now(), 2, 10, UPSTREAM);
    for fact in &mut facts {
        if let Fact::Attempt(row) = fact {
            row.job = Some(evil.clone());
            row.workflow = "ci (L4)".to_owned();
            row.details.url = Some("javascript:alert(1)".to_owned());
            row.state = JobState::Completed(Conclusion::Failure);
            for test in &mut row.details.failed_tests {
                test.name.clone_from(&evil);
                test.message = Some(evil.clone());
            }
        }
    }
    let site = site(facts).await;
    for path in ["/crcr", "/crcr/aurora-example/torch-aurora", "/pr/101002"] {
        let (_, page) = site.get(path).await;
        assert!(!page.contains("<script>alert"), "{path}");
        assert!(!page.contains("href=\"javascript:"), "{path}");
    }
    // A job's name says nothing about its level.
    let page = site.json("/api/v1/repositories/cedar-example/torch-cedar").await;
    assert_eq!(page["level"], "L2");
}

/// The colours of one scheme, by name.
fn colours(css: &str) -> std::collections::BTreeMap<String, [f64; 3]> {
    let mut colours = std::collections::BTreeMap::new();
    for part in css.split(['{', ';', '}']) {
        let Some((name, value)) = part.trim().split_once(':') else { continue };
        let (Some(name), Some(hex)) = (name.strip_prefix("--"), value.trim().strip_prefix('#'))
        else {
            continue;
        };
        let channel = |n: usize| f64::from(u8::from_str_radix(&hex[n..n + 2], 16).unwrap()) / 255.0;
        colours.insert(name.to_owned(), [channel(0), channel(2), channel(4)]);
    }
    colours
}

/// <https://www.w3.org/TR/WCAG22/#dfn-contrast-ratio>
fn contrast(a: [f64; 3], b: [f64; 3]) -> f64 {
    let luminance = |colour: [f64; 3]| {
        let linear =
            colour.map(|c| if c <= 0.04045 { c / 12.92 } else { ((c + 0.055) / 1.055).powf(2.4) });
        0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    };
    let (a, b) = (luminance(a), luminance(b));
    (a.max(b) + 0.05) / (a.min(b) + 0.05)
}

/// The longest, of `/prs`, is wider than a phone.
#[test]
fn group_of_filters_wraps_on_a_narrow_screen() {
    let rule = crate::layout::STYLE.split_once("\n.group {").unwrap().1.split_once('}').unwrap().0;
    assert!(rule.contains("flex-wrap: wrap"), "{rule}");
}

#[test]
fn every_text_can_be_read_in_both_schemes() {
    assert!((contrast([0.0; 3], [1.0; 3]) - 21.0).abs() < 1e-9);
    let css = crate::layout::STYLE;
    let (light, rest) = css.split_once("@media (prefers-color-scheme: dark)").unwrap();
    let dark = rest.split_once("}\n}").unwrap().0;
    let mut pairs = vec![];
    let grounds = ["ground", "panel", "good-tint", "bad-tint", "infra-tint", "running-tint"];
    for text in ["text", "muted", "link"] {
        pairs.extend(grounds.map(|ground| (text, ground, 4.5)));
    }
    for outcome in ["good", "bad", "infra", "running"] {
        pairs.extend(grounds.map(|ground| (outcome, ground, 4.5)));
    }
    // A button's text, and the chosen one of a group; then lines, which need less.
    pairs.push(("ground", "link", 4.5));
    pairs.extend([("a", "ground", 3.0), ("b", "ground", 3.0)]);
    for (scheme, text) in [("light", light), ("dark", dark)] {
        let colours = colours(text);
        for (text, ground, least) in &pairs {
            let ratio = contrast(colours[*text], colours[*ground]);
            assert!(ratio >= *least, "{scheme}: {text} on {ground} is {ratio:.2}, under {least}");
        }
    }
}

#[tokio::test]
async fn what_has_no_twin_names_a_wrong_parameter_too() {
    let site = site(vec![]).await;
    let (status, page) = site.get("/search?q=a&q=b").await;
    assert_eq!(status, StatusCode::BAD_REQUEST, "{page}");
    assert!(
        page.contains("<h1>Wrong address</h1>") && page.contains("duplicate field `q`"),
        "{page}"
    );
    let badge = format!("/crcr/{AURORA}/badge.svg?window=7d&window=24h");
    for (path, said) in [
        (&*badge, "duplicate field `window`"),
        ("/test/acme/upstream/feed.atom?id=1&id=2", "duplicate field `id`"),
        ("/failure/acme/upstream/1/log.txt?download=1&download=2", "duplicate field `download`"),
        ("/crcr/%ff/upstream/badge.svg", "the address isn't UTF-8"),
        ("/crcr/%ff/upstream/feed.atom", "the address isn't UTF-8"),
    ] {
        let (status, answer) = site.get(path).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{path}: {answer}");
        let detail = serde_json::from_str::<serde_json::Value>(&answer).unwrap()["detail"].take();
        let is_bare = !answer.contains("Failed to deserialize");
        assert!(detail.as_str().unwrap().contains(said) && is_bare, "{path}: {answer}");
    }
}

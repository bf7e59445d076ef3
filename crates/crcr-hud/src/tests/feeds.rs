//! Feeds of what turned red and is green again, and answers to which commit broke what.

use crcr_domain::probes::{Culprit, ProbesOverview, SuspectCommit};

use super::jobs::month;
use super::*;

const PUBLIC_URL: &str = "https://hud.example";

/// The links of a feed and of its entries.
fn links(feed: &str) -> Vec<&str> {
    let parts = feed.split("href=\"").skip(1);
    parts.filter_map(|rest| rest.split('"').next()).collect()
}

/// The titles of its entries.
fn titles(feed: &str) -> Vec<&str> {
    let entries = feed.split("<entry>").skip(1);
    entries.filter_map(|entry| entry.split("<title>").nth(1)?.split("</title>").next()).collect()
}

#[tokio::test]
async fn branch_and_test_have_feeds_of_red_and_green_with_absolute_links() {
    let site = month().await.with_logs("file:/none", |hud| {
        hud.public_url = Some(PUBLIC_URL.to_owned());
    });
    let test = "name=TestProcessGroup.test_all_reduce";
    for (feed, page) in [
        (format!("/feeds/{UPSTREAM}/main"), format!("/hud/{UPSTREAM}/main")),
        (format!("/test/{UPSTREAM}/feed.atom?{test}"), format!("/test/{UPSTREAM}?{test}")),
        ("/crcr/feed.atom".to_owned(), "/crcr".to_owned()),
    ] {
        let (status, atom) = site.get(&feed).await;
        assert_eq!(status, StatusCode::OK, "{feed}: {atom}");
        let titles = titles(&atom);
        assert!(titles.iter().any(|title| title.contains(" turned red ")), "{feed}: {titles:?}");
        let ids = atom.split("<id>").skip(1).map(|rest| rest.split("</id>").next().unwrap());
        let in_iri = |c: char| c.is_ascii_alphanumeric() || ":/@-_.~%".contains(c);
        for id in ids {
            assert!(id.starts_with("urn:crcr:") && id.chars().all(in_iri), "{feed}: {id}");
        }
        let is_absolute = |link: &&str| link.starts_with(&format!("{PUBLIC_URL}/"));
        assert!(links(&atom).iter().all(is_absolute), "{feed}: {atom}");
        for link in links(&atom).into_iter().take(6) {
            let path = link[PUBLIC_URL.len()..].replace("&amp;", "&");
            assert_eq!(site.get(&path).await.0, StatusCode::OK, "{feed} leads to {path}");
        }
        let (_, page) = site.get(&page).await;
        let path = feed.split('?').next().unwrap();
        assert!(page.contains(&format!("href=\"{path}")), "{path} isn't linked: {page}");
    }
    let (_, atom) = site.get(&format!("/feeds/{UPSTREAM}/main")).await;
    let titles = titles(&atom);
    assert!(titles.iter().any(|title| title.contains(" is green again ")), "{titles:?}");
    assert!(titles.iter().all(|title| title.contains(" on main at ")), "{titles:?}");
    for unknown in [
        format!("/feeds/{UPSTREAM}/none"),
        format!("/test/{UPSTREAM}/feed.atom?name=n"),
        "/crcr/no-such/repo/feed.atom".to_owned(),
    ] {
        assert_eq!(site.get(&unknown).await.0, StatusCode::NOT_FOUND, "{unknown}");
    }
}

#[tokio::test]
async fn answer_to_which_commit_broke_a_test_is_on_the_branch_and_on_the_page_of_the_test() {
    let plain = month().await;
    let grid = plain.json(&format!("/api/v1/hud/{UPSTREAM}/main")).await;
    let bad_sha = grid["commits"][2]["sha"].as_str().unwrap().to_owned();
    let title = "<b>Fuse</b> kernels (#7)".to_owned();
    let culprit = Culprit {
        repo: "aurora-example/torch-aurora".to_owned(),
        upstream: UPSTREAM.to_owned(),
        workflow: "ci".to_owned(),
        job: Some("test".to_owned()),
        tests: vec!["TestProcessGroup.test_all_reduce".to_owned()],
        good_sha: "a".repeat(40),
        bad_sha: bad_sha.clone(),
        candidates: 4,
        suspect: Some(SuspectCommit::new(bad_sha, title, None)),
        backend_changed: false,
        certainty: 0.997,
        is_certain: true,
        runs: 6,
        at: now(),
    };
    let site = plain.with_logs("file:/none", |hud| {
        let overview = ProbesOverview { culprits: vec![culprit], ..ProbesOverview::default() };
        hud.probes = Box::new(move || {
            let overview = overview.clone();
            Box::pin(async move { overview })
        });
    });
    let test = format!("/test/{UPSTREAM}?name=TestProcessGroup.test_all_reduce");
    for path in [format!("/hud/{UPSTREAM}/main"), test] {
        let (_, page) = site.get(&path).await;
        assert!(page.contains("Which commit broke what"), "{path}: {page}");
        assert!(page.contains("99.7 % certain after 6 runs"), "{path}: {page}");
        assert!(page.contains("&lt;b&gt;Fuse"), "{path}: {page}");
    }
    for other in [
        format!("/test/{UPSTREAM}?name=TestRandom.test_seed_per_device"),
        "/crcr/dune-example/torch-dune".to_owned(),
    ] {
        let (_, page) = site.get(&other).await;
        assert!(!page.contains("Which commit broke what"), "{other}: {page}");
    }
}

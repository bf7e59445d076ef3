//! Artifacts in a server that answers as Forgejo's artifact service does: it is made after `artifactsv4.go` and
//! `artifacts_chunks.go` of Forgejo 9. `peer_gitea` has a real Gitea.

use std::collections::BTreeMap;
use std::fs;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use crcr_artifacts::digest::Digest;
use crcr_standin::server::{Bound, Server};
use serde_json::{Value, json};
use url::Url;

use crate::support::{Crcr, Ran};

#[derive(Default)]
struct Run {
    url: String,
    /// The blocks of all uploads of the run, by length and id: nothing tells to which artifact they belong.
    blocks: BTreeMap<(usize, String), Bytes>,
    /// The ids that make up an artifact.
    lists: BTreeMap<String, Vec<String>>,
    stored: BTreeMap<String, Vec<u8>>,
    is_full: bool,
    /// Whether downloads are served by a storage behind it (`SERVE_DIRECT`).
    is_direct: bool,
    /// An artifact that isn't finished before another one is.
    waits: Option<(&'static str, &'static str)>,
}

struct ForgejoServer {
    server: Server,
    run: Arc<Mutex<Run>>,
}

impl ForgejoServer {
    fn start() -> Self {
        let bound = Bound::loopback().unwrap();
        let run = Run { url: bound.url().to_string(), ..Run::default() };
        let run = Arc::new(Mutex::new(run));
        let router = Router::new().fallback(serve).with_state(Arc::clone(&run));
        Self { server: bound.serve(router).unwrap(), run }
    }

    /// A step with what the runner of Forgejo gives it, on a server without TLS.
    fn step(&self, args: &[&str]) -> Crcr {
        let claims = json!({"scp": "Actions.Results:7:9"}).to_string();
        let token = format!("e30.{}.sig", URL_SAFE_NO_PAD.encode(claims));
        Crcr::step(&[&["artifact"], args].concat(), "push", &json!({}))
            .env("CRCR_RUNTIME_TOKEN", &token)
            .env("CRCR_RESULTS_URL", self.server.url().as_str())
            .env("GITEA_ACTIONS", "true")
            .env("GITHUB_SERVER_URL", "http://forgejo.example:3000")
            .env("GITHUB_API_URL", "http://forgejo.example:3000/api/v1")
            .env("GITHUB_TOKEN", "of-the-runner")
            .env("CRCR_RETRY_SECONDS", "5")
    }

    fn upload(&self, name: &str, content: &[u8], more: &[&str]) -> Ran {
        let args = ["upload", "--name", name, "--path", "in.bin", "--compression-level", "0"];
        let step = self.step(&[&args[..], more].concat());
        fs::write(step.folder().join("in.bin"), content).unwrap();
        step.run()
    }

    fn download(&self, name: &str) -> Ran {
        self.step(&["download", "--name", name, "--path", "out"]).run()
    }
}

fn text(status: u16, text: &'static str) -> Response {
    (StatusCode::from_u16(status).unwrap(), text).into_response()
}

async fn serve(
    State(run): State<Arc<Mutex<Run>>>,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let url = Url::parse(&format!("http://any{uri}")).unwrap();
    let query: BTreeMap<_, _> = url.query_pairs().into_owned().collect();
    let asked: Value = serde_json::from_slice(&body).unwrap_or_default();
    let of_body = asked["name"].as_str().map(str::to_owned);
    let name = of_body.or(query.get("artifactName").cloned()).unwrap_or_default();
    let signed = |run: &Run, method: &str| {
        let base = format!("{}twirp/github.actions.results.api.v1.ArtifactService", run.url);
        format!("{base}/{method}?sig=a_b%3D&artifactName={name}&taskID=9")
    };
    match url.path().rsplit('/').next().unwrap_or_default() {
        "CreateArtifact" if !asked["mime_type"].is_null() => text(500, "Error decode request body"),
        "CreateArtifact" => {
            let url = signed(&run.lock().unwrap(), "UploadArtifact");
            axum::Json(json!({"ok": true, "signedUploadUrl": url})).into_response()
        }
        "UploadArtifact" if run.lock().unwrap().is_full => text(413, "Quota exceeded"),
        "UploadArtifact" => {
            let mut run = run.lock().unwrap();
            match query.get("comp").map(String::as_str) {
                Some("block") => {
                    run.blocks.insert((body.len(), query["blockid"].clone()), body);
                }
                Some("blocklist") => {
                    let xml = String::from_utf8_lossy(&body).into_owned();
                    let ids = xml.split("<Latest>").skip(1);
                    let ids = ids.filter_map(|id| Some(id.split_once("</")?.0.to_owned()));
                    run.lists.insert(name, ids.collect());
                }
                _ => return StatusCode::OK.into_response(),
            }
            text(201, "\"appended\"")
        }
        "FinalizeArtifact" => {
            loop {
                let waits = run.lock().unwrap().waits;
                let Some((_, other)) = waits.filter(|(waiting, _)| *waiting == name) else { break };
                if run.lock().unwrap().stored.contains_key(other) {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            let mut run = run.lock().unwrap();
            let mut merged = vec![];
            for id in run.lists.get(&name).cloned().unwrap_or_default() {
                let Some(key) = run.blocks.keys().rev().find(|(_, found)| *found == id).cloned()
                else {
                    return text(500, "Error merge chunks");
                };
                merged.extend(run.blocks.remove(&key).unwrap());
            }
            if asked["hash"] != Digest::of(&merged).to_string() {
                return text(500, "Error merge chunks");
            }
            run.stored.insert(name, merged);
            axum::Json(json!({"ok": true, "artifactId": "4"})).into_response()
        }
        "ListArtifacts" if run.lock().unwrap().stored.is_empty() => text(404, "Not Found\n"),
        "ListArtifacts" => {
            let listed = run.lock().unwrap();
            let listed = listed.stored.iter().map(|(name, bytes)| {
                json!({"workflowRunBackendId": "7", "workflowJobRunBackendId": "9",
                    "databaseId": "4", "name": name, "size": bytes.len().to_string()})
            });
            let listed: Vec<_> = listed.collect();
            axum::Json(json!({"artifacts": listed})).into_response()
        }
        "GetSignedArtifactURL" => {
            let run = run.lock().unwrap();
            let url = match run.is_direct {
                true => format!("{}storage/DownloadArtifact?artifactName={name}", run.url),
                false => signed(&run, "DownloadArtifact"),
            };
            axum::Json(json!({"signedUrl": url})).into_response()
        }
        "DownloadArtifact" => {
            let bytes = run.lock().unwrap().stored[&name].clone();
            let disposition = format!("inline; filename=\"{name}\"");
            let of_file = [
                (header::CONTENT_TYPE, "application/octet-stream".to_owned()),
                (header::CONTENT_DISPOSITION, disposition),
            ];
            let range = headers.get(header::RANGE).and_then(|range| range.to_str().ok());
            let Some((start, end)) = range.and_then(|range| range[6..].split_once('-')) else {
                return (of_file, bytes).into_response();
            };
            let (start, end): (usize, usize) = (start.parse().unwrap(), end.parse().unwrap());
            let end = end.min(bytes.len() - 1);
            let of_range =
                [(header::CONTENT_RANGE, format!("bytes {start}-{end}/{}", bytes.len()))];
            let part = bytes[start..=end].to_vec();
            (StatusCode::PARTIAL_CONTENT, of_file, of_range, part).into_response()
        }
        "DeleteArtifact" => axum::Json(json!({"ok": true, "artifactId": "4"})).into_response(),
        other => panic!("{other}"),
    }
}

#[test]
fn zip_that_forgejo_calls_plain_bytes_is_unpacked() {
    let forgejo = ForgejoServer::start();
    forgejo.upload("build", b"built", &[]).expect_code(0);
    for is_direct in [false, true] {
        forgejo.run.lock().unwrap().is_direct = is_direct;
        let ran = forgejo.download("build").expect_code(0);
        assert_eq!(fs::read(ran.path("out/in.bin")).unwrap(), b"built", "{}", ran.report());
    }
    // The server keeps zips alone.
    forgejo.upload("in.bin", b"raw", &["--archive", "none"]).expect_code(0);
    let ran = forgejo.download("in.bin").expect_code(0);
    assert_eq!(fs::read(ran.path("out/in.bin")).unwrap(), b"raw", "{}", ran.report());
}

#[test]
fn uploads_of_one_run_at_the_same_time_keep_their_own_bytes() {
    let forgejo = ForgejoServer::start();
    forgejo.run.lock().unwrap().waits = Some(("a", "b"));
    std::thread::scope(|scope| {
        let first = scope.spawn(|| forgejo.upload("a", b"of the first", &[]));
        while !forgejo.run.lock().unwrap().lists.contains_key("a") && !first.is_finished() {
            std::thread::sleep(Duration::from_millis(20));
        }
        forgejo.upload("b", b"the second's", &[]).expect_code(0);
        first.join().unwrap().expect_code(0);
    });
    for (name, content) in [("a", b"of the first"), ("b", b"the second's")] {
        let ran = forgejo.download(name).expect_code(0);
        assert_eq!(fs::read(ran.path("out/in.bin")).unwrap(), content, "{name}");
    }
}

/// Forgejo itself gives the name away again.
#[test]
fn artifact_of_another_job_at_forgejo_is_replaced_by_a_later_attempt_or_overwrite_alone() {
    let forgejo = ForgejoServer::start();
    forgejo.upload("build", b"of the first", &[]).expect_code(0);
    let stored = |content: &[u8]| {
        let ran = forgejo.download("build").expect_code(0);
        assert_eq!(fs::read(ran.path("out/in.bin")).unwrap(), content, "{}", ran.report());
    };
    let refused = forgejo.upload("build", b"the second's", &[]).expect_code(1);
    assert!(refused.stderr.contains("the run has an artifact `build`"), "{}", refused.report());
    assert!(refused.stderr.contains("or set `overwrite`"), "{}", refused.report());
    stored(b"of the first");
    forgejo.upload("build", b"on purpose", &["--overwrite", "true"]).expect_code(0);
    stored(b"on purpose");
    let step = forgejo.step(&["upload", "--name", "build", "--path", "in.bin"]);
    fs::write(step.folder().join("in.bin"), b"again").unwrap();
    step.env("GITHUB_RUN_ATTEMPT", "2").run().expect_code(0);
    stored(b"again");
}

#[test]
fn job_without_a_token_of_forgejo_is_told_of_its_own_key() {
    let role = "arn:aws:iam::123456789012:role/ci";
    let args = ["oidc", "configure", "--role-to-assume", role, "--aws-region", "us-east-1"];
    let ran = Crcr::step(&args, "push", &json!({})).env("GITEA_ACTIONS", "true").run();
    let ran = ran.expect_code(1);
    assert!(ran.stderr.contains("`enable-openid-connect: true`"), "{}", ran.report());
}

#[test]
fn what_is_missing_or_full_at_forgejo_isnt_said_of_enterprise_server() {
    let forgejo = ForgejoServer::start();
    let ran = forgejo.download("build").expect_code(1);
    assert!(ran.stderr.contains("there is no artifact `build`"), "{}", ran.report());
    let all = forgejo.step(&["download", "--pattern", "*", "--path", "out"]).run().expect_code(0);
    assert!(all.stderr.contains("no artifact matches"), "{}", all.report());
    forgejo.run.lock().unwrap().is_full = true;
    let full = forgejo.upload("build", b"built", &[]).expect_code(2);
    assert!(full.stderr.contains("error title=crcr[quota]"), "{}", full.report());
    let warned = forgejo.upload("build", b"built", &["--on-quota", "warn"]).expect_code(0);
    assert_eq!(warned.outputs["reason"], "quota");
    for ran in [ran, all, full, warned] {
        assert!(!ran.stderr.contains("Enterprise Server"), "{}", ran.report());
    }
}

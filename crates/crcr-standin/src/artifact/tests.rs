//! The rules of the service and the storage, seen by a client.

use std::collections::BTreeMap;
use std::time::Duration;

use aws_lc_rs::digest;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use reqwest::{Client, Method, RequestBuilder, Response};
use serde_json::{Value, json};

use crate::StandIn;
use crate::runs::{Job, Run};
use crate::traffic::Fault;

/// A client with one job's token.
struct Caller {
    job: Job,
    environment: BTreeMap<&'static str, String>,
    http: Client,
}

impl Caller {
    fn new(github: &StandIn, run: Run) -> Self {
        let runs = &github.state().runs;
        let job = runs.add_job(runs.add(run), "build");
        let environment = github.state().job_environment(&job);
        let http = Client::builder().redirect(reqwest::redirect::Policy::none()).build().unwrap();
        Self { job, environment, http }
    }

    fn request(&self, method: &str, fields: &Value) -> RequestBuilder {
        let mut body = json!({
            "workflow_run_backend_id": self.job.run.backend_id(),
            "workflow_job_run_backend_id": self.job.backend_id,
        });
        for (name, value) in fields.as_object().unwrap() {
            body[name] = value.clone();
        }
        let service = "twirp/github.actions.results.api.v1.ArtifactService";
        let url = format!("{}{service}/{method}", self.environment["ACTIONS_RESULTS_URL"]);
        self.http.post(url).bearer_auth(&self.environment["ACTIONS_RUNTIME_TOKEN"]).json(&body)
    }

    /// Status and answer of a call.
    async fn call(&self, method: &str, fields: Value) -> (u16, Value) {
        let response = self.request(method, &fields).send().await.unwrap();
        (response.status().as_u16(), response.json().await.unwrap_or_default())
    }

    async fn create(&self, name: &str) -> String {
        let fields = json!({ "name": name, "version": 7, "mime_type": "application/zip" });
        let (status, answer) = self.call("CreateArtifact", fields).await;
        assert_eq!((status, &answer["ok"]), (200, &json!(true)), "{answer}");
        answer["signed_upload_url"].as_str().unwrap().to_owned()
    }

    async fn put(&self, url: &str, more: &str, bytes: &[u8]) -> Response {
        let request = self.http.put(format!("{url}{more}")).body(bytes.to_vec());
        let request = request.header("content-length", bytes.len());
        request.header("x-ms-blob-type", "BlockBlob").send().await.unwrap()
    }

    async fn block(&self, url: &str, id: &str, bytes: &[u8]) -> Response {
        let id = STANDARD.encode(id).replace('=', "%3D");
        self.put(url, &format!("&comp=block&blockid={id}"), bytes).await
    }

    async fn commit(&self, url: &str, ids: &[&str]) -> Response {
        let ids = ids.iter().map(|id| format!("<Latest>{}</Latest>", STANDARD.encode(id)));
        let list: String = ids.collect();
        let list = format!("<?xml version=\"1.0\"?><BlockList>{list}</BlockList>");
        self.put(url, "&comp=blocklist", list.as_bytes()).await
    }

    async fn upload(&self, name: &str, bytes: &[u8]) -> u64 {
        let url = self.create(name).await;
        assert_eq!(self.put(&url, "", bytes).await.status(), 201);
        let (status, answer) = self.finalize(name, bytes.len(), &sha256(bytes)).await;
        assert_eq!(status, 200, "{answer}");
        answer["artifact_id"].as_str().unwrap().parse().unwrap()
    }

    async fn finalize(&self, name: &str, size: usize, hash: &str) -> (u16, Value) {
        let fields = json!({ "name": name, "size": size.to_string(), "hash": hash });
        self.call("FinalizeArtifact", fields).await
    }

    async fn signed_url(&self, name: &str) -> String {
        let (status, answer) = self.call("GetSignedArtifactURL", json!({ "name": name })).await;
        assert_eq!(status, 200, "{answer}");
        answer["signed_url"].as_str().unwrap().to_owned()
    }

    async fn names(&self, fields: Value) -> Vec<String> {
        let (_, answer) = self.call("ListArtifacts", fields).await;
        let listed = answer["artifacts"].as_array().cloned().unwrap_or_default();
        listed.iter().map(|artifact| artifact["name"].as_str().unwrap().to_owned()).collect()
    }

    async fn get(&self, url: &str, header: (&str, &str)) -> Response {
        self.http.get(url).header(header.0, header.1).send().await.unwrap()
    }
}

fn sha256(bytes: &[u8]) -> String {
    format!("sha256:{}", hex::encode(digest::digest(&digest::SHA256, bytes)))
}

async fn code(response: Response) -> (u16, String) {
    let code = response.headers().get("x-ms-error-code");
    let code = code.map(|value| value.to_str().unwrap().to_owned()).unwrap_or_default();
    (response.status().as_u16(), code)
}

#[tokio::test]
async fn artifact_uploaded_in_blocks_can_be_downloaded() {
    let github = StandIn::start().unwrap();
    let caller = Caller::new(&github, Run::fork());
    let url = caller.create("logs").await;
    assert_eq!(caller.block(&url, "b-1", b"world").await.status(), 201);
    assert_eq!(caller.block(&url, "b-0", b"hello ").await.status(), 201);
    assert_eq!(caller.block(&url, "b-9", b"never listed").await.status(), 201);
    assert_eq!(caller.commit(&url, &["b-0", "b-1"]).await.status(), 201);
    assert_eq!(github.state().artifacts.stored_bytes(), 11, "unlisted blocks are gone");

    let digest = sha256(b"hello world");
    let (status, answer) = caller.finalize("logs", 11, &digest).await;
    assert_eq!((status, &answer), (200, &json!({ "ok": true, "artifact_id": "1000" })));
    let (_, answer) = caller.call("ListArtifacts", json!({ "name_filter": "logs" })).await;
    let listed = &answer["artifacts"][0];
    assert_eq!(listed["database_id"], "1000");
    assert_eq!(listed["size"], "11");
    assert_eq!(listed["digest"], digest);
    assert!(listed["created_at"].as_str().unwrap().ends_with('Z'));

    let response = caller.get(&caller.signed_url("logs").await, ("accept", "*/*")).await;
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["content-type"], "application/zip");
    let disposition = response.headers()["content-disposition"].to_str().unwrap();
    assert!(disposition.contains("filename=\"logs.zip\""), "{disposition}");
    assert_eq!(response.bytes().await.unwrap(), "hello world");
}

#[tokio::test]
async fn unfinished_artifacts_reserve_their_name_but_arent_listed() {
    let github = StandIn::start().unwrap();
    let first = Caller::new(&github, Run::push());
    let url = first.create("logs").await;
    assert!(first.names(json!({})).await.is_empty());
    let again = json!({ "name": "logs", "version": 7 });
    let (status, answer) = first.call("CreateArtifact", again.clone()).await;
    assert_eq!((status, &answer["code"]), (409, &json!("already_exists")));
    let other_job = Caller::new(&github, Run::push());
    assert_eq!(other_job.call("CreateArtifact", again.clone()).await.0, 409);
    let delete =
        |job: &Caller| json!({ "name": "logs", "workflow_job_run_backend_id": job.job.backend_id });
    assert_eq!(other_job.call("DeleteArtifact", delete(&other_job)).await.0, 404, "not its own");

    first.put(&url, "", b"one").await;
    assert_eq!(first.finalize("logs", 3, &sha256(b"one")).await.0, 200);
    assert_eq!(other_job.names(json!({})).await, ["logs"]);
    assert_eq!(other_job.call("CreateArtifact", again).await.0, 409);
    let (status, answer) = other_job.call("DeleteArtifact", delete(&first)).await;
    assert_eq!((status, &answer["artifact_id"]), (200, &json!("1000")));
    assert!(github.state().artifacts.all().is_empty());
    assert_eq!(github.state().artifacts.stored_bytes(), 0, "its bytes are gone too");
    other_job.upload("logs", b"two").await;

    let second_attempt = Caller::new(&github, Run { attempt: 2, ..Run::push() });
    second_attempt.upload("logs", b"again").await;
    assert_eq!(second_attempt.names(json!({})).await, ["logs", "logs"], "one of each attempt");

    let other_run = Caller::new(&github, Run { id: 5, ..Run::push() });
    assert!(other_run.names(json!({})).await.is_empty());
    other_run.upload("logs", b"three").await;
}

#[tokio::test]
async fn unfinished_upload_can_be_deleted_by_name() {
    let github = StandIn::start().unwrap();
    let caller = Caller::new(&github, Run::push());
    caller.create("logs").await;
    assert_eq!(caller.call("DeleteArtifact", json!({ "name": "logs" })).await.0, 200);
    assert_eq!(caller.call("DeleteArtifact", json!({ "name": "logs" })).await.0, 404);
    caller.create("logs").await;
}

#[tokio::test]
async fn snake_case_and_camel_case_fields_work() {
    let github = StandIn::start().unwrap();
    let caller = Caller::new(&github, Run::push());
    let id = caller.upload("a", b"a").await;
    caller.upload("b", b"b").await;
    assert_eq!(caller.names(json!({ "nameFilter": "b", "unknown_field": 1 })).await, ["b"]);
    assert_eq!(caller.names(json!({ "id_filter": id.to_string() })).await, ["a"]);
    assert_eq!(caller.names(json!({ "idFilter": id })).await, ["a"]);
    assert_eq!(caller.call("ListArtifacts", json!({ "name_filter": 1 })).await.0, 400);
    let missing = caller.call("ListArtifacts", json!({ "name_filter": "c" })).await;
    assert_eq!(missing, (200, json!({})), "an empty list is left out, as every default");
}

#[tokio::test]
async fn finalize_with_wrong_size_or_digest_is_refused() {
    let github = StandIn::start().unwrap();
    let caller = Caller::new(&github, Run::push());
    assert_eq!(caller.finalize("logs", 3, &sha256(b"one")).await.0, 404);
    let url = caller.create("logs").await;
    let (status, answer) = caller.finalize("logs", 3, &sha256(b"one")).await;
    assert_eq!((status, &answer["code"]), (412, &json!("failed_precondition")));
    caller.put(&url, "", b"one").await;
    for (size, hash) in [(4, sha256(b"one")), (3, sha256(b"two"))] {
        let (status, answer) = caller.finalize("logs", size, &hash).await;
        assert_eq!((status, &answer["code"]), (400, &json!("invalid_argument")), "{answer}");
    }
    assert_eq!(caller.finalize("logs", 3, &sha256(b"one")).await.0, 200);
    assert_eq!(caller.finalize("logs", 3, &sha256(b"one")).await.0, 404, "it is finished");
}

#[tokio::test]
async fn create_checks_name_version_and_expiry() {
    let github = StandIn::start().unwrap();
    let caller = Caller::new(&github, Run::push());
    for name in ["", "a/b", "a\\b", "a:b", "a\"b", "a\nb", "a*", "a?", "<", ">", "|", "a\rb"] {
        let (status, _) =
            caller.call("CreateArtifact", json!({ "name": name, "version": 7 })).await;
        assert_eq!(status, 400, "{name:?}");
    }
    let long = "x".repeat(256);
    for fields in [
        json!({ "name": long, "version": 7 }),
        json!({ "name": "a" }),
        json!({ "name": "a", "version": 3 }),
        json!({ "name": "a", "version": 7, "expires_at": "2001-01-01T00:00:00Z" }),
        json!({ "name": "a", "version": 7, "expires_at": "soon" }),
    ] {
        assert_eq!(caller.call("CreateArtifact", fields.clone()).await.0, 400, "{fields}");
    }
    let expires = github.state().clock.now() + Duration::from_secs(24 * 3600);
    let fields = json!({ "name": "ünï cödé", "version": 4, "expires_at": expires.to_string() });
    assert_eq!(caller.call("CreateArtifact", fields).await.0, 200);
    assert_eq!(github.state().artifacts.all()[0].expires, expires);
}

#[tokio::test]
async fn runtime_token_works_for_its_own_run_and_job_until_it_expires() {
    let github = StandIn::start().unwrap();
    let caller = Caller::new(&github, Run::push());
    let other = Caller::new(&github, Run { id: 5, ..Run::push() });
    let sibling = Caller::new(&github, Run::push());
    let create = async |fields: Value| {
        let mut all = json!({ "name": "logs", "version": 7 });
        all.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        caller.call("CreateArtifact", all).await.0
    };
    assert_eq!(create(json!({ "workflow_run_backend_id": other.job.run.backend_id() })).await, 403);
    assert_eq!(create(json!({ "workflow_job_run_backend_id": sibling.job.backend_id })).await, 403);
    let oidc = github.state().oidc.sign(&json!({ "scp": "Actions.Results:a:b" }));
    for token in ["guess", "a.b.c", &oidc] {
        let mut request = caller.request("ListArtifacts", &json!({})).build().unwrap();
        let value = format!("Bearer {token}").parse().unwrap();
        request.headers_mut().insert("authorization", value);
        assert_eq!(caller.http.execute(request).await.unwrap().status(), 401);
    }
    assert_eq!(create(json!({})).await, 200);
    github.state().clock.advance(Duration::from_secs(7 * 3600));
    assert_eq!(caller.call("ListArtifacts", json!({})).await.0, 401);
}

#[tokio::test]
async fn full_storage_is_insufficient_usage() {
    let github = StandIn::start().unwrap();
    let caller = Caller::new(&github, Run::push());
    github.state().artifacts.spend_quota(true);
    let fields = json!({ "name": "logs", "version": 7 });
    let (status, answer) = caller.call("CreateArtifact", fields).await;
    assert_eq!(status, 403);
    assert!(answer["msg"].as_str().unwrap().contains("insufficient usage"), "{answer}");
    github.state().artifacts.spend_quota(false);
    caller.upload("logs", b"one").await;
}

#[tokio::test]
async fn block_ids_of_other_length_and_missing_blocks_are_refused() {
    let github = StandIn::start().unwrap();
    let caller = Caller::new(&github, Run::push());
    let url = caller.create("logs").await;
    assert_eq!(caller.block(&url, "00", b"a").await.status(), 201);
    let wrong = |it: &str| (400, it.to_owned());
    assert_eq!(code(caller.block(&url, "00000", b"a").await).await, wrong("InvalidBlobOrBlock"));
    let long = "x".repeat(65);
    assert_eq!(
        code(caller.block(&url, &long, b"a").await).await,
        wrong("InvalidQueryParameterValue")
    );
    let id = caller.put(&url, "&comp=block&blockid=***", b"a").await;
    assert_eq!(code(id).await, wrong("InvalidQueryParameterValue"));
    assert_eq!(code(caller.block(&url, "01", b"").await).await, wrong("InvalidHeaderValue"));
    assert_eq!(code(caller.commit(&url, &["00", "99"]).await).await, wrong("InvalidBlockList"));
    let list = caller.put(&url, "&comp=blocklist", b"<BlockList><Latest>AA==</Later>").await;
    assert_eq!(code(list).await, wrong("InvalidXmlDocument"));
    assert_eq!(caller.commit(&url, &["00", "00"]).await.status(), 201, "twice is allowed");
    assert_eq!(caller.commit(&url, &["00"]).await.status(), 201, "latest finds committed ones");
    let typeless = caller.http.put(&url).body("a").send().await.unwrap();
    assert_eq!(code(typeless).await, wrong("MissingRequiredHeader"));
    let chunked =
        reqwest::Body::wrap_stream(futures_util::stream::iter([Ok::<_, std::io::Error>(
            "streamed",
        )]));
    let chunked = caller.http.put(format!("{url}&comp=block&blockid=MDI%3D")).body(chunked);
    let chunked = code(chunked.send().await.unwrap()).await;
    assert_eq!(chunked, (411, "MissingContentLengthHeader".to_owned()));
}

#[tokio::test]
async fn signed_url_works_for_one_blob_and_one_direction_until_it_expires() {
    let github = StandIn::start().unwrap();
    let caller = Caller::new(&github, Run::push());
    let upload = caller.create("logs").await;
    let tampered = upload.replacen("sp=cw", "sp=rw", 1);
    let refused = (403, "AuthenticationFailed".to_owned());
    assert_eq!(code(caller.put(&tampered, "", b"a").await).await, refused);
    let read = caller.get(&upload, ("accept", "*/*")).await;
    assert_eq!(code(read).await, (403, "AuthorizationPermissionMismatch".to_owned()));
    assert_eq!(caller.put(&upload, "", b"a").await.status(), 201);
    assert_eq!(caller.finalize("logs", 1, &sha256(b"a")).await.0, 200);

    let download = caller.signed_url("logs").await;
    let authorized = caller.get(&download, ("authorization", "Bearer ghp_x")).await;
    assert_eq!(code(authorized).await, (400, "InvalidAuthenticationInfo".to_owned()));
    let written = code(caller.put(&download, "", b"b").await).await;
    assert_eq!(written, (403, "AuthorizationPermissionMismatch".to_owned()));
    github.state().clock.advance(Duration::from_secs(601));
    assert_eq!(code(caller.get(&download, ("accept", "*/*")).await).await, refused);
    assert_eq!(caller.put(&upload, "", b"a").await.status(), 201, "uploads live an hour");
    github.state().clock.advance(Duration::from_secs(3000));
    assert_eq!(code(caller.put(&upload, "", b"a").await).await, refused);

    github.state().traffic.fail("GetSignedArtifactURL", 1, Fault::ExpiredUrl);
    let expired = caller.signed_url("logs").await;
    assert_eq!(code(caller.get(&expired, ("accept", "*/*")).await).await, refused);
}

#[tokio::test]
async fn reads_honour_ranges_and_conditions() {
    let github = StandIn::start().unwrap();
    let caller = Caller::new(&github, Run::push());
    let url = caller.create("logs").await;
    for (id, bytes) in [("0", "0123"), ("1", "4567"), ("2", "89")] {
        caller.block(&url, id, bytes.as_bytes()).await;
    }
    caller.commit(&url, &["0", "1", "2"]).await;
    caller.finalize("logs", 10, &sha256(b"0123456789")).await;
    let url = caller.signed_url("logs").await;
    for (range, status, expected) in [
        ("bytes=0-0", 206, "0"),
        ("bytes=2-5", 206, "2345"),
        ("bytes=7-", 206, "789"),
        ("bytes=7-999", 206, "789"),
        ("bytes=5-2", 200, "0123456789"),
        ("lines=1-2", 200, "0123456789"),
    ] {
        let response = caller.get(&url, ("range", range)).await;
        assert_eq!(response.status(), status, "{range}");
        assert_eq!(response.text().await.unwrap(), expected, "{range}");
    }
    let response = caller.get(&url, ("x-ms-range", "bytes=2-5")).await;
    assert_eq!(response.headers()["content-range"], "bytes 2-5/10");
    let etag = response.headers()["etag"].to_str().unwrap().to_owned();
    let beyond = code(caller.get(&url, ("range", "bytes=10-")).await).await;
    assert_eq!(beyond, (416, "InvalidRange".to_owned()));
    assert_eq!(caller.get(&url, ("if-match", &etag)).await.status(), 200);
    let other = code(caller.get(&url, ("if-match", "\"0x1\"")).await).await;
    assert_eq!(other, (412, "ConditionNotMet".to_owned()));
    assert_eq!(caller.get(&url, ("if-none-match", &etag)).await.status(), 304);
    let head = caller.http.request(Method::HEAD, &url).send().await.unwrap();
    assert_eq!(
        (head.status().as_u16(), &head.headers()["content-length"]),
        (200, &"10".parse().unwrap())
    );
}

#[tokio::test]
async fn artifacts_of_other_runs_are_read_through_the_rest_api() {
    let github = StandIn::start().unwrap();
    let caller = Caller::new(&github, Run::fork());
    for name in ["a", "b", "c"] {
        caller.upload(name, name.as_bytes()).await;
    }
    caller.create("unfinished").await;
    let base = format!("{}repos/acme/upstream/actions", github.url());
    let get = |path: &str, token: &str| {
        caller.http.get(format!("{base}/{path}")).bearer_auth(token).send()
    };
    let run: Value = get("runs/4242", "ghs_x").await.unwrap().json().await.unwrap();
    assert_eq!(run["head_repository"]["full_name"], "contributor/upstream");
    assert_eq!(get("runs/1", "ghs_x").await.unwrap().status(), 404);

    let page = get("runs/4242/artifacts?per_page=2&page=1", "ghs_x").await.unwrap();
    assert!(page.headers()["link"].to_str().unwrap().contains("page=2>; rel=\"next\""));
    let page: Value = page.json().await.unwrap();
    assert_eq!((&page["total_count"], &page["artifacts"][0]["name"]), (&json!(3), &json!("c")));
    let last = get("runs/4242/artifacts?per_page=2&page=2", "ghs_x").await.unwrap();
    assert!(!last.headers().contains_key("link"));
    let named: Value =
        get("runs/4242/artifacts?name=b", "ghs_x").await.unwrap().json().await.unwrap();
    let entry = &named["artifacts"][0];
    assert_eq!((&named["total_count"], &entry["size_in_bytes"]), (&json!(1), &json!(1)));
    assert_eq!(entry["digest"], sha256(b"b"));

    let zip = format!("artifacts/{}/zip", entry["id"]);
    assert_eq!(get(&zip, "guess").await.unwrap().status(), 401);
    let redirect = get(&zip, "ghs_x").await.unwrap();
    assert_eq!(redirect.status(), 302);
    let location = redirect.headers()["location"].to_str().unwrap().to_owned();
    assert_eq!(caller.get(&location, ("accept", "*/*")).await.text().await.unwrap(), "b");
    let with_token = caller.get(&location, ("authorization", "Bearer ghs_x")).await;
    assert_eq!(with_token.status(), 400);
    let gone = caller.http.delete(format!("{base}/artifacts/1000")).bearer_auth("ghs_x");
    assert_eq!(gone.send().await.unwrap().status(), 204);
    assert_eq!(caller.names(json!({})).await, ["b", "c"]);
}

#[tokio::test]
async fn body_faults_happen_at_the_given_byte() {
    let github = StandIn::start().unwrap();
    let traffic = &github.state().traffic;
    let caller = Caller::new(&github, Run::push());
    let bytes: Vec<u8> = (0..3_000_000_u32).map(|n| n.to_le_bytes()[0]).collect();
    let url = caller.create("logs").await;
    traffic.fail("PutBlob", 1, Fault::ResetAfterBytes(100_000));
    let put = || caller.http.put(&url).header("x-ms-blob-type", "BlockBlob").body(bytes.clone());
    assert!(put().send().await.is_err());
    assert_eq!(github.state().artifacts.stored_bytes(), 0, "nothing half-written stays");
    traffic.fail("PutBlob", 1, Fault::ResetAfterwards);
    assert!(put().send().await.is_err());
    assert_eq!(github.state().artifacts.stored_bytes(), 3_000_000);
    traffic.fail("PutBlob", 1, Fault::AnswerAfterwards(500));
    assert_eq!(put().send().await.unwrap().status(), 500);
    assert_eq!(github.state().artifacts.stored_bytes(), 3_000_000);
    traffic.fail("FinalizeArtifact", 1, Fault::ResetAfterwards);
    let fields = json!({ "name": "logs", "size": "3000000", "hash": sha256(&bytes) });
    assert!(caller.request("FinalizeArtifact", &fields).send().await.is_err());
    assert_eq!(caller.names(json!({})).await, ["logs"], "it was done all the same");

    let url = caller.signed_url("logs").await;
    for fault in [Fault::ResetAfterBytes(1_000_000), Fault::CutAfterBytes(1_000_000)] {
        traffic.fail("GetBlob", 1, fault);
        let mut response = caller.get(&url, ("accept", "*/*")).await;
        assert_eq!(response.content_length(), Some(3_000_000));
        let mut arrived = 0;
        let failed = loop {
            match response.chunk().await {
                Ok(Some(chunk)) => arrived += chunk.len(),
                Ok(None) => break false,
                Err(_) => break true,
            }
        };
        assert!(failed && arrived <= 1_000_000, "{arrived}");
    }
    traffic.fail("GetBlob", 1, Fault::ShortenTo(10));
    let short = caller.get(&url, ("accept", "*/*")).await.bytes().await.unwrap();
    assert_eq!(short, bytes[..10]);
    traffic.fail("GetBlob", 1, Fault::Corrupt);
    let corrupt = caller.get(&url, ("accept", "*/*")).await.bytes().await.unwrap();
    assert!(corrupt.len() == bytes.len() && corrupt[0] == !bytes[0]);
    traffic.fail("GetBlob", 1, Fault::StallAfterBytes(10));
    let stalled = caller.http.get(&url).timeout(Duration::from_millis(300)).send().await.unwrap();
    assert!(stalled.bytes().await.unwrap_err().is_timeout());
    let whole = caller.get(&url, ("accept", "*/*")).await.bytes().await.unwrap();
    assert_eq!(whole, bytes);
    assert_eq!(traffic.unmet(), Vec::<&str>::new());
}

#[tokio::test]
async fn altered_artifact_is_listed_as_altered() {
    let github = StandIn::start().unwrap();
    let caller = Caller::new(&github, Run::push());
    let id = caller.upload("logs", b"one").await;
    assert!(github.state().artifacts.alter(id, |it| it.digest = Some(sha256(b"two"))));
    assert!(!github.state().artifacts.alter(9, |_| {}));
    let (_, answer) = caller.call("ListArtifacts", json!({})).await;
    assert_eq!(answer["artifacts"][0]["digest"], sha256(b"two"));
    assert_eq!(github.state().artifacts.bytes(id).unwrap(), b"one");
}

#[tokio::test]
async fn dropped_bodies_are_counted_but_not_stored() {
    let github = StandIn::start().unwrap();
    github.state().artifacts.drop_bodies();
    let caller = Caller::new(&github, Run::push());
    let url = caller.create("logs").await;
    caller.block(&url, "0", &[7; 100_000]).await;
    caller.commit(&url, &["0"]).await;
    assert_eq!(caller.finalize("logs", 1, "sha256:00").await.0, 400);
    assert_eq!(caller.finalize("logs", 100_000, "sha256:00").await.0, 200);
    assert_eq!(github.state().artifacts.stored_bytes(), 0);
    assert_eq!(caller.get(&caller.signed_url("logs").await, ("accept", "*/*")).await.status(), 404);
}

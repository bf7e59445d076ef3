//! Inputs of `crcr artifact upload` and `merge`, as buckets and files see them.

use std::fs;
use std::io::{Cursor, Read as _, Write as _};
use std::time::Duration;

use axum::http::Method;
use crcr_standin::StandIn;
use crcr_standin::runs::Run;
use crcr_standin::traffic::Fault;
use crcr_testkit::fault::{FaultProxy, Rule, access_denied};
use crcr_testkit::s3::{ACCESS_KEY, S3Server, SECRET_KEY};

use crate::artifact_upload::{noise, step, with_github, with_s3};
use crate::artifact_upload_faults::{act_during, with_bucket};
use crate::support::Crcr;

const FOLDER: &str = "acme/upstream/4242/linux";

fn member(zip: &[u8], name: &str) -> Vec<u8> {
    let mut bytes = vec![];
    let mut archive = zip::ZipArchive::new(Cursor::new(zip)).unwrap();
    archive.by_name(name).unwrap().read_to_end(&mut bytes).unwrap();
    bytes
}

#[test]
fn growing_log_is_stored_as_it_was_found_with_a_warning() {
    for (archive, size) in [("zip", 20), ("zip", 20 << 20), ("none", 20), ("none", 20 << 20)] {
        let s3 = S3Server::start("artifacts").unwrap();
        let proxy = FaultProxy::start(s3.url()).unwrap();
        // The files are found before the first request, and read while it waits or later.
        proxy.add(Rule::any(Fault::Delay(Duration::from_secs(1))).method(Method::GET).times(1));
        let step = step(&["--path", "dist", "--archive", archive]);
        let step = with_bucket(step, "artifacts", proxy.url().as_str());
        let path = step.folder().join("dist/job.log");
        fs::write(&path, noise(size)).unwrap();
        let append = || {
            let mut log = fs::OpenOptions::new().append(true).open(&path).unwrap();
            log.write_all(b"one more line").unwrap();
        };
        let ran = act_during(step, &proxy, (Method::GET, 1), append).expect_code(0);
        assert!(ran.stderr.contains("::warning::`job.log`: it grew"), "{}", ran.report());
        let stored = match archive {
            "zip" => member(&s3.object(&format!("{FOLDER}/artifacts.zip")).unwrap(), "job.log"),
            _ => s3.object(&format!("{FOLDER}/job.log")).unwrap(),
        };
        assert!(stored == noise(size), "{archive}, {size} bytes: {}", stored.len());
    }
}

/// A secret that was pasted with its line break is in the environment like that.
#[test]
fn line_break_around_a_key_or_a_region_is_cut_and_one_within_is_refused() {
    let s3 = S3Server::start("artifacts").unwrap();
    let upload = |name: &str, value: &str| {
        let step = step(&["--path", "dist", "--overwrite", "--s3-bucket", "artifacts"]);
        let step = step.arg("--s3-endpoint").arg(s3.url().as_str()).env("AWS_REGION", "us-east-1");
        let step = step.env("AWS_ACCESS_KEY_ID", ACCESS_KEY);
        step.env("AWS_SECRET_ACCESS_KEY", SECRET_KEY).env(name, value).run()
    };
    for (name, value) in [
        ("AWS_ACCESS_KEY_ID", format!(" {ACCESS_KEY}\r\n")),
        ("AWS_SECRET_ACCESS_KEY", format!("{SECRET_KEY}\n")),
        ("AWS_REGION", "us-east-1\n".to_owned()),
    ] {
        let ran = upload(name, &value).expect_code(0);
        assert_eq!(ran.outputs["store"], "s3", "{}", ran.report());
    }
    for (name, value, reason, why) in [
        ("AWS_ACCESS_KEY_ID", "AK\nIA", "s3-denied", "the access key's id has a line break"),
        ("AWS_SESSION_TOKEN", "a\nb", "s3-denied", "the session token has a line break"),
        ("AWS_REGION", "us\neast-1", "s3-refused", "`us\\neast-1` isn't a region"),
    ] {
        let ran = upload(name, value).expect_code(2);
        assert_eq!(ran.outputs["reason"], reason, "{}", ran.report());
        assert!(ran.stderr.contains(why), "{}", ran.report());
    }
}

/// IAM Roles Anywhere gives a machine outside of AWS its credentials like this.
#[test]
fn program_that_a_profile_names_gives_the_machines_own_credentials() {
    let s3 = S3Server::start("artifacts").unwrap();
    let upload = |profile: &str| {
        let args = ["--path", "dist", "--auth-mode", "ambient", "--fallback", "never"];
        let step = with_s3(step(&args), &s3).env("AWS_EC2_METADATA_DISABLED", "true");
        let step = step.without("AWS_ACCESS_KEY_ID").without("AWS_SECRET_ACCESS_KEY");
        let keys = serde_json::json!({
            "Version": 1, "AccessKeyId": ACCESS_KEY, "SecretAccessKey": SECRET_KEY,
        });
        fs::write(step.folder().join("keys.json"), keys.to_string()).unwrap();
        fs::create_dir(step.folder().join(".aws")).unwrap();
        fs::write(step.folder().join(".aws/config"), format!("[default]\n{profile}\n")).unwrap();
        step.run()
    };
    assert_eq!(upload("credential_process = cat keys.json").expect_code(0).outputs["store"], "s3");
    let sso = "sso_start_url = https://acme.awsapps.com/start\nsso_region = us-east-1\n\
               sso_account_id = 123456789012\nsso_role_name = ci";
    for (profile, why) in [
        ("", "no credentials found in chain"),
        ("credential_process = echo no certificate >&2; exit 3", "no certificate"),
        (sso, "`aws configure export-credentials --format env`"),
    ] {
        let ran = upload(profile).expect_code(2);
        assert_eq!(ran.outputs["reason"], "s3-denied", "{}", ran.report());
        assert!(ran.stderr.contains(why), "{}", ran.report());
        assert!(ran.stderr.contains("what gives this machine its credentials"), "{}", ran.report());
    }
}

#[test]
fn small_and_large_uploads_send_the_headers_that_a_bucket_policy_requires() {
    let s3 = S3Server::start("artifacts").unwrap();
    let proxy = FaultProxy::start(s3.url()).unwrap();
    let headers = [
        ("--s3-acl", "x-amz-acl", "bucket-owner-full-control"),
        ("--s3-sse", "x-amz-server-side-encryption", "aws:kms"),
        ("--s3-sse-kms-key-id", "x-amz-server-side-encryption-aws-kms-key-id", "alias/ci"),
        ("--s3-storage-class", "x-amz-storage-class", "STANDARD"),
    ];
    for (_, header, _) in headers {
        let whole = Rule::any(access_denied()).method(Method::PUT).lacking(header);
        // A part has none of them; the request that begins the upload has all.
        proxy.add(Rule::any(access_denied()).query("uploads").lacking(header));
        proxy.add(Rule::any(access_denied()).path("crcr.json").method(Method::PUT).lacking(header));
        proxy.add(whole.path("artifacts.zip").query("x-id=PutObject"));
    }
    proxy.add(Rule::any(access_denied()).lacking("x-amz-request-payer"));
    let upload = |size: usize, with_headers: bool| {
        let mut step = with_bucket(step(&["--path", "dist"]), "artifacts", proxy.url().as_str());
        step = step.arg("--fallback").arg("never").arg("--overwrite").arg("true");
        fs::write(step.folder().join("dist/b.bin"), noise(size)).unwrap();
        if with_headers {
            step = step.arg("--s3-request-payer").arg("requester");
            for (flag, _, value) in headers {
                step = step.arg(flag).arg(value);
            }
        }
        step.run()
    };
    assert!(upload(20, false).expect_code(2).stderr.contains("AccessDenied"));
    for size in [20, 12 << 20] {
        upload(size, true).expect_code(0);
        let zip = s3.object(&format!("{FOLDER}/artifacts.zip")).unwrap();
        assert!(member(&zip, "b.bin") == noise(size));
    }
    let created = proxy.seen().into_iter().filter(|seen| {
        let is_part = seen.query.contains("partNumber");
        (seen.method == Method::PUT && !is_part) || seen.query.contains("uploads")
    });
    let sent: Vec<_> = created.filter(|seen| seen.headers.contains_key("x-amz-acl")).collect();
    assert!(sent.len() >= 4, "both archives and both locators: {sent:?}");
    for seen in sent {
        for (_, header, value) in headers {
            assert_eq!(seen.headers[header], value, "{} {}", seen.method, seen.path);
        }
    }
}

/// A bucket has a lifecycle rule for each value of the tag, and none for the repository's limit.
#[test]
fn repositorys_limit_of_days_is_for_githubs_store_alone() {
    let (s3, github) = (S3Server::start("artifacts").unwrap(), StandIn::start().unwrap());
    let step = || {
        let args = ["--path", "dist", "--retention-days", "30"];
        step(&args).env("GITHUB_RETENTION_DAYS", "14")
    };
    let told = "`retention-days` 30 is more than the 14 days that the repository allows";
    let ran = with_s3(step(), &s3).run().expect_code(0);
    assert_eq!(s3.tags(&format!("{FOLDER}/artifacts.zip"))["retention-days"], "30");
    assert!(!ran.stderr.contains(told), "{}", ran.report());

    let ran = with_github(step(), &github, &Run::push()).run().expect_code(0);
    assert!(ran.stderr.contains(told), "{}", ran.report());
    let now = github.state().clock.now();
    let hours = github.state().artifacts.all()[0].expires.duration_since(now).as_hours();
    assert!((13 * 24..=14 * 24).contains(&hours), "{hours}");
}

#[test]
fn header_with_a_line_break_is_refused_before_anything_is_sent() {
    let s3 = S3Server::start("artifacts").unwrap();
    let ran =
        with_s3(step(&["--path", "dist", "--s3-acl", "private\r\nx-amz-acl: public-read"]), &s3);
    let ran = ran.run().expect_code(1);
    assert!(ran.stderr.contains("[s3-acl]"), "{}", ran.report());
    assert!(s3.calls().is_empty());
}

#[test]
fn presigned_url_downloads_without_credentials_and_is_masked() {
    let s3 = S3Server::start("artifacts").unwrap();
    let args = ["--path", "dist", "--s3-presign", "600"];
    let ran = with_s3(step(&args), &s3).run().expect_code(0);
    let url = ran.outputs["artifact-url"].clone();
    assert!(url.contains("X-Amz-Expires=600"), "{url}");
    let shown = ran.stderr.replace(&format!("::add-mask::{}", url.replace('%', "%25")), "");
    assert!(!shown.contains("X-Amz-Signature") && !ran.summary.contains("X-Amz-Signature"));
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let body = runtime.block_on(async { reqwest::get(&url).await?.bytes().await }).unwrap();
    assert_eq!(body, s3.object(&format!("{FOLDER}/artifacts.zip")).unwrap());
}

#[test]
fn empty_path_is_an_error_with_a_hint() {
    for path in [None, Some(""), Some(" \n ")] {
        let step = Crcr::step(&["artifact", "upload"], "push", &serde_json::json!({}));
        let ran = path.into_iter().fold(step, |step, path| step.env("INPUT_PATH", path));
        let ran = ran.run().expect_code(1);
        for told in ["[no-path]", "`path` has no pattern", "one pattern a line"] {
            assert!(ran.stderr.contains(told), "{told}: {}", ran.report());
        }
        assert!(!ran.stderr.contains("blank"), "no line may be there: {}", ran.report());
    }
}

#[test]
fn links_out_of_the_working_folder_and_case_collisions_are_warnings() {
    let s3 = S3Server::start("artifacts").unwrap();
    let step = with_s3(step(&["--path", "dist"]), &s3);
    let elsewhere = tempfile::tempdir().unwrap();
    fs::write(elsewhere.path().join("secret"), "s").unwrap();
    let dist = step.folder().join("dist");
    std::os::unix::fs::symlink(elsewhere.path().join("secret"), dist.join("link")).unwrap();
    std::os::unix::fs::symlink(&dist, dist.join("loop")).unwrap();
    fs::write(dist.join("A.txt"), "other").unwrap();
    let ran = step.run().expect_code(0);
    for text in
        ["leads out of the working folder", "a link to a folder that it is in", "`a.txt` differs"]
    {
        assert!(ran.stderr.contains(text), "{text}: {}", ran.report());
    }
}

#[test]
fn merge_combines_artifacts_of_both_stores_and_deletes_them() {
    let github = StandIn::start().unwrap();
    let s3 = S3Server::start("artifacts").unwrap();
    let run = Run::push();
    let part = |name: &str, file: &str| {
        let step = step(&["--path", "part", "--name", name]);
        fs::create_dir(step.folder().join("part")).unwrap();
        fs::write(step.folder().join("part").join(file), file).unwrap();
        with_github(step, &github, &run)
    };
    part("wheels-github", "g.whl").run().expect_code(0);
    with_s3(part("wheels-s3", "s.whl"), &s3).run().expect_code(0);
    with_s3(part("logs", "x.log"), &s3).run().expect_code(0);
    let merge = |args: &[&str]| {
        let all = [&["artifact", "merge"], args].concat();
        let step = with_s3(Crcr::step(&all, "push", &serde_json::json!({})), &s3);
        with_github(step, &github, &run).run()
    };
    let folders = ["--name", "apart", "--pattern", "wheels-*", "--separate-directories", "true"];
    let ran = merge(&folders).expect_code(0);
    assert_eq!((&*ran.outputs["store"], &*ran.outputs["files"]), ("s3", "2"));
    let zip = s3.object("acme/upstream/4242/apart/artifacts.zip").unwrap();
    assert_eq!(member(&zip, "wheels-s3/s.whl"), b"s.whl");
    let together = ["--name", "wheels", "--pattern", "wheels-*", "--delete-merged", "true"];
    merge(&together).expect_code(0);
    let zip = s3.object("acme/upstream/4242/wheels/artifacts.zip").unwrap();
    assert_eq!((member(&zip, "s.whl"), member(&zip, "g.whl")), (b"s.whl".into(), b"g.whl".into()));
    assert!(github.state().artifacts.all().is_empty(), "the part on GitHub is deleted");
    assert!(!s3.keys().iter().any(|key| key.contains("wheels-s3")), "{:?}", s3.keys());
    assert!(s3.keys().iter().any(|key| key.contains("/logs/")), "what didn't match stays");
    let ran = merge(&["--pattern", "nothing-*"]).expect_code(1);
    assert_eq!((&*ran.outputs["store"], &*ran.outputs["reason"]), ("none", "no-artifacts"));
}

#[test]
fn merge_that_leaves_hidden_files_out_deletes_nothing() {
    let (github, run) = (StandIn::start().unwrap(), Run::push());
    let part = step(&["--path", "part", "--name", "part-1", "--include-hidden-files", "true"]);
    fs::create_dir(part.folder().join("part")).unwrap();
    for file in ["a.txt", ".env"] {
        fs::write(part.folder().join("part").join(file), file).unwrap();
    }
    with_github(part, &github, &run).run().expect_code(0);
    let names = || -> Vec<_> {
        github.state().artifacts.all().into_iter().map(|artifact| artifact.name).collect()
    };
    let merge = |name: &str, hidden: &str| {
        let args =
            ["artifact", "merge", "--pattern", "part-*", "--delete-merged", "true", "--name"];
        let step = Crcr::step(&args, "push", &serde_json::json!({})).arg(name);
        with_github(step.arg("--include-hidden-files").arg(hidden), &github, &run).run()
    };
    let ran = merge("without", "false").expect_code(0);
    let told = "`.env` is hidden and left out, so the artifacts are merged and not deleted";
    assert!(ran.stderr.contains(told), "{}", ran.report());
    assert_eq!(names(), ["part-1", "without"]);
    let ran = merge("with", "true").expect_code(0);
    assert!(!ran.stderr.contains("::warning"), "{}", ran.report());
    assert_eq!(names(), ["without", "with"]);
}

#[test]
fn empty_files_are_stored_as_objects_and_as_raw_files() {
    let (github, s3) = (StandIn::start().unwrap(), S3Server::start("artifacts").unwrap());
    let empty = |args: &[&str]| {
        let step = step(&[&["--path", "dist", "--archive", "none"], args].concat());
        fs::remove_dir_all(step.folder().join("dist")).unwrap();
        fs::create_dir(step.folder().join("dist")).unwrap();
        fs::write(step.folder().join("dist/__init__.py"), "").unwrap();
        step
    };
    let ran = with_s3(empty(&[]), &s3).run().expect_code(0);
    assert_eq!((&*ran.outputs["store"], &*ran.outputs["reason"]), ("s3", "ok"), "{}", ran.report());
    let ran = with_github(empty(&["--name", "__init__.py"]), &github, &Run::push()).run();
    let ran = ran.expect_code(0);
    assert_eq!((&*ran.outputs["store"], &*ran.outputs["size"]), ("github", "0"));
}

#[test]
fn a_single_zip_file_comes_back_as_it_is_from_both_stores() {
    let (github, s3) = (StandIn::start().unwrap(), S3Server::start("artifacts").unwrap());
    let mut writer = zip::ZipWriter::new(Cursor::new(vec![]));
    writer.start_file("inner.txt", zip::write::SimpleFileOptions::default()).unwrap();
    let build = writer.finish().unwrap().into_inner();
    for on_s3 in [true, false] {
        let with_store = |step: Crcr| match on_s3 {
            true => with_s3(step, &s3),
            false => with_github(step, &github, &Run::push()),
        };
        // The artifact's name is the file's.
        let upload = step(&["--path", "build.zip", "--archive", "none", "--name", "build.zip"]);
        fs::write(upload.folder().join("build.zip"), &build).unwrap();
        with_store(upload).run().expect_code(0);
        let args = ["artifact", "download", "--name", "build.zip", "--path", "out"];
        let download = Crcr::step(&args, "push", &serde_json::json!({}));
        let ran = with_store(download).run().expect_code(0);
        let files: Vec<_> = fs::read_dir(ran.path("out")).unwrap().collect();
        assert_eq!(files.len(), 1, "on S3: {on_s3}");
        assert!(fs::read(ran.path("out/build.zip")).unwrap() == build, "on S3: {on_s3}");
    }
}

#[test]
fn kept_links_are_links_after_the_download_and_need_an_archive() {
    use std::os::unix::fs::symlink;
    let (github, s3) = (StandIn::start().unwrap(), S3Server::start("artifacts").unwrap());
    for on_s3 in [true, false] {
        let with_store = |step: Crcr| match on_s3 {
            true => with_s3(step, &s3),
            false => with_github(step, &github, &Run::push()),
        };
        let upload = step(&["--path", "dist", "--symlinks", "keep"]);
        fs::write(upload.folder().join("secret"), "outside").unwrap();
        symlink("../a.txt", upload.folder().join("dist/sub/link")).unwrap();
        symlink("sub", upload.folder().join("dist/folder")).unwrap();
        symlink("../secret", upload.folder().join("dist/out")).unwrap();
        with_store(upload).run().expect_code(0);
        let args = ["artifact", "download", "--name", "linux", "--path", "out"];
        let download = Crcr::step(&args, "push", &serde_json::json!({}));
        let ran = with_store(download).run().expect_code(0);
        let target = |link: &str| fs::read_link(ran.path("out").join(link)).ok();
        assert_eq!(target("sub/link").unwrap().to_str(), Some("../a.txt"));
        assert_eq!(target("folder").unwrap().to_str(), Some("sub"));
        assert_eq!(target("out"), None, "a link out of the artifact is followed");
        assert_eq!(fs::read_to_string(ran.path("out/out")).unwrap(), "outside");
    }
    let ran = step(&["--path", "dist", "--symlinks", "keep", "--archive", "none"]).run();
    assert!(ran.expect_code(1).stderr.contains("`archive: zip`"));
}

#[test]
fn merge_of_artifacts_with_one_path_names_both_and_the_input_that_keeps_them_apart() {
    let github = StandIn::start().unwrap();
    let run = Run::push();
    for name in ["logs-a", "logs-b"] {
        let step = step(&["--path", "dist", "--name", name]);
        with_github(step, &github, &run).run().expect_code(0);
    }
    let merge = |args: &[&str]| {
        let all = [&["artifact", "merge", "--pattern", "logs-*"], args].concat();
        with_github(Crcr::step(&all, "push", &serde_json::json!({})), &github, &run).run()
    };
    let ran = merge(&[]).expect_code(1);
    for told in ["is in two artifacts, `logs-a` and `logs-b`", "`separate-directories: true`"] {
        assert!(ran.stderr.contains(told), "{told}\n{}", ran.report());
    }
    assert_eq!(ran.outputs["reason"], "path-collision");
    merge(&["--separate-directories", "true"]).expect_code(0);
}

#[test]
fn merge_in_a_later_attempt_names_the_result_of_the_first_one_as_the_obstacle() {
    let github = StandIn::start().unwrap();
    let attempt = |number: u32, step: Crcr| {
        let run = Run { attempt: number, ..Run::push() };
        github.state().runs.add(run.clone());
        with_github(step, &github, &run).env("GITHUB_RUN_ATTEMPT", &number.to_string())
    };
    let merge = |number: u32, args: &[&str]| {
        let all = [&["artifact", "merge"], args].concat();
        attempt(number, Crcr::step(&all, "push", &serde_json::json!({}))).run()
    };
    attempt(1, step(&["--path", "dist"])).run().expect_code(0);
    merge(1, &[]).expect_code(0);
    let ran = merge(2, &[]).expect_code(1);
    for word in ["`merged-artifacts`", "`pattern`", "earlier attempt"] {
        assert!(ran.stderr.contains(word), "{}", ran.report());
    }
    merge(2, &["--pattern", "lin*"]).expect_code(0);
}

/// A database's folder in a container, and a key that only root reads.
#[cfg(target_os = "linux")]
#[test]
#[ignore = "needs root"]
fn what_the_jobs_user_may_not_read_is_named_with_a_hint_and_not_looked_at_if_excluded() {
    use std::os::unix::fs::{PermissionsExt as _, chown};
    use std::os::unix::process::CommandExt as _;
    const NOBODY: u32 = 65_534;
    let s3 = S3Server::start("artifacts").unwrap();
    let upload = |args: &[&str]| {
        let mut step = with_s3(step(args), &s3);
        let folder = step.folder().to_owned();
        fs::create_dir_all(folder.join("dist/postgres/base")).unwrap();
        fs::write(folder.join("dist/key.pem"), "key").unwrap();
        let closed = |path: &str, mode| {
            fs::set_permissions(folder.join(path), fs::Permissions::from_mode(mode)).unwrap();
        };
        closed("dist/postgres", 0o700);
        closed("dist/key.pem", 0o600);
        closed("", 0o755);
        for path in ["", "runner", "dist"] {
            chown(folder.join(path), Some(NOBODY), Some(NOBODY)).unwrap();
        }
        step.command().uid(NOBODY).gid(NOBODY);
        step.run()
    };
    let hint = "a line of `path` that starts with `!`";
    let ran = upload(&["--path", "dist", "--name", "all"]).expect_code(0);
    for text in
        ["dist/postgres` is left out", "dist/key.pem` is left out", "Permission denied", hint]
    {
        assert!(ran.stderr.contains(text), "`{text}` in\n{}", ran.report());
    }
    assert_eq!(ran.outputs["files"], "2", "{}", ran.report());
    let ran = upload(&["--path", "dist", "--name", "strict", "--if-no-files-found", "error"]);
    let ran = ran.expect_code(1);
    for text in ["[unreadable]", "Permission denied", "1 more", hint] {
        assert!(ran.stderr.contains(text), "`{text}` in\n{}", ran.report());
    }
    let ran = upload(&["--path", "dist/key.pem", "--name", "only"]).expect_code(0);
    assert!(ran.stderr.contains("dist/key.pem` is left out"), "{}", ran.report());
    for excluded in
        ["!dist/postgres\n!dist/key.pem", "!dist/postgres/**\n!**/*.pem", "!**/postgres\n!dist/k*"]
    {
        let path = format!("dist\n{excluded}");
        let args =
            ["--path", &path, "--name", "excluded", "--if-no-files-found", "error", "--overwrite"];
        let ran = upload(&args).expect_code(0);
        assert!(!ran.stderr.contains("::warning"), "{excluded}\n{}", ran.report());
    }
}

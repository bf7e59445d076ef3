//! Uploads and downloads in a real workflow runner: forks, matrices, other runs, and S3 servers that
//! refuse.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::symlink;

use axum::http::Method;
use crcr_artifacts::digest::Digest;
use crcr_standin::runs::Run;
use crcr_standin::traffic::Fault;
use crcr_testkit::fault::{FaultProxy, Rule, s3_error};
use crcr_testkit::s3::{Anonymous, S3Server};
use serde_json::json;

use crate::act::{Outside, Ran, read};
use crate::artifact_upload::{step, with_github};

const BUCKET: &str = "example-artifacts";

/// The steps of a job, as YAML.
#[derive(Default)]
pub(crate) struct Steps(String);

impl Steps {
    pub(crate) fn run(mut self, script: &str) -> Self {
        let _ = write!(self.0, "\n      - shell: bash\n        run: |");
        for line in script.lines() {
            let _ = write!(self.0, "\n          {line}");
        }
        self
    }

    /// An action of this repository with these inputs; a failure doesn't end the job.
    fn uses(mut self, id: &str, action: &str, inputs: &[(&str, &str)]) -> Self {
        let _ = write!(
            self.0,
            "\n      - id: {id}\n        continue-on-error: true\n        \
             uses: pytorch/crcr/actions/{action}@v1\n        with:\n          binary: {}",
            crate::act::binary()
        );
        for (name, value) in inputs {
            let _ = write!(self.0, "\n          {name}: {value:?}");
        }
        self
    }

    fn credentials(self, outside: &Outside) -> Self {
        let inputs = [
            ("role-to-assume", "arn:aws:iam::123456789012:role/ci-build"),
            ("aws-region", "us-east-1"),
            ("sts-endpoint", outside.sts.url().as_str()),
        ];
        self.uses("auth", "configure-oidc-fallback", &inputs)
    }

    fn upload(self, id: &str, inputs: &[(&str, &str)]) -> Self {
        self.uses(id, "upload-artifact-with-fallback", inputs)
    }

    pub(crate) fn download(self, id: &str, inputs: &[(&str, &str)]) -> Self {
        self.uses(id, "download-artifact-with-fallback", inputs)
    }

    /// Prints how these steps ended: `ID: OUTCOME STORE REASON`.
    pub(crate) fn tell(self, ids: &[&str]) -> Self {
        let lines = ids.iter().map(|id| {
            let step = format!("steps.{id}");
            format!(
                "echo \"{id}: ${{{{ {step}.outcome }}}} ${{{{ {step}.outputs.store }}}} \
                 ${{{{ {step}.outputs.reason }}}}\"\n"
            )
        });
        let script: String = lines.collect();
        self.run(&script)
    }
}

/// A workflow of these jobs, each `NAME`, what else it has, and its steps.
pub(crate) fn workflow(event: &str, jobs: &[(&str, &str, Steps)]) -> String {
    let mut text = format!("on: {event}\npermissions: {{}}\njobs:");
    for (name, more, Steps(steps)) in jobs {
        let _ = write!(
            text,
            "\n  {name}:\n    runs-on: ubuntu-latest\n    \
             permissions: {{ contents: read, id-token: write }}{more}\n    steps:{steps}"
        );
    }
    text
}

pub(crate) fn expect_lines(log: &str, lines: &[&str]) {
    for line in lines {
        assert!(log.lines().any(|got| got.ends_with(line)), "{line}\n{log}");
    }
}

/// The most log lines of an action's step.
const LINES_OF_A_STEP: usize = 12;

/// Checks that no step of an action prints too many lines outside its groups.
fn expect_short_steps(log: &str) {
    let mut lines: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for line in log.lines() {
        let Some((job, text)) = line.split_once(']') else { continue };
        let told = lines.entry(job).or_default();
        if text.contains(" Run Main ") || text.contains(" Run Post ") {
            told.clear();
        } else if text.trim_start().starts_with('|') && !text.contains("file: ") {
            told.push(text);
            assert!(told.len() <= LINES_OF_A_STEP, "a step of {job} tells {told:#?}");
        }
    }
}

/// Stores two artifacts for each kind of bucket, then fetches them in another job by name, by
/// pattern, and as all there are.
fn stores_and_fetches(outside: &Outside) -> Ran {
    let [public, private] = [Anonymous::ReadAndList, Anonymous::Nothing].map(|anonymous| {
        let s3 = S3Server::start(BUCKET).unwrap();
        s3.rules(|rules| rules.anonymous = anonymous);
        s3
    });
    let kinds = [("public", Some(&public)), ("private", Some(&private)), ("none", None)];
    let mut uploads =
        Steps::default().credentials(outside).run("echo 1 > one.txt; echo 2 > two.txt");
    let mut downloads = Steps::default().credentials(outside);
    let mut ids = vec![];
    for (kind, s3) in kinds {
        let endpoint = s3.map(|s3| s3.url().to_string());
        let bucket: Vec<(&str, &str)> = endpoint
            .iter()
            .flat_map(|url| [("s3-bucket", BUCKET), ("s3-endpoint", url.as_str())])
            .collect();
        for part in ["one", "two"] {
            let (name, path) = (format!("{kind}-{part}"), format!("{part}.txt"));
            let inputs = [&[("name", &*name), ("path", &*path)], &*bucket].concat();
            uploads = uploads.upload(&name, &inputs);
            ids.push(name);
        }
        let (name, pattern) = (format!("{kind}-one"), format!("{kind}-*"));
        for (way, input) in [
            ("name", Some(("name", &*name))),
            ("pattern", Some(("pattern", &*pattern))),
            ("all", None),
        ] {
            let path = format!("got/{kind}/{way}");
            let mut inputs = [&[("path", &*path)], &*bucket].concat();
            inputs.extend(input);
            downloads = downloads.download(&format!("{kind}-{way}"), &inputs);
        }
    }
    let ids: Vec<_> = ids.iter().map(String::as_str).collect();
    let list = "cd got; find . -type f | LC_ALL=C sort | sed 's/^/file: /'";
    let jobs = [
        ("upload", "", uploads.tell(&ids)),
        ("download", "\n    needs: upload", downloads.run(list)),
    ];
    outside.write("build.yml", &workflow(&outside.run.event, &jobs));
    outside.run(&outside.runner_variables(), true)
}

/// The files that the download job lists.
fn files(log: &str) -> Vec<&str> {
    log.lines().filter_map(|line| line.split_once("| file: ./").map(|(_, path)| path)).collect()
}

#[test]
#[ignore = "needs act and node"]
fn fork_downloads_by_name_pattern_and_all_whatever_the_bucket_policy_is() {
    let outside = Outside::new(Run::fork());
    let Ran { succeeded, log } = stores_and_fetches(&outside);
    assert!(succeeded && !log.contains("Failure"), "{log}");
    let mut expected = vec![];
    let kinds = ["none", "private", "public"];
    for kind in kinds {
        expected.extend(kinds.iter().flat_map(|other| {
            ["one", "two"].map(|part| format!("{kind}/all/{other}-{part}/{part}.txt"))
        }));
        expected.push(format!("{kind}/name/one.txt"));
        expected.extend(["one", "two"].map(|p| format!("{kind}/pattern/{kind}-{p}/{p}.txt")));
    }
    assert_eq!(files(&log), expected, "{log}");
    expect_lines(
        &log,
        &[
            "public-one: success github anonymous",
            "private-one: success github anonymous",
            "none-one: success github no-bucket",
        ],
    );
    expect_short_steps(&log);
}

#[test]
#[ignore = "needs act and node"]
fn branch_downloads_by_name_pattern_and_all_from_both_stores() {
    let outside = Outside::new(Run::same_repository());
    let Ran { succeeded, log } = stores_and_fetches(&outside);
    assert!(succeeded && !log.contains("Failure"), "{log}");
    let mut expected = vec![];
    for kind in ["none", "private", "public"] {
        // GitHub's, and those of the bucket that the download names.
        let mut all = vec!["none"];
        all.extend(Some(kind).filter(|kind| *kind != "none"));
        expected.extend(all.iter().flat_map(|other| {
            ["one", "two"].map(|part| format!("{kind}/all/{other}-{part}/{part}.txt"))
        }));
        expected.push(format!("{kind}/name/one.txt"));
        expected.extend(["one", "two"].map(|p| format!("{kind}/pattern/{kind}-{p}/{p}.txt")));
    }
    assert_eq!(files(&log), expected, "{log}");
    expect_lines(
        &log,
        &[
            "public-one: success s3 ok",
            "private-one: success s3 ok",
            "none-one: success github no-bucket",
        ],
    );
    expect_short_steps(&log);
}

#[test]
#[ignore = "needs act and node"]
fn workflow_run_downloads_a_forks_artifact_only_with_allow_fork_and_outside_the_checkout() {
    let mut outside =
        Outside::new(Run { id: 5000, event: "workflow_run".to_owned(), ..Run::push() });
    let build = with_github(
        step(&["--path", "dist", "--name", "results"]),
        &outside.github,
        &Run { status: "completed".to_owned(), ..Run::fork() },
    );
    build.run().expect_code(0);
    let origin = outside.github.state().origin().to_owned();
    outside.payload["action"] = json!("completed");
    outside.payload["workflow_run"] = Run::fork().api(&origin);
    let inputs = [
        ("name", "results"),
        ("run-id", "${{ github.event.workflow_run.id }}"),
        ("github-token", "ghs_reader"),
    ];
    let steps = Steps::default()
        .download("careless", &inputs)
        .download("careful", &[&inputs[..], &[("allow-fork", "true")]].concat())
        .tell(&["careless", "careful"])
        .run(
            "folder='${{ steps.careful.outputs.download-path }}'\n\
             echo \"lines: $(wc -l < \"$folder/a.txt\")\"\n\
             [[ $folder == \"$PWD\"* ]] || echo 'the checkout is untouched'",
        );
    outside.write("report.yml", &workflow("workflow_run", &[("report", "", steps)]));
    let Ran { succeeded, log } = outside.run(&outside.runner_variables(), true);
    assert!(succeeded, "{log}");
    expect_lines(&log, &["careful: success github ok", "lines: 1000", "the checkout is untouched"]);
    assert!(log.contains("careless: failure none "), "{log}");
    assert!(log.contains("allow-fork"), "the refusal names the input that allows it\n{log}");
    expect_short_steps(&log);
}

#[test]
#[ignore = "needs act and node"]
fn first_of_two_matrix_legs_with_one_artifact_name_keeps_it_in_both_attempts() {
    let mut outside = Outside::new(Run::same_repository());
    let s3 = S3Server::start(BUCKET).unwrap();
    let bucket = [("name", "shared"), ("path", "text.txt"), ("s3-bucket", BUCKET)];
    let s3_inputs = [&bucket[..], &[("s3-endpoint", s3.url().as_str())]].concat();
    let steps = Steps::default()
        .credentials(&outside)
        .run("echo \"leg ${{ matrix.leg }}, attempt $GITHUB_RUN_ATTEMPT\" > text.txt")
        .upload("on-s3", &s3_inputs)
        .upload("on-github", &[("name", "shared"), ("path", "text.txt")])
        .tell(&["on-s3", "on-github"]);
    // Each leg is a job of its own to GitHub.
    let more = format!(
        "\n    strategy: {{ fail-fast: false, max-parallel: 1, matrix: {{ leg: [a, b] }} }}\n    \
         env: {{ STANDIN_RUNNER_VARIABLES: \"{}/leg-${{{{ matrix.leg }}}}.json\" }}",
        outside.path("").display()
    );
    outside.write("build.yml", &workflow("pull_request", &[("build", &more, steps)]));
    let stored = || {
        let zip = s3.object("acme/upstream/4242/shared/artifacts.zip").unwrap();
        let mut archive = zip::ZipArchive::new(std::io::Cursor::new(zip)).unwrap();
        std::io::read_to_string(archive.by_index(0).unwrap()).unwrap()
    };
    for attempt in [1, 2] {
        outside.run.attempt = attempt;
        for leg in ["a", "b"] {
            let variables = serde_json::to_string(&outside.runner_variables()).unwrap();
            fs::write(outside.path(&format!("leg-{leg}.json")), variables).unwrap();
        }
        let Ran { succeeded, log } = outside.run(&outside.runner_variables(), true);
        assert!(succeeded, "{log}");
        let count = |line: &str| log.lines().filter(|got| got.ends_with(line)).count();
        assert_eq!(count("on-s3: success s3 ok"), 1, "{log}");
        assert_eq!(count("on-s3: failure none conflict"), 1, "{log}");
        // Names are unique in an attempt.
        assert_eq!(count("on-github: success github no-bucket"), 1, "{log}");
        assert_eq!(log.matches("| on-github: failure none ").count(), 1, "{log}");
        assert_eq!(stored(), format!("leg a, attempt {attempt}\n"), "{log}");
        assert!(outside.on_github().iter().all(|name| name == "shared"));
        expect_short_steps(&log);
    }
}

#[test]
#[ignore = "needs act and node"]
fn upload_refused_by_s3_falls_back_to_github_with_the_refusal_as_a_warning() {
    let outside = Outside::new(Run::same_repository());
    let s3 = S3Server::start(BUCKET).unwrap();
    let refusing = |rules: Vec<Rule>| {
        let proxy = FaultProxy::start(s3.url()).unwrap();
        rules.into_iter().for_each(|rule| proxy.add(rule));
        proxy
    };
    let expired = refusing(vec![
        Rule::any(Fault::status(400)).method(Method::HEAD),
        Rule::any(s3_error(400, "ExpiredToken")),
    ]);
    let checksum = refusing(vec![
        Rule::any(s3_error(501, "NotImplemented")).sending("x-amz-checksum-crc64nvme"),
        Rule::any(s3_error(501, "NotImplemented")).sending("x-amz-checksum-algorithm"),
    ]);
    let kms = refusing(vec![
        Rule::any(s3_error(403, "AccessDenied")).method(Method::PUT),
        Rule::any(s3_error(403, "AccessDenied")).method(Method::POST),
    ]);
    // Larger than what one request sends.
    let mut steps =
        Steps::default().credentials(&outside).run("head -c 9000000 /dev/urandom > large.bin");
    let mut ids = vec![];
    for (id, proxy, more) in [
        ("expired", &expired, None),
        ("no-checksum", &checksum, None),
        ("told-so", &checksum, Some(("s3-checksum", "none"))),
        ("no-key", &kms, None),
    ] {
        let mut inputs = vec![
            ("name", id),
            ("path", "large.bin"),
            ("s3-bucket", BUCKET),
            ("s3-endpoint", proxy.url().as_str()),
        ];
        inputs.extend(more);
        steps = steps.upload(id, &inputs);
        ids.push(id);
    }
    let job = ("build", "", steps.tell(&ids));
    outside.write("build.yml", &workflow("pull_request", &[job]));
    let Ran { succeeded, log } = outside.run(&outside.runner_variables(), true);
    assert!(succeeded, "{log}");
    expect_lines(
        &log,
        &[
            "expired: success github s3-denied",
            "no-checksum: success s3 ok",
            "told-so: success s3 ok",
            "no-key: success github s3-denied",
        ],
    );
    for word in ["ExpiredToken", "AccessDenied"] {
        assert!(log.contains(word), "{word}\n{log}");
    }
    assert_eq!(s3.unfinished(), Vec::<String>::new());
    expect_short_steps(&log);
}

#[test]
#[ignore = "needs act and node"]
fn workflow_for_the_official_actions_runs_with_only_uses_changed() {
    let outside = Outside::new(Run::push());
    let workflow = read("tests/fixtures/workflows/official-artifacts.yml")
        .replace(
            "actions/upload-artifact@v4",
            "pytorch/crcr/actions/upload-artifact-with-fallback@v1",
        )
        .replace(
            "actions/download-artifact@v5",
            "pytorch/crcr/actions/download-artifact-with-fallback@v1",
        );
    outside.write("official.yml", &workflow);
    // The binary under test is what the action's manifest lists, already in the tool cache.
    let triple = format!("{}-unknown-linux-musl", std::env::consts::ARCH);
    // act takes this folder for the tool cache, whatever `RUNNER_TOOL_CACHE` says.
    let tools = outside.path("home/.cache/act/tool_cache");
    let cached = tools.join("crcr/0.0.1").join(&triple);
    fs::create_dir_all(&cached).unwrap();
    symlink(env!("CARGO_BIN_EXE_crcr"), cached.join("crcr")).unwrap();
    let digest = Digest::of(&fs::read(env!("CARGO_BIN_EXE_crcr")).unwrap()).to_string();
    let digest = digest.trim_start_matches("sha256:");
    outside.copy_actions();
    let manifest = json!({
        "default": "0.0.1", "sha256": { format!("0.0.1/{triple}"): digest },
    });
    fs::write(outside.path("crcr/actions/install/manifest.json"), manifest.to_string()).unwrap();
    let Ran { succeeded, log } = outside.run(&outside.runner_variables(), false);
    assert!(succeeded, "{log}");
    expect_lines(
        &log,
        &[
            "id is a number: yes",
            "address ends with the id: yes",
            "digest has 64 digits: yes",
            "nothing was stored: yes",
            "notes: second",
            "folder: absolute",
        ],
    );
    let files: Vec<_> = log
        .lines()
        .filter_map(|line| line.split_once("| file: got/").map(|(_, path)| path))
        .collect();
    assert_eq!(
        files,
        [
            "all/notes/notes.txt",
            "all/results/my tool/bin/tool",
            "all/results/results/report.txt",
            "all/wheels-3.12/example-3.12.whl",
            "all/wheels-3.13/example-3.13.whl",
            "all/with-hidden/.cache/state",
            "all/with-hidden/report.txt",
            "all/with-hidden/run.tmp",
            "id/my tool/bin/tool",
            "id/results/report.txt",
            "merged/example-3.12.whl",
            "merged/example-3.13.whl",
            "name/my tool/bin/tool",
            "name/results/report.txt",
        ],
        "{log}"
    );
    expect_short_steps(&log);
}

//! Test results of a fork, from its job to the HUD's page of tests, in a real workflow runner.

use std::sync::Arc;

use crcr_results::{Results, ResultsUrl};
use crcr_standin::runs::Run;
use crcr_store::StoreRole;
use serde_json::json;
use serde_yaml::Value;

use crate::act::{Outside, Ran, read};
use crate::relay_process::Place;

/// A job of a pull request: it has no credentials, and stores its reports with GitHub.
const JOB: &str = r#"
on: pull_request
permissions: {}
jobs:
  test:
    runs-on: ubuntu-latest
    steps:
      - shell: bash
        run: |
          mkdir -p test/test-reports/pytest/test_a
          cat > test/test-reports/pytest/test_a/a.xml <<'END'
          <testsuite name="s">
            <testcase name="good" classname="c" time="1"/>
            <testcase name="bad" classname="c" time="2"><failure message="1 != 2"/></testcase>
          </testsuite>
          END
      - id: pack
        uses: pytorch/crcr/actions/pack-test-reports@v1
        with:
          binary: BINARY
          job-id: "JOB_ID"
      - uses: pytorch/crcr/actions/upload-artifact-with-fallback@v1
        with:
          binary: BINARY
          name: ${{ steps.pack.outputs.name }}
          path: ${{ steps.pack.outputs.path }}
          archive: none
"#;

#[test]
#[ignore = "needs act and node"]
fn test_results_of_a_fork_are_on_the_page_of_tests_by_the_template() {
    let mut outside = Outside::new(Run::fork());
    let binary = crate::act::binary();
    let runs = &outside.github.state().runs;
    runs.add(outside.run.clone());
    let job = runs.add_job(outside.run.id, "linux / test");
    let variables = outside.runner_variables();
    let text = JOB.replace("BINARY", binary).replace("JOB_ID", &job.check_run_id.to_string());
    outside.write("ci.yml", &text);
    let Ran { succeeded, log } = outside.run(&variables, true);
    assert!(succeeded, "{log}");
    let name = format!("_{}.zip", job.check_run_id);
    assert!(outside.on_github().iter().any(|stored| stored.ends_with(&name)), "{log}");

    // A collector writes into the file of a relay that is running.
    let place = Place::new(&[], "L1: []\n");
    let relay = place.serve();
    let results = place.database();
    let mut template: Value =
        serde_yaml::from_str(&read("workflows-templates/test-stats.yml")).unwrap();
    let with = template["jobs"]["collect"]["steps"][0]["with"].as_mapping_mut().unwrap();
    for (name, value) in [
        ("binary", binary),
        ("github-token", "ghs_token"),
        ("results", &format!("sqlite:{}", results.display())),
    ] {
        with.insert(name.into(), value.into());
    }
    outside.write("test-stats.yml", &serde_yaml::to_string(&template).unwrap());
    let state = outside.github.state();
    let mut ended = state.runs.get(4242).unwrap().api(state.origin());
    ended["run_started_at"] = jiff::Timestamp::now().to_string().into();
    outside.payload = json!({
        "action": "completed",
        "repository": { "full_name": "acme/upstream", "default_branch": "main" },
        "workflow_run": ended,
    });
    outside.run = Run { event: "workflow_run".to_owned(), ..outside.run.clone() };
    let Ran { succeeded, log } = outside.run(&variables, true);
    assert!(succeeded && log.contains("::set-output:: rows=2"), "{log}");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let (found, page) = runtime.block_on(async {
        let url = ResultsUrl::Sqlite(results);
        let results: Arc<dyn Results> = crcr_results::open(&url, StoreRole::Tool).await.unwrap();
        let found = results.test_runs("acme/upstream", 4242, 1).await.unwrap();
        let page = relay.url.join("/tests?branches=all&show=failing").unwrap();
        let page = reqwest::get(page).await.unwrap().text().await.unwrap();
        (found, page)
    });
    assert!(page.contains("Tests of acme/upstream") && page.contains("c.bad"), "{page}");
    assert!(!page.contains("c.good"), "{page}");
    assert_eq!(found.len(), 1);
    assert_eq!(&*found[0].source.job, "linux / test");
    assert_eq!(found[0].source.job_id, Some(job.check_run_id));
    assert_eq!(found[0].source.invoking_file.as_deref(), Some("test_a"));
    let failed = found[0].rows.iter().filter(|row| row.case.result.is_failed());
    assert_eq!(failed.map(|row| &*row.case.name).collect::<Vec<_>>(), ["bad"]);
}

//! Jobs that get rights elsewhere by the token of a run.

use super::Exposure;
use super::tests::{DOWNSTREAM, judge};

/// Of the job `deploy`, beside the template whose jobs run upstream's code.
fn found(deploy: &str) -> Vec<(Exposure, String)> {
    let deploy = (".github/workflows/deploy.yml", deploy);
    judge(&[(".github/workflows/ci.yml", DOWNSTREAM), deploy]).found
}

fn deploy(on: &str, step: &str) -> String {
    format!(
        "on: {on}\njobs: {{deploy: {{permissions: {{id-token: write}}, steps: [{{uses: {step}}}]}}}}"
    )
}

#[test]
fn role_without_an_environment_is_told_in_every_workflow_beside_upstreams_code() {
    let named = "`deploy` in `.github/workflows/deploy.yml`".to_owned();
    for step in [
        "aws-actions/configure-aws-credentials@v6",
        "'hashicorp/vault-action@v3', with: {method: jwt}",
        "aliyun/configure-aliyun-credentials-action@v1",
    ] {
        let text = deploy("{push: {branches: [main]}}", step);
        assert_eq!(found(&text), [(Exposure::RoleWithoutEnvironment, named.clone())], "{step}");
        // GitHub gives such a run another name than the branch's.
        assert_eq!(found(&deploy("pull_request", step)), []);
    }
}

/// Keys of a secret are trusted whatever the run is called.
#[test]
fn job_that_may_request_no_token_gets_no_role_by_it() {
    let step = "aws-actions/configure-aws-credentials@v6";
    let by_role = deploy("push", step);
    let by_keys = by_role.replace("id-token: write", "contents: read");
    assert_eq!(found(&by_keys), []);
    assert_eq!(found(&by_role.replace("permissions: {id-token: write}, ", "")), []);
}

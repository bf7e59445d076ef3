//! How a job with a token handles what strangers left: the artifacts of a job with their code, or of a run that
//! they caused.

use serde_yaml::Value;

use super::environment_files::writes_more_than_own_words;
use super::exposure::Exposure;
use super::expression::mentions;
use super::job::JudgedJob;
use super::script::{downloads_artifacts, names_code, scripts, treats_files_as_data};
use super::step::{JobStep, action_path, input};
use super::{events, expression};

/// How the steps of a job get what strangers left.
struct ArtifactReading<'a> {
    strangers: &'a [&'a JudgedJob<'a>],
    own: &'a [&'a JudgedJob<'a>],
}

impl ArtifactReading<'_> {
    fn by_script(&self, step: &JobStep<'_>) -> bool {
        let is_theirs = |script: &String| {
            of_run(step) || !self.strangers.is_empty() || names_code(script, step)
        };
        scripts(step.value)
            .iter()
            .any(|script| downloads_artifacts(script, step) && is_theirs(script))
    }

    fn by_action(&self, step: &JobStep<'_>) -> bool {
        let path = action_path(step.value);
        if !(path.contains("download") && path.contains("artifact")) {
            return false;
        }
        match input(step.value, "run-id").or_else(|| input(step.value, "run_id")) {
            Some(run) => of_run(step) || events::is_code(&step.scope.reach(&run), &step.events),
            None if path.starts_with("actions/") || path.ends_with("-with-fallback") => {
                self.is_handed_on(step)
                    || (!self.strangers.is_empty() && uploads(step, self.own).next().is_none())
            }
            // Such as the artifact of a pull request's newest run, by its number.
            None => of_run(step) || !self.strangers.is_empty() || is_given_code(step),
        }
    }

    /// Whether it is the artifact of a job that gets one of another run, which a stranger may have caused.
    fn is_handed_on(&self, step: &JobStep<'_>) -> bool {
        let of_other_run = |step: &JobStep<'_>| {
            let has_run = ["run-id", "run_id"].iter().any(|name| input(step.value, name).is_some());
            self.by_script(step) || (has_run && self.by_action(step))
        };
        uploads(step, self.own).any(|job| job.steps.iter().any(of_other_run))
    }

    fn first(&self, job: &JudgedJob<'_>) -> Option<usize> {
        job.steps.iter().position(|step| self.by_script(step) || self.by_action(step))
    }
}

fn of_run(step: &JobStep<'_>) -> bool {
    step.events.iter().any(|event| event == "workflow_run")
}

/// Whether an action is given a stranger's commit, branch or pull request.
fn is_given_code(step: &JobStep<'_>) -> bool {
    let given = step.value.get("with").map(|with| step.scope.reach_all(with)).unwrap_or_default();
    events::is_code(&given, &step.events)
}

/// Whether a job gets what strangers left.
pub fn is_read(job: &JudgedJob<'_>, strangers: &[&JudgedJob<'_>], own: &[&JudgedJob<'_>]) -> bool {
    ArtifactReading { strangers, own }.first(job).is_some()
}

/// `outputs` are those of the strangers' jobs that it needs.
pub fn handled(
    job: &JudgedJob<'_>,
    strangers: &[&JudgedJob<'_>],
    own: &[&JudgedJob<'_>],
    outputs: &[&str],
) -> Vec<Exposure> {
    let reading = ArtifactReading { strangers, own };
    let Some(first) = reading.first(job) else { return vec![] };
    // What runs in the background may come later than it is written.
    let is_beside = |step: &JobStep<'_>| step.value.get("background").is_some();
    let first = if job.steps[..first].iter().any(is_beside) { 0 } else { first };
    let mut found = vec![];
    let downloads: Vec<_> = job.steps.iter().filter(|step| reading.by_action(step)).collect();
    let is_chosen = |step: &&JobStep<'_>| {
        input(step.value, "name").is_none_or(|name| {
            let reach = step.scope.reach(&name);
            reach.overlaps(outputs) || events::is_text(&reach, &step.events)
        })
    };
    if downloads.iter().any(is_chosen) {
        found.push(Exposure::ArtifactName);
    }
    let folders: Vec<_> = downloads.iter().map(|step| own_folder(step)).collect();
    if folders.iter().any(Option::is_none) {
        found.push(Exposure::ArtifactPath);
    }
    // Those of an unknown event have none.
    let may_run = |step: &&JobStep<'_>| job.events.is_empty() || !step.events.is_empty();
    for step in job.steps[first..].iter().filter(may_run) {
        if scripts(step.value).iter().any(|script| writes_more_than_own_words(script)) {
            found.push(Exposure::ArtifactToEnvironment);
        }
        if runs_or_publishes(step.value, &folders) {
            found.push(Exposure::ArtifactInScript);
        }
    }
    found.sort();
    found.dedup();
    found
}

/// Whether a step runs what is in the folders of artifacts, or publishes it. `None` is any folder.
fn runs_or_publishes(step: &Value, folders: &[Option<String>]) -> bool {
    let is_in_artifact = |path: &str| {
        folders.iter().any(|folder| folder.as_ref().is_none_or(|folder| path.starts_with(folder)))
    };
    let has_artifact = |path: &String| {
        folders.iter().any(|folder| folder.as_ref().is_none_or(|folder| overlap(path, folder)))
    };
    action_path(step).strip_prefix("./").is_some_and(is_in_artifact)
        || built_folders(step).iter().any(|folder| is_in_artifact(folder))
        || published(step).iter().any(has_artifact)
        || (!scripts(step).is_empty() && !treats_files_as_data(step))
}

/// The jobs without strangers' code that upload the artifact that a step downloads.
fn uploads<'a>(
    step: &JobStep<'_>,
    own: &'a [&'a JudgedJob<'a>],
) -> impl Iterator<Item = &'a JudgedJob<'a>> {
    let name = input(step.value, "name");
    own.iter().copied().filter(move |job| {
        job.steps.iter().any(|step| {
            action_path(step.value).contains("upload-artifact")
                && name.is_some()
                && input(step.value, "name") == name
        })
    })
}

/// The folders of this machine that an action builds an image of, whose commands run in the build.
fn built_folders(step: &Value) -> Vec<String> {
    let path = action_path(step);
    if !["build", "bake", "kaniko"].iter().any(|part| path.contains(part)) {
        return vec![];
    }
    let inputs = ["context", "file", "dockerfile", "source", "workdir"];
    let here = inputs.into_iter().filter_map(|name| input(step, name));
    // An address or `{{defaultContext}}` is a commit.
    let here = here.filter(|path| !path.contains("://") && !path.trim().starts_with("{{"));
    here.map(|path| folder_of(&path).unwrap_or_default()).collect()
}

/// Actions that publish or push files as the repository's own, the inputs that name them, and the folder or file that
/// they take without one. Some publish none then.
const PUBLISHES: [(&str, &[&str], Option<&str>); 10] = [
    ("actions/upload-pages-artifact", &["path"], Some("_site")),
    ("crazy-max/ghaction-github-pages", &["build_dir"], None),
    ("jamesives/github-pages-deploy-action", &["folder"], None),
    ("js-devtools/npm-publish", &["package"], Some(".")),
    ("ncipollo/release-action", &["artifact", "artifacts"], None),
    ("peaceiris/actions-gh-pages", &["publish_dir"], Some("public")),
    ("pypa/gh-action-pypi-publish", &["packages-dir", "packages_dir"], Some("dist")),
    ("softprops/action-gh-release", &["files"], None),
    ("stefanzweifel/git-auto-commit-action", &["repository"], Some(".")),
    ("svenstaro/upload-release-action", &["file"], None),
];

/// The paths that a step publishes, but for a preview in a folder of its own.
fn published(step: &Value) -> Vec<String> {
    let path = action_path(step);
    let known = PUBLISHES.iter().find(|(action, ..)| *action == path);
    let is_preview =
        ["destination_dir", "target-folder"].iter().any(|name| input(step, name).is_some());
    let Some((_, inputs, default)) = known.filter(|_| !is_preview) else { return vec![] };
    let mut given: Vec<_> = inputs.iter().filter_map(|name| input(step, name)).collect();
    if given.is_empty() {
        given.extend(default.map(str::to_owned));
    }
    let each = given.iter().flat_map(|paths| paths.split(['\n', ',']));
    let each = each.map(str::trim).filter(|path| !path.is_empty());
    each.map(|path| plain_path(&folder_of(path).unwrap_or_else(|| path.to_owned()))).collect()
}

/// A path without `.` and empty parts, and up to `**`; that of the workspace is empty.
fn plain_path(path: &str) -> String {
    let parts = path.split('/').take_while(|part| *part != "**");
    parts.filter(|part| !matches!(*part, "" | ".")).collect::<Vec<_>>().join("/")
}

/// Whether one of two folders is in the other one, or both are the same.
fn overlap(one: &str, other: &str) -> bool {
    let is_within = |inner: &str, outer: &str| match inner.strip_prefix(outer) {
        // The runner's folder for what is temporary is outside of the workspace.
        Some(rest) if outer.is_empty() => !rest.starts_with("@temp"),
        rest => rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/')),
    };
    is_within(one, other) || is_within(other, one)
}

/// The folder that a download alone writes to; `None` if others may have files there, or if it isn't known.
fn own_folder(step: &JobStep<'_>) -> Option<String> {
    folder_of(&input(step.value, "path")?)
}

fn folder_of(path: &str) -> Option<String> {
    let mut folder = String::new();
    let mut rest = path.trim();
    while let Some(start) = rest.find("${{") {
        folder.push_str(&rest[..start]);
        let inner = *expression::expressions(rest).first()?;
        let expression = format!("${{{{{inner}}}}}");
        let found = mentions(&expression);
        let [mention] = &found[..] else { return None };
        folder.push_str(match mention.path.as_str() {
            "runner.temp" => "@temp",
            "github.workspace" => ".",
            path if path.starts_with("matrix.") => "x",
            "github.job" | "github.run_id" | "github.run_attempt" => "x",
            _ => return None,
        });
        rest = rest[start + 3 + inner.len()..].strip_prefix("}}")?;
    }
    folder.push_str(rest);
    if folder.starts_with(['/', '~']) || folder.contains(['$', '\\']) {
        return None;
    }
    let parts: Vec<_> = folder.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
    let own = match parts[..] {
        ["@temp", ref own @ ..] => own,
        ref own => own,
    };
    let first = own.first()?;
    let is_plain = !first.starts_with('.') && !own.contains(&"..");
    is_plain.then(|| parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::super::tests::{codes, codes_of, with_rights};

    /// A Dockerfile in it has commands that the build runs beside the registry's token.
    #[test]
    fn image_that_is_built_of_a_strangers_artifact_runs_it() {
        let build = |path: &str, given: &str| {
            let run = "run-id: '${{ github.event.workflow_run.id }}'";
            codes(&with_rights(
                "workflow_run",
                &format!(
                    "      - uses: actions/download-artifact@v7\n        with: {{name: image, path: {path}, {run}}}\n      \
                     - uses: docker/build-push-action@v6\n        with: {{push: true, {given}}}\n"
                ),
            ))
        };
        for (path, given) in [
            ("left", "context: left"),
            ("left", "context: ./left/app"),
            ("left", "context: ., file: left/Dockerfile"),
            ("'${{ runner.temp }}/left'", "context: '${{ runner.temp }}/left'"),
        ] {
            assert_eq!(build(path, given), ["artifact-in-script"], "{path} {given}");
        }
        assert!(build(".", "context: .").contains(&"artifact-in-script"));
        for given in ["context: docker", "tags: left", "context: '{{defaultContext}}:left'"] {
            assert_eq!(build("left", given), [""; 0], "{given}");
        }
    }

    /// What it ships is then of whoever opened the pull request.
    #[test]
    fn strangers_artifact_that_is_published_as_the_repositorys_own_is_told() {
        let publish = |step: &str| {
            let run = "run-id: '${{ github.event.workflow_run.id }}'";
            codes(&with_rights(
                "workflow_run",
                &format!(
                    "      - uses: actions/download-artifact@v7\n        with: {{name: site, path: dist, {run}}}\n      \
                     - uses: {step}\n"
                ),
            ))
        };
        for step in [
            "pypa/gh-action-pypi-publish@release/v1",
            "peaceiris/actions-gh-pages@v4\n        with: {publish_dir: ./dist}",
            "JamesIves/github-pages-deploy-action@v4\n        with: {folder: dist/html}",
            "actions/upload-pages-artifact@v4\n        with: {path: dist}",
            "softprops/action-gh-release@v2\n        with: {files: \"README.md\\ndist/*\"}",
            "softprops/action-gh-release@v2\n        with: {files: '**/*.whl'}",
            "ncipollo/release-action@v1\n        with: {artifacts: 'a.txt,dist/b.txt'}",
            "JamesIves/github-pages-deploy-action@v4\n        with: {folder: .}",
            "stefanzweifel/git-auto-commit-action@v6",
        ] {
            assert_eq!(publish(step), ["artifact-in-script"], "{step}");
        }
        for step in [
            "peaceiris/actions-gh-pages@v4\n        with: {publish_dir: docs}",
            "peaceiris/actions-gh-pages@v4\n        with: {publish_dir: dist, destination_dir: previews}",
            "peaceiris/actions-gh-pages@v4",
            "peaceiris/actions-gh-pages@v4\n        with: {publish_dir: distant}",
            "softprops/action-gh-release@v2\n        with: {files: notes.md}",
            "softprops/action-gh-release@v2\n        with: {body: none has files}",
            "ncipollo/release-action@v1\n        with: {bodyFile: notes.md}",
            "pypa/gh-action-pypi-publish@release/v1\n        if: github.event.workflow_run.event == 'push'",
        ] {
            assert_eq!(publish(step), [""; 0], "{step}");
        }
    }

    /// The workflow files of a fork's pull request are the fork's: one may start the workflow of a release.
    #[test]
    fn artifact_of_another_workflow_may_be_a_strangers_whatever_starts_that_workflow_here() {
        let run = "run-id: '${{ github.event.workflow_run.id }}'";
        let steps = format!(
            "      - uses: actions/download-artifact@v7\n        with: {{name: site, path: dist, {run}}}\n      - \
             run: ./dist/deploy.sh\n"
        );
        let deploy = with_rights("{workflow_run: {workflows: [Release]}}", &steps);
        let release = "name: Release\non: {push: {tags: ['v*']}, release: {}}\njobs: {}";
        let found = |deploy: &str| {
            codes_of(&[(".github/workflows/d.yml", deploy), (".github/workflows/r.yml", release)])
        };
        assert_eq!(found(&deploy), ["artifact-in-script"]);
        let gate = "if: \"github.event.workflow_run.event == 'release'\"";
        let own = deploy.replace("    steps:", &format!("    {gate}\n    steps:"));
        assert_eq!(found(&own), [""; 0]);
    }

    #[test]
    fn artifact_of_a_pull_requests_run_is_a_strangers_in_every_event() {
        let run = "      - run: ./bin/tool\n";
        let by_action = |event: &str, input: &str| {
            let step = "      - uses: dawidd6/action-download-artifact@v11\n        with: {name: bin, path: \
                        bin, ";
            codes(&with_rights(event, &format!("{step}{input}}}\n{run}")))
        };
        for (event, input) in [
            ("pull_request_target", "pr: '${{ github.event.number }}'"),
            ("pull_request_target", "commit: '${{ github.event.pull_request.head.sha }}'"),
            ("pull_request_target", "branch: '${{ github.head_ref }}'"),
            ("issue_comment", "pr: '${{ github.event.issue.number }}'"),
        ] {
            assert_eq!(by_action(event, input), ["artifact-in-script"], "{event} {input}");
        }
        assert_eq!(by_action("pull_request_target", "branch: main"), [""; 0]);
        let by_script = |event: &str, script: &str| {
            let env = "        env: {SHA: '${{ github.event.pull_request.head.sha }}'}\n";
            codes(&with_rights(event, &format!("      - run: {script}\n{env}{run}")))
        };
        let of_head =
            "gh run download $(gh run list -c $SHA --json databaseId -q '.[0].databaseId')";
        assert_eq!(by_script("pull_request_target", of_head), ["artifact-in-script"]);
        assert_eq!(by_script("pull_request_target", "gh run download 7 -n base"), [""; 0]);
        assert_eq!(
            by_script("workflow_run", "gh release download v1 -p tool"),
            [""; 0],
            "what maintainers released isn't an artifact of a run"
        );
    }
}

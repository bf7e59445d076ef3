//! The ways in which strangers' code or text reaches what isn't theirs, with what `crcr doctor` says of each.

/// What is wrong, in the order of the reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Exposure {
    Token,
    WritePermission,
    Secret,
    GitCredentials,
    Cache,
    RoleWithoutEnvironment,
    SharedRunner,
    ArtifactName,
    ArtifactPath,
    ArtifactToEnvironment,
    ArtifactInScript,
    OutputInScript,
    EventInScript,
    EventAsCode,
    EventToEnvironment,
    ReportedConclusion,
    ForkRunner,
}

// The names are the stable codes of the checks.
crcr_domain::names! {
    Exposure {
        Token "token-exposed", WritePermission "write-permission", Secret "secret-exposed",
        GitCredentials "git-credentials", Cache "cache-mode",
        RoleWithoutEnvironment "role-environment", SharedRunner "shared-runner",
        ArtifactName "artifact-name", ArtifactPath "artifact-path",
        ArtifactToEnvironment "artifact-to-environment", ArtifactInScript "artifact-in-script",
        OutputInScript "output-in-script", EventInScript "untrusted-expression",
        EventAsCode "event-as-code", EventToEnvironment "event-to-environment",
        ReportedConclusion "reported-conclusion", ForkRunner "fork-runner",
    }
}

impl Exposure {
    /// What holds where nothing was found.
    pub fn held(self) -> &'static str {
        match self {
            Self::Token => "no job with upstream code may request tokens",
            Self::WritePermission => "no job with upstream code has a token that writes",
            Self::Secret => "no job with upstream code gets a secret",
            Self::GitCredentials => "no checkout leaves a token beside upstream code",
            Self::Cache => "no job with upstream code can write the cache",
            Self::RoleWithoutEnvironment => "every cloud role is for a deployment environment",
            Self::SharedRunner => "no job with a token shares its runners with upstream code",
            Self::ArtifactName => "jobs with a token download artifacts by name",
            Self::ArtifactPath => "jobs with a token unpack artifacts into folders of their own",
            Self::ArtifactToEnvironment => "no artifact is written into the environment of a job",
            Self::ArtifactInScript => "no script beside a token prints or runs an artifact",
            Self::OutputInScript => "no script holds an output of a job with upstream code",
            Self::EventInScript => "no script holds text of the event",
            Self::EventAsCode => "no step runs text of the event",
            Self::EventToEnvironment => {
                "no text of the event is written into the environment of a job"
            }
            Self::ReportedConclusion => "the reported conclusion is GitHub's",
            Self::ForkRunner => "no job of a fork's pull request runs on a self-hosted runner",
        }
    }

    /// The finding, before the names of the jobs.
    pub fn finding(self) -> &'static str {
        match self {
            Self::Token => {
                "a job checks out upstream code and has `id-token: write`, so any pull request can \
                 get tokens of this repository's default branch"
            }
            Self::WritePermission => {
                "a job with upstream code has a token that may write, by `permissions` or by the \
                 repository's default"
            }
            Self::Secret => "a job with upstream code gets a secret",
            Self::GitCredentials => {
                "a job with upstream code leaves its token in git's configuration, by a checkout or a script"
            }
            Self::Cache => {
                "a job with upstream code can write the cache, which builds of the default branch \
                 restore"
            }
            Self::RoleWithoutEnvironment => {
                "a job gets a cloud role without a deployment environment, so the role has to trust \
                 the default branch, and upstream code runs as that branch"
            }
            Self::SharedRunner => {
                "a job with a token runs on the same self-hosted runners as upstream code, which may \
                 have left processes there that read the token"
            }
            Self::ArtifactName => {
                "a job with a token downloads artifacts without naming one, so upstream code chooses \
                 which"
            }
            Self::ArtifactPath => {
                "a job with a token unpacks an artifact of upstream code where its own files may be"
            }
            Self::ArtifactToEnvironment => {
                "a job with a token downloads an artifact and writes an environment file, such as \
                 `GITHUB_ENV` or `GITHUB_PATH`"
            }
            Self::ArtifactInScript => {
                "a step in a job with a token can run, print or publish an artifact of upstream code or of a \
                 fork: what it prints may be workflow commands or trip a problem matcher"
            }
            Self::OutputInScript => {
                "a script holds an output of a job with upstream code, which may be shell code"
            }
            Self::EventInScript => {
                "a script holds an expression with text of the event, which may be a stranger's code"
            }
            Self::EventAsCode => {
                "a step runs text of the event, which a stranger writes, as code: by `eval`, `sh -c`, a pipe into a \
                 shell, a file that an earlier step wrote, a number in `[[ ]]` or `$(( ))`, a script of `sed` or `jq`, an option or a package's name, or by an agent that runs commands"
            }
            Self::EventToEnvironment => {
                "a script writes text of the event into an environment file, such as `GITHUB_ENV` or `GITHUB_OUTPUT`, \
                 where each line of it can set another variable or output for later steps"
            }
            Self::ReportedConclusion => {
                "a job reports a conclusion that isn't GitHub's of the job with upstream code"
            }
            Self::ForkRunner => {
                "a job of a pull request, also of a fork's, runs on a label that isn't one of GitHub's \
                 own: on a self-hosted runner it may leave processes or files for later jobs"
            }
        }
    }

    pub fn fix(self) -> &'static str {
        match self {
            Self::Token => "report from a separate job, as the template does",
            Self::WritePermission => {
                "give the job `permissions: {contents: read}` and nothing else"
            }
            Self::Secret => {
                "move the step that needs it into another job, which runs no upstream code"
            }
            Self::GitCredentials => {
                "add `persist-credentials: false` to the checkout, and put no token into an address that git clones or \
                 into `git config`"
            }
            Self::Cache => "add `cache-mode: none` to the job, beside `runs-on`",
            Self::RoleWithoutEnvironment => {
                "add `environment:` to the job, and let the role trust `…:environment:NAME` only"
            }
            Self::SharedRunner => {
                "run one of them elsewhere, as the template does, or use runners that take one job \
                 and are gone"
            }
            Self::ArtifactName => "download one artifact by its `name`",
            Self::ArtifactPath => "give a `path` of its own, such as `test-reports`",
            Self::ArtifactToEnvironment => {
                "read the artifact with a step that needs no variable of it, or leave by `exit` unless what it has is \
                 a whole number: `[[ \"$n\" =~ ^[0-9]+$ ]]`"
            }
            Self::ArtifactInScript => {
                "handle it in a job without a token, or with an action that treats it as data, such \
                 as `report-ci-result`; publish only what a run of a push built, by the job's `if: \
                 github.event.workflow_run.event == 'push'`"
            }
            Self::OutputInScript => "pass the value as `env:` and use the quoted variable",
            Self::EventInScript => {
                "pass the value as `env:` and use the quoted variable: a title may be shell code"
            }
            Self::EventAsCode => {
                "use the text as data: compare it with fixed words, or give it to a command as an argument in quotes, \
                 such as by `jq --arg`; let an agent that reads it have no token, secret or command"
            }
            Self::EventToEnvironment => {
                "give the text to the steps that need it as `env:`, or end it in the file by a random delimiter"
            }
            Self::ReportedConclusion => {
                "report `${{ needs.JOB.result }}`, which upstream code can't choose"
            }
            Self::ForkRunner => {
                "run forks' jobs on GitHub's runners, or on runners that take one job, have no identity \
                 and are gone: a fork's copy of the workflow can name any runner of this repository. `--ephemeral` names \
                 such runners, as GitHub's larger ones are"
            }
        }
    }

    /// A warning where the repository may have its reasons; the others are errors.
    pub fn is_warning(self) -> bool {
        matches!(
            self,
            Self::ArtifactName | Self::ArtifactPath | Self::ReportedConclusion | Self::ForkRunner
        )
    }

    /// Whether it puts a token or a secret into a stranger's hands.
    pub fn gives_token(self) -> bool {
        !matches!(
            self,
            Self::GitCredentials
                | Self::Cache
                | Self::RoleWithoutEnvironment
                | Self::ReportedConclusion
                | Self::ArtifactName
                | Self::ArtifactPath
                | Self::ForkRunner
        )
    }
}

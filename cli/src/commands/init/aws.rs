//! `crcr init aws`: the roles, policies and buckets that `fork-build` needs, for this repository.

use std::fmt::Write as _;

use crcr_aws::names::{AwsRegion, BucketName};
use crcr_github::lookup::SubjectPrefix;
use crcr_github::lookup::cache::LookupCache;
use crcr_github::server;

use super::repository::LocalRepository;
use super::template::{aws_name, path_below};
use super::{InitPlan, PlannedFile};
use crate::cli::init::{AwsArgs, AwsFormat};
use crate::commands::github;
use crate::env_vars::Env;
use crate::failure::Failure;
use crate::printer::Printer;

/// The module, by the names of its files.
const MODULE: [(&str, &str); 4] = [
    ("main.tf", include_str!("../../../../deploy/aws-ci/main.tf")),
    ("outputs.tf", include_str!("../../../../deploy/aws-ci/outputs.tf")),
    ("variables.tf", include_str!("../../../../deploy/aws-ci/variables.tf")),
    ("versions.tf", include_str!("../../../../deploy/aws-ci/versions.tf")),
];
const TRUST: &str = include_str!("../../../../deploy/aws-ci/policies/trust.json");
const ROLE: &str = include_str!("../../../../deploy/aws-ci/policies/role.json");
const CACHE_BUCKET: &str = include_str!("../../../../deploy/aws-ci/policies/cache-bucket.json");
const ARTIFACT_BUCKET: &str =
    include_str!("../../../../deploy/aws-ci/policies/artifact-bucket.json");
const CACHE_LIFECYCLE: &str =
    include_str!("../../../../deploy/aws-ci/policies/cache-lifecycle.json");
const LIFECYCLE: &str = include_str!("../../../../deploy/aws-ci/policies/artifact-lifecycle.json");

/// The issuer of tokens of github.com's jobs, which the module takes by default.
const USUAL_ISSUER: &str = "token.actions.githubusercontent.com";

/// Bytes that IAM leaves of the 64 of a role's name before the longest class, `-default-branch`.
const MAX_ROLE_PREFIX: usize = 49;

/// A class of trust: its folder in the buckets, and the deployment environment of its jobs.
const CLASSES: [(&str, &str); 2] = [("default-branch", "ci"), ("pull-requests", "ci-pull-request")];

/// What is known of the repository, by GitHub and by its address.
struct RepositoryFacts {
    /// In GitHub's spelling, which `sub` has.
    full_name: String,
    id: u64,
    owner_id: u64,
    default_branch: Option<String>,
    private: bool,
    subject: SubjectPrefix,
    /// Who issues the tokens of its jobs, without `https://`.
    issuer: String,
}

pub async fn plan(
    args: &AwsArgs,
    here: &LocalRepository<'_>,
    env: &Env,
    printer: &Printer,
) -> Result<InitPlan, Failure> {
    let region = aws_name("aws-region", AwsRegion::new(&args.aws_region))?;
    aws_name("cache-bucket", BucketName::to_create(&args.cache_bucket))?;
    aws_name("artifact-bucket", BucketName::to_create(&args.artifact_bucket))?;
    if args.cache_bucket == args.artifact_bucket {
        let message = "`--cache-bucket` and `--artifact-bucket` name one bucket";
        return Err(Failure::user("aws-name", message)
            .hint("name two: everybody may list the cache's, and nobody the artifacts'"));
    }
    let account = account(args)?;
    let folder = path_below("folder", &args.folder, "deploy/aws-ci")?;
    let facts = facts(args, here, env, printer).await?;
    let subject_note = check_subject(&facts, printer);
    let private = args.private || facts.private;
    let files = match args.format {
        AwsFormat::Terraform => terraform_files(args, &facts, &region, private, &folder),
        AwsFormat::Json => json_files(args, &facts, &region, account, private, &folder)?,
    };
    let next_steps = next_steps(args, &facts, account, private, &folder, subject_note);
    Ok(InitPlan { files, next_steps })
}

fn account(args: &AwsArgs) -> Result<Option<&str>, Failure> {
    let Some(account) = args.account_id.as_deref() else {
        return match args.format {
            AwsFormat::Terraform => Ok(None),
            AwsFormat::Json => Err(Failure::unexpected("usage", "JSON needs `--account-id`")
                .hint("`aws sts get-caller-identity` prints it")),
        };
    };
    if account.len() == 12 && account.bytes().all(|b| b.is_ascii_digit()) {
        return Ok(Some(account));
    }
    let message = format!("`--account-id`: `{}` can't be an account", account.escape_debug());
    Err(Failure::user("aws-name", message).hint("an account's number has twelve digits"))
}

async fn facts(
    args: &AwsArgs,
    here: &LocalRepository<'_>,
    env: &Env,
    printer: &Printer,
) -> Result<RepositoryFacts, Failure> {
    let issuer = server::oidc_issuer(here.certain_server()?);
    let issuer = issuer.unwrap_or_else(|| USUAL_ISSUER.to_owned());
    if let (Some(owner_id), Some(id)) = (args.owner_id, args.repository_id) {
        return Ok(RepositoryFacts {
            full_name: here.name().to_owned(),
            id,
            owner_id,
            default_branch: None,
            private: false,
            subject: SubjectPrefix::Hidden,
            issuer,
        });
    }
    let name = here.name();
    let lookup =
        github::lookup(None, LookupCache::default(), env, printer).map_err(
            |failure| match failure.code() {
                "no-github-token" => {
                    let message = format!("the numbers of `{name}` and its owner aren't known");
                    Failure::unexpected("no-github-token", message).hint(format!(
                    "set `GITHUB_TOKEN`, such as to the output of `gh auth token`, or give what \
                     `gh api repos/{name} --jq '.owner.id, .id'` prints as `--owner-id` and \
                     `--repository-id`"
                ))
                }
                _ => failure,
            },
        )?;
    let failed = |error| github::lookup_failure(error, &format!("`{name}`"));
    let found = lookup.repository(name).await.map_err(failed)?.ok_or_else(|| {
        Failure::user(
            "unknown-repository",
            format!("GitHub has no repository `{name}`, or the token can't see it"),
        )
        .hint("check the spelling; a private repository needs a token that sees it")
    })?;
    let subject = lookup.subject_prefix(&found.full_name).await.map_err(failed)?;
    Ok(RepositoryFacts {
        full_name: found.full_name,
        id: found.id,
        owner_id: found.owner_id,
        default_branch: Some(found.default_branch),
        private: found.private,
        subject,
        issuer,
    })
}

impl RepositoryFacts {
    fn owner(&self) -> &str {
        self.full_name.split('/').next().unwrap_or_default()
    }

    fn name(&self) -> &str {
        self.full_name.split('/').nth(1).unwrap_or_default()
    }

    /// What the names of its roles start with. No other repository has it: an owner has no dot, and a name no `@`.
    fn role_prefix(&self) -> String {
        let full = format!("crcr-{}.{}", self.owner(), self.name());
        if full.len() <= MAX_ROLE_PREFIX {
            return full;
        }
        let number = format!("@{}", self.id);
        format!("{}{number}", &full[..MAX_ROLE_PREFIX - number.len()])
    }

    /// Both forms that `sub` starts with unless the repository has chosen its own.
    fn prefixes(&self) -> [String; 2] {
        let Self { full_name, id, owner_id, .. } = self;
        let with_numbers = format!("repo:{}@{owner_id}/{}@{id}", self.owner(), self.name());
        [format!("repo:{full_name}"), with_numbers]
    }
}

/// Which `sub` the roles will see, for the list of steps. Warns of one that they don't trust.
fn check_subject(facts: &RepositoryFacts, printer: &Printer) -> String {
    let prefixes = facts.prefixes();
    match &facts.subject {
        SubjectPrefix::Default(prefix) if prefixes.contains(prefix) => {
            format!("GitHub sends the `sub` `{prefix}:environment:ci`, which the role trusts")
        }
        SubjectPrefix::Default(prefix) => {
            printer.warning(
                &format!("GitHub sends a `sub` that starts with `{prefix}`, which no role trusts"),
                Some("write it into `policies/trust.json`"),
            );
            format!("let the roles trust `{prefix}:environment:…`")
        }
        SubjectPrefix::Custom(claims) => {
            printer.warning(
                &format!(
                    "this repository has a template of its own for `sub`, of {}, which no role trusts",
                    claims.join(", ")
                ),
                Some(
                    "write what a job's token has as `sub` into `policies/trust.json`; `crcr oidc \
                     configure` prints it where a role refuses it",
                ),
            );
            "let the roles trust this repository's own form of `sub`".to_owned()
        }
        SubjectPrefix::Hidden => format!(
            "the roles trust both forms of `sub`, `{}:environment:ci` and `{}:environment:ci`: \
             GitHub sends one of them",
            prefixes[0], prefixes[1]
        ),
    }
}

fn terraform_files(
    args: &AwsArgs,
    facts: &RepositoryFacts,
    region: &AwsRegion,
    private: bool,
    folder: &str,
) -> Vec<PlannedFile> {
    let mut values = format!(
        "# Written by `crcr init aws`. The region is the provider's: see provider.tf.\n\
         name            = \"{}\"\n\
         repository      = \"{}\"\n\
         owner_id        = {}\n\
         repository_id   = {}\n\
         cache_bucket    = \"{}\"\n\
         artifact_bucket = \"{}\"\n",
        facts.role_prefix(),
        facts.full_name,
        facts.owner_id,
        facts.id,
        args.cache_bucket,
        args.artifact_bucket
    );
    if facts.issuer != USUAL_ISSUER {
        let _ = writeln!(values, "issuer          = \"{}\"", facts.issuer);
    }
    for (name, differs) in
        [("public_cache", private), ("create_oidc_provider", args.existing_provider)]
    {
        if differs {
            let _ = writeln!(values, "\n{name} = false");
        }
    }
    let provider = format!("provider \"aws\" {{\n  region = \"{}\"\n}}\n", region.as_str());
    let policies = [
        ("policies/trust.json", TRUST),
        ("policies/role.json", ROLE),
        ("policies/cache-bucket.json", CACHE_BUCKET),
        ("policies/artifact-bucket.json", ARTIFACT_BUCKET),
    ];
    let mut files: Vec<_> = MODULE
        .iter()
        .chain(&policies)
        .map(|(name, text)| PlannedFile::new(folder, name, (*text).to_owned()))
        .collect();
    files.push(PlannedFile::new(folder, "provider.tf", provider));
    files.push(PlannedFile::new(folder, "terraform.tfvars", values));
    files
}

fn json_files(
    args: &AwsArgs,
    facts: &RepositoryFacts,
    region: &AwsRegion,
    account: Option<&str>,
    private: bool,
    folder: &str,
) -> Result<Vec<PlannedFile>, Failure> {
    let (id, owner_id) = (facts.id.to_string(), facts.owner_id.to_string());
    let fill = |text: &str, (class, environment): (&str, &str)| {
        let values = [
            ("partition", region.partition()),
            ("account", account.unwrap_or_default()),
            ("issuer", &facts.issuer),
            ("owner", facts.owner()),
            ("repository", facts.name()),
            ("owner_id", &owner_id),
            ("repository_id", &id),
            ("cache_bucket", &args.cache_bucket),
            ("artifact_bucket", &args.artifact_bucket),
            ("class", class),
            ("environment", environment),
        ];
        let mut text = text.to_owned();
        for (name, value) in values {
            text = text.replace(&format!("${{{name}}}"), value);
        }
        text
    };
    let mut files = vec![];
    for class in CLASSES {
        for (kind, text) in [("trust", TRUST), ("role", ROLE)] {
            let name = format!("{}-{kind}.json", class.0);
            files.push(PlannedFile::new(folder, &name, fill(text, class)));
        }
    }
    let of_buckets = [
        ("cache-bucket.json", CACHE_BUCKET, !private),
        ("cache-lifecycle.json", CACHE_LIFECYCLE, true),
        ("artifact-bucket.json", ARTIFACT_BUCKET, true),
        ("artifact-lifecycle.json", LIFECYCLE, true),
    ];
    for (name, text, wanted) in of_buckets {
        if wanted {
            files.push(PlannedFile::new(folder, name, fill(text, CLASSES[0])));
        }
    }
    Ok(files)
}

fn next_steps(
    args: &AwsArgs,
    facts: &RepositoryFacts,
    account: Option<&str>,
    private: bool,
    folder: &str,
    subject_note: String,
) -> Vec<String> {
    let (name, region) = (&facts.full_name, &args.aws_region);
    let branch = facts.default_branch.as_deref().unwrap_or("the default branch");
    let mut steps = vec![match args.format {
        AwsFormat::Terraform => {
            format!("`terraform -chdir={folder} init`, then `terraform -chdir={folder} apply`")
        }
        AwsFormat::Json => format!(
            "create the roles and buckets with the files of `{folder}`: crcr's docs/aws.md has the \
             commands, with `name={}`",
            facts.role_prefix()
        ),
    }];
    if args.format == AwsFormat::Terraform && !args.existing_provider {
        let hint = "an account has one OIDC provider of GitHub's: if `aws iam \
                    list-open-id-connect-providers` shows it, run this again with `--existing-provider \
                    --force` before you apply";
        steps.insert(0, hint.to_owned());
    }
    if facts.issuer != USUAL_ISSUER {
        let url = format!("https://{}", facts.issuer);
        steps.push(format!(
            "`{url}` issues the tokens of this server's jobs: AWS has to reach it, and it is the URL of the OIDC \
             provider"
        ));
    }
    steps.push(format!(
        "create the environments `ci` and `ci-pull-request` (Settings, \"Environments\"), and admit \
         only {branch} to `ci`: else a pull request could take the role of the default branch"
    ));
    steps.push(subject_note);
    if private {
        steps.push(
            "a private repository's cache isn't public, so pull requests from forks build without it"
                .to_owned(),
        );
    } else {
        steps.push(format!(
            "everybody may list `{}` and read what the default branch caches: check that your account \
             doesn't block public buckets",
            args.cache_bucket
        ));
    }
    let partition = AwsRegion::new(region).map_or("aws", |region| region.partition());
    let of_account = match account {
        Some(_) => String::new(),
        None => ", where ACCOUNT is the number of your AWS account".to_owned(),
    };
    let account = account.unwrap_or("ACCOUNT");
    let prefix = facts.role_prefix();
    let role = |class: &str| format!("arn:{partition}:iam::{account}:role/{prefix}-{class}");
    steps.push(format!(
        "`crcr init fork-build --repository {name} --role-to-assume {} --pull-request-role {} \
         --aws-region {region} --sccache-bucket {} --s3-bucket {}` writes the workflow{of_account}",
        role("default-branch"),
        role("pull-requests"),
        args.cache_bucket,
        args.artifact_bucket
    ));
    let public = if private { " --private" } else { "" };
    steps.push(format!(
        "`crcr doctor aws --role {} --bucket {} --artifact-bucket {} --region {region}{public}` checks it",
        role("default-branch"),
        args.cache_bucket,
        args.artifact_bucket
    ));
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    fn role_prefix(full_name: &str, id: u64) -> String {
        let facts = RepositoryFacts {
            full_name: full_name.to_owned(),
            id,
            owner_id: 1,
            default_branch: None,
            private: false,
            subject: SubjectPrefix::Hidden,
            issuer: USUAL_ISSUER.to_owned(),
        };
        facts.role_prefix()
    }

    /// An account's roles have one name each, whatever the case of its letters.
    #[test]
    fn roles_of_each_repository_of_an_account_have_names_of_their_own_that_iam_takes() {
        let long = "r".repeat(100);
        let owner = "o".repeat(39);
        let names = [
            ("acme/app".to_owned(), 1),
            ("acme/app-b".to_owned(), 2),
            ("acme-app/b".to_owned(), 3),
            ("acme/app.b".to_owned(), 4),
            ("octo_acme/app".to_owned(), 5),
            (format!("{owner}/{long}"), 6),
            (format!("{owner}/{}s", &long[1..]), 7),
            (format!("{owner}/rrrr"), 8),
            (format!("{owner}/rrrrr"), u64::MAX),
        ];
        let prefixes: Vec<_> = names.iter().map(|(name, id)| role_prefix(name, *id)).collect();
        assert_eq!(prefixes[0], "crcr-acme.app");
        assert_eq!(prefixes[5], format!("crcr-{owner}.rr@6"));
        assert_eq!(prefixes[7], format!("crcr-{owner}.rrrr"));
        let mut different = prefixes.clone();
        different.sort();
        different.dedup();
        assert_eq!(different.len(), names.len(), "{prefixes:?}");
        for prefix in &prefixes {
            for (class, _) in CLASSES {
                let role = format!("arn:aws:iam::123456789012:role/{prefix}-{class}");
                assert!(crcr_aws::names::RoleArn::new(&role).is_ok(), "{role}");
            }
        }
    }
}

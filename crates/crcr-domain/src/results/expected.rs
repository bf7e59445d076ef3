//! Jobs that are expected to end badly. Upstream's canary repository has jobs that fail on purpose, to show that
//! the relay passes failures on.

use std::str::FromStr;

use crate::checks::lifecycle::Conclusion;
use crate::protocol::event::matches_wildcard;
use crate::repo::RepoName;

/// What PyTorch's canary does on purpose.
const PYTORCH: &str = "pytorch/crcr-test:*xfail*=failure, pytorch/crcr-test:*xcancel*=cancelled, \
                       pytorch/crcr-test:*xtimeout*=timed_out";

/// The conclusions that jobs are expected to have, by repository and by the name of the job.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExpectedConclusions(Vec<ExpectedConclusion>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct ExpectedConclusion {
    repo: RepoName,
    /// Matches the job's name; `*` stands for any text.
    pattern: String,
    conclusion: Conclusion,
}

impl ExpectedConclusions {
    /// What is expected if nothing is set.
    pub fn of_upstream(upstream: &str) -> Self {
        if upstream.eq_ignore_ascii_case("pytorch/pytorch") {
            PYTORCH.parse().expect("the default is valid")
        } else {
            Self::default()
        }
    }

    /// The first pattern that matches wins. `None` for a job that is expected to pass.
    pub fn conclusion(&self, repo: &str, job: Option<&str>) -> Option<Conclusion> {
        let job = job?;
        let of_repo = self.0.iter().filter(|one| one.repo.as_str().eq_ignore_ascii_case(repo));
        of_repo
            .into_iter()
            .find(|one| matches_wildcard(&one.pattern, job))
            .map(|one| one.conclusion)
    }
}

/// `OWNER/REPO:PATTERN=CONCLUSION`, separated by commas or lines; `off` for none.
impl FromStr for ExpectedConclusions {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.trim() == "off" {
            return Ok(Self::default());
        }
        let items = text.split([',', '\n']).map(str::trim).filter(|item| !item.is_empty());
        items.map(parse_item).collect::<Result<_, _>>().map(Self)
    }
}

fn parse_item(item: &str) -> Result<ExpectedConclusion, String> {
    let form = || format!("`{item}`: expected OWNER/REPO:PATTERN=CONCLUSION");
    let (repo, rest) = item.split_once(':').ok_or_else(form)?;
    let (pattern, conclusion) = rest.rsplit_once('=').ok_or_else(form)?;
    let (pattern, conclusion) = (pattern.trim(), conclusion.trim());
    if pattern.is_empty() {
        return Err(form());
    }
    Ok(ExpectedConclusion {
        repo: RepoName::new(repo.trim()).map_err(|error| format!("`{item}`: {error}"))?,
        pattern: pattern.to_owned(),
        conclusion: conclusion
            .parse()
            .map_err(|()| format!("`{item}`: `{conclusion}` isn't a conclusion of GitHub"))?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pytorchs_canary_fails_on_purpose_and_nobody_else_does() {
        let expected = ExpectedConclusions::of_upstream("PyTorch/pytorch");
        for (repo, job, conclusion) in [
            ("pytorch/crcr-test", "xfail-l3", Some(Conclusion::Failure)),
            ("PyTorch/CRCR-test", "test (xcancel)", Some(Conclusion::Cancelled)),
            ("pytorch/crcr-test", "xtimeout", Some(Conclusion::TimedOut)),
            ("pytorch/crcr-test", "smoke", None),
            ("acme/two", "xfail", None),
        ] {
            assert_eq!(expected.conclusion(repo, Some(job)), conclusion, "{repo} {job}");
        }
        assert_eq!(expected.conclusion("pytorch/crcr-test", None), None);
        assert_eq!(ExpectedConclusions::of_upstream("acme/up"), ExpectedConclusions::default());
        assert_eq!("off".parse(), Ok(ExpectedConclusions::default()));
    }

    #[test]
    fn mistyped_setting_names_the_part_that_is_wrong() {
        for (text, problem) in [
            ("acme/two=failure", "`acme/two=failure`: expected OWNER/REPO:PATTERN=CONCLUSION"),
            ("acme/two:=failure", "`acme/two:=failure`: expected OWNER/REPO:PATTERN=CONCLUSION"),
            ("acme/two:x=fails", "`acme/two:x=fails`: `fails` isn't a conclusion of GitHub"),
        ] {
            assert_eq!(text.parse::<ExpectedConclusions>(), Err(problem.to_owned()));
        }
        assert!("acme:x=failure".parse::<ExpectedConclusions>().is_err());
    }
}

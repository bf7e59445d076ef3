//! The names that AWS gives to regions, buckets and roles: which texts can be one, and why another can't.
//!
//! A wrong name is found here at once. Otherwise it is found after minutes of retries, since a region that
//! doesn't exist looks like a network without DNS.

use std::net::Ipv4Addr;

/// Why a text can't be a name, and the rule that it breaks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct AwsNameError {
    pub message: String,
    /// The rule, and if possible what to write.
    pub rule: String,
}

impl AwsNameError {
    fn new(message: String, rule: impl Into<String>) -> Self {
        Self { message, rule: rule.into() }
    }
}

/// Where in its area a region is: the middle part of its name.
const DIRECTIONS: [&str; 9] = [
    "central",
    "east",
    "north",
    "northeast",
    "northwest",
    "south",
    "southeast",
    "southwest",
    "west",
];

const REGION_RULE: &str =
    "a region is an area, a direction and a number, such as `us-east-1` or `ap-southeast-2`";

/// A region, such as `us-east-1`. New regions are accepted if their name has the form of all others.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AwsRegion(String);

impl AwsRegion {
    pub fn new(text: &str) -> Result<Self, AwsNameError> {
        let refused = |rule: String| {
            AwsNameError::new(
                format!("`{}` can't be the name of a region", text.escape_debug()),
                rule,
            )
        };
        let lower = text.trim().to_ascii_lowercase();
        // Local zones, and the pseudo-regions of old SDKs for FIPS.
        let mut starts = lower.match_indices('-').map(|(end, _)| &lower[..end]);
        if let Some(region) = starts.find(|start| Self::new(start).is_ok()) {
            let rule = format!(
                "it starts with the region `{region}`: write that, without its zone or FIPS"
            );
            return Err(refused(rule));
        }
        let number_of = |part: &str| part.len() == 1 && matches!(part.as_bytes()[0], b'1'..=b'9');
        let Some((front, number)) = lower.rsplit_once('-') else {
            return Err(refused(REGION_RULE.to_owned()));
        };
        let Some((area, direction)) = front.rsplit_once('-').filter(|(area, _)| is_area(area))
        else {
            return Err(refused(REGION_RULE.to_owned()));
        };
        let zone = number.len() == 2 && number.ends_with(|c: char| c.is_ascii_lowercase());
        if zone && number_of(&number[..1]) && DIRECTIONS.contains(&direction) {
            let region = &lower[..lower.len() - 1];
            return Err(refused(format!(
                "it is an availability zone of the region `{region}`: write that"
            )));
        }
        if !number_of(number) {
            return Err(refused(REGION_RULE.to_owned()));
        }
        if !DIRECTIONS.contains(&direction) {
            let meant = DIRECTIONS.iter().find(|known| strsim::osa_distance(known, direction) == 1);
            let meant = meant.map(|known| format!(": did you mean `{area}-{known}-{number}`?"));
            return Err(refused(format!("{REGION_RULE}{}", meant.unwrap_or_default())));
        }
        if lower != text {
            return Err(refused(format!(
                "write it in lower case and without spaces, as `{lower}`"
            )));
        }
        Ok(Self(lower))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The partition, which is the second part of each ARN of the region.
    pub fn partition(&self) -> &'static str {
        PARTITIONS
            .iter()
            .find(|(prefix, _)| self.0.starts_with(prefix))
            .map_or("aws", |(_, partition)| partition)
    }
}

/// Prefixes of regions, and their partitions.
const PARTITIONS: [(&str, &str); 7] = [
    ("cn-", "aws-cn"),
    ("us-gov-", "aws-us-gov"),
    ("us-iso-", "aws-iso"),
    ("us-isob-", "aws-iso-b"),
    ("us-isof-", "aws-iso-f"),
    ("eu-isoe-", "aws-iso-e"),
    ("eusc-", "aws-eusc"),
];

/// Such as `us`, `us-gov` or `eusc-de`. Two letters that AWS doesn't use yet may become an area.
fn is_area(area: &str) -> bool {
    let letters = |text: &str| text.len() == 2 && text.bytes().all(|b| b.is_ascii_lowercase());
    match area.split_once('-') {
        None => letters(area),
        Some(("eusc", country)) => letters(country),
        Some((area, part)) => letters(area) && (part == "gov" || part.starts_with("iso")),
    }
}

const BUCKET_RULE: &str = "a bucket's name has 3 to 63 lower-case letters, digits, dots and dashes, and no `s3://` or folder";

/// The name of a bucket that can exist, or the alias of an access point.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BucketName(String);

impl BucketName {
    /// By the rules of <https://docs.aws.amazon.com/AmazonS3/latest/userguide/bucketnamingrules.html>.
    pub fn new(text: &str) -> Result<Self, AwsNameError> {
        let refused = |rule: &str| {
            AwsNameError::new(
                format!("`{}` can't be the name of a bucket", text.escape_debug()),
                rule,
            )
        };
        let arn = text.strip_prefix("arn:").and_then(|arn| arn.split_once(":s3:::"));
        if let Some((_, name)) = arn {
            let name = name.escape_debug();
            return Err(refused(&format!("it is a bucket's ARN: write its name, `{name}`")));
        }
        let letters =
            |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'.' || b == b'-';
        if !(3..=63).contains(&text.len()) || !text.bytes().all(letters) {
            return Err(refused(BUCKET_RULE));
        }
        let is_edge = |c: char| c.is_ascii_alphanumeric();
        if !text.starts_with(is_edge) || !text.ends_with(is_edge) {
            return Err(refused("a bucket's name starts and ends with a letter or a digit"));
        }
        if text.contains("..") {
            return Err(refused("a bucket's name has no two dots beside each other"));
        }
        if text.parse::<Ipv4Addr>().is_ok() {
            return Err(refused("a bucket's name isn't an IP address"));
        }
        let reserved = ["xn--", "sthree-", "amzn-s3-demo-"];
        if let Some(prefix) = reserved.iter().find(|prefix| text.starts_with(*prefix)) {
            return Err(refused(&format!("AWS keeps names that start with `{prefix}` for itself")));
        }
        Ok(Self(text.to_owned()))
    }

    /// The name of a bucket that is to be created: none that AWS makes itself, such as an access point's alias.
    pub fn to_create(text: &str) -> Result<Self, AwsNameError> {
        let name = Self::new(text)?;
        let reserved = ["-s3alias", "--ol-s3", ".mrap", "--x-s3", "--table-s3"];
        match reserved.iter().find(|suffix| text.ends_with(*suffix)) {
            None => Ok(name),
            Some(suffix) => Err(AwsNameError::new(
                format!("no bucket can be created with the name `{text}`"),
                format!("AWS keeps names that end with `{suffix}` for itself"),
            )),
        }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

const ROLE_RULE: &str = "a role looks like `arn:aws:iam::123456789012:role/ci-build`";

/// The ARN of a role: `arn:PARTITION:iam::ACCOUNT:role/PATH/NAME`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoleArn {
    pub text: String,
    pub partition: String,
    pub account: String,
    pub name: String,
}

impl RoleArn {
    /// By the rules of <https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_iam-quotas.html>.
    pub fn new(text: &str) -> Result<Self, AwsNameError> {
        let refused = |rule: &str| {
            AwsNameError::new(format!("`{}` can't be the ARN of a role", text.escape_debug()), rule)
        };
        let parts: Vec<_> = text.splitn(6, ':').collect();
        let ["arn", partition, "iam", "", account, resource] = parts[..] else {
            return Err(refused(ROLE_RULE));
        };
        let known = partition == "aws" || PARTITIONS.iter().any(|(_, known)| *known == partition);
        if !known {
            return Err(refused(
                "the second part is `aws`, `aws-cn`, `aws-us-gov` or another partition of AWS",
            ));
        }
        if account.len() != 12 || !account.bytes().all(|b| b.is_ascii_digit()) {
            return Err(refused("an account's number has twelve digits"));
        }
        let Some(path) = resource.strip_prefix("role/") else { return Err(refused(ROLE_RULE)) };
        let (folders, name) = path.rsplit_once('/').unwrap_or(("", path));
        let letters = |c: char| c.is_ascii_alphanumeric() || "_+=,.@-".contains(c);
        if name.is_empty() || name.len() > 64 || !name.chars().all(letters) {
            return Err(refused(
                "a role's name has 1 to 64 letters, digits and characters of `_+=,.@-`",
            ));
        }
        if folders.len() > 510 || !folders.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(refused("a role's path has at most 512 printable characters"));
        }
        Ok(Self {
            text: text.to_owned(),
            partition: partition.to_owned(),
            account: account.to_owned(),
            name: name.to_owned(),
        })
    }

    /// STS of one partition knows no role of another.
    pub fn check_region(&self, region: &AwsRegion) -> Result<(), AwsNameError> {
        let (role, region_partition) = (&self.partition, region.partition());
        if role == region_partition {
            return Ok(());
        }
        Err(AwsNameError::new(
            format!(
                "the role is in the partition `{role}`, and the region `{}` isn't",
                region.as_str()
            ),
            format!(
                "the region belongs to `{region_partition}`, whose roles start with \
                 `arn:{region_partition}:iam::`: name a role and a region of one partition"
            ),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_of_every_partition_are_accepted_and_new_ones_of_the_same_form() {
        for (region, partition) in [
            ("us-east-1", "aws"),
            ("ap-southeast-7", "aws"),
            ("mx-central-1", "aws"),
            ("il-central-1", "aws"),
            ("cn-northwest-1", "aws-cn"),
            ("us-gov-west-1", "aws-us-gov"),
            ("us-iso-east-1", "aws-iso"),
            ("us-isob-east-1", "aws-iso-b"),
            ("us-isof-south-1", "aws-iso-f"),
            ("eu-isoe-west-1", "aws-iso-e"),
            ("eusc-de-east-1", "aws-eusc"),
        ] {
            assert_eq!(AwsRegion::new(region).unwrap().partition(), partition, "{region}");
        }
    }

    #[test]
    fn text_that_no_region_is_called_is_refused_with_the_rule_or_what_was_meant() {
        for (text, part) in [
            ("us-esat-1", "did you mean `us-east-1`?"),
            ("us-eas-1", "did you mean `us-east-1`?"),
            ("eu-cental-1", "did you mean `eu-central-1`?"),
            ("us-east-1a", "availability zone of the region `us-east-1`"),
            ("us-east-1-bos-1a", "starts with the region `us-east-1`"),
            ("us-west-2-lax-1", "starts with the region `us-west-2`"),
            ("us-gov-west-1-fips", "starts with the region `us-gov-west-1`"),
            ("us-east-1-", "starts with the region `us-east-1`"),
            ("fips-us-east-1", REGION_RULE),
            ("aws-global", REGION_RULE),
            ("EU", REGION_RULE),
            ("US-East-1", "as `us-east-1`"),
            (" us-east-1", "as `us-east-1`"),
            ("us-east", REGION_RULE),
            ("us-east-11", REGION_RULE),
            ("useast1", REGION_RULE),
            ("us_east_1", REGION_RULE),
            ("us-east-0", REGION_RULE),
            ("usa-east-1", REGION_RULE),
            ("us-middle-1", REGION_RULE),
            ("us-east-1.evil.example", REGION_RULE),
            ("us-east-1/x", REGION_RULE),
            ("auto", REGION_RULE),
            ("", REGION_RULE),
            ("ü-east-1é", REGION_RULE),
        ] {
            let error = AwsRegion::new(text).unwrap_err();
            assert!(error.rule.contains(part), "{text}: {error:?}");
            assert!(error.message.contains("can't be the name of a region"), "{error:?}");
        }
    }

    #[test]
    fn bucket_names_follow_the_rules_of_s3() {
        for name in ["acme", "a.b-c", "123", "acme-ap-metadata-s3alias", &"a".repeat(63)] {
            assert_eq!(BucketName::new(name).unwrap().as_str(), name);
        }
        for name in [
            "My_Bucket",
            "ab",
            "-ab",
            "ab-",
            "a..b",
            "192.168.5.4",
            "xn--abc",
            "sthree-x",
            "amzn-s3-demo-bucket",
            "s3://acme",
            "acme/folder",
            "acme\n",
            "acmé",
            &"a".repeat(64),
        ] {
            assert!(BucketName::new(name).is_err(), "{name}");
        }
        let arn = BucketName::new("arn:aws-cn:s3:::acme").unwrap_err();
        assert!(arn.rule.contains("write its name, `acme`"), "{arn:?}");
        for alias in ["acme-ap-metadata-s3alias", "acme--ol-s3", "acme--use1-az1--x-s3"] {
            assert!(BucketName::to_create(alias).is_err(), "{alias}");
        }
    }

    #[test]
    fn role_arns_are_of_a_known_partition_and_of_the_regions_own() {
        let role = RoleArn::new("arn:aws:iam::123456789012:role/teams/ci/build").unwrap();
        assert_eq!((&*role.account, &*role.name), ("123456789012", "build"));
        for text in [
            "",
            "ci-build",
            "arn:aws:iam::12345:role/ci",
            "arn:aws:iam::123456789012:user/ci",
            "arn:aws:iam::123456789012:role/",
            "arn:aws:iam::123456789012:role/a b",
            "arn:aws:sts::123456789012:role/ci",
            "arn:awz:iam::123456789012:role/ci",
            "arn:aws:iam:us-east-1:123456789012:role/ci",
        ] {
            let error = RoleArn::new(text).unwrap_err();
            assert!(error.message.contains("can't be the ARN of a role"), "{text}: {error:?}");
        }
        let china = RoleArn::new("arn:aws-cn:iam::123456789012:role/ci").unwrap();
        assert!(china.check_region(&AwsRegion::new("cn-north-1").unwrap()).is_ok());
        let error = china.check_region(&AwsRegion::new("us-east-1").unwrap()).unwrap_err();
        assert!(error.rule.contains("`arn:aws:iam::`"), "{error:?}");
    }
}

# What a repository's workflows need of AWS: roles that jobs get by OIDC, a compiler cache and a store for artifacts.
#
# There are two classes of trust: jobs of the default branch, and pull requests from branches. Each has a deployment
# environment, a role, and a prefix in both buckets that only this role writes. Pull requests from forks get no role;
# they read the cache of the default branch as everybody can. docs/aws.md explains it.

data "aws_caller_identity" "current" {}

data "aws_partition" "current" {}

locals {
  owner_and_name = split("/", var.repository)
  names = {
    partition       = data.aws_partition.current.partition
    account         = data.aws_caller_identity.current.account_id
    issuer          = var.issuer
    owner           = local.owner_and_name[0]
    repository      = local.owner_and_name[1]
    owner_id        = format("%d", var.owner_id)
    repository_id   = format("%d", var.repository_id)
    cache_bucket    = var.cache_bucket
    artifact_bucket = var.artifact_bucket
  }
  classes = {
    default-branch = var.default_branch_environment
    pull-requests  = var.pull_request_environment
  }
}

resource "aws_iam_openid_connect_provider" "github" {
  count          = var.create_oidc_provider ? 1 : 0
  url            = "https://${var.issuer}"
  client_id_list = ["sts.amazonaws.com"]
}

# One of another repository. A plan fails if it isn't there, or wouldn't take the tokens of jobs.
data "aws_iam_openid_connect_provider" "github" {
  count = var.create_oidc_provider ? 0 : 1
  url   = "https://${var.issuer}"

  lifecycle {
    postcondition {
      condition     = contains(self.client_id_list, "sts.amazonaws.com")
      error_message = "Add the audience sts.amazonaws.com to the OIDC provider of ${var.issuer}."
    }
  }
}

resource "aws_iam_role" "ci" {
  for_each             = local.classes
  name                 = "${var.name}-${each.key}"
  description          = "Jobs of ${var.repository} in the environment ${each.value}"
  max_session_duration = 3600
  assume_role_policy = templatefile("${path.module}/policies/trust.json", merge(local.names, {
    environment = each.value
  }))
}

resource "aws_iam_role_policy" "ci" {
  for_each = local.classes
  name     = "cache-and-artifacts"
  role     = aws_iam_role.ci[each.key].id
  policy = templatefile("${path.module}/policies/role.json", merge(local.names, {
    class = each.key
  }))
}

resource "aws_s3_bucket" "cache" {
  bucket = var.cache_bucket
}

resource "aws_s3_bucket" "artifacts" {
  bucket = var.artifact_bucket
}

# A bucket is closed to everybody unless it says otherwise, and so may the account: see docs/aws.md.
resource "aws_s3_bucket_public_access_block" "cache" {
  bucket                  = aws_s3_bucket.cache.id
  block_public_acls       = true
  ignore_public_acls      = true
  block_public_policy     = !var.public_cache
  restrict_public_buckets = !var.public_cache
}

resource "aws_s3_bucket_public_access_block" "artifacts" {
  bucket                  = aws_s3_bucket.artifacts.id
  block_public_acls       = true
  ignore_public_acls      = true
  block_public_policy     = true
  restrict_public_buckets = true
}

resource "aws_s3_bucket_policy" "cache" {
  count      = var.public_cache ? 1 : 0
  bucket     = aws_s3_bucket.cache.id
  policy     = templatefile("${path.module}/policies/cache-bucket.json", local.names)
  depends_on = [aws_s3_bucket_public_access_block.cache]
}

resource "aws_s3_bucket_policy" "artifacts" {
  bucket = aws_s3_bucket.artifacts.id
  policy = templatefile("${path.module}/policies/artifact-bucket.json", local.names)
}

resource "aws_s3_bucket_lifecycle_configuration" "cache" {
  bucket = aws_s3_bucket.cache.id

  rule {
    id     = "expire"
    status = "Enabled"
    filter {}

    expiration {
      days = var.cache_days
    }

    abort_incomplete_multipart_upload {
      days_after_initiation = 1
    }
  }
}

resource "aws_s3_bucket_lifecycle_configuration" "artifacts" {
  bucket = aws_s3_bucket.artifacts.id

  rule {
    id     = "expire"
    status = "Enabled"
    filter {}

    expiration {
      days = var.artifact_days
    }

    abort_incomplete_multipart_upload {
      days_after_initiation = 1
    }
  }

  dynamic "rule" {
    for_each = var.retention_days
    content {
      id     = "retention-days-${rule.value}"
      status = "Enabled"

      # The tag that `retention-days` of the upload action sets. The shortest of the rules that apply wins.
      filter {
        tag {
          key   = "retention-days"
          value = format("%d", rule.value)
        }
      }

      expiration {
        days = rule.value
      }
    }
  }
}

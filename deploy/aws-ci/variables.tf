variable "name" {
  description = "Start of the names of roles, of this repository alone, such as crcr-OWNER.REPO"
  type        = string

  # A role's name has at most 64 characters, of which `-default-branch` is 15.
  validation {
    condition     = can(regex("^[A-Za-z0-9+=,.@_-]{1,49}$", var.name))
    error_message = "1 to 49 letters, digits and characters of _+=,.@-."
  }
}

variable "repository" {
  description = "The GitHub repository, OWNER/REPO, spelled as GitHub spells it: `sub` is compared letter by letter"
  type        = string

  validation {
    condition     = can(regex("^[A-Za-z0-9][A-Za-z0-9_-]*/[A-Za-z0-9._-]+$", var.repository))
    error_message = "OWNER/REPO."
  }
}

variable "owner_id" {
  description = "The number of the owner: `gh api repos/OWNER/REPO --jq .owner.id`"
  type        = number
}

variable "repository_id" {
  description = "The number of the repository: `gh api repos/OWNER/REPO --jq .id`"
  type        = number
}

variable "cache_bucket" {
  description = "Name of the bucket of the compiler cache, which everybody may list"
  type        = string
}

variable "artifact_bucket" {
  description = "Name of the bucket of artifacts, which is private"
  type        = string
}

variable "default_branch_environment" {
  description = "Deployment environment of jobs of the default branch. Let GitHub admit no other branch to it"
  type        = string
  default     = "ci"
}

variable "pull_request_environment" {
  description = "Deployment environment of jobs of pull requests from branches"
  type        = string
  default     = "ci-pull-request"

  validation {
    condition     = var.pull_request_environment != var.default_branch_environment
    error_message = "Two environments: with one, a pull request could write the cache of the default branch."
  }
}

variable "public_cache" {
  description = "Let forks, and everybody else, read the cache of the default branch. False for a private repository"
  type        = bool
  default     = true
}

variable "issuer" {
  description = "Who issues the tokens of jobs, without https://. On GitHub Enterprise Server HOST/_services/token"
  type        = string
  default     = "token.actions.githubusercontent.com"

  validation {
    condition     = !startswith(var.issuer, "https://") && !endswith(var.issuer, "/")
    error_message = "Without https:// and without a slash at the end."
  }
}

variable "create_oidc_provider" {
  description = "False if the account has the provider of this issuer, which all of its repositories share"
  type        = bool
  default     = true
}

variable "cache_days" {
  description = "Days after which an entry of the cache is deleted"
  type        = number
  default     = 30
}

variable "artifact_days" {
  description = "Days after which an artifact without `retention-days` is deleted"
  type        = number
  default     = 90
}

variable "retention_days" {
  description = "Values of `retention-days` that workflows use: S3 needs a rule for each. A bucket has 1,000 rules at most"
  type        = set(number)
  default     = [1, 3, 5, 7, 14, 30, 60]
}

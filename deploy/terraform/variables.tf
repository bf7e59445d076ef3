variable "name" {
  description = "Prefix of every resource"
  type        = string
  default     = "crcr"
}

variable "package" {
  description = "Path of the zip that deploy/terraform/package makes"
  type        = string
}

variable "architecture" {
  description = "Architecture of the binary in the package: x86_64 or arm64"
  type        = string
  default     = "arm64"
  validation {
    condition     = contains(["x86_64", "arm64"], var.architecture)
    error_message = "architecture must be x86_64 or arm64"
  }
}

variable "vpc_id" {
  description = "VPC of Redis and of the function"
  type        = string
}

variable "subnet_ids" {
  description = "Private subnets in at least two zones, with a route to the internet (NAT): the relay calls GitHub"
  type        = list(string)
  validation {
    condition     = length(var.subnet_ids) >= 2
    error_message = "two subnets at least, so that Redis has a replica in another zone"
  }
}

variable "redis_node_type" {
  description = "Node type of Redis. The default holds 0.8 GiB of state before the alarm; docs/operating/sizing.md says how much a load needs"
  type        = string
  default     = "cache.t4g.small"
}

variable "redis_auth_token" {
  description = "Password of Redis, 16 to 128 characters; the same as REDIS_LOGIN in the secret. It is kept in Terraform's state"
  type        = string
  sensitive   = true
  validation {
    condition     = can(regex("^[^@\"/[:space:]]{16,128}$", var.redis_auth_token))
    error_message = "ElastiCache takes passwords of 16 to 128 characters, without @, \" and /"
  }
}

# ElastiCache reads it only when it makes a server, so each change of it replaces the server and all its data.
variable "snapshot_name" {
  description = "Snapshot whose data Redis begins with, as in docs/operating/back-up.md. Keep it once it was set: without it Redis is replaced by an empty one"
  type        = string
  default     = null
}

variable "settings" {
  description = "Settings that aren't secret, by the names that `crcr relay serve --help` lists"
  type        = map(string)
  validation {
    condition     = alltrue([for name in ["GITHUB_APP_ID", "ALLOWLIST_URL"] : contains(keys(var.settings), name)])
    error_message = "settings must have GITHUB_APP_ID and ALLOWLIST_URL"
  }
  validation {
    condition     = alltrue([for name in keys(var.settings) : !can(regex("(_SECRET|_KEY|_TOKEN|_LOGIN|_HEADERS|^CRCR_STORE|^CRCR_RESULTS|^CRCR_ALERT_URL)$", name))])
    error_message = "secrets belong into secret.json: settings are in Terraform's state, and in the function's configuration"
  }
  validation {
    condition     = alltrue([for name, value in var.settings : !(endswith(upper(name), "_PROXY") && strcontains(value, "@"))])
    error_message = "the address of a proxy must have no password here: settings are in Terraform's state, and in the function's configuration"
  }
  validation {
    condition     = alltrue([for name in keys(var.settings) : !contains(["CRCR_LISTEN", "CRCR_ADMIN_LISTEN", "REDIS_ENDPOINT", "SECRET_STORE_ARN"], name)])
    error_message = "a function has no listeners, and this module sets REDIS_ENDPOINT and SECRET_STORE_ARN: another value would have no effect"
  }
}

variable "alarm_topic_arn" {
  description = "SNS topic that alarms are sent to; without it they are only shown"
  type        = string
  default     = null
}

# AWS leaves at least 100 of an account's limit to functions without a reservation, and a new account may have a limit of 10:
# there any reservation is refused.
variable "reserved_concurrency" {
  description = "How many webhooks and reports are handled at the same time; the others get a 429 and are tried again. 50 is enough, and keeps a flood of requests from stopping the account's other functions. -1: all that the account has left"
  type        = number
  default     = -1
}

variable "log_retention_days" {
  description = "How long the function's logs are kept"
  type        = number
  default     = 30
}

# The relay on AWS Lambda behind a function URL, with its state in Redis. A schedule works what requests leave over:
# retries, sweeps, and copying facts to the results.

data "aws_partition" "current" {}

# The value is set by hand, so that it is in no state file: JSON of GITHUB_APP_SECRET, GITHUB_APP_PRIVATE_KEY,
# REDIS_LOGIN, CRCR_RESULTS if the results are in ClickHouse, OTEL_EXPORTER_OTLP_HEADERS if traces are sent with a token, and
# CRCR_PUBLIC_URL, which isn't known before the function is there. A running function reads it again every five minutes;
# CRCR_PUBLIC_URL, REDIS_LOGIN, CRCR_RESULTS and OTEL_EXPORTER_OTLP_HEADERS are for new processes only.
resource "aws_secretsmanager_secret" "relay" {
  name        = "${var.name}-relay"
  description = "Settings of the relay that are secret, as one JSON object"
}

resource "aws_lambda_function" "relay" {
  function_name                  = "${var.name}-relay"
  role                           = aws_iam_role.relay.arn
  runtime                        = "provided.al2023"
  handler                        = "bootstrap"
  architectures                  = [var.architecture]
  filename                       = var.package
  source_code_hash               = filebase64sha256(var.package)
  memory_size                    = 1024
  timeout                        = 60
  reserved_concurrent_executions = var.reserved_concurrency

  environment {
    variables = merge(var.settings, {
      SECRET_STORE_ARN = aws_secretsmanager_secret.relay.arn
      REDIS_ENDPOINT   = "${aws_elasticache_replication_group.state.primary_endpoint_address}:6379"
    })
  }

  vpc_config {
    subnet_ids         = var.subnet_ids
    security_group_ids = [aws_security_group.relay.id]
  }

  depends_on = [aws_cloudwatch_log_group.relay, aws_iam_role_policy.relay]
}

resource "aws_cloudwatch_log_group" "relay" {
  name              = "/aws/lambda/${var.name}-relay"
  retention_in_days = var.log_retention_days
}

# GitHub can't sign requests for AWS: the relay checks the webhook's signature, and the OIDC token of each report.
resource "aws_lambda_function_url" "relay" {
  function_name      = aws_lambda_function.relay.function_name
  authorization_type = "NONE"
}

resource "aws_lambda_permission" "url" {
  statement_id           = "PublicFunctionUrl"
  action                 = "lambda:InvokeFunctionUrl"
  function_name          = aws_lambda_function.relay.function_name
  principal              = "*"
  function_url_auth_type = "NONE"
}

resource "aws_lambda_permission" "url_invoke" {
  statement_id             = "PublicFunctionUrlInvoke"
  action                   = "lambda:InvokeFunction"
  function_name            = aws_lambda_function.relay.function_name
  principal                = "*"
  invoked_via_function_url = true
}

resource "aws_cloudwatch_event_rule" "work" {
  name                = "${var.name}-relay-work"
  description         = "Works what is due in the relay's queue"
  schedule_expression = "rate(1 minute)"
}

resource "aws_cloudwatch_event_target" "work" {
  rule = aws_cloudwatch_event_rule.work.name
  arn  = aws_lambda_function.relay.arn
  # The next minute's event does what a lost one would have done.
  retry_policy {
    maximum_event_age_in_seconds = 60
    maximum_retry_attempts       = 0
  }
}

resource "aws_lambda_permission" "work" {
  statement_id  = "Schedule"
  action        = "lambda:InvokeFunction"
  function_name = aws_lambda_function.relay.function_name
  principal     = "events.amazonaws.com"
  source_arn    = aws_cloudwatch_event_rule.work.arn
}

resource "aws_iam_role" "relay" {
  name = "${var.name}-relay"
  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Action    = "sts:AssumeRole"
      Principal = { Service = "lambda.amazonaws.com" }
    }]
  })
}

resource "aws_iam_role_policy" "relay" {
  name = "relay"
  role = aws_iam_role.relay.id
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Effect   = "Allow"
        Action   = "secretsmanager:GetSecretValue"
        Resource = aws_secretsmanager_secret.relay.arn
      },
      {
        Effect   = "Allow"
        Action   = ["logs:CreateLogStream", "logs:PutLogEvents"]
        Resource = "${aws_cloudwatch_log_group.relay.arn}:*"
      },
    ]
  })
}

# Network interfaces of a function in a VPC can't be limited to one resource.
resource "aws_iam_role_policy_attachment" "vpc" {
  role       = aws_iam_role.relay.name
  policy_arn = "arn:${data.aws_partition.current.partition}:iam::aws:policy/service-role/AWSLambdaENIManagementAccess"
}

resource "aws_elasticache_subnet_group" "state" {
  name       = "${var.name}-state"
  subnet_ids = var.subnet_ids
}

# ElastiCache replicates asynchronously: a failover can lose the last second, which `/readyz` and the log say. Nothing asks
# GitHub for the deliveries of that time by itself: docs/operating/back-up.md, "AWS Lambda", has the steps.
resource "aws_elasticache_replication_group" "state" {
  replication_group_id       = "${var.name}-state"
  description                = "State of the relay"
  engine                     = "valkey"
  engine_version             = "8.0"
  node_type                  = var.redis_node_type
  num_cache_clusters         = 2
  automatic_failover_enabled = true
  multi_az_enabled           = true
  at_rest_encryption_enabled = true
  transit_encryption_enabled = true
  auth_token                 = var.redis_auth_token
  parameter_group_name       = aws_elasticache_parameter_group.state.name
  subnet_group_name          = aws_elasticache_subnet_group.state.name
  security_group_ids         = [aws_security_group.state.id]
  snapshot_retention_limit   = 7
  snapshot_name              = var.snapshot_name
}

# Nothing of the queue may be evicted.
resource "aws_elasticache_parameter_group" "state" {
  name   = "${var.name}-state"
  family = "valkey8"

  parameter {
    name  = "maxmemory-policy"
    value = "noeviction"
  }
}

resource "aws_security_group" "relay" {
  name        = "${var.name}-relay"
  description = "The relay: calls GitHub, Redis and the results"
  vpc_id      = var.vpc_id
}

resource "aws_vpc_security_group_egress_rule" "relay" {
  security_group_id = aws_security_group.relay.id
  description       = "GitHub, AWS and the results, over TLS"
  ip_protocol       = "-1"
  cidr_ipv4         = "0.0.0.0/0"
}

resource "aws_security_group" "state" {
  name        = "${var.name}-state"
  description = "Redis: for the relay only"
  vpc_id      = var.vpc_id
}

resource "aws_vpc_security_group_ingress_rule" "state" {
  security_group_id            = aws_security_group.state.id
  description                  = "The relay"
  ip_protocol                  = "tcp"
  from_port                    = 6379
  to_port                      = 6379
  referenced_security_group_id = aws_security_group.relay.id
}

# Faults of the relay and of what it runs on raise these, and a flood of anybody's requests only `throttles`. A request
# that is refused, such as one with a bad signature, isn't an error of the function.
locals {
  alarm_actions = var.alarm_topic_arn == null ? [] : [var.alarm_topic_arn]
  # What each alarm means, where to look, and what to do: each description links to its section.
  runbook = "https://github.com/pytorch/crcr/blob/main/docs/operating/alerts.md"
  alarms = {
    errors = {
      metric      = "Errors"
      statistic   = "Sum"
      threshold   = 0
      periods     = 3
      description = "The function fails: its log says why"
    }
    throttles = {
      metric      = "Throttles"
      statistic   = "Sum"
      threshold   = 100
      periods     = 5
      description = "Requests wait or are refused: raise reserved_concurrency, or the limit of the account. A flood of anybody's requests does this, too"
    }
    # Of requests only: a schedule's event works for up to forty seconds.
    slow = {
      metric      = "UrlRequestLatency"
      statistic   = "Average"
      threshold   = 10000
      periods     = 5
      description = "Requests take ten seconds, and GitHub waits no longer: look at Redis and GitHub"
    }
  }
}

resource "aws_cloudwatch_metric_alarm" "function" {
  for_each            = local.alarms
  alarm_name          = "${var.name}-relay-${each.key}"
  alarm_description   = "${each.value.description}. ${local.runbook}#${each.key}"
  namespace           = "AWS/Lambda"
  metric_name         = each.value.metric
  dimensions          = { FunctionName = aws_lambda_function.relay.function_name }
  statistic           = each.value.statistic
  period              = 60
  evaluation_periods  = each.value.periods
  comparison_operator = "GreaterThanThreshold"
  threshold           = each.value.threshold
  treat_missing_data  = "notBreaching"
  alarm_actions       = local.alarm_actions
  ok_actions          = local.alarm_actions
}

# The schedule calls the function every minute, so silence means that nothing is worked.
resource "aws_cloudwatch_metric_alarm" "silent" {
  alarm_name          = "${var.name}-relay-silent"
  alarm_description   = "The function hasn't been called for ten minutes, not even by its schedule. ${local.runbook}#silent"
  namespace           = "AWS/Lambda"
  metric_name         = "Invocations"
  dimensions          = { FunctionName = aws_lambda_function.relay.function_name }
  statistic           = "Sum"
  period              = 300
  evaluation_periods  = 2
  comparison_operator = "LessThanThreshold"
  threshold           = 1
  treat_missing_data  = "breaching"
  alarm_actions       = local.alarm_actions
  ok_actions          = local.alarm_actions
}

# Nothing is evicted: when memory is full, webhooks and reports get a 503. ElastiCache has this metric for each node only, and
# numbers them up to num_cache_clusters.
resource "aws_cloudwatch_metric_alarm" "state" {
  for_each            = toset(["001", "002"])
  alarm_name          = "${var.name}-state-memory-${each.key}"
  alarm_description   = "Redis has used 80 % of its memory: take a larger redis_node_type. ${local.runbook}#state-memory"
  namespace           = "AWS/ElastiCache"
  metric_name         = "DatabaseMemoryUsagePercentage"
  dimensions          = { CacheClusterId = "${aws_elasticache_replication_group.state.replication_group_id}-${each.key}" }
  statistic           = "Maximum"
  period              = 300
  evaluation_periods  = 3
  comparison_operator = "GreaterThanThreshold"
  threshold           = 80
  treat_missing_data  = "missing"
  alarm_actions       = local.alarm_actions
  ok_actions          = local.alarm_actions
}

# The relay's own word that something is lost or refused: lines of its log with the level ERROR.
resource "aws_cloudwatch_log_metric_filter" "errors" {
  name           = "${var.name}-relay-errors"
  log_group_name = aws_cloudwatch_log_group.relay.name
  pattern        = "{ $.level = \"ERROR\" }"
  metric_transformation {
    name          = "${var.name}-relay-errors"
    namespace     = "crcr"
    value         = "1"
    default_value = "0"
  }
}

resource "aws_cloudwatch_metric_alarm" "logged" {
  alarm_name          = "${var.name}-relay-logged-errors"
  alarm_description   = "The relay logs errors for half an hour. ${local.runbook}#logged-errors"
  namespace           = "crcr"
  metric_name         = "${var.name}-relay-errors"
  statistic           = "Sum"
  period              = 300
  evaluation_periods  = 6
  comparison_operator = "GreaterThanThreshold"
  threshold           = 0
  treat_missing_data  = "notBreaching"
  alarm_actions       = local.alarm_actions
  ok_actions          = local.alarm_actions

  depends_on = [aws_cloudwatch_log_metric_filter.errors]
}

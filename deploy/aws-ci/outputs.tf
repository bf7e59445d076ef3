output "default_branch_role" {
  description = "For `role-to-assume` in jobs of the default branch"
  value       = aws_iam_role.ci["default-branch"].arn
}

output "pull_request_role" {
  description = "For `role-to-assume` in jobs of pull requests"
  value       = aws_iam_role.ci["pull-requests"].arn
}

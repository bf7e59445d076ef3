output "webhook_url" {
  description = "For the App's webhook"
  value       = "${aws_lambda_function_url.relay.function_url}github/webhook"
}

output "callback_url" {
  description = "For the variable CRCR_CALLBACK_URL of downstream repositories"
  value       = "${aws_lambda_function_url.relay.function_url}github/callback"
}

output "public_url" {
  description = "For CRCR_PUBLIC_URL in the secret: check runs and dispatches name it"
  value       = trimsuffix(aws_lambda_function_url.relay.function_url, "/")
}

output "role_name" {
  description = "The function's role: CRCR_ARCHIVE needs a policy for its bucket there"
  value       = aws_iam_role.relay.name
}

output "secret_arn" {
  description = "The secret to put the JSON of secret settings into"
  value       = aws_secretsmanager_secret.relay.arn
}

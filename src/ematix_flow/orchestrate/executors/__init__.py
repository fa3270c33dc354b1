"""Where claimed pipelines run: processes of this host, Kubernetes Jobs, Lambda functions, warm workers."""

"""A real Kubernetes cluster on one Linux machine: see deploy/local/README.md."""

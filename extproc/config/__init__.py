"""What does the operator want? Settings from envoy.yaml or from a file of their own."""

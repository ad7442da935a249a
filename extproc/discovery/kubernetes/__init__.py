"""Who are the members, when Kubernetes runs them?"""

"""Do the manifests of a vLLM server let its last requests end?"""

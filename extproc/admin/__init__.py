"""What can a person or a probe ask over HTTP?"""

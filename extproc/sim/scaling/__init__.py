"""How does a fleet fare whose size follows its load? Router, recommender, cold starts and platform in virtual time."""

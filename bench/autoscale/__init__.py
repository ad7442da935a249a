"""`make bench-autoscale`: what do the recommender and other rules make of a load, beside one who knows what comes?"""

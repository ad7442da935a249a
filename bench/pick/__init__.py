"""What does a pick cost, by its parts?"""

"""Where do members come from?"""

"""Which server holds the beginning of a prompt?"""

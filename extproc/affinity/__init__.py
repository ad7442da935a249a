"""Which servers does a key prefer?"""

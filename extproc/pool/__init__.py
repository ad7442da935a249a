"""Who is in the fleet, how loaded and how well is each, and what have we sent there?"""

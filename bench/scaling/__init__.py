"""`make bench-scaling`: what does it cost the conversations when the fleet grows and shrinks?"""

"""Which files does one start from, in front of given servers? Text in, text out: `extproc init` asks and writes.

What the files say is what the shipped ones say, comments included; only what differs from user to user is replaced.
"""

"""What do the servers say? The poller of their metrics pages and its parser."""

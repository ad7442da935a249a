"""What tests share: fakes at the byte edge, builders, waiting."""

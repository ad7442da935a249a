"""Which router gives the first token soonest, over ten workloads? (`make bench-routing`)"""

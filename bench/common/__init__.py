"""What do the benchmarks share: processes, other routers, Envoy configurations, the machine, pages?"""

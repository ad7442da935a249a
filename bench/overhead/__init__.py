"""What does the service cost, beside Envoy alone and beside other routers? (`make bench-overhead`)"""

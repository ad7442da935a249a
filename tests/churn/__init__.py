"""Servers and the service come and go under streams through real Envoy: what is cut, and by what?"""

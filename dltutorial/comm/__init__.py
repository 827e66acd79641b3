"""Collectives written from send and receive, counted and priced."""

"""Flows, coordinators and Redis as real processes, killed and frozen; and a judge that reads what the flows wrote."""

"""Measurements of partq against what it competes with: Spark's own sources and sinks, a bare Python source, Kafka.

Run by `scripts/bench`; what each part measures and how is told in `measured.md`. docs/benchmarks.md is written from
`template.md`. Neither the product nor its tests import this package.
"""

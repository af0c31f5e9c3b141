"""Real processes and what is done to them: sidecars, flows and Spark drivers over real servers. All of it speaks to
what users hold: `import partq`, the command line, HTTP, log lines.
"""

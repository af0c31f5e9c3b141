"""The web page: queues, groups and messages, seen live in a browser. It looks through the client as any program does.

What is shown is decided in `queue_views`, `group_views` and `memory`, which are pure; `looks` looks at the
store once a second for all who have the page open, `app` answers requests, `access` says who may come in. Needs the
extra `ui`.
"""

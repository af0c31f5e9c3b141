"""What every command refuses: by exit code, in one line that says what to do, without a secret and without a character
that steers a terminal; and nothing is changed by it.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.cli.groups import Group
from tests.support.command_line import Partq, json_lines

EVIL = "\x1b]0;title\x07\x9b31m\u202e"
"""A title, a colour by the one character that begins as two do, and what turns the direction of writing."""

COUNTS = ("0", "1001", "-1", "two", "1.5", "", "٣", "1e3", "9" * 20)
NAMES = ("-orders", "a b", "", "ä", "x" * 64, "../up")
OFFSETS = ("[12]", "{}", "[" * 9999, '{"0": 0, "0": 1}', *(f'{{"0": {each}}}' for each in ("-1", "1.0", "true", '"1"')))
MANY = "is not allowed: give a whole number from 1 to 1000"
ALTER = "queue alter orders"
CREATE = "queue create new --partitions 1"
REWIND = "checkpoints rewind orders --group billing --yes"
STORES = {
    "orders": "is not a URL: for this directory write file:///",
    "file:orders": "is relative",
    "gs://bucket": "scheme 'gs' is not known",
    "azure://name:s3cret@container": "AZURE_STORAGE_CONNECTION_STRING",
}
PLACES = ("redis://user:s3cret@host/0", "'S3cret Password'", "redis://host:6379/s3cret", "memcached://host")

WRONG = [
    ("brows", r"No such command 'brows'. Did you mean 'browse'\?"),
    *((f"queue list --store {url}", f"Invalid value for '--store'.*{re.escape(said)}") for url, said in STORES.items()),
    *(
        (f"PARTQ_STORE={url} queue list", f"environment variable PARTQ_STORE.*{re.escape(said)}")
        for url, said in STORES.items()
    ),
    *((f"status orders --group billing --ownership {each}", "redis://host:port") for each in PLACES),
    *((f"PARTQ_OWNERSHIP={each} queue list", "environment variable PARTQ_OWNERSHIP") for each in PLACES),
    *((f"queue list --namespace={shlex.quote(each)}", "is not allowed") for each in NAMES),
    # queues
    *((f"queue create new --partitions={each}", f"partitions='{re.escape(each)}' {MANY}") for each in COUNTS),
    (f"{CREATE} --max-handoff-time=soon", "max-handoff-time"),
    (f"{CREATE} --access-type=shared", "access-type"),
    (f"{ALTER} --retention 'a day'", "retention='a day' is not allowed: give seconds, as in 86400, or none"),
    (f"{CREATE} --quota-bytes 1.5", r"quota-bytes='1\.5' is not allowed: give a whole number of bytes, or none"),
    *((f"{ALTER} --partitions={each}{dry}", MANY) for each in COUNTS for dry in ("", " --dry-run")),
    (ALTER, "nothing to alter: give partitions, columns"),
    ("queue delete orders", "this would delete queue 'orders'.*58 messages in 3 partitions.* Add --yes to do so.$"),
    # columns
    (f"{CREATE} --key a", "there is no schema: give the schema too"),
    (f"{CREATE} --schema 'a INT, b'", "schema, at character 9: the end stands where a type was expected"),
    # housekeeping
    *((f"queue trim orders --before-offsets '{each}'", r'such as \{"0": 12, "1": 7\}') for each in OFFSETS),
    ("queue trim orders --before yesterday", "such as 2026-11-20T08:30:00Z"),
    ("queue trim orders", "give either --before or --before-offsets"),
    ("queue compact orders --min-age -1", "min-age"),
    *(
        (f"queue collect orders --grace={shlex.quote(each)}", "give seconds from 0 to 31622400")
        for each in ("-1", "nan", "inf", "1e9", "a day", "")
    ),
    ("queue resolve orders --writer nightly --batch -1 --as new --yes", "batch"),
    # topics
    ("queue subscribe orders fine a//b", "subscription 'a//b' is not allowed: level 2 is empty"),
    ("queue subscriptions --topic a/*", "has no wildcards"),
    ("publish", r"give either the queue's NAME or a topic \(--topic\)"),
    ("publish orders --topic bills/eu", r"give either the queue's NAME or a topic \(--topic\)"),
    ("publish --topic a/*", "has no wildcards"),
    ("publish orders --fail-unattracted", "--fail-unattracted.* is for a topic"),
    # messages
    *((f"publish orders --publish-id={each!r}", "1 to 255 bytes") for each in ("", "x" * 256)),
    ("publish orders --file /", "is a directory"),
    ("publish orders --publish-id night\udcff", r"night\\udcff' is not allowed"),
    ("publish --topic night\udcff", r"night\\udcff.*valid UTF-8"),
    ("browse orders --from -1", "--from"),
    *((f"browse orders --limit {each}", "limit") for each in ("0", "x", 10**20)),
    # groups
    ("group remove orders --group billing", "this would remove group 'billing', with 2 checkpoints of queue 'orders'"),
    ("group remove orders --group _head --yes", "not allowed"),
    ("PARTQ_OWNERSHIP=store group alter orders --group billing", "say how the group is to be shared"),
    *((f"{REWIND} {each}", "--to") for each in ("", "--to 1 --by 1", "--to latest", "--to -1")),
    (f"{REWIND} --by 0", "--by"),
    (f"{REWIND[:-6]} --to 2", "Add --yes"),
    # the page
    ("ui --host 0.0.0.0", "set PARTQ_UI_TOKEN"),
    ("ui --allow-actions", "--allow-actions"),
    ("PARTQ_UI_TOKEN='two words' ui", "PARTQ_UI_TOKEN is not allowed"),
    ("PARTQ_UI_TOKEN=x ui", "PARTQ_UI_TOKEN has fewer than 16 characters and could be guessed"),
    # what was typed is told without what it would do to a terminal
    *(
        (words.replace("EVIL", f"'{EVIL}'"), r"\\x1b\]0;title\\x07")
        for words in (
            *("EVIL", "queue EVIL", "queue list --EVIL", "queue list EVIL", "queue describe EVIL"),
            *("queue create a --partitions EVIL", f"{CREATE} --access-type EVIL"),
            *("browse orders --from EVIL", "publish orders --publish-id EVIL", "publish --topic EVIL*"),
        )
    ),
    *((f"queue list --store {each}", "store .*not (repeated|shown)") for each in (f"file:///x/'{EVIL}'?", f"'{EVIL}'")),
    (f"status orders --group g --ownership redis://'{EVIL}'", r"ownership redis://… \(not shown\)"),
]
"""Commands that exit with 2, and what they say."""

REFUSED = [
    ("queue create orders --partitions 7", "exists already with 3 partitions"),
    ("queue describe none", "'none' .*STORE.*does not exist.*create it with `partq queue create none --partitions N`$"),
    *(
        (words, "'none' .*does not exist")
        for words in (
            *("queue alter none --partitions 2", "queue alter none --partitions 2 --dry-run", "queue compact none"),
            *("queue subscribe none a", "queue subscriptions none", "queue delete none", "queue delete none --yes"),
            *("publish none", "browse none", "checkpoints none --group billing", "queue collect none"),
        )
    ),
    ("browse orders --partition 3", "has partitions 0 to 2, there is no 3"),
    ("queue trim orders --before-offsets '{\"7\": 1}'", "has partitions 0 to 2"),
    *(
        (f"{words} --group shipping", r"group 'shipping' .*\(its groups: billing\)|its groups: billing")
        for words in (
            *("status orders", "checkpoints orders", "checkpoints rewind orders --to earliest --yes"),
            *("group remove orders --yes", "group alter orders --ownership store"),
        )
    ),
    (f"{REWIND} --to 6", "partition 1 of .* is acknowledged up to 5 and cannot be rewound to 6: give an offset from 2"),
    (f"{REWIND} --to 1", "partition 0 of .* keeps messages from 2 on and cannot be rewound to 1"),
    (f"{REWIND} --by 4", "partition 1 of .* keeps messages from 2 on and cannot be rewound to 1"),
    (f"{REWIND} --to 3 --partition 0 --partition 3", "has partitions 0 to 2, there is no 3"),
    (f"{REWIND} --to 3 --partition 0 --partition 2", "partition 2 of .* no flow has taken it yet"),
    ("publish --topic nobody --fail-unattracted", "attracts nobody: nothing was published"),
    ("queue alter rows --widen 'a STRING' --dry-run", "column 'a' of type INT cannot become STRING"),
    ("queue alter rows --schema 'id BIGINT NOT NULL, a BIGINT'", "`partq queue alter rows --widen 'a BIGINT'`"),
    ("ui --host 192.0.2.1", "--port 8096 on 192.0.2.1 cannot be used"),
]
"""Commands that exit with 1."""


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Group:
    """`orders` with a group, of which a little was trimmed, and a typed queue."""
    partq = Partq(tmp_path_factory.mktemp("refusals") / "store")
    made = Group(partq, {0: 8, 1: 5}, partitions=3, messages=62)
    partq("queue", "create", "rows", "--partitions", 1, "--schema", "id BIGINT NOT NULL, a INT", "--key", "id")
    partq("queue", "trim", "orders", "--before-offsets", '{"0": 2, "1": 2}')
    return made


def told(group: Group, line: str, code: int) -> str:
    """What such a command says. Words that begin with `NAME=` are its environment."""
    words = shlex.split(line)
    environment = {"PARTQ_UI_TOKEN": "a-token-for-tests"} if "192.0.2.1" in line else {}
    while "=" in words[0]:
        name, _, value = words.pop(0).partition("=")
        environment[name] = value
    before = files(group.partq.store)
    done = group.partq(*words, code=code, stdin=json_lines([{"value": "x"}]), **environment)
    assert files(group.partq.store) == before
    said = done.stderr.splitlines()[-1]
    assert said.startswith("Error: ")
    assert done.stdout == "" or "rewind" in words
    assert all(each.isprintable() for each in done.stderr.split("\n"))
    assert "3cret" not in done.output
    return said.replace(group.partq.url, "STORE")


def files(store: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in store.rglob("*") if path.is_file()}


@pytest.mark.conformance("TYP-06", "CHK-04")
@pytest.mark.parametrize(("line", "said"), WRONG, ids=lambda text: ascii(text)[:60])
def test_wrong_use_is_refused(group: Group, line: str, said: str) -> None:
    found = told(group, line, 2)
    assert re.search(said, found), found


@pytest.mark.conformance("TYP-06", "CHK-04")
@pytest.mark.parametrize(("line", "said"), REFUSED, ids=lambda text: ascii(text)[:60])
def test_what_a_queue_or_group_does_not_allow_is_refused(group: Group, line: str, said: str) -> None:
    found = told(group, line, 1)
    assert re.search(said, found), found

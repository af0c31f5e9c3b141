"""`partq spark-home DIR`: makes a Spark home whose Python workers start quickly, and says how it is used."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from partq_spark.cli import output
from partq_spark.cli.arguments import json_option
from partq_spark.spark.local import make_home


@click.command("spark-home")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@json_option
def spark_home(folder: Path, as_json: bool) -> None:
    """Make a Spark home whose Python workers start quickly.

    DIR becomes a folder of links to the programs and jars of the PySpark that is installed for this Python. Its own
    archive, python/lib/pyspark.zip, is left out: every worker would compile anew what it imports from there. One that
    was made before is brought up to date; any other folder is refused. Right where workers run on this machine with
    this Python.

    What is printed is for the shell, before Spark starts: eval "$(partq spark-home ~/spark-home)"
    """
    home = make_home(folder)
    if as_json:
        output.print_json(output.document(home))
    else:
        output.say(f"export SPARK_HOME={shlex.quote(str(home.folder))}")

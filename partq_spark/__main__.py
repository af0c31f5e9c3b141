"""`python -m partq_spark`: the command line where the script `partq` is not on PATH."""

from partq_spark.cli.main import main

if __name__ == "__main__":
    main()

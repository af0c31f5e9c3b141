"""What scripts and tests share: the builder of the documentation site, and what documents have from the code."""

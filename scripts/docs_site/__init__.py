"""The docs site: pages of docs/, and a reference that is made from conf/ and from docstrings."""

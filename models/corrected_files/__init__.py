"""Files of the verb `correct`: which are read, and the messages, variables and sidecars that are written."""

"""Clairvoyant prefetching: the whole order of reading is known from the seed, so samples are there when needed."""

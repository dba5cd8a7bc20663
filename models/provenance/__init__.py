"""What a corrector states about its training: days that it has seen, and fields that it can be compared with."""

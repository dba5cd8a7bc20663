"""Energy counters of processors as Linux shows them."""


def write_zone(folder, zone, name, value, span=1_000_000_000):
    """Write a counter in µJ."""
    (folder / zone).mkdir(exist_ok=True)
    for file, content in (("name", name), ("energy_uj", value), ("max_energy_range_uj", span)):
        (folder / zone / file).write_text(f"{content}\n")

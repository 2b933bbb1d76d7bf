"""Search over the configurations of one kernel: measurement, races, records, overrides."""

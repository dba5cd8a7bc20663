"""Jobs of a batch system: the options of a site, and the job file that runs a verb on Slurm."""

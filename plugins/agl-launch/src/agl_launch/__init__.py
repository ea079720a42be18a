"""agl-launch: files that start a run under Slurm, Kubernetes, KubeRay or SkyPilot."""

__version__ = "0.1.0"

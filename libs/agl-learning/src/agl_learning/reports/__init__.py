"""What a run tells: metrics, findings, a progress bar, a summary."""

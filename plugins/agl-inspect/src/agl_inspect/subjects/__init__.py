"""What ``agl show`` and ``agl diff`` show beside a rollout: calls, spans, tasks and runs."""

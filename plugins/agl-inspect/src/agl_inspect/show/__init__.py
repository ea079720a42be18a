"""What ``agl show`` and ``agl diff`` print: a call, a span, a task, a run, two rollouts."""

"""What to use instead of ``agent_lightning``, which stands in a description only."""

import sys

REFUSAL = """agent_lightning was in no release of Agent Lightning: its Client, runtime and \
command stand in a description only. With agl:
  Client.upload_data, Client.train    agl.Trainer(algorithm="grpo").fit(agent, tasks)
  Client.evaluate                     agl.Trainer().dev(agent, tasks), or val_dataset of fit
  Client.download_model               the newest folder under agl-runs/RUN/checkpoints
  runtime.auto_instrument             a tracer: agl.Trainer(tracer="agentops", ...)
  runtime.air                         agl.emit_reward, or the adapter's option air
  agent-lightning server, train       agl run agl.yaml"""


def command() -> None:
    """Refuse the command ``agent-lightning``."""
    sys.exit(REFUSAL)

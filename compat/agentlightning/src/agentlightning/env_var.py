"""Environment variables."""

from agl.env import (
    LightningEnvVar as LightningEnvVar,
    resolve_bool_env_var as resolve_bool_env_var,
    resolve_int_env_var as resolve_int_env_var,
    resolve_str_env_var as resolve_str_env_var,
)

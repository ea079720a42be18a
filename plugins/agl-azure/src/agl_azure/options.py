"""``AzureOptions``: which resource, and how jobs and deployments there shall be."""

import re
from dataclasses import dataclass, field
from typing import Annotated, Any
from urllib.parse import urlsplit

from annotated_types import Ge

from agl.errors import ConfigError
from agl_runs.options import AboveZero, Count, Name, NotNegative

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,60}")
_SUFFIX = re.compile(r"[A-Za-z0-9_-]{1,18}")


@dataclass(kw_only=True, eq=False, repr=False)
class AzureOptions:
    """What those need that ask Azure.

    Args:
        endpoint: Address of the resource, for example ``https://NAME.openai.azure.com``.
        base_deployment: The deployment that the first rollouts use; it is never touched.
        base_model: Its model, with its version, for example ``gpt-4.1-mini-2025-04-14``.
        subscription_id: Subscription of the resource.
        resource_group: Group of the resource.
        account_name: Name of the resource; None takes it from ``endpoint``.
        api_key: Key of the resource; None takes ``AZURE_OPENAI_API_KEY``, else the login.
        credential: An object of azure-identity; None finds a login.
        deployment_name: Deployments are called ``NAME_v01`` and so on; None takes
            ``<base_deployment>-ft``.
        max_deployments: How many deployments of this run may exist at once.
        keep_files: Leave training files at Azure.
        epochs: Passes over the examples.
        learning_rate_multiplier: Factor on Azure's own learning rate; None leaves it to Azure.
        batch_size: None leaves it to Azure.
        suffix: Suffix of the names of the models.
        sku: Kind of the deployments: ``Standard``, ``GlobalStandard`` or ``DeveloperTier``.
        capacity: Capacity of a deployment, in thousands of tokens per minute.
        poll_seconds: Between looks at a job or a deployment.
        job_timeout_seconds: How long one job may take; a run started again goes on waiting.
        deployment_timeout_seconds: How long one deployment may take to be ready.
        api_version: API version of files and jobs.
        management_url: Address of the API for deployments; other clouds have others.
    """

    safe_options = frozenset({"max_deployments", "keep_files", "capacity", "poll_seconds"})

    endpoint: str = field(kw_only=False)
    base_deployment: Name = field(kw_only=False)
    base_model: Name = field(kw_only=False)
    subscription_id: Name = field(kw_only=False)
    resource_group: Name = field(kw_only=False)
    account_name: Name | None = None
    api_key: str | None = None
    credential: Any = None
    deployment_name: str | None = None
    max_deployments: Count = 2
    keep_files: bool = False
    epochs: Count = 1
    learning_rate_multiplier: AboveZero | None = None
    batch_size: Count | None = None
    suffix: str = "agl"
    sku: Name = "Standard"
    capacity: Count = 50
    poll_seconds: Annotated[float, Ge(0.01)] = 30.0
    job_timeout_seconds: NotNegative = 24 * 3600.0
    deployment_timeout_seconds: NotNegative = 3600.0
    api_version: str = "2024-10-21"
    management_url: str = "https://management.azure.com"

    def check_names(self) -> None:
        """Refuse an address or a name that Azure would not take; leave the host of the address."""
        address = urlsplit(self.endpoint)
        if address.scheme not in ("http", "https") or not address.hostname:
            raise ConfigError(
                f"AzureSFT: endpoint is {self.endpoint!r}; expected the address of an Azure "
                "OpenAI resource, for example 'https://NAME.openai.azure.com'"
            )
        self.endpoint = f"{address.scheme}://{address.netloc}"
        if not _NAME.fullmatch(self.prefix):
            raise ConfigError(
                f"AzureSFT: deployment_name is {self.prefix!r}; expected letters, "
                "digits, '-', '_' and '.', at most 61"
            )
        if not _SUFFIX.fullmatch(self.suffix):
            raise ConfigError(
                f"AzureSFT: suffix is {self.suffix!r}; expected 1 to 18 letters, digits, '-' and "
                "'_'"
            )

    @property
    def account(self) -> str:
        """Name of the resource."""
        return self.account_name or str(urlsplit(self.endpoint).hostname).split(".")[0]

    @property
    def prefix(self) -> str:
        """What the names of deployments begin with."""
        return self.deployment_name or f"{self.base_deployment}-ft"

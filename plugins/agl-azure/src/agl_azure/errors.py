"""What Azure says when it refuses, with what to do about it; never with a key in it."""

from collections.abc import Collection
from typing import Any

from azure.core.exceptions import (
    AzureError,
    ClientAuthenticationError,
    ServiceRequestError,
    ServiceResponseError,
)
from openai import APIConnectionError, OpenAIError

from agl.errors import AglError, ConfigError
from agl.utils.secrets import hide
from agl_azure.data import is_filtered
from agl_models.provider_errors import RemoteRefusalError, status_of

SDK_ERRORS = (OpenAIError, AzureError)

_ADVICE: dict[int | None, tuple[type[AglError], str]] = {
    400: (
        ConfigError,
        "Check that the model can be fine-tuned and deployed in the region of the resource, and "
        "the options named in the message",
    ),
    401: (
        ConfigError,
        "The key or token is expired or wrong, or belongs to another resource or region than the "
        "address. Renew it (AZURE_OPENAI_API_KEY, or 'az login') and run again; what was done so "
        "far is kept",
    ),
    403: (
        ConfigError,
        "The account lacks the role for it (Cognitive Services OpenAI Contributor; for deployments "
        "Cognitive Services Contributor), or the network is closed to it",
    ),
    404: (
        ConfigError,
        "Check 'endpoint', 'api_version', 'subscription_id', 'resource_group' and 'account_name', "
        "and that the model can be fine-tuned in the region of the resource",
    ),
    429: (
        RemoteRefusalError,
        "The service was still too busy after several tries; run again later, it goes on where it "
        "was",
    ),
}
_USED_UP = (
    RemoteRefusalError,
    "A quota is used up: ask for more in the Azure portal, delete what is not needed, or lower "
    "'capacity' or 'max_deployments'",
)
_OTHERWISE = (RemoteRefusalError, "Run again: it goes on where it was")


class JobFailedError(RemoteRefusalError):
    """A fine-tuning job ended without a model."""


class DeploymentFailedError(RemoteRefusalError):
    """A deployment was begun and will never be ready."""


def is_passing(error: BaseException) -> bool:
    """Whether asking again later can help: no answer, overload, or a fault of the service."""
    status = status_of(error)
    if status is None:
        return isinstance(error, (APIConnectionError, ServiceRequestError, ServiceResponseError))
    return (status == 429 and not _is_quota(error)) or status in (408, 409) or status >= 500


def refusal(doing: str, error: BaseException) -> AglError:
    """The error to raise for one of an SDK.

    Args:
        doing: What was tried, and on which thing: ``upload 'a.jsonl' to https://...``.

    Returns:
        A ``ConfigError`` where the key, the address, the region or a name is wrong; else a
        ``RemoteRefusalError``.
    """
    status, (code, message) = status_of(error), _said(error)
    answer = f"{status} {code}".strip() if status else "no answer came"
    kind, advice = _ADVICE.get(status, _OTHERWISE)
    if _is_quota(error):
        kind, advice = _USED_UP
    elif status is None and isinstance(error, ClientAuthenticationError):  # there is no login
        kind, advice = _ADVICE[401]
    return kind(f"AzureSFT: could not {doing}: {answer}: {hide(message)}. {advice}")


def failed_job(job_id: str, status: str, error: Any, events: Collection[str]) -> JobFailedError:
    """The error for a job that ended without a model.

    Args:
        status: ``failed`` or ``cancelled``.
        error: The job's own, with ``code`` and ``message``, or None.
        events: Last messages of the job, newest last.
    """
    code, message = getattr(error, "code", None), getattr(error, "message", None)
    why = f"{code or 'no code'}: {message}" if code or message else "it gave no error"
    told = f" Its last events: {' | '.join(events)}." if events else ""
    advice = "Run again for a new job"
    if is_filtered(f"{code} {message} {' '.join(events)}"):
        advice = (
            "The content filter refused the training data (or the trained model). The file that "
            "was sent is in the run's folder: take such examples out, or raise the bar with "
            "keep_fraction, and run again"
        )
    return JobFailedError(
        f"AzureSFT: fine-tuning job {job_id!r} ended as {status}: {why}.{told} {advice}"
    )


def _is_quota(error: BaseException) -> bool:
    """Whether a quota is used up, so that waiting does not help."""
    code, message = _said(error)
    return "quota" in f"{code} {message[:200]}".lower()


def _said(error: BaseException) -> tuple[str, str]:
    """Azure's code, as ``invalidPayload`` (empty where there is none), and its message."""
    body: Any = getattr(error, "body", None)  # of openai
    inner: Any = getattr(error, "error", None)  # of azure-core
    code = getattr(error, "code", None) or getattr(inner, "code", None) or ""
    told = body.get("message") if isinstance(body, dict) else getattr(inner, "message", None)
    if told:
        return str(code), str(told)
    message = str(getattr(error, "message", None) or error) or type(error).__name__
    if status_of(error) is None and error.__cause__ is not None:
        message += f" ({error.__cause__})"
    return str(code), message

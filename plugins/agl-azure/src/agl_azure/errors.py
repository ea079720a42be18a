"""What Azure says when it refuses, with what to do about it; never with a key in it."""

from collections.abc import Collection
from typing import Any

from agl.errors import AglError, ConfigError
from agl_learning.remote import RemoteRefusalError, hide, status_of

_FILTER_WORDS = ("rai check", "content filter", "content_filter", "contentfilter", "harm")
_QUOTA_CODES = ("quotaexceeded", "insufficientquota", "insufficient_quota")


class JobFailedError(RemoteRefusalError):
    """A fine-tuning job ended without a model."""


class DeploymentFailedError(RemoteRefusalError):
    """A deployment was begun and will never be ready."""


def is_passing(error: BaseException) -> bool:
    """Whether asking again later can help: no answer, overload, or a fault of the service."""
    status = status_of(error)
    if status is None:
        return type(error).__name__ in (
            "APIConnectionError",
            "APITimeoutError",
            "ServiceRequestError",
            "ServiceResponseError",
        )
    return (status == 429 and not is_quota(error)) or status in (408, 409) or status >= 500


def is_quota(error: BaseException) -> bool:
    """Whether a quota is used up, so that waiting does not help."""
    code = code_of(error).lower()
    return code in _QUOTA_CODES or "quota" in _message_of(error).lower()[:200]


def code_of(error: BaseException) -> str:
    """Azure's error code, for example ``invalidPayload``; empty where there is none."""
    for holder in (error, getattr(error, "error", None)):
        code = getattr(holder, "code", None)
        if code:
            return str(code)
    return ""


def refusal(doing: str, error: BaseException, secrets: Collection[str]) -> AglError:
    """The error to raise for one of an SDK.

    Args:
        doing: What was tried, and on which thing: ``upload 'a.jsonl' to https://...``.
        error: What the SDK raised.
        secrets: What must not be in the message.

    Returns:
        A ``ConfigError`` where the key, the address, the region or a name is wrong; else a
        ``RemoteRefusalError``.
    """
    status, code = status_of(error), code_of(error)
    said = hide(_message_of(error), secrets)
    what = f"azure-sft: could not {doing}: "
    what += f"{status} {code}".strip() + f": {said}" if status else f"no answer came: {said}"
    if is_quota(error):
        return RemoteRefusalError(
            f"{what}. A quota is used up: ask for more in the Azure portal, delete what is not "
            "needed, or lower 'capacity' or 'max_deployments'"
        )
    if status == 401:
        return ConfigError(
            f"{what}. The key or token is expired or wrong, or belongs to another resource or "
            "region than the address. Renew it (AZURE_OPENAI_API_KEY, or 'az login') and run "
            "again; what was done so far is kept"
        )
    if status == 403:
        return ConfigError(
            f"{what}. The account lacks the role for it (Cognitive Services OpenAI Contributor; "
            "for deployments Cognitive Services Contributor), or the network is closed to it"
        )
    if status == 404:
        return ConfigError(
            f"{what}. Check 'endpoint', 'api_version', 'subscription_id', 'resource_group' and "
            "'account_name', and that the model can be fine-tuned in the region of the resource"
        )
    if status == 400:
        return ConfigError(
            f"{what}. Check that the model can be fine-tuned and deployed in the region of the "
            "resource, and the options named in the message"
        )
    if status == 429:
        return RemoteRefusalError(
            f"{what}. The service was still too busy after several tries; run again later, it "
            "goes on where it was"
        )
    return RemoteRefusalError(f"{what}. Run again: it goes on where it was")


def is_filtered(message: str) -> bool:
    """Whether a message says that content was judged harmful."""
    lower = message.lower()
    return any(word in lower for word in _FILTER_WORDS)


def failed_job(job_id: str, status: str, error: Any, events: Collection[str]) -> JobFailedError:
    """The error for a job that ended without a model.

    Args:
        job_id: Which.
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
            "data_filter_ratio, and run again"
        )
    return JobFailedError(
        f"azure-sft: fine-tuning job {job_id!r} ended as {status}: {why}.{told} {advice}"
    )


def _message_of(error: BaseException) -> str:
    body = getattr(error, "body", None)
    if isinstance(body, dict) and body.get("message"):
        return str(body["message"])
    inner = getattr(error, "error", None)
    if getattr(inner, "message", None):
        return str(getattr(inner, "message"))  # noqa: B009
    message = getattr(error, "message", None) or str(error) or type(error).__name__
    cause = error.__cause__
    return f"{message} ({cause})" if cause is not None and status_of(error) is None else message

"""The executor that a URL means."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal
from urllib.parse import parse_qsl, unquote

from ematix_flow.contracts.orchestration import WatchedExecutor
from ematix_flow.declare.redaction import display_url
from ematix_flow.errors import InvalidConfig, closest

EXAMPLES = {
    "subprocess": "subprocess://",
    "subprocess+python": "subprocess+python://",
    "k8s": "k8s://NAMESPACE?image=IMAGE",
    "lambda": "lambda://FUNCTION",
    "workers": "workers://?count=2",
}
_OPTIONS: Mapping[str, tuple[str, ...]] = {
    "k8s": ("image", "service-account", "sa", "env-from-secret"),
    "lambda": ("qualifier",),
    "workers": ("count", "max_jobs", "max_rss_mb", "warm"),
}


def executor_from_url(url: str) -> WatchedExecutor:
    """Make the executor; warm workers are started with it.

    Raises:
        InvalidConfig: (a ValueError) Unknown scheme or option, or a part is missing.
        MissingDriver: (an ImportError) The library of the executor is not installed; the message names the extra.
    """
    scheme, separator, rest = url.partition("://")
    scheme = scheme.strip().lower()
    if not separator or scheme not in EXAMPLES:
        raise InvalidConfig(
            f"'{display_url(url)}' names no executor.",
            fix=closest(scheme, EXAMPLES) or f"use one of {', '.join(EXAMPLES.values())}",
        )
    place, _, query = rest.partition("?")
    place = unquote(place.strip("/"))
    options = _options(scheme, query, url)
    if scheme == "k8s":
        return _kubernetes(place, options, url)
    if scheme == "lambda":
        from ematix_flow.orchestrate.executors.lambda_ import LambdaExecutor

        return LambdaExecutor(
            _required(place, "the name or ARN of a function", url), qualifier=options.get("qualifier")
        )
    if place:
        raise InvalidConfig(f"'{display_url(url)}' has no place for '{place}'.", fix=f"write {EXAMPLES[scheme]}")
    if scheme == "workers":
        return _workers(options, url)
    from ematix_flow.orchestrate.executors.subprocess_ import SubprocessExecutor

    return SubprocessExecutor.of_this_python() if scheme == "subprocess+python" else SubprocessExecutor()


def _kubernetes(namespace: str, options: Mapping[str, str], url: str) -> WatchedExecutor:
    _required(namespace, "a namespace", url)
    image = _required(options.get("image"), "an image", url)
    accounts = {options[name] for name in ("service-account", "sa") if name in options}
    if len(accounts) > 1:
        raise InvalidConfig(f"'{display_url(url)}' names two service accounts.", fix="keep one of them")
    from ematix_flow.orchestrate.executors.kubernetes_ import KubernetesExecutor

    return KubernetesExecutor(
        namespace, image, service_account=next(iter(accounts), None), env_from_secret=options.get("env-from-secret")
    )


def _workers(options: Mapping[str, str], url: str) -> WatchedExecutor:
    warm: Literal["spark"] | None = None
    if "warm" in options:
        if options["warm"] != "spark":
            raise InvalidConfig(f"warm={options['warm']} is unknown.", where=display_url(url), fix="write warm=spark")
        warm = "spark"
    from ematix_flow.orchestrate.executors.warm_pool import MAX_JOBS, MAX_RSS_MB, WarmPool

    return WarmPool(
        _count("count", options, 2, url),
        max_jobs=_count("max_jobs", options, MAX_JOBS, url),
        max_rss_mb=_count("max_rss_mb", options, MAX_RSS_MB, url),
        warm=warm,
    )


def _options(scheme: str, query: str, url: str) -> dict[str, str]:
    known = _OPTIONS.get(scheme, ())
    found: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in known:
            raise InvalidConfig(
                f"{scheme}:// has no option '{name}'.",
                where=display_url(url),
                fix=closest(name, known) or (f"it has {', '.join(known)}" if known else "it has none"),
            )
        if name in found:
            raise InvalidConfig(f"Option '{name}' is given twice.", where=display_url(url), fix="keep one of them")
        found[name] = value
    return found


def _required(value: str | None, what: str, url: str) -> str:
    if not value:
        scheme = url.partition("://")[0].strip().lower()
        raise InvalidConfig(f"'{display_url(url)}' lacks {what}.", fix=f"write {EXAMPLES[scheme]}")
    return value


def _count(name: str, options: Mapping[str, str], default: int, url: str) -> int:
    value = options.get(name, str(default))
    if not value.isdecimal() or int(value) < 1:
        raise InvalidConfig(f"{name}={value} is not a whole number from 1 on.", where=display_url(url))
    return int(value)

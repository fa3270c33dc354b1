"""The documented import path of the normalization markers and row steps; they live in `declare/`."""

from __future__ import annotations

from ematix_flow.declare.normalizers import (
    Normalizer as Normalizer,
    clamp as clamp,
    date_trunc as date_trunc,
    default as default,
    derive as derive,
    email_normalize as email_normalize,
    empty_to_null as empty_to_null,
    lower as lower,
    not_null_or as not_null_or,
    nullif as nullif,
    parse_bool as parse_bool,
    parse_date as parse_date,
    parse_int as parse_int,
    parse_numeric as parse_numeric,
    parse_timestamp as parse_timestamp,
    phone_normalize as phone_normalize,
    regex_replace as regex_replace,
    replace as replace,
    round as round,
    sql as sql,
    to_timezone as to_timezone,
    trim as trim,
    truncate as truncate,
    upper as upper,
    whitespace_to_null as whitespace_to_null,
)
from ematix_flow.declare.steps import (
    deduplicate_by as deduplicate_by,
    filter_where as filter_where,
    limit as limit,
    sample_pct as sample_pct,
)

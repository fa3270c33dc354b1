"""What S3 says when it says no, as errors of ours."""

from __future__ import annotations

from typing import Any

from ematix_flow.backends.object_client import StoreForbidden, StoreRefused


def code_of(exc: Any) -> str:
    """The store's own word for a refusal; the HTTP status where a request has no body."""
    return str(exc.response.get("Error", {}).get("Code", ""))


def refusal(exc: Exception, *, bucket: str, endpoint: str, region: str) -> StoreRefused:
    """An error of the client library as one of ours."""
    from botocore.exceptions import ClientError

    where = f"bucket '{bucket}' at {endpoint}"
    if not isinstance(exc, ClientError):
        return StoreRefused(
            f"The store does not answer ({type(exc).__name__}).", where, "check the connection's endpoint"
        )
    code, status = code_of(exc), exc.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    if code == "NoSuchBucket":
        return StoreRefused(f"The bucket '{bucket}' does not exist.", where, "create it, or mend the connection")
    if code in ("InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "ExpiredToken"):
        return StoreForbidden(
            f"The store refuses the login ({code}).", where, "check access_key_id and secret_access_key"
        )
    if code in ("PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "301"):
        return StoreRefused(
            f"The bucket '{bucket}' is not in region '{region}' ({code}).", where, "check region and endpoint"
        )
    if status == 403:
        return StoreForbidden(
            f"The login may not do this in bucket '{bucket}' ({code}).",
            where,
            "allow it to list the bucket and to get, put and delete objects",
        )
    if code in ("SlowDown", "ServiceUnavailable", "InternalError", "RequestTimeout"):
        return StoreRefused(f"The store is busy ({code}).", where, "run it again")
    return StoreRefused(
        f"The store refused a request ({code or status}).", where, "check endpoint, bucket and what the login may do"
    )

"""At start: does the cluster serve the schema that this operator was built with? An old one strips new fields."""

import logging

from carousel_operator import crd, kinds, names
from carousel_operator.api import Api, ApiError

log = logging.getLogger("carousel.operator")


async def check_schema(api: Api) -> str:
    """What is wrong with the served CRD, "" when nothing is or when it may not be read."""
    name = f"{names.PLURAL}.{names.GROUP}"
    try:
        served = await api.get(kinds.CRD, None, name)
    except ApiError as error:
        log.info("the CRD cannot be read, so its version is not checked: %s", error)
        return ""
    if served is None:
        problem = f"the CRD {name} is not installed: install the chart carousel-crds"
    else:
        ours = crd.schema_digest()
        theirs = (served["metadata"].get("annotations") or {}).get(names.ANNOTATION_SCHEMA, "none")
        problem = (
            ""
            if ours == theirs
            else (f"the CRD {name} has schema {theirs}, this operator needs {ours}: upgrade the chart carousel-crds")
        )
    if problem:
        log.error(problem)
    return problem

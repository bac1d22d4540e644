"""Proof that a generation's user reaches its keys no more."""

from kvtier.store.protocol import Store


async def access_gone(store: Store, token: str, *, prefix: str) -> bool:
    """Whether the user ``token`` can neither read nor store under ``prefix`` any more.

    True if there is no such user; if it has no key pattern and the server's own answer (ACL
    DRYRUN) is that it may not; or if it is off and has no session left. That it is off is not
    enough: open sessions go on reading. Raises what Store does.
    """
    user = await store.acl_getuser(token)
    if user is None:
        return True
    # In this order: whoever is off opens no session after they were counted.
    if not user.enabled and not (await store.sessions())[token]:
        return True
    if user.keys:
        return False
    # Rules that GETUSER shows elsewhere (selectors) count here.
    key = f"{prefix}@x"
    reads = await store.acl_dryrun(token, "get", key)
    return not reads and not await store.acl_dryrun(token, "set", key, "x")

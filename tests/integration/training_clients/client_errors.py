"""What a client of a training service says when it is refused."""


def error_of(action):
    try:
        action()
    except Exception as error:  # noqa: BLE001 - whatever the client makes of the service's answer is the result
        return f"{type(error).__name__}: {error}"
    return None

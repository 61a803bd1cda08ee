"""SGLang: an inference engine, and its dumper of tensors."""

from rldbg.frameworks.base import Framework

FRAMEWORK = Framework(
    name="sglang",
    title="SGLang",
    package=__name__,
    modules=("sglang",),
    programs=("launch_server.py",),
    classes="ServerArgs",
    is_engine=True,
    tested="a stub of the shape of SGLang 0.5.23",
)

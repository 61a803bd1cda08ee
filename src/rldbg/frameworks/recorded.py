"""Functions of frameworks that are recorded: wrapped when their module is imported, their calls turned into records.

A wrapped function gets the same arguments and returns the same result, or, where that is an iterator, one of the same
items. An error in a handler never reaches the
framework: it is written into the process's file below RUN/hooks and reported once.
"""

import atexit
import functools
import inspect
import sys
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import replace
from types import ModuleType
from typing import Any

from rldbg.agent import AfterImports, say
from rldbg.agent.profiling import Hook, is_expected, module_is_in
from rldbg.frameworks.base import Framework
from rldbg.frameworks.hook_proof import HookProof, version_of_module
from rldbg.frameworks.parameter_selection import parameter_patterns
from rldbg.frameworks.record_plan import RecordPlan
from rldbg.frameworks.registry import recorded_hooks
from rldbg.recording import Recorder

_ATTRIBUTE = "_rldbg_recorded"
RecordedCall = Generator[None, Any, Any]
"""A hooked call: the handler runs until it yields, and is sent the result."""
CallHandler = Callable[..., RecordedCall]


class Recorded:
    """What one process records. `recorder` is made when the first record comes: only then is the rank known."""

    def __init__(self, plan: RecordPlan, proof: HookProof) -> None:
        self.plan = plan
        self.proof = proof
        self._recorder: Recorder | None = None
        self._measured: set[int] = set()

    def recorder(self, model: Any = None) -> Recorder:
        """The process's recorder. `model` decides which of its parameters and gradients are recorded."""
        if self._recorder is None:
            self._recorder = Recorder(
                self.plan.directory,
                kinds=self.plan.kinds or None,
                parameter_patterns=(),
                keep_last=self.plan.keep_last,
            )
        if model is not None and id(model) not in self._measured:
            self._measured.add(id(model))
            patterns, words = parameter_patterns(model, self.plan.kinds)
            self.proof.note(parameters=words)
            known = self._recorder.settings.parameter_patterns
            every = tuple(dict.fromkeys((*known, *patterns)))
            self._recorder.settings = replace(self._recorder.settings, parameter_patterns=every)
        return self._recorder


class FrameworkRecording:
    """A framework's handlers: generators that get a call's arguments, yield, and are sent its result.

    What a handler returns, if anything, is what the caller gets: the same items, looked at on their way.
    """

    framework = ""
    """The framework's name."""

    def __init__(self, recorded: Recorded) -> None:
        self.recorded = recorded

    def configured(self, settings: Mapping[str, Any]) -> None:
        """Notes the framework's own configuration once, for run.json."""
        self.recorded.proof.note(config={self.framework: settings})


class ProcessHooks:
    """The hooks of this process, by module, and one set of handlers per framework."""

    def __init__(self, plan: RecordPlan) -> None:
        self._proof = HookProof(plan.proof)
        self._recorded = Recorded(plan, self._proof)
        self._handlers: dict[str, FrameworkRecording] = {}
        self._hooked: set[str] = set()
        atexit.register(self._tell_absent)

    @property
    def recorded(self) -> Recorded:
        return self._recorded

    def hook(self, module: ModuleType) -> None:
        if module.__name__ in self._hooked:
            return
        self._hooked.add(module.__name__)
        for framework, hook in recorded_hooks():
            if hook.module == module.__name__ and is_expected(hook, version_of_module(hook.module)):
                self._proof.hooked(framework, hook, self._install(framework, hook, module))
        self._tell_absent()

    def _tell_absent(self) -> None:
        """Modules that a package which was imported should have, and has not: nothing would ever ask to hook them."""
        for framework, hook in recorded_hooks():
            package = sys.modules.get(hook.module.partition(".")[0])
            folders = list(getattr(package, "__path__", ()))
            if hook.module in self._hooked or not folders or module_is_in(folders, hook.module) is not False:
                continue
            if is_expected(hook, version_of_module(hook.module)):
                self._proof.hooked(framework, hook, f"there is no module {hook.module}")
        self._proof.write()

    def _install(self, framework: Framework, hook: Hook, module: ModuleType) -> str:
        """Puts the wrapper in the function's place; says why it could not."""
        owner: Any = module
        *parents, name = hook.function.split(".")
        for parent in parents:
            owner = getattr(owner, parent, None)
        original = inspect.getattr_static(owner, name, None) if owner is not None else None
        if not inspect.isfunction(original):
            return f"there is no function {hook.function}"
        handler: CallHandler = getattr(self._handlers_of(framework), hook.handler)
        setattr(owner, name, self._wrapped(original, handler, f"{hook.module}.{hook.function}"))
        return ""

    def _handlers_of(self, framework: Framework) -> FrameworkRecording:
        if framework.name not in self._handlers:
            handlers: FrameworkRecording = framework.part("recording")(self._recorded)
            handlers.framework = framework.name
            self._handlers[framework.name] = handlers
        return self._handlers[framework.name]

    def _wrapped(self, original: Any, handler: CallHandler, name: str) -> Any:
        def before(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Generator[None, Any, Any] | None:
            started = time.perf_counter()
            try:
                call = handler(*args, **kwargs)
                next(call)
            except Exception as error:  # noqa: BLE001 - the hook inside the user's training, which must never kill it
                self._failed(name, error)
                return None
            finally:
                self._proof.called(name, time.perf_counter() - started)
            return call

        def after(call: Generator[None, Any, Any] | None, result: Any) -> Any:
            if call is None:
                return result
            started = time.perf_counter()
            try:
                call.send(result)
            except StopIteration as end:
                result = result if end.value is None else end.value
            except Exception as error:  # noqa: BLE001 - the hook inside the user's training, which must never kill it
                self._failed(name, error)
            self._proof.took(name, time.perf_counter() - started)
            return result

        if inspect.iscoroutinefunction(original):

            @functools.wraps(original)
            async def later(*args: Any, **kwargs: Any) -> Any:
                call = before(args, kwargs)
                result = await original(*args, **kwargs)
                return after(call, result)

            return later

        @functools.wraps(original)
        def now(*args: Any, **kwargs: Any) -> Any:
            call = before(args, kwargs)
            result = original(*args, **kwargs)
            return after(call, result)

        return now

    def _failed(self, name: str, error: Exception) -> None:
        text = f"{type(error).__name__}: {error}"
        if self._proof.failed(name, text):
            say(f"cannot record {name}: {text}; training continues")


def process_hooks() -> ProcessHooks | None:
    """This process's hooks; None if nothing is to be recorded."""
    hooks: ProcessHooks | None = getattr(sys, _ATTRIBUTE, None)
    if hooks is None:
        plan = RecordPlan.from_environment()
        if plan is None:
            return None
        hooks = ProcessHooks(plan)
        setattr(sys, _ATTRIBUTE, hooks)
    return hooks


def hook_module(module: ModuleType) -> None:
    """Hooks what a framework's module has to record; the agent calls it after the import."""
    hooks = process_hooks()
    if hooks is not None:
        hooks.hook(module)


def hook_imports() -> None:
    """For a process outside an armed run: hooks what is imported now and later. Does nothing if nothing is to be
    recorded."""
    hooks = process_hooks()
    if hooks is not None:
        AfterImports(dict.fromkeys(hooks.recorded.plan.modules, hooks.hook)).install()

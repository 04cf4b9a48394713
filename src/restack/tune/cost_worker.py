"""One model in a process of its own, which runs batches when it is told to, and times them.

Only so is its memory its own. The processes of several models wait for each other, so that rounds
can be interleaved.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import multiprocessing
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from restack.data.tasks import DEFAULT_METRICS, Kind, Task
from restack.errors import RestackError

# parameters of glibc's mallopt
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3


@dataclass(frozen=True, slots=True)
class Workload:
    """What is run: made-up tokens of one length, or batches of a split as they come."""

    kind: Kind = "classification"
    """Which head the model has."""
    batch: int = 32
    length: int | None = 128
    """Tokens of each text; None takes real texts, padded to the longest of their batch."""
    task: str | None = None
    data: str | None = None
    split: str = "validation"
    limit: int | None = None
    max_length: int | None = None
    precision: str = "fp32"
    device: str = "cpu"
    threads: int | None = None


@dataclass(frozen=True, slots=True)
class Subject:
    """A model, and what is done to it first."""

    model: str
    plan: str | None = None
    stack: str | None = None

    @property
    def label(self) -> str:
        return self.model if self.plan is None else f"{self.model} {self.plan}"


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a model without timing it."""

    plan: str | None
    """As it was resolved."""
    depth: int | None
    parameters: int
    nbytes: int
    flops_per_token: float
    batches: int
    """Different ones; a longer round begins again."""
    tokens: tuple[int, ...]
    """Of each batch, without padding."""
    examples: tuple[int, ...]
    data: str | None


class Runner:
    """Answers to calls by name, in the worker."""

    def __init__(self, subject: Subject, load: Workload) -> None:
        import torch

        from restack.tune.engine import make_engine
        from restack.tune.recipe import Recipe

        if load.threads is not None:
            torch.set_num_threads(load.threads)
        self.torch = torch
        self.engine = make_engine(Recipe(precision=load.precision), load.device)  # type: ignore[arg-type]
        task, split = _task(load)
        self.loaded = _loaded(subject, task, load)
        self.model = self.loaded.model.to(self.engine.device)
        self.batches, self.data = _batches(self.loaded, subject, load, split)
        self.batches = [batch.to(self.engine.device) for batch in self.batches]
        self.kind = load.kind
        self.optimizer: Any = None
        self.place = 0

    def facts(self) -> Facts:
        plan = self.loaded.plan
        parameters = list(self.model.parameters())
        real = [int(b.inputs["attention_mask"].sum()) for b in self.batches]
        return Facts(
            None if plan is None else str(plan),
            self.loaded.depth,
            sum(p.numel() for p in parameters),
            self._nbytes(),
            self._flops(),
            len(self.batches),
            tuple(real),
            tuple(len(b.rows) for b in self.batches),
            self.data,
        )

    def infer(self, count: int) -> list[float]:
        """Seconds of each of so many batches, without training."""
        self.model.eval()
        self.optimizer = None  # its memory is none of inference's
        self.model.zero_grad(set_to_none=True)
        with self.torch.inference_mode():
            return self._timed(count, self._forward)

    def train(self, count: int) -> list[float]:
        """Seconds of each of so many updates: forward, backward, clipping, AdamW."""
        from restack.tune.optim import make_optimizer, parameter_groups
        from restack.tune.recipe import Recipe

        self.model.train()
        if self.optimizer is None:
            recipe = Recipe()
            self.optimizer = make_optimizer(parameter_groups(self.model, None, recipe), recipe)
        return self._timed(count, self._update)

    def peak(self, how: str, count: int) -> int:
        """Bytes held at most while running: the weights, and what running adds to them."""
        run: Callable[[int], list[float]] = self.train if how == "train" else self.infer
        run(1)  # what libraries set up on their first use is not the model's
        self.optimizer = None
        self.model.zero_grad(set_to_none=True)
        gc.collect()
        self.restart()
        if self.engine.device.type == "cuda":
            self.torch.cuda.empty_cache()
            self.torch.cuda.reset_peak_memory_stats(self.engine.device)
            run(count)
            return int(self.torch.cuda.max_memory_allocated(self.engine.device))
        _give_back()
        before = _forget_peak()
        run(count)
        return self._nbytes() + max(0, _status("VmHWM") - before)

    def _nbytes(self) -> int:
        return sum(p.numel() * p.element_size() for p in self.model.parameters())

    def _timed(self, count: int, action: Callable[[Any], None]) -> list[float]:
        seconds = []
        for _ in range(count):
            batch = self.batches[self.place % len(self.batches)]
            self.place += 1
            self._wait()
            start = time.perf_counter()
            action(batch)
            self._wait()
            seconds.append(time.perf_counter() - start)
        return seconds

    def restart(self) -> None:
        """Begin with the first batch again, so that all models run the same ones."""
        self.place = 0

    def _wait(self) -> None:
        if self.engine.device.type == "cuda":
            self.torch.cuda.synchronize(self.engine.device)

    def _forward(self, batch: Any) -> None:
        with self.engine.autocast():
            self.model(**batch.inputs)

    def _update(self, batch: Any) -> None:
        from restack.tune.losses import task_loss

        with self.engine.autocast():
            loss = task_loss(self.kind)(self.model, batch) / batch.count
        self.engine.backward(loss)
        self.engine.clip(self.model, self.optimizer, 1.0)
        self.engine.update(self.optimizer)

    def _flops(self) -> float:
        """Of one forward pass, by token with padding."""
        from torch.nn.attention import SDPBackend, sdpa_kernel
        from torch.utils.flop_counter import FlopCounterMode

        widest = max(self.batches, key=lambda b: b.inputs["input_ids"].shape[1])
        inputs = {name: tensor[:1] for name, tensor in widest.inputs.items()}
        self.model.eval()
        # the counter does not know the kernel that a CPU has for attention as a whole
        counter = FlopCounterMode(display=False)
        with self.torch.inference_mode(), sdpa_kernel(SDPBackend.MATH), counter:
            self.model(**inputs)
        return float(counter.get_total_flops()) / inputs["input_ids"].numel()


def serve(pipe: Any, subject: Subject, load: Workload) -> None:
    """Load a model, tell its facts, then answer calls until the pipe is closed."""
    _end_with_parent()
    with contextlib.suppress(EOFError, KeyboardInterrupt, BrokenPipeError):
        try:
            os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
            _steady_memory()
            runner = Runner(subject, load)
            pipe.send(runner.facts())
            while True:
                name, arguments = pipe.recv()
                pipe.send(getattr(runner, name)(*arguments))
        except (EOFError, BrokenPipeError):
            raise
        except RestackError as error:
            pipe.send(error)
        except Exception as error:  # whatever it is, the asking process must hear of it
            reason = " ".join(str(error).split())[:300]
            pipe.send(RestackError(f"{subject.label}: {type(error).__name__}: {reason}"))


def _end_with_parent() -> None:
    """End as soon as the asking process is gone, killed perhaps, even amid a measurement."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _task(load: Workload) -> tuple[Task, Any]:
    """The task that decides about the head; with real texts, its split."""
    from restack.data import get_task, load_split

    if load.task is None:
        labels = ("a", "b") if load.kind in ("classification", "multilabel") else ()
        metrics = DEFAULT_METRICS[load.kind]
        return Task("cost", load.kind, ("text",), "label", labels, metrics), None
    task = get_task(load.task)
    return task, load_split(task, load.split, load.data, limit=load.limit)


def _loaded(subject: Subject, task: Task, load: Workload) -> Any:
    from transformers import AutoConfig

    from restack.anatomy.shipped import local
    from restack.tune.heads import load_for_task

    # a config without a padding token would have its head read the last token of the padding
    pad = None
    with contextlib.suppress(OSError, ValueError):
        eos = AutoConfig.from_pretrained(local(subject.model)).eos_token_id
        pad = eos if isinstance(eos, int) else 0
    return load_for_task(
        subject.model, task, plan=subject.plan, stack=subject.stack, pad_id=pad or 0
    )


def _batches(
    loaded: Any, subject: Subject, load: Workload, split: Any
) -> tuple[list[Any], str | None]:
    if split is None:
        return [_made_up(loaded, load)], None
    from restack.tune.examples import prepare
    from restack.tune.recipe import Recipe
    from restack.tune.setup import load_tokenizer, reads_types

    examples = prepare(
        split,
        load_tokenizer(subject.model),
        loaded.body.config,
        Recipe(max_length=load.max_length),
        types=reads_types(loaded.body),
    )
    rows = np.arange(len(examples))
    cut = [rows[start : start + load.batch] for start in range(0, len(rows), load.batch)]
    return [examples.batch(some) for some in cut], str(split)


def _made_up(loaded: Any, load: Workload) -> Any:
    """A batch of tokens that mean nothing."""
    import torch

    from restack.tune.examples import Batch
    from restack.tune.masking import IGNORED

    assert load.length is not None
    _check_length(loaded, load.length)
    random = torch.Generator().manual_seed(0)
    size = len(loaded.body.get_input_embeddings().weight)
    shape = (load.batch, load.length)
    # past the ids that are special as a rule
    ids = torch.randint(min(5, size - 1), size, shape, generator=random)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    labels = {
        "classification": torch.zeros(load.batch, dtype=torch.int64),
        "multilabel": torch.zeros(load.batch, 2),
        "regression": torch.zeros(load.batch),
        "span": torch.zeros(load.batch, 2, dtype=torch.int64),
        "mlm": torch.where(torch.arange(load.length) % 7 == 3, ids, IGNORED),  # one in seven
    }.get(load.kind, ids)
    asked = ids[:, 1:] if load.kind == "lm" else labels[labels != IGNORED]
    count = asked.numel() if load.kind in ("lm", "mlm") else load.batch
    return Batch(inputs, labels, count, np.arange(load.batch))


def _check_length(loaded: Any, length: int) -> None:
    from restack.data.tokens import length_limit

    length_limit(loaded.body.config, None, length)  # raises where the model has no such position


def _status(name: str) -> int:
    """A size that the system tells of this process: what it holds, or held at most."""
    try:
        with open("/proc/self/status") as file:
            line = next(line for line in file if line.startswith(name))
        return int(line.split()[1]) * 1024
    except (OSError, StopIteration):  # no Linux: the peak of the whole life must do
        import resource
        import sys

        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _forget_peak() -> int:
    """Let the system count the peak from now on, where it can; what the process holds now."""
    with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    return _status("VmRSS")


def _steady_memory() -> None:
    """Let freed memory be used again, in every process alike.

    By what a process happened to free before, glibc decides whether large tensors come from pages
    that are fetched anew each time. That is a tenth of the time of a forward pass, the same in all
    rounds of a process, so that two processes with one model were up to 12% apart.
    """
    with contextlib.suppress(OSError, AttributeError):  # not glibc
        libc = ctypes.CDLL(None)
        libc.mallopt(_MMAP_THRESHOLD, 32 << 20)
        libc.mallopt(_TRIM_THRESHOLD, (1 << 31) - 1)
        libc.mallopt(_TOP_PAD, 64 << 20)


def _give_back() -> None:
    """Return freed memory to the system: what loading left behind would hide what running takes."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)

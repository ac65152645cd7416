"""`--model semsoft-hf`: the harness's `hf` model, with Semantic Softmax for label scores.

Everything that `hf` takes and does stays; only `loglikelihood` is another: documents are read once
each, shared prefixes once per run, and every label score comes out of the readouts.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from lm_eval.api.instance import Instance
from lm_eval.api.model import CacheHook
from lm_eval.models.huggingface import HFLM
from tqdm import tqdm

import lm_eval_semsoft
from lm_eval_semsoft.core.errors import check_choice
from lm_eval_semsoft.core.semantic_softmax import (
    SWITCH,
    resolve_scoring,
)
from lm_eval_semsoft.engine.embeddings import output_embeddings, vocabulary_of
from lm_eval_semsoft.engine.fingerprint import combine, model_fingerprint
from lm_eval_semsoft.engine.forward import Engine, NaNLogits
from lm_eval_semsoft.engine.generate import Generator
from lm_eval_semsoft.engine.labels import token_texts
from lm_eval_semsoft.engine.plan import Prompt, Tokens
from lm_eval_semsoft.engine.readout import DEFAULT_TOP_K, Readout
from lm_eval_semsoft.engine.recorder import Recorder
from lm_eval_semsoft.engine.store import Store, folder_of
from lm_eval_semsoft.logs import join_harness_log

from . import demo
from .generation import generate_until
from .label_scores import KERNELS, LabelScore, Scorer, TaskLabels, dump_response, load_response
from .pairs import Document, PairEncoder, documents_of
from .recording import record_of
from .work import Job, Part, Work

logger = logging.getLogger(__name__)
join_harness_log()


CAPTURES = ("hidden",)
_VERSIONS = ("lm_eval", "torch", "transformers")  # kept with readouts, beside our own


class SemsoftHF(HFLM):
    """A Hugging Face causal model whose label scores are Semantic Softmax.

    Args:
        pretrained: as for `hf` (hub id, path, or a loaded model), `demo:<name>`, or None for the
            installed demo model.
        scoring: `semantic` or `constrained`.
        space, tau, top_k, anchors, rival_votes: see `core.semantic_softmax.Scoring`; None keeps
            the preset's value.
        preset: `default`, or `paper` for the published formula.
        prefix_sharing: `on`, or `off` to run every prompt whole (same numbers).
        kernel: `auto` (cosine where labels are words, identity elsewhere), `cosine`, `identity`.
        readouts: a directory that keeps every readout, and gives back what it has
            (`engine.store`).
        capture: `hidden` keeps the activations after every block at each answer position, too.
        **kwargs: everything else that `hf` takes.

    Raises:
        ValueError: an unknown or impossible argument, or a model without output embeddings.
    """

    def __init__(
        self,
        pretrained: Any = None,
        scoring: str | None = None,
        space: str | None = None,
        tau: float | str | None = None,
        top_k: int | None = None,
        anchors: str | None = None,
        rival_votes: str | bool | None = None,
        preset: str | None = None,
        prefix_sharing: str | bool = "on",
        kernel: str = "auto",
        readouts: str | None = None,
        capture: str | None = None,
        **kwargs: Any,
    ) -> None:
        self.scoring = resolve_scoring(
            preset,
            scoring=scoring,
            space=space,
            tau=tau,
            top_k=top_k,
            anchors=anchors,
            rival_votes=_on_off(rival_votes),
        )
        self.preset = preset or "default"
        self.kernel = kernel
        self.prefix_sharing = _on_off(prefix_sharing)
        self.capture = capture
        check_choice("kernel", kernel, KERNELS)
        if capture is not None:
            check_choice("capture", capture, CAPTURES)
        check_choice("prefix_sharing", self.prefix_sharing, SWITCH)
        folder = None if readouts is None else folder_of(readouts)
        if kwargs.get("tp_plan") is not None:
            raise ValueError(
                f"tp_plan={kwargs['tp_plan']!r} is not supported by semsoft-hf, which needs whole "
                "output embeddings: use parallelize=True, or --model hf."
            )
        self._demo_name: str | None = None
        kwargs["device"] = kwargs.get("device") or _best_device()
        if pretrained is None or (
            isinstance(pretrained, str) and pretrained.startswith(demo.PREFIX)
        ):
            pretrained = demo.resolve(pretrained)
            self._demo_name = demo.PREFIX + Path(pretrained).name.rpartition("-")[0]
            if kwargs.get("dtype", "auto") == "auto":
                kwargs["dtype"] = demo.recommended_dtype(kwargs["device"])
        super().__init__(pretrained, **kwargs)
        if self.backend != "causal":
            raise ValueError(
                f"{self._name()} is an encoder-decoder model: semsoft-hf reads the next token of a "
                "decoder-only model; use --model hf for this one."
            )
        self._join_other_processes()
        self.engine = Engine(
            self.model,
            self.prefix_sharing == "on",
            torch.device(self.device),
            self._autocast,
            capture == "hidden",
        )
        self.generator = Generator(
            self.model,
            self.tok_decode,
            self.prefix_sharing == "on",
            torch.device(self.device),
            self._autocast,
        )
        self._say_if_clipped()
        self.scorer = Scorer(
            self.scoring, lambda: output_embeddings(self.model), self._encode_label, kernel
        )
        weights = model_fingerprint(self.model)
        self.fingerprint = combine({**self._settings(), "weights": weights})
        self._introduced = False
        self.store = None if folder is None else self._open_store(folder, weights)
        self._reader = self.engine if self.store is None else Recorder(self.engine, self.store)

    def _open_store(self, folder: Path, weights: str) -> Store:
        top_k = min(max(DEFAULT_TOP_K, self.scoring.top_k), vocabulary_of(self.engine.head))
        depends_on = {
            "weights": weights,
            "dtype": [str(self.model.dtype), str(self.mixed_precision_dtype)],
            "config": _portable(self.model.config.to_dict()),
            "top_k": top_k,
        }
        about = {
            "model": self._name(),
            "dtype": str(self.model.dtype).removeprefix("torch."),
            "tokenizer": self.tokenizer.name_or_path,
            "chat_template": self.tokenizer.chat_template is not None,
            "top_k": top_k,
            "scoring": {**vars(self.scoring), "kernel": self.kernel},
            "versions": {
                "lm_eval_semsoft": lm_eval_semsoft.__version__,
                **{name: version(name) for name in _VERSIONS},
            },
        }
        captured = self.engine.capture
        shape = captured.shape if captured else None
        store = Store(folder, combine(depends_on), top_k, about, shape)
        if self.rank == 0:
            store.save_model(
                lambda: output_embeddings(self.model),
                lambda: token_texts(self.tokenizer, vocabulary_of(self.engine.head)),
            )
        return store

    def _join_other_processes(self) -> None:
        """`accelerate launch` without a GPU: stock `hf` leaves every process rank 0 of 1."""
        accelerator = getattr(self, "accelerator", None)
        if accelerator is not None and self.world_size == 1:
            self._rank = accelerator.process_index
            self._world_size = accelerator.num_processes

    def _name(self) -> str:
        """A hub id, a path, or what a demo model or one that was passed in is called."""
        if self._demo_name is not None:
            return self._demo_name
        if isinstance(self.pretrained, str):
            return self.pretrained
        return self.model.name_or_path or type(self.model).__name__

    def _say_if_clipped(self) -> None:
        vocabulary = vocabulary_of(self.engine.head)
        if self.scoring.scoring == "semantic" and self.scoring.top_k > vocabulary:
            logger.info(
                "top_k=%d is more than the vocabulary of %d tokens: all of them may vote.",
                self.scoring.top_k,
                vocabulary,
            )

    def _autocast(self) -> torch.autocast:
        dtype = self.mixed_precision_dtype
        return torch.autocast(torch.device(self.device).type, dtype, enabled=dtype is not None)

    def _encode_label(self, text: str) -> list[int]:
        return list(self.tok_encode(text, add_special_tokens=False))

    # -- what the results say about this run ---------------------------------------------------

    def _settings(self) -> dict[str, Any]:
        return {
            **vars(self.scoring),
            "kernel": self.kernel,
            "dtype": [str(self.model.dtype), str(self.mixed_precision_dtype)],
            "config": self.model.config.to_json_string(),
            "tokenizer": [self.tokenizer.name_or_path, len(self.tokenizer)],
            "chat_template": self.tokenizer.chat_template,
            "context": [self.max_length, self.add_bos_token, self.prefix_token_id],
            "version": lm_eval_semsoft.__version__,
            **({"capture": self.capture} if self.capture else {}),
        }

    def get_model_info(self) -> dict[str, Any]:
        """The harness's model information and, under `semsoft`, what the scores depend on."""
        own = {
            **vars(self.scoring),
            "kernel": self.kernel,
            "version": lm_eval_semsoft.__version__,
            "preset": self.preset,
            "prefix_sharing": self.prefix_sharing,
            "capture": self.capture,
            "fingerprint": self.fingerprint,
        }
        return {**super().get_model_info(), "semsoft": own}

    def _introduce(self, documents: Sequence[Document]) -> None:
        if self._introduced or self.rank != 0:
            return
        self._introduced = True
        s = self.scoring
        how = "" if s.scoring == "constrained" else f", space {s.space}, tau {s.tau}, K {s.top_k}"
        data = {f"{d.task} ({d.doc.get('source', 'as the task says')})" for d in documents
                if isinstance(d.doc, dict)}  # fmt: skip
        logger.info(
            "semsoft-hf: model %s (%s), scoring %s%s; data: %s",
            self._name(),
            str(self.model.dtype).removeprefix("torch."),
            s.scoring,
            how,
            ", ".join(sorted(data)) or "none",
        )

    # -- caching -------------------------------------------------------------------------------

    def set_cache_hook(self, cache_hook: CacheHook) -> None:
        """Keep our answers in a namespace of their own in `--use_cache`, as JSON.

        The harness keys answers by the request alone, which would serve another model's, or
        another tau's, scores.
        """
        super().set_cache_hook(cache_hook)
        if cache_hook.dbdict is not None:
            if self.store is not None:
                logger.warning(
                    "--use_cache answers without the model, so readouts=%s will lack what it "
                    "knows: leave --use_cache out, the readouts do its work.",
                    self.store.folder,
                )
            cache_hook.dbdict.encode_key = lambda key: f"semsoft:{self.fingerprint}:{key}"
            cache_hook.dbdict.encode = dump_response
            cache_hook.dbdict.decode = load_response

    def _labels_of_tasks(
        self, documents: Sequence[Document], tokens: Sequence[dict[str, Tokens]]
    ) -> dict[str | None, TaskLabels]:
        """The labels of every task in this call.

        A run that was stopped may have only some labels of its last document left to score; then
        the cache knows the whole set.
        """
        own: dict[str | None, list[int]] = {}
        for i, document in enumerate(documents):
            own.setdefault(document.task, []).append(i)
        found = {}
        for task, places in own.items():
            known = TaskLabels.of([documents[i] for i in places], [tokens[i] for i in places])
            stored = self._stored_labels(task)
            if len(places) == 1 and stored and known.tokens.keys() < stored.tokens.keys():
                known = stored
            elif self.cache_hook.dbdict is not None:
                self.cache_hook.dbdict[f"labels:{task}"] = known.to_json()
            found[task] = known
        return found

    def _stored_labels(self, task: str | None) -> TaskLabels | None:
        stored, key = self.cache_hook.dbdict, f"labels:{task}"
        if stored is None or key not in stored:
            return None
        return TaskLabels.from_json(stored[key])

    # -- generation ----------------------------------------------------------------------------

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """The answer to every request, greedy ones as `GeneratedText`; see `models.generation`.

        Raises:
            ValueError: a prompt that cannot be answered, or logits that are not finite, naming the
                document.
        """
        stock = super().generate_until
        return generate_until(self, self.generator, stock, requests, disable_tqdm, self.store)

    # -- scoring -------------------------------------------------------------------------------

    def loglikelihood(
        self, requests: list[Instance], disable_tqdm: bool = False
    ) -> list[tuple[float, bool]]:
        """(log S, is_greedy) of every request; see `LabelScore`.

        Raises:
            ValueError: bad labels, or logits that are not finite, naming the document.
        """
        if self.enable_thinking:
            return list(super().loglikelihood(requests, disable_tqdm))  # raises the right error
        documents = documents_of(requests)
        self._introduce(documents)
        jobs = self._jobs(documents)
        results: list[Any] = [None] * len(requests)
        for document, scores in self._scored(jobs, disable_tqdm):
            for continuation, score in scores.items():
                for place in document.places[continuation]:
                    results[place] = score
                self.cache_hook.add_partial(
                    "loglikelihood", (document.context, continuation), score
                )
        return results

    def _jobs(self, documents: Sequence[Document]) -> list[Job]:
        """All that can be known, and can be wrong, before any model time is spent."""
        pairs = self._tokenize(documents)
        tokens = [{c: label for c, (_, label) in own.items()} for own in pairs]
        known = self._labels_of_tasks(documents, tokens)
        jobs, n_cut = [], 0
        for document, own, labels in zip(documents, pairs, tokens, strict=True):
            self._check_distinct(document, known[document.task])
            parts, cut = self._cut(own, known[document.task].lead_of(labels))
            n_cut += cut
            votes = self.scorer.votes(document.task, known[document.task], labels)
            jobs.append(Job(document, parts, votes))
        if self.store is not None:
            whole = [job for job in jobs if not self._lacks_labels(job, known)]
            record = record_of(whole, known, self._encode_label)
            self.store.save_documents(record.documents)
            self.store.save_tasks(record.tasks, record.label_sets)
        if n_cut:
            logger.warning(
                "%d of %d prompts were longer than the model's context of %d tokens and were cut "
                "from the left.",
                n_cut,
                len(jobs),
                self.max_length,
            )
        return jobs

    def _lacks_labels(self, job: Job, known: Mapping[str | None, TaskLabels]) -> bool:
        """Did the harness's cache answer some labels of this document?"""
        task = known[job.document.task]
        asked = len(job.document.continuations)
        return self.cache_hook.dbdict is not None and task.fixed and asked < len(task.tokens)

    def _tokenize(self, documents: Sequence[Document]) -> list[dict[str, tuple[Tokens, Tokens]]]:
        encode = PairEncoder(self)
        out = []
        for document in documents:
            pairs = encode(document.context, document.continuations)
            for continuation, (context, own) in zip(document.continuations, pairs, strict=True):
                if not own:
                    raise ValueError(
                        f"Label {continuation!r} of {document} encodes to no tokens: every label "
                        "needs at least one."
                    )
                if not context:
                    raise ValueError(f"The prompt of {document} encodes to no tokens.")
                if len(own) > self.max_length:
                    raise ValueError(
                        f"Label {continuation[:40]!r} of {document} has {len(own)} tokens, more "
                        f"than the model's context of {self.max_length}."
                    )
            out.append(dict(zip(document.continuations, pairs, strict=True)))
        return out

    def _check_distinct(self, document: Document, known: TaskLabels) -> None:
        """A label asked twice under different choice numbers is a mistake in a fixed label set.

        Questions with options of their own may well repeat one; they are scored as they are.
        """
        if not known.fixed or self.scoring.scoring == "constrained":
            return
        for continuation, indices in document.indices.items():
            if len(indices) > 1:
                raise ValueError(
                    f"Label {continuation.strip()!r} stands {len(indices)} times in the label set "
                    f"of task {document.task}: labels must differ."
                )

    def _cut(
        self, pairs: dict[str, tuple[Tokens, Tokens]], lead: int
    ) -> tuple[tuple[Part, ...], bool]:
        """Cut contexts from the left to what leaves room for the label, as the harness does.

        Returns the parts, and whether anything was cut.
        """
        parts: dict[Tokens, list[str]] = {}
        cut = False
        for continuation, (context, label) in pairs.items():
            room = self.max_length + 1 - len(label)
            cut = cut or len(context) > room
            parts.setdefault(context[-room:], []).append(continuation)
        made = (
            Part(Prompt(context, tuple(pairs[c][1] for c in labels), lead), tuple(labels))
            for context, labels in parts.items()
        )
        return tuple(made), cut

    def _scored(
        self, jobs: Sequence[Job], disable_tqdm: bool
    ) -> Iterator[tuple[Document, dict[str, LabelScore]]]:
        """Documents and their scores, each as soon as its last prompt has been read."""
        work = Work(jobs)
        quiet = disable_tqdm or self.rank != 0
        with tqdm(total=len(work.prompts), unit="doc", desc="Scoring", disable=quiet) as bar:
            readouts = self._reader.read(
                work.prompts,
                self.max_batch_size if self.batch_size == "auto" else int(self.batch_size),
                max(DEFAULT_TOP_K, self.scoring.top_k),
                progress=bar.update,
            )
            try:
                for index, readout in readouts:
                    for job, own in work.deliver(index, readout):
                        yield job.document, self._score(job, own)
            except NaNLogits as error:
                document = work.users[error.index][0].document
                raise ValueError(
                    f"The logits of {document} are NaN or infinite: the model's weights are broken "
                    f"or {self.model.dtype} overflows; try dtype=float32."
                ) from error

    def _score(self, job: Job, readouts: Sequence[Readout]) -> dict[str, LabelScore]:
        scores: dict[str, LabelScore] = {}
        for part, readout in zip(job.parts, readouts, strict=True):
            log_s = self.scorer.log_scores(readout, part.labels, job.votes)
            for i, label in enumerate(part.labels):
                scores[label] = LabelScore(
                    float(log_s[i]) + readout.lead_logprob,
                    bool(readout.label_greedy[i]),
                    float(readout.label_logprobs[i]) + readout.lead_logprob,
                    None if scores else readout,
                )
        return scores


def _portable(config: Mapping[str, Any]) -> dict[str, Any]:
    """A model's configuration without where it lay and who wrote it down."""
    other = {"_name_or_path", "name_or_path", "transformers_version", "dtype", "torch_dtype"}
    return {k: v for k, v in config.items() if k not in other}


def _best_device() -> str:
    """Where stock `hf` assumes CUDA unless told otherwise, and fails without it."""
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def _on_off(value: str | bool | None) -> str | None:
    """`rival_votes=True` in a config file means the same as `on`."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return value

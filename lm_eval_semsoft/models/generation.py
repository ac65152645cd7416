"""Generation requests: which of them our loop answers, and what the harness gets for them.

Greedy and plainly sampled requests (temperature, top_k, top_p) go through `engine.generate` and
come back as `GeneratedText`. Everything else is left to the stock model. Greedy texts are those
that stock `hf` gives at batch size 1: at larger ones it may run past a stop string until all rows
of a batch have met it.
"""

from __future__ import annotations

import json
import logging
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import torch
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from lm_eval.models.utils import (
    handle_stop_sequences,
    normalize_gen_kwargs,
    postprocess_generated_text,
)
from numpy.typing import NDArray
from tqdm import tqdm

from lm_eval_semsoft.engine.forward import NaNLogits
from lm_eval_semsoft.engine.generate import Generator, Stop
from lm_eval_semsoft.engine.plan import Tokens
from lm_eval_semsoft.engine.records import Answer, answer_key
from lm_eval_semsoft.engine.sampling import Sampling
from lm_eval_semsoft.engine.store import Store
from lm_eval_semsoft.engine.trace import Trace, settled

from .generated import GeneratedText
from .pairs import Document
from .recording import generated_document

logger = logging.getLogger(__name__)

Stock = Callable[[list[Instance], bool], list[str]]

_OURS = {"until", "max_gen_toks", "do_sample", "temperature"}
_CUTS = {"top_k", "top_p"}  # that sampled requests may ask for, too
_MORE_TOKENS = 2  # that the harness looks back for a stop string, beside the string's own
# Settings of a model's generation_config that change answers, and what leaves them alone.
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "num_beams": (None, 1),
    "repetition_penalty": (None, 1.0),
    "no_repeat_ngram_size": (None, 0),
    "bad_words_ids": (None, []),
    "sequence_bias": (None, {}, []),
    "suppress_tokens": (None, []),
    "begin_suppress_tokens": (None, []),
    "min_length": (None, 0),
    "min_new_tokens": (None, 0),
    "forced_bos_token_id": (None,),
    "forced_eos_token_id": (None,),
    "exponential_decay_length_penalty": (None,),
    "guidance_scale": (None, 1.0),
    "penalty_alpha": (None, 0.0),
    "dola_layers": (None,),
    "max_time": (None,),
    "stop_strings": (None, []),
    "watermarking_config": (None,),
    "remove_invalid_values": (None, False),
}
_NEUTRAL_TO_SAMPLES: Mapping[str, tuple[Any, ...]] = {
    "min_p": (None, 0.0),
    "typical_p": (None, 1.0),
    "epsilon_cutoff": (None, 0.0),
    "eta_cutoff": (None, 0.0),
    "top_h": (None,),
}


@dataclass(frozen=True)
class Way:
    """How requests are to be answered.

    Attributes:
        until: texts that end an answer and are cut off, EOS among them.
        max_tokens: of an answer.
        sampling: what tokens are drawn from; None = greedy.
    """

    until: tuple[str, ...]
    max_tokens: int
    sampling: Sampling | None = None


@dataclass
class Ask:
    """A prompt and the requests that get the same answer to it.

    Attributes:
        document: the first of their documents.
        tokens: the prompt.
        sample: the number of the answer among those that are sampled for a document.
        places: of the requests.
    """

    document: Document
    tokens: Tokens
    sample: int = 0
    places: list[int] = field(default_factory=list)


def generate_until(
    lm: HFLM,
    generator: Generator,
    stock: Stock,
    requests: Sequence[Instance],
    disable_tqdm: bool = False,
    store: Store | None = None,
) -> list[str]:
    """The answer to every request, in their order.

    Args:
        lm: the harness's model.
        generator: writes the answers that are ours.
        stock: `generate_until` of the stock model, for all other requests.
        requests: with arguments (context, gen_kwargs).
        disable_tqdm: no progress bar.
        store: keeps our answers, and gives back those that it has.

    Raises:
        ValueError: logits that are not finite, prompts without tokens or without room for an
            answer, naming the document.
    """
    results: list[Any] = [None] * len(requests)
    ways = [way_of(lm, request.args[1]) for request in requests]
    for sampled in (False, True):
        own = {way for way in ways if way and bool(way.sampling) == sampled}
        if own and (reason := why_stock(lm.model, sampled)):
            what = "Sampled answers" if sampled else "Answers"
            logger.info("%s are left to the stock model, without traces: %s.", what, reason)
            ways = [None if way in own else way for way in ways]
    ours = [i for i, way in enumerate(ways) if way is not None]
    quiet = disable_tqdm or lm.rank != 0
    with tqdm(total=len(ours), unit="doc", desc="Generating", disable=quiet or not ours) as bar:
        for way in dict.fromkeys(way for way in ways if way is not None):
            places = [i for i in ours if ways[i] == way]
            asks = asks_of(lm, way, [(i, requests[i]) for i in places])
            if way.sampling:
                _say_how(lm, way.sampling, requests[places[0]].args[1])
            found = (
                ((ask, text) for ask, text, _ in answers(lm, generator, way, asks))
                if store is None
                else recorded(lm, generator, way, asks, requests, store)
            )
            for ask, text in found:
                for place in ask.places:
                    results[place] = text
                if not way.sampling:  # the harness would give one sample for all
                    lm.cache_hook.add_partial("generate_until", requests[ask.places[0]].args, text)
                bar.update(len(ask.places))
    theirs = [i for i, way in enumerate(ways) if way is None]
    if theirs:
        given = stock([requests[i] for i in theirs], disable_tqdm)
        for place, plain in zip(theirs, given, strict=True):
            results[place] = plain
    return results


def way_of(lm: HFLM, gen_kwargs: Mapping[str, Any]) -> Way | None:
    """How our loop answers a request; None if it does not.

    Raises:
        ValueError: a temperature, top_k or top_p that is out of range.
    """
    wanted: dict[str, Any] = dict(normalize_gen_kwargs(dict(gen_kwargs), lm.max_gen_toks))
    known = _OURS | _CUTS if wanted["do_sample"] else _OURS
    if wanted.keys() - known or wanted["max_gen_toks"] < 1:
        return None
    sampling = None
    if wanted["do_sample"]:
        if gen_kwargs.get("temperature") == 0:  # contradicts do_sample; stock says so
            return None
        sampling = Sampling(**{k: v for k, (v, _) in _settings(lm.model, gen_kwargs).items()})
    end = lm.eot_token_id  # not every tokenizer has one
    eos = None if end is None else lm.tok_decode(end, skip_special_tokens=False)
    until = handle_stop_sequences(wanted["until"], eos=eos)
    return Way(tuple(s for s in until if s), wanted["max_gen_toks"], sampling)


def _settings(model: Any, gen_kwargs: Mapping[str, Any]) -> dict[str, tuple[Any, str]]:
    """The fields of `Sampling` and where they come from: the request, the model, or nobody.

    A request with both a temperature and top_p is complete: no top_k of the model's joins it. Where
    nobody says anything, nothing is cut. (`model.generate` would take top_k=50 there, which is not
    sampling from the model; and no top_k means "all" to every server, so tasks cannot say it.)
    """
    complete = {"temperature", "top_p"} <= gen_kwargs.keys()
    config = None if complete else getattr(model, "generation_config", None)
    found: dict[str, tuple[Any, str]] = {}
    for name, whole, neutral in (
        ("temperature", False, 1.0),
        ("top_k", True, 0),
        ("top_p", False, 1.0),
    ):
        if (asked := gen_kwargs.get(name)) is not None:
            found[name] = _number(name, asked, whole), ""
        elif (own := getattr(config, name, None)) is not None:
            found[name] = _number(name, own, whole), " (generation_config)"
        else:
            found[name] = neutral, ""
    return found


def _number(name: str, given: Any, whole: bool) -> float | int:
    """A number that may come as text, as from ``--gen_kwargs``.

    Raises:
        ValueError: it is none.
    """
    try:
        number = float(given)
    except (TypeError, ValueError):
        number = math.nan
    if math.isnan(number) or (whole and not number.is_integer()):
        kind = "a whole number" if whole else "a number"
        raise ValueError(f"{name}={given!r} must be {kind}.")
    return int(number) if whole else number


def _say_how(lm: HFLM, sampling: Sampling, gen_kwargs: Mapping[str, Any]) -> None:
    if lm.rank != 0:
        return
    settings = _settings(lm.model, gen_kwargs)
    parts = [f"{name} {value:g}{source}" for name, (value, source) in settings.items()
             if name == "temperature" or value != getattr(Sampling, name)]  # fmt: skip
    logger.info("Sampling with %s, seed %d.", ", ".join(parts), torch.initial_seed())


def why_stock(model: Any, sampled: bool = False) -> str | None:
    """What in a model's generation settings our loop does not do, or None."""
    config = getattr(model, "generation_config", None)
    for name, neutral in {**_NEUTRAL, **(_NEUTRAL_TO_SAMPLES if sampled else {})}.items():
        if (value := getattr(config, name, None)) not in neutral:
            return f"its generation_config sets {name}={value!r}"
    return None


def asks_of(lm: HFLM, way: Way, requests: Sequence[tuple[int, Instance]]) -> list[Ask]:
    """The distinct prompts of some requests, cut from the left to what leaves room to answer.

    The i-th time that a document asks for a sampled answer to a prompt (the harness repeats a
    request) is for sample i; other documents with that prompt share the samples.
    """
    room = lm.max_length - way.max_tokens
    encoded: dict[str, Tokens] = {}
    found: dict[tuple[str, int], Ask] = {}
    times: Counter[tuple[Any, ...]] = Counter()
    for place, request in requests:
        context = request.args[0]
        document = Document(request.task_name, request.doc_id, context, request.doc)
        if context not in encoded:
            encoded[context] = _encode(lm, document, way, room)
        sample = 0
        if way.sampling:
            asked = (request.task_name, request.doc_id, context)
            sample = times[asked]
            times[asked] += 1
        ask = Ask(document, encoded[context][-room:], sample)
        found.setdefault((context, sample), ask).places.append(place)
    if n_cut := sum(len(tokens) > room for tokens in encoded.values()):
        logger.warning(
            "%d of %d prompts leave no room for %d new tokens in the model's context of %d tokens "
            "and were cut from the left.",
            n_cut,
            len(encoded),
            way.max_tokens,
            lm.max_length,
        )
    return list(found.values())


def _encode(lm: HFLM, document: Document, way: Way, room: int) -> Tokens:
    if room < 1:
        raise ValueError(
            f"{way.max_tokens} new tokens for {document} leave no room for a prompt in the model's "
            f"context of {lm.max_length} tokens: set max_gen_toks lower."
        )
    ids, _ = lm.tok_batch_encode([document.context], truncation=lm.truncation)
    if not ids.numel():
        raise ValueError(f"The prompt of {document} encodes to no tokens.")
    return tuple(int(token) for token in ids[0])


def answers(
    lm: HFLM, generator: Generator, way: Way, asks: Sequence[Ask]
) -> Iterator[tuple[Ask, GeneratedText, NDArray[np.float32]]]:
    """Every answer as soon as it is done, and the log-probabilities of all of its tokens."""
    prompts = [ask.tokens for ask in asks]
    stop = stop_of(lm, way)
    size = lm.max_batch_size if lm.batch_size == "auto" else int(lm.batch_size)
    try:
        if way.sampling:
            seeds = [key_of(lm, way, ask) for ask in asks]
            for index, tokens, logprobs in generator.sample(
                prompts, seeds, way.sampling, way.max_tokens, stop, size
            ):
                yield asks[index], text_of(lm, way, tokens, None, logprobs), logprobs
            return
        for index, tokens, trace in generator.generate(prompts, way.max_tokens, stop, size):
            assert trace is not None
            yield asks[index], text_of(lm, way, tokens, trace), trace.logprobs
    except NaNLogits as error:
        raise ValueError(
            f"The logits of {asks[error.index].document} are NaN or infinite: the model's weights "
            f"are broken or {lm.model.dtype} overflows; try dtype=float32."
        ) from error


def key_of(lm: HFLM, way: Way, ask: Ask) -> bytes:
    """16 bytes that stand for an answer, by its prompt and how it is generated.

    They are also the seed of a sampled one, which so depends on the run's seed (`--seed`) and its
    own number, and on nothing else in the run.
    """
    how: list[Any] = [way.until, way.max_tokens, lm.think_end_token, sorted(ends_of(lm.model))]
    if way.sampling:
        how += [asdict(way.sampling), torch.initial_seed(), ask.sample]
    return answer_key(ask.tokens, json.dumps(how))


def recorded(
    lm: HFLM,
    generator: Generator,
    way: Way,
    asks: Sequence[Ask],
    requests: Sequence[Instance],
    store: Store,
) -> Iterator[tuple[Ask, GeneratedText]]:
    """As `answers`: first those that are in the store, then the others, which it keeps."""
    waiting: dict[bytes, list[Ask]] = {}  # contexts may be the same once they are cut
    for ask in asks:
        waiting.setdefault(key_of(lm, way, ask), []).append(ask)
    if not way.sampling:  # a document has one answer there
        store.save_documents(
            generated_document(requests[place], key)
            for key, own in waiting.items()
            for ask in own
            for place in ask.places
        )
    asked = len(waiting)
    for key, answer in store.recall_answers(list(waiting)):
        for ask in waiting.pop(key):
            yield ask, _generated(answer.text, answer.trace, answer.logprobs)
    if len(waiting) < asked:
        logger.info("%d of %d answers were found in %s.", asked - len(waiting), asked, store.folder)
    of_first = {id(own[0]): (key, own) for key, own in waiting.items()}
    try:
        left = [own[0] for own in waiting.values()]
        for first, text, logprobs in answers(lm, generator, way, left):
            key, own = of_first[id(first)]
            store.add_answer(key, Answer(str(text), text.trace, logprobs))
            for ask in own:
                yield ask, text
            store.flush_if_due()
    finally:
        store.close()


def stop_of(lm: HFLM, way: Way) -> Stop:
    """What ends an answer: the model's own end tokens, and the texts that were asked for."""
    sizes = [len(lm.tokenizer.encode(s, add_special_tokens=False)) for s in way.until]
    look_back = max(sizes, default=0) + _MORE_TOKENS
    return Stop(ends_of(lm.model), way.until, look_back, lm.tokenizer.batch_decode)


def ends_of(model: Any) -> frozenset[int]:
    """The tokens that end a model's answers."""
    eos = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    return frozenset([] if eos is None else [eos] if isinstance(eos, int) else eos)


def text_of(
    lm: HFLM,
    way: Way,
    tokens: Sequence[int],
    trace: Trace | None,
    logprobs: NDArray[np.float32] | None = None,
) -> GeneratedText:
    """What the harness gets for some tokens: without thoughts, up to the first stop string.

    Args:
        lm, way: the harness's model, and how it was asked.
        tokens: all that were generated.
        trace: of all of them, None for samples.
        logprobs: of all of them; None = those of the trace.
    """
    if logprobs is None and trace is not None:
        logprobs = trace.logprobs
    think = lm.think_end_token
    if isinstance(think, int) and think in tokens:
        first = len(tokens) - tokens[::-1].index(think)
        tokens = tokens[first:]
        if trace is not None:
            trace = replace(trace.after(first), ends=settled(tokens, lm.tok_decode))
    whole = lm.tok_decode(tokens)
    shown = whole.lstrip() if isinstance(think, int) else whole
    thought = think if isinstance(think, str) else None
    if thought:
        shown = shown.split(thought)[-1].lstrip()
    text = postprocess_generated_text(shown, list(way.until), None)
    start = len(whole) - len(shown)
    cut = None if trace is None else trace.cut(start, start + len(text))
    return _generated(text, cut, logprobs)


def _generated(
    text: str, trace: Trace | None, logprobs: NDArray[np.float32] | None
) -> GeneratedText:
    if logprobs is None:
        return GeneratedText(text, trace)
    return GeneratedText(text, trace, float(logprobs.sum(dtype=np.float64)), len(logprobs))

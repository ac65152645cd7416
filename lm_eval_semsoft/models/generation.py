"""Generation requests: which of them our loop answers, and what the harness gets for them.

Greedy requests go through `engine.generate` and come back as `GeneratedText`. Everything else is
left to the stock model. Texts are those that stock `hf` gives at batch size 1: at larger ones it
may run past a stop string until all rows of a batch have met it.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from lm_eval.models.utils import (
    handle_stop_sequences,
    normalize_gen_kwargs,
    postprocess_generated_text,
)
from tqdm import tqdm

from lm_eval_semsoft.engine.forward import NaNLogits
from lm_eval_semsoft.engine.generate import Generator, Stop
from lm_eval_semsoft.engine.plan import Tokens
from lm_eval_semsoft.engine.records import Answer, answer_key
from lm_eval_semsoft.engine.store import Store
from lm_eval_semsoft.engine.trace import Trace, settled

from .generated import GeneratedText
from .pairs import Document
from .recording import generated_document

logger = logging.getLogger(__name__)

Stock = Callable[[list[Instance], bool], list[str]]

_OURS = {"until", "max_gen_toks", "do_sample", "temperature"}
_MORE_TOKENS = 2  # that the harness looks back for a stop string, beside the string's own
# Settings of a model's generation_config that change greedy answers, and what leaves them alone.
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


@dataclass(frozen=True)
class Way:
    """How requests are to be answered.

    Attributes:
        until: texts that end an answer and are cut off, EOS among them.
        max_tokens: of an answer.
    """

    until: tuple[str, ...]
    max_tokens: int


@dataclass
class Ask:
    """A prompt and the requests that have it: all get the same answer."""

    document: Document
    tokens: Tokens
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
        generator: writes the greedy answers.
        stock: `generate_until` of the stock model, for all other requests.
        requests: with arguments (context, gen_kwargs).
        disable_tqdm: no progress bar.
        store: keeps greedy answers, and gives back those that it has.

    Raises:
        ValueError: logits that are not finite, prompts without tokens or without room for an
            answer, naming the document.
    """
    results: list[Any] = [None] * len(requests)
    ways = [way_of(lm, request.args[1]) for request in requests]
    if any(ways) and (reason := why_stock(lm.model)):
        logger.info("Answers are left to the stock model, without traces: %s.", reason)
        ways = [None] * len(ways)
    ours = [i for i, way in enumerate(ways) if way is not None]
    quiet = disable_tqdm or lm.rank != 0
    with tqdm(total=len(ours), unit="doc", desc="Generating", disable=quiet or not ours) as bar:
        for way in dict.fromkeys(way for way in ways if way is not None):
            asks = asks_of(lm, way, [(i, requests[i]) for i in ours if ways[i] == way])
            found = (
                answers(lm, generator, way, asks)
                if store is None
                else recorded(lm, generator, way, asks, requests, store)
            )
            for ask, text in found:
                for place in ask.places:
                    results[place] = text
                lm.cache_hook.add_partial("generate_until", requests[ask.places[0]].args, text)
                bar.update(len(ask.places))
    theirs = [i for i, way in enumerate(ways) if way is None]
    if theirs:
        given = stock([requests[i] for i in theirs], disable_tqdm)
        for place, plain in zip(theirs, given, strict=True):
            results[place] = plain
    return results


def way_of(lm: HFLM, gen_kwargs: Mapping[str, Any]) -> Way | None:
    """How our loop answers a request; None if it does not."""
    wanted: dict[str, Any] = dict(normalize_gen_kwargs(dict(gen_kwargs), lm.max_gen_toks))
    if wanted.keys() - _OURS or wanted["do_sample"] or wanted["max_gen_toks"] < 1:
        return None
    eos = lm.tok_decode(lm.eot_token_id, skip_special_tokens=False)
    until = handle_stop_sequences(wanted["until"], eos=eos)
    return Way(tuple(s for s in until if s), wanted["max_gen_toks"])


def why_stock(model: Any) -> str | None:
    """What in a model's generation settings our loop does not do, or None."""
    config = getattr(model, "generation_config", None)
    for name, neutral in _NEUTRAL.items():
        if (value := getattr(config, name, None)) not in neutral:
            return f"its generation_config sets {name}={value!r}"
    return None


def asks_of(lm: HFLM, way: Way, requests: Sequence[tuple[int, Instance]]) -> list[Ask]:
    """The distinct prompts of some requests, cut from the left to what leaves room to answer."""
    room = lm.max_length - way.max_tokens
    found: dict[str, Ask] = {}
    n_cut = 0
    for place, request in requests:
        context = request.args[0]
        if context not in found:
            document = Document(request.task_name, request.doc_id, context, request.doc)
            tokens = _encode(lm, document, way, room)
            n_cut += len(tokens) > room
            found[context] = Ask(document, tokens[-room:])
        found[context].places.append(place)
    if n_cut:
        logger.warning(
            "%d of %d prompts leave no room for %d new tokens in the model's context of %d tokens "
            "and were cut from the left.",
            n_cut,
            len(found),
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
) -> Iterator[tuple[Ask, GeneratedText]]:
    """Every prompt's answer, as soon as it is done."""
    found = generator.generate(
        [ask.tokens for ask in asks],
        way.max_tokens,
        stop_of(lm, way),
        lm.max_batch_size if lm.batch_size == "auto" else int(lm.batch_size),
    )
    try:
        for index, tokens, trace in found:
            assert trace is not None
            yield asks[index], text_of(lm, way, tokens, trace)
    except NaNLogits as error:
        raise ValueError(
            f"The logits of {asks[error.index].document} are NaN or infinite: the model's weights "
            f"are broken or {lm.model.dtype} overflows; try dtype=float32."
        ) from error


def recorded(
    lm: HFLM,
    generator: Generator,
    way: Way,
    asks: Sequence[Ask],
    requests: Sequence[Instance],
    store: Store,
) -> Iterator[tuple[Ask, GeneratedText]]:
    """As `answers`: first those that are in the store, then the others, which it keeps."""
    ends = sorted(stop_of(lm, way).tokens)
    how = json.dumps([way.until, way.max_tokens, lm.think_end_token, ends])
    waiting: dict[bytes, list[Ask]] = {}  # contexts may be the same once they are cut
    for ask in asks:
        waiting.setdefault(answer_key(ask.tokens, how), []).append(ask)
    store.save_documents(
        generated_document(requests[place], key)
        for key, own in waiting.items()
        for ask in own
        for place in ask.places
    )
    asked = len(waiting)
    for key, answer in store.recall_answers(list(waiting)):
        for ask in waiting.pop(key):
            yield ask, GeneratedText(*answer)
    if len(waiting) < asked:
        logger.info("%d of %d answers were found in %s.", asked - len(waiting), asked, store.folder)
    of_first = {id(own[0]): (key, own) for key, own in waiting.items()}
    try:
        for first, text in answers(lm, generator, way, [own[0] for own in waiting.values()]):
            key, own = of_first[id(first)]
            store.add_answer(key, Answer(str(text), text.trace))
            for ask in own:
                yield ask, text
            store.flush_if_due()
    finally:
        store.close()


def stop_of(lm: HFLM, way: Way) -> Stop:
    """What ends an answer: the model's own end tokens, and the texts that were asked for."""
    config = getattr(lm.model, "generation_config", None)
    eos = getattr(config, "eos_token_id", None)
    ends = [] if eos is None else [eos] if isinstance(eos, int) else list(eos)
    sizes = [len(lm.tokenizer.encode(s, add_special_tokens=False)) for s in way.until]
    look_back = max(sizes, default=0) + _MORE_TOKENS
    return Stop(frozenset(ends), way.until, look_back, lm.tokenizer.batch_decode)


def text_of(lm: HFLM, way: Way, tokens: Sequence[int], trace: Trace) -> GeneratedText:
    """What the harness gets for some tokens: without thoughts, up to the first stop string."""
    think = lm.think_end_token
    if isinstance(think, int) and think in tokens:
        first = len(tokens) - tokens[::-1].index(think)
        tokens, trace = tokens[first:], trace.after(first)
        trace = replace(trace, ends=settled(tokens, lm.tok_decode))
    whole = lm.tok_decode(tokens)
    shown = whole.lstrip() if isinstance(think, int) else whole
    thought = think if isinstance(think, str) else None
    if thought:
        shown = shown.split(thought)[-1].lstrip()
    text = postprocess_generated_text(shown, list(way.until), None)
    start = len(whole) - len(shown)
    return GeneratedText(text, trace.cut(start, start + len(text)))

"""A static look at artifacts before torch unpickles them: nothing outside an allow-list may be imported or called.

Defence in depth, not a boundary: an artifact *is* code (generated source, machine code), so whoever may sign may run
what they like. What this stops is the everyday attack, a pickle that calls ``os.system`` while it is loaded, from a
store that somebody could write to.

The list was made from artifacts of torch 2.9 to 2.15 on CPU, 2.11 with Triton 3.6 on CUDA, and torch's sources. It
names modules and the classes in them; functions only one by one. Three rules look at arguments: ``getattr`` only makes
the few bound methods that Triton's objects hold, a tensor's storage is followed into the pickles nested in it, and
symbolic expressions are built from numbers and expressions only, because sympy evaluates text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from functools import lru_cache

from cachekit.bundle.limits import DEFAULT, Limits
from cachekit.bundle.pickles import Global, Kind, Rules, Span, Value, follow
from cachekit.errors import CorruptError, TrustError

_CLASS = r"_?[A-Z]\w*"
_DTYPE = r"bfloat16|float\d\w*|double|half|u?int\d+|short|long|bool|c(?:half|float|double)|complex\d+|q?u?int\d+x?\d*"

# module pattern: pattern of the names in it. Both must match as a whole.
_ALLOWED: Mapping[str, str] = {
    r"builtins": r"list|dict|set|frozenset|tuple|int|float|complex|bool|slice|range",
    r"collections": r"OrderedDict|defaultdict|Counter|deque",
    r"inspect": r"Signature|Parameter|_ParameterKind|_empty",
    r"sympy\.core\.(?:add|mul|power|symbol|numbers|relational|mod)": _CLASS,
    r"sympy\.(?:logic\.boolalg|functions\.elementary\.(?:integers|miscellaneous|piecewise))": _CLASS,
    r"torch": rf"{_DTYPE}|Size|Tensor|Sym(?:Int|Float|Bool)|device|dtype|memory_format|layout",
    # memory formats and layouts are found under whichever module holds `torch` first.
    r"torch(?:\.\w+)*": r"torch\.(?:contiguous_format|preserve_format|channels_last(?:_3d)?|strided|sparse_\w+|jagged)",
    r"torch\._C\._functionalization": r"\w*ViewMeta|InverseReturnMode",
    r"torch\._dynamo\.source": _CLASS,
    r"torch\._functorch\._aot_autograd\.(?:aot_autograd_result|autograd_cache)": (
        r"(?:Bundled)?AOTAutograd(?:CacheEntry|Result)|\w*Compiled\w+|\w+Loadable|SerializedGraphModule"
    ),
    r"torch\._functorch\._aot_autograd\.(?:descriptors|schemas)": _CLASS,
    r"torch\._functorch\._aot_autograd\.functional_utils": r"MetadataKey|ViewMetaSequence",
    r"torch\._functorch\._aot_autograd\.runtime_wrappers": r"\w+Wrapper",
    r"torch\._guards": r"CompileId|(?:Chained|Guard)?Source",
    r"torch\._inductor\.(?:cudagraph_utils|metrics)": _CLASS,
    r"torch\._inductor\.decomposition": r"select_decomp_table",
    r"torch\._inductor\.output_code": r"CompiledFxGraph\w*|RegionalOutputCode",
    r"torch\._inductor\.remote_cache": r"RemoteCache\w*Serde",
    r"torch\._inductor\.runtime\.autotune_cache": r"AutotuneCache|_?LocalAutotuneCache(?:Backend)?",
    r"torch\._inductor\.runtime\.(?:coordinate_descent_tuner|hints|triton_heuristics)": _CLASS,
    r"torch\._inductor\.runtime\.static_(?:triton|cuda)_launcher": _CLASS,
    r"torch\._inductor\.triton_bundler": r"TritonBundle(?:Entry)?|TritonKernelArtifacts?|StaticallyLaunchedAutotuner",
    r"torch\._inductor\.utils": r"Boxed\w+|GraphPartitionMap",
    r"torch\._subclasses\.(?:functional|fake)_tensor": r"FunctionalTensor|FakeTensor",
    r"torch\._utils": r"_rebuild_(?:tensor|tensor_v2|tensor_v3|parameter|meta_tensor_no_storage)",
    r"torch\.fx\.experimental\.symbolic_shapes": r"SymIntEqByExpr",
    # Runs generated source, as loading the artifact around it does; training graphs carry their backward so.
    r"torch\.fx\.graph_module": r"reduce_graph_module",
    r"torch\.fx\.immutable_collections": r"immutable_list|immutable_dict",
    r"torch\.nn\.parameter": r"Parameter|Buffer",
    r"torch\.serialization": r"_get_layout",
    r"torch\.utils\._ordered_set": r"OrderedSet",
    r"torch\.utils\._pytree": r"TreeSpec|LeafSpec|MappingKey|SequenceKey|GetAttrKey",
    r"torch\.utils\._sympy\.(?:functions|numbers|symbol|value_ranges)": _CLASS,
    r"triton\.backends\.(?:compiler|nvidia\.compiler|amd\.compiler)": _CLASS,
    r"triton\.compiler\.compiler": r"AttrsDescriptor|ASTSource|IRSource|CompiledKernel|LazyDict",
    r"triton\.language\.core": r"constexpr|dtype|\w+_type",
    r"triton\.runtime\.(?:autotuner|jit)": _CLASS,
    # GGUF weights are tensor subclasses, and graphs remember the class of their inputs.
    r"diffusers\.quantizers\.gguf\.utils": r"GGUFParameter",
    r"gguf\.constants": r"GGMLQuantizationType",
}
_RULES = tuple((re.compile(module), re.compile(name)) for module, name in _ALLOWED.items())

_GETATTR = ("builtins", "getattr")
_METHODS = (b"create_binder", b"save")  # JITFunction's and AutotuneCache's
_LOAD = ("torch.storage", "_load_from_bytes")
_SYMBOLIC = re.compile(r"sympy\.|torch\.utils\._sympy\.|torch\.fx\.experimental\.")
_NAMED_SYMBOLS = ("Symbol", "Dummy", "Integer", "Float", "Rational")

# torch.save's old format begins with this number, pickled; torch.load would try others where it is missing.
_STORAGE_MAGIC = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."
_STORAGE_PICKLES = 5


def scan(data: bytes, limits: Limits = DEFAULT) -> frozenset[str]:
    """Return everything that the pickle imports, nested ones included, as ``module.name``; nothing is refused.

    Raises:
        CorruptError: it is not a pickle that torch would write.
        LimitError: it does more than `limits` allow.
    """
    rules = _Lenient(data, limits)
    _follow_all(data, rules)
    return frozenset(map(str, rules.seen))


def check(kind: str, data: bytes, *, also: Collection[str] = (), limits: Limits = DEFAULT) -> None:
    """Refuse an artifact that would import or call anything that artifacts of its kind do not.

    `also` allows more globals, as ``module.name``, for engines with tensor subclasses of their own.

    Raises:
        TrustError: it would; the message names what.
        CorruptError: it is not an artifact of this kind at all.
        LimitError: it does more than `limits` allow.
    """
    if kind in ("inductor", "aot_autograd"):
        _follow_all(data, _Strict(data, frozenset(also), limits))
    elif kind == "autotune":
        _check_config(data)
    elif kind == "kernel":
        _check_library(data)
    else:
        raise TrustError(f"there is no scan for artifacts of kind {kind!r}")


def _follow_all(data: bytes, rules: _Strict) -> None:
    if follow(data, rules) != len(data):
        raise CorruptError("something follows the pickle")


@lru_cache(maxsize=4096)
def _is_allowed(module: str, name: str) -> bool:
    return any(first.fullmatch(module) and second.fullmatch(name) for first, second in _RULES)


class _Strict:
    """The rules of an artifact's own pickle."""

    persistent = False

    def __init__(self, data: bytes, also: frozenset[str], limits: Limits) -> None:
        self._data = data
        self._also = also
        self.limits = limits
        self.opcodes = iter(range(limits.max_opcodes))

    def found(self, module: str, name: str) -> Global:
        if (module, name) in (_GETATTR, _LOAD):
            return Global(module, name, guarded=True)
        if not _is_allowed(module, name) and f"{module}.{name}" not in self._also:
            raise TrustError(
                f"the artifact imports {module[:200]}.{name[:200]}, which compiled artifacts do not"
            )
        return Global(module, name)

    def called(self, target: Global, arguments: Value) -> Value:
        if target.guarded:
            self._guarded(target, arguments)
        elif _SYMBOLIC.match(target.module):
            if target.name not in _NAMED_SYMBOLS and not _is_symbolic(arguments):
                raise TrustError(f"the artifact makes a {target} of something that is not an expression")
            return Kind.EXPRESSION
        return None

    def _guarded(self, target: Global, arguments: Value) -> None:
        match (target.module, target.name), arguments:
            case ("builtins", "getattr"), (_, bytes(name)) if name in _METHODS:
                return
            case ("torch.storage", "_load_from_bytes"), (Span() as span,):
                self._storage(span)
                return
        raise TrustError(f"the artifact uses {target} in a way that compiled artifacts do not")

    def _storage(self, span: Span) -> None:
        """Follow the pickles that ``torch.save`` wrote into a tensor's storage."""
        at = span.start
        if not self._data.startswith(_STORAGE_MAGIC, at):
            raise TrustError("the artifact loads a tensor that torch did not save")
        for _ in range(_STORAGE_PICKLES):
            at = follow(self._data, _Storage(self), at)
            if at > span.end:
                raise CorruptError("a tensor's storage reaches past its end")


class _Storage:
    """The rules inside a saved storage: its type and nothing else."""

    persistent = True

    def __init__(self, outer: Rules) -> None:
        self.limits = outer.limits
        self.opcodes = outer.opcodes

    def found(self, module: str, name: str) -> Global:
        if module in ("torch", "torch.storage") and re.fullmatch(r"[A-Z]\w*Storage", name):
            return Global(module, name)
        raise TrustError(f"a tensor in the artifact imports {module[:200]}.{name[:200]}")

    def called(self, target: Global, arguments: Value) -> Value:
        raise TrustError(f"a tensor in the artifact calls {target}")


class _Lenient(_Strict):
    """Writes down every global and allows it."""

    def __init__(self, data: bytes, limits: Limits) -> None:
        super().__init__(data, frozenset(), limits)
        self.seen: set[Global] = set()

    def found(self, module: str, name: str) -> Global:
        self.seen.add(Global(module, name))
        return Global(module, name, guarded=(module, name) == _LOAD)

    def called(self, target: Global, arguments: Value) -> Value:
        return super().called(target, arguments) if target.guarded else None


def _is_symbolic(arguments: Value) -> bool:
    return isinstance(arguments, tuple) and all(
        value in (Kind.NUMBER, Kind.EXPRESSION)
        or (isinstance(value, Global) and bool(_SYMBOLIC.match(value.module)))
        for value in arguments
    )


def _check_config(data: bytes) -> None:
    """Refuse an autotune entry that is not a flat JSON object; torch 2.9 and 2.11 fail on any other in mid-compile."""
    try:
        config = json.loads(data)
    except (ValueError, RecursionError) as exc:
        raise CorruptError(f"autotune entry is not JSON: {exc}") from exc
    if not isinstance(config, dict):
        raise CorruptError("autotune entry is not a JSON object")


def _check_library(data: bytes) -> None:
    """Refuse a kernel that is neither a shared library nor the one-byte answer to a compiler probe."""
    if not data.startswith(b"\x7fELF") and len(data) > 1:
        raise CorruptError("kernel is not an ELF library")

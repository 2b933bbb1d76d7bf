"""Productions of functions of tensors: networks in miniature, written in the names that torch.nn.functional shares."""

from __future__ import annotations

from math import prod

from tests.fuzz.case import LAYOUTS, Case, Input
from tests.fuzz.choices import Choices
from tests.fuzz.writer import FLOATS, LANES, SMALL

_HEIGHTS = (4, 2, 3, 5, 8, 1, 17)


class Graph:
    """A function f(F, x0, x1, ...) under construction: lines of Python over values of known shapes."""

    def __init__(self, choose: Choices):
        self.choose, self.pick, self.chance = choose, choose.pick, choose.chance
        self.dtype = self.pick(("float32",) * 4 + tuple(str(d.numpy) for d in FLOATS))
        self.inputs: dict[str, Input] = {}
        self.lines: list[str] = []
        self.outputs: list[str] = []
        self.smooth = True

    def input(self, *shape: int, dtype: str | None = None, high: int | None = None) -> str:
        name = f"x{len(self.inputs)}"
        layout = self.pick(("plain",) * 6 + LAYOUTS)
        self.inputs[name] = Input(shape, dtype or self.dtype, 0 if high else None, high, layout)
        return name

    def let(self, text: str) -> str:
        name = f"y{len(self.lines)}"
        self.lines.append(f"{name} = {text}")
        return name

    def extent(self, most: int = 100) -> int:
        if self.choose(2):
            n = self.pick(LANES) * self.pick((1, 1, 2)) + self.pick((1, 1, -1, 0))
        else:
            n = self.pick(SMALL)
        return max(1, min(n, most))

    def activation(self, x: str) -> str:
        for _ in range(self.choose(3)):
            x = self.pick(
                ("F.relu({})", "F.tanh({})", "F.sigmoid({})", "F.gelu({})", "F.silu({})", "F.leaky_relu({}, 0.1)",
                 "{} * 0.5", "{} + 1", "{} * {}", "F.abs({})", "F.clamp({}, -1, 1)", "F.exp(F.tanh({}))")
            ).replace("{}", x)  # fmt: skip
        return x

    def case(self) -> Case:
        self.pick((self.image, self.image, self.tokens, self.matrices, self.shapes))()
        text = f"def f(F, {', '.join(self.inputs)}):\n"
        text += "\n".join(f"    {x}" for x in self.lines)
        text += f"\n    return {', '.join(self.outputs)}"
        return Case(text, {}, self.inputs, {}, False, self.choose(10_000))

    # ------------------------------------------------------------------------------------------------------ networks

    def image(self) -> None:
        """Convolution, normalisation, activation, pooling, in any number; then a linear layer and a loss, or not."""
        b, c, h, w = self.pick((2, 1, 3)), self.extent(20), self.pick(_HEIGHTS), self.extent(70)
        w *= self.pick((1, 2))  # pooled, it is an extent again
        x = self.input(b, c, h, w)
        for _ in range(self.pick((1, 2, 3))):
            form = self.pick(("conv", "norm", "pool", "activation", "residual", "arrange"))
            if form == "conv" and prod((b, c, h, w)) * 9 * c < 3_000_000:
                r, s = self.pick((3, 1, 2, 5)), self.pick((3, 1, 2))
                stride, pad = self.pick((1, 1, 2, 3)), self.choose(3)
                r, s = min(r, h + 2 * pad), min(s, w + 2 * pad)
                dilation = 1 if (r - 1) * 2 >= h or (s - 1) * 2 >= w else self.pick((1, 1, 1, 2))
                groups = self.pick((1, 1, 1, c))
                o = self.extent(20) if groups == 1 else c * self.pick((1, 1, 2))
                bias = f", {self.input(o)}" if self.choose(2) else ""
                k = self.input(o, c // groups, r, s)
                x = self.let(f"F.conv2d({x}, {k}{bias or ', None'}, stride={stride}, padding={pad}, "
                             f"dilation={dilation}, groups={groups})")  # fmt: skip
                h = (h + 2 * pad - dilation * (r - 1) - 1) // stride + 1
                w = (w + 2 * pad - dilation * (s - 1) - 1) // stride + 1
                c = o
            elif form == "norm":
                if self.choose(2):
                    mean = self.let(f"F.mean({x}, (0, 2, 3), True)")
                    var = self.let(f"F.mean(({x} - {mean})**2, (0, 2, 3), True)")
                    x = self.let(f"({x} - {mean}) * F.rsqrt({var} + 0.1)")
                g, d = self.input(c), self.input(c)
                x = self.let(f"{x} * F.reshape({g}, (1, {c}, 1, 1)) + F.reshape({d}, (1, {c}, 1, 1))")
            elif form == "pool" and min(h, w) >= 2:
                size = self.pick((2, 3)) if min(h, w) >= 3 else 2
                stride = self.pick((size, 1, 2))
                kind = self.pick(("max", "max", "avg"))
                x = self.let(f"F.{kind}_pool2d({self.activation(x)}, {size}, {stride})")
                h, w = (h - size) // stride + 1, (w - size) // stride + 1
            elif form == "residual":
                x = self.let(f"{x} + {self.activation(x)}")
            elif form == "arrange":
                x, c, h, w = self.arranged(x, b, c, h, w)
            else:
                x = self.let(self.activation(x))
            if self.chance(6):
                self.outputs.append(x)
        if self.chance(3) and c * h * w < 6_000:
            x = self.let(f"F.flatten({self.activation(x)}, 1)")
            self.head(x, b, c * h * w)
        else:
            self.outputs.append(self.let(self.activation(x)))

    def arranged(self, x: str, b: int, c: int, h: int, w: int) -> tuple[str, int, int, int]:
        """Shuffled channels, depth to space and back, concatenation and slices; what they are of is computed before."""
        x = self.let(self.activation(x))
        r = next((r for r in self.choose.shuffled((2, 3)) if c % r == 0), 1)
        form = self.pick(("shuffle", "depth to space", "space to depth", "cat", "slice"))
        if form == "shuffle" and r > 1:
            x = self.let(f"F.permute(F.reshape({x}, ({b}, {r}, {c // r}, {h}, {w})), (0, 2, 1, 3, 4))")
            return self.let(f"F.reshape({x}, ({b}, {c}, {h}, {w}))"), c, h, w
        if form == "depth to space" and c % 4 == 0 and h * w < 600:
            return self.let(f"F.pixel_shuffle({x}, 2)"), c // 4, 2 * h, 2 * w
        if form == "space to depth" and h % 2 == w % 2 == 0 and c <= 10:
            return self.let(f"F.pixel_unshuffle({x}, 2)"), 4 * c, h // 2, w // 2
        if form == "slice" and c > 2:
            low = self.pick((0, 1))
            return self.let(f"{x}[:, {low}:{c - 1}]"), c - 1 - low, h, w
        o = self.pick((1, 3, 8))
        other = self.let(f"F.relu(F.conv2d({x}, {self.input(o, c, 1, 1)}, None))")
        return self.let(f"F.cat([{', '.join(self.choose.shuffled([x, other]))}], 1)"), c + o, h, w

    def head(self, x: str, b: int, n: int) -> None:
        k = self.extent(40)
        w, c = self.input(k, n), self.input(k)
        x = self.let(f"F.linear({x}, {w}, {c})")
        form = self.pick(("logits", "loss", "softmax", "mse"))
        if form == "loss":
            x = self.let(f"F.cross_entropy({x}, {self.input(b, dtype='int64', high=k)})")
        elif form == "softmax":
            x = self.let(f"F.{self.pick(('softmax', 'log_softmax'))}({x}, {self.pick((1, 0))})")
        elif form == "mse":
            x = self.let(f"F.mse_loss({self.activation(x)}, {self.input(b, k)})")
        self.outputs.append(x)

    def tokens(self) -> None:
        """Embedding, attention, layer norm, feed forward."""
        b, t, d = self.pick((1, 2, 3)), self.extent(40), self.extent(70)
        if self.choose(2):
            n = self.pick((5, 17, 100))
            x = self.let(f"F.embedding({self.input(b, t, dtype='int64', high=n)}, {self.input(n, d)})")
        else:
            x = self.input(b, t, d)
        for _ in range(self.pick((1, 2))):
            form = self.pick(("attention", "norm", "mlp", "mask"))
            if form == "attention":
                q, k = (self.let(f"F.linear({x}, {self.input(d, d)})") for _ in range(2))
                s = self.let(f"F.matmul({q}, F.transpose({k}, 1, 2)) * {d**-0.5:.3f}")
                if self.chance(2):
                    s = self.let(f"F.where(F.reshape(F.arange({t}), ({t}, 1)) >= F.arange({t}), {s}, -1e9)")
                x = self.let(f"F.matmul(F.softmax({s}, -1), {x})")
            elif form == "norm":
                mean = self.let(f"F.mean({x}, -1, True)")
                var = self.let(f"F.mean(({x} - {mean})**2, -1, True)")
                x = self.let(f"({x} - {mean}) * F.rsqrt({var} + 0.1) * {self.input(d)} + {self.input(d)}")
            elif form == "mlp":
                h = self.extent(40)
                y = self.let(f"F.linear({x}, {self.input(h, d)}, {self.input(h)})")
                x = self.let(f"{x} + F.linear({self.activation(y)}, {self.input(d, h)})")
            else:
                x = self.let(f"F.where({self.input(b, t, 1, dtype='bool')}, {x}, {self.pick(('0.0', '-1.0'))})")
        if self.chance(3):
            x = self.let(f"F.{self.pick(('sum', 'mean', 'amax'))}({x}, {self.pick((1, 2, 0))})")
        self.outputs.append(x)

    def matrices(self) -> None:
        """Products by einsum and matmul, in all transpositions, with reductions behind."""
        letters = "ijklm"
        sizes = {a: self.extent(70 if self.choose(3) else 10) for a in letters}
        terms = []
        for _ in range(self.pick((2, 2, 3))):
            kept = self.choose.shuffled([a for a in letters if self.choose(2)][:3] or ["i"])
            terms.append("".join(kept))
        while prod(sizes[a] for a in set("".join(terms))) > 300_000:
            a = max(set("".join(terms)), key=sizes.__getitem__)
            sizes[a] = sizes[a] // 2 + 1
        known = sorted(set("".join(terms)))
        out = "".join(self.choose.shuffled([a for a in known if self.choose(2)]))
        names = [self.input(*(sizes[a] for a in t)) for t in terms]
        given = [self.activation(n) if self.chance(4) else n for n in names]
        y = self.let(f"F.einsum('{','.join(terms)}->{out}', {', '.join(given)})")
        if out and self.chance(2):
            y = self.let(f"{self.activation(y)} * {self.input(sizes[out[-1]])}")
        if out and self.chance(3):
            self.outputs.append(y)
            name = self.pick(("sum", "mean", "amax", "amin"))
            y = self.let(f"F.{name}({self.activation(y)}, {self.choose(len(out))})")
        self.outputs.append(y)

    def shapes(self) -> None:
        """Slices, concatenation, stacking, padding, reshapes, permutations, reductions by dimension."""
        shape = [self.extent(40) for _ in range(self.pick((2, 3)))]
        x = self.input(*shape)
        for _ in range(self.pick((2, 3, 4))):
            form = self.pick(("cat", "slice", "permute", "flatten", "pad", "stack", "reduce", "act", "softmax", "cut",
                              "sort", "top"))  # fmt: skip
            at = self.choose(len(shape)) if shape else 0
            if form == "cat" and shape:
                other = list(shape)
                other[at] = self.extent(20)
                parts = self.choose.shuffled([x, self.input(*other)])
                x = self.let(f"F.cat([{', '.join(parts)}], {at})")
                shape[at] += other[at]
            elif form == "slice" and shape and shape[at] > 2:
                low, high = self.choose(shape[at] // 2), shape[at] - self.choose(shape[at] // 3 + 1)
                step = self.pick((1, 1, 2))
                x = self.let(f"{x}[{':, ' * at}{low}:{high}:{step}]")
                shape[at] = -(-(high - low) // step)
            elif form == "permute" and len(shape) > 1:
                order = self.choose.shuffled(range(len(shape)))
                x = self.let(f"F.permute({x}, {tuple(order)})")
                shape = [shape[i] for i in order]
            elif form == "flatten" and len(shape) > 1:
                x = self.let(f"F.reshape({x}, ({prod(shape)},))")
                shape = [prod(shape)]
            elif form == "cut" and shape and shape[at] % 2 == 0:
                new = [*shape[:at], 2, shape[at] // 2, *shape[at + 1 :]]
                x = self.let(f"F.reshape({x}, {tuple(new)})")
                shape = new
            elif form == "pad" and shape:
                low, high = self.choose(3), self.choose(3)
                x = self.let(f"F.pad({x}, ({low}, {high}))")
                shape[-1] += low + high
            elif form == "stack" and len(shape) < 4:
                x = self.let(f"F.stack([{x}, {self.activation(x)}], {at})")
                shape.insert(at, 2)
            elif form == "reduce" and shape:
                x = self.let(f"F.{self.pick(('sum', 'mean', 'amax', 'amin', 'prod'))}({self.activation(x)}, {at})")
                del shape[at]
                if self.chance(2):
                    self.outputs.append(x)
            elif form == "softmax" and shape:
                x = self.let(f"F.{self.pick(('softmax', 'log_softmax'))}({x}, {at})")
            elif form == "sort" and shape:
                x = self.let(f"F.sort({x}, {at}, {self.pick((False, True))})[0]")
            elif form == "top" and shape and shape[at] > 2:
                shape[at] = 1 + self.choose(shape[at] - 1)
                x = self.let(f"F.topk({x}, {shape[at]}, {at}, {self.pick((False, True))})[0]")
            else:
                x = self.let(self.activation(x))
        self.outputs.append(x)


def graph(choose: Choices) -> Case:
    return Graph(choose).case()

"""Convolutions of images: masked, gated, generated per example, by groups, by positions, and resampling."""

from __future__ import annotations

from tests.papers.operator import operator

operator(
    "partial convolution", "Liu et al. 2018, Image inpainting for irregular holes, eqs. 1 and 2",
    """n[b,i,j] = sum[r,q](f64(m[b,i+r,j+q]))
       s[b,k,i,j] = sum[c,r,q](W[k,c,r,q]*where(m[b,i+r,j+q], x[b,c,i+r,j+q], 0))
       y[b,k,i,j] = where(n[b,i,j] > 0.5, s[b,k,i,j]*9.0/n[b,i,j] + w[k], 0)""",
    lambda T, m, W, x, w: (lambda n: T.where(
        n > 0, T.nn.functional.conv2d(x * m[:, None], W) * 9 / n.clamp(min=1) + w[:, None, None], 0
    ))(T.nn.functional.conv2d(m[:, None].double(), T.ones(1, 1, 3, 3).double())),
    m="b h+2 w+2 | bool", W="k c 3 3", x="b c h+2 w+2", w="k", extents={"r": 3, "q": 3, "i": "x.shape[2]-2",
    "j": "x.shape[3]-2"},
    sizes={"h": (3, 5, 1), "w": (4, 6, 15)},
)  # fmt: skip

operator(
    "gated convolution", "Yu et al. 2019, Free-form image inpainting with gated convolution, eq. 3",
    """a[b,k,i,j] = sum[c,r,s](F[k,c,r,s]*x[b,c,i+r,j+s])
       g[b,k,i,j] = sum[c,r,s](G[k,c,r,s]*x[b,c,i+r,j+s])
       y[b,k,i,j] = where(a[b,k,i,j] > 0, a[b,k,i,j], exp(a[b,k,i,j]) - 1)*sigmoid(g[b,k,i,j])""",
    lambda T, F, x, G: T.nn.functional.elu(T.nn.functional.conv2d(x, F)) * T.nn.functional.conv2d(x, G).sigmoid(),
    F="k c 3 2", x="b c h w", G="k c 3 2", sizes={"h": (5, 7, 3), "w": (5, 9, 2)},
)  # fmt: skip

operator(
    "convolution with coordinates", "Liu et al. 2018, An intriguing failing of convolutional networks (CoordConv)",
    """y[b,k,i,j] = (sum[c](W[k,c]*x[b,c,i,j]) + W[k,x.shape[1]]*(2.0*i/(x.shape[2] - 1) - 1)
                     + W[k,x.shape[1]+1]*(2.0*j/(x.shape[3] - 1) - 1))""",
    lambda T, W, x: T.nn.functional.conv2d(T.cat([x, T.stack(T.meshgrid(
        *(T.linspace(-1, 1, n, dtype=x.dtype) for n in x.shape[2:]), indexing="ij"
    )).expand(len(x), -1, -1, -1)], 1), W[..., None, None]),
    W="k c+2", x="b c h w", extents={"c": "x.shape[1]"},
)  # fmt: skip

operator(
    "filters from data", "Jia, De Brabandere, Tuytelaars, Van Gool 2016, Dynamic filter networks, local filters",
    """y[b,i,j] = sum[r,s](where(0 <= i + r - 1 < x.shape[1] and 0 <= j + s - 1 < x.shape[2],
                                f[b,3*r+s,i,j]*x[b,i+r-1,j+s-1], 0))""",
    lambda T, f, x: (T.nn.functional.unfold(x[:, None], 3, padding=1).view_as(f) * f).sum(1),
    f="b 9 h w", x="b h w", extents={"r": 3, "s": 3},
)  # fmt: skip

operator(
    "mixture of kernels per example", "Yang, Bender, Le, Ngiam 2019, CondConv, eq. 1",
    """r[b,n] = sigmoid(sum[c](mean[i,j](x[b,c,i,j])*R[c,n]))
       K[b,k,c,u,v] = sum[n](r[b,n]*W[n,k,c,u,v])
       y[b,k,i,j] = sum[c,u,v](K[b,k,c,u,v]*x[b,c,i+u,j+v])""",
    lambda T, x, R, W: T.einsum("bn,bnkij->bkij", (x.mean((2, 3)) @ R).sigmoid(), T.stack(
        [T.nn.functional.conv2d(x, w) for w in W], 1
    )),
    x="b c h w", R="c n", W="n k c 2 3", sizes={"n": (3, 2, 4), "h": (4, 6, 2), "w": (5, 9, 3), "k": (4, 3, 1)},
)  # fmt: skip

operator(
    "attention over kernels", "Chen et al. 2020, Dynamic convolution, eq. 2",
    """a[b,n] = exp(sum[c](mean[i](x[b,c,i])*A[c,n])/3.0)
       y[b,k,i] = sum[n](a[b,n]*(sum[c,u](W[n,k,c,u]*x[b,c,i+u]) + w[n,k]))/sum[n](a[b,n])""",
    lambda T, x, A, W, w: (lambda p: T.cat([
        T.nn.functional.conv1d(x[b : b + 1], (p[b] @ W.flatten(1)).view(W.shape[1:]), p[b] @ w) for b in range(len(x))
    ]))((x.mean(2) @ A / 3).softmax(1)),
    x="b c w", A="c n", W="n k c 3", w="n k", sizes={"n": (3, 2, 4), "w": (6, 15, 3)},
)  # fmt: skip

operator(
    "pixel-adaptive convolution", "Su et al. 2019, Pixel-adaptive convolutional neural networks, eq. 3",
    """K[b,i,j,r,s] = exp(-0.5*sum[d]((f[b,d,i+1,j+1] - f[b,d,i+r,j+s])**2))
       y[b,k,i,j] = sum[c,r,s](K[b,i,j,r,s]*W[k,c,r,s]*x[b,c,i+r,j+s])""",
    lambda T, f, W, x: sum(
        (-0.5 * (f[:, :, 1:-1, 1:-1] - f[:, :, r : f.shape[2] - 2 + r, s : f.shape[3] - 2 + s]).square().sum(1)).exp()
        [:, None] * T.einsum("kc,bcij->bkij", W[:, :, r, s], x[:, :, r : f.shape[2] - 2 + r, s : f.shape[3] - 2 + s])
        for r in range(3) for s in range(3)
    ),
    f="b d h+2 w+2", W="k c 3 3", x="b c h+2 w+2",
    extents={"i": "x.shape[2]-2", "j": "x.shape[3]-2", "r": 3, "s": 3}, sizes={"h": (3, 4, 1), "w": (4, 6, 5), "d": (3,
        2, 4)},
)  # fmt: skip

operator(
    "octave convolution, high to low and low to high", "Chen et al. 2019, Drop an octave, eq. 4",
    """p[b,c,i,j] = 0.25*sum[u,v](h[b,c,2*i+u,2*j+v])
       lo[b,k,i,j] = sum[c](A[k,c]*p[b,c,i,j]) + sum[d](B[k,d]*l[b,d,i,j])
       hi[b,c,i,j] = sum[d](C[c,d]*l[b,d,i//2,j//2]) + sum[e](D[c,e]*h[b,e,i,j])
       return lo, hi""",
    lambda T, h, A, l, B, C, D: (lambda F: (
        F.conv2d(F.avg_pool2d(h, 2), A[..., None, None]) + F.conv2d(l, B[..., None, None]),
        F.interpolate(F.conv2d(l, C[..., None, None]), scale_factor=2) + F.conv2d(h, D[..., None, None]),
    ))(T.nn.functional),
    extents={"u": 2, "v": 2}, h="b c 2*x 2*y", A="k c", l="b d x y", B="k d", C="c d", D="c c",
)  # fmt: skip

operator(
    "shift and pointwise convolution", "Wu et al. 2018, Shift: a zero flop, zero parameter alternative, eq. 3",
    """s[b,c,i,j] = where(0 <= i + c % 3 - 1 < x.shape[2] and 0 <= j + c//3 % 3 - 1 < x.shape[3],
                          x[b,c,i + c % 3 - 1,j + c//3 % 3 - 1], 0)
       y[b,k,i,j] = sum[c](W[k,c]*s[b,c,i,j])""",
    lambda T, x, W: (lambda pad: T.einsum("kc,cbij->bkij", W, T.stack([
        pad[:, c, c % 3 : c % 3 + x.shape[2], c // 3 % 3 : c // 3 % 3 + x.shape[3]] for c in range(x.shape[1])
    ])))(T.nn.functional.pad(x, (1, 1, 1, 1))),
    x="b c h w", W="k c", extents={"i": "x.shape[2]", "j": "x.shape[3]"}, sizes={"c": (4, 11, 1)},
)  # fmt: skip

operator(
    "temporal shift", "Lin, Gan, Han 2019, TSM: temporal shift module",
    """y[b,t,c] = where(c < x.shape[2]//4, where(t + 1 < x.shape[1], x[b,t+1,c], 0),
                        where(c < x.shape[2]//2, where(t > 0, x[b,t-1,c], 0), x[b,t,c]))""",
    lambda T, x: (lambda n: T.cat([
        T.nn.functional.pad(x[:, 1:, :n], (0, 0, 0, 1)), T.nn.functional.pad(x[:, :-1, n : 2 * n + x.shape[2] % 4 // 2],
                                                                            (0, 0, 1, 0)), x[:, :, x.shape[2] // 2 :]
    ], 2))(x.shape[2] // 4),
    x="b t d", sizes={"d": (5, 17, 8)},
)  # fmt: skip

operator(
    "ghost module", "Han et al. 2020, GhostNet, eqs. 2 and 3",
    """p[b,m,i,j] = relu(sum[c](W[m,c]*x[b,c,i,j]))
       y[b,k,i,j] = where(k < W.shape[0], p[b,min(k, W.shape[0]-1),i,j], sum[r,s](where(
           0 <= i + r - 1 < x.shape[2] and 0 <= j + s - 1 < x.shape[3],
           D[max(k - W.shape[0], 0),r,s]*p[b,max(k - W.shape[0], 0),i+r-1,j+s-1], 0)))""",
    lambda T, W, x, D: (lambda p: T.cat([p, T.nn.functional.conv2d(p, D[:, None], padding=1, groups=len(D))], 1))(
        T.nn.functional.conv2d(x, W[..., None, None]).relu()
    ),
    W="k c", x="b c h w", D="k 3 3", extents={"k": "2*W.shape[0]", "r": 3, "s": 3}, sizes={"h": (3, 5, 1)},
)  # fmt: skip

operator(
    "locally connected layer", "LeCun 1989, Generalization and network design strategies; Gregor, LeCun 2010",
    "y[b,k,i,j] = sum[c,r,s](W[i,j,k,c,r,s]*x[b,c,i+r,j+s]) + w[k,i,j]",
    lambda T, W, x, w: T.einsum("ijkcrs,bcijrs->bkij", W, x.unfold(2, 2, 1).unfold(3, 3, 1)) + w,
    W="h w k c 2 3", x="b c h+1 w+2", w="k h w", sizes={"h": (3, 5, 1), "w": (4, 3, 9), "k": (4, 3, 1)},
)  # fmt: skip


def _turned(T, x, W):
    return T.stack([T.nn.functional.conv2d(x, T.rot90(W, r, (2, 3))) for r in range(4)], 2)


operator(
    "lifting to rotations by 90 degrees", "Cohen, Welling 2016, Group equivariant convolutional networks, eq. 10",
    """y[b,k,g,i,j] = sum[c,r,s](x[b,c,i+r,j+s]*where(g == 0, W[k,c,r,s], where(g == 1, W[k,c,s,2-r],
                                                   where(g == 2, W[k,c,2-r,2-s], W[k,c,2-s,r]))))""",
    _turned, x="b c h w", W="k c 3 3", extents={"g": 4}, sizes={"h": (4, 5, 3), "w": (5, 9, 3)},
)  # fmt: skip

operator(
    "convolution on the group p4", "Cohen, Welling 2016, eq. 11",
    """y[b,k,g,i,j] = sum[c,q,r,s](x[b,c,q,i+r,j+s]*where(g == 0, W[k,c,(q + 4 - g) % 4,r,s],
           where(g == 1, W[k,c,(q + 4 - g) % 4,s,2-r], where(g == 2, W[k,c,(q + 4 - g) % 4,2-r,2-s],
                                                             W[k,c,(q + 4 - g) % 4,2-s,r]))))""",
    lambda T, x, W: T.stack([T.nn.functional.conv2d(
        x.flatten(1, 2), T.rot90(W.roll(r, 2), r, (3, 4)).flatten(1, 2)
    ) for r in range(4)], 2),
    x="b c 4 h w", W="k c 4 3 3", extents={"g": 4}, sizes={"h": (4, 5, 3), "w": (4, 5, 3), "k": (2, 3, 1), "c": (2, 1,
    3)},
)  # fmt: skip

operator(
    "convolution on a torus", "Schubert, Neubert, Pöschmann, Protzel 2019, Circular convolutional neural networks",
    """y[b,k,i,j] = sum[c,r,s](W[k,c,r,s]*x[b,c,(i + r + x.shape[2] - 1) % x.shape[2],
                                                     (j + s + x.shape[3] - 1) % x.shape[3]])""",
    lambda T, W, x: T.nn.functional.conv2d(T.nn.functional.pad(x, (1, 1, 1, 1), mode="circular"), W),
    W="k c 3 3", x="b c h w", extents={"i": "x.shape[2]", "j": "x.shape[3]"}, sizes={"h": (3, 5, 4), "w": (4, 6, 15)},
)  # fmt: skip

operator(
    "convolution with reflected borders", "Johnson, Alahi, Fei-Fei 2016, Perceptual losses, supplement",
    """y[b,k,i] = sum[c,r](W[k,c,r]*x[b,c,x.shape[2] - 1 - abs(x.shape[2] - 1 - abs(i + r - 2))])""",
    lambda T, W, x: T.nn.functional.conv1d(T.nn.functional.pad(x, (2, 2), mode="reflect"), W),
    W="k c 5", x="b c w", extents={"i": "x.shape[2]"}, sizes={"w": (6, 15, 3)},
)  # fmt: skip

operator(
    "correlation of two images", "Dosovitskiy et al. 2015, FlowNet, eq. 1",
    """y[b,u,v,i,j] = mean[c](where(0 <= i + u - 1 < g.shape[2] and 0 <= j + v - 1 < g.shape[3],
                                   f[b,c,i,j]*g[b,c,i+u-1,j+v-1], 0))""",
    lambda T, f, g: (T.nn.functional.unfold(g, 3, padding=1).view(*g.shape[:2], 3, 3, *g.shape[2:])
                     * f[:, :, None, None]).mean(1),
    extents={"u": 3, "v": 3}, f="b c h w", g="b c h w",
)  # fmt: skip

operator(
    "cost volume of a stereo pair", "Kendall et al. 2017, GC-Net, section 3.2, with absolute differences",
    "y[b,u,i,j] = sum[c](where(j >= u, abs(f[b,c,i,j] - g[b,c,i,j-u]), 0))",
    lambda T, f, g: T.stack([T.nn.functional.pad(
        (f[..., u:] - g[..., : f.shape[3] - u]).abs().sum(1), (u, 0)
    ) for u in range(min(4, f.shape[3]))], 1),
    extents={"u": 4}, f="b c h w", g="b c h w", sizes={"w": (6, 15, 4), "h": (3, 5, 1)},
)  # fmt: skip

operator(
    "group-wise correlation", "Guo, Yang, Yang, Wang, Li 2019, Group-wise correlation stereo network, eq. 3",
    "y[b,g,u,j] = sum[c](where(j >= u, l[b,2*g+c,j]*r[b,2*g+c,j-u], 0))/2",
    lambda T, l, r: T.stack([
        (l * T.nn.functional.pad(r, (u, 0))[..., : l.shape[2]]).unflatten(1, (-1, 2)).mean(2) for u in range(4)
    ], 2),
    extents={"u": 4, "c": 2, "g": "l.shape[1]//2"}, l="b 2*g w", r="b 2*g w",
)  # fmt: skip

operator(
    "blurred subsampling", "Zhang 2019, Making convolutional networks shift-invariant again, section 3.2",
    """y[b,c,i,j] = sum[r,s](where(0 <= 2*i + r - 1 < x.shape[2] and 0 <= 2*j + s - 1 < x.shape[3],
                      (1 + r % 2)*(1 + s % 2)/16.0*x[b,c,2*i+r-1,2*j+s-1], 0))""",
    lambda T, x: (lambda w: T.nn.functional.conv2d(
        x, (w[:, None] * w)[None, None].repeat(x.shape[1], 1, 1, 1), stride=2, padding=1, groups=x.shape[1]
    ))(x.new_tensor([1.0, 2.0, 1.0]) / 4),
    x="b c h w", extents={"r": 3, "s": 3, "i": "(x.shape[2]+1)//2", "j": "(x.shape[3]+1)//2"},
)  # fmt: skip

operator(
    "convolution of mixed kernel sizes", "Tan, Le 2019, MixConv, section 3.1",
    """y[b,c,i] = where(c < 2, sum[r](where(0 <= i + r - 1 < x.shape[2], A[min(c, 1),r]*x[b,c,i+r-1], 0)),
                        sum[s](where(0 <= i + s - 2 < x.shape[2], B[max(c - 2, 0),s]*x[b,c,i+s-2], 0)))""",
    lambda T, A, B, x: T.cat([
        T.nn.functional.conv1d(x[:, :2], A[:, None], padding=1, groups=2),
        T.nn.functional.conv1d(x[:, 2:], B[:, None], padding=2, groups=len(B)),
    ], 1),
    A="2 3", B="c 5", x="b c+2 w", extents={"i": "x.shape[2]"},
)  # fmt: skip

operator(
    "separable kernels with dilation in one direction", "Mehta et al. 2018, ESPNet; Romera et al. 2018, ERFNet",
    """u[b,c,i,j] = relu(sum[r](where(0 <= i + 2*r - 2 < x.shape[2], A[c,r]*x[b,c,i+2*r-2,j], 0)))
       y[b,c,i,j] = x[b,c,i,j] + sum[s](where(0 <= j + 3*s - 3 < x.shape[3], B[c,s]*u[b,c,i,j+3*s-3], 0))""",
    lambda T, A, x, B: (lambda F, c: x + F.conv2d(
        F.conv2d(x, A[:, None, :, None], dilation=2, padding=(2, 0), groups=c).relu(),
        B[:, None, None], dilation=3, padding=(0, 3), groups=c,
    ))(T.nn.functional, len(A)),
    A="c 3", x="b c h w", B="c 3",
)  # fmt: skip

operator(
    "pyramid of dilations", "Chen et al. 2018, DeepLab, atrous spatial pyramid pooling, dilations 1, 2 and 3",
    """y[b,k,i] = relu(sum[d,c,r](where(0 <= i + (d + 1)*(r - 1) < x.shape[2], W[d,k,c,r]*x[b,c,i+(d+1)*(r-1)], 0)))""",
    lambda T, W, x: sum(T.nn.functional.conv1d(x, W[d], dilation=d + 1, padding=d + 1) for d in range(3)).relu(),
    W="3 k c 3", x="b c w", extents={"i": "x.shape[2]"},
)  # fmt: skip

operator(
    "subpixel convolution", "Shi et al. 2016, Real-time single image super-resolution, eq. 4",
    "y[b,c,i,j] = sum[k](W[4*c + 2*(i % 2) + j % 2,k]*x[b,k,i//2,j//2])",
    lambda T, W, x: T.nn.functional.pixel_shuffle(T.nn.functional.conv2d(x, W[..., None, None]), 2),
    W="4*c k", x="b k h w", extents={"c": "W.shape[0]//4", "i": "2*x.shape[2]", "j": "2*x.shape[3]"},
)  # fmt: skip

operator(
    "reorganisation to depth", "Redmon, Farhadi 2017, YOLO9000, the passthrough layer",
    "y[b,k,i,j] = sum[q,c](W[k,q,c]*x[b,c,2*i + q//2,2*j + q % 2])",
    lambda T, W, x: T.einsum("kqc,bcqij->bkij", W, T.nn.functional.pixel_unshuffle(x, 2).unflatten(1, (-1, 4))),
    W="k 4 c", x="b c 2*h 2*w", extents={"i": "x.shape[2]//2", "j": "x.shape[3]//2"}, sizes={"h": (3, 4, 1), "w": (2,
    5, 9)},
)  # fmt: skip

operator(
    "reassembly by predicted kernels", "Wang et al. 2019, CARAFE, eqs. 1 to 3, kernels of 3, factor 2",
    """e[b,n,i,j] = exp(m[b,n,i,j])
       z[b,i,j] = sum[n](e[b,n,i,j])
       y[b,c,i,j] = sum[r,s](where(0 <= i//2 + r - 1 < x.shape[2] and 0 <= j//2 + s - 1 < x.shape[3],
                                   e[b,3*r+s,i,j]*x[b,c,i//2+r-1,j//2+s-1], 0))/z[b,i,j]""",
    lambda T, m, x: (T.nn.functional.unfold(x, 3, padding=1).view(*x.shape[:2], 9, *x.shape[2:])
                     .repeat_interleave(2, 3).repeat_interleave(2, 4) * m.softmax(1)[:, None]).sum(2),
    m="b 9 2*h 2*w", x="b c h w", extents={"r": 3, "s": 3}, sizes={"h": (3, 4, 1), "w": (2, 5, 9)},
)  # fmt: skip

operator(
    "bilinear upsampling with aligned corners", "Long, Shelhamer, Darrell 2015, Fully convolutional networks, factor 2",
    """w[o,i] = max(1.0 - abs(o*(x.shape[2] - 1)/(2.0*x.shape[2] - 1) - i), 0.0)
       y[b,c,o] = sum[i](w[o,i]*x[b,c,i])""",
    lambda T, x: T.nn.functional.interpolate(x, scale_factor=2, mode="linear", align_corners=True),
    x="b c w", extents={"o": "2*x.shape[2]", "i": "x.shape[2]"},
)  # fmt: skip

operator(
    "sampling at a field of displacements", "Jaderberg et al. 2015, Spatial transformer networks, eq. 5, one dimension",
    """p[b,i] = i + 2*tanh(f[b,i])
       y[b,c,i] = sum[m](x[b,c,m]*max(1 - abs(p[b,i] - m), 0.0))""",
    lambda T, f, x: (lambda p: (lambda low, pad: T.lerp(
        pad.gather(2, (low + 3)[:, None].expand_as(x)), pad.gather(2, (low + 4)[:, None].expand_as(x)), (p - low)[:,
            None]
    ))(p.detach().floor().long(), T.nn.functional.pad(x, (3, 3))))(T.arange(x.shape[2]) + 2 * f.tanh()),
    f="b w", x="b c w",
)  # fmt: skip

"""Networks as programs for PyTorch write them, in the manner of well-known architectures. Each text is run twice: after
`import torch`, and after `import einsmith as torch`. `Net()` is the network, `inputs(rng)` its arguments."""

CAUSAL_LANGUAGE_MODEL = """
import math


class CausalSelfAttention(nn.Module):
    def __init__(self, n_embd, n_head, block_size):
        super().__init__()
        assert n_embd % n_head == 0
        self.c_attn = nn.Linear(n_embd, 3 * n_embd)
        self.c_proj = nn.Linear(n_embd, n_embd)
        self.n_head, self.n_embd = n_head, n_embd
        mask = torch.tril(torch.ones(block_size, block_size))
        self.register_buffer("bias", mask.reshape(1, 1, block_size, block_size))

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
        k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))
        att = F.softmax(att, dim=-1)
        y = att @ v
        y = y.transpose(1, 2).contiguous().view(B, T, C)
        return self.c_proj(y)


class Block(nn.Module):
    def __init__(self, n_embd, n_head, block_size):
        super().__init__()
        self.ln_1 = nn.LayerNorm(n_embd)
        self.attn = CausalSelfAttention(n_embd, n_head, block_size)
        self.ln_2 = nn.LayerNorm(n_embd)
        self.mlp = nn.ModuleDict(dict(c_fc=nn.Linear(n_embd, 4 * n_embd), c_proj=nn.Linear(4 * n_embd, n_embd)))

    def new_gelu(self, x):
        return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp["c_proj"](self.new_gelu(self.mlp["c_fc"](self.ln_2(x))))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.block_size = 8
        self.transformer = nn.ModuleDict(dict(
            wte=nn.Embedding(11, 6), wpe=nn.Embedding(8, 6), h=nn.ModuleList([Block(6, 2, 8) for _ in range(1)]),
            ln_f=nn.LayerNorm(6),
        ))
        self.lm_head = nn.Linear(6, 11, bias=False)

    def forward(self, idx, targets=None):
        device = idx.device
        b, t = idx.size()
        assert t <= self.block_size, f"a sequence of {t} is longer than the block size"
        pos = torch.arange(0, t, dtype=torch.long, device=device)
        x = self.transformer["wte"](idx) + self.transformer["wpe"](pos)
        for block in self.transformer["h"]:
            x = block(x)
        logits = self.lm_head(self.transformer["ln_f"](x))
        loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1), ignore_index=-1)
        return logits, loss


def inputs(rng):
    return rng.integers(0, 11, (2, 5)), rng.integers(-1, 11, (2, 5))
"""

VISION_TRANSFORMER = """
class Attention(nn.Module):
    def __init__(self, dim, num_heads):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, dim // num_heads
        self.scale = self.head_dim**-0.5
        self.qkv = nn.Linear(dim, dim * 3)
        self.q_norm = nn.LayerNorm(self.head_dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        B, N, C = x.shape
        qkv = self.qkv(x).reshape(B, N, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        q = self.q_norm(q) * self.scale
        attn = q @ k.transpose(-2, -1)
        attn = attn.softmax(dim=-1)
        x = (attn @ v).transpose(1, 2).reshape(B, N, C)
        return self.proj(x)


class LayerScale(nn.Module):
    def __init__(self, dim, init_values=1e-1):
        super().__init__()
        self.gamma = nn.Parameter(init_values * torch.ones(dim))

    def forward(self, x):
        return x * self.gamma


class DropPath(nn.Module):
    def __init__(self, drop_prob=0.0):
        super().__init__()
        self.drop_prob = drop_prob

    def forward(self, x):
        if self.drop_prob == 0.0 or not self.training:
            return x
        keep_prob = 1 - self.drop_prob
        shape = (x.shape[0],) + (1,) * (x.ndim - 1)
        random_tensor = keep_prob + torch.rand(shape, dtype=x.dtype, device=x.device)
        return x.div(keep_prob) * random_tensor.floor()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch_embed = nn.Conv2d(3, 6, kernel_size=4, stride=4)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, 6))
        self.pos_embed = nn.Parameter(torch.randn(1, 7, 6) * 0.02)
        self.norm1, self.norm2 = nn.LayerNorm(6, eps=1e-6), nn.LayerNorm(6, eps=1e-6)
        self.attn, self.ls1, self.ls2 = Attention(6, 2), LayerScale(6), LayerScale(6)
        self.drop_path = DropPath(0.3)
        self.mlp = nn.Sequential(nn.Linear(6, 9), nn.GELU(), nn.Dropout(0.0), nn.Linear(9, 6))
        self.head = nn.Linear(6, 5)

    def forward(self, x):
        x = self.patch_embed(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.cls_token.expand(x.shape[0], -1, -1), x), dim=1)
        x = x + self.pos_embed
        x = x + self.drop_path(self.ls1(self.attn(self.norm1(x))))
        x = x + self.drop_path(self.ls2(self.mlp(self.norm2(x))))
        return self.head(torch.stack([x[:, 0], x[:, 1:].mean(dim=1)], dim=0).amax(0)), x[:, 0].norm(dim=-1)


def inputs(rng):
    return (rng.standard_normal((2, 3, 8, 12)),)
"""

SHIFTED_WINDOWS = """
def window_partition(x, window_size):
    B, H, W, C = x.shape
    x = x.view(B, H // window_size, window_size, W // window_size, window_size, C)
    return x.permute(0, 1, 3, 2, 4, 5).contiguous().view(-1, window_size, window_size, C)


def window_reverse(windows, window_size, H, W):
    B = int(windows.shape[0] / (H * W / window_size / window_size))
    x = windows.view(B, H // window_size, W // window_size, window_size, window_size, -1)
    return x.permute(0, 1, 3, 2, 4, 5).contiguous().view(B, H, W, -1)


class WindowAttention(nn.Module):
    def __init__(self, dim, window_size, num_heads):
        super().__init__()
        self.window_size, self.num_heads, self.scale = window_size, num_heads, (dim // num_heads) ** -0.5
        count = (2 * window_size[0] - 1) * (2 * window_size[1] - 1)
        self.relative_position_bias_table = nn.Parameter(0.1 * torch.randn(count, num_heads))
        coords_h, coords_w = torch.arange(window_size[0]), torch.arange(window_size[1])
        coords = torch.stack(torch.meshgrid([coords_h, coords_w], indexing="ij"))
        coords_flatten = torch.flatten(coords, 1)
        relative_coords = torch.permute(coords_flatten[:, :, None] - coords_flatten[:, None, :], (1, 2, 0))
        rows = (relative_coords[:, :, 0] + window_size[0] - 1) * (2 * window_size[1] - 1)
        self.register_buffer("relative_position_index", rows + relative_coords[:, :, 1] + window_size[1] - 1)
        self.qkv = nn.Linear(dim, dim * 3)
        self.proj = nn.Linear(dim, dim)
        self.softmax = nn.Softmax(dim=-1)

    def forward(self, x, mask=None):
        B_, N, C = x.shape
        qkv = self.qkv(x).reshape(B_, N, 3, self.num_heads, C // self.num_heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv[0], qkv[1], qkv[2]
        q = q * self.scale
        attn = (q @ k.transpose(-2, -1))
        n = self.window_size[0] * self.window_size[1]
        relative_position_bias = self.relative_position_bias_table[self.relative_position_index.view(-1)].view(n, n, -1)
        relative_position_bias = relative_position_bias.permute(2, 0, 1).contiguous()
        attn = attn + relative_position_bias.unsqueeze(0)
        if mask is not None:
            nW = mask.shape[0]
            attn = attn.view(B_ // nW, nW, self.num_heads, N, N) + mask.unsqueeze(1).unsqueeze(0)
            attn = attn.view(-1, self.num_heads, N, N)
        attn = self.softmax(attn)
        x = (attn @ v).transpose(1, 2).reshape(B_, N, C)
        return self.proj(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.window_size, self.shift_size = 2, 1
        self.norm = nn.LayerNorm(6)
        self.attn = WindowAttention(6, (2, 2), 3)
        self.reduction = nn.Linear(24, 5, bias=False)
        regions = torch.zeros((4, 6))
        for h in (slice(0, -2), slice(-2, -1), slice(-1, None)):
            for w in (slice(0, -2), slice(-2, -1), slice(-1, None)):
                regions[h, w] = regions.max() + 1
        windows = torch.permute(torch.reshape(regions, (2, 2, 3, 2)), (0, 2, 1, 3)).reshape(-1, 4)
        apart = windows[:, None, :] != windows[:, :, None]
        self.register_buffer("attn_mask", torch.where(apart, -100.0, 0.0))

    def forward(self, x):
        B, H, W, C = x.shape
        shortcut = x
        x = self.norm(x)
        shifted_x = torch.roll(x, shifts=(-self.shift_size, -self.shift_size), dims=(1, 2))
        x_windows = window_partition(shifted_x, self.window_size)
        x_windows = x_windows.view(-1, self.window_size * self.window_size, C)
        attn_windows = self.attn(x_windows, mask=self.attn_mask)
        attn_windows = attn_windows.view(-1, self.window_size, self.window_size, C)
        shifted_x = window_reverse(attn_windows, self.window_size, H, W)
        x = shortcut + torch.roll(shifted_x, shifts=(self.shift_size, self.shift_size), dims=(1, 2))
        x0, x1 = x[:, 0::2, 0::2, :], x[:, 1::2, 0::2, :]
        x2, x3 = x[:, 0::2, 1::2, :], x[:, 1::2, 1::2, :]
        return self.reduction(torch.cat([x0, x1, x2, x3], -1).view(B, -1, 4 * C))


def inputs(rng):
    return (rng.standard_normal((2, 4, 6, 6)),)
"""

SUPER_RESOLUTION = """
def channel_shuffle(x, groups):
    batchsize, num_channels, height, width = x.size()
    x = x.view(batchsize, groups, num_channels // groups, height, width)
    x = torch.transpose(x, 1, 2).contiguous()
    return x.view(batchsize, -1, height, width)


class InvertedResidual(nn.Module):
    def __init__(self, inp):
        super().__init__()
        branch = inp // 2
        self.branch2 = nn.Sequential(
            nn.Conv2d(branch, branch, 1, bias=False), nn.Hardswish(),
            nn.Conv2d(branch, branch, 3, 1, 1, groups=branch), nn.ReLU6(),
        )

    def forward(self, x):
        x1, x2 = x.chunk(2, dim=1)
        return channel_shuffle(torch.cat((x1, self.branch2(x2)), dim=1), 2)


class ResBlock(nn.Module):
    def __init__(self, n_feats, res_scale=0.1):
        super().__init__()
        convs = [nn.Conv2d(n_feats, n_feats, 3, padding=1) for _ in range(2)]
        self.body = nn.Sequential(convs[0], nn.PReLU(), convs[1])
        self.res_scale = res_scale

    def forward(self, x):
        res = self.body(x).mul(self.res_scale)
        res += x
        return res


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.tensor([0.1, 0.2, 0.3]).reshape(1, 3, 1, 1))
        self.head = nn.Conv2d(3, 6, 3, padding=1)
        self.body = nn.Sequential(*(ResBlock(6) for _ in range(1)), InvertedResidual(6))
        self.tail = nn.Conv2d(6, 3 * 2**2, 3, padding=1)

    def forward(self, x):
        x = x.sub(self.mean)
        base = F.interpolate(x, scale_factor=2, mode="bicubic", align_corners=False)
        x = self.head(x)
        x = x + self.body(x)
        x = F.pixel_shuffle(self.tail(x), 2).add(base).add(self.mean)
        return torch.clamp(x, min=0.0, max=1.0), F.pixel_unshuffle(x, 2).var(dim=1, unbiased=False)


def inputs(rng):
    return (rng.uniform(0, 1, (2, 3, 5, 7)),)
"""

DENSENET = """
from collections import OrderedDict


class DenseLayer(nn.Module):
    def __init__(self, num_input_features, growth_rate, bn_size, drop_rate):
        super().__init__()
        self.norm1 = nn.BatchNorm2d(num_input_features)
        self.relu1 = nn.ReLU(inplace=True)
        self.conv1 = nn.Conv2d(num_input_features, bn_size * growth_rate, kernel_size=1, bias=False)
        self.norm2 = nn.BatchNorm2d(bn_size * growth_rate)
        self.relu2 = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(bn_size * growth_rate, growth_rate, kernel_size=3, padding=1, bias=False)
        self.drop_rate = float(drop_rate)

    def forward(self, input):
        prev_features = [input] if not isinstance(input, list) else input
        bottleneck = self.conv1(self.relu1(self.norm1(torch.cat(prev_features, 1))))
        new_features = self.conv2(self.relu2(self.norm2(bottleneck)))
        if self.drop_rate > 0:
            new_features = F.dropout(new_features, p=self.drop_rate, training=self.training)
        return new_features


class DenseBlock(nn.ModuleDict):
    def __init__(self, num_layers, num_input_features):
        super().__init__()
        for i in range(num_layers):
            self.add_module("denselayer%d" % (i + 1), DenseLayer(num_input_features + i * 2, 2, 2, 0.2))

    def forward(self, init_features):
        features = [init_features]
        for name, layer in self.items():
            features.append(layer(features))
        return torch.cat(features, 1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(OrderedDict([
            ("conv0", nn.Conv2d(3, 4, kernel_size=5, stride=2, padding=2, bias=False)), ("norm0", nn.BatchNorm2d(4)),
            ("relu0", nn.ReLU(inplace=True)), ("pool0", nn.MaxPool2d(kernel_size=3, stride=2, padding=1)),
        ]))
        self.features.add_module("denseblock1", DenseBlock(2, 4))
        self.features.add_module("norm5", nn.BatchNorm2d(8))
        self.classifier = nn.Linear(8, 5)
        for m in self.modules():
            if isinstance(m, nn.Linear):
                nn.init.constant_(m.bias, 0)

    def forward(self, x):
        features = self.features(x)
        out = F.relu(features, inplace=True)
        out = F.adaptive_avg_pool2d(out, (1, 1))
        out = torch.flatten(out, 1)
        return self.classifier(out)


def inputs(rng):
    return (rng.standard_normal((2, 3, 11, 9)),)
"""

ROTARY_DECODER = """
def rotate_half(x):
    x1 = x[..., : x.shape[-1] // 2]
    x2 = x[..., x.shape[-1] // 2 :]
    return torch.cat((-x2, x1), dim=-1)


def repeat_kv(hidden_states, n_rep):
    batch, num_key_value_heads, slen, head_dim = hidden_states.shape
    if n_rep == 1:
        return hidden_states
    hidden_states = hidden_states[:, :, None, :, :].expand(batch, num_key_value_heads, n_rep, slen, head_dim)
    return hidden_states.reshape(batch, num_key_value_heads * n_rep, slen, head_dim)


class RMSNorm(nn.Module):
    def __init__(self, hidden_size, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.variance_epsilon = eps

    def forward(self, hidden_states):
        input_dtype = hidden_states.dtype
        hidden_states = hidden_states.to(torch.float64)
        variance = hidden_states.pow(2).mean(-1, keepdim=True)
        hidden_states = hidden_states * torch.rsqrt(variance + self.variance_epsilon)
        return self.weight * hidden_states.to(input_dtype)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.num_heads, self.num_key_value_heads, self.head_dim = 4, 2, 6
        self.embed_tokens = nn.Embedding(13, 10, padding_idx=0)
        self.q_proj = nn.Linear(10, 24, bias=False)
        self.k_proj, self.v_proj = nn.Linear(10, 12, bias=False), nn.Linear(10, 12, bias=False)
        self.o_proj = nn.Linear(24, 10, bias=False)
        self.gate_proj, self.up_proj, self.down_proj = nn.Linear(10, 7), nn.Linear(10, 7), nn.Linear(7, 10)
        self.norm1, self.norm2 = RMSNorm(10), RMSNorm(10)
        self.register_buffer("inv_freq", 1.0 / (100.0 ** (torch.arange(0, 6, 2) / 6)), persistent=True)

    def forward(self, input_ids, attention_mask):
        x = self.embed_tokens(input_ids)
        bsz, q_len, _ = x.size()
        position_ids = attention_mask.long().cumsum(-1) - 1
        position_ids = position_ids.masked_fill(attention_mask == 0, 1)
        freqs = position_ids[:, :, None].type_as(x) * self.inv_freq[None, None, :]
        emb = torch.cat((freqs, freqs), dim=-1)
        cos, sin = emb.cos().unsqueeze(1), emb.sin().unsqueeze(1)
        h = self.norm1(x)
        q = self.q_proj(h).view(bsz, q_len, self.num_heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(h).view(bsz, q_len, self.num_key_value_heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(h).view(bsz, q_len, -1, self.head_dim).transpose(1, 2)
        q, k = (q * cos) + (rotate_half(q) * sin), (k * cos) + (rotate_half(k) * sin)
        k, v = repeat_kv(k, self.num_heads // self.num_key_value_heads), repeat_kv(v, 2)
        min_dtype = torch.finfo(x.dtype).min
        causal_mask = torch.full((q_len, q_len), fill_value=min_dtype, dtype=x.dtype, device=x.device)
        causal_mask = torch.triu(causal_mask, diagonal=1)
        padding = (1.0 - attention_mask[:, None, None, :].to(x.dtype)) * -1e9
        weights = torch.einsum("bhqd,bhkd->bhqk", q, k) / self.head_dim**0.5
        weights = torch.maximum(weights + causal_mask + padding, torch.tensor(min_dtype, dtype=x.dtype))
        weights = F.softmax(weights, dim=-1, dtype=torch.float64).to(q.dtype)
        out = torch.matmul(weights, v).transpose(1, 2).contiguous().reshape(bsz, q_len, -1)
        x = x + self.o_proj(out)
        h = self.norm2(x)
        x = x + self.down_proj(F.silu(self.gate_proj(h)) * self.up_proj(h))
        last = attention_mask.sum(dim=1).long() - 1
        return x @ self.embed_tokens.weight.t(), x.gather(1, last[:, None, None].expand(-1, 1, 10)).squeeze(1)


def inputs(rng):
    mask = np.ones((2, 5), np.int64)
    mask[1, 3:] = 0
    return rng.integers(1, 13, (2, 5)) * mask, mask
"""

POINT_CLOUD = """
class TNet(nn.Module):
    def __init__(self, k):
        super().__init__()
        self.k = k
        self.conv1, self.bn1 = nn.Conv1d(k, 6, 1), nn.BatchNorm1d(6)
        self.conv2 = nn.Conv1d(6, 9, 1)
        self.fc = nn.Linear(9, k * k)

    def forward(self, x):
        batchsize = x.size()[0]
        x = F.relu(self.bn1(self.conv1(x)))
        x = F.elu(self.conv2(x))
        x = torch.max(x, 2, keepdim=True)[0]
        x = x.view(-1, 9)
        x = self.fc(x)
        iden = torch.eye(self.k, dtype=x.dtype).view(1, self.k * self.k).repeat(batchsize, 1)
        return (x + iden).view(-1, self.k, self.k)


def knn(x, k):
    inner = -2 * torch.matmul(x.transpose(2, 1), x)
    xx = torch.sum(x**2, dim=1, keepdim=True)
    pairwise_distance = -xx - inner - xx.transpose(2, 1)
    return pairwise_distance.topk(k=k, dim=-1)[1]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stn = TNet(3)
        self.conv = nn.Conv2d(6, 5, kernel_size=1, bias=False)
        self.mlp = nn.Sequential(nn.Linear(10, 7), nn.Tanh(), nn.Linear(7, 4))

    def forward(self, x):
        trans = self.stn(x)
        x = torch.bmm(x.transpose(2, 1), trans).transpose(2, 1)
        B, D, N = x.size()
        idx = knn(x.detach(), 3)
        idx = (idx + torch.arange(0, B, device=x.device).view(-1, 1, 1) * N).view(-1)
        points = x.transpose(2, 1).contiguous()
        feature = points.view(B * N, -1)[idx, :].view(B, N, 3, D)
        points = points.view(B, N, 1, D).repeat(1, 1, 3, 1)
        feature = torch.cat((feature - points, points), dim=3).permute(0, 3, 1, 2).contiguous()
        feature = F.leaky_relu(self.conv(feature), negative_slope=0.2)
        feature = feature.max(dim=-1, keepdim=False)[0]
        best, avg = F.adaptive_max_pool1d(feature, 1).view(B, -1), F.adaptive_avg_pool1d(feature, 1).view(B, -1)
        gram = torch.bmm(trans, trans.transpose(2, 1)) - torch.eye(3).type_as(trans)[None]
        return self.mlp(torch.cat((best, avg), 1)), torch.norm(gram, dim=(1, 2)).mean()


def inputs(rng):
    return (rng.standard_normal((2, 3, 7)),)
"""

NETWORKS = {
    "causal_language_model": CAUSAL_LANGUAGE_MODEL, "vision_transformer": VISION_TRANSFORMER,
    "shifted_windows": SHIFTED_WINDOWS, "super_resolution": SUPER_RESOLUTION, "densenet": DENSENET,
    "rotary_decoder": ROTARY_DECODER, "point_cloud": POINT_CLOUD,
}  # fmt: skip

#!/usr/bin/env python3
"""Ten more programs to record with traces/record.py, to which nothing in weir was tuned.

usage: traces/more_programs.py NAME [--steps N] [--small]

As traces/programs.py, which has the rest of it. stages and offload need a GPU: they are about streams.
"""

import random

import torch
from torch import nn
from torch.nn import functional as F

from programs import DEVICE, half, main, need_gpu, size, step_of


def adversaries(steps):
    """A generator and its critic in turn, the critic twice as often, with pictures that grow from 32 to 256 pixels."""
    most = size(512, 8)

    def generator(side):
        layers, now, width = [nn.ConvTranspose2d(128, most, 4)], 4, most
        while now < side:
            narrow = max(width // 2, 16) if now >= 16 else width
            layers += [nn.BatchNorm2d(width), nn.ReLU(), nn.Upsample(scale_factor=2), nn.Conv2d(width, narrow, 3, padding=1)]
            now, width = now * 2, narrow
        return nn.Sequential(*layers, nn.Conv2d(width, 3, 1), nn.Tanh()).to(DEVICE)

    def critic(side):
        layers, now, width, wide = [], side, 3, max(most * 4 // side * 4, 16)
        while now > 4:
            layers += [nn.Conv2d(width, wide, 4, 2, 1), nn.LeakyReLU(0.2)]
            now, width, wide = now // 2, wide, min(wide * 2, most)
        return nn.Sequential(*layers, nn.Conv2d(width, 1, 4)).to(DEVICE)

    for side in size((32, 64, 128, 256), (32,)):
        make, judge = generator(side), critic(side)
        makes, judges = (torch.optim.Adam(model.parameters(), lr=1e-4) for model in (make, judge))
        batch = max(8192 // side, 16)
        for _ in range(steps or size(20, 1)):
            for _ in range(2):
                real = torch.rand(batch, 3, side, side, device=DEVICE, requires_grad=True)
                with torch.no_grad():
                    fake = make(torch.randn(batch, 128, 1, 1, device=DEVICE))
                said = judge(real)
                (slope,) = torch.autograd.grad(said.sum(), real, create_graph=True)
                step_of(judges, F.softplus(-said).mean() + F.softplus(judge(fake)).mean() + slope.square().mean())
            step_of(makes, F.softplus(-judge(make(torch.randn(batch, 128, 1, 1, device=DEVICE)))).mean())


def rays(steps):
    """A radiance field: as many samples on rays as are not empty, another number each step, and whole pictures now and then."""
    hidden = (layer for _ in range(6) for layer in (nn.Linear(256, 256), nn.ReLU()))
    field = nn.Sequential(nn.Linear(63, 256), nn.ReLU(), *hidden, nn.Linear(256, 4)).to(DEVICE)
    optimizer = torch.optim.Adam(field.parameters(), lr=5e-4)
    grid = torch.rand(128, 128, 128, device=DEVICE) > 0.7

    def march(count):
        origin = torch.rand(count, 1, 3, device=DEVICE) * 2 - 1
        way = F.normalize(torch.randn(count, 1, 3, device=DEVICE), dim=-1)
        far = torch.linspace(0, 2, 192, device=DEVICE)[None, :, None] + torch.rand(count, 192, 1, device=DEVICE) * 0.01
        points = origin + far * way
        cell = ((points + 1) * 64).long().clamp(0, 127)
        keep = grid[cell[..., 0], cell[..., 1], cell[..., 2]]
        ray, _ = keep.nonzero(as_tuple=True)
        kept = points[keep]
        seen = torch.cat([kept] + [wave(kept * 2**octave) for octave in range(10) for wave in (torch.sin, torch.cos)], -1)
        found = field(seen)
        light = torch.sigmoid(found[:, :3]) * F.softplus(found[:, 3:]) * 0.01
        return torch.zeros(count, 3, device=DEVICE).index_add(0, ray, light)

    for step in range(steps or size(120, 2)):
        with half():
            colours = march(random.randint(*size((3000, 9000), (20, 30))))
        step_of(optimizer, F.mse_loss(colours.float(), torch.rand_like(colours).float()))
        if step % 15 == 14:
            with torch.no_grad(), half():
                torch.cat([march(8192) for _ in range(20)]).clamp(0, 1).cpu()


def towers(steps):
    """Two encoders of pictures and words whose batch is too large for one pass: all without gradients first, then by parts."""
    import timm
    from transformers import BertConfig, BertModel

    see = timm.create_model("vit_base_patch16_224", num_classes=512).to(DEVICE)
    read = BertModel(BertConfig(num_hidden_layers=size(6, 1))).to(DEVICE)
    out = nn.Linear(768, 512).to(DEVICE)
    optimizer = torch.optim.AdamW([*see.parameters(), *read.parameters(), *out.parameters()], lr=1e-5)
    count, part = size(512, 4), size(64, 2)
    for _ in range(steps or size(12, 1)):
        length = random.randint(16, 128)
        pictures = torch.randn(count, 3, 224, 224, device=DEVICE)
        words = torch.randint(0, 30000, (count, length), device=DEVICE)

        def both(start):
            of = slice(start, start + part)
            with half():
                return see(pictures[of]).float(), out(read(words[of]).pooler_output).float()

        with torch.no_grad():
            found = [both(start) for start in range(0, count, part)]
        first = torch.cat([one[0] for one in found]).requires_grad_()
        second = torch.cat([one[1] for one in found]).requires_grad_()
        alike = F.normalize(first, dim=-1) @ F.normalize(second, dim=-1).T * 20
        F.cross_entropy(alike, torch.arange(count, device=DEVICE)).backward()
        for start in range(0, count, part):
            x, y = both(start)
            torch.autograd.backward([x, y], [first.grad[start : start + part], second.grad[start : start + part]])
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


class Volume(nn.Module):
    """A U-Net in three dimensions, which answers at its two finest levels."""

    def __init__(self, widths):
        super().__init__()

        def block(first, then):
            def half_of(width):
                return nn.Conv3d(width, then, 3, padding=1), nn.InstanceNorm3d(then), nn.LeakyReLU(0.01)

            return nn.Sequential(*half_of(first), *half_of(then))

        pairs = list(zip(widths[:-1], widths[1:]))
        self.down = nn.ModuleList(block(above, width) for above, width in zip((1,) + widths[:-1], widths))
        self.up = nn.ModuleList(nn.ConvTranspose3d(below, width, 2, 2) for width, below in pairs)
        self.back = nn.ModuleList(block(2 * width, width) for width in widths[:-1])
        self.heads = nn.ModuleList(nn.Conv3d(width, 4, 1) for width in widths[:2])

    def forward(self, x):
        kept, found = [], []
        for level, block in enumerate(self.down):
            x = block(x if level == 0 else F.max_pool3d(x, 2))
            kept.append(x)
        for level in reversed(range(len(self.up))):
            x = self.back[level](torch.cat([self.up[level](x), kept[level]], 1))
            if level < 2:
                found.append(self.heads[level](x))
        return found


def volumes(steps):
    """Cubes in training, and whole scans of any size by a window that slides, whose answers are summed."""
    side = size(128, 16)
    net = Volume(size((32, 64, 128, 256, 320), (4, 8, 16))).to(DEVICE)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.99, nesterov=True)
    for step in range(steps or size(30, 6)):
        cubes = torch.randn(2, 1, side, side, side, device=DEVICE)
        wanted = torch.randint(0, 4, (2, side, side, side), device=DEVICE)
        with half():
            coarse, fine = net(cubes)
        step_of(optimizer, F.cross_entropy(fine.float(), wanted) + 0.5 * F.cross_entropy(coarse.float(), wanted[:, ::2, ::2, ::2]))
        if step % 6 == 5:
            lengths = [random.randint(side, side * 5 // 2) for _ in range(3)]
            scan = torch.randn(1, 1, *lengths, device=DEVICE)
            total = torch.zeros(1, 4, *lengths, device=DEVICE)
            with torch.no_grad(), half():
                for at in torch.cartesian_prod(*(torch.arange(0, length - side + 1, side // 2) for length in lengths)).tolist():
                    window = (..., *(slice(start, start + side) for start in at))
                    total[window] += net(scan[window])[1].float()
            total.argmax(1).cpu()


def particles(steps):
    """Molecules that move: neighbours found anew every ten steps, forces by a network over pairs and its gradient."""
    count, box = size(60_000, 500), 60.0
    places = torch.rand(count, 3, device=DEVICE) * box
    speeds = torch.randn(count, 3, device=DEVICE) * 0.2
    energy = nn.Sequential(nn.Linear(32, 64), nn.SiLU(), nn.Linear(64, 1)).to(DEVICE)
    centres = torch.linspace(0, 3, 32, device=DEVICE)

    def pairs():
        cells = (places / 3.0).long().clamp(0, 19)
        key = (cells[:, 0] * 20 + cells[:, 1]) * 20 + cells[:, 2]
        order = key.argsort()
        firsts, seconds = [], []
        torch.searchsorted(key[order], torch.arange(8001, device=DEVICE)).tolist()  # where each cell begins
        for start in range(0, count, 4000):
            apart = torch.cdist(places[order[start : start + 4000]], places[order])
            i, j = (apart < 2.2).nonzero(as_tuple=True)
            firsts.append(order[i + start])
            seconds.append(order[j])
        i = torch.cat(firsts)
        j = torch.cat(seconds)
        once = i < j
        return i[once], j[once]

    for step in range(steps or size(200, 3)):
        if step % 10 == 0:
            i, j = pairs()
        now = places.clone().requires_grad_()
        apart = (now[i] - now[j]).norm(dim=-1)
        near = (apart < 2.0).nonzero().squeeze(1)
        apart = apart[near]
        each = energy(torch.exp(-4 * (apart[:, None] - centres).square())).squeeze(1)
        atoms = torch.zeros(count, device=DEVICE).index_add(0, i[near], each)
        (force,) = torch.autograd.grad(atoms.sum(), now)
        speeds = speeds - 0.001 * force.clamp(-10, 10)
        places = (places + 0.01 * speeds) % box
        if step % 50 == 49:
            places.cpu()


def policy(steps):
    """A player of games: many small steps in many worlds, all kept, and then a few passes over what was seen."""
    worlds = size(256, 4)
    net = nn.Sequential(
        nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.ReLU(), nn.Flatten(),
        nn.Linear(3136, 512), nn.ReLU(),
    ).to(DEVICE)
    actor, value = nn.Linear(512, 18).to(DEVICE), nn.Linear(512, 1).to(DEVICE)
    parameters = [*net.parameters(), *actor.parameters(), *value.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=2.5e-4)

    def frame(count):
        return torch.randint(0, 255, (worlds, count, 84, 84), dtype=torch.uint8, device=DEVICE)

    def choices(seen):
        return torch.distributions.Categorical(logits=actor(seen), validate_args=False)

    for _ in range(steps or size(12, 1)):
        seen, length = [], random.randint(*size((64, 128), (4, 8)))
        now = frame(4)
        for _ in range(length):
            with torch.no_grad():
                inner = net(now.float() / 255)
                chances = choices(inner)
                act = chances.sample()
                prize = torch.rand(worlds, device=DEVICE)
                seen.append((now, act, chances.log_prob(act), value(inner).squeeze(1), prize))
            now = torch.cat([now[:, 1:], frame(1)], 1)
        with torch.no_grad():
            late, better = torch.zeros(worlds, device=DEVICE), []
            for one in reversed(seen):
                late = one[4] + 0.99 * late - one[3]
                better.append(late)
        frames, acts, before, values, _ = (torch.cat(column) for column in zip(*seen))
        better = torch.cat(better[::-1])
        del seen
        for _ in range(3):
            for part in torch.randperm(len(frames), device=DEVICE).chunk(8):
                inner = net(frames[part].float() / 255)
                chances = choices(inner)
                ratio = (chances.log_prob(acts[part]) - before[part]).exp()
                gain = torch.min(ratio * better[part], ratio.clamp(0.9, 1.1) * better[part]).mean()
                error = (value(inner).squeeze(1) - values[part]).square().mean()
                (error - gain - 0.01 * chances.entropy().mean()).backward()
                nn.utils.clip_grad_norm_(net.parameters(), 0.5)
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)


def encoders(count, width, heads):
    return (
        nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        for _ in range(count)
    )


def offload(steps):
    """A transformer whose activations wait in the host's memory: copied out on one stream, and in again on another one."""
    need_gpu("offload")
    main_stream, out, back = torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()
    width = size(2048, 64)
    layers = nn.ModuleList(encoders(size(12, 2), width, 16)).to(DEVICE)
    optimizer = torch.optim.AdamW(layers.parameters(), lr=1e-5)

    def pack(tensor):
        if tensor.numel() < size(1 << 20, 1 << 8) or isinstance(tensor, nn.Parameter) or tensor.is_leaf:
            return tensor
        out.wait_stream(main_stream)
        with torch.cuda.stream(out):
            host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            host.copy_(tensor, non_blocking=True)
            tensor.record_stream(out)
        return host, out.record_event()

    def unpack(packed):
        if isinstance(packed, torch.Tensor):
            return packed
        host, copied = packed
        back.wait_event(copied)
        with torch.cuda.stream(back):
            tensor = host.to(DEVICE, non_blocking=True)
        main_stream.wait_stream(back)
        tensor.record_stream(main_stream)
        return tensor

    for _ in range(steps or size(12, 2)):
        x = torch.randn(4, random.randint(*size((512, 2048), (8, 16))), width, device=DEVICE)
        with torch.autograd.graph.saved_tensors_hooks(pack, unpack), half():
            for layer in layers:
                x = layer(x)
            loss = x.float().square().mean()
        step_of(optimizer, loss)


def speculation(steps):
    """A small model proposes words, a large one judges them: two caches that grow, and shrink by what was refused."""
    from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

    def model(width, layers, heads):
        config = LlamaConfig(
            vocab_size=32000, hidden_size=width, intermediate_size=width * 11 // 4, num_hidden_layers=layers,
            num_attention_heads=heads, num_key_value_heads=heads // 2,
        )
        return LlamaForCausalLM(config).to(DEVICE, torch.bfloat16).eval()

    large, small = model(*size((2048, 20, 16), (64, 2, 4))), model(*size((512, 6, 8), (32, 1, 4)))
    with torch.no_grad():
        for _ in range(steps or size(8, 1)):
            text = torch.randint(0, 32000, (random.randint(1, 8), random.randint(*size((100, 1800), (10, 20)))), device=DEVICE)
            judged, proposed = DynamicCache(), DynamicCache()
            large(text[:, :-1], past_key_values=judged, use_cache=True)
            small(text[:, :-1], past_key_values=proposed, use_cache=True)
            for _ in range(random.randint(*size((10, 60), (2, 3)))):
                had, more = text.shape[1], random.randint(3, 6)
                for _ in range(more):
                    said = small(text[:, proposed.get_seq_length() :], past_key_values=proposed, use_cache=True).logits
                    word = said[:, -1:].argmax(-1)
                    text = torch.cat([text, word], 1)
                said = large(text[:, judged.get_seq_length() :], past_key_values=judged, use_cache=True).logits
                said.float().softmax(-1).argmax(-1)
                kept = had + random.randint(0, more - 1) + 1
                text = text[:, :kept]
                judged.crop(kept - 1)
                proposed.crop(kept - 1)


def turbulence(steps):
    """A flow in a box by Fourier transforms: fields of one size, steps that are taken back and halved, pictures now and then."""
    side = size(256, 16)
    along = torch.fft.fftfreq(side, 1 / side, device=DEVICE)
    across = torch.fft.rfftfreq(side, 1 / side, device=DEVICE)
    wave = torch.stack(torch.meshgrid(along, along, across, indexing="ij"))
    squared = wave.square().sum(0).clamp_min(1)
    flow = torch.fft.rfftn(torch.randn(3, side, side, side, device=DEVICE), dim=(1, 2, 3))

    def rate(u):
        turn = [1j * (wave[i] * u[j] - wave[j] * u[i]) for i, j in ((1, 2), (2, 0), (0, 1))]
        x, w = torch.fft.irfftn(u, dim=(1, 2, 3)), torch.fft.irfftn(torch.stack(turn), dim=(1, 2, 3))
        force = torch.fft.rfftn(torch.cross(x, w, dim=0), dim=(1, 2, 3))
        return force - wave * ((wave * force).sum(0) / squared) - 0.01 * squared * u

    for step in range(steps or size(60, 2)):
        moment = 0.001
        while True:
            a = rate(flow)
            b = rate(flow + moment / 2 * a)
            c = rate(flow + moment / 2 * b)
            d = rate(flow + moment * c)
            then = flow + moment / 6 * (a + 2 * b + 2 * c + d)
            (then - (flow + moment * b)).abs().amax().item()
            if random.random() < 0.75:
                flow = then
                break
            moment /= 2
        if step % 10 == 9:
            torch.fft.irfftn(flow, dim=(1, 2, 3)).norm(dim=0).cpu()


class Stage:
    """Some layers on a stream of their own, with what came in and what is to go on."""

    def __init__(self, width):
        self.stream = torch.cuda.Stream()
        self.layers = nn.Sequential(*encoders(size(3, 1), width, 12)).to(DEVICE)
        self.optimizer = torch.optim.AdamW(self.layers.parameters(), lr=1e-5)
        self.held, self.inputs, self.gradients = {}, {}, {}
        self.todo = []

    def receive(self, message):
        tensor, ready = message
        self.stream.wait_event(ready)
        tensor.record_stream(self.stream)
        return tensor

    def forward(self, part, x, after):
        with torch.cuda.stream(self.stream):
            x = x() if x else self.receive(self.inputs.pop(part)).detach()
            x.requires_grad_()
            with half():
                y = self.layers(x)
            self.held[part] = (x, y)
            if after:
                after.inputs[part] = (y.detach(), self.stream.record_event())

    def backward(self, part, before, after):
        with torch.cuda.stream(self.stream):
            x, y = self.held.pop(part)
            if after:
                y.backward(self.receive(self.gradients.pop(part)))
            else:
                y.float().square().mean().backward()
            if before:
                before.gradients[part] = (x.grad, self.stream.record_event())


def stages(steps):
    """A pipeline of four stages on a stream each, forward and backward in turn, parts of another length each step."""
    need_gpu("stages")
    count, parts, width = 4, 8, size(1536, 48)
    line = [Stage(width) for _ in range(count)]
    torch.cuda.synchronize()
    for _ in range(steps or size(12, 2)):
        length = 64 * random.randint(*size((4, 16), (1, 2)))
        for place, stage in enumerate(line):
            ahead = min(count - place, parts)
            stage.todo = [("forward", part) for part in range(ahead)]
            for part in range(parts):
                stage.todo.append(("backward", part))
                if ahead + part < parts:
                    stage.todo.append(("forward", ahead + part))
        while any(stage.todo for stage in line):
            for place, stage in enumerate(line):
                before = line[place - 1] if place else None
                after = line[place + 1] if place + 1 < count else None
                what, part = stage.todo[0] if stage.todo else (None, None)
                if what == "forward" and (not before or part in stage.inputs):
                    first = None if before else lambda: torch.randn(4, length, width, device=DEVICE)
                    stage.forward(part, first, after)
                elif what == "backward" and (not after or part in stage.gradients):
                    stage.backward(part, before, after)
                else:
                    continue
                del stage.todo[0]
        for stage in line:
            with torch.cuda.stream(stage.stream):
                stage.optimizer.step()
                stage.optimizer.zero_grad(set_to_none=True)
    torch.cuda.synchronize()


PROGRAMS = [adversaries, rays, towers, volumes, particles, policy, offload, speculation, turbulence, stages]

if __name__ == "__main__":
    main(PROGRAMS, __doc__)

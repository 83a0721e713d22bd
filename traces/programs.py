#!/usr/bin/env python3
"""Programs to record with traces/record.py, other ones than those of the first traces, by which weir's page policy was chosen.

usage: traces/programs.py NAME [--steps N] [--small]

Models have random weights and random inputs, from fixed seeds. --small makes everything tiny, to see that a program runs,
also without a GPU (all but reduction, which is about streams). They need PyTorch, and as named torchvision, transformers,
timm, peft or torch_geometric.
"""

import argparse
import copy
import random
import sys

import torch
from torch import nn
from torch.nn import functional as F

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SMALL = False


def size(usual, small):
    return small if SMALL else usual


def need_gpu(name):
    if DEVICE == "cpu":
        sys.exit(f"{name} needs a GPU: it is about streams")


def half():
    return torch.autocast(DEVICE, dtype=torch.bfloat16)


def step_of(optimizer, loss):
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def segmentation(steps):
    """DeepLab of another crop size each step, an average of its weights, and tests with whole images between."""
    from torchvision.models.segmentation import deeplabv3_resnet50

    model = deeplabv3_resnet50(weights=None, weights_backbone=None, num_classes=21).to(DEVICE)
    average = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for step in range(steps or size(24, 2)):
        side = 32 * random.randint(*size((8, 20), (2, 3)))
        images = torch.randn(size(8, 2), 3, side, side, device=DEVICE)
        labels = torch.randint(0, 21, (len(images), side, side), device=DEVICE)
        with half():
            loss = F.cross_entropy(model(images)["out"].float(), labels)
        step_of(optimizer, loss)
        with torch.no_grad():
            for mean, now in zip(average.parameters(), model.parameters()):
                mean.lerp_(now, 0.01)
        if step % 6 == 5:
            average.eval()
            with torch.no_grad(), half():
                average(torch.randn(2, 3, size(1024, 64), size(1024, 64), device=DEVICE))["out"].argmax(1)


def detection(steps):
    """Faster R-CNN: images of all sizes, boxes and what is kept of them in numbers that nobody knows before."""
    from torchvision.models.detection import fasterrcnn_resnet50_fpn

    least, most = size((480, 800), (64, 96))
    model = fasterrcnn_resnet50_fpn(
        weights=None, weights_backbone=None, num_classes=91, min_size=least, max_size=most
    ).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0001, momentum=0.9)
    for _ in range(steps or size(16, 1)):
        images, targets = [], []
        for _ in range(size(6, 1)):
            height, width = random.randint(least, most), random.randint(least, most)
            images.append(torch.rand(3, height, width, device=DEVICE))
            corner = torch.rand(random.randint(1, 30), 2, device=DEVICE) * (least // 2)
            boxes = torch.cat([corner, corner + 8 + torch.rand_like(corner) * (least // 3)], dim=1)
            targets.append({"boxes": boxes, "labels": torch.randint(1, 91, (len(boxes),), device=DEVICE)})
        step_of(optimizer, sum(model(images, targets).values()))


class Denoiser(nn.Module):
    """A transformer over patches of a latent image, told how far the noise has gone."""

    def __init__(self, width, layers, heads):
        super().__init__()
        self.patch = nn.Conv2d(4, width, 2, stride=2)
        self.time = nn.Sequential(nn.Linear(1, width), nn.SiLU(), nn.Linear(width, width))
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.out = nn.ConvTranspose2d(width, 4, 2, stride=2)

    def forward(self, latent, time):
        x = self.patch(latent)
        batch, width, high, wide = x.shape
        x = x.flatten(2).transpose(1, 2) + self.time(time).unsqueeze(1)
        return self.out(self.layers(x).transpose(1, 2).reshape(batch, width, high, wide))


def diffusion(steps):
    """Images for requests of any size and number: 20 steps each for both guidances, then decoded."""
    width = size(1024, 32)
    model = Denoiser(width, size(16, 2), 8).to(DEVICE).eval()
    decoder = nn.Sequential(
        nn.Conv2d(4, size(256, 8), 3, padding=1),
        *(
            nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(size(256, 8), size(256, 8), 3, padding=1), nn.SiLU())
            for _ in range(3)
        ),
        nn.Conv2d(size(256, 8), 3, 3, padding=1),
    ).to(DEVICE)
    with torch.no_grad(), half():
        for _ in range(steps or size(20, 1)):
            images, side = random.choice([1, 1, 2, 4, 8]), random.choice(size([48, 64, 64, 96, 128], [8]))
            latent = torch.randn(images, 4, side, random.choice([side, side * 3 // 4]), device=DEVICE)
            for moment in range(20):
                time = torch.full((2 * images, 1), moment / 20, device=DEVICE)
                without, told = model(torch.cat([latent, latent]), time).chunk(2)
                latent = latent - 0.05 * (without + 4 * (told - without))
            for one in latent:
                decoder(one.unsqueeze(0)).float().clamp(-1, 1).cpu()


def bert(steps):
    """Masked words: batches of as many words in buckets of lengths, four to a step, tests between."""
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig() if not SMALL else BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=2)
    model = BertForMaskedLM(config).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    words = size(16384, 256)
    for step in range(steps or size(12, 1)):
        for _ in range(4):
            length = 64 * random.randint(1, size(8, 1))
            tokens = torch.randint(0, 30000, (words // length, length), device=DEVICE)
            seen = torch.arange(length, device=DEVICE) < torch.randint(8, length + 1, (len(tokens), 1), device=DEVICE)
            with half():
                loss = model(tokens, attention_mask=seen.long(), labels=tokens).loss / 4
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 4 == 3:
            with torch.no_grad(), half():
                model(torch.randint(0, 30000, (2 * words // 512, 512), device=DEVICE)).logits.argmax(-1)


def translation(steps):
    """T5 with four beams: caches that grow by a word and are put into another order with each."""
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        d_model=size(768, 32), d_kv=size(64, 8), d_ff=size(3072, 64), num_layers=size(12, 2), num_heads=size(12, 4),
        decoder_start_token_id=0,
    )
    model = T5ForConditionalGeneration(config).to(DEVICE, torch.bfloat16).eval()
    for _ in range(steps or size(5, 1)):
        tokens = torch.randint(2, 32000, (random.randint(4, size(32, 5)), random.randint(8, size(200, 9))), device=DEVICE)
        with torch.no_grad():
            model.generate(tokens, num_beams=4, do_sample=False, min_new_tokens=4, max_new_tokens=random.randint(4, size(48, 5)))


def adapters(steps):
    """A Llama of 16 layers whose adapters alone are trained, each layer computed twice, another length each step."""
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=32000, hidden_size=size(2048, 32), intermediate_size=size(5632, 64), num_hidden_layers=size(16, 2),
        num_attention_heads=size(16, 4), num_key_value_heads=size(4, 2), use_cache=False,
    )
    model = LlamaForCausalLM(config).to(DEVICE, torch.bfloat16)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    model.enable_input_require_grads()
    model = get_peft_model(model, LoraConfig(r=16, target_modules=["q_proj", "v_proj", "down_proj"]))
    model.train()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)
    for _ in range(steps or size(20, 2)):
        tokens = torch.randint(0, 32000, (2, random.randint(*size((300, 4096), (8, 16)))), device=DEVICE)
        step_of(optimizer, model(tokens, labels=tokens).loss)


def feedback(steps):
    """A model writes, one that is fetched to the GPU for it judges, then the first learns: phases that need different things."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config() if not SMALL else GPT2Config(n_embd=32, n_layer=2, n_head=2)
    writer = GPT2LMHeadModel(config).to(DEVICE)
    judge = copy.deepcopy(writer).to("cpu").eval()
    optimizer = torch.optim.AdamW(writer.parameters(), lr=1e-6)

    def chances(model, text):
        logits = model(text).logits[:, :-1].float()
        return torch.gather(logits.log_softmax(-1), 2, text[:, 1:, None]).squeeze(2)

    for _ in range(steps or size(4, 1)):
        start = torch.randint(0, 50000, (size(24, 2), random.randint(8, size(96, 9))), device=DEVICE)
        with torch.no_grad(), half():
            text = writer.generate(
                start, do_sample=True, min_new_tokens=4, max_new_tokens=random.randint(8, size(64, 8)), pad_token_id=0
            )
            judge.to(DEVICE)
            judged, before = chances(judge, text), chances(writer, text)
            judge.to("cpu")
        for _ in range(2):
            for part in torch.randperm(len(text), device=DEVICE).chunk(3):
                with half():
                    ratio = (chances(writer, text[part]) - before[part]).exp()
                    loss = -(ratio.clamp(0.8, 1.2) * (judged[part] - judged[part].mean())).mean()
                step_of(optimizer, loss)


def graphs(steps):
    """Attention over graphs of a neighbourhood, each with its own numbers of nodes and edges."""
    from torch_geometric.nn import GATConv, SAGEConv

    width = size(128, 8)
    layers = nn.ModuleList([SAGEConv(256, width), GATConv(width, width // 4, heads=4), SAGEConv(width, 40)]).to(DEVICE)
    optimizer = torch.optim.Adam(layers.parameters(), lr=1e-3)
    for _ in range(steps or size(150, 2)):
        nodes = random.randint(*size((20_000, 120_000), (50, 60)))
        edges = torch.randint(0, nodes, (2, nodes * random.randint(4, 12)), device=DEVICE)
        x = torch.randn(nodes, 256, device=DEVICE)
        for layer in layers:
            x = F.dropout(F.relu(layer(x, edges)), 0.5)
        step_of(optimizer, F.cross_entropy(x, torch.randint(0, 40, (nodes,), device=DEVICE)))


def speech(steps):
    """Recurrent layers in both directions over packed utterances of all lengths."""
    width = size(640, 16)
    cut = nn.Sequential(nn.Conv1d(80, width, 5, 2, 2), nn.ReLU(), nn.Conv1d(width, width, 5, 2, 2), nn.ReLU()).to(DEVICE)
    layers = nn.LSTM(width, width, 4, batch_first=True, bidirectional=True, dropout=0.1).to(DEVICE)
    head = nn.Linear(2 * width, 1000).to(DEVICE)
    optimizer = torch.optim.Adam([*cut.parameters(), *layers.parameters(), *head.parameters()], lr=1e-4)
    for _ in range(steps or size(60, 2)):
        longest = random.randint(*size((200, 2400), (40, 60)))
        sounds = torch.randn(size(32, 2), 80, longest, device=DEVICE)
        lengths = torch.randint(longest // 8, longest // 4 + 1, (len(sounds),)).sort(descending=True).values
        with half():
            x = nn.utils.rnn.pack_padded_sequence(cut(sounds).transpose(1, 2), lengths, batch_first=True)
            x, _ = nn.utils.rnn.pad_packed_sequence(layers(x)[0], batch_first=True)
            x = head(x)
        words = torch.randint(1, 1000, (len(sounds), 5), device=DEVICE)
        loss = F.ctc_loss(x.float().log_softmax(-1).transpose(0, 1), words, lengths, torch.full((len(sounds),), 5))
        step_of(optimizer, loss)


def crops(steps):
    """A teacher sees two large crops of an image, its student eight small ones as well."""
    import timm

    def network():
        return timm.create_model("vit_small_patch16_224", num_classes=size(8192, 16), dynamic_img_size=True).to(DEVICE)

    student, teacher = network(), network().requires_grad_(False)
    optimizer = torch.optim.AdamW(student.parameters(), lr=1e-5)
    images = size(48, 1)
    for step in range(steps or size(16, 1)):
        if step == size(12, 1):
            images = images * 2 // 3  # a batch that did not fill
        large = [torch.randn(images, 3, 224, 224, device=DEVICE) for _ in range(2)]
        small = [torch.randn(images, 3, 96, 96, device=DEVICE) for _ in range(8)]
        with half():
            with torch.no_grad():
                wanted = F.softmax(teacher(torch.cat(large)).float() / 0.04, -1).chunk(2)
            found = [*student(torch.cat(large)).chunk(2), *student(torch.cat(small)).chunk(8)]
            loss = sum(-(w * f.float().log_softmax(-1)).sum(-1).mean() for w in wanted for f in found)
        step_of(optimizer, loss)
        with torch.no_grad():
            for old, new in zip(teacher.parameters(), student.parameters()):
                old.lerp_(new, 0.004)


def kriging(steps):
    """A Gaussian process whose observations grow: a matrix of all pairs, larger each step, and its factors."""
    points = torch.rand(size(2000, 50), 16, device=DEVICE)
    for _ in range(steps or size(40, 2)):
        covariance = torch.exp(-torch.cdist(points, points)) + 0.01 * torch.eye(len(points), device=DEVICE)
        factor = torch.linalg.cholesky(covariance)
        weights = torch.cholesky_solve(torch.randn(len(points), 1, device=DEVICE), factor)
        best = []
        for _ in range(8):
            candidates = torch.rand(size(8192, 20), 16, device=DEVICE)
            shared = torch.exp(-torch.cdist(candidates, points))
            doubt = 1 - torch.linalg.solve_triangular(factor, shared.T, upper=False).square().sum(0)
            best.append(candidates[(shared @ weights).squeeze(1).add(doubt).topk(size(60, 5)).indices])
        points = torch.cat([points, *best])


def tables(steps):
    """Columns of a table are filtered, grouped, sorted and joined: from a million rows to 60 in any order."""
    for _ in range(steps or size(100, 2)):
        rows = int(10 ** random.uniform(*size((6.0, 7.8), (3.0, 3.5))))
        keys = torch.randint(0, max(rows // 8, 1), (rows,), device=DEVICE)
        values = torch.rand(rows, device=DEVICE)
        kept = values > random.random() * 0.5
        keys, values = keys[kept], values[kept]
        groups, group = torch.unique(keys, return_inverse=True)
        sums = torch.zeros(len(groups), device=DEVICE).index_add_(0, group, values)
        other = torch.randint(0, max(rows // 8, 1), (rows // random.randint(1, 6),), device=DEVICE).sort().values
        first = torch.searchsorted(other, groups)
        joined = sums[(first < len(other)).nonzero().squeeze(1)]
        torch.cat([joined, values]).sort(descending=True).values[:1000].cpu()


def reduction(steps):
    """Batches are copied on one stream, and on another buckets of gradients are summed, as if with other GPUs, while more come."""
    need_gpu("reduction")
    width, layers = size(2048, 32), size(12, 3)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)) for _ in range(layers)))
    model.to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    main, copies, sums = torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()

    def fetch():
        with torch.cuda.stream(copies):
            return torch.randn(random.randint(500, 4000), width).pin_memory().to(DEVICE, non_blocking=True)

    def reduced(parameters):
        def summed(_):
            ready.append(1)
            if len(ready) % len(parameters):
                return
            sums.wait_stream(main)
            with torch.cuda.stream(sums):
                flat = torch.cat([p.grad.flatten() for p in parameters])
                for p in parameters:
                    p.grad.record_stream(sums)
                flat = (flat.bfloat16().float() + flat) / 2
                at = 0
                for p in parameters:
                    p.grad.copy_(flat[at : at + p.numel()].view_as(p))
                    at += p.numel()

        ready = []
        for p in parameters:
            p.register_post_accumulate_grad_hook(summed)

    for layer in model:
        reduced(list(layer.parameters()))
    batch = fetch()
    for _ in range(steps or size(40, 2)):
        main.wait_stream(copies)
        now, batch = batch, fetch()
        now.record_stream(main)
        with half():
            loss = model(now).float().square().mean()
        loss.backward()
        main.wait_stream(sums)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def main(programs, about):
    """The command line of a file of programs."""
    global SMALL
    parser = argparse.ArgumentParser(
        description=about, epilog="\n".join(f"{p.__name__:<14}{p.__doc__}" for p in programs),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", choices=[p.__name__ for p in programs])
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    SMALL = options.small
    random.seed(1)
    torch.manual_seed(1)
    next(p for p in programs if p.__name__ == options.name)(options.steps)


PROGRAMS = [
    segmentation, detection, diffusion, bert, translation, adapters, feedback, graphs, speech, crops, kriging, tables,
    reduction,
]

if __name__ == "__main__":
    main(PROGRAMS, __doc__)

"""A network trained with weir as PyTorch's allocator:

    PYTHONPATH=<prefix>/share/weir/python python3 examples/clients/torch_train.py
"""

import torch
import weir

weir.use_with_torch()  # before anything is on the GPU

model = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.GELU(), torch.nn.Linear(2048, 512)).cuda()
optimizer = torch.optim.AdamW(model.parameters())
copies = torch.cuda.Stream()
for step in range(100):
    length = 64 + 37 * step % 512
    with torch.cuda.stream(copies):
        batch = torch.randn(length, 512, pin_memory=True).to("cuda", non_blocking=True)
    torch.cuda.current_stream().wait_stream(copies)
    batch.record_stream(torch.cuda.current_stream())
    loss = (model(batch) - batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"loss {loss.item():.4f}")
for name in ("used_bytes_peak", "reserved_bytes_peak", "allocations", "cache_hits"):
    print(name, weir.stats()[name])

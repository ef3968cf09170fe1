"""A Llama whose MLPs are sums of sparse branches, for sparse-parallel.yaml."""

from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM


class Parallel(nn.Module):
    """In place of a linear map the sum of several, each normalized on its own.

    Without a norm in each they would be one linear map, that of the sum of their weights.
    """

    def __init__(self, in_features: int, out_features: int, num_branches: int) -> None:
        super().__init__()
        self.branches = nn.ModuleList(
            nn.Sequential(
                nn.Linear(in_features, out_features, bias=False), nn.RMSNorm(out_features)
            )
            for _ in range(num_branches)
        )

    def forward(self, x: Tensor) -> Tensor:
        """The branches' sum, of shape [..., out_features]."""
        return sum(branch(x) for branch in self.branches)


def parallel_llama(num_branches: int, **sizes: int) -> LlamaForCausalLM:
    """A Llama of these sizes with `num_branches` branches for each linear map of its MLPs."""
    model = LlamaForCausalLM(LlamaConfig(**sizes, use_cache=False))
    for layer in model.model.layers:
        for name, linear in list(layer.mlp.named_children()):
            if isinstance(linear, nn.Linear):
                branches = Parallel(linear.in_features, linear.out_features, num_branches)
                setattr(layer.mlp, name, branches)
    return model

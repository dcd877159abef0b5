"""The parts of torch that stay as they are while a training is measured."""

import torch

_HOOKS = vars(torch.nn.modules.module)


def parts_of_torch() -> list[object]:
    """What torch calls in each pass of any module, switch of its mode and scope without gradients; hooks for all."""
    module, scopes = torch.nn.Module, (torch.no_grad, torch.inference_mode)
    return [
        *(module.__call__, module._call_impl, module.train, module.eval, module.compile),
        *(method for scope in scopes for method in (scope.__enter__, scope.__exit__)),
        *(dict(_HOOKS[name]) for name in ("_global_forward_pre_hooks", "_global_forward_hooks")),
        *(dict(_HOOKS[name]) for name in ("_global_backward_pre_hooks", "_global_backward_hooks")),
    ]

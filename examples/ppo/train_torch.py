"""PPO in the manner of CleanRL; train_torch.py and train_swell.py differ in what swell needs."""

import argparse

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Categorical


class Balance:
    """Many carts on a hilltop, each pushed to the left or to the right: 1 for a step at the top, less beside it."""

    def __init__(self, num_envs: int, length: int = 40) -> None:
        self.length = length
        self.place, self.age = torch.empty(num_envs, 2), torch.zeros(num_envs, dtype=torch.long)
        self.reset(torch.ones(num_envs, dtype=torch.bool))

    def reset(self, which: Tensor) -> None:
        self.place[which] = torch.randn(int(which.sum()), 2) * 0.3
        self.age[which] = 0

    def step(self, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, v = self.place.unbind(1)
        v = v + 0.1 * (x + 2.0 * (2 * action - 1))
        self.place = torch.stack([x + 0.1 * v, v], 1)
        self.age += 1
        reward = 1 - self.place[:, 0].abs().clamp(max=1)
        done = (self.place[:, 0].abs() > 2) | (self.age >= self.length)
        self.reset(done)
        return self.place.clone(), reward, done.float()


def layer_init(layer: nn.Linear, std: float = 2**0.5) -> nn.Linear:
    nn.init.orthogonal_(layer.weight, std)
    nn.init.zeros_(layer.bias)
    return layer


class Agent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.critic = nn.Sequential(layer_init(nn.Linear(2, 32)), nn.Tanh(), layer_init(nn.Linear(32, 1), std=1.0))
        self.actor = nn.Sequential(layer_init(nn.Linear(2, 32)), nn.Tanh(), layer_init(nn.Linear(32, 2), std=0.01))

    def forward(self, obs: Tensor, action: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        probs = Categorical(logits=self.actor(obs))
        if action is None:
            action = probs.sample()
        return action, probs.log_prob(action), probs.entropy(), self.critic(obs).squeeze(-1)


@torch.no_grad()
def collect(agent: nn.Module, envs: Balance, args: argparse.Namespace) -> dict[str, Tensor]:
    """A rollout of every environment, with its advantages by GAE."""
    names = ("obs", "actions", "logprobs", "rewards", "dones", "values")
    steps: dict[str, list[Tensor]] = {name: [] for name in names}
    obs, done = envs.place.clone(), torch.zeros(args.num_envs)
    for _ in range(args.num_steps):
        action, logprob, _, value = agent(obs)
        following, reward, following_done = envs.step(action)
        for name, item in zip(names, (obs, action, logprob, reward, done, value), strict=True):
            steps[name].append(item)
        obs, done = following, following_done
    batch = {name: torch.stack(items) for name, items in steps.items()}
    advantages, last, next_value = torch.zeros_like(batch["rewards"]), torch.zeros(args.num_envs), agent(obs)[3]
    for t in reversed(range(args.num_steps)):
        delta = batch["rewards"][t] + args.gamma * next_value * (1 - done) - batch["values"][t]
        advantages[t] = last = delta + args.gamma * args.gae_lambda * (1 - done) * last
        next_value, done = batch["values"][t], batch["dones"][t]
    batch["returns"] = advantages + batch["values"]
    # Over the rollout, not over a minibatch: a minibatch may be split over replicas.
    batch["advantages"] = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    return {name: item.flatten(0, 1) for name, item in batch.items()}


def loss_of(agent: nn.Module, b: dict[str, Tensor], args: argparse.Namespace) -> Tensor:
    """The clipped objective, the clipped value loss and the entropy."""
    _, logprob, entropy, value = agent(b["obs"], b["actions"])
    ratio = (logprob - b["logprobs"]).exp()
    clipped = ratio.clamp(1 - args.clip_coef, 1 + args.clip_coef)
    policy_loss = torch.max(-b["advantages"] * ratio, -b["advantages"] * clipped).mean()
    near = b["values"] + (value - b["values"]).clamp(-args.clip_coef, args.clip_coef)
    value_loss = 0.5 * torch.max((value - b["returns"]) ** 2, (near - b["returns"]) ** 2).mean()
    return policy_loss - args.ent_coef * entropy.mean() + args.vf_coef * value_loss


def main() -> float:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num-iterations", type=int, default=40)
    parser.add_argument("--num-envs", type=int, default=8)
    parser.add_argument("--num-steps", type=int, default=32)
    parser.add_argument("--update-epochs", type=int, default=4)
    parser.add_argument("--minibatch-size", type=int, default=64)
    parser.add_argument("--learning-rate", type=float, default=5e-3)
    parser.add_argument("--gamma", type=float, default=0.95)
    parser.add_argument("--gae-lambda", type=float, default=0.95)
    parser.add_argument("--clip-coef", type=float, default=0.2)
    parser.add_argument("--ent-coef", type=float, default=0.01)
    parser.add_argument("--vf-coef", type=float, default=0.5)
    parser.add_argument("--max-grad-norm", type=float, default=0.5)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    np.random.seed(args.seed)
    envs, agent = Balance(args.num_envs), Agent()
    optimizer = torch.optim.Adam(agent.parameters(), lr=args.learning_rate, eps=1e-5)
    batch_size = args.num_envs * args.num_steps

    reward = float("nan")
    for iteration in range(args.num_iterations):
        optimizer.param_groups[0]["lr"] = (1 - iteration / args.num_iterations) * args.learning_rate
        batch = collect(agent, envs, args)
        reward = batch["rewards"].mean().item()
        print(f"iteration {iteration}: reward {reward:.3f}")
        b_inds = np.arange(batch_size)
        for _epoch in range(args.update_epochs):
            np.random.shuffle(b_inds)
            for start in range(0, batch_size, args.minibatch_size):
                mb_inds = torch.from_numpy(b_inds[start : start + args.minibatch_size])
                loss = loss_of(agent, {name: item[mb_inds] for name, item in batch.items()}, args)
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
                optimizer.step()
    return reward


if __name__ == "__main__":
    main()

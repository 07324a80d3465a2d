"""A DCGAN on handwritten digits; train_torch.py and train_swell.py differ in what swell needs."""

import argparse

import swell
import torch
from swell.demo.digits import load_digits
from torch import Tensor, nn
from torch.utils.data import TensorDataset

nz, ngf, ndf = 16, 16, 16  # numbers that a fake is made from; channels of the generator and of the discriminator


class Generator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.main = nn.Sequential(
            nn.ConvTranspose2d(nz, ngf * 2, 4, 1, 0, bias=False),
            nn.BatchNorm2d(ngf * 2),
            nn.ReLU(True),
            nn.ConvTranspose2d(ngf * 2, 1, 4, 2, 1, bias=False),
            nn.Tanh(),
        )

    def forward(self, z: Tensor) -> Tensor:
        return self.main(z)


class Discriminator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(1, ndf, 4, 2, 1, bias=False),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(ndf, 1, 4, 1, 0, bias=False),
            nn.Sigmoid(),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.main(x).view(-1)


def weights_init(module: nn.Module) -> None:
    if isinstance(module, (nn.Conv2d, nn.ConvTranspose2d)):
        nn.init.normal_(module.weight, 0.0, 0.02)
    elif isinstance(module, nn.BatchNorm2d):
        nn.init.normal_(module.weight, 1.0, 0.02)
        nn.init.zeros_(module.bias)


def main() -> float:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=25)
    parser.add_argument("--limit", type=int, help="use only this many images")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    digits = load_digits()[0].tensors[0][: args.limit].clamp(0, 1).unsqueeze(1) * 2 - 1
    job = swell.Job("runs/dcgan", batch=64)
    device = job.device
    netG, netD = Generator().to(device).apply(weights_init), Discriminator().to(device).apply(weights_init)
    criterion, real_label, fake_label = nn.BCELoss(), 1.0, 0.0
    fixed_noise = torch.randn(256, nz, 1, 1, device=device)
    optimizerD = torch.optim.Adam(netD.parameters(), lr=2e-3, betas=(0.5, 0.999))
    optimizerG = torch.optim.Adam(netG.parameters(), lr=2e-3, betas=(0.5, 0.999))
    netD, optimizerD = job.wrap(netD, optimizerD)
    netG, optimizerG = job.wrap(netG, optimizerG)
    loader = job.loader(TensorDataset(digits), shuffle=True)

    difference = float("nan")
    for epoch in job.epochs(args.epochs):
        for (real,) in loader:
            # The discriminator: real digits, then fakes.
            output = netD(real.to(device))
            errD_real = criterion(output, torch.full_like(output, real_label))
            job.backward(errD_real, optimizer=optimizerD)
            fake = netG(torch.randn(len(real), nz, 1, 1, device=device))
            output = netD(fake.detach())
            errD_fake = criterion(output, torch.full_like(output, fake_label))
            job.backward(errD_fake, optimizer=optimizerD)
            job.step(optimizer=optimizerD)

            # The generator: fakes that pass for real.
            output = netD(fake)
            errG = criterion(output, torch.full_like(output, real_label))
            job.backward(errG, optimizer=optimizerG)
            job.step(optimizer=optimizerG)

        with torch.no_grad():
            fakes = netG(fixed_noise).cpu()
            difference = (fakes.mean(0) - digits.mean(0)).abs().mean().item()
        print(f"epoch {epoch}: the mean fake is {difference:.3f} from the mean digit, a pixel")
    return difference


if __name__ == "__main__":
    main()

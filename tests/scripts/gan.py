"""Two models and two optimizers that take turns, as in a GAN."""

import sys

import torch

torch.manual_seed(0)
generator = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
critic = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.LeakyReLU(0.2), torch.nn.Linear(8, 1))
of_generator = torch.optim.Adam(generator.parameters(), lr=0.002, betas=(0.5, 0.999))
of_critic = torch.optim.Adam(critic.parameters(), lr=0.004, betas=(0.5, 0.999))
judge = torch.nn.BCEWithLogitsLoss()
real_data = torch.randn(24, 2) + 2
for start in range(0, 24, 4):
    real = real_data[start : start + 4]
    fake = generator(torch.randn(4, 3))
    of_critic.zero_grad()
    loss = judge(critic(real), torch.ones(4, 1)) + judge(critic(fake.detach()), torch.zeros(4, 1))
    loss.backward()
    of_critic.step()
    of_generator.zero_grad()
    judge(critic(fake), torch.ones(4, 1)).backward()
    of_generator.step()
torch.save({"generator": generator.state_dict(), "critic": critic.state_dict()}, sys.argv[1])

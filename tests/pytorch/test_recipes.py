"""Recipes pasted into real scripts: they train with the batch, accumulation and rates named."""

from dataclasses import replace

import pytest

import noisescale as ns
from command_line import run
from noisescale.errors import InputError

pytestmark = pytest.mark.frameworks

torch = pytest.importorskip("torch", reason="PyTorch is an extra: make torch adds it")

N = 64
SGD = ns.Recipe(
    learning_rate=0.1, batch_size=16, n_train=N, momentum=0.9, weight_decay=1e-3, epochs=1
)
ADAMW = ns.AdamRecipe(
    learning_rate=1e-3,
    batch_size=16,
    n_train=N,
    betas=(0.8, 0.95),
    weight_decay=0.1,
    decoupled=True,
    epochs=1,
    warmup_steps=2,
)
SCALED = [SGD.scaled_to(batch_size=32), ADAMW.scaled_to(batch_size=32)]
NAMES = ["sgd", "adamw"]


def read_back(optimizer, recipe, **batch):
    """The recipe that a trained script's optimiser has, which must be the one pasted."""
    found = ns.Recipe.from_optimizer(optimizer, n_train=N, epochs=1, **batch)
    found = replace(found, warmup_steps=recipe.warmup_steps, notes=())
    for name in ("learning_rate", "weight_decay"):
        assert getattr(found, name) == pytest.approx(getattr(recipe, name), rel=1e-11)
    same = replace(
        found, learning_rate=recipe.learning_rate, weight_decay=recipe.weight_decay, notes=()
    )
    if isinstance(recipe, ns.AdamRecipe):
        assert found.betas == pytest.approx(recipe.betas, rel=1e-11)
        assert found.eps == pytest.approx(recipe.eps, rel=1e-11)
        same = replace(same, betas=recipe.betas, eps=recipe.eps, notes=())
    assert same == recipe
    return found


def data():
    torch.manual_seed(0)
    x = torch.randn(N, 3)
    return torch.utils.data.TensorDataset(x, (x[:, 0] > 0).long())


@pytest.mark.parametrize("recipe", SCALED, ids=NAMES)
def test_a_pytorch_loop(recipe):
    from torch.utils.data import DataLoader

    train_set, model = data(), torch.nn.Linear(3, 2)
    text = recipe.to("pytorch", max_per_device_batch_size=8)
    script = {"torch": torch, "DataLoader": DataLoader, "train_set": train_set, "model": model}
    exec(text, script)
    optimizer, steps = script["optimizer"], script["accumulation_steps"]
    sizes, rates, updates = [], [], 0
    for k, (x, y) in enumerate(script["loader"], start=1):
        loss = torch.nn.functional.cross_entropy(model(x), y)
        (loss / steps).backward()
        sizes.append(len(y))
        if k % steps == 0:
            rates.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            optimizer.zero_grad()
            updates += 1
            if "# warmup.step() after every optimizer.step()" in text.splitlines():
                script["warmup"].step()
    assert (set(sizes), steps, updates) == ({8}, 4, N // 32)
    read_back(optimizer, recipe, per_device_batch_size=8, gradient_accumulation_steps=4)
    assert sum(sizes[:steps]) == recipe.batch_size
    if recipe.warmup_steps:
        n = recipe.warmup_steps
        assert rates[0] == pytest.approx(recipe.learning_rate / (n + 1))
        assert optimizer.param_groups[0]["lr"] == pytest.approx(
            recipe.learning_rate * (updates / n + (1 - updates / n) / (n + 1))
        )


def test_a_pytorch_loop_on_two_devices_shares_the_data_out():
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore  # registers the backend
    from torch.utils.data import DataLoader, DistributedSampler

    text = SCALED[0].to("pytorch", world_size=2)
    seen = []
    for rank in range(2):
        script = {
            "torch": torch,
            "DataLoader": DataLoader,
            "DistributedSampler": DistributedSampler,
            "train_set": list(range(N)),
            "model": torch.nn.Linear(3, 2),
        }
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=2)
        try:
            exec(text, script)
        finally:
            dist.destroy_process_group()
        batches = [batch.tolist() for batch in script["loader"]]
        assert {len(batch) for batch in batches} == {16}
        seen += [index for batch in batches for index in batch]
    assert sorted(seen) == list(range(N))


def train_by_the_trainer(text, tmp_path):
    """The lines in a script of Hugging Face's: the Trainer, and the batch of each pass."""
    transformers = pytest.importorskip("transformers")

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(3, 2)
            self.seen = []

        def forward(self, x, labels):
            self.seen.append(len(labels))
            logits = self.linear(x)
            return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}

    script = {"TrainingArguments": transformers.TrainingArguments}
    exec(text, script)
    arguments = script["training_args"]
    arguments.output_dir = str(tmp_path)
    for name, value in {"report_to": [], "disable_tqdm": True, "save_strategy": "no"}.items():
        setattr(arguments, name, value)
    model = Model()
    examples = [{"x": x, "labels": y} for x, y in data()]
    trainer = transformers.Trainer(model=model, args=arguments, train_dataset=examples)
    trainer.train()
    return trainer, model.seen


def train_by_lightning(text, tmp_path):
    """The lines in a script of Lightning's: the Trainer, and the batch of each pass."""
    lightning = pytest.importorskip("lightning")
    from torch.utils.data import DataLoader

    def trainer(**options):
        quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
        return lightning.Trainer(
            **options,
            **quiet,
            enable_checkpointing=False,
            accelerator="cpu",
            default_root_dir=tmp_path,
        )

    script = {"torch": torch, "DataLoader": DataLoader, "train_set": data(), "Trainer": trainer}
    exec(text, script)

    class Module(lightning.LightningModule):
        configure_optimizers = script["configure_optimizers"]

        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(3, 2)
            self.seen = []

        def training_step(self, batch, _):
            x, y = batch
            self.seen.append(len(y))
            return torch.nn.functional.cross_entropy(self.linear(x), y)

    module = Module()
    script["trainer"].fit(module, script["loader"])
    return script["trainer"], module.seen


@pytest.mark.parametrize("recipe", SCALED, ids=NAMES)
@pytest.mark.filterwarnings("ignore")  # those of transformers and accelerate are theirs
def test_a_trainer(recipe, tmp_path):
    text = recipe.to("transformers", max_per_device_batch_size=8)
    trainer, seen = train_by_the_trainer(text, tmp_path)
    assert trainer.state.global_step == N // recipe.batch_size
    assert set(seen) == {8}
    assert len(seen) == trainer.state.global_step * 4
    assert trainer.args.warmup_steps == (recipe.warmup_steps or 0)
    found = read_back(
        trainer.optimizer, recipe, per_device_batch_size=8, gradient_accumulation_steps=4
    )
    assert type(found) is type(recipe)


@pytest.mark.parametrize("recipe", SCALED, ids=NAMES)
@pytest.mark.filterwarnings("ignore")
def test_a_lightning_module(recipe, tmp_path):
    text = recipe.to("lightning", max_per_device_batch_size=8)
    trainer, seen = train_by_lightning(text, tmp_path)
    assert set(seen) == {8}
    assert trainer.global_step == N // recipe.batch_size
    assert len(seen) == 4 * trainer.global_step
    (optimizer,) = trainer.optimizers
    read_back(optimizer, recipe, per_device_batch_size=8, gradient_accumulation_steps=4)


def pasted(trainer, *options):
    """The lines that the command line prints."""
    tuned = ("recipe", "--learning-rate=0.1", f"--n-train={N}", "--epochs=1")
    done = run(*tuned, *options, f"--script={trainer}")
    assert done.code == 0, done.err
    return done.out.partition("\n\n# ")[2].partition("\n")[2]


@pytest.mark.filterwarnings("ignore")
def test_accumulation_asked_of_the_command_line_is_what_trains(tmp_path):
    from torch.utils.data import DataLoader

    more = ("--per-device-batch-size=4", "--to-gradient-accumulation-steps=4")
    script = {"torch": torch, "DataLoader": DataLoader, "train_set": data()}
    script["model"] = torch.nn.Linear(3, 2)
    exec(pasted("pytorch", *more), script)
    assert (script["loader"].batch_size, script["accumulation_steps"]) == (4, 4)
    assert script["optimizer"].param_groups[0]["lr"] == pytest.approx(0.4)
    for train, name in ((train_by_the_trainer, "transformers"), (train_by_lightning, "lightning")):
        trainer, seen = train(pasted(name, *more), tmp_path)
        assert set(seen) == {4}
        ended = trainer.state if name == "transformers" else trainer
        assert ended.global_step == N // 16
        assert len(seen) == N // 4
    lightning = pytest.importorskip("lightning")
    on_six = pasted("lightning", *more[:1], "--world-size=2", "--to-world-size=3")
    (line,) = (line for line in on_six.splitlines() if line.startswith("trainer = "))
    cpu = {"accelerator": "cpu", "default_root_dir": tmp_path, "logger": False}
    made = eval(
        line.removeprefix("trainer = "), {"Trainer": lambda **o: lightning.Trainer(**o, **cpu)}
    )
    assert (made.num_devices, made.accumulate_grad_batches) == (3, 1)


@pytest.mark.filterwarnings("ignore")
def test_a_growing_batch_in_lightning(tmp_path):
    lightning = pytest.importorskip("lightning")
    from lightning.pytorch.callbacks import GradientAccumulationScheduler

    schedule = ns.Recipe(learning_rate=0.1, batch_size=4, n_train=400).as_batch_schedule(
        [(0, 0.1), (2, 0.05), (3, 0.025)], multiple_of=4
    )
    callback = eval(
        schedule.to("lightning"), {"GradientAccumulationScheduler": GradientAccumulationScheduler}
    )

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(3, 2)
            self.updates = []

        def training_step(self, batch, _):
            x, y = batch
            return torch.nn.functional.cross_entropy(self.linear(x), y)

        def on_train_epoch_end(self):
            self.updates.append(self.trainer.global_step)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    module = Module()
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = lightning.Trainer(
        max_epochs=4,
        callbacks=[callback],
        accelerator="cpu",
        default_root_dir=tmp_path,
        enable_checkpointing=False,
        **quiet,
    )
    trainer.fit(module, torch.utils.data.DataLoader(data(), batch_size=4))
    # 16 batches an epoch, of which 1, 1, 2, 4 make an update.
    assert module.updates == [16, 32, 40, 44]


@pytest.mark.parametrize(
    ("length", "updates"), [({"steps": 7}, 7), ({"epochs": 3}, 6), ({"epochs": 0.5}, 1)]
)
@pytest.mark.filterwarnings("ignore")
def test_a_script_trains_as_long_as_was_asked_for(length, updates, tmp_path):
    from torch.utils.data import DataLoader

    tuned = ns.Recipe(learning_rate=0.1, batch_size=16, n_train=N // 2, epochs=5)
    there = tuned.scaled_to(n_train=N, batch_size=32, **length)
    trainer, _ = train_by_the_trainer(there.to("transformers"), tmp_path)
    assert trainer.state.global_step == updates
    trainer, _ = train_by_lightning(there.to("lightning"), tmp_path)
    assert trainer.global_step == updates
    script = {"torch": torch, "DataLoader": DataLoader, "train_set": data()}
    script["model"] = torch.nn.Linear(3, 2)
    exec(there.to("pytorch"), script)
    if "max_steps" in script:
        assert script["max_steps"] == updates
    else:
        assert script["num_epochs"] * len(script["loader"]) == updates


def parameters():
    return [torch.zeros(2, requires_grad=True)]


def test_sgd_is_read_with_all_that_changes_its_noise():
    optimizer = torch.optim.SGD(parameters(), lr=0.4, momentum=0.9, dampening=0.5)
    recipe = ns.Recipe.from_optimizer(optimizer, batch_size=32, n_train=1000)
    assert recipe.effective_learning_rate == pytest.approx(2.0)
    nesterov = torch.optim.SGD(parameters(), lr=0.4, momentum=0.9, nesterov=True)
    read = ns.Recipe.from_optimizer(nesterov, batch_size=32, n_train=1000)
    assert read.nesterov
    assert "nesterov=True" in read.scaled_to(batch_size=64).to("pytorch")


@pytest.mark.parametrize(
    ("options", "gain"),
    [
        ({"momentum": 0.9}, 10),
        ({"momentum": 0.9, "nesterov": True}, 10),
        ({"momentum": 0.9, "dampening": 0.9}, 1),
        ({"momentum": 0.5, "dampening": 0.2}, 1.6),
        ({"dampening": 0.2}, 1),
    ],
)
def test_the_effective_learning_rate_is_what_pytorch_moves_by(options, gain):
    w = torch.zeros(1, requires_grad=True, dtype=torch.float64)
    optimizer = torch.optim.SGD([w], lr=0.01, **options)
    recipe = ns.Recipe.from_optimizer(optimizer, batch_size=1, n_train=10)
    for _ in range(2000):  # 0.9^2000 is nothing
        before = w.item()
        w.grad = torch.ones(1, dtype=torch.float64)
        optimizer.step()
    assert before - w.item() == pytest.approx(0.01 * gain, rel=1e-9)
    assert recipe.effective_learning_rate == pytest.approx(0.01 * gain, rel=1e-12)


def test_adam_and_adamw_are_told_apart():
    adam = torch.optim.Adam(parameters(), lr=1e-3, weight_decay=0.1)
    adamw = torch.optim.AdamW(parameters(), lr=1e-3, weight_decay=0.1)
    read = [ns.Recipe.from_optimizer(o, batch_size=8, n_train=1000) for o in (adam, adamw)]
    assert [recipe.decoupled for recipe in read] == [False, True]
    assert [r.scaled_to(batch_size=32).weight_decay for r in read] == pytest.approx([0.1, 0.2])
    assert "torch.optim.Adam(" in read[0].to("pytorch")
    assert "has no Adam with an L2 penalty" in read[0].to("transformers")
    amsgrad = torch.optim.AdamW(parameters(), amsgrad=True)
    assert "amsgrad" in ns.Recipe.from_optimizer(amsgrad, batch_size=8).notes[0]


def test_schedulers_groups_and_wrappers():
    optimizer = torch.optim.SGD(parameters(), lr=0.4)
    torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.01)
    assert optimizer.param_groups[0]["lr"] < 0.01
    recipe = ns.Recipe.from_optimizer(optimizer, batch_size=32, n_train=1000)
    assert recipe.learning_rate == 0.4
    assert "initial_lr" in recipe.notes[0]

    decayed = [{"params": parameters(), "weight_decay": 0.1}, {"params": parameters()}]
    read = ns.Recipe.from_optimizer(torch.optim.AdamW(decayed, weight_decay=0.0), batch_size=4)
    assert read.weight_decay == 0.1
    assert "weight decays of 0, 0.1" in read.notes[0]

    groups = torch.optim.SGD([{"params": parameters(), "lr": 1.0}, {"params": parameters()}], lr=2)
    with pytest.raises(InputError, match=r"differ in lr \(1.0, 2.0\): choose one with group=0"):
        ns.Recipe.from_optimizer(groups, batch_size=4)
    assert ns.Recipe.from_optimizer(groups, batch_size=4, group=1).learning_rate == 2
    with pytest.raises(InputError, match="2 parameter groups, and none has number 2"):
        ns.Recipe.from_optimizer(groups, batch_size=4, group=2)

    accelerate = pytest.importorskip("accelerate")
    prepared = accelerate.Accelerator(cpu=True).prepare(optimizer)
    assert ns.Recipe.from_optimizer(prepared, batch_size=4).learning_rate == 0.4


def under(scheduler, updates=0, optimizer=None, **options):
    """An optimiser whose learning rate a scheduler has changed for so many updates."""
    optimizer = optimizer or torch.optim.SGD(parameters(), lr=0.1, momentum=0.9)
    stepped = scheduler(optimizer, **options)
    for _ in range(updates):
        optimizer.step()
        stepped.step(1.0) if "Plateau" in type(stepped).__name__ else stepped.step()
    return optimizer


def warmed_up(optimizer):
    lr = torch.optim.lr_scheduler
    first = lr.LinearLR(optimizer, start_factor=0.1, total_iters=3)
    return lr.SequentialLR(optimizer, [first, lr.CosineAnnealingLR(optimizer, 10)], [3])


@pytest.mark.parametrize("updates", [0, 2, 7])
@pytest.mark.parametrize(
    ("scheduler", "options"),
    [
        ("LinearLR", {"start_factor": 0.01}),
        ("ConstantLR", {}),
        ("StepLR", {"step_size": 2}),
        ("MultiStepLR", {"milestones": [3]}),
        ("ExponentialLR", {"gamma": 0.9}),
        ("PolynomialLR", {"total_iters": 10}),
        ("CosineAnnealingLR", {"T_max": 10}),
        ("CosineAnnealingWarmRestarts", {"T_0": 3}),
        ("LambdaLR", {"lr_lambda": lambda k: min(1, (k + 1) / 5)}),
        ("warmed_up", {}),
        ("OneCycleLR", {"max_lr": 0.1, "total_steps": 10, "cycle_momentum": False}),
        (
            "OneCycleLR",
            {"max_lr": 0.1, "total_steps": 10} | {"base_momentum": 0.9} | {"max_momentum": 0.9},
        ),
    ],
)
def test_under_a_known_scheduler_the_highest_learning_rate_is_read(scheduler, options, updates):
    scheduler = getattr(torch.optim.lr_scheduler, scheduler, warmed_up)
    read = ns.Recipe.from_optimizer(under(scheduler, updates, **options), batch_size=32)
    assert (read.learning_rate, read.momentum) == (0.1, 0.9)
    assert read.notes[0].endswith("max_lr, 0.1") or "initial_lr, 0.1," in read.notes[0]


@pytest.mark.parametrize(
    ("scheduler", "options", "updates", "message"),
    [
        (
            "OneCycleLR",
            {"max_lr": 0.1, "total_steps": 100},
            0,
            r"moves the momentum between 0.85 and 0.95, .* or say cycle_momentum=False\.",
        ),
        ("CyclicLR", {"base_lr": 0.01, "max_lr": 0.1}, 0, "the momentum between 0.8 and 0.9"),
        (
            "CyclicLR",
            {"base_lr": 0.01, "max_lr": 0.1, "cycle_momentum": False},
            0,
            "was made with a learning rate of 0.1, and its groups have 0.01: .*or give group=0 if",
        ),
        (
            "CyclicLR",
            {"base_lr": 0.1, "max_lr": 0.2, "cycle_momentum": False},
            2,
            "taken the learning rate to 0.1001, above the 0.1 that it began with",
        ),
        ("LambdaLR", {"lr_lambda": lambda k: 1 + k}, 2, "taken the learning rate to 0.3, above"),
        ("ReduceLROnPlateau", {"patience": 0}, 3, "made with a learning rate of 0.1, and its gro"),
        ("SWALR", {"swa_lr": 0.05}, 0, "SWALR leads to a learning rate of 0.05"),
    ],
)
def test_under_other_schedulers_no_learning_rate_is_guessed(scheduler, options, updates, message):
    made = getattr(torch.optim.lr_scheduler, scheduler, torch.optim.swa_utils.SWALR)
    with pytest.raises(InputError, match=message):
        ns.Recipe.from_optimizer(under(made, updates, **options), batch_size=32)


def test_a_scheduler_that_moves_adams_beta1_is_refused():
    one_cycle = torch.optim.lr_scheduler.OneCycleLR
    adamw = torch.optim.AdamW(parameters(), lr=1e-3)
    cycled = under(one_cycle, optimizer=adamw, max_lr=1e-2, total_steps=10)
    with pytest.raises(InputError, match="moves the momentum between 0.85 and 0.95"):
        ns.Recipe.from_optimizer(cycled, batch_size=32)
    adamw = torch.optim.AdamW(parameters(), lr=1e-3)
    kept = under(one_cycle, optimizer=adamw, max_lr=1e-2, total_steps=10, cycle_momentum=False)
    read = ns.Recipe.from_optimizer(kept, batch_size=32)
    assert (read.learning_rate, read.betas) == (0.01, (0.9, 0.999))


def test_a_learning_rate_that_was_changed_is_taken_when_its_group_is_named():
    own = torch.optim.SGD([{"params": parameters(), "lr": 0.5}])
    with pytest.raises(InputError, match="groups have 0.5: .*, or give group=0 if 0.5 is its high"):
        ns.Recipe.from_optimizer(own, batch_size=4)
    assert ns.Recipe.from_optimizer(own, batch_size=4, group=0).learning_rate == 0.5


def test_wrappers_of_lightning_are_looked_into():
    pytest.importorskip("lightning")
    from lightning.pytorch.core.optimizer import LightningOptimizer

    wrapped = LightningOptimizer(torch.optim.AdamW(parameters(), lr=0.01))
    assert ns.Recipe.from_optimizer(wrapped, batch_size=4).decoupled


class Lookahead(torch.optim.SGD):
    """Trains by more than its base class, which it holds as ``optimizer``, as such classes do."""

    def __init__(self, params):
        super().__init__(params, lr=0.1)
        self.optimizer = torch.optim.SGD(params, lr=0.1)


def test_tokens_from_what_a_device_holds():
    adamw = torch.optim.AdamW(parameters(), lr=3e-4)
    read = ns.Recipe.from_optimizer(
        adamw,
        per_device_batch_size=8,
        gradient_accumulation_steps=4,
        world_size=2,
        unit="tokens",
        sequence_length=1024,
        batch_size=65_536,
    )
    assert (read.batch_size, read.examples) == (65_536, 64)
    with pytest.raises(InputError, match="batch_size 32 is not 8 a device x 4 .* x 2 devices = 64"):
        ns.Recipe.from_optimizer(
            adamw,
            per_device_batch_size=8,
            gradient_accumulation_steps=4,
            world_size=2,
            unit="tokens",
            sequence_length=1024,
            batch_size=32_768,
        )

    with pytest.raises(InputError, match="needs sequence_length, the tokens of one example"):
        ns.Recipe.from_optimizer(adamw, per_device_batch_size=8, unit="tokens")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: torch.optim.RMSprop(parameters()), "SGD, Adam and AdamW, and not for RMSprop"),
        (lambda: torch.optim.NAdam(parameters()), "and not for NAdam"),
        (lambda: Lookahead(parameters()), "and not for Lookahead"),
        (lambda: torch.optim.SGD(parameters(), maximize=True), "has maximize=True, and the lines"),
        (lambda: torch.optim.AdamW(parameters(), maximize=True), "minimize the negative"),
        (lambda: torch.nn.Linear(1, 1), "must be one of PyTorch's, .* got Linear"),
        (lambda: "sgd", "got str"),
    ],
)
def test_other_optimisers_are_refused_in_a_sentence(make, message):
    with pytest.raises(InputError, match=message):
        ns.Recipe.from_optimizer(make(), batch_size=8)


def test_processes_that_train_together_are_asked():
    import torch.distributed as dist

    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        optimizer = torch.optim.SGD(parameters(), lr=0.1)
        read = ns.Recipe.from_optimizer(optimizer, per_device_batch_size=8)
        assert read.batch_size == 8
    finally:
        dist.destroy_process_group()

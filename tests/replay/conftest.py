"""Two small files in the published format, made by formulas."""

import pytest

TRAIN = "dataset,network,batch_size,optimizer,learning_rate,run,target_metric,target_epoch"
POWER = "dataset,network,batch_size,optimizer,power_limit,time_per_epoch,average_power"


@pytest.fixture
def traces(tmp_path, monkeypatch):
    """A folder with train.csv and summary_power_tiny.csv, which is the current one."""
    monkeypatch.chdir(tmp_path)
    train, power = [TRAIN], [POWER]
    for size in (16, 32, 64, 128, 256):
        for run in (1, 2, 3):
            epochs = round(5 + size / 30) + run % 2
            train += [f"letters,lenet,{size},adam,1e-3,{run},0.5,1"]
            train += [f"letters,lenet,{size},adam,1e-3,{run},0.9,{'' if size == 256 else epochs}"]
        if size != 16:
            for watts, slow in ((200, 1.0), (150, 1.05), (100, 1.6)):
                power += [f"letters,lenet,{size},adam,{watts},{slow * (10 + 900 / size)},{watts * 0.95}"]
    power += ["digits,lenet,32,adam,250,9.0,240"]
    (tmp_path / "train.csv").write_text("\n".join(train) + "\n")
    (tmp_path / "summary_power_tiny.csv").write_text("\n".join(power) + "\n")
    return tmp_path

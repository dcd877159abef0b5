"""Two small files in the format of the published traces, made by formulas."""

from pathlib import Path

TRAIN = "dataset,network,batch_size,optimizer,learning_rate,run,target_metric,target_epoch"
POWER = "dataset,network,batch_size,optimizer,power_limit,time_per_epoch,average_power"


def write_recorded(train: Path, power: Path, dataset: str, target: float) -> None:
    """Write trainings of a dataset at batch sizes from 16 to 256, of which power lacks the lowest."""
    trainings, epochs_at_limits = [TRAIN], [POWER]
    for size in (16, 32, 64, 128, 256):
        for run in (1, 2, 3):
            epochs = round(5 + size / 30) + run % 2
            trainings += [f"{dataset},lenet,{size},adam,1e-3,{run},0.5,1"]
            trainings += [f"{dataset},lenet,{size},adam,1e-3,{run},{target},{'' if size == 256 else epochs}"]
        if size != 16:
            for watts, slow in ((200, 1.0), (150, 1.05), (100, 1.6)):
                epochs_at_limits += [f"{dataset},lenet,{size},adam,{watts},{slow * (10 + 900 / size)},{watts * 0.95}"]
    epochs_at_limits += ["digits,lenet,32,adam,250,9.0,240"]
    train.write_text("\n".join(trainings) + "\n")
    power.write_text("\n".join(epochs_at_limits) + "\n")

#!/usr/bin/env python3
# Trains the networks of Keras's MNIST-family tutorials with Keras on Fashion-MNIST, as
# examples/tutorial_networks does with tutti.
# SPDX-License-Identifier: Apache-2.0
"""Usage: tutorials.py [--data-dir DIR] [--seed N] [--epochs N] [network ...]
Prints one line of JSON per network. Must run with the Python of .venv/parity (see record.py)."""
import argparse
import gzip
import json
import pathlib
import time

import keras
import numpy

layers = keras.layers


def load(folder, split):
    def read(name, header):
        with gzip.open(pathlib.Path(folder) / name) as file:
            return numpy.frombuffer(file.read(), "uint8", offset=header)
    images = read(f"{split}-images-idx3-ubyte.gz", 16).reshape(-1, 28, 28, 1)
    return images.astype("float32") / 255.0, read(f"{split}-labels-idx1-ubyte.gz", 8).astype("int64")


def convolutions():
    return [layers.Conv2D(32, 3, activation="relu"), layers.MaxPooling2D(),
            layers.Conv2D(64, 3, activation="relu"), layers.MaxPooling2D(), layers.Flatten()]


def rate_of_epoch(epoch, rate):
    return 1e-3 if epoch < 3 else 1e-4 if epoch < 7 else 1e-5


def networks():
    """Returns {name: (layers, optimizer, batch size, epochs, training examples, callbacks)}."""
    decay = keras.callbacks.LearningRateScheduler(rate_of_epoch)
    return {
        "basic_classification": ([layers.Flatten(), layers.Dense(128, activation="relu"), layers.Dense(10)],
                                 "adam", 32, 10, 60000, []),
        "quickstart": ([layers.Flatten(), layers.Dense(128, activation="relu"), layers.Dropout(0.2),
                        layers.Dense(10)], "adam", 32, 5, 60000, []),
        "simple_convnet": ([*convolutions(), layers.Dropout(0.5), layers.Dense(10, activation="softmax")],
                           "adam", 128, 15, 54000, []),
        "distributed_keras": ([layers.Conv2D(32, 3, activation="relu"), layers.MaxPooling2D(), layers.Flatten(),
                               layers.Dense(64, activation="relu"), layers.Dense(10)],
                              "adam", 64, 12, 60000, [decay]),
        "custom_training": ([*convolutions(), layers.Dense(64, activation="relu"), layers.Dense(10)],
                            "adam", 64, 10, 60000, []),
        "working_with_rnns": ([layers.Reshape((28, 28)), layers.LSTM(64), layers.BatchNormalization(),
                               layers.Dense(10)], "sgd", 64, 1, 60000, []),
    }


def train(name, arguments):
    keras.utils.set_random_seed(arguments.seed)
    stack, optimizer, batch_size, epochs, examples, callbacks = networks()[name]
    images, labels = load(arguments.data_dir, "train")
    model = keras.Sequential([keras.Input((28, 28, 1)), *stack])
    from_logits = stack[-1].activation is not keras.activations.softmax
    model.compile(optimizer=optimizer, metrics=["accuracy"],
                  loss=keras.losses.SparseCategoricalCrossentropy(from_logits=from_logits))
    epochs = arguments.epochs or epochs
    started = time.monotonic()
    model.fit(images[:examples], labels[:examples], batch_size=batch_size, epochs=epochs, callbacks=callbacks,
              verbose=0)
    seconds = time.monotonic() - started
    loss, accuracy = model.evaluate(*load(arguments.data_dir, "t10k"), batch_size=1000, verbose=0)
    print(json.dumps({"network": name, "epochs": epochs, "parameters": model.count_params(), "seed": arguments.seed,
                      "test_loss": round(loss, 4), "test_accuracy": round(accuracy, 4),
                      "seconds": round(seconds, 1)}), flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data-dir", default="/usr/share/datasets/fashion-mnist")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=0, help="number of epochs; default: that of the tutorial")
    parser.add_argument("networks", nargs="*")
    arguments = parser.parse_args()
    for name in arguments.networks or networks():
        train(name, arguments)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
# Times the training steps of train_step with TensorFlow: a tf.function around Keras layers.
# SPDX-License-Identifier: Apache-2.0
"""--layout xla compiles the step (jit_compile). --replicas uses tf.distribute.MirroredStrategy."""
import os
import sys

import peer_report

FLAGS = peer_report.parse_flags(__doc__, ("default", "xla"))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import tensorflow as tf  # noqa: E402  the flags set the number of threads
from tensorflow import keras  # noqa: E402

layers = keras.layers


def lrn(x):
    return tf.nn.local_response_normalization(x, 4, bias=1.0, alpha=0.001 / 9.0, beta=0.75)


def residual_block(x, filters, stride):
    def conv(inputs, size, strides):
        return layers.Conv2D(filters, size, strides, "same", use_bias=False)(inputs)

    y = layers.ReLU()(layers.BatchNormalization()(conv(x, 3, stride)))
    y = layers.BatchNormalization()(conv(y, 3, 1))
    if stride != 1 or x.shape[-1] != filters:
        x = layers.BatchNormalization()(conv(x, 1, stride))
    return layers.ReLU()(layers.Add()([y, x]))


def resnet20():
    inputs = keras.Input((32, 32, 3))
    x = layers.Conv2D(16, 3, padding="same", use_bias=False)(inputs)
    x = layers.ReLU()(layers.BatchNormalization()(x))
    for filters, stride in ((16, 1), (32, 2), (64, 2)):
        for block in range(3):
            x = residual_block(x, filters, stride if block == 0 else 1)
    return keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling2D()(x)))


def make_model(name):
    """Returns the network and the shape of an example."""
    if name == "resnet20":
        return resnet20(), (32, 32, 3)
    relu = {"activation": "relu"}
    if name == "cifar10_cnn":
        shape = (24, 24, 3)
        body = [layers.Conv2D(64, 5, padding="same", **relu), layers.MaxPooling2D(3, 2, "same"), layers.Lambda(lrn),
                layers.Conv2D(64, 5, padding="same", **relu), layers.Lambda(lrn), layers.MaxPooling2D(3, 2, "same"),
                layers.Flatten(), layers.Dense(384, **relu), layers.Dense(192, **relu)]
    elif name == "small_cnn":
        shape = (28, 28, 1)
        body = [layers.Conv2D(32, 3, **relu), layers.MaxPooling2D(), layers.Conv2D(64, 3, **relu),
                layers.MaxPooling2D(), layers.Flatten(), layers.Dense(64, **relu)]
    elif name == "mlp":
        shape, body = (784,), [layers.Dense(512, **relu), layers.Dense(512, **relu)]
    else:
        shape, body = (10,), []
    return keras.Sequential([keras.Input(shape)] + body + [layers.Dense(10)]), shape


def make_strategy():
    tf.config.threading.set_intra_op_parallelism_threads(FLAGS.threads)
    # One inter-op thread per replica is the fastest setting.
    tf.config.threading.set_inter_op_parallelism_threads(FLAGS.replicas)
    if FLAGS.replicas == 1:
        return tf.distribute.get_strategy()
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * FLAGS.replicas)
    return tf.distribute.MirroredStrategy([f"cpu:{i}" for i in range(FLAGS.replicas)])


def main():
    strategy = make_strategy()
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model, shape = make_model(FLAGS.model)
        optimizer = keras.optimizers.SGD(1e-3)
        optimizer.build(model.trainable_variables)
    rows = FLAGS.batch_size // FLAGS.replicas
    x = tf.random.normal((rows, *shape))
    y = tf.range(rows) * 7 % 10

    def replica_step(x, y):
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, model(x, training=True))
            loss = tf.reduce_sum(losses) / FLAGS.batch_size
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    if FLAGS.replicas == 1:
        compiled = tf.function(replica_step, jit_compile=True if FLAGS.layout == "xla" else None)

        def step():
            return compiled(x, y)
    else:
        @tf.function
        def compiled(x, y):
            return strategy.reduce("SUM", strategy.run(replica_step, (x, y)), axis=None)

        def step():
            return compiled(x, y)

    measured = peer_report.measure(FLAGS, step)
    parameters = sum(int(tf.size(v)) for v in model.trainable_variables)
    peer_report.print_report(FLAGS, f"tensorflow {tf.__version__}", parameters, measured, float(measured[-1]))


sys.exit(main())

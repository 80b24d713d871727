# Whole training under tf.distribute.MirroredStrategy with 1, 2 and 4 logical CPU devices.
# SPDX-License-Identifier: Apache-2.0
import numpy

STEPS, EXAMPLES, GLOBAL_BATCH = 50, 70, 20  # the last batch of an epoch has 10 rows
LEARNING_RATE, MOMENTUM = 1 / 16, 7 / 8


def data():
    random = numpy.random.RandomState(7)
    images = random.uniform(0.0, 1.0, (EXAMPLES, 8, 8, 1))
    labels = random.randint(0, 5, EXAMPLES).astype("int64")
    return images, labels


def make_model(keras, normalized):
    layers = keras.layers
    stack = [keras.Input((8, 8, 1)), layers.Conv2D(4, 3, activation="relu")]
    if normalized:
        stack.append(layers.BatchNormalization(momentum=MOMENTUM))
    stack += [layers.MaxPooling2D(2), layers.Flatten(), layers.Dense(5)]
    return keras.Sequential(stack)


def train(tf, keras, dtype, replicas, normalized):
    images, labels = data()
    # The default reduction cannot serve groups of different sizes in one process.
    strategy = tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(replicas)],
                                              cross_device_ops=tf.distribute.ReductionToOneDevice())
    dataset = tf.data.Dataset.from_tensor_slices((images.astype(dtype), labels)).batch(GLOBAL_BATCH)
    batches = strategy.experimental_distribute_dataset(dataset)
    with strategy.scope():
        model = make_model(keras, normalized)
        optimizer = keras.optimizers.SGD(LEARNING_RATE, momentum=MOMENTUM)
        optimizer.build(model.trainable_variables)
    random = numpy.random.RandomState(11)
    for weight in model.trainable_variables:
        weight.assign(random.uniform(-0.3, 0.3, weight.shape).astype(dtype))
    initial = [weight.numpy() for weight in model.weights]

    def step(images, labels, rows):
        with tf.GradientTape() as tape:
            logits = model(images, training=True)
            each = keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)
            loss = tf.nn.compute_average_loss(each, global_batch_size=rows)
        gradients = tape.gradient(loss, [weight.value for weight in model.trainable_variables])
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    @tf.function
    def distributed_step(batch, rows):
        losses = strategy.run(step, args=(batch[0], batch[1], rows))
        return strategy.reduce("SUM", losses, axis=None)

    losses, first = [], 0
    while len(losses) < STEPS:
        for batch in batches:
            rows = min(GLOBAL_BATCH, EXAMPLES - first)
            first = (first + rows) % EXAMPLES
            losses.append(distributed_step(batch, tf.constant(rows)).numpy())
            if len(losses) == STEPS:
                break
    # Keras's moving averages differ by replica and show the first one's; ours are the mean, Keras 2's rule.
    final = [numpy.mean([part.numpy() for part in strategy.experimental_local_results(weight.value)], axis=0)
             for weight in model.weights]
    return initial, numpy.array(losses), final


def record(tf, keras):
    dtype = keras.config.floatx()
    images, labels = data()
    tensors = {"images": images.astype(dtype), "labels": labels}
    for normalized in (False, True):
        for replicas in (1, 2, 4):
            name = f"{'batch_normalization' if normalized else 'plain'}_{replicas}"
            initial, losses, final = train(tf, keras, dtype, replicas, normalized)
            tensors[f"{name}/losses"] = losses
            for i, (before, after) in enumerate(zip(initial, final)):
                tensors[f"{name}/initial{i}"] = before
                tensors[f"{name}/final{i}"] = after
    return tensors
